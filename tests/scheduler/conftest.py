"""A scheduler on the usual configuration."""

from __future__ import annotations

import pytest

from tests.harness.scheduler import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()

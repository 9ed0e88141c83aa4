"""A scheduler with the default configuration."""

import pytest

from tests.harness.scheduler import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()

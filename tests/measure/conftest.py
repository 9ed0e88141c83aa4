"""A reference voice as a file, with its transcript beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.daemons import reference_wav


@pytest.fixture(scope="session")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("voice") / "ann.wav"
    path.write_bytes(reference_wav())
    path.with_suffix(".txt").write_text("Some call me nature, others call me mother nature.\n")
    return path

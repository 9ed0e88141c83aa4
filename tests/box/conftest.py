"""Boxes that several test files start from."""

from pathlib import Path

import pytest

from tests.fakes.jetson.board import Jetson
from tests.harness.boxes import well


@pytest.fixture
def maxn(tmp_path: Path) -> Jetson:
    """A Jetson in its best power mode whose clocks are not pinned, as on every boot after the first."""
    jetson = Jetson(tmp_path, "jp6-0005")
    jetson.set_mode("MAXN")
    jetson.machine.ran_nvpmodel(5.0)
    return jetson


@pytest.fixture
def jetson(tmp_path: Path) -> Jetson:
    """A Jetson without a fault."""
    return well(tmp_path / "box")

"""Upstream's results for the golden lines and waves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "oracle/golden"


@pytest.fixture(scope="session")
def golden_lines() -> dict[str, Any]:
    """Tokens, chunks and plans of every line; `golden/generate.py` documents how upstream makes them."""
    return json.loads((GOLDEN / "lines.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def golden_mels() -> dict[str, np.ndarray]:
    """Waves and upstream's log-mels of them."""
    with np.load(GOLDEN / "mel.npz") as file:
        return dict(file)

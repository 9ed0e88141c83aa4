"""The package whose cuts ours must equal."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


@pytest.fixture(scope="session")
def pydub() -> Any:
    """The package whose cuts ours must equal; it warns of a missing ffmpeg, which it does not need here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("pydub")
        import pydub.silence
    return pydub

"""Judges and recordings; what is not installed or not there skips with its name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

# The judges are torch through and through, and so is the corpus beside them.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture(scope="session")
def panel():  # type: ignore[no-untyped-def]
    """Every judge, loaded."""
    from export.demo import speech_metrics
    from tests.quality.scoring import Panel

    if absent := speech_metrics.missing(set(speech_metrics.PACKAGES) - {"pocketsphinx"}):
        pytest.skip(f"judges not installed (scripts/requirements/quality.txt): {', '.join(absent)}")
    return Panel()


@pytest.fixture(scope="session")
def corpus(root: Path) -> Path:
    """A corpus on this machine, made by `python -m export.demo corpus make`."""
    from export.demo.corpus import FOLDER

    if not (root / FOLDER / "clips.jsonl").exists():
        pytest.skip(f"no corpus at {FOLDER}")
    return root / FOLDER


@pytest.fixture(scope="session")
def aligner():  # type: ignore[no-untyped-def]
    """The judge of when words are said, loaded."""
    from export.demo import speech_metrics
    from tests.quality import judges

    if absent := speech_metrics.missing(["pocketsphinx"]):
        pytest.skip(f"judge not installed (scripts/requirements/quality.txt): {', '.join(absent)}")
    return judges.Aligner()

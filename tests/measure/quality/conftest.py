"""Judges and recordings; a test skips if a package or file is missing, and names it."""

import importlib.util

import pytest

# All judges and teachers need torch.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture(scope="session")
def panel():  # type: ignore[no-untyped-def]
    from export.hearing import PACKAGES, missing
    from tests.measure.quality.scoring import Panel

    if absent := missing(set(PACKAGES) - {"pocketsphinx"}):
        pytest.skip(f"judges not installed (scripts/requirements/quality.txt): {', '.join(absent)}")
    return Panel()


@pytest.fixture(scope="session")
def aligner():  # type: ignore[no-untyped-def]
    from export.hearing import missing
    from tests.measure.quality import judges

    if absent := missing(["pocketsphinx"]):
        pytest.skip(f"judge not installed (scripts/requirements/quality.txt): {', '.join(absent)}")
    return judges.Aligner()

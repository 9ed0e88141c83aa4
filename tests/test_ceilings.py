"""The counts of `scripts/ceilings`, on a text whose figures are counted by hand."""

from types import ModuleType
from typing import Any

import pytest

from tests.harness.boxes import script

SOURCE = '''\
"""The docstring of a module."""

# Those that open without a subject.
LIMIT = """one
two"""
"""A string under a field, which is said to nobody."""


def one(numbers):
    """The sum of numbers."""
    assert numbers
    while len(numbers) > LIMIT:  # a comment behind code
        numbers = [n if n else 0 for n in numbers if n < 3]
    return """not a docstring"""
'''


@pytest.fixture
def ceilings() -> ModuleType:
    return script("ceilings")


def test_figures_of_a_text(ceilings: Any) -> None:
    assert ceilings.code_lines(SOURCE) == 7
    assert ceilings.branches(SOURCE) == 4
    assert [line for line, _ in sorted(ceilings.sentences(SOURCE))] == [1, 3, 6, 10, 12]
    assert ceilings.odd_share({"a.py": SOURCE}, prints=False) == 40.0


def test_sources_are_python_that_is_written_by_hand(ceilings: Any) -> None:
    found = ceilings.sources(("scripts", "appliance/rpc"))
    assert {"scripts/ceilings", "appliance/rpc/call.py"} <= found.keys()
    assert not [path for path in found if "_pb2" in path or path == "scripts/lock"]


@pytest.mark.parametrize("less", [0, 1])
def test_a_figure_above_its_ceiling_fails(
    ceilings: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], less: int
) -> None:
    """Checks both sides of each ceiling; the ceilings themselves are checked by scripts/check."""
    figures = {"product_code_lines": 7, "test_code_lines": 7, "route_branches": 4}
    figures |= {"product_odd_sentences_percent": 40, "test_odd_sentences_percent": 40}
    settings = {**{name: figure - less for name, figure in figures.items()}, "route": ["a.py"]}
    monkeypatch.setattr(ceilings.tomllib, "loads", lambda text: {"tool": {"ceilings": settings}})
    monkeypatch.setattr(ceilings, "sources", lambda folders: {"a.py": SOURCE})
    monkeypatch.setattr(ceilings.sys, "argv", ["ceilings"])
    assert ceilings.main() == less
    assert capsys.readouterr().out.count("EXCEEDED") == len(figures) * less

"""The workshop's pages: each link leads to a file or heading, and the route names every module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

EXPORT = Path(__file__).resolve().parents[2] / "export"
PAGES = (EXPORT / "README.md", EXPORT / "demo" / "README.md")


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_the_route_names_every_module(page: Path) -> None:
    modules = {path.name for path in page.parent.glob("*.py") if not path.name.startswith("__")}
    assert modules <= set(links(page))

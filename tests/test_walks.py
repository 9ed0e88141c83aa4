"""The walks in the READMEs, the paths they name, and the figure of the layers, against the code.

A walk is a numbered list whose steps begin with links such as [`voices.py:VoiceStore.create`](voices.py),
joined by "→" (calls) or "," (called by the same). The end of a step says how the next one is reached:

    nothing             the step's last functions call it
    (back in step 4)    a function of step 4 calls it
    (through `x`)       both name `x`: a queue, a lock, a file
"""

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.once

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest depends on tomli on these Pythons

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("appliance", "configs", "export", "scripts", "systemd", "tests")
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
LINK = re.compile(r"\[`([^`\]]+):([A-Za-z_][\w.]*)`\]\(([^)\s]+)\)")
PATH = re.compile(r"(^\| )?`((?:[\w-]+/)*[\w.-]+\.(?:py|sh|md))`", re.MULTILINE)
FROM_ROOT = re.compile(rf"()`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
BELOW = re.compile(r"()`((?:[\w-]+/)+)`")
"""A folder; pages about the box (`scripts`, `systemd`, `tests`) name folders of the box too."""
TARGET = re.compile(r"\]\(((?!\w+:)[^)#\s]*[./][^)#\s]*)")
MODULE = re.compile(r"python3? -m ((?:appliance|export|tests)(?:\.\w+)*)")
LEFT = re.compile(r"`[^`]+`( \([^)]*\))? at\s+[0-9a-f]{8}\b")
"""A file or a command that left the project after that commit."""
OTHERS = {"api_v2.py", "socket_server.py", "src/infer.py", "talk.py", "weights/"}
"""Programs of other projects, and a folder of a command's example."""
FIGURE = ROOT / "appliance" / "README.md"

Function = tuple[Path, str]
"""A file and a dotted name in it."""
Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Step = tuple[str, list[list[Function]]]
"""The note at the step's end, and the functions, in groups in which each calls the next."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


@cache
def definition(path: Path, name: str) -> tuple[Any, Any]:
    """The node that defines `name` in a file, and the node whose body holds the definition."""
    node: Any = tree_of(path)
    parent = node
    for part in name.split("."):
        own = (inner for inner in node.body if isinstance(inner, Definition) and inner.name == part)
        parent, node = node, next(own, None)
        assert node is not None, f"{path.relative_to(ROOT)} defines no {name}"
    return node, parent


def names(function: Function) -> set[str]:
    """Every name and attribute that a function uses, its parameters included."""
    used = set()
    for node in ast.walk(definition(*function)[0]):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used |= {node.attr, f".{node.attr}"}
        elif isinstance(node, ast.arg):
            used.add(node.arg)
    return used


def wanted(function: Function) -> str:
    """Name by which a caller uses a function: a method as an attribute, because a variable may have its
    name."""
    name = function[1].rpartition(".")[2]
    return f".{name}" if isinstance(definition(*function)[1], ast.ClassDef) else name


def linked(page: Path, text: str) -> list[Function]:
    functions = []
    for file, name, target in LINK.findall(text):
        assert file == target, f"{page.relative_to(ROOT)}: `{file}:{name}` leads to {target}"
        functions.append(((page.parent / file).resolve(), name))
    return functions


def walks(page: Path) -> Iterator[list[Step]]:
    walk: list[Step] = []
    for number, item in re.findall(r"^(\d+)\. (\[`.*(?:\n .*)*)", page.read_text("utf-8"), re.MULTILINE):
        head, _, prose = re.sub(r"\s*\n\s*", " ", item).partition("): ")
        if not LINK.match(f"{head})"):
            continue
        if number == "1" and walk:
            yield walk
            walk = []
        assert int(number) == len(walk) + 1, f"{page.relative_to(ROOT)}: step {number} is out of order"
        note = re.search(r"\(([^()]*)\)$", prose)
        walk.append((note[1] if note else "", [linked(page, group) for group in f"{head})".split("→")]))
    if walk:
        yield walk


WALKS = [(page, walk) for page in PAGES for walk in walks(page)]
IDS = [f"{page.parent.name}-{walk[0][1][0][0][1]}" for page, walk in WALKS]


def assert_called(callers: list[Function], called: list[Function]) -> None:
    used = set().union(*map(names, callers))
    for function in called:
        assert wanted(function) in used, f"{function[1]} is not called by {[name for _, name in callers]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_every_named_function_is_there(page: Path) -> None:
    """A path starts at the page's folder, its tests, the package or the root; a bare name within a text may
    lie below."""
    for path, name in linked(page, page.read_text("utf-8")):
        assert path.is_file(), f"{page.relative_to(ROOT)}: {path} does not exist"
        definition(path, name)
    folders = (page.parent, ROOT / "tests" / page.parent.name, ROOT / "appliance", ROOT)
    is_of_code = page.relative_to(ROOT).parts[0] in ("appliance", "export")
    text = LEFT.sub("", page.read_text("utf-8"))
    kinds = (PATH, FROM_ROOT, BELOW) if is_of_code else (PATH, FROM_ROOT)
    for begins_row, path in itertools.chain.from_iterable(kind.findall(text) for kind in kinds):
        exists = any((folder / path).exists() for folder in folders)
        if not exists and "/" not in path and not begins_row:
            exists = any(page.parent.rglob(path))
        assert exists or path in OTHERS, f"{page.relative_to(ROOT)} names {path}"
    for target in TARGET.findall(text):
        assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} leads to {target}"
    for name in MODULE.findall(text):
        place = ROOT.joinpath(*name.split("."))
        runs = place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
        assert runs, f"{page.relative_to(ROOT)}: python -m {name}"


def test_the_walks_are_a_request_an_upload_an_export_and_a_clock_check() -> None:
    request = "appliance-SynthesizerService.StreamSynthesize"
    assert {*IDS} == {request, "voices-_voices_add", "box-main", "export-_bundle"} and len(IDS) == 4
    assert all(8 <= len(walk) <= 14 for _, walk in WALKS)


@pytest.mark.parametrize("walk", [walk for _, walk in WALKS], ids=IDS)
def test_each_step_leads_to_the_next(walk: list[Step]) -> None:
    for _, groups in walk:
        for callers, called in itertools.pairwise(groups):
            assert_called(callers, called)
    for (note, groups), (_, following) in itertools.pairwise(walk):
        if back := re.fullmatch(r"back in step (\d+)", note):
            assert_called(list(itertools.chain(*walk[int(back[1]) - 1][1])), following[0])
        elif through := re.fullmatch(r"through `(\w+)`", note):
            for side in (groups[-1], list(itertools.chain(*following))):
                assert through[1] in set().union(*map(names, side)), f"{through[1]} is not in {side}"
        else:
            assert_called(groups[-1], following[0])


def figure() -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """The modules of each node, in order, and the arrows between nodes."""
    [text] = re.findall(r"```mermaid\nflowchart TD\n(.*?)```", FIGURE.read_text("utf-8"), re.DOTALL)
    nodes = {
        node: modules.partition("<br>")[0].split(" · ")
        for node, modules in re.findall(r'^ +(\w+)\["(.*)"\]$', text, re.MULTILINE)
    }
    arrows = []
    for line in re.findall(r"^ +(\w+ --> .*)$", text, re.MULTILINE):
        for above, below in itertools.pairwise(line.split(" --> ")):
            arrows += [(above, node) for node in below.split(" & ")]
    return nodes, arrows


def test_the_figure_shows_the_layers_of_the_import_rule() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    [layers] = [rule["layers"] for rule in rules if rule["id"] == "route"]
    nodes, arrows = figure()
    del nodes["export"]
    assert list(nodes.values()) == [[one.strip(" ()") for one in re.split("[|:]", layer)] for layer in layers]
    assert [arrow for arrow in arrows if arrow[0] != "export"] == list(itertools.pairwise(nodes))


def test_the_figure_shows_what_export_imports() -> None:
    imported: set[str] = set()
    for path in (ROOT / "export").rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported |= {module.split(".")[1] for module in modules if module.startswith("appliance.")}
    nodes, arrows = figure()
    layer_of = {module: node for node, modules in nodes.items() for module in modules}
    assert {below for above, below in arrows if above == "export"} == {layer_of[one] for one in imported}

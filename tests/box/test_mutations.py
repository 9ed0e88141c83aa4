"""Files of /sys, /proc, /run and /etc and tools' outputs, damaged in every way: an answer, no traceback.

F5_MUTATIONS sets how many examples: 200 unless it says otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from appliance.box.checks import CHECKS
from appliance.box.clocks.pinning import lock
from appliance.box.system import Box
from appliance.box.tools import Completed, Tools
from tests.box.boxes import well
from tests.box.in_process import quick
from tests.box.r39 import R39
from tests.fakes.jetson import Clock

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = int(os.environ.get("F5_MUTATIONS", "200"))
MUTATED = ("/sys/", "/proc/", "/run/", "/etc/", "/var/lib/")
TOOLS = ("nvpmodel", "jetson_clocks", "systemctl", "journalctl", "timedatectl", "python3")
COMMANDS = {
    "status": ("clock-lock", ("status",), {0, 1, 4}),
    "status --json": ("clock-lock", ("status", "--json"), {0, 1, 4}),
    "check": ("clock-lock", ("watch", "--once"), {0, 1, 2, 3, 4}),
    "lock": ("clock-lock", ("lock",), {0, 1, 2, 3, 4}),
    "unlock": ("clock-lock", ("unlock",), {0, 1, 2, 4}),
    "health": ("health", ("--only", ",".join(CHECKS)), {0, 1, 2}),
}
PYTHON = re.compile(
    r"Traceback|\b[A-Z][a-z]\w*(?:Error|Exception)\b|\[Errno|NoneType|invalid literal|line 1 column|0x7f"
    r"|\bNone\b"
)
NUMBERS = (
    "-1",
    "0",
    "1",
    "-256000",
    "9" * 30,
    "LONG",
    "0x" + "f" * 40,
    "1e999",
    "NaN",
    "٣",
    "²",
    "1.5",
    "\0" * 9,
)
JSONS = ("DEEP", '{"schema": 1}', "[]", "null", '{"a": 1e999}', "{}", "LONG")
LARGE = {"LONG": "9" * 5000, "DEEP": "[" * 100_000}
"""What stands for a text too long for hypothesis to print."""
VALUES = (
    None,
    True,
    -1,
    1.5,
    10**400,
    float("inf"),
    float("nan"),
    "x",
    "\x1b[2J",
    [],
    [[]],
    ["x"],
    {},
    {"cpu0": 1},
)
texts = st.text(max_size=60) | st.sampled_from(
    (*NUMBERS, *JSONS, "", "\n", "\x1b[2J", "\0a\0", "/", ":", "<>")
)


class Subject:
    """A box that is pinned, and how its files were. No dataclass: hypothesis would print every file."""

    def __init__(self, folder: Path, box: Callable[[int], Box], reset: Callable[[], object]) -> None:
        self.folder, self.box, self.reset = folder, box, reset
        self.files = snapshot(folder)

    def restore(self) -> None:
        for folder, names, files in os.walk(self.folder, topdown=False):
            for name in (*names, *files):
                path = Path(folder, name)
                if path.is_dir() and not path.is_symlink():
                    with contextlib.suppress(OSError):
                        path.rmdir()  # of those that were made for a file
                elif str(path) not in self.files and not path.is_symlink():
                    path.unlink()
        for name, content in self.files.items():
            path = Path(name)
            if path.is_symlink():
                path.unlink()
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        self.reset()


@dataclass(frozen=True)
class Damaged(Tools):
    """The tools of a box, some of which print something else, end with another status, or never end."""

    inner: Tools = dataclasses.field(default_factory=Tools)
    damage: dict[str, Any] = dataclasses.field(default_factory=dict)

    def run(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
        if name in ("python3", "setpriv") or "/" in name:
            ran = Completed((name,), 0, '{"version": "7.2.2", "pinned": true, "mode": "MAXN"}\n')
            name = "python3"
        else:
            ran = self.inner.run(name, *arguments, timeout_s=timeout_s, answer=answer)
            # A fake that broke on the damage says so in Python's words; NVIDIA's tools know none.
            ran = dataclasses.replace(ran, errors="" if PYTHON.search(ran.errors) else ran.errors)
        if name not in self.damage:
            return ran
        kind, text, at = self.damage[name]
        if kind == "hangs":
            return Completed(ran.command, -9, "", "", timed_out=True)
        return dataclasses.replace(ran, code=at % 3, output=altered(ran.output, kind, text, at) or "")


def altered(before: str, kind: str, text: str, at: int) -> str | None:
    """A text after damage; None: gone."""
    text = LARGE.get(text, text)
    place = at % (len(before) + 1)
    return {
        "gone": None,
        "replaced": text,
        "cut": before[:place],
        "inserted": before[:place] + text + before[place:],
        "digits": re.sub(r"\d+", lambda found: text, before, count=1 + at % 9),
        "doubled": before + before,
        "shuffled": "\n".join(
            sorted(before.split("\n"), key=lambda line: zlib.crc32(f"{line}{at}".encode("utf-8", "replace")))
        ),
        "json": rewritten(before, at),
    }[kind]


def rewritten(before: str, at: int) -> str:
    """A JSON document with one value of another kind somewhere in it."""
    try:
        document = json.loads(before)
    except (ValueError, RecursionError):
        return before[: at % (len(before) + 1)]
    places: list[tuple[Any, Any]] = []
    todo = [document]
    while todo:
        node = todo.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        places += [(node, key) for key in keys]
        todo += [node[key] for key in keys]
    if places:
        node, key = places[at % len(places)]
        node[key] = VALUES[at // 7 % len(VALUES)]
    return json.dumps(document)


def harm(path: Path, kind: str, text: str, at: int) -> None:
    if not path.is_file():
        return  # harmed already
    before = path.read_bytes().decode("utf-8", "replace")
    if kind in ("folder", "loop"):
        path.unlink(missing_ok=True)
        path.mkdir() if kind == "folder" else path.symlink_to(path.name)
    elif (after := altered(before, kind, text, at)) is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(after.encode("utf-8", "surrogatepass"))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    }


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """JetPack 7 from captures, and the fakes' JetPack 6 with everything that health reads."""
    orin = R39(folder=tmp_path_factory.mktemp("r39")).build()
    jetson = well(tmp_path_factory.mktemp("jp6") / "box")
    jetson.unpin()
    for path in (orin.path, jetson.path):
        for name, text in (
            ("/etc/f5-appliance/appliance.yaml", (ROOT / "configs/appliance.yaml").read_text()),
            ("/usr/local/bin/jtop", "#!/usr/bin/python3\nimport jtop\n"),
            ("/run/jtop.sock", ""),
            ("/proc/4711/comm", "nvpmodel_indica\n"),
        ):
            path(name).parent.mkdir(parents=True, exist_ok=True)
            path(name).write_text(text)

    def fake(user: int) -> Box:
        return quick(jetson, user=lambda: user, **Clock().arguments)

    made = {}
    for name, folder, box, reset in (
        ("r39", orin.folder, orin.box, lambda: orin.now.update(mode="MAXN")),
        ("jp6", jetson.root, fake, lambda: None),
    ):
        assert lock(box(0)).state == "pinned"
        made[name] = Subject(folder, box, reset)
    return made


@pytest.fixture(scope="module")
def scripts() -> dict[str, ModuleType]:
    return {name: load(name) for name in ("clock-lock", "health")}


def load(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.object(sys, "dont_write_bytecode", True), mock.patch.object(sys, "path", list(sys.path)):
        loader.exec_module(module)
    return module


damages = st.tuples(
    st.sampled_from(
        (
            "gone",
            "replaced",
            "cut",
            "inserted",
            "digits",
            "doubled",
            "shuffled",
            "json",
            "folder",
            "loop",
            "hangs",
        )
    ),
    texts,
    st.integers(0, 10_000),
)


# Not shrunk: a tenth of a second each, and the damage says enough as it is.
@settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(["r39", "jp6"]),
    command=st.sampled_from(sorted(COMMANDS)),
    user=st.sampled_from([0, 0, 1000]),
    files=st.lists(st.tuples(st.integers(0, 100_000), damages), max_size=4),
    tools=st.dictionaries(st.sampled_from(TOOLS), damages, max_size=2),
)
def test_whatever_is_damaged_there_is_an_answer(
    subjects: dict[str, Subject],
    scripts: dict[str, ModuleType],
    name: str,
    command: str,
    user: int,
    files: list[tuple[int, Any]],
    tools: dict[str, Any],
) -> None:
    subject = subjects[name]
    script, words, statuses = COMMANDS[command]
    paths = [path for path in subject.files if path.removeprefix(str(subject.folder)).startswith(MUTATED)]
    # A file of each kind as often as another, whether there are twelve of it or one.
    kinds: dict[str, list[str]] = {}
    for path in paths:
        kinds.setdefault(re.sub(r"\d+", "N", path.removeprefix(str(subject.folder))), []).append(path)
    try:
        for number, (kind, text, at) in files:
            same = kinds[sorted(kinds)[number % len(kinds)]]
            harm(Path(same[number // len(kinds) % len(same)]), "gone" if kind == "hangs" else kind, text, at)
        inner = subject.box(user)
        known = {tool: what for tool, what in tools.items() if what[0] not in ("folder", "loop")}
        known = {
            tool: ("replaced", "", what[2]) if what[0] == "gone" else what for tool, what in known.items()
        }
        box = dataclasses.replace(inner, tools=Damaged(inner=inner.tools, damage=known))
        code, told = call(scripts[script], box, script, words)
    finally:
        subject.restore()
    assert code in statuses, told
    assert not PYTHON.search(told), told
    assert "a fault in this program" not in told, told
    assert "\x1b" not in told, repr(told)
    if command == "status --json":
        assert json.loads(told)["schema"] == 1


def call(module: ModuleType, box: Box, name: str, words: tuple[str, ...]) -> tuple[int, str]:
    """Exit status, and all that was printed."""
    printed = io.StringIO()
    with (
        mock.patch.object(module, "open_box", lambda sysroot, tools: box),
        mock.patch.object(sys, "argv", [name, *words]),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        code: int = module.main()
    return code, printed.getvalue()


def test_the_subjects_come_back_whole(subjects: dict[str, Subject]) -> None:
    """Else a damage would outlive its example."""
    for subject in subjects.values():
        shutil.rmtree(subject.folder / "sys" / "class")
        (subject.folder / "run" / "left-over").write_text("")
        subject.restore()
        assert snapshot(subject.folder) == subject.files

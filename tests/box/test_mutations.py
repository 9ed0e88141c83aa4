"""/sys, /proc, /run, /etc, the record and outputs of tools, damaged in every way: commands answer without a
traceback.

F5_MUTATIONS sets the number of examples, 40 by default.
"""

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from appliance.box.checks.runner import CHECKS
from appliance.box.clocks.pinning import lock
from appliance.box.system import Box
from appliance.box.tools import Completed, Tools
from tests.fakes.jetson.board import Clock, Jetson
from tests.harness.boxes import quick, run_script, well

pytestmark = [pytest.mark.slow, pytest.mark.once]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = int(os.environ.get("F5_MUTATIONS", "40"))
MUTATED = ("/sys/", "/proc/", "/run/", "/etc/", "/var/lib/")
TOOLS = ("nvpmodel", "jetson_clocks", "systemctl", "journalctl", "timedatectl", "python3")
COMMANDS = {
    "status": ("clock-lock", ("status",), {0, 1, 4}),
    "status --json": ("clock-lock", ("status", "--json"), {0, 1, 4}),
    "check": ("clock-lock", ("watch", "--once"), {0, 1, 2, 3, 4}),
    "lock": ("clock-lock", ("lock",), {0, 1, 2, 3, 4}),
    "end": ("clock-lock", ("end",), {0, 1, 2}),
    "unlock": ("clock-lock", ("unlock",), {0, 1, 2, 4}),
    "quiet": ("quiet", ("--dry-run",), {0, 1}),
    "health": ("health", ("--only", ",".join(CHECKS)), {0, 1, 2}),
}
PYTHON = re.compile(
    r"Traceback|\b[A-Z][a-z]\w*(?:Error|Exception)\b|\[Errno|NoneType|invalid literal|line 1 column|0x7f"
    r"|\bNone\b"
)
NUMBERS = (
    "-1", "0", "1", "-256000", "9" * 30, "LONG", "0x" + "f" * 40, "1e999", "NaN", "٣", "²", "1.5", "\0" * 9
)  # fmt: skip
DOCUMENTS = ('{"schema": 1}', "[]", "null", '{"a": 1e999}', "{}", '{"boots": [{"barred": ["MAXN"]}]}')
JSONS = ("DEEP", "LONG", *DOCUMENTS)
LARGE = {"LONG": "9" * 5000, "DEEP": "[" * 100_000}
"""Texts too long for hypothesis to print, by name."""
INFINITE = (10**400, float("inf"), float("nan"))
VALUES = (None, True, -1, 1.5, *INFINITE, "x", "\x1b[2J", [], [[]], ["x"], {}, {"cpu0": 1})
texts = st.text(max_size=60) | st.sampled_from(
    (*NUMBERS, *JSONS, "", "\n", "\x1b[2J", "\0a\0", "/", ":", "<>")
)


@dataclass(frozen=True)
class Damaged(Tools):
    """The tools of a box; some print another text, end with another status, or never end."""

    inner: Tools = dataclasses.field(default_factory=Tools)
    damage: dict[str, Any] = dataclasses.field(default_factory=dict)

    def execute(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
        if name in ("python3", "setpriv") or "/" in name:
            ran = Completed((name,), 0, '{"version": "7.2.2", "pinned": true, "mode": "MAXN"}\n')
            name = "python3"
        else:
            ran = self.inner.execute(name, *arguments, timeout_s=timeout_s, answer=answer)
            # A fake that fails on the damage prints a Python error, which NVIDIA's tools would not.
            ran = dataclasses.replace(ran, errors="" if PYTHON.search(ran.errors) else ran.errors)
        if name not in self.damage:
            return ran
        kind, text, at = self.damage[name]
        if kind == "hangs":
            return Completed(ran.command, -9, "", "", timed_out=True)
        return dataclasses.replace(ran, code=at % 3, output=altered(ran.output, kind, text, at) or "")


def altered(before: str, kind: str, text: str, at: int) -> str | None:
    """A text after damage; None removes it."""
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
    """A JSON document with a value of another kind at some place."""
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
        return  # an earlier damage removed it
    before = path.read_bytes().decode("utf-8", "replace")
    if kind in ("folder", "loop"):
        path.unlink(missing_ok=True)
        path.mkdir() if kind == "folder" else path.symlink_to(path.name)
    elif (after := altered(before, kind, text, at)) is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(after.encode("utf-8", "surrogatepass"))


Fresh = Callable[[str], contextlib.AbstractContextManager[Jetson]]
"""Makes a box of a profile, which is removed after the block."""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Make JetPack 7 without an installation, or JetPack 6 with everything that health reads, pinned."""
    folder = tmp_path_factory.mktemp("boxes")
    orin = Jetson(folder / "orin", "jp7-0005")
    orin.set_mode("MAXN")
    jetson = well(folder / "well")
    jetson.unpin()
    saved = {}
    for found in (orin, jetson):
        for name, text in (
            ("/etc/f5-appliance/appliance.yaml", (ROOT / "configs/appliance.yaml").read_text()),
            ("/run/reboot-required", ""),
            ("/run/reboot-required.pkgs", "linux-base\n"),
            ("/var/lib/dpkg/updates/0001", "Package: libc6\nStatus: install ok unpacked\nVersion: 2.35-0\n"),
            ("/proc/4711/comm", "python3\n"),
            ("/proc/4711/cmdline", "python3\0/usr/share/nvpmodel_indicator/nvpmodel_indicator.py\0"),
        ):
            found.write(name, text)
        assert lock(quick(found, **Clock().arguments)).state == "pinned"
        saved[found.profile.name] = found.saved()

    @contextlib.contextmanager
    def box(profile: str) -> Iterator[Jetson]:
        try:
            yield Jetson(folder / "box", profile, saved[profile])
        finally:
            shutil.rmtree(folder / "box")

    return box


OF_TEXTS = ("gone", "replaced", "cut", "inserted", "digits", "doubled", "shuffled", "json")
KINDS = (*OF_TEXTS, "folder", "loop", "hangs")
damages = st.tuples(st.sampled_from(KINDS), texts, st.integers(0, 10_000))


# No shrinking: an example takes a tenth of a second, and the list of damages explains a failure.
@settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(
    profile=st.sampled_from(["jp7-0005", "jp6-0005"]),
    command=st.sampled_from(sorted(COMMANDS)),
    user=st.sampled_from([0, 0, 1000]),
    files=st.lists(st.tuples(st.integers(0, 100_000), damages), max_size=4),
    tools=st.dictionaries(st.sampled_from(TOOLS), damages, max_size=2),
)
def test_whatever_is_damaged_there_is_an_answer(
    fresh: Fresh, profile: str, command: str, user: int, files: list[tuple[int, Any]], tools: dict[str, Any]
) -> None:
    script, words, statuses = COMMANDS[command]
    with fresh(profile) as jetson:
        # A file of each kind as often as another, whether there are twelve of it or one.
        kinds: dict[str, list[Path]] = {}
        for path in sorted(jetson.root.rglob("*")):
            inside = f"/{path.relative_to(jetson.root)}"
            if inside.startswith(MUTATED) and stat.S_ISREG(path.lstat().st_mode):
                kinds.setdefault(re.sub(r"\d+", "N", inside), []).append(path)
        for number, (kind, text, at) in files:
            same = kinds[sorted(kinds)[number % len(kinds)]]
            harm(same[number // len(kinds) % len(same)], "gone" if kind == "hangs" else kind, text, at)
        inner = quick(jetson, user=lambda: user, **Clock().arguments)
        known = {tool: what for tool, what in tools.items() if what[0] not in ("folder", "loop")}
        known = {tool: ("replaced", "", way[2]) if way[0] == "gone" else way for tool, way in known.items()}
        box = dataclasses.replace(inner, tools=Damaged(inner=inner.tools, damage=known))
        before = outside(jetson)
        code, printed = call(box, script, words)
        assert outside(jetson) == before, "it wrote where it has nothing to write"
        if user == 0 and printed.startswith(("state      pinned", "nvpmodel -m", "jetson_clocks")):
            assert "state      pinned" not in printed or holds_all(jetson), printed
    assert code in statuses, printed
    assert not PYTHON.search(printed), printed
    assert "defect in this program" not in printed, printed
    assert "\x1b" not in printed, repr(printed)
    if command == "status --json":
        assert json.loads(printed)["schema"] == 1


OURS = ("run/f5-appliance", "var/lib/f5-appliance", "sys/", "var/lib/nvpmodel")


def outside(jetson: Jetson) -> dict[str, Any]:
    """Files that no command may write, and the names next to the tree."""
    found = {path: what for path, what in jetson.snapshot().items() if not path.startswith(OURS)}
    return {**found, "beside": sorted(os.listdir(jetson.root.parent))}


def holds_all(jetson: Jetson) -> bool:
    """True if each clock that a file shows is at the profile's maximum, and no switch lets it rest."""
    profile, tops = jetson.profile, list[tuple[str, int]]()
    for core in range(profile.cpus):
        folder = f"/sys/devices/system/cpu/cpu{core}"
        tops += [(f"{folder}/cpufreq/scaling_{limit}_freq", profile.cpu_max_khz) for limit in ("min", "max")]
        tops += [(f"{folder}/cpuidle/state{state}/disable", 1) for state in (0, 1)]
    tops += [(f"{profile.devfreq}/{limit}_freq", profile.gpu_hz[-1]) for limit in ("min", "max")]
    tops += [(profile.emc_files[name], profile.emc_max_hz) for name in ("max", "cur")]
    return all(jetson.box().root.number(path) == top for path, top in tops)


def call(box: Box, name: str, words: tuple[str, ...]) -> tuple[int, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run_script(name, box, *words)
    return code, printed.getvalue()

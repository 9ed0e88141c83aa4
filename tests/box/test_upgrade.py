"""f5-upgrade: the new version must speak at once and again later, or the old one is installed again."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from appliance.box.checks.finding import Finding, Level, document
from appliance.box.root import Root
from appliance.box.system import Box
from appliance.box.tools import Completed, Tools
from tests.fakes.jetson.board import Clock
from tests.harness.boxes import script

UPGRADE = script("upgrade")
OF_DPKG = {"Package": "f5-appliance", "Architecture": "arm64", "--print-architecture": "arm64"}


@dataclass(frozen=True)
class Programs(Tools):
    """dpkg, systemd, health and the daemon of a box; the file of a package holds its version."""

    answers: dict[str, str] = field(default_factory=dict)
    """Version → a letter for each health check: `s` speaks, `-` is silent; the last letter repeats. "" is
    down."""
    done: list[str] = field(default_factory=list)
    """Versions in the order of their installs, and what happened in between."""
    lines: list[int] = field(default_factory=lambda: [0, 1, 2])
    """Number of sounding lines at each question."""

    def execute(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
        version = [word for word in self.done if word.isdecimal()][-1]
        said = OF_DPKG.get(arguments[-1], "") or f"installed {version}"
        if arguments[-1] == "Version":
            said = Path(arguments[1]).read_text()
        elif name == "dpkg" and "--install" in arguments:
            self.done.append(Path(arguments[-1]).read_text())
        elif name == "systemctl":
            said = f"ActiveState={'active' if self.answers[version] else 'failed'}\n"
            self.done.extend({"restart"}.intersection(arguments))
        elif name == "appliance":
            said = f"running     {self.lines.pop()}\n"
            self.done.append("asked")
        elif name.endswith("/health"):
            letter, *others = self.answers[version]
            self.answers[version] = "".join(others) or letter
            level = Level.PASS if letter == "s" else Level.FAIL
            said = json.dumps(document([Finding("synthesis", level, "silence")]))
        return Completed((name,), 0, said)


@pytest.mark.parametrize(("again", "answers", "state", "done", "back"), [
    (False, "s", "", ["1", "2", "restart"], ""),
    (False, "--s", "", ["1", "2", "restart"], ""),
    (False, "", "", ["1", "2", "1"], "2 does not work: the daemon did not start"),
    (False, "---s", "", ["1", "2", *["asked"] * 3, "1"], "2 does not work: synthesis: silence"),
    (True, "s", "active", ["2"], ""),
    (True, "-", "active", ["2", *["asked"] * 3, "1"], "2 stopped working: synthesis"),
    (True, "", "failed", ["2", "1"], "2 stopped working: the daemon did not start"),
    (True, "", "inactive", ["2"], ""),
])  # fmt: skip
def test_the_new_version_must_speak_once_in_three_times(
    again: bool, answers: str, state: str, done: list[str], back: str, tmp_path: Path
) -> None:
    """The old version returns otherwise, once no line sounds. A daemon that was stopped stays stopped."""
    names = {name: tmp_path / f"{name}.deb" for name in ("NOW", "BEFORE", "NEXT", "TRIAL")}
    for name, version in {"NOW": done[0], "BEFORE": "1", "TRIAL": "2"}.items():
        names[name].write_text(version)
    (tmp_path / "2.deb").write_text("2")
    tools = Programs(answers={"1": "s", "2": answers}, done=done[:1])
    box, why = Box(Root(tmp_path), tools, **Clock().arguments), ""
    with mock.patch.multiple(
        UPGRADE, DEBS=tmp_path, unit=mock.Mock(return_value=mock.Mock(active=state)), **names
    ):
        try:
            if again:
                UPGRADE.again(box, 60.0)
            else:
                UPGRADE.upgrade(box, tmp_path / "2.deb", 60.0, prepared=False)
        except UPGRADE.Failure as error:
            why = str(error)
    assert tools.done == done and back in why and bool(back) == bool(why)
    assert names["NOW"].read_text() == [word for word in done if word.isdecimal()][-1]
    assert names["TRIAL"].exists() == (state == "inactive" or (not again and not back))

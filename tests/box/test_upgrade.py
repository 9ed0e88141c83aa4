"""f5-upgrade: the new version must speak at once and again later, or the old one is installed again."""

from __future__ import annotations

from collections.abc import Iterator
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


@dataclass(frozen=True)
class Programs(Tools):
    """dpkg, systemd, health and the daemon of a box; a package's file holds its version."""

    answers: dict[str, str] = field(default_factory=dict)
    """Version → a letter for each health: `s` speaks, `-` is silent; the last for ever; "" is down."""
    lines: list[int] = field(default_factory=list)
    """How often a line sounds still when somebody asks."""
    done: list[str] = field(default_factory=lambda: ["1"])
    """Versions in the order of their installs, and what else happened."""

    @property
    def version(self) -> str:
        return [word for word in self.done if word.isdecimal()][-1]

    def execute(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
        said = ""
        if "--install" in arguments:
            self.done.append(Path(arguments[-1]).read_text())
        elif "--field" in arguments:
            texts = {"Package": "f5-appliance", "Architecture": "arm64"}
            said = texts.get(arguments[2]) or Path(arguments[1]).read_text()
        elif name.startswith("dpkg"):
            said = "arm64" if name == "dpkg" else f"installed {self.version}"
        elif name == "systemctl":
            said = f"ActiveState={'active' if self.answers[self.version] else 'failed'}\n"
            self.done.extend({"restart"}.intersection(arguments))
        elif name == "appliance":
            said = f"running     {self.lines.pop() if self.lines else 0}\n"
            self.done.append("asked")
        elif name.endswith("/health"):
            letter, *others = self.answers[self.version]
            self.answers[self.version] = "".join(others) or letter
            level = Level.PASS if letter == "s" else Level.FAIL
            said = json_of(Finding("synthesis", level, "silence"))
        return Completed((name,), 0, said)


def json_of(finding: Finding) -> str:
    return UPGRADE.json.dumps(document([finding]))


@pytest.fixture
def debs(tmp_path: Path) -> Iterator[Path]:
    names = {name: tmp_path / getattr(UPGRADE, name).name for name in ("NOW", "BEFORE", "NEXT", "TRIAL")}
    names["NOW"].write_text("1")
    (tmp_path / "2.deb").write_text("2")
    with mock.patch.multiple(UPGRADE, DEBS=tmp_path, **names):
        yield tmp_path


@pytest.mark.parametrize(("answers", "done", "back"), [
    ("s", ["1", "2", "restart"], ""),
    ("--s", ["1", "2", "restart"], ""),
    ("", ["1", "2", "1"], "2 does not work: the daemon did not start"),
    ("---s", ["1", "2", *["asked"] * 3, "1"], "2 does not work: synthesis: silence"),
])  # fmt: skip
def test_the_new_version_must_speak_once_in_three_times(
    answers: str, done: list[str], back: str, debs: Path
) -> None:
    """If it does not, the old version returns when no line sounds any more."""
    tools = Programs(answers={"1": "s", "2": answers}, lines=[0, 1, 2])
    box = Box(Root(debs), tools, **Clock().arguments)
    try:
        UPGRADE.upgrade(box, debs / "2.deb", 60.0, prepared=False)
    except UPGRADE.Failure as error:
        assert back and back in str(error) and "1 is installed again and speaks" in str(error)
    assert tools.done == done
    assert ((debs / "trial").exists(), (debs / "now.deb").read_text()) == (not back, "1" if back else "2")


@pytest.mark.parametrize(("later", "state", "done"), [
    ("s", "active", ["2"]),
    ("-", "active", ["2", "asked", "1"]),
    ("", "failed", ["2", "1"]),
    ("", "inactive", ["2"]),
])  # fmt: skip
def test_it_is_asked_again_and_never_ends_what_somebody_stopped(
    later: str, state: str, done: list[str], debs: Path
) -> None:
    for name, text in (("now", "2"), ("before", "1"), ("trial", "")):
        (debs / name).with_suffix(".deb" if text else "").write_text(text)
    tools = Programs(answers={"1": "s", "2": later}, done=["2"])
    box = Box(Root(debs), tools, **Clock().arguments)
    with mock.patch.object(UPGRADE, "unit", lambda box, name: mock.Mock(active=state)):
        try:
            UPGRADE.again(box, 60.0)
        except UPGRADE.Failure as error:
            assert "2 did not work any more" in str(error)
    assert tools.done == done
    assert (debs / "trial").exists() == (state == "inactive")
    assert (debs / "now.deb").read_text() == done[-1]

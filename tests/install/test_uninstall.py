"""The way back: nothing stays but the data, and with purge not even that."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.installer import removal
from scripts.installer.layout import USER
from scripts.installer.target import Target
from tests.fakes.jetson import Jetson
from tests.install.small import Workshop, everything

DATA = ("var/lib/f5-appliance", "etc/f5-appliance")
LOGINS = {f"etc/{name}{end}" for name in ("passwd", "group", "shadow", "gshadow") for end in ("", "-")}
LOGINS |= {"etc/.pwd.lock"}

pytestmark = pytest.mark.usefixtures("without_pip")


def files(root: Path) -> dict[str, str]:
    """Files and links: folders that systemd has anyway may stay."""
    found = everything(root)
    return {path: entry[-1] for path, entry in found.items() if not stat.S_ISDIR(entry[0])}


@pytest.fixture
def installed(jetson: Jetson, workshop: Workshop) -> tuple[Jetson, dict[str, str]]:
    """A staged box, and what was on it before."""
    before = files(jetson.root)
    assert workshop.install(jetson.box())[0] == 0
    jetson.write("/var/lib/f5-appliance/voices/ann/voice.wav", "a voice")
    jetson.write("/var/cache/f5-appliance/features", "may go")
    return jetson, before


def uninstall(jetson: Jetson, *, live: bool = False, **how: bool) -> tuple[int, list[str]]:
    lines: list[str] = []
    return removal.uninstall(Target(jetson.box(), staged=not live), lines.append, **how), lines


def test_only_the_data_stays(installed: tuple[Jetson, dict[str, str]]) -> None:
    jetson, before = installed
    code, lines = uninstall(jetson)
    assert code == 0, lines
    more = {path for path, text in files(jetson.root).items() if before.get(path) != text} - LOGINS
    assert more and all(path.startswith(DATA) or path == "etc/sysusers.d/f5-appliance.conf" for path in more)
    assert "var/lib/f5-appliance/voices/ann/voice.wav" in more
    assert "var/lib/f5-appliance/bundle/weights" in more
    assert "etc/f5-appliance/appliance.yaml" in more
    ours = [
        path
        for path in everything(jetson.root)
        if "f5-" in path and not path.startswith((*DATA, "etc/sysusers.d"))
    ]
    assert ours == []
    assert "--purge" in lines[-1]


def test_a_second_run_says_that_nothing_is_installed(installed: tuple[Jetson, dict[str, str]]) -> None:
    jetson, _ = installed
    uninstall(jetson)
    before = everything(jetson.root)
    assert uninstall(jetson) == (0, ["nothing is installed"])
    assert everything(jetson.root) == before


@pytest.mark.parametrize("first", [False, True])
def test_purge_leaves_what_was_there_before(installed: tuple[Jetson, dict[str, str]], first: bool) -> None:
    jetson, before = installed
    if first:
        uninstall(jetson)
    code, lines = uninstall(jetson, purge=True)
    assert code == 0, lines
    assert set(files(jetson.root)) - LOGINS == set(before) - LOGINS
    assert not any("f5-" in path for path in everything(jetson.root))
    assert USER not in jetson.read("/etc/passwd") + jetson.read("/etc/group")
    assert "video" in jetson.read("/etc/group")
    assert uninstall(jetson, purge=True) == (0, ["nothing is installed"])


def test_dry_run_changes_nothing(installed: tuple[Jetson, dict[str, str]]) -> None:
    jetson, _ = installed
    before = everything(jetson.root)
    code, lines = uninstall(jetson, purge=True, dry_run=True)
    assert code == 0
    assert "would remove /var/lib/f5-appliance" in lines
    assert "would remove /opt/f5-appliance/releases" in lines
    assert everything(jetson.root) == before


def test_an_interrupted_uninstall_is_finished_by_the_next(
    installed: tuple[Jetson, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    jetson, before = installed
    with monkeypatch.context() as patch:
        patch.setattr(removal, "reload", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            uninstall(jetson)
    assert uninstall(jetson, purge=True)[0] == 0
    assert set(files(jetson.root)) - LOGINS == set(before) - LOGINS


def test_a_technicians_own_files_stay(installed: tuple[Jetson, dict[str, str]]) -> None:
    jetson, _ = installed
    own = ("/opt/f5-appliance/notes.txt", "/etc/systemd/system/f5-appliance.service.d/override.conf")
    for path in own:
        jetson.write(path, "mine")
    assert uninstall(jetson, purge=True)[0] == 0
    assert [jetson.read(path) for path in own] == ["mine", "mine"]


def test_a_live_box_is_stopped_first_and_its_clocks_given_back(jetson: Jetson, workshop: Workshop) -> None:
    jetson.write("/run/systemd/system/marker", "")
    workshop.install(jetson.box(), live=True)
    code, lines = uninstall(jetson, live=True)
    assert code == 0, lines
    stops = [call for call in jetson.calls("systemctl") if call.startswith("systemctl stop")]
    assert len(stops) == 1 and "f5-appliance.service" in stops[0] and "f5-clocks-check.timer" in stops[0]
    assert jetson.calls("systemctl")[-1] == "systemctl daemon-reload"


def test_an_ordinary_user_is_told_to_use_sudo(jetson: Jetson) -> None:
    lines: list[str] = []
    assert removal.uninstall(Target(jetson.box(user=lambda: 1000)), lines.append) == 1
    assert "sudo" in lines[0]


def test_the_installed_script_removes_itself(installed: tuple[Jetson, dict[str, str]]) -> None:
    jetson, _ = installed
    script = jetson.root / "opt/f5-appliance/current/scripts/uninstall"
    result = subprocess.run(
        [sys.executable, "-I", str(script)],
        env={**os.environ, **jetson.environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert not (jetson.root / "opt/f5-appliance").exists()

"""Users, groups and folders, created in a staged root by systemd's programs."""

import os
import shutil
from pathlib import Path

import pytest

from tests.harness.daemons import finished
from tests.systemd.staging import SOURCE

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        not (shutil.which("systemd-sysusers") and shutil.which("systemd-tmpfiles")),
        reason="systemd-sysusers and systemd-tmpfiles are not installed here",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files are given to users that the root names"),
]
FOLDERS = {
    "run/f5-appliance": (0o1775, "root", "f5-appliance"),
    "run/f5-appliance/root": (0o700, "root", "root"),
    "var/lib/f5-appliance": (0o755, "root", "root"),
    "var/lib/f5-appliance/clocks": (0o700, "root", "root"),
    "var/lib/f5-appliance/journal": (0o755, "f5-appliance", "f5-appliance"),
    "var/lib/f5-appliance/voices": (0o750, "f5-appliance", "f5-appliance"),
    "var/cache/f5-appliance": (0o750, "f5-appliance", "f5-appliance"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with Debian's first users, on which both of systemd's programs have run."""
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (etc / "group").write_text("root:x:0:\nvideo:x:44:\n")
    make(tmp_path)
    return tmp_path


def make(root: Path) -> None:
    for program, kind, arguments in (
        ("systemd-sysusers", "sysusers", ()),
        ("systemd-tmpfiles", "tmpfiles", ("--create",)),
    ):
        ran = finished(program, f"--root={root}", *arguments, SOURCE / f"f5-appliance.{kind}.conf")
        assert ran.returncode == 0, ran.stderr


def entries(path: Path) -> dict[str, list[str]]:
    return {line.split(":")[0]: line.split(":") for line in path.read_text().splitlines()}


def test_the_user_is_in_the_groups_that_own_the_gpu(root: Path) -> None:
    users, groups = entries(root / "etc/passwd"), entries(root / "etc/group")
    name, _, uid, gid, told, home, shell = users["f5-appliance"]
    assert 0 < int(uid) < 1000 and gid == groups["f5-appliance"][2]
    assert (told, home, shell) == ("F5 voice box", "/var/lib/f5-appliance", "/usr/sbin/nologin")
    assert groups["video"][2] == "44", "a group that is there keeps its number"
    for group in ("video", "render"):
        assert name in groups[group][3].split(",")


def test_folders_have_their_owners_and_modes(root: Path) -> None:
    users = {entry[2]: name for name, entry in entries(root / "etc/passwd").items()}
    groups = {entry[2]: name for name, entry in entries(root / "etc/group").items()}
    found = {}
    for folder in FOLDERS:
        made = (root / folder).stat()
        found[folder] = (made.st_mode & 0o7777, users[str(made.st_uid)], groups[str(made.st_gid)])
    assert found == FOLDERS


def test_a_second_run_changes_nothing(root: Path) -> None:
    def state() -> dict[str, tuple[int, int, int]]:
        paths = [root / folder for folder in FOLDERS] + [root / "etc/passwd", root / "etc/group"]
        return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns, p.stat().st_mode) for p in paths}

    before = state()
    make(root)
    assert state() == before

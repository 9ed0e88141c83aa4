"""A box's backup and its restore: on the same box, on another module, and from untrusted files."""

import gzip
import io
import itertools
import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.box import backup, paths
from appliance.box.backup import LISTING, BackupFailure
from appliance.box.root import Root
from appliance.box.system import Box
from appliance.durable import SPARE_BYTES, locked
from appliance.errors import StorageError
from appliance.voices.records import Place
from appliance.voices.store import VoiceStore
from tests.harness.daemons import ROOT, finished, reference_wav, store_in
from tests.harness.killing import in_a_process_of_its_own, killed

pytestmark = pytest.mark.slow

IS_ROOT = os.geteuid() == 0
CHECK = backup.application.refused
OURS = (990, 991) if IS_ROOT else (os.getuid(), os.getgid())
ROOTS = (0, 0) if IS_ROOT else OURS
TRANSCRIPT = "Some call me nature."


def box(folder: Path, module: str = "p3701-0005", user: int = OURS[0], group: int = OURS[1]) -> Box:
    """A fresh box without voices and settings; its daemon's user and group may have other numbers."""
    for path, text in {
        "etc/passwd": f"root:x:{ROOTS[0]}:{ROOTS[1]}::/:/bin/sh\nf5-appliance:x:{user}:{group}::/:/bin/sh\n",
        "etc/group": f"root:x:{ROOTS[1]}:\nf5-appliance:x:{group}:\n",
        "proc/device-tree/compatible": f"nvidia,p3737-0000+{module}\0nvidia,{module}\0nvidia,tegra234\0",
        "var/lib/dpkg/status": "Package: f5-appliance\nStatus: install ok installed\nVersion: 0.8.0+jp6\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return Box(Root(folder), wall=itertools.count(1_700_000_000.0).__next__)


def furnished(folder: Path, **options: Any) -> Box:
    """A box with two voices, tokens and a key, a baseline and a journal."""
    made = box(folder, **options)
    store = store_of(folder)
    store.create(Place("ann"), reference_wav(), TRANSCRIPT, "she said yes")
    store.create(Place("ann", "happy"), reference_wav(2.5), TRANSCRIPT)
    store.create(Place("bob"), reference_wav(2.0, level=0.2), TRANSCRIPT)
    etc, state = folder / "etc/f5-appliance", folder / "var/lib/f5-appliance"
    for path, text, mode, owner in (
        (
            etc / "appliance.yaml",
            "server:\n  tls_key: /etc/f5-appliance/tls/key.pem\n  tls_certificate: /etc/f5-appliance/crt\n",
            0o644,
            ROOTS,
        ),
        (etc / "tokens.json", '{"format": 1, "tokens": []}', 0o640, (ROOTS[0], OURS[1])),
        (etc / "tls" / "key.pem", "a key", 0o600, OURS),
        (state / "clocks" / "baseline", "/sys/x:1\n", 0o600, ROOTS),
        (state / "journal" / "measurements.jsonl", "{}\n", 0o644, OURS),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        os.chown(path, *owner)
    (state / "clocks").chmod(0o700)
    for path in (state / "voices", *(state / "voices").rglob("*")):
        path.chmod(0o750 if path.is_dir() else 0o640)
        os.chown(path, *OURS)
    return made


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the check of the configuration, which takes half a second per restore."""
    monkeypatch.setattr(backup.application, "refused", lambda box, text: "")


def store_of(box: Path) -> VoiceStore:
    return store_in(box, box / "var/lib/f5-appliance/voices")


def tree(folder: Path) -> dict[str, tuple[Any, ...]]:
    """The appliance's files of a box: content, mode and owner by name."""
    found = {}
    for top in ("etc/f5-appliance", "var/lib/f5-appliance"):
        for path in (folder / top, *(folder / top).rglob("*")):
            if path.exists():
                state = path.stat()
                data = path.read_bytes() if path.is_file() else b""
                name = str(path.relative_to(folder))
                found[name] = (data, state.st_mode, state.st_uid, state.st_gid)
    return found


def test_round_trip_to_an_empty_box(tmp_path: Path) -> None:
    here, file = furnished(tmp_path / "old"), tmp_path / "box.tar.gz"
    lines = list[str]()
    backup.back_up(here, file, lines.append)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [line.split()[:2] for line in lines[:4]] == [
        ["configuration", "3"], ["voices", "6"], ["baseline", "1"], ["journal", "1"],
    ]  # fmt: skip
    backup.restore(box(tmp_path / "new"), file, print)
    assert tree(tmp_path / "new") == {
        name: what for name, what in tree(tmp_path / "old").items() if name != "var/lib/f5-appliance"
    } | {"var/lib/f5-appliance": tree(tmp_path / "new")["var/lib/f5-appliance"]}
    # A voice sounds as before: the engine gets the same bits.
    for style in ("", "happy"):
        was, now = (store_of(tmp_path / name).index.reference("ann", style) for name in ("old", "new"))
        assert was.transcript == now.transcript
        assert np.array_equal(was.features.samples, now.features.samples)
        assert np.array_equal(was.features.log_mel, now.features.log_mel)
    old, new = (store_of(tmp_path / name).index.described("ann") for name in ("old", "new"))
    assert old == new
    # The backup is an ordinary tar archive.
    names = subprocess.run(["tar", "-tzf", file], capture_output=True, text=True, check=True).stdout.split()
    assert names[0] == LISTING and "voices/ann/audio" in names


def test_former_files_are_kept_aside(tmp_path: Path, file: Path) -> None:
    other = box(tmp_path / "new")
    store_of(tmp_path / "new").create(Place("eve"), reference_wav(), TRANSCRIPT)
    (tmp_path / "new/etc/f5-appliance").mkdir()
    (tmp_path / "new/etc/f5-appliance/appliance.yaml").write_text("mine")
    lines = list[str]()
    backup.restore(other, file, lines.append)
    [aside] = (tmp_path / "new/var/lib/f5-appliance").glob("voices.before-*")
    assert (aside / "eve" / "audio").read_bytes() == reference_wav()
    assert f"previous content: {aside}" in lines
    [aside] = (tmp_path / "new/etc").glob("f5-appliance.before-*")
    assert (aside / "appliance.yaml").read_text() == "mine"
    assert store_of(tmp_path / "new").index.names() == ["ann", "bob"]
    before = tree(tmp_path / "new")
    backup.restore(other, file, lines.append)
    assert "voices: equals the backup" in lines and before == tree(tmp_path / "new")
    store_of(tmp_path / "new").delete(Place("bob"))
    backup.restore(other, file, lines.append)
    [later] = (tmp_path / "new/var/lib/f5-appliance").glob("voices.before-*")
    assert os.listdir(later) == ["ann"], "one is kept"


def test_keys_of_another_version_are_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup.application, "refused", CHECK)
    here, file, lines = box(tmp_path / "old"), tmp_path / "f", list[str]()
    with pytest.raises(BackupFailure, match="there is nothing to back up"):
        backup.back_up(here, file, print)
    assert not file.exists()
    (tmp_path / "old/etc/f5-appliance").mkdir()
    (tmp_path / "old/etc/f5-appliance/appliance.yaml").write_text("engine:\n  of_later: 1\n")
    backup.back_up(here, file, print)
    with pytest.raises(BackupFailure, match=r"restored, but the daemon does not start until .* of_later"):
        backup.restore(box(tmp_path / "new"), file, lines.append)
    [named] = [line for line in lines if "engine: unknown key of_later" in line]
    assert named in lines[: lines.index(f"configuration: goes to {tmp_path / 'new/etc/f5-appliance'}")]
    (tmp_path / "old/etc/f5-appliance/appliance.yaml").write_text("")
    file.unlink()
    backup.back_up(here, file, print)
    backup.restore(box(tmp_path / "new"), file, lines.append)
    assert f"sudo appliance check --only config --config {paths.CONFIG} && " in lines[-1]


@pytest.mark.skipif(not IS_ROOT, reason="not root: files are given to other users")
def test_owners_are_found_by_name(tmp_path: Path, file: Path) -> None:
    backup.restore(box(tmp_path / "new", user=123, group=124), file, print)
    audio = (tmp_path / "new/var/lib/f5-appliance/voices/ann/audio").stat()
    assert (audio.st_uid, audio.st_gid) == (123, 124)
    tokens = (tmp_path / "new/etc/f5-appliance/tokens.json").stat()
    assert (tokens.st_uid, tokens.st_gid) == (0, 124)
    nobody = box(tmp_path / "bare")
    (tmp_path / "bare/etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    with pytest.raises(BackupFailure, match="no user or group f5-appliance here: install the package first"):
        backup.restore(nobody, file, print)
    assert not list((tmp_path / "bare").rglob("voices*"))


def test_the_baseline_of_another_module_is_not_restored(tmp_path: Path, file: Path) -> None:
    lines = list[str]()
    other = box(tmp_path / "new", module="p3701-0004")
    backup.restore(other, file, lines.append)
    assert any("for module p3701-0005, not p3701-0004: not restored" in line for line in lines)
    state = tmp_path / "new/var/lib/f5-appliance"
    assert not (state / "clocks").exists() and (state / "journal/measurements.jsonl").exists()


def test_dry_runs_write_nothing(tmp_path: Path) -> None:
    here, file = furnished(tmp_path / "old"), tmp_path / "f"
    backup.back_up(here, file, print, dry_run=True)
    assert not file.exists()
    backup.back_up(here, file, print)
    lines = list[str]()
    backup.restore(box(tmp_path / "new"), file, lines.append, dry_run=True)
    assert (
        not tree(tmp_path / "new")
        and f"voices: goes to {tmp_path / 'new/var/lib/f5-appliance/voices'}" in lines
    )


def test_files_outside_the_backup_are_reported(tmp_path: Path) -> None:
    here, lines = furnished(tmp_path / "old"), list[str]()
    etc = tmp_path / "old/etc/f5-appliance"
    (etc / "link.pem").symlink_to("/etc/hostname")
    os.mkfifo(etc / "pipe")
    (etc / "appliance.yaml").write_text("server:\n  tls_key: /root/key.pem  # mine\n")
    (tmp_path / "old/var/lib/f5-appliance/voices/.ann.0123abcd").mkdir()
    file = tmp_path / "f"
    backup.back_up(here, file, lines.append)
    said = "\n".join(lines)
    assert "link.pem is a link" in said and "pipe is a link or a device" in said
    assert "tls_key: /root/key.pem lies outside /etc/f5-appliance" in said
    assert not [e for e in backup.read(file)[0].entries if "link" in e.name or "/." in e.name]
    with pytest.raises(BackupFailure, match="exists: name another"):
        backup.back_up(here, file, print)


def test_every_damage_is_seen_before_anything_is_written(tmp_path: Path, file: Path) -> None:
    whole, dice, other = file.read_bytes(), random.Random(1), box(tmp_path / "new")
    damaged = [whole[:size] for size in (0, 1, 100, len(whole) // 2, len(whole) - 9, len(whole) - 1)]
    for place in dice.sample(range(10, len(whole)), 60):  # bytes 4 to 9 are gzip's time and system
        damaged.append(whole[:place] + bytes([whole[place] ^ 1 << dice.randrange(8)]) + whole[place + 1 :])
    for data in damaged:
        (tmp_path / "g").write_bytes(data)
        with pytest.raises(BackupFailure):
            backup.restore(other, tmp_path / "g", print)
    assert not tree(tmp_path / "new")


Members = list[tuple[tarfile.TarInfo, bytes]]


def rewrite(file: Path, change: Callable[[dict[str, Any], Members], None]) -> None:
    """Change the listing or the members of a backup, and make gzip's checksum right again."""
    members: Members = []
    with tarfile.open(file) as tar:
        for member in tar:
            stream = tar.extractfile(member)
            assert stream is not None
            members.append((member, stream.read()))
    listing = json.loads(members[0][1])
    change(listing, members)
    members[0] = (members[0][0], json.dumps(listing).encode())
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    file.write_bytes(gzip.compress(buffer.getvalue(), 1))


def named(name: str) -> Callable[[dict[str, Any], Members], None]:
    def change(listing: dict[str, Any], members: Members) -> None:
        listing["entries"][-1]["name"] = members[-1][0].name = name

    return change


def kind(kind: bytes, link: str = "/etc/passwd") -> Callable[[dict[str, Any], Members], None]:
    def change(listing: dict[str, Any], members: Members) -> None:
        members[-1][0].type, members[-1][0].linkname = kind, link
        members[-1] = (members[-1][0], b"")
        listing["entries"][-1]["size"] = 0

    return change


def field(name: str, value: object) -> Callable[[dict[str, Any], Members], None]:
    return lambda listing, members: listing["entries"][-1].update({name: value})


HOSTILE: dict[str, tuple[Callable[[dict[str, Any], Members], None], str]] = {
    "up": (named("voices/../../../evil"), "must be a path in one of"),
    "absolute": (named("/etc/evil"), "must be a path in one of"),
    "another place": (named("cron/evil"), "must be a path in one of"),
    "hidden": (named("voices/.evil"), "must be a path in one of"),
    "of no folder": (named("voices/eve/audio"), "outside all folders"),
    "in a file": (named("voices/ann/audio/x"), "outside all folders"),
    "twice": (named("voices/ann/audio"), "listed twice"),
    "line break": (named("voices/a\nb"), "must be a path in one of"),
    "symbolic link": (kind(tarfile.SYMTYPE), "differs from the listed"),
    "hard link": (kind(tarfile.LNKTYPE), "differs from the listed"),
    "device": (kind(tarfile.CHRTYPE), "differs from the listed"),
    "fifo": (kind(tarfile.FIFOTYPE), "differs from the listed"),
    "setuid": (field("mode", 0o4755), "mode: must be between 0 and 511"),
    "type": (field("mode", "0644"), "mode: must be int"),
    "unknown hash": (field("sha256", "0" * 64), "its hash is not the listed one"),
    "size": (field("size", 1 << 40), "differs from the listed"),
    "not listed": (lambda _, members: members.append((tarfile.TarInfo("voices/x"), b"x")), "is not listed"),
    "missing": (lambda listing, members: members.__delitem__(-1), "truncated"),
    "newer": (lambda listing, members: listing.update(format=2), "has format 2, not 1"),
    "no format": (lambda listing, members: listing.__delitem__("format"), "has format None"),
    "no entries": (lambda listing, members: listing.update(entries=7), "entries: must be tuple"),
    "other first": (
        lambda listing, members: setattr(members[0][0], "name", "x"),
        f"'x' differs from the listed {LISTING}",
    ),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("good")
    backup.back_up(furnished(folder / "old"), folder / "f", print)
    return (folder / "f").read_bytes()


@pytest.fixture
def file(tmp_path: Path, good: bytes) -> Path:
    """A backup of the furnished box."""
    (tmp_path / "f").write_bytes(good)
    return tmp_path / "f"


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_are_refused(tmp_path: Path, file: Path, case: str) -> None:
    change, expected = HOSTILE[case]
    rewrite(file, change)
    other = box(tmp_path / "new")
    with pytest.raises(BackupFailure, match=expected):
        backup.restore(other, file, print)
    assert not tree(tmp_path / "new") and not list(tmp_path.rglob("evil"))


def test_a_rewritten_backup_without_a_change_is_good(tmp_path: Path, file: Path) -> None:
    """The cases above are refused for their changes alone."""
    rewrite(file, lambda listing, members: None)
    backup.restore(box(tmp_path / "new"), file, print)
    assert store_of(tmp_path / "new").index.names() == ["ann", "bob"]


def test_failed_restores_change_nothing(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = furnished(tmp_path / "new")
    before, copied = tree(tmp_path / "new"), itertools.count()
    usage = backup.shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(backup.shutil, "disk_usage", lambda path: usage._replace(free=SPARE_BYTES))
        with pytest.raises(StorageError, match=r"but the disk has .* MB left"):
            backup.restore(here, file, print)
    chown = os.chown

    def full(*arguments: Any) -> None:
        if next(copied) == 4:
            raise OSError(28, "No space left on device")
        chown(*arguments)

    monkeypatch.setattr(os, "chown", full)
    with pytest.raises(OSError, match="No space"):
        backup.restore(here, file, print)
    assert tree(tmp_path / "new") == before


def is_mine(folder: Path) -> bool:
    """True if the folder holds the content from before all restores."""
    found = [path for path in (folder / "eve/audio", folder / "appliance.yaml") if path.exists()]
    return [path.read_text() for path in found] == ["mine"]


def lives(folder: Path) -> dict[str, int]:
    """Kill a restore at its n-th change, for each n. Afterwards each part is the old one or the backup's."""
    seen, say = {"kills": 0, "mixed": 0}, list[str]().append
    backup.application.refused = lambda box, text: ""
    while True:
        here = folder / str(seen["kills"] + 1)
        for path in ("etc/f5-appliance/appliance.yaml", "var/lib/f5-appliance/voices/eve/audio"):
            (here / path).parent.mkdir(parents=True)
            (here / path).write_text("mine")
        new = box(here)

        def run(new: Box = new) -> None:
            backup.restore(new, folder / "f", say)

        ended = killed(seen["kills"] + 1, run)
        parts = {"etc/f5-appliance": {"appliance.yaml", "tls", "tokens.json"}}
        parts["var/lib/f5-appliance/voices"] = {"ann", "bob"}
        restored = [part for part, names in parts.items() if set(os.listdir(here / part)) == names]
        for part in parts:
            kept = sorted(here.glob(f"{part}.before-*"))
            if part not in restored:
                assert is_mine(here / part)
            else:
                assert [*map(is_mine, kept)] == [True]
        if ended == 0:
            assert len(restored) == 2
            return seen
        backup.restore(Box(Root(here), wall=itertools.count(1_800_000_000.0).__next__), folder / "f", say)
        assert not list(here.rglob("*.restoring-*"))
        for part, names in parts.items():
            assert set(os.listdir(here / part)) == names
            kept = sorted(here.glob(f"{part}.before-*"))
            assert [*map(is_mine, kept)] == [True]
        seen["kills"] += 1
        seen["mixed"] += len(restored) == 1


def test_a_restore_that_runs_is_not_disturbed(tmp_path: Path, file: Path) -> None:
    here = box(tmp_path / "new")
    state = tmp_path / "new/var/lib/f5-appliance"
    (state / "voices.restoring").mkdir(parents=True)
    with locked(state), pytest.raises(BlockingIOError):
        backup.restore(here, file, print)
    assert (state / "voices.restoring").exists()
    backup.restore(here, file, print)
    assert not (state / "voices.restoring").exists()


def test_killed_at_any_moment_every_part_is_whole(tmp_path: Path, file: Path) -> None:
    seen = in_a_process_of_its_own("test_backup", tmp_path)
    assert seen["kills"] > 30 and seen["mixed"], seen


@pytest.mark.skipif(not IS_ROOT, reason="not root: files are given to other users")
def test_commands(tmp_path: Path) -> None:
    """The system's Python runs the commands: without the environment, on a tree."""
    furnished(tmp_path / "old")
    box(tmp_path / "new")

    def run(name: str, sysroot: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-I", "-S", ROOT / "scripts" / name, tmp_path / "f")
        return finished(*command, F5_SYSROOT=str(tmp_path / sysroot))

    assert run("backup", "old").returncode == 0
    ran = run("backup", "old")
    assert ran.returncode == 1 and ran.stderr.startswith("f5-backup: ") and "exists" in ran.stderr
    assert run("restore", "new").returncode == 0
    assert store_of(tmp_path / "new").index.names() == ["ann", "bob"]
    (tmp_path / "f").write_bytes(b"x")
    ran = run("restore", "new")
    assert ran.returncode == 1 and "not a backup, or a damaged one" in ran.stderr

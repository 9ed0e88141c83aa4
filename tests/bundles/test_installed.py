"""Installing bundles: refusals, what remains on disk, and kills and failed proofs at any moment."""

import contextlib
import dataclasses
import io
import os
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance import cli, config
from appliance.bundles import BundleStore, load_on_cpu, running_folder
from appliance.bundles import installed as store_module
from appliance.bundles.installed import Report
from appliance.client import Client
from appliance.config import EngineConfig
from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle
from appliance.contract.graphs import REQUIRED
from appliance.durable import SPARE_BYTES
from appliance.errors import BundleError, StorageError
from tests.harness.daemons import BUNDLE, ROOT, running
from tests.harness.killing import in_a_process_of_its_own, killed

pytestmark = [pytest.mark.slow, pytest.mark.once]
TINY = contract.read(BUNDLE, verify=False).manifest


def variant(folder: Path, name: str, **changes: Any) -> Path:
    """A bundle with few graphs of a few bytes: its hashes are right, and a copy takes no time."""
    manifest = TINY
    place = folder / name
    place.mkdir()
    shutil.copy(BUNDLE / contract.VOCAB, place)
    graphs = {graph: manifest.variants["default"][graph] for graph in REQUIRED}
    for graph, file in graphs.items():
        (place / file).write_text(f"{name} {graph}")
    changed = dataclasses.replace(manifest, variants={"default": graphs}, parity={}, created_by=name)
    contract.write(place, changed)
    return rewritten(place, **changes) if changes else place


def speaking(folder: Path, name: str) -> Path:
    """A copy of the tiny bundle, which speaks, under another name."""
    shutil.copytree(BUNDLE, folder / name)
    return rewritten(folder / name, created_by=name)


def rewritten(place: Path, **changes: Any) -> Path:
    """Replace keys in the manifest of the folder."""
    manifest = place / contract.MANIFEST
    raw = {**yaml.safe_load(manifest.read_text("utf-8")), **changes}
    manifest.write_text(yaml.safe_dump(raw, sort_keys=False), "utf-8")
    return place


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def packed(folder: Path, kind: str = "gz", top: str = "") -> Path:
    path = folder.with_name(f"{folder.name}.tar.{kind}")
    with tarfile.open(path, f"w:{kind}") as tar:  # type: ignore[call-overload]
        tar.add(folder, arcname=top or ".")
    return path


def anything(bundle: Bundle) -> None:
    """Accept every bundle."""


def who(path: Path) -> str:
    """Name of the bundle at a path, read after all its hashes match."""
    return contract.read(path).manifest.created_by


def shelf(
    folder: Path, make: Callable[[Path, str], Path] = variant, report: Report = lambda line: None
) -> BundleStore:
    """A store on a box that speaks from the bundle a, through a link as the package makes it."""
    box = folder / "box"
    box.mkdir()
    (box / "bundle").symlink_to(make(folder, "a"))
    return BundleStore(box / "bundle", report)


def tree(folder: Path) -> dict[str, str]:
    """Path of each file and link under a folder → its size, or the link's target."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else str(path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_install_back_and_list(tmp_path: Path) -> None:
    lines = list[str]()
    store = shelf(tmp_path, report=lines.append)
    b = store.install(variant(tmp_path, "b"), anything)
    assert who(store.path) == "b" and who(store.before) == "a"
    assert b == Path(os.path.realpath(store.path)) and b.parent == store.folder
    assert os.stat(b).st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in b.iterdir()} == {0o644}
    c = store.install(packed(variant(tmp_path, "c"), "xz", top="some/where"[:4]), anything)
    assert who(store.path) == "c" and who(store.before) == "b"
    assert [(one.use, one.folder) for one in store.stored()] == [("in use", c), ("before", b)]
    assert store.back() == b and who(store.path) == "b" and who(store.before) == "c"
    assert store.back() == c
    assert any("their prepared features" in line for line in lines)
    # A stored bundle is not copied again, and the store drops b when d arrives.
    before = tree(store.folder)
    assert store.install(tmp_path / "c", anything) == c and tree(store.folder) == before
    # The operator's folder stays.
    (store.folder / "mine").mkdir()
    store.install(packed(variant(tmp_path, "d"), "bz2"), anything)
    (store.folder / "mine").rmdir()
    assert {who(path) for path in store.folder.iterdir()} == {"c", "d"}
    # The operator's copy and the package's bundle did not change.
    assert {who(tmp_path / name) for name in "abcd"} == set("abcd")


def test_a_bundle_for_another_language_is_stored_and_stays(tmp_path: Path) -> None:
    store = shelf(tmp_path)
    german = store.add(packed(variant(tmp_path, "g")), anything)
    assert german.parent == store.folder and who(store.path) == "a" and not os.path.lexists(store.before)
    rows = BundleStore(store.path, beside=[german])
    for name in ("b", "c", "d"):
        rows.install(variant(tmp_path, name), anything)
        assert who(german) == "g"
    uses = {one.use: who(one.folder) for one in rows.stored()}
    assert uses == {"in use": "d", "beside": "g", "before": "c"}
    assert rows.add(tmp_path / "g", anything) == german
    # The store drops a bundle that no row names.
    store.install(variant(tmp_path, "e"), anything)
    assert not german.exists()


def test_another_mel_is_reported(tmp_path: Path) -> None:
    lines = list[str]()
    store = shelf(tmp_path, report=lines.append)
    louder = {"target_rms": 0.2, "guidance": TINY.defaults.guidance, "sway": TINY.defaults.sway}
    store.install(variant(tmp_path, "b", defaults=louder), anything)
    assert any("prepared anew" in line for line in lines)


def test_a_real_folder_is_adopted(tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    variant(tmp_path, "a").rename(box / "bundle")
    inodes = {path.name: path.stat().st_ino for path in (box / "bundle").iterdir()}
    store = BundleStore(box / "bundle")
    store.install(variant(tmp_path, "b"), anything)
    assert {path.name: path.stat().st_ino for path in store.before.iterdir()} == inodes
    assert (who(store.path), who(store.before)) == ("b", "a")
    store.back()
    assert store.path.is_dir() and not store.path.is_symlink() and who(store.path) == "a"
    store.back()
    # The folder is now the previous bundle, and stays while c arrives and fails its proof.
    with pytest.raises(BundleError, match="does not work with tiny"):
        store.install(variant(tmp_path, "c"), anything, prove=lambda folder: "x" * (who(folder) == "c"))
    assert (who(store.path), who(store.before)) == ("b", "a")
    store.install(tmp_path / "c", anything)
    assert (who(store.path), who(store.before)) == ("c", "b")
    assert len(list(store.folder.iterdir())) == 2


def test_the_first_install_has_no_previous_bundle(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "bundle")
    assert store.stored() == []
    with pytest.raises(BundleError, match="no previous bundle"):
        store.back()
    store.install(variant(tmp_path, "b"), anything)
    assert who(store.path) == "b" and not os.path.lexists(store.before)
    with pytest.raises(BundleError, match="no previous bundle"):
        store.back()


def test_a_rotten_bundle_is_replaced_and_never_restored(tmp_path: Path) -> None:
    store = shelf(tmp_path)
    b = store.install(variant(tmp_path, "b"), anything)
    rot(b / "vocab.txt")
    mended = store.install(tmp_path / "b", anything)
    assert mended != b and who(store.path) == "b"
    with pytest.raises(BundleError, match="damaged"):
        store.back()
    assert who(store.path) == "b"


def test_the_running_bundle_stays(tmp_path: Path) -> None:
    store = shelf(tmp_path)
    b = store.install(variant(tmp_path, "b"), anything)
    store.install(variant(tmp_path, "c"), anything, running=b)
    store.install(variant(tmp_path, "d"), anything, running=b)
    assert who(b) == "b"


def rot(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


def archive_of(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    path = packed(variant(folder, "b"), "gz")
    with tarfile.open(path.with_suffix(""), "w") as tar:
        tar.add(folder / "b", arcname="b")
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path.with_suffix("")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, b"x" if kind == tarfile.REGTYPE else b""


def spoilt(spoil: Callable[[Path], object]) -> Callable[[Path], Path]:
    """A maker of the bundle b with damage."""

    def make(folder: Path) -> Path:
        place = variant(folder, "b")
        spoil(place)
        return place

    return make


def cut(folder: Path) -> Path:
    path = packed(variant(folder, "b"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def text(folder: Path) -> Path:
    (folder / "b.tar").write_text("no archive")
    return folder / "b.tar"


def of(*members: tuple[tarfile.TarInfo, bytes]) -> Callable[[Path], Path]:
    return lambda folder: archive_of(folder, *members)


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nothing": (lambda folder: folder / "nothing", "No such file"),
    "no manifest": (spoilt(lambda place: (place / "manifest.yaml").unlink()), "not a bundle"),
    "a file is missing": (spoilt(lambda place: (place / "vocoder.onnx").unlink()), "vocoder.onnx: missing"),
    "a file is damaged": (spoilt(lambda place: rot(place / "vocoder.onnx")),
        "b/vocoder.onnx: damaged: sha256"),
    "a file is not listed": (spoilt(lambda place: (place / "extra").write_text("x")),
        "does not list this file"),
    "newer": (lambda folder: variant(folder, "b", format="2.0"), "format 2.0 is newer than"),
    "older": (lambda folder: variant(folder, "b", format="1.0"), "export it again"),
    "cut off": (cut, "not an archive, or a damaged one"),
    "text": (text, "must be a bundle's folder, .tar,"),
    "up": (of(member("b/../../evil")), "outside of itself: 'b/../../evil'"),
    "absolute": (of(member("/etc/evil")), "outside of itself"),
    "link": (of(member("b/x", tarfile.SYMTYPE, "/etc/passwd")), "link or a device"),
    "hard link": (of(member("b/x", tarfile.LNKTYPE, "/etc/passwd")), "link or a device"),
    "device": (of(member("b/x", tarfile.CHRTYPE)), "link or a device"),
    "twice": (of(member("b/vocab.txt")), "names 'b/vocab.txt' twice"),
    "beside": (of(member("other")), "'other' is not in the bundle's folder 'b'"),
    "two": (of(member("other/manifest.yaml")), "not one bundle: it has 2"),
    "many": (of(*(member(f"b/{n}") for n in range(1_001))), "more than 1000"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_without_a_trace(tmp_path: Path, case: str) -> None:
    store = shelf(tmp_path)
    make, expected = REFUSED[case]
    source = make(tmp_path)
    with pytest.raises((BundleError, StorageError)) as refused:
        store.install(source, anything)
    assert expected in str(refused.value)
    assert tree(tmp_path / "box") == {"bundle": str(tmp_path / "a")}
    assert not (tmp_path / "evil").exists() and who(store.path) == "a"


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_full_disk_is_seen_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    store, b = shelf(tmp_path), variant(tmp_path, "b")
    given = b if kind == "folder" else packed(b)
    needed = sum(path.stat().st_size for path in b.iterdir()) + SPARE_BYTES
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    with pytest.raises(StorageError, match=r"but the disk has .* MB left"):
        store.install(given, anything)
    assert tree(tmp_path / "box") == {"bundle": str(tmp_path / "a")}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed))
    store.install(given, anything)
    assert who(store.path) == "b"


def test_an_unloadable_bundle_is_refused(tmp_path: Path) -> None:
    store, b = shelf(tmp_path), speaking(tmp_path, "b")
    config = EngineConfig(backend="ort-cpu", threads=1)
    load_on_cpu(contract.read(b), config)
    read = contract.read(b)
    (b / "vocoder.onnx").unlink()
    (b / "vocoder.onnx").write_bytes(b"no graph")
    contract.write(b, read.manifest)
    with pytest.raises(BundleError, match="cannot load it"):
        store.install(b, lambda bundle: load_on_cpu(bundle, config))
    with pytest.raises(BundleError, match=r"engine.backend is tensorrt, the bundle is for ort-cpu"):
        only_cpu = variant(tmp_path, "c", backends=["ort-cpu"])
        store.install(only_cpu, lambda bundle: load_on_cpu(bundle, EngineConfig(backend="tensorrt")))
    assert tree(tmp_path / "box") == {"bundle": str(tmp_path / "a")}


def test_a_second_install_waits_for_none(tmp_path: Path) -> None:
    store, b = shelf(tmp_path), variant(tmp_path, "b")

    def meanwhile(bundle: Bundle) -> None:
        BundleStore(store.path).install(b, anything)

    with pytest.raises(StorageError, match="another install is running"):
        store.install(b, meanwhile)


def test_an_install_whose_proof_fails_is_undone(tmp_path: Path) -> None:
    store = shelf(tmp_path)
    store.install(variant(tmp_path, "b"), anything)
    whole, proven = tree(tmp_path / "box"), list[str]()

    def prove(folder: Path) -> str:
        assert folder == Path(os.path.realpath(store.path))
        proven.append(who(folder))
        return "it is mute" if who(folder) == "c" else ""

    with pytest.raises(BundleError, match=r"with tiny\S* \(it is mute\); tiny\S* is back and runs"):
        store.install(variant(tmp_path, "c"), anything, prove=prove)
    assert proven == ["c", "b"] and tree(tmp_path / "box") == whole
    with pytest.raises(KeyboardInterrupt):
        store.back(prove=interrupted)
    assert tree(tmp_path / "box") == whole
    with pytest.raises(BundleError, match="is back and is not well either"):
        store.back(prove=lambda folder: "mute")
    assert tree(tmp_path / "box") == whole


def interrupted(folder: Path) -> str:
    raise KeyboardInterrupt


def test_all_is_on_the_disk_before_it_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, synced = shelf(tmp_path), set[int]()
    sync, exchange = os.fsync, store_module.exchange

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def exchanged(one: Path, other: Path) -> None:
        new = Path(os.path.realpath(other))
        for path in (new, *new.iterdir(), new.parent, new.parent.parent):
            assert path.stat().st_ino in synced, path
        synced.clear()
        exchange(one, other)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(store_module, "exchange", exchanged)
    store.install(variant(tmp_path, "b"), anything)
    assert store.path.parent.stat().st_ino in synced


def lives(folder: Path, act: str) -> dict[str, Any]:
    """Kill an install or a `back` at its n-th change, for each n; return what each box looks like
    afterwards."""
    seen: dict[str, Any] = {"kills": 0, "in use": {}}
    # An adoption copies like any install, and the kills during a copy are tested there.
    number = 25 if act == "adopt" else 0
    while True:
        number += 1
        box = folder / str(number)
        (box / "bundles").mkdir(parents=True)
        for name, place in (("a", "bundle.before"), ("b", "bundle")):
            shutil.copytree(folder / name, box / "bundles" / f"{name}-0123456789ab", copy_function=os.link)
            (box / place).symlink_to(f"bundles/{name}-0123456789ab")
        if act == "adopt":
            (box / "bundle").unlink()
            (box / "bundles" / "b-0123456789ab").rename(box / "bundle")
        store = BundleStore(box / "bundle")

        def run(store: BundleStore = store) -> None:
            store.back() if act == "back" else store.install(folder / "c", anything)

        if killed(number, run) == 0:
            return seen
        seen["kills"] += 1
        [found] = [name for name in "abc" if content(folder / name) == content(store.path)]
        seen["in use"][found] = seen["in use"].get(found, 0) + 1
        if os.path.lexists(store.before):
            assert content(store.before) in [content(folder / name) for name in "abc"]
        store.install(folder / "c", anything)
        assert content(store.path) == content(folder / "c")
        kept = {path.name[:1] for path in store.folder.iterdir()}
        assert len(list(store.folder.iterdir())) <= 2 and "." not in kept, kept
        assert not [path for path in box.iterdir() if path.name.startswith(".")]
        shutil.rmtree(box)


@pytest.mark.parametrize("act", ["install", "adopt", "back"])
def test_killed_at_any_moment_one_whole_bundle_is_in_use(tmp_path: Path, act: str) -> None:
    for name in "abc":
        variant(tmp_path, name)
    seen = in_a_process_of_its_own("bundles.test_installed", tmp_path, act)
    new = "a" if act == "back" else "c"
    least = {"install": 30, "adopt": 10, "back": 2}[act]
    assert set(seen["in use"]) == {"b", new} and seen["kills"] >= least, seen


SYSTEMCTL = """\
#!{python}
# Stands in for systemd: `restart` ends the daemon of the pid file and waits until another is ready.
import os, pathlib, subprocess, sys, time, urllib.request
pid = pathlib.Path({folder!r}) / "pid"
if "restart" in sys.argv:
    old = pathlib.Path("/proc", pid.read_text(), "stat")
    os.kill(int(old.parent.name), 15)
    while old.exists() and " Z " not in old.read_text():
        time.sleep(0.01)
    command = [{python!r}, "-m", "appliance", "serve", "--config", {config!r}]
    new = subprocess.Popen(command, cwd={root!r}, start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
    pid.write_text(str(new.pid))
    while new.poll() is None:
        try:
            urllib.request.urlopen("http://{metrics}/readyz", timeout=3)
            sys.exit(0)
        except OSError:
            time.sleep(0.05)
    sys.exit("did not start")
"""


def test_restart_proves_by_speaking_and_goes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tools = shelf(tmp_path, speaking), tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("F5_TOOLS", str(tools))
    systemctl = tools / "systemctl"
    with running(tmp_path, speaks_from=store.path) as daemon:
        daemon.add_voice()

        def appliance(*arguments: object) -> tuple[int, str, str]:
            command = ["bundle", *map(str, arguments), "--config", str(tmp_path / "config.yaml")]
            status = cli.main(command)
            printed = capsys.readouterr()
            return status, printed.out, printed.err

        # The restart command does nothing: the daemon continues with the old bundle, and the proof reports
        # it.
        systemctl.write_text("#!/bin/sh\n")
        systemctl.chmod(0o755)
        status, _, error = appliance("install", packed(speaking(tmp_path, "b")), "--restart")
        assert status == 1 and f"it speaks from {tmp_path / 'a'}, not from" in error
        assert "is back and runs" in error and who(store.path) == "a"
        assert tree(tmp_path / "box") == {"bundle": str(tmp_path / "a")}
        (tmp_path / "pid").write_text(str(daemon.process.pid))
        systemctl.write_text(
            SYSTEMCTL.format(
                python=sys.executable, folder=str(tmp_path), root=str(ROOT),
                config=str(tmp_path / "config.yaml"), metrics=daemon.config["server"]["metrics"],
            )
        )  # fmt: skip
        try:
            status, printed, error = appliance("install", tmp_path / "b.tar.gz", "--restart")
            assert status == 0, error
            assert "and it speaks" in printed and who(store.path) == "b"
            listed = appliance("list")[1].splitlines()
            assert [line.split()[0] for line in listed] == ["in", "before"]
        finally:
            pid = int((tmp_path / "pid").read_text())
            if pid != daemon.process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_the_daemon_keeps_to_its_folder_when_the_link_goes_elsewhere(tmp_path: Path) -> None:
    """A grid that is not computed yet loads a graph from the folder of the running bundle."""
    store = shelf(tmp_path, speaking)
    with running(tmp_path, speaks_from=store.path) as daemon:
        assert running_folder(config.load(tmp_path / "config.yaml")) == tmp_path / "a"
        shutil.copytree(BUNDLE, tmp_path / "broken")
        (tmp_path / "broken" / "modulation.onnx").write_bytes(b"no graph")
        (tmp_path / "new").symlink_to(tmp_path / "broken")
        (tmp_path / "new").rename(store.path)
        daemon.add_voice()
        with Client(daemon.address) as client:
            assert client.speak("Hello.", "ann", nfe=11).audio_s

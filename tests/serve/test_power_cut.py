"""Voices after a kill of the daemon or a power cut: acknowledged voices are whole, others whole or absent."""

import contextlib
import itertools
import os
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
import yaml

from appliance.errors import VoiceDamaged, VoiceNotFound
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.voices.records import Place
from appliance.voices.store import VoiceStore
from tests.harness.daemons import Running, reference_wav, running, store_in
from tests.harness.patience import PATIENCE_S
from tests.harness.sounds import wav

pytestmark = [pytest.mark.slow, pytest.mark.once]


@dataclass
class Disk:
    """State of a folder on the disk, from the order of its syncs and renames.

    A file's content is certain after a sync of the file, its name after a sync of its folder. Anything else
    may be there or not. So the search examines two states of each moment: nothing that was not synced, and
    all of it with empty files.
    """

    folder: Path
    names: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    """Renames in order: the old path, and the new path's files with their certain content."""
    synced: dict[int, bytes] = field(default_factory=dict)
    """Inode of a synced file → its content."""
    listed: set[int] = field(default_factory=set)
    """Inodes of folders whose entries are certain."""
    sure: int = 0
    """Number of certain renames."""
    moments: list[tuple[int, int, str]] = field(default_factory=list)
    """Number of certain renames, number of renames, and the last acknowledgement."""
    said: str = ""

    def mark(self) -> None:
        self.moments.append((self.sure, len(self.names), self.said))

    def acknowledge(self, what: str) -> None:
        self.said = what
        self.mark()

    def sync(self, descriptor: int) -> None:
        path, inode = Path(os.readlink(f"/proc/self/fd/{descriptor}")), os.fstat(descriptor).st_ino
        if path == self.folder:
            self.sure = len(self.names)
        elif path.is_dir():
            self.listed.add(inode)
            self.sure = len(self.names)
        else:
            self.synced[inode] = path.read_bytes()
        self.mark()

    def rename(self, old: Path, new: Path) -> None:
        """Record a rename; `new` exists already."""
        if self.folder not in new.parents:
            return
        files = [new] if new.is_file() else sorted(new.iterdir()) if new.stat().st_ino in self.listed else []
        content = {str(f.relative_to(self.folder)): self.synced.get(f.stat().st_ino, b"") for f in files}
        self.names.append((str(old.relative_to(self.folder)), content))
        self.mark()

    def images(self) -> Iterator[tuple[dict[str, bytes], str]]:
        """Each content that the folder may have after a cut, and the last acknowledgement before it."""
        for sure, done, said in self.moments:
            for count in {sure, done}:
                files: dict[str, bytes] = {}
                for old, content in self.names[:count]:
                    files = {p: data for p, data in files.items() if not f"{p}/".startswith(f"{old}/")}
                    files.update(content)
                yield files, said


@contextlib.contextmanager
def traced(folder: Path, monkeypatch: pytest.MonkeyPatch, without: str) -> Iterator[Disk]:
    """A disk under a folder; a sync of a path that ends with `without` does nothing."""
    disk = Disk(folder)
    sync = os.fsync

    def synced(descriptor: int) -> None:
        sync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not (without and re.search(f"/{without}$", path)):
            disk.sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        for move in (os.rename, os.replace):
            patch.setattr(os, move.__name__, lambda *of, move=move: (move(*of), disk.rename(*of)))
        yield disk


def wrong(
    disk: Disk, scratch: Path, state_of: Callable[[VoiceStore], str], allowed: dict[str, list[str]]
) -> list[str]:
    """Return forbidden states after each possible cut; `allowed` maps the last acknowledgement to its
    states."""
    found = []
    for number, (files, said) in enumerate(disk.images()):
        box = scratch / str(number)
        for name, data in files.items():
            path = box / "voices" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        store = store_in(box)
        store.sweep()
        try:
            state = state_of(store)
        except VoiceNotFound:
            state = "absent"
        except VoiceDamaged as error:
            state = str(error)
        if state not in allowed[said]:
            found.append(f"after {said or 'nothing'}: {state}")
    return found


@pytest.mark.parametrize("without", [
    *("", "voices", r"\.ann\.\w+", r"\.ann\.\w+/audio", r"voice\.yaml", r"\.voice\.yaml\.[^/]+"),
    *("styles", r"\.happy\.\w+", r"\.happy\.\w+/audio", r"style\.yaml"),
])  # fmt: skip
def test_a_voice_and_its_style_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    store = store_in(tmp_path / "box")
    with traced(tmp_path / "box" / "voices", monkeypatch, without) as disk:
        store.create(Place("ann"), wav(), "Hello there.", display_name="Ann")
        disk.acknowledge("created")
        store.create(Place("ann", "happy"), wav(2.0), "I am glad.")
        disk.acknowledge("styled")
        store.update("ann", "Bea")
        disk.acknowledge("updated")
        store.delete(Place("ann", "happy"))
        disk.acknowledge("unstyled")
        store.delete(Place("ann"))
        disk.acknowledge("deleted")
    assert len(disk.moments) >= 20

    def state_of(store: VoiceStore) -> str:
        voice = store.index.described("ann")
        styles = [s.problem or store.index.reference("ann", s.name).transcript for s in voice.styles]
        return " ".join([voice.display_name, store.index.reference("ann").transcript, *styles])

    states = ["absent", "Ann Hello there. ", "Ann Hello there.  I am glad. "]
    states += ["Bea Hello there.  I am glad. ", "Bea Hello there. ", "absent"]
    said = ("", "created", "styled", "updated", "unstyled", "deleted")
    allowed = {what: states[number : number + 2] for number, what in enumerate(said)}
    # Each sync is necessary: without it the same search finds a forbidden state.
    assert bool(wrong(disk, tmp_path / "scratch", state_of, allowed)) is bool(without)


class Uploader(threading.Thread):
    """Stores voices one after the other until the daemon is gone."""

    def __init__(self, daemon: Running, names: Iterator[str]) -> None:
        super().__init__()
        self._daemon, self._names = daemon, names
        self.acknowledged: dict[str, pb.Voice] = {}
        self.under_way = ""
        self.stored_one = threading.Event()

    def run(self) -> None:
        with self._daemon.channel() as channel:
            stub = appliance_pb2_grpc.VoicesStub(channel)
            for name in self._names:
                self.under_way = name
                audio = reference_wav(level=random.Random(name).uniform(0.1, 0.5))
                asked = pb.CreateVoiceRequest(name=name, audio=audio, transcript="Hum, hum, hum and hum.")
                try:
                    self.acknowledged[name] = stub.CreateVoice(asked, timeout=PATIENCE_S)
                except grpc.RpcError:
                    return
                self.stored_one.set()


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.thorough)])
def test_a_daemon_that_is_killed_loses_no_voice_and_speaks_as_before(tmp_path: Path, kills: int) -> None:
    names, dice = (f"voice-{n}" for n in itertools.count()), random.Random(1)
    acknowledged: dict[str, pb.Voice] = {}
    # Long enough that the kill comes first on a quick machine too.
    asked = pb.SynthesizeRequest(text="One, two, three. " * 50, voice="ann", nfe_steps=16, seed=7)
    said, cut_off = b"", 0
    for life in range(kills + 1):
        with running(tmp_path) as daemon, daemon.channel() as channel:
            voices = appliance_pb2_grpc.VoicesStub(channel)
            if not life:
                acknowledged["ann"] = daemon.add_voice("ann")
            listed = {v.name: v for v in voices.ListVoices(pb.ListVoicesRequest(page_size=1_000)).voices}
            assert {name: listed.get(name) for name in acknowledged} == acknowledged
            assert {v.state for v in listed.values()} == {pb.READY}
            for name, voice in listed.items():
                record = yaml.safe_load((tmp_path / "voices" / name / "voice.yaml").read_text("utf-8"))
                assert record["sha256"] == voice.sha256
            assert not [path for path in (tmp_path / "voices").iterdir() if path.name.startswith(".")]
            stream = daemon.synthesizer(channel).StreamSynthesize(asked, timeout=PATIENCE_S)
            if life == kills:
                again = b"".join(m.audio.data for m in stream)
                break
            uploader = Uploader(daemon, names)
            uploader.start()
            begun = [next(stream), next(stream)]
            assert begun[1].audio.data
            assert uploader.stored_one.wait(PATIENCE_S)
            begun += itertools.islice(stream, dice.randrange(6))
            daemon.process.kill()
            uploader.join(PATIENCE_S)
            assert uploader.under_way not in uploader.acknowledged
            acknowledged |= uploader.acknowledged
            with pytest.raises(grpc.RpcError):
                for message in stream:
                    begun.append(message)
            heard = b"".join(m.audio.data for m in begun)
            said = max(said, heard, key=len)
            cut_off += 1
    assert cut_off == kills and len(acknowledged) > kills
    assert said and again.startswith(said) and len(again) > len(said)
    shutil.rmtree(tmp_path)

"""The voice store: its durability, its refusals, and cached references that equal new ones byte by byte."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.contract.mel import MelSpec
from appliance.durable import SPARE_BYTES
from appliance.errors import (
    Cancelled,
    InvalidReference,
    InvalidRequest,
    StorageError,
    VoiceDamaged,
    VoiceExists,
    VoiceNotFound,
)
from appliance.request import Reference
from appliance.rpc.voices import voice_message
from appliance.voices import reference
from appliance.voices import store as voices
from appliance.voices.records import NAME_RULE, Place
from appliance.voices.rules import ZIPVOICE
from appliance.voices.store import VoiceStore
from tests.harness.daemons import store_in
from tests.harness.rows import rows
from tests.harness.sounds import wav
from tests.voices.conftest import Folders, files

SPEC = MelSpec("vocos")


PLACES = Place("bea"), Place("ann", "happy")


def same(a: Reference, b: Reference) -> bool:
    return all(
        np.asarray(getattr(a.features, name)).tobytes() == np.asarray(getattr(b.features, name)).tobytes()
        for name in ("samples", "log_mel", "rms")
    )


def test_a_voice_survives_a_restart_byte_for_byte(place: Folders) -> None:
    audio = wav()
    note = "Ann agreed on 1 May: naïve “quotes”\n2nd line"
    made = place.open().create(Place("ann"), audio, "Hello there", note)
    store = place.open()
    assert store.index.voice("ann") == made
    assert any(warning.startswith("only 1.1 s of speech:") for warning in made.warnings)
    assert (made.size_bytes, made.duration_s) == (len(audio), 1.05)
    # RMS of a sine, reduced by the 50 ms of silence that trimming appends.
    rms = 0.02 / np.sqrt(2) * np.sqrt(1.0 / 1.05)
    assert made.rms == pytest.approx(rms, rel=1e-3)
    assert (place.root / "voices" / "ann" / "audio").read_bytes() == audio
    assert store.index.reference("ann").transcript == "Hello there. "
    assert store.index.reference("ann").features.rms == pytest.approx(rms, rel=1e-3)


def test_hit_and_miss_are_the_same_bytes_in_memory_and_from_disk(place: Folders) -> None:
    store = place.open()
    store.create(Place("ann"), wav(), "Hello there.")
    memory = store.index.reference("ann")
    disk = place.open().index.reference("ann")
    assert place.prepared == 1
    shutil.rmtree(place.root / "cache")
    fresh = place.open().index.reference("ann")
    assert place.prepared == 2
    assert same(memory, disk) and same(disk, fresh)


def test_a_hit_reads_nothing(place: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    store = place.open()
    store.create(Place("ann"), wav(8.0), "Hello there.")
    kept = store.index.reference("ann")
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("a file was opened"))
    monkeypatch.setattr("os.open", lambda *_, **__: pytest.fail("a file was opened"))
    assert store.index.reference("ann").features is kept.features


@pytest.mark.parametrize("where", ["checksum", "middle", "last", "cut", "empty"])
def test_a_damaged_cache_file_is_rebuilt(place: Folders, where: str) -> None:
    good = place.open()
    good.create(Place("ann"), wav(), "Hello there.")
    (path,) = place.cached
    packed = bytearray(path.read_bytes())
    if where == "cut":
        del packed[-100:]
    elif where == "empty":
        packed.clear()
    else:
        packed[{"checksum": 3, "middle": len(packed) // 2, "last": -1}[where]] ^= 1
    path.write_bytes(packed)
    assert same(place.open().index.reference("ann"), good.index.reference("ann"))
    assert place.prepared == 2
    assert same(place.open().index.reference("ann"), good.index.reference("ann"))
    assert place.prepared == 2


def test_another_kind_of_preparation_does_not_see_the_old_cache(place: Folders) -> None:
    place.open().create(Place("ann"), wav(), "Hello there.")
    place.level = 0.2
    place.open().index.reference("ann")
    assert place.prepared == 2
    by_its_rule = place.open(rule=ZIPVOICE).index.reference("ann")
    assert place.prepared == 3 and by_its_rule.transcript == "Hello there."
    assert len(by_its_rule.features.samples) > len(place.open().index.reference("ann").features.samples)


def test_the_transcript_is_no_part_of_the_cache(place: Folders) -> None:
    store = place.open()
    store.create(Place("ann"), wav(), "Hello there.")
    store.create(Place("bea"), wav(), "Something else.")
    prepared = place.prepared
    assert len(place.cached) == 1
    assert store.index.reference("ann").transcript != store.index.reference("bea").transcript
    assert same(store.index.reference("ann"), store.index.reference("bea"))
    assert place.prepared == prepared


def test_memory_holds_the_most_recently_used(place: Folders) -> None:
    store = place.open(memory_entries=1)
    store.create(Place("ann"), wav(pitch_hz=200), "Hello there.")
    store.create(Place("bea"), wav(pitch_hz=300), "Hello there.")
    shutil.rmtree(place.root / "cache")
    prepared = place.prepared
    store.index.reference("bea")
    assert place.prepared == prepared
    assert list(map(store.index.at_hand, ("ann", "bea", "eve"))) == [False, True, False]
    store.index.reference("ann")
    assert place.prepared == prepared + 1
    assert (store.index.at_hand("ann"), store.index.at_hand("bea")) == (True, False)


def test_shared_references_cannot_be_written_to(place: Folders) -> None:
    store = place.open()
    store.create(Place("ann"), wav(), "Hello there.")
    with pytest.raises(ValueError, match="read-only"):
        store.index.reference("ann").features.samples[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        place.open().index.reference("ann").features.log_mel[0] = 1.0


@pytest.mark.parametrize("at", PLACES, ids=str)
def test_the_same_again_is_no_error_and_other_content_or_consent_is(store: VoiceStore, at: Place) -> None:
    made = store.create(at, wav(), "Hello there.", "It was agreed.")
    assert store.create(at, wav(), "Hello there.", "It was agreed.") == made
    assert store.create(at, wav(), "Hello there.") == made
    for audio, words, consent in (
        (wav(), "Hello, there.", ""),
        (wav(pitch_hz=100), "Hello there.", ""),
        (wav(), "Hello there.", "More was agreed."),
    ):
        why = "another consent note" if consent else "other content"
        with pytest.raises(VoiceExists, match=rf"^{at} is stored already with {why}"):
            store.create(at, audio, words, consent)
    assert store.index.described(at.voice) == made


HOSTILE_NAMES = (
    *("", "Ann", "-ann", "_ann", "a.b", "..", "../ann", "a/b", "/etc", "a" * 65, "ann\n", "a\0", "änn"),
    ".ann.00000000",
)


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "neutral"])
def test_names_outside_the_rule_reach_no_disk(place: Folders, store: VoiceStore, name: str) -> None:
    assert all(NAME_RULE.fullmatch(inside) for inside in ("a", "0", "a" * 64, "a-b_c9"))
    before = files(place.root)
    named = [(Place("ann", name), "style"), *([(Place(name), "name")] if name != "neutral" else [])]
    for at, field in named:
        with pytest.raises(InvalidRequest, match=rf"^{field}: must ") as caught:
            store.create(at, wav(), "Hello there.")
        assert caught.value.field == field
        with pytest.raises(VoiceNotFound):
            store.delete(at)
    with pytest.raises(VoiceNotFound):
        store.index.reference(name)
    with pytest.raises(VoiceNotFound):
        store.create(Place(name, "happy"), b"", "")
    if name:
        with pytest.raises(InvalidRequest, match=r"^style: voice 'ann' has no style"):
            store.index.reference("ann", name)
    assert store.index.styles(name) == [] and files(place.root) == before


def stopping() -> None:
    raise Cancelled("stopped")


@pytest.mark.parametrize("at", PLACES, ids=str)
@pytest.mark.parametrize(("audio", "transcript", "field"), [
    (b"", "Hello.", "audio"),
    (b"x" * 2_000_000, "Hello.", "audio"),
    (b"not audio at all", "Hello.", "audio"),
    (wav(level=0.0), "Hello.", "audio"),
    (wav(), "", "transcript"),
    *((wav(), text, "transcript") for text in (" \n", "\u200b", "\u2060\ufeff \u00ad", "\ufe0f")),
    (wav(), "a" * 1_001, "transcript"),
])  # fmt: skip
def test_bad_stopped_or_only_validated_uploads_leave_nothing(
    place: Folders, store: VoiceStore, at: Place, audio: bytes, transcript: str, field: str
) -> None:
    before = files(place.root)
    with pytest.raises(InvalidReference) as caught:
        store.create(at, audio, transcript)
    assert caught.value.field == field
    with pytest.raises(Cancelled):
        store.create(at, wav(), "Hello there.", checkpoint=stopping)
    assert store.create(at, wav(), "Hello there.", validate_only=True).name == at.voice
    assert files(place.root) == before


def test_paging_goes_over_every_voice_once(place: Folders) -> None:
    store = place.open()
    names = ["a", "a-b", "a_b", "b", "c0", "c1", "d"]
    for name in reversed(names):
        store.create(Place(name), wav(0.5), "Hello there.")
    for size in (1, 2, 3, 7, 8, 0):
        seen, token = [], ""
        while True:
            page = store.index.page(size, token)
            assert len(page.voices) <= (size or 50)
            seen += [voice.name for voice in page.voices]
            token = page.next_token
            if not token:
                break
        assert seen == names
    with pytest.raises(InvalidRequest, match="at most 1000"):
        store.index.page(1001)
    with pytest.raises(InvalidRequest, match="page_token"):
        store.index.page(1, "../x")


def test_voices_changed_by_hand_are_seen_at_once(place: Folders) -> None:
    store = place.open()
    store.create(Place("ann"), wav(), "Hello there.")
    folder = place.root / "voices"
    shutil.copytree(folder / "ann", folder / "bea")
    with pytest.raises(StorageError, match="describes voice 'ann'"):
        store.index.voice("bea")
    edit(folder / "bea" / "voice.yaml", "name: ann", "name: bea")
    edit(folder / "bea" / "voice.yaml", "Hello there", "Good day")
    assert store.index.reference("bea").transcript == "Good day. "
    assert store.index.names() == ["ann", "bea"]
    shutil.rmtree(folder / "ann")
    with pytest.raises(VoiceNotFound):
        store.index.reference("ann")


def edit(record: Path, old: str, new: str) -> None:
    record.write_text(record.read_text().replace(old, new))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "unknown key": lambda folder: (folder / "voice.yaml").write_text("name: ann\nage: 30\n"),
    "not yaml": lambda folder: (folder / "voice.yaml").write_bytes(b"name: [\xff"),
    "no date": lambda folder: (folder / "voice.yaml").write_text("created: 2026-13-45\n"),
    "another name": lambda folder: edit(folder / "voice.yaml", "name: ann", "name: bob"),
    "no record": lambda folder: (folder / "voice.yaml").unlink(),
    "no audio": lambda folder: (folder / "audio").unlink(),
    "other audio": lambda folder: (folder / "audio").write_bytes(b"another"),
}
"""Ways to damage a stored voice."""


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_voice_is_named_without_its_path_replaced_and_deleted(place: Folders, how: str) -> None:
    store = place.open()
    made = store.create(Place("ann"), wav(), "Hello there.")
    store.create(Place("bea"), wav(0.5), "Hello there.")
    shutil.rmtree(place.root / "cache")
    DAMAGES[how](place.root / "voices" / "ann")
    store = place.open()
    with pytest.raises(VoiceDamaged, match=r"^voice 'ann': ") as caught:
        store.index.reference("ann")
    assert str(place.root) not in str(caught.value)
    (problem,) = store.index.check()
    assert problem.startswith("voice ann: ") and "'ann': " not in problem
    listed = {voice.name: voice.problem for voice in store.index.page().voices}
    # A voice that nobody has used yet shows only the damage of its record.
    assert listed == {"ann": "" if "audio" in how else str(caught.value), "bea": ""}
    assert store.create(Place("ann"), wav(), "Hello there.").sha256 == made.sha256
    assert store.index.reference("ann").transcript == "Hello there. "
    assert [path.name for path in (place.root / "voices").iterdir() if path.name[0] == "."] == []
    DAMAGES[how](place.root / "voices" / "ann")
    place.open().delete(Place("ann"))
    assert [path.name for path in (place.root / "voices").iterdir()] == ["bea"]
    with pytest.raises(VoiceNotFound):
        store.delete(Place("ann"))


def with_field(name: str, value: str) -> Callable[[Path], None]:
    """Write `value` after `name:` in a record."""

    def write(record: Path) -> None:
        lines = record.read_text().splitlines()
        lines = [f"{name}: {value}" if line.startswith(f"{name}:") else line for line in lines]
        record.write_text("\n".join(lines))

    return write


def instead(made: Callable[[Path], object]) -> Callable[[Path], None]:
    def write(record: Path) -> None:
        record.unlink()
        made(record)

    return write


ODD_FIELDS = [
    *rows(__file__, "odd_fields.jsonl"),
    *(("rms", value) for value in ("1" + "0" * 400, "0x" + "f" * 5_000)),
    ("size_bytes", "0x" + "f" * 5_000),
    ("name", "x" * 10_000),
]
ODD_FILES: dict[str, Callable[[Path], object]] = {
    "empty": lambda record: record.write_bytes(b""),
    "list": lambda record: record.write_text("- name: ann\n"),
    "NUL": lambda record: record.write_bytes(b"\0" * 100),
    "binary": lambda record: record.write_bytes(bytes(range(256))),
    "two documents": lambda record: record.write_text("--- a\n--- b\n"),
    "deep": lambda record: record.write_text("[" * 400),
    "aliases": lambda record: record.write_text(
        "a: &a [x, x]\n"
        + "".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else '*a'] * 9)}]\n" for n in range(9))
    ),
    "endless": lambda record: os.truncate(os.open(record, os.O_RDWR | os.O_CREAT), 1 << 40),
    "folder": instead(Path.mkdir),
    "pipe": instead(os.mkfifo),
    "circle": instead(lambda record: record.symlink_to(record)),
    "nothing": instead(lambda record: record.symlink_to("nowhere")),
    "device": instead(lambda record: record.symlink_to("/dev/zero")),
    "folder in a circle": lambda record: (shutil.rmtree(of := record.parent), of.symlink_to(of)),
}


@pytest.mark.parametrize(
    "spoilt",
    [*(with_field(*odd) for odd in ODD_FIELDS), *ODD_FILES.values()],
    ids=[*(f"{field} {value[:20]!r}" for field, value in ODD_FIELDS), *ODD_FILES],
)
def test_a_record_that_nobody_can_read_hides_no_other_voice(
    place: Folders, spoilt: Callable[[Path], None], whole: Path
) -> None:
    shutil.copytree(whole, place.root, dirs_exist_ok=True)
    spoilt(place.root / "voices" / "ann" / "voice.yaml")
    store = place.open()
    listed = store.index.page().voices
    for voice in listed:
        voice_message(voice).SerializeToString()
    assert [voice.name for voice in listed] == ["ann", "bea"] and not listed[1].problem
    assert store.index.reference("bea") and store.index.with_audio("") is None
    with pytest.raises(StorageError, match=r"^voice 'ann'") as caught:
        store.index.reference("ann")
    assert len(str(caught.value)) < 1_000 and len(store.index.check()) == 1
    store.delete(Place("ann"))
    assert [voice.name for voice in store.index.page().voices] == ["bea"] and len(place.cached) == 2
    assert store.create(Place("ann"), wav(0.4), "Hello there.").name == "ann"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two voices, and the reference of a third in the cache."""
    folder = tmp_path_factory.mktemp("whole")
    store = store_in(folder)
    for name, seconds in (("ann", 0.4), ("bea", 0.5)):
        store.create(Place(name), wav(seconds), "Hello there.")
    return folder


@pytest.mark.parametrize("bound", ["number", "space"])
def test_a_deleted_voice_makes_room(place: Folders, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    store = place.open()
    for name in ("ann", "bea"):
        store.create(Place(name), wav(), "Hello there.")
    free = SPARE_BYTES + len(wav()) - 1
    usage = shutil.disk_usage(place.root)
    with monkeypatch.context() as patch:
        if bound == "number":
            patch.setattr(voices, "MOST_VOICES", 2)
        else:
            patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
        with pytest.raises(StorageError, match=r"^voices: 2 are stored|^voice 'cid': .* 67 MB must stay"):
            store.create(Place("cid"), wav(), "Hello there.")
        assert store.create(Place("ann"), wav(), "Hello there.").name == "ann"
        assert store.index.names() == ["ann", "bea"]
        store.delete(Place("ann"))
        free += 1
        store.create(Place("cid"), wav(), "Hello there.")
    assert store.index.names() == ["bea", "cid"]


@pytest.mark.parametrize("made", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_audio_that_is_no_file_is_damage(place: Folders, whole: Path, made: Callable[[Path], None]) -> None:
    shutil.copytree(whole / "voices", place.root / "voices")
    instead(made)(place.root / "voices" / "ann" / "audio")
    with pytest.raises(VoiceDamaged, match=r"^voice 'ann': audio is not a file of at most"):
        place.open().index.reference("ann")


def test_a_voice_that_cannot_be_read_is_not_replaced(place: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    place.open().create(Place("ann"), wav(), "Hello there.")
    store = place.open()

    def full(path: Path, flags: int) -> int:
        raise OSError(24, "Too many open files", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(StorageError, match=r"^voice 'ann': Too many open files$"):
            store.create(Place("ann"), wav(0.7), "Something else.")
    assert store.index.voice("ann").transcript == "Hello there."


def test_a_transcript_that_cannot_be_all_is_warned_of(place: Folders) -> None:
    made = place.open().create(Place("ann"), wav(3.5), "a")
    assert any(warning.startswith("the transcript probably lacks words:") for warning in made.warnings)
    assert place.open().index.voice("ann").warnings == made.warnings


def test_an_upload_is_decoded_once(place: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    real = reference.decode
    monkeypatch.setattr(reference, "decode", lambda audio: decoded.append(len(audio)) or real(audio))
    store = place.open()
    store.create(Place("ann"), wav(), "Hello there.")
    assert len(decoded) == 1
    store.create(Place("ann"), wav(), "Hello there.")
    assert len(decoded) == 1


def test_names_in_any_script_and_pronunciations_are_stored(place: Folders) -> None:
    store = place.open()
    words = {"Xx_Anna": "安娜", "GG": "good game"}
    upload = Place("ann"), wav(), "Hello there."
    made = store.create(*upload, display_name=" 安\u200b娜 ", pronunciations=words)
    assert (made.display_name, made.pronunciations) == ("安娜", words)
    prepared = place.prepared
    assert place.open().index.voice("ann") == made == store.create(*upload)
    for other in ({"display_name": "Anna"}, {"pronunciations": {"GG": "gee gee"}}):
        with pytest.raises(VoiceExists, match=r"another (display name|list of pronunciations); UpdateVoice"):
            store.create(*upload, **other)
    changed = store.update("ann", "Anna")
    for one in (store, place.open()):
        assert changed == replace(made, display_name="Anna") == one.index.voice("ann")
    assert store.update("ann", pronunciations={}) == replace(changed, pronunciations={})
    assert store.index.pronunciations("ann") == store.index.pronunciations("nobody") == {}
    assert (store.update("ann").display_name, place.prepared) == ("Anna", prepared)
    with pytest.raises(InvalidRequest, match="display_name: has 101 characters; at most 100"):
        store.update("ann", "a" * 101)
    for write in (store.update, lambda name, **words: store.create(*upload, **words)):
        with pytest.raises(InvalidRequest, match="has an empty side"):
            write("ann", pronunciations={"a": " "})
    with pytest.raises(VoiceNotFound):
        store.update("bea", "Bea")
    assert [path.name for path in (place.root / "voices" / "ann").iterdir() if path.name[0] == "."] == []


def test_unknown_names_cause_no_list_of_the_folder(place: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    index = place.open().index
    monkeypatch.setattr(index, "names", lambda: pytest.fail("lists the folder"))
    assert not (index.is_usable("bob") or index.pronunciations("bob") or index.styles("bob"))


LEFTOVERS = (".ann.0123abcd", f".{'a' * 64}-{'b' * 16}.ref.0123abcd")


def test_leftovers_are_swept(place: Folders) -> None:
    store = place.open()
    folder, cache = place.root / "voices", place.root / "cache"
    (folder / LEFTOVERS[0]).mkdir()
    (folder / ".git").mkdir()
    for path in (cache / LEFTOVERS[1], folder / ".git/.voice.yaml.0123abcd.new"):
        path.write_bytes(b"half")
    assert store.index.names() == []
    store.sweep()
    assert [path.name for path in folder.rglob("*")] == [".git"]
    assert list(cache.iterdir()) == []


def test_files_that_another_process_writes_are_not_swept(place: Folders) -> None:
    store = place.open()
    paths = place.root / "voices" / LEFTOVERS[0], place.root / "cache" / LEFTOVERS[1]
    for path in paths:
        path.mkdir()
    writer = (
        "import fcntl, os, sys\n"
        "for folder in sys.argv[1:]: fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)\n"
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", writer, *(str(path.parent) for path in paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        store.sweep()
        assert all(path.exists() for path in paths)
        other.kill()
    store.sweep()
    assert not any(path.exists() for path in paths)


def test_two_stores_of_one_folder_take_turns(place: Folders) -> None:
    """Several writers use a name: the first one stores the voice, and the others get VoiceExists."""
    content = [(wav(pitch_hz=200 + i), f"Hello number {i}.") for i in range(4)]

    def create(i: int) -> str:
        try:
            return place.open().create(Place("ann"), *content[i]).transcript
        except VoiceExists:
            return ""

    with ThreadPoolExecutor(4) as pool:
        stored = [transcript for transcript in pool.map(create, range(4)) if transcript]
    assert stored == [place.open().index.voice("ann").transcript]

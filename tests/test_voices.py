"""The voice store: what survives, what is refused, and that cached references are the bytes of new ones."""

from __future__ import annotations

import io
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import soundfile

from appliance.audio import reference
from appliance.contract.mel import MelSpec
from appliance.errors import (
    InvalidReference,
    InvalidRequest,
    StorageError,
    VoiceExists,
    VoiceNotFound,
)
from appliance.voices import NAME_RULE, Features, VoiceStore


@dataclass
class Preparation:
    """The real one for a small mel, which counts how often it is asked."""

    spec: MelSpec = field(default_factory=lambda: MelSpec("vocos"))
    asked: int = 0
    version: int = 1

    @property
    def fingerprint(self) -> str:
        return f"{self.spec.fingerprint}/{self.version}"

    @property
    def sample_rate_hz(self) -> int:
        return self.spec.sample_rate_hz

    def features(self, audio: bytes) -> Features:
        self.asked += 1
        made = reference.prepare_reference("", audio, ".", self.spec, 0.1)
        return Features(made.samples, made.log_mel, made.rms)

    def transcript(self, text: str) -> str:
        return reference.complete_transcript(text)

    def warnings(self, audio: bytes) -> tuple[str, ...]:
        return ("only a test",)


def wav(seconds: float = 1.0, *, pitch_hz: float = 220.0, level: float = 0.02) -> bytes:
    t = np.arange(int(16_000 * seconds)) / 16_000
    buffer = io.BytesIO()
    soundfile.write(buffer, level * np.sin(2 * np.pi * pitch_hz * t), 16_000, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


@dataclass
class Place:
    root: Path
    preparation: Preparation

    def open(self, **options: int) -> VoiceStore:
        limits = {"memory_entries": 4, "max_reference_bytes": 1 << 20, **options}
        return VoiceStore(self.root / "voices", self.root / "cache", self.preparation, **limits)

    @property
    def cached(self) -> list[Path]:
        return sorted((self.root / "cache").iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, Preparation())


def same(a: object, b: object) -> bool:
    return all(
        np.asarray(getattr(a, name)).tobytes() == np.asarray(getattr(b, name)).tobytes()
        for name in ("samples", "log_mel", "rms")
    )


def test_a_voice_survives_a_restart_byte_for_byte(place: Place) -> None:
    audio = wav()
    made = place.open().create("ann", audio, "Hello there", "Ann agreed on 1 May: naïve “quotes”\n2nd line")
    store = place.open()
    assert store.get("ann") == made
    assert made.warnings == ("only a test",)
    assert (made.size_bytes, made.duration_s) == (len(audio), 1.05)
    # A sine's RMS, thinned by the 50 ms of silence that trimming appends.
    rms = 0.02 / np.sqrt(2) * np.sqrt(1.0 / 1.05)
    assert made.rms == pytest.approx(rms, rel=1e-3)
    assert (place.root / "voices" / "ann" / "audio").read_bytes() == audio
    assert store.reference("ann").transcript == "Hello there. "
    assert store.reference("ann").rms == pytest.approx(rms, rel=1e-3)


def test_hit_and_miss_are_the_same_bytes_in_memory_and_from_disk(place: Place) -> None:
    store = place.open()
    store.create("ann", wav(), "Hello there.")
    memory = store.reference("ann")
    disk = place.open().reference("ann")
    assert place.preparation.asked == 1
    shutil.rmtree(place.root / "cache")
    fresh = place.open().reference("ann")
    assert place.preparation.asked == 2
    assert same(memory, disk) and same(disk, fresh)


def test_a_hit_takes_under_a_millisecond(place: Place) -> None:
    store = place.open()
    store.create("ann", wav(8.0), "Hello there.")
    took = []
    for _ in range(50):
        begun = time.perf_counter()
        store.reference("ann")
        took.append(time.perf_counter() - begun)
    assert sorted(took)[25] < 1e-3


@pytest.mark.parametrize("where", ["checksum", "middle", "last", "cut", "empty"])
def test_a_damaged_cache_file_is_made_again(place: Place, where: str) -> None:
    good = place.open()
    good.create("ann", wav(), "Hello there.")
    (path,) = place.cached
    packed = bytearray(path.read_bytes())
    if where == "cut":
        del packed[-100:]
    elif where == "empty":
        packed.clear()
    else:
        packed[{"checksum": 3, "middle": len(packed) // 2, "last": -1}[where]] ^= 1
    path.write_bytes(packed)
    assert same(place.open().reference("ann"), good.reference("ann"))
    assert place.preparation.asked == 2
    assert same(place.open().reference("ann"), good.reference("ann"))
    assert place.preparation.asked == 2


def test_another_kind_of_preparation_does_not_see_the_old_cache(place: Place) -> None:
    place.open().create("ann", wav(), "Hello there.")
    place.preparation.version = 2
    place.open().reference("ann")
    assert place.preparation.asked == 2


def test_the_transcript_is_no_part_of_the_cache(place: Place) -> None:
    store = place.open()
    store.create("ann", wav(), "Hello there.")
    store.create("bea", wav(), "Something else.")
    asked = place.preparation.asked
    assert len(place.cached) == 1
    assert store.reference("ann").transcript != store.reference("bea").transcript
    assert same(store.reference("ann"), store.reference("bea"))
    assert place.preparation.asked == asked


def test_memory_holds_the_most_recently_used(place: Place) -> None:
    store = place.open(memory_entries=1)
    store.create("ann", wav(pitch_hz=200), "Hello there.")
    store.create("bea", wav(pitch_hz=300), "Hello there.")
    shutil.rmtree(place.root / "cache")
    asked = place.preparation.asked
    store.reference("bea")
    assert place.preparation.asked == asked
    store.reference("ann")
    assert place.preparation.asked == asked + 1


def test_shared_references_cannot_be_written_to(place: Place) -> None:
    store = place.open()
    store.create("ann", wav(), "Hello there.")
    with pytest.raises(ValueError, match="read-only"):
        store.reference("ann").samples[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        place.open().reference("ann").log_mel[0] = 1.0


def test_the_same_again_is_no_error_and_other_content_is(place: Place) -> None:
    store = place.open()
    made = store.create("ann", wav(), "Hello there.")
    assert store.create("ann", wav(), "Hello there.") == made
    with pytest.raises(VoiceExists, match="ann"):
        store.create("ann", wav(), "Hello, there.")
    with pytest.raises(VoiceExists, match="ann"):
        store.create("ann", wav(pitch_hz=100), "Hello there.")
    assert store.get("ann") == made


@pytest.mark.parametrize(
    "name", ["", "Ann", "-ann", "_ann", "a.b", "../ann", "a/b", "a" * 65, "ann\n", "änn", ".ann.00000000"]
)
def test_names_outside_the_rule_are_refused(place: Place, name: str) -> None:
    store = place.open()
    with pytest.raises(InvalidRequest, match="a-z, 0-9") as caught:
        store.create(name, wav(), "Hello there.")
    assert caught.value.field == "name"
    with pytest.raises(VoiceNotFound):
        store.reference(name)
    assert list((place.root / "voices").iterdir()) == []


@pytest.mark.parametrize("name", ["a", "0", "a" * 64, "a-b_c9"])
def test_names_inside_the_rule(name: str) -> None:
    assert NAME_RULE.fullmatch(name)


@pytest.mark.parametrize(
    ("audio", "transcript", "field"),
    [
        (b"", "Hello.", "audio"),
        (b"x" * 2_000_000, "Hello.", "audio"),
        (b"not audio at all", "Hello.", "audio"),
        (wav(level=0.0), "Hello.", "audio"),
        (wav(), "", "transcript"),
        (wav(), " \n", "transcript"),
        (wav(), "a" * 1_001, "transcript"),
    ],
)
def test_a_bad_reference_is_refused_and_leaves_nothing(
    place: Place, audio: bytes, transcript: str, field: str
) -> None:
    store = place.open()
    with pytest.raises(InvalidReference) as caught:
        store.create("ann", audio, transcript)
    assert caught.value.field == field
    assert list((place.root / "voices").iterdir()) == place.cached == []


def test_validate_only_stores_nothing(place: Place) -> None:
    store = place.open()
    voice = store.create("ann", wav(), "Hello there.", validate_only=True)
    assert voice.name == "ann"
    assert list((place.root / "voices").iterdir()) == place.cached == []
    with pytest.raises(VoiceNotFound):
        store.get("ann")


def test_delete_forgets_what_was_prepared_unless_another_voice_shares_it(place: Place) -> None:
    store = place.open()
    store.create("ann", wav(), "Hello there.")
    store.create("bea", wav(), "Hello there.")
    store.delete("ann")
    assert len(place.cached) == 1
    store.delete("bea")
    assert list((place.root / "voices").iterdir()) == place.cached == []
    with pytest.raises(VoiceNotFound, match="bea"):
        store.reference("bea")
    with pytest.raises(VoiceNotFound, match="bea"):
        store.delete("bea")


def test_paging_goes_over_every_voice_once(place: Place) -> None:
    store = place.open()
    names = ["a", "a-b", "a_b", "b", "c0", "c1", "d"]
    for name in reversed(names):
        store.create(name, wav(0.5), "Hello there.")
    for size in (1, 2, 3, 7, 8, 0):
        seen, token = [], ""
        while True:
            page = store.page(size, token)
            assert len(page.voices) <= (size or 50)
            seen += [voice.name for voice in page.voices]
            token = page.next_token
            if not token:
                break
        assert seen == names
    with pytest.raises(InvalidRequest, match="at most 1000"):
        store.page(1001)
    with pytest.raises(InvalidRequest, match="page_token"):
        store.page(1, "../x")


def test_voices_changed_by_hand_are_seen_at_once(place: Place) -> None:
    store = place.open()
    store.create("ann", wav(), "Hello there.")
    folder = place.root / "voices"
    shutil.copytree(folder / "ann", folder / "bea")
    with pytest.raises(StorageError, match="describes voice 'ann'"):
        store.get("bea")
    record = folder / "bea" / "voice.yaml"
    record.write_text(record.read_text().replace("name: ann", "name: bea").replace("Hello there", "Good day"))
    assert store.reference("bea").transcript == "Good day. "
    assert store.names() == ["ann", "bea"]
    shutil.rmtree(folder / "ann")
    with pytest.raises(VoiceNotFound):
        store.reference("ann")


def test_audio_changed_by_hand_is_noticed(place: Place) -> None:
    place.open().create("ann", wav(), "Hello there.")
    (place.root / "voices" / "ann" / "audio").write_bytes(wav(pitch_hz=100))
    shutil.rmtree(place.root / "cache")
    store = place.open()
    with pytest.raises(StorageError, match="is not the file"):
        store.reference("ann")
    (problem,) = store.check()
    assert problem.startswith("voice ann: ")


def test_a_spoiled_record_is_named_and_the_others_still_listed(place: Place) -> None:
    store = place.open()
    store.create("ann", wav(), "Hello there.")
    store.create("bea", wav(), "Hello there.")
    (place.root / "voices" / "ann" / "voice.yaml").write_text("name: ann\nage: 30\n")
    with pytest.raises(StorageError, match="unknown key age"):
        store.get("ann")
    assert [voice.name for voice in store.page().voices] == ["bea"]


def test_leftovers_of_an_interrupted_create_are_swept(place: Place) -> None:
    store = place.open()
    (place.root / "voices" / ".ann.0123abcd").mkdir()
    (place.root / "voices" / ".git").mkdir()
    assert store.names() == []
    store.sweep()
    assert [path.name for path in (place.root / "voices").iterdir()] == [".git"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "voices").write_text("a file")
    with pytest.raises(StorageError, match="voices"):
        Place(tmp_path, Preparation()).open()

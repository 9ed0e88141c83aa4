"""Styles of a voice: stored next to it, damaged, bounded, and removed while the voice stays."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from appliance.errors import InvalidRequest, StorageError, VoiceDamaged, VoiceNotFound
from appliance.rpc.voices import voice_message
from appliance.voices import index
from appliance.voices.records import Place
from appliance.voices.store import MOST_STYLES, VoiceStore
from tests.harness.daemons import store_in
from tests.harness.sounds import wav
from tests.voices.conftest import files
from tests.voices.test_store import edit


def test_a_style_is_the_reference_that_its_recording_would_be(store: VoiceStore, tmp_path: Path) -> None:
    record = (tmp_path / "voices" / "ann" / "voice.yaml").read_bytes()
    made = store.create(Place("ann", "happy"), wav(2.0), "I am glad.", "Ann agreed again.")
    alone = store_in(tmp_path / "other").create(Place("bea"), wav(2.0), "I am glad.")
    (style,) = made.styles
    assert (style.name, style.transcript, style.consent_note) == ("happy", "I am glad.", "Ann agreed again.")
    assert (style.sha256, style.rms, style.warnings) == (alone.sha256, alone.rms, alone.warnings)
    assert (made.transcript, made.display_name) == ("Hello there.", "Ann")
    # An earlier version, which has no styles, reads the voice as before.
    assert (tmp_path / "voices" / "ann" / "voice.yaml").read_bytes() == record

    again = store_in(tmp_path)
    assert again.index.described("ann") == made == again.index.page().voices[0]
    assert again.index.styles("ann") == ["happy"]
    one, other = again.index.reference("ann", "happy"), store_in(tmp_path / "other").index.reference("bea")
    assert one.transcript == other.transcript == "I am glad. "
    assert one.features.log_mel.tobytes() == other.features.log_mel.tobytes()
    assert one.features.samples.tobytes() == other.features.samples.tobytes()
    assert again.index.reference("ann").transcript == "Hello there. "
    assert voice_message(made).styles[0].sha256 == style.sha256


def test_a_missing_style_is_refused_with_those_there_are(store: VoiceStore) -> None:
    store.create(Place("ann", "sad"), wav(2.0), "Alas.")
    store.create(Place("ann", "happy"), wav(2.0), "I am glad.")
    with pytest.raises(InvalidRequest, match=r"no style 'angry'; it has neutral, happy, sad$") as caught:
        store.index.reference("ann", "angry")
    assert caught.value.field == "style"


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no record": lambda style: (style / "style.yaml").unlink(),
    "another name": lambda style: edit(style / "style.yaml", "name: happy", "name: sad"),
    "a voice's key": lambda style: edit(style / "style.yaml", "name:", "display_name: Ann\nname:"),
    "no YAML": lambda style: (style / "style.yaml").write_bytes(b"name: [\xff"),
    "a file": lambda style: (shutil.rmtree(style), style.symlink_to(style)),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_style_hides_neither_its_voice_nor_others_and_can_be_replaced(
    store: VoiceStore, tmp_path: Path, how: str
) -> None:
    store.create(Place("ann", "sad"), wav(2.0), "Alas.")
    made = store.create(Place("ann", "happy"), wav(2.2), "I am glad.")
    DAMAGES[how](tmp_path / "voices" / "ann" / "styles" / "happy")
    store = store_in(tmp_path)
    (voice,) = store.index.page().voices
    assert voice.problem == "" and store.index.reference("ann") and store.index.reference("ann", "sad")
    assert [bool(style.problem) for style in voice.styles] == [True, False]
    # The damaged style's tag has no effect; a request for it gets the reason.
    assert store.index.styles("ann") == ["sad"]
    with pytest.raises(StorageError, match=r"^voice 'ann', style 'happy'") as caught:
        store.index.reference("ann", "happy")
    assert str(tmp_path) not in str(caught.value)
    (problem,) = store.index.check()
    assert problem.startswith("voice ann, style happy: ")
    if how != "a file":
        mended = store.create(Place("ann", "happy"), wav(2.2), "I am glad.")
        assert [style.sha256 for style in mended.styles] == [style.sha256 for style in made.styles]
        assert store.index.reference("ann", "happy").transcript == "I am glad. " and store.index.check() == []
    store.delete(Place("ann", "happy"))
    assert [style.name for style in store.index.described("ann").styles] == ["sad"]
    assert [name for name in files(tmp_path / "voices") if name.startswith(".")] == []


def test_lost_audio_is_damage_once_nothing_is_prepared(store: VoiceStore, tmp_path: Path) -> None:
    store.create(Place("ann", "happy"), wav(2.0), "I am glad.")
    (tmp_path / "voices" / "ann" / "styles" / "happy" / "audio").write_bytes(b"another")
    shutil.rmtree(tmp_path / "cache")
    store = store_in(tmp_path)
    with pytest.raises(VoiceDamaged, match=r"^voice 'ann', style 'happy': audio is not the file"):
        store.index.reference("ann", "happy")
    assert store.index.reference("ann").transcript == "Hello there. "


@pytest.mark.parametrize(
    "made", [Path.touch, os.mkfifo, lambda path: path.symlink_to(path), lambda path: path.symlink_to("/")]
)
def test_a_folder_of_styles_that_is_none_leaves_the_voice(
    store: VoiceStore, tmp_path: Path, made: Callable[[Path], None]
) -> None:
    made(tmp_path / "voices" / "ann" / "styles")
    index = store_in(tmp_path).index
    assert index.described("ann").problem == "" and index.reference("ann").transcript == "Hello there. "
    assert "happy" not in index.styles("ann")
    assert all(problem.startswith("voice ann, style ") for problem in index.check())


def test_a_damaged_voice_that_is_created_again_keeps_its_styles(store: VoiceStore, tmp_path: Path) -> None:
    made = store.create(Place("ann", "happy"), wav(2.0), "I am glad.")
    (tmp_path / "voices" / "ann" / "voice.yaml").unlink()
    store = store_in(tmp_path)
    (listed,) = store.index.page().voices
    assert listed.problem and listed.styles == made.styles
    assert store.create(Place("ann"), wav(), "Hello there.").styles == made.styles
    assert store.index.reference("ann", "happy").transcript == "I am glad. "


def test_a_removed_voice_is_forgotten_and_no_other_voice_is_read(
    store: VoiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    store.create(Place("ann", "happy"), wav(2.0), "I am glad.")
    store.create(Place("ann", "sad"), wav(2.2), "Alas.")
    store.create(Place("bea"), wav(2.2), "Alas.")
    assert len(list(cache.iterdir())) == 3
    store.delete(Place("ann", "happy"))
    with pytest.raises(VoiceNotFound, match=r"no style 'happy'; it has neutral, sad$"):
        store.delete(Place("ann", "happy"))
    assert len(list(cache.iterdir())) == 2
    store = store_in(tmp_path)
    monkeypatch.setattr(index, "read_record", read := Mock(wraps=index.read_record))
    store.delete(Place("ann"))
    assert not list(cache.iterdir()) and store.index.names() == ["bea"]
    assert {call.args[1].voice for call in read.call_args_list} == {"ann"}
    assert store.index.reference("bea").transcript == "Alas. "
    assert len(list(cache.iterdir())) == 1 and not store.index.at_hand("ann", "happy")
    assert files(tmp_path / "voices") == ["bea", "bea/audio", "bea/voice.yaml"]
    with pytest.raises(VoiceNotFound, match="ann"):
        store.index.reference("ann")
    store.create(Place("ann"), wav(), "Hello there.")
    assert store.index.styles("ann") == []


def test_styles_have_a_bound_and_a_removed_one_makes_room(store: VoiceStore, tmp_path: Path) -> None:
    for number in range(MOST_STYLES):
        store.create(Place("ann", f"s{number}"), wav(), "Hello there.")
    with pytest.raises(StorageError, match=f"voice 'ann': {MOST_STYLES} are stored, which is the limit"):
        store.create(Place("ann", "more"), wav(), "Hello there.")
    store.create(Place("bea"), wav(), "Hello there.")
    assert store.create(Place("bea", "more"), wav(), "Hello there.").styles
    store.delete(Place("ann", "s0"))
    assert len(store.create(Place("ann", "more"), wav(), "Hello there.").styles) == MOST_STYLES


def test_changes_by_hand_are_seen_at_once_and_leftovers_swept(store: VoiceStore, tmp_path: Path) -> None:
    store.create(Place("ann", "happy"), wav(2.0), "I am glad.")
    styles = tmp_path / "voices" / "ann" / "styles"
    shutil.copytree(styles / "happy", styles / "glad")
    edit(styles / "glad" / "style.yaml", "name: happy", "name: glad")
    assert store.index.styles("ann") == ["glad", "happy"]
    assert [store.index.at_hand("ann", style) for style in ("happy", "glad", "sad")] == [True, True, False]
    shutil.rmtree(styles / "happy")
    assert store.index.styles("ann") == ["glad"]
    (tmp_path / "voices" / ".happy.0123abcd").mkdir()
    store.sweep()
    assert files(tmp_path / "voices")[0] == "ann"


def test_a_record_of_a_voice_holds_no_styles(store: VoiceStore, tmp_path: Path) -> None:
    store.create(Place("ann", "happy"), wav(2.0), "I am glad.")
    store.update("ann", "Annie")
    record = tmp_path / "voices" / "ann" / "voice.yaml"
    assert "styles" not in record.read_text() and "problem" not in record.read_text()
    record.write_text(record.read_text() + "problem: none\n")
    with pytest.raises(VoiceDamaged, match="unknown key problem"):
        store_in(tmp_path).index.voice("ann")

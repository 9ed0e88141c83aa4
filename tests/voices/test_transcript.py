"""Transcripts that a bundle can read only in part, through the store, which every way to add a voice
calls."""

from pathlib import Path

import pytest

from appliance.contract.tokens import Tokenizer, Vocabulary
from appliance.errors import InvalidReference
from appliance.text.spelling import Spelling
from appliance.voices.records import Place
from appliance.voices.store import VoiceStore
from appliance.voices.transcript import Reader
from tests.harness.daemons import reference_wav, store_in

ENGLISH = Vocabulary((" ", *"abcdefghijklmnopqrstuvwxyz.,!?'0123456789"))
HINDI = "पानी पीने का समय हो गया है"


def warned(store: VoiceStore, name: str, transcript: str) -> list[str]:
    """Warnings about the transcript's letters."""
    unheard = ("the transcript probably", "the transcript has no punctuation")
    found = store.create(Place(name), reference_wav(), transcript).warnings
    return [w for w in found if "transcript" in w and not w.startswith(unheard)]


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    store = store_in(tmp_path)
    store.index.reader = Reader(Spelling(ENGLISH), ("en",))
    return store


def test_letters_that_are_read_have_no_warning(store: VoiceStore) -> None:
    assert warned(store, "anna", "some call me nature, others mother") == []
    assert store.index.misread() == []


def test_a_transcript_of_another_script_is_refused_with_its_letters(store: VoiceStore) -> None:
    with pytest.raises(InvalidReference, match=r"transcript: 100% of its letters .*: प ा? ?न") as caught:
        store.create(Place("hi"), reference_wav(), HINDI)
    assert caught.value.field == "transcript" and store.index.names() == []
    with pytest.raises(InvalidReference, match="100%"):
        store.index.unstored(reference_wav(), HINDI)


def test_half_of_the_letters_may_be_unknown(store: VoiceStore) -> None:
    [warning] = warned(store, "half", "мама мыла раму and the window too")
    assert "м а ы" in warning and "44%" in warning
    with pytest.raises(InvalidReference, match="at most 50% are allowed"):
        store.create(Place("most"), reference_wav(), "мама мыла раму and so")


@pytest.mark.parametrize(
    ("tokenizer", "fate"), [("char", "reads them as spaces"), ("simple", "leaves them out")]
)
def test_a_tokenizer_decides_on_unknown_letters(store: VoiceStore, tokenizer: Tokenizer, fate: str) -> None:
    store.index.reader = Reader(Spelling(Vocabulary(ENGLISH.tokens, tokenizer)), ("en",))
    [warning] = warned(store, "half", "мама мыла раму and the window too")
    assert f"vocabulary, which {fate}: м а ы" in warning


def test_digits_are_to_be_written_in_words(store: VoiceStore) -> None:
    [warning] = warned(store, "count", "i have 25 apples and 3 pears at home")
    assert "digits (2 5 3)" in warning


def test_another_script_than_the_bundles_gets_a_warning_despite_its_letters(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.index.reader = Reader(Spelling(Vocabulary((*ENGLISH.tokens, *"अआइकखगनमतयपीसमहोरैा"))), ("en",))
    [warning] = warned(store, "hi", "पानी का समय")
    assert "another script than the bundle speaks (en)" in warning
    store.index.reader = Reader(Spelling(Vocabulary((*ENGLISH.tokens, *"अआइकखगनमतयपीसमहोरैा"))), ("en", "hi"))
    assert store.index.misread() == []


def test_a_bundles_languages_count_syllables(store: VoiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.voices.syllables.count_warnings", lambda *given: given[-1])
    assert store.create(Place("ann"), reference_wav(), "some call me nature.").warnings[-1] == "en"


def test_case_and_form_are_the_vocabularys(store: VoiceStore) -> None:
    assert warned(store, "loud", "Some Call Me NATURE.") == []
    assert store.index.reference("loud").transcript == "some call me nature. "
    assert store.index.voice("loud").transcript == "Some Call Me NATURE."


def test_a_swap_tells_which_stored_voices_the_other_bundle_misreads(store: VoiceStore) -> None:
    store.create(Place("anna"), reference_wav(), "some call me nature")
    store.index.reader = Reader(Spelling(Vocabulary((" ", *"мамылрау"))), ("ru",))
    [line] = store.index.misread()
    assert line.startswith("voice anna: transcript: 100% of its letters")

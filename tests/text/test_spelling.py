"""Letters reach a vocabulary in its own case and canonical form before any of them is dropped."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.contract.tokens import Vocabulary
from appliance.request import Handling
from appliance.text.normalise import normalise
from appliance.text.sayable import FrontEnd
from appliance.text.spelling import Spelling

SMALL = "abcdefghijklmnopqrstuvwxyz"
SIGNS = " .,!?'"
MARKS = "\u0300\u0301\u0302\u0303\u0306\u0308\u0309\u030a\u030c\u031b\u0323\u0326\u0327"
DEVANAGARI = "".join(map(chr, range(0x900, 0x970)))
NUKTA = "\u093c"
JAMO = "".join(map(chr, [*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]))


def vocabulary(letters: str) -> Vocabulary:
    return Vocabulary(tuple(dict.fromkeys(SIGNS + letters)))


def spoken(letters: str, text: str, handling: Handling = Handling.CHAT) -> str:
    return FrontEnd(vocabulary(letters)).speakable(text, handling).text


@pytest.mark.parametrize("handling", [Handling.CHAT, Handling.VERBATIM])
@pytest.mark.parametrize(("letters", "text", "expected"), [
    (SMALL + "äöüß", "Danke für den Abo, Max!", "danke für den abo, max!"),
    (SMALL, "Über École Straße", "uber ecole strasse"),
    (SMALL.upper(), "Danke, Straße é", "DANKE, STRASSE E"),
    (SMALL + SMALL.upper(), "Straße École", "Strasse Ecole"),
    (SMALL + SMALL.upper() + "é", "École Élan A", "école élan A"),
    ("абвгдежзийклмнопрстуфхцчшщъыьэюя", "Привет, Мир!", "привет, мир!"),
    (SMALL, "İstanbul", "istanbul"),
])  # fmt: skip
def test_words_take_the_vocabularys_case(letters: str, text: str, expected: str, handling: Handling) -> None:
    assert spoken(letters, text, handling) == expected


@pytest.mark.parametrize("text", [
    "sinteză și propozițiile", "cảm ơn bạn", "ệ ậ", "über café", "ɛ\u0303 ɔ\u0301",
])  # fmt: skip
def test_a_vocabulary_of_letters_and_marks_gets_marks(text: str) -> None:
    result = spoken(SMALL + "ɛɔ" + MARKS, text)
    assert unicodedata.normalize("NFC", result) == unicodedata.normalize("NFC", text)


@given(st.text(alphabet=SMALL + SMALL.upper() + "àáâãäåçèéêëìíîïñòóôõöùúûüýășțếệậẩơưčšžÀÉÜẾ ", max_size=40))
def test_any_accented_text_survives_in_either_form(text: str) -> None:
    whole = normalise(text)
    composed = "".join(c for c in map(chr, range(0xC0, 0x1F00)) if c.isalpha() and len(c.lower()) == 1)
    for letters in (SMALL + MARKS, SMALL + composed):
        fitted = Spelling(vocabulary(letters)).fitted(whole)
        assert set(fitted) <= set(SIGNS + letters)
        assert unicodedata.normalize("NFC", fitted).lower() == whole.lower()


@pytest.mark.parametrize(("letters", "text", "expected"), [
    (DEVANAGARI.replace(NUKTA, ""), "क" + NUKTA + "लम", "\u0958लम"),
    (DEVANAGARI.replace("\u0958", ""), "\u0958लम", "क" + NUKTA + "लम"),
    (DEVANAGARI.replace(NUKTA, "").replace("\u0958", ""), "\u0958लम", "कलम"),
    (DEVANAGARI + "\u200d", "क्\u200dष", "क्\u200dष"), (DEVANAGARI, "क्\u200dष", "क्ष"),
    *((SMALL + one, "ệ", one) for one in ("ê\u0323", "ẹ\u0302")), (SMALL + "\u0302", "ệ", "e\u0302"),
    ("".join(map(chr, range(0x620, 0x6CD))) + "\u200c", "می\u200cخواهم", "می\u200cخواهم"),
    ("".join(map(chr, range(0x620, 0x6CD))), "می\u200cخواهم", "میخواهم"),
    (JAMO, "한국", unicodedata.normalize("NFD", "한국")),
])  # fmt: skip
def test_letters_are_composed_as_in_the_vocabulary(letters: str, text: str, expected: str) -> None:
    assert spoken(letters, text) == expected


def test_a_dropped_letter_leaves_no_space_in_its_word_and_others_leave_one() -> None:
    result = FrontEnd(vocabulary(SMALL)).speakable("boжx aжжb a§b ab主播cd")
    assert result.text == "box ab a b ab cd"
    assert [(c.kind, c.before) for c in result.changes] == [
        ("unsayable", "ж"), ("unsayable", "жж"), ("unsayable", "§"), ("unsayable", "主播"),
    ]  # fmt: skip


def test_a_vocabularys_letters_determine_its_scripts() -> None:
    assert Spelling(vocabulary(SMALL)).scripts == {"LATIN"}
    assert Spelling(vocabulary(SMALL + DEVANAGARI + "жф")).scripts == {"LATIN", "DEVANAGARI"}
    assert Spelling(Vocabulary((*vocabulary(SMALL).tokens, *"一二三百"), "char")).scripts == {"LATIN", "CJK"}


@pytest.mark.parametrize(("text", "cleaned"), [
    ("Wait, what? That's fine.", "WAIT, WHAT? THAT'S FINE."),
    ("A well-known café; naïve, isn't it: “yes”", "A WELL KNOWN CAFE, NAIVE, ISN'T IT, YES"),
    ("“Hello,” she said; ‘no’", "HELLO, SHE SAID, 'NO'"),
    ("this—that", "THIS THAT"), ("Straße, Æsir,\tøre", "STRASSE, AESIR, ORE"),
])  # fmt: skip
def test_missing_letters_are_replaced_as_by_zipvoices_cleaners(text: str, cleaned: str) -> None:
    """`cleaned`: result of custom_english_cleaners of espnet_tts_frontend 0.0.4."""
    capitals = Vocabulary(tuple(" !',.?" + SMALL.upper()), "letters")
    assert Spelling(capitals).read(text) == cleaned
    assert FrontEnd(capitals, languages=("en",)).speakable(text).text == cleaned
    result = FrontEnd(capitals, languages=("en",)).speakable("ok 1 % \u0e01 ☃")
    assert result.text == "OK ONE PERCENT, SNOWMAN"
    assert [change.before for change in result.changes if change.kind == "unsayable"] == ["\u0e01"]

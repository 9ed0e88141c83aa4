"""Chat lines and their spoken forms, and the properties of any text."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import TextConfig
from appliance.contract import bundle
from appliance.contract.tokens import Vocabulary
from appliance.request import Handling, SpokenText
from appliance.text.chat.marks import PRIVATE
from appliance.text.chat.rewrite import MOST_CHARACTERS
from appliance.text.languages import language
from appliance.text.languages.en.numbers import english, english_ordinal, english_year
from appliance.text.languages.zh.numbers import chinese
from appliance.text.normalise import normalise
from appliance.text.sayable import FrontEnd
from appliance.text.tokens.chinese import pinyin
from appliance.text.tokens.tokenizers import says
from tests.harness.daemons import ROOT
from tests.harness.rows import rows

LINES = rows(__file__, "chat_lines.jsonl")
BOTH = ("en", "zh")
ENGLISH = Vocabulary((" ", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?!'-:\"()…"), "char")
DEMO = bundle.read(ROOT / "appliance/demo/bundle").vocabulary()
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?!'-:\"()…，。！？、：；"


@cache
def chinese_too() -> Vocabulary:
    """Vocabulary of letters, and of each syllable that pypinyin knows."""
    syllables = sorted({s for code in range(0x4E00, 0x9FA6) for s in pinyin(chr(code))})
    return Vocabulary((" ", *LETTERS, *syllables))


@cache
def front(language: str) -> FrontEnd:
    if language == "zh":
        return FrontEnd(chinese_too(), TextConfig(language="zh"), BOTH)
    return FrontEnd(ENGLISH, languages=BOTH)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["text"][:24])
def test_chat_lines_have_their_spoken_form(line: dict[str, str]) -> None:
    assert front(line["language"]).speakable(line["text"]).text == line["spoken"]


def unknown(text: str, vocabulary: Vocabulary) -> list[str]:
    return [character for character in text if character != " " and not says(vocabulary, character)]


@pytest.mark.parametrize("vocabulary", [ENGLISH, DEMO], ids=["letters", "demo"])
@pytest.mark.parametrize("line", LINES, ids=lambda line: line["text"][:24])
def test_no_spoken_character_is_unknown(line: dict[str, str], vocabulary: Vocabulary) -> None:
    spoken = FrontEnd(vocabulary, languages=BOTH).speakable(line["text"])
    assert unknown(spoken.text, vocabulary) == []
    han = [character for character in line["text"] if "\u4e00" <= character <= "\u9fff"]
    if any(unknown(character, vocabulary) for character in han):  # for example, 啊 is "a"
        assert any(change.kind in ("unsayable", "link", "mail") for change in spoken.changes)


ANY = st.text(
    alphabet=st.one_of(
        st.characters(max_codepoint=0x2FFF),
        st.sampled_from("0123456789.,:/-+$€%#@_*[]()<>😂🔥👍🏽\u200d哈好的2"),
    ),
    max_size=120,
)


@given(
    ANY,
    st.sampled_from((Handling.CHAT, Handling.VERBATIM)),
    st.dictionaries(ANY.filter(normalise), st.text(min_size=1, max_size=20).filter(normalise), max_size=5),
)
def test_any_text_becomes_speakable(text: str, handling: Handling, words: dict[str, str]) -> None:
    spoken = front("en").speakable(text, handling, words)
    assert unknown(spoken.text, ENGLISH) == []
    assert not spoken.text or any(character.isalnum() for character in spoken.text)
    assert spoken.pauses == ()
    assert all(len(side) <= MOST_CHARACTERS for c in spoken.changes for side in (c.before, c.after))
    assert not PRIVATE.search(repr(spoken))
    assert words or len(spoken.text) <= 40 * len(text) + 40


WORDS = ["hello", "there", "my", "friends", "welcome", "to", "our", "stream", "tonight"]


@given(st.lists(st.sampled_from(WORDS), min_size=1))
def test_prose_does_not_change(words: list[str]) -> None:
    text = " ".join(word for n, word in enumerate(words) if word not in words[max(n - 3, 0) : n]).capitalize()
    assert front("en").speakable(f"{text}.") == SpokenText(f"{text}.")


@pytest.mark.parametrize("text", [
    "1" * 2_000, "a" * 2_000, ":" * 2_000, "**a" * 600, "@a_" * 600, "1-" * 1_000, "😂" * 2_000, "<a" * 900,
])  # fmt: skip
def test_hostile_lines_have_spoken_texts_of_limited_length(text: str) -> None:
    assert len(front("en").speakable(text).text) < 20 * len(text)


def test_characters_outside_a_vocabulary_are_named() -> None:
    spoken = front("en").speakable("主播 nice café")
    assert spoken.text == "nice cafe"
    assert [(c.kind, c.before, c.after) for c in spoken.changes] == [
        ("unsayable", "主播", ""),
        ("letter", "é", "e"),
    ]
    assert front("en").speakable("主播").text == front("en").speakable("!!!").text == ""
    spoken = front("en").speakable("C3PO 50%", Handling.VERBATIM)
    assert spoken.text == "C three PO five zero percent"
    assert {c.kind for c in spoken.changes} == {"letter", "sign"}


def test_ambiguous_text_is_read_by_configuration() -> None:
    dropping = FrontEnd(ENGLISH, TextConfig(links="drop", emoji="drop", code="drop"), BOTH)
    line = "see https://a.example now 😂 :catJAM: `a b`, ```c\nd``` and\n~~~\ne\n~~~\n```f\ng\n\nh"
    assert dropping.speakable(line).text == "see now, and. h"
    assert FrontEnd(chinese_too(), languages=BOTH).speakable("666").text == "six six six"


@pytest.mark.parametrize(("number", "words", "ordinal", "han"), [
    (0, "zero", "zeroth", "零"), (12, "twelve", "twelfth", "十二"), (20, "twenty", "twentieth", "二十"),
    (101, "one hundred one", "one hundred first", "一百零一"),
    (10_010, "ten thousand ten", "ten thousand tenth", "一万零一十"),
    (100_020_003, "one hundred million twenty thousand three", "", "一亿零二万零三"),
])  # fmt: skip
def test_numbers_in_english_and_chinese(number: int, words: str, ordinal: str, han: str) -> None:
    assert (english(number), chinese(number)) == (words, han)
    assert not ordinal or english_ordinal(number) == ordinal
    assert language("de").number(f"-{number}", False).startswith("minus ")


def test_english_years() -> None:
    assert [english_year(y) for y in (1905, 2000, 2005, 2010, 1900, 99)] == [
        "nineteen oh five", "two thousand", "two thousand five", "twenty ten", "nineteen hundred",
        "ninety-nine",
    ]  # fmt: skip


def test_a_vocabulary_of_characters_speaks_its_characters() -> None:
    """Upstream's tokenizer would look the syllable of an ideograph up."""
    characters = Vocabulary((" ", *"abc你好"), "char")
    assert FrontEnd(characters).speakable("你好 abc", Handling.VERBATIM).text == "你好 abc"
    syllables = Vocabulary((" ", *"abc", "ni3", "hao3"), "char")
    assert FrontEnd(syllables).speakable("你好 abc", Handling.VERBATIM).text == "abc"

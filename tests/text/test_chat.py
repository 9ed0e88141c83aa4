"""Chat lines as they are to be spoken, and what holds for any text."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import TextConfig
from appliance.contract import bundle
from appliance.contract.tokens import Vocabulary
from appliance.request import Handling, Spoken
from appliance.text.chat.marks import PRIVATE
from appliance.text.chat.rewrite import MOST_CHARACTERS
from appliance.text.languages.en.numbers import english, english_ordinal, english_year
from appliance.text.languages.zh.numbers import chinese
from appliance.text.normalise import normalise
from appliance.text.sayable import FrontEnd
from appliance.text.tokens.chinese import pinyin
from appliance.text.tokens.tokenizers import says
from tests.harness.daemons import ROOT

LINES = [*map(json.loads, Path(__file__).with_name("chat_lines.jsonl").read_text("utf-8").splitlines())]
BOTH = ("en", "zh")
ENGLISH = Vocabulary((" ", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?!'-:\"()…"), "char")
DEMO = bundle.read(ROOT / "appliance/demo/bundle").vocabulary()
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?!'-:\"()…，。！？、：；"


@cache
def chinese_too() -> Vocabulary:
    """Letters, and each syllable that pypinyin knows."""
    syllables = sorted({s for code in range(0x4E00, 0x9FA6) for s in pinyin(chr(code))})
    return Vocabulary((" ", *LETTERS, *syllables))


@cache
def front(language: str) -> FrontEnd:
    if language == "zh":
        return FrontEnd(chinese_too(), TextConfig(language="zh"), BOTH)
    return FrontEnd(ENGLISH, languages=BOTH)


def test_no_line_is_there_twice_and_many_are_chinese() -> None:
    assert len({(line["language"], line["text"]) for line in LINES}) == 502
    assert sum(line["language"] == "zh" for line in LINES) == 212


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["text"][:24])
def test_a_chat_line_is_spoken_so(line: dict[str, str]) -> None:
    assert front(line["language"]).speakable(line["text"]).text == line["spoken"]


@pytest.mark.parametrize(("language", "text", "spoken"), [
    ("en", "RTX 4090, Xbox 360 x2", "R T X four thousand ninety, Xbox three hundred sixty times two"),
    ("en", "1.5 NZ$, £0817", "one New Zealand dollar and fifty cents, eight hundred seventeen pounds"),
    ("en", "5 min - 10 of us, 5-10m", "five minutes - ten of us, five to ten minutes"),
    ("en", "29:05 in the end, 2026-08/09", "twenty-nine to five in the end, August ninth, twenty twenty-six"),
    ("en", "5kg-10, 5%-10", "five kilograms-ten, five to ten percent"),
    ("en", "10,.74 but .74", "ten,zero point seven four but point seven four"),
    ("en", "1k-2m, 1k-2, v9.15a",
     "one thousand to two million, one thousand to two thousand, version nine point fifteen a"),
    ("zh", "约24/157，8/1513，12/2026，1/2/3",
     "约二十四比一百五十七，八比一千五百一十三，十二，二千零二十六，一，二，三"),
    ("zh", "更新v9.15a，v9.15a版", "更新版本九点十五a，九点十五a版"),
    ("zh", "1千～2 billion，1k-2，16w–333米", "一千到二 billion，一千到两千，十六万到三百三十三米"),
    ("zh", "他给了6471￥，还剩一半", "他给了六千四百七十一元，还剩一半"),
    ("zh", "涨了10万%", "涨了百分之十万"), ("zh", "直播2h 5m 10s", "直播两小时五分钟十秒"),
    ("en", "$20off today, $20.50off", "twenty dollars off today, twenty dollars and fifty cents off"),
    ("en", "1920x1080 5*3 h4x0r",
     "nineteen twenty by ten eighty five times three h four x zero r"),
    ("en", "50%off 100hp", "fifty percent off one hundred hp"),
    ("en", "20℃ 3½ x² 5³", "twenty degrees celsius three and one half x squared five cubed"),
    ("en", "nice (╯°□°)╯︵ ┻━┻ lol ( ͡° ͜ʖ ͡°)", "nice lol"),
    ("en", "(35°) in (Köln)", "(thirty-five degrees) in (Koln)"),
    ("en", "go to twitch.tv. Bye (https://b.tv/x), https://a.com/y?z=1!", "go to link. Bye (link), link!"),
    ("en", "10:00-12:00, 3:2, 1:05:09", "ten o'clock to twelve o'clock, three to two, one oh five oh nine"),
    ("en", "tom &amp; jerry &lt;3", "tom and jerry heart"),
    ("en", "版本2.0 到了100米", "two point zero one hundred"),
    ("zh", "10:00-12:00直播", "十点到十二点直播"), ("zh", "20℃，5²", "二十摄氏度，五平方"),
    ("zh", "110℃，10000°C，1㎡，1m8", "一百一十摄氏度，一万摄氏度，一平方米，一米八"),
    ("zh", "110℉，1m3，1m25", "一百一十华氏度，一立方米，一米二五"),
])  # fmt: skip
def test_signs_that_were_once_read_wrong(language: str, text: str, spoken: str) -> None:
    assert front(language).speakable(text).text == spoken


def unknown(text: str, vocabulary: Vocabulary) -> list[str]:
    return [character for character in text if character != " " and not says(vocabulary, character)]


@pytest.mark.parametrize("vocabulary", [ENGLISH, DEMO], ids=["letters", "demo"])
@pytest.mark.parametrize("line", LINES, ids=lambda line: line["text"][:24])
def test_english_reads_nothing_as_a_space(line: dict[str, str], vocabulary: Vocabulary) -> None:
    said = FrontEnd(vocabulary, languages=BOTH).speakable(line["text"])
    assert unknown(said.text, vocabulary) == []
    han = [character for character in line["text"] if "\u4e00" <= character <= "\u9fff"]
    if any(unknown(character, vocabulary) for character in han):  # 啊 is "a"
        assert any(change.kind in ("unsayable", "link", "mail") for change in said.changes)


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
def test_any_text_becomes_one_that_can_be_said(text: str, handling: Handling, words: dict[str, str]) -> None:
    said = front("en").speakable(text, handling, words)
    assert unknown(said.text, ENGLISH) == []
    assert not said.text or any(character.isalnum() for character in said.text)
    assert said.pauses == ()
    assert all(len(side) <= MOST_CHARACTERS for c in said.changes for side in (c.before, c.after))
    assert not PRIVATE.search(repr(said))
    assert words or len(said.text) <= 40 * len(text) + 40


WORDS = ["hello", "there", "my", "friends", "welcome", "to", "our", "stream", "tonight"]


@given(st.lists(st.sampled_from(WORDS), min_size=1))
def test_prose_is_left_alone(words: list[str]) -> None:
    text = " ".join(word for n, word in enumerate(words) if word not in words[max(n - 3, 0) : n]).capitalize()
    assert front("en").speakable(f"{text}.") == Spoken(f"{text}.")


@pytest.mark.parametrize("text", [
    "1" * 2_000, "a" * 2_000, ":" * 2_000, "**a" * 600, "@a_" * 600, "1-" * 1_000, "😂" * 2_000, "<a" * 900,
])  # fmt: skip
def test_hostile_lines_are_bounded(text: str) -> None:
    assert len(front("en").speakable(text).text) < 20 * len(text)


def test_what_a_vocabulary_lacks_is_named() -> None:
    said = front("en").speakable("主播 nice café")
    assert said.text == "nice cafe"
    assert [(c.kind, c.before, c.after) for c in said.changes] == [
        ("unsayable", "主播", ""),
        ("letter", "é", "e"),
    ]
    assert front("en").speakable("主播").text == front("en").speakable("!!!").text == ""
    said = front("en").speakable("C3PO 50%", Handling.VERBATIM)
    assert said.text == "C three PO five zero percent"
    assert {c.kind for c in said.changes} == {"letter", "sign"}


def test_what_has_no_one_reading_is_configured() -> None:
    dropping = FrontEnd(ENGLISH, TextConfig(links="drop", emoji="drop"), BOTH)
    assert dropping.speakable("see https://a.example now 😂 :catJAM:").text == "see now"
    assert FrontEnd(chinese_too(), languages=BOTH).speakable("666").text == "six six six"


@pytest.mark.parametrize(("number", "words", "ordinal", "han"), [
    (0, "zero", "zeroth", "零"), (12, "twelve", "twelfth", "十二"), (20, "twenty", "twentieth", "二十"),
    (101, "one hundred one", "one hundred first", "一百零一"),
    (10_010, "ten thousand ten", "ten thousand tenth", "一万零一十"),
    (100_020_003, "one hundred million twenty thousand three", "", "一亿零二万零三"),
])  # fmt: skip
def test_numbers(number: int, words: str, ordinal: str, han: str) -> None:
    assert (english(number), chinese(number)) == (words, han)
    assert not ordinal or english_ordinal(number) == ordinal
    assert english(-number or -1).startswith("minus")


def test_years() -> None:
    assert [english_year(y) for y in (1905, 2000, 2005, 2010, 1900, 99)] == [
        "nineteen oh five", "two thousand", "two thousand five", "twenty ten", "nineteen hundred",
        "ninety-nine",
    ]  # fmt: skip


def test_a_vocabulary_of_characters_says_those_that_it_has() -> None:
    """Upstream's tokenizer would look for the syllable of an ideograph."""
    characters = Vocabulary((" ", *"abc你好"), "char")
    assert FrontEnd(characters).speakable("你好 abc", Handling.VERBATIM).text == "你好 abc"
    syllables = Vocabulary((" ", *"abc", "ni3", "hao3"), "char")
    assert FrontEnd(syllables).speakable("你好 abc", Handling.VERBATIM).text == "abc"

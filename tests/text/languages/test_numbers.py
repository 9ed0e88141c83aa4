"""Numbers that must differ, Japanese counters, Hindi halves and quarters: tables written by hand."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from appliance.text.languages import LANGUAGES, language
from appliance.text.languages.hindi import clock, decimals, ordinal
from appliance.text.languages.japanese import counted
from tests.text.languages.test_lines import ROWS, front

pytestmark = pytest.mark.once

COUNTED = {
    "本": "いっぽん にほん さんぼん よんほん ごほん ろっぽん ななほん はっぽん きゅうほん じゅっぽん",
    "分": "いっぷん にふん さんぷん よんぷん ごふん ろっぷん ななふん はっぷん きゅうふん じゅっぷん",
    "回": "いっかい にかい さんかい よんかい ごかい ろっかい ななかい はっかい きゅうかい じゅっかい",
    "人": "ひとり ふたり さんにん よにん ごにん ろくにん ななにん はちにん きゅうにん じゅうにん",
    "時": "いちじ にじ さんじ よじ ごじ ろくじ しちじ はちじ くじ じゅうじ",
    "月": "いちがつ にがつ さんがつ しがつ ごがつ ろくがつ しちがつ はちがつ くがつ じゅうがつ",
    "日": "いちにち ふつか みっか よっか いつか むいか なのか ようか ここのか とおか",
    "歳": "いっさい にさい さんさい よんさい ごさい ろくさい ななさい はっさい きゅうさい じゅっさい",
    "円": "いちえん にえん さんえん よえん ごえん ろくえん ななえん はちえん きゅうえん じゅうえん",
}


@pytest.mark.parametrize("code", [code for code in LANGUAGES if code not in ("en", "zh")])
def test_two_numbers_never_have_the_same_words(code: str) -> None:
    chance = random.Random(1)
    numbers = {*range(2_200), *(chance.randrange(10**size) for size in range(4, 13) for _ in range(60))}
    said = {language(code).number(str(number), False): number for number in numbers}
    assert len(said) == len(numbers)
    assert not any(c.isdigit() for words in said for c in words)


@pytest.mark.parametrize("code", sorted({code for code, *_ in ROWS}))
def test_a_line_takes_about_as_long_as_an_english_one(code: str) -> None:
    english = ["At 7:30 pm on 3/4/2025 we paid $1,250.50 for 3 kg, 20% off, in the 21st century."]
    lines = [text for of, text, _ in ROWS if of == code]
    # 0.4 to 0.9 on a quiet machine; in turns, so that a busy one slows both.
    assert min(took(code, lines) / took("en", english) for _ in range(5)) < 3


def took(code: str, lines: Sequence[str]) -> float:
    """Seconds of the processor for one line."""
    start = time.process_time()
    for text in lines:
        front(code).speakable(text)
    return (time.process_time() - start) / len(lines)


@pytest.mark.parametrize(("number", "counter", "words"), [
    *((n, counter, one) for counter, words in COUNTED.items() for n, one in enumerate(words.split(), 1)),
    (14, "人", "じゅうよにん"), (14, "分", "じゅうよんぷん"), (24, "日", "にじゅうよっか"),
    (100, "件", "ひゃっけん"), (600, "個", "ろっぴゃっこ"), (1_000, "本", "せんぼん"), (3, "発", "さんぱつ"),
    (10_000_000, "円", "いっせんまんえん"), (8 * 10**12, "円", "はっちょうえん"),
    (29, "日", "にじゅうくにち"), (0, "時", "れいじ"),
])  # fmt: skip
def test_a_counter_changes_with_its_number(number: int, counter: str, words: str) -> None:
    assert counted(number, counter) == words


def test_hindi_has_words_for_halves_and_quarters() -> None:
    times = ((1, 30), (2, 30), (7, 30), (8, 15), (12, 45), (10, 20), (9, 0))
    assert [clock(hour, minute, True) for hour, minute in times] == [
        *("डेढ़ बजे", "ढाई बजे", "साढ़े सात बजे", "सवा आठ बजे", "पौने एक बजे"),
        *("दस बजकर बीस मिनट", "नौ बजे"),
    ]
    assert [decimals("1", "5"), decimals("3", "5"), decimals("0", "5")] == [
        *("डेढ़", "साढ़े तीन", "शून्य दशमलव पाँच")
    ]


def test_hindi_ordinals_agree() -> None:
    assert [ordinal(1), ordinal(2, "ी"), ordinal(4, "े"), ordinal(6)] == ["पहला", "दूसरी", "चौथे", "छठा"]
    assert [ordinal(5), ordinal(5, "ी"), ordinal(10, "े")] == ["पाँचवाँ", "पाँचवीं", "दसवें"]

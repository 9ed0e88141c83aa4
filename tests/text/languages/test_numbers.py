"""Numbers that must differ, Japanese counters, Arabic, Russian and Hindi words: tables written by hand."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from appliance.text.languages import LANGUAGES, ar, language, speech
from appliance.text.languages.ru import numbers as russian
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
    assert speech("ja").count(number, counter) == words


ARABIC = {
    **{0: "صفر", 1: "واحد", 2: "اثنان", 3: "ثلاثة", 8: "ثمانية", 10: "عشرة", 11: "أحد عشر", 12: "اثنا عشر"},
    **{13: "ثلاثة عشر", 19: "تسعة عشر", 20: "عشرون", 21: "واحد وعشرون", 45: "خمسة وأربعون"},
    **{99: "تسعة وتسعون", 100: "مئة", 101: "مئة وواحد", 115: "مئة وخمسة عشر", 200: "مئتان", 300: "ثلاثمئة"},
    **{342: "ثلاثمئة واثنان وأربعون", 1_000: "ألف", 1_001: "ألف وواحد", 2_000: "ألفان"},
    **{2_026: "ألفان وستة وعشرون", 3_000: "ثلاثة آلاف", 10_000: "عشرة آلاف", 11_000: "أحد عشر ألف"},
    **{103_000: "مئة وثلاثة آلاف", 200_000: "مئتا ألف", 1_000_000: "مليون", 2_000_000: "مليونان"},
    **{5_000_000: "خمسة ملايين", 1_234_567: "مليون ومئتان وأربعة وثلاثون ألف وخمسمئة وسبعة وستون"},
    **{4_000_000_000: "أربعة مليارات"},
}
ARABIC_COUNTED = {
    **{(3, "m"): "ثلاثة", (3, "f"): "ثلاث", (8, "f"): "ثماني", (10, "f"): "عشر", (11, "f"): "إحدى عشرة"},
    **{(12, "f"): "اثنتا عشرة", (13, "f"): "ثلاث عشرة", (28, "f"): "ثمان وعشرون", (105, "f"): "مئة وخمس"},
    **{(200, "m"): "مئتا", (2_000, "f"): "ألفا", (2_300, "m"): "ألفان وثلاثمئة"},
}
ARABIC_ORDINALS = {
    **{(1, ""): "الأول", (1, "f"): "الأولى", (2, "f"): "الثانية", (6, ""): "السادس", (10, "f"): "العاشرة"},
    **{(11, ""): "الحادي عشر", (11, "f"): "الحادية عشرة", (12, "f"): "الثانية عشرة"},
    **{(19, ""): "التاسع عشر", (20, ""): "العشرون", (21, "f"): "الحادية والعشرون"},
    **{(35, ""): "الخامس والثلاثون", (100, ""): "المئة"},
}
ARABIC_OBLIQUE = {
    **{"عشرون ريال": "عشرين ريال", "ألفان وستة وعشرون": "ألفين وستة وعشرين", "مئتا شخص": "مئتي شخص"},
    **{"اثنا عشر": "اثني عشر", "دولاران": "دولارين", "مليون وثلاثة": "مليون وثلاثة"},
    **{"ثمان وعشرون دقيقة وعشر ثوان": "ثمان وعشرين دقيقة وعشر ثوان"},
}
"""Twos and tens, and what they are after a preposition."""
ARABIC_TIMES = {
    **{(1, 0): "الواحدة", (0, 30): "الثانية عشرة والنصف", (7, 1): "السابعة ودقيقة"},
    **{(13, 10): "الثالثة عشرة وعشر دقائق", (21, 45): "الحادية والعشرون وخمس وأربعون دقيقة"},
}
RUSSIAN = {
    **{0: "ноль", 1: "один", 2: "два", 5: "пять", 11: "одиннадцать", 14: "четырнадцать"},
    **{19: "девятнадцать", 20: "двадцать", 21: "двадцать один", 40: "сорок", 58: "пятьдесят восемь"},
    **{90: "девяносто", 100: "сто", 111: "сто одиннадцать", 200: "двести", 342: "триста сорок два"},
    **{500: "пятьсот", 999: "девятьсот девяносто девять", 1_000: "одна тысяча", 2_000: "две тысячи"},
    **{5_001: "пять тысяч один", 11_000: "одиннадцать тысяч", 22_022: "двадцать две тысячи двадцать два"},
    **{100_000: "сто тысяч", 1_000_000: "один миллион", 2_300_000: "два миллиона триста тысяч"},
    **{15_000_007: "пятнадцать миллионов семь", 4_000_000_000: "четыре миллиарда"},
}
RUSSIAN_OF = {
    **{1: "одного", 2: "двух", 8: "восьми", 13: "тринадцати", 40: "сорока", 54: "пятидесяти четырёх"},
    **{80: "восьмидесяти", 90: "девяноста", 100: "ста", 250: "двухсот пятидесяти", 800: "восьмисот"},
    **{1_000: "одной тысячи", 3_300: "трёх тысяч трёхсот", 5_000_000: "пяти миллионов"},
}
RUSSIAN_ORDINALS = [
    *((1, "ый", "первый"), (2, "ый", "второй"), (3, "ый", "третий"), (3, "ая", "третья")),
    *((3, "ого", "третьего"), (4, "ое", "четвёртое"), (7, "ом", "седьмом"), (12, "ую", "двенадцатую")),
    *((20, "ый", "двадцатый"), (40, "ый", "сороковой"), (56, "ого", "пятьдесят шестого")),
    *((70, "ые", "семидесятые"), (90, "ых", "девяностых"), (100, "ый", "сотый"), (300, "ый", "трёхсотый")),
    *((1999, "ого", "тысяча девятьсот девяносто девятого"), (2000, "ый", "двухтысячный")),
    *((2026, "ом", "две тысячи двадцать шестом"),),
]
RUSSIAN_GENDERS = [
    *((1, "m", "один"), (1, "f", "одна"), (1, "n", "одно"), (1, "a", "одну"), (2, "f", "две")),
    *((21_002, "m", "двадцать одна тысяча два"), (2_000_001, "f", "два миллиона одна")),
]
"""Of one and two, which thousands keep to themselves."""
RUSSIAN_DECIMALS = [
    *(("3", "5", "три целых пять десятых"), ("1", "1", "одна целая одна десятая"), ("2", "0", "два ноль")),
    *(("21", "02", "двадцать одна целая две сотых"), ("3", "1415", "три запятая один четыре один пять")),
    *(("0", "125", "ноль целых сто двадцать пять тысячных"),),
]
AR, HI = speech("ar"), speech("hi")
HINDI: list[tuple[Any, ...]] = [
    (HI.clock, 1, 30, True, "डेढ़ बजे"), (HI.clock, 2, 30, True, "ढाई बजे"),
    (HI.clock, 7, 30, True, "साढ़े सात बजे"), (HI.clock, 8, 15, True, "सवा आठ बजे"),
    (HI.clock, 12, 45, True, "पौने एक बजे"), (HI.clock, 10, 20, True, "दस बजकर बीस मिनट"),
    (HI.clock, 9, 0, True, "नौ बजे"),
    (HI.decimals, "1", "5", "डेढ़"), (HI.decimals, "3", "5", "साढ़े तीन"),
    (HI.decimals, "0", "5", "शून्य दशमलव पाँच"),
    (HI.ordinal, 1, "पहला"), (HI.ordinal, 2, "ी", "दूसरी"), (HI.ordinal, 4, "े", "चौथे"),
    (HI.ordinal, 6, "छठा"), (HI.ordinal, 5, "पाँचवाँ"), (HI.ordinal, 5, "ी", "पाँचवीं"),
    (HI.ordinal, 10, "े", "दसवें"),
]  # fmt: skip


@pytest.mark.parametrize(("says", "given", "words"), [
    *((AR.cardinal, (number,), words) for number, words in ARABIC.items()),
    *((AR.cardinal, counted, words) for counted, words in ARABIC_COUNTED.items()),
    *((AR.ordinal, ordered, words) for ordered, words in ARABIC_ORDINALS.items()),
    *((ar.oblique, (words,), after) for words, after in ARABIC_OBLIQUE.items()),
    *((AR.clock, (*time, False), words) for time, words in ARABIC_TIMES.items()),
    *((russian.cardinal, (number,), words) for number, words in RUSSIAN.items()),
    *((lambda n: russian.genitive(russian.cardinal(n)), (n,), words) for n, words in RUSSIAN_OF.items()),
    *((russian.ordinal, given, words) for *given, words in RUSSIAN_ORDINALS),
    *((russian.cardinal, given, words) for *given, words in RUSSIAN_GENDERS),
    *((russian.decimals, given, words) for *given, words in RUSSIAN_DECIMALS),
    *((says, given, words) for says, *given, words in HINDI),
])  # fmt: skip
def test_a_number_in_words(says: Callable[..., str], given: Sequence[Any], words: str) -> None:
    assert says(*given) == words

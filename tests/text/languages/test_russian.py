"""Russian numbers, ordinals and their cases, against a table written by hand."""

from __future__ import annotations

import pytest

from appliance.text.languages.russian import cardinal, decimals, genitive, ordinal

CARDINALS = {
    **{0: "ноль", 1: "один", 2: "два", 5: "пять", 11: "одиннадцать", 14: "четырнадцать"},
    **{19: "девятнадцать", 20: "двадцать", 21: "двадцать один", 40: "сорок", 58: "пятьдесят восемь"},
    **{90: "девяносто", 100: "сто", 111: "сто одиннадцать", 200: "двести", 342: "триста сорок два"},
    **{500: "пятьсот", 999: "девятьсот девяносто девять", 1_000: "одна тысяча", 2_000: "две тысячи"},
    **{5_001: "пять тысяч один", 11_000: "одиннадцать тысяч", 22_022: "двадцать две тысячи двадцать два"},
    **{100_000: "сто тысяч", 1_000_000: "один миллион", 2_300_000: "два миллиона триста тысяч"},
    **{15_000_007: "пятнадцать миллионов семь", 4_000_000_000: "четыре миллиарда"},
}
GENITIVES = {
    **{1: "одного", 2: "двух", 8: "восьми", 13: "тринадцати", 40: "сорока", 54: "пятидесяти четырёх"},
    **{80: "восьмидесяти", 90: "девяноста", 100: "ста", 250: "двухсот пятидесяти", 800: "восьмисот"},
    **{1_000: "одной тысячи", 3_300: "трёх тысяч трёхсот", 5_000_000: "пяти миллионов"},
}
ORDINALS = [
    *((1, "ый", "первый"), (2, "ый", "второй"), (3, "ый", "третий"), (3, "ая", "третья")),
    *((3, "ого", "третьего"), (4, "ое", "четвёртое"), (7, "ом", "седьмом"), (12, "ую", "двенадцатую")),
    *((20, "ый", "двадцатый"), (40, "ый", "сороковой"), (56, "ого", "пятьдесят шестого")),
    *((70, "ые", "семидесятые"), (90, "ых", "девяностых"), (100, "ый", "сотый"), (300, "ый", "трёхсотый")),
    *((1999, "ого", "тысяча девятьсот девяносто девятого"), (2000, "ый", "двухтысячный")),
    *((2026, "ом", "две тысячи двадцать шестом"),),
]


@pytest.mark.parametrize(("number", "words"), CARDINALS.items())
def test_a_number_in_words(number: int, words: str) -> None:
    assert cardinal(number) == words


@pytest.mark.parametrize(("number", "words"), GENITIVES.items())
def test_a_number_in_the_genitive(number: int, words: str) -> None:
    assert genitive(cardinal(number)) == words


@pytest.mark.parametrize(("number", "ending", "words"), ORDINALS)
def test_an_ordinal_ends_as_asked(number: int, ending: str, words: str) -> None:
    assert ordinal(number, ending) == words


def test_one_and_two_have_a_gender_which_thousands_keep_to_themselves() -> None:
    assert [cardinal(1, gender) for gender in "mfna"] == ["один", "одна", "одно", "одну"]
    assert cardinal(2, "f") == "две"
    assert cardinal(21_002, "m") == "двадцать одна тысяча два"
    assert cardinal(2_000_001, "f") == "два миллиона одна"


@pytest.mark.parametrize(("whole", "part", "words"), [
    ("3", "5", "три целых пять десятых"), ("1", "1", "одна целая одна десятая"),
    ("21", "02", "двадцать одна целая две сотых"),
    ("0", "125", "ноль целых сто двадцать пять тысячных"),
    ("2", "0", "два ноль"),
    ("3", "1415", "три запятая один четыре один пять"),
])  # fmt: skip
def test_decimals_are_fractions_up_to_thousandths(whole: str, part: str, words: str) -> None:
    assert decimals(whole, part) == words

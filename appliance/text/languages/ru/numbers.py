"""Russian numbers in words: cardinals by gender and case, ordinals, decimals."""

from __future__ import annotations

import re
from pathlib import Path

from appliance.text.languages.numerals import Numerals
from appliance.text.languages.words import own

_NUMERALS = Numerals(own(Path(__file__).with_name("words.tsv")).numerals, lambda count: form(count))
_OF = str.split(
    "ноль ноля один одного одно одного одна одной одну одной два двух две двух три трёх четыре четырёх "
    "восемь восьми сорок сорока девяносто девяноста сто ста двести двухсот триста трёхсот "
    "четыреста четырёхсот тысяча тысячи тысячи тысяч миллион миллиона миллиона миллионов "
    "миллиард миллиарда миллиарда миллиардов"
)
_GENITIVES = dict(zip(_OF[::2], _OF[1::2], strict=True))
_ORDINALS = {n: _NUMERALS.say("cardinal", n).removesuffix("ь") for n in (*range(21), 30)} | dict(
    zip(
        (0, 1, 2, 3, 4, 7, 8, 40, 90),
        str.split("нулев перв втор трет четвёрт седьм восьм сороков девяност"),
        strict=True,
    )
)
_STRESSED = (0, 2, 6, 7, 8, 40)
HARD = str.split("ый ая ое ого ому ым ом ую ой ые ых ыми")
_SOFT = str.split("ий ья ье ьего ьему ьим ьем ью ьей ьи ьих ьими")
_OBLIQUE = {
    "м": {"одного": "одному", "двух": "двум", "трёх": "трём", "четырёх": "четырём"},
    "и": {"одного": "одним", "одной": "одной", "двух": "двумя", "трёх": "тремя", "четырёх": "четырьмя"},
}
"""Last letter of the noun → words of the dative or instrumental, by the genitive."""


def form(number: str) -> int:
    """Index of the noun's form: рубль 0, рубля 1, рублей 2. A decimal has form 1."""
    if "." in number:
        return 1
    ones = 0 if int(number) % 100 in (11, 12, 13, 14) else int(number) % 10
    return 0 if ones == 1 else 1 if ones in (2, 3, 4) else 2


def cardinal(number: int, gender: str = "") -> str:
    """Words of a number. `gender` is "m", "f", "n", or "a" for the feminine accusative: одну."""
    return _NUMERALS.say("cardinal", number, gender)


def genitive(words: str) -> str:
    return " ".join(map(_word_of, words.split()))


def _word_of(word: str) -> str:
    if word in _GENITIVES:
        return _GENITIVES[word]
    if hundreds_or_tens := re.fullmatch("(.+ь)(десят|сот)", word):
        return f"{_word_of(hundreds_or_tens[1])}{hundreds_or_tens[2]}{'и' * (hundreds_or_tens[2] == 'десят')}"
    return re.sub("ая$", "ой", re.sub("ь$", "и", word))


def _stem(last: int) -> str:
    if last in _ORDINALS:
        return _ORDINALS[last]
    if last < 100:
        return f"{genitive(cardinal(last // 10))}десят"
    size, name = next(
        pair for pair in ((10**6, "миллионн"), (1_000, "тысячн"), (100, "сот")) if last >= pair[0]
    )
    count = last // size
    return (genitive(cardinal(count)).replace(" ", "") if count > 1 else "") + name


def ordinal(number: int, ending: str = "") -> str:
    """Words of an ordinal, with an ending in HARD."""
    ending = ending if ending in HARD else "ый"
    last = number % 100 if number % 10 == 0 or number % 100 < 20 else number % 10
    last = last or number % 1_000 or number % 10**6 or number
    head = cardinal(number - last) if number > last else ""
    if last == 3:
        ending = _SOFT[HARD.index(ending)]
    elif last in _STRESSED and ending == "ый":
        ending = "ой"
    return f"{head} {_stem(last)}{ending}".strip().removeprefix("одна ")


def decimals(whole: str, part: str) -> str:
    """Words of a decimal: up to thousandths as a fraction, longer ones digit by digit."""
    if len(part) > 3 or not int(part):
        mark = " запятая" if int(part) else ""
        return f"{cardinal(int(whole))}{mark} {' '.join(cardinal(int(digit)) for digit in part)}"
    of_whole, of_part = ("ая" if form(n) == 0 else "ых" for n in (whole, part))
    place = ("десят", "сот", "тысячн")[len(part) - 1]
    return f"{cardinal(int(whole), 'f')} цел{of_whole} {cardinal(int(part), 'f')} {place}{of_part}"


def oblique(words: str, ending: str) -> str:
    table = _OBLIQUE[ending]
    forms = (table.get(word, re.sub("и$", "ью", word) if ending == "и" else word) for word in words.split())
    return " ".join(forms).replace("восьмью", "восемью")


def moment(hour: str, minute: str) -> str:
    """Words of a time of day, in the genitive."""
    zero = "ноля " if 0 < int(minute) < 10 else ""
    minutes = f" {zero}{genitive(cardinal(int(minute)))}" if int(minute) else ""
    return genitive(cardinal(int(hour))) + minutes

"""Russian numbers in words: cardinals by gender and case, ordinals, decimals."""

from __future__ import annotations

import re

_SMALL = str.split(
    "ноль один два три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать "
    "четырнадцать пятнадцать шестнадцать семнадцать восемнадцать девятнадцать"
)
_TENS = str.split("_ _ двадцать тридцать сорок пятьдесят шестьдесят семьдесят восемьдесят девяносто")
_HUNDREDS = str.split("_ сто двести триста четыреста пятьсот шестьсот семьсот восемьсот девятьсот")
_SCALES = (
    (10**9, "m", ("миллиард", "миллиарда", "миллиардов")),
    (10**6, "m", ("миллион", "миллиона", "миллионов")),
    (1_000, "f", ("тысяча", "тысячи", "тысяч")),
)
_OF_GENDER = {
    ("один", "f"): "одна",
    ("один", "n"): "одно",
    ("один", "a"): "одну",
    ("два", "f"): "две",
    ("два", "a"): "две",
}
_OF = str.split(
    "ноль ноля один одного одно одного одна одной одну одной два двух две двух три трёх четыре четырёх "
    "восемь восьми сорок сорока девяносто девяноста сто ста двести двухсот триста трёхсот "
    "четыреста четырёхсот тысяча тысячи тысячи тысяч"
)
_GENITIVES = dict(zip(_OF[::2], _OF[1::2], strict=True)) | {
    many[form]: many[form + 1] for _, _, many in _SCALES[:2] for form in (0, 1)
}
_ORDINALS = {
    number: re.sub("ь$", "", word)
    for number, word in [*enumerate(_SMALL), *((10 * n, _TENS[n]) for n in (2, 3))]
} | dict(
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
"""Dative and instrumental, by the last letter of the noun, from the genitive."""


def form(number: str) -> int:
    """рубль 0, рубля 1, рублей 2; a fraction is followed by 1."""
    if "." in number:
        return 1
    ones = 0 if int(number) % 100 in (11, 12, 13, 14) else int(number) % 10
    return 0 if ones == 1 else 1 if ones in (2, 3, 4) else 2


def cardinal(number: int, gender: str = "") -> str:
    """Gender "m", "f", "n", or "a" for the feminine accusative: одну."""
    for size, of_size, names in _SCALES:
        if number >= size:
            count, rest = divmod(number, size)
            words = f"{cardinal(count, of_size)} {names[form(str(count))]}"
            return words + (f" {cardinal(rest, gender)}" if rest else "")
    for size, table in ((100, _HUNDREDS), (10, _TENS)):
        if number >= max(size, 20):
            count, rest = divmod(number, size)
            return table[count] + (f" {cardinal(rest, gender)}" if rest else "")
    return _OF_GENDER.get((_SMALL[number], gender), _SMALL[number])


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
        return f"{genitive(_SMALL[last // 10])}десят"
    size, name = next(
        pair for pair in ((10**6, "миллионн"), (1_000, "тысячн"), (100, "сот")) if last >= pair[0]
    )
    count = last // size
    return (genitive(cardinal(count)).replace(" ", "") if count > 1 else "") + name


def ordinal(number: int, ending: str = "") -> str:
    """`ending` as in HARD."""
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
    """Up to thousandths as a fraction."""
    if len(part) > 3 or not int(part):
        mark = " запятая" if int(part) else ""
        return f"{cardinal(int(whole))}{mark} {' '.join(cardinal(int(digit)) for digit in part)}"
    of_whole, of_part = ("ая" if form(n) == 0 else "ых" for n in (whole, part))
    place = ("десят", "сот", "тысячн")[len(part) - 1]
    return f"{cardinal(int(whole), 'f')} цел{of_whole} {cardinal(int(part), 'f')} {place}{of_part}"


def oblique(words: str, ending: str) -> str:
    table = _OBLIQUE[ending]
    said = (table.get(word, re.sub("и$", "ью", word) if ending == "и" else word) for word in words.split())
    return " ".join(said).replace("восьмью", "восемью")


def moment(hour: str, minute: str) -> str:
    """Time of day in the genitive."""
    zero = "ноля " if 0 < int(minute) < 10 else ""
    minutes = f" {zero}{genitive(cardinal(int(minute)))}" if int(minute) else ""
    return genitive(cardinal(int(hour))) + minutes

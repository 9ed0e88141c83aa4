"""Chat lines of each language with their spoken texts, each written or read by its grammar."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from appliance.contract.tokens import Vocabulary
from appliance.text.languages import LANGUAGES, language
from appliance.text.sayable import FrontEnd
from appliance.text.scripts import LETTERS

pytestmark = pytest.mark.once

HERE = Path(__file__).parent
LINES = {path.stem.removeprefix("lines_"): path for path in sorted(HERE.glob("lines_*.jsonl"))}
ROWS = [
    (code, row["text"], row["spoken"])
    for code, path in LINES.items()
    for row in map(json.loads, path.read_text("utf-8").splitlines())
]


def characters(ranges: str) -> list[str]:
    """Of ranges in a pattern's brackets."""
    text = ranges.encode().decode("unicode_escape") if "\\u" in ranges else ranges
    found: list[str] = []
    for place, character in enumerate(text):
        if character == "-" and 0 < place < len(text) - 1:
            found += map(chr, range(ord(text[place - 1]) + 1, ord(text[place + 1])))
        else:
            found.append(character)
    return found


@cache
def front(code: str) -> FrontEnd:
    letters = [c for script in language(code).scripts for c in characters(LETTERS[script])]
    latin = characters(LETTERS["LATIN"])
    signs = [*map(chr, range(33, 127)), *"¿¡–—…«»“”’、。！？，・ー،؛؟।०१२३४५६७८९"]
    return FrontEnd(
        Vocabulary(tuple(dict.fromkeys([" ", *signs, *latin, *letters])), "char"), languages=(code,)
    )


def test_every_language_that_is_registered_has_its_lines() -> None:
    assert set(LINES) == set(LANGUAGES) - {"en", "zh"}  # theirs are in chat_lines.jsonl
    counts = {code: sum(code == row[0] for row in ROWS) for code in LINES}
    assert min(counts.values()) >= 40, counts


@pytest.mark.parametrize(("code", "text", "spoken"), ROWS, ids=[f"{code}-{text}" for code, text, _ in ROWS])
def test_a_line_is_spoken_in_its_language(code: str, text: str, spoken: str) -> None:
    assert front(code).speakable(text).text == spoken


@pytest.mark.parametrize("code", LINES)
def test_no_digit_is_left(code: str) -> None:
    for other, text, _ in ROWS:
        if language(other).scripts == language(code).scripts:
            assert not any(c.isdecimal() for c in front(code).speakable(text).text), text


NUMBERS = {
    "de": {
        **{0: "null", 1: "eins", 16: "sechzehn", 17: "siebzehn", 21: "einundzwanzig", 30: "dreißig"},
        **{77: "siebenundsiebzig", 100: "einhundert", 101: "einhunderteins", 1_000: "eintausend"},
        **{1_001: "eintausendeins", 21_000: "einundzwanzigtausend", 1_000_000: "eine Million"},
        **{2_000_001: "zwei Millionen eins"},
    },
    "es": {
        **{0: "cero", 1: "uno", 16: "dieciséis", 21: "veintiuno", 22: "veintidós", 31: "treinta y uno"},
        **{100: "cien", 101: "ciento uno", 500: "quinientos", 700: "setecientos", 900: "novecientos"},
        **{1_000: "mil", 2_001: "dos mil uno", 21_000: "veintiún mil", 1_000_000: "un millón"},
        **{2_000_000: "dos millones"},
    },
    "fr": {
        **{0: "zéro", 1: "un", 21: "vingt et un", 61: "soixante et un", 70: "soixante-dix"},
        **{71: "soixante et onze", 80: "quatre-vingts", 81: "quatre-vingt-un", 91: "quatre-vingt-onze"},
        **{99: "quatre-vingt-dix-neuf", 100: "cent", 200: "deux cents", 201: "deux cent un", 1_000: "mille"},
        **{80_000: "quatre-vingt mille", 200_000: "deux cent mille", 2_000_000: "deux millions"},
    },
    "it": {
        **{0: "zero", 1: "uno", 3: "tre", 17: "diciassette", 21: "ventuno", 23: "ventitré", 28: "ventotto"},
        **{38: "trentotto", 1_000_000: "un milione", 23_000: "ventitremila"},
        **{100: "cento", 101: "centouno", 180: "centottanta", 1_000: "mille", 2_000: "duemila"},
    },
    "pt": {
        **{0: "zero", 1: "um", 14: "quatorze", 16: "dezesseis", 21: "vinte e um", 100: "cem"},
        **{101: "cento e um"},
        **{200: "duzentos", 999: "novecentos e noventa e nove", 1_000: "mil", 1_001: "mil e um"},
        **{1_100: "mil e cem", 1_234: "mil duzentos e trinta e quatro", 2_000_000: "dois milhões"},
    },
    "hi": {
        **{0: "शून्य", 1: "एक", 11: "ग्यारह", 19: "उन्नीस", 29: "उनतीस", 39: "उनतालीस", 49: "उनचास", 59: "उनसठ"},
        **{69: "उनहत्तर", 79: "उनासी", 89: "नवासी", 99: "निन्यानवे", 100: "एक सौ", 1_000: "एक हज़ार"},
        **{100_000: "एक लाख", 12_345_678: "एक करोड़ तेईस लाख पैंतालीस हज़ार छह सौ अठहत्तर"},
    },
    "ja": {
        **{0: "ゼロ", 4: "よん", 7: "なな", 9: "きゅう", 10: "じゅう", 100: "ひゃく", 300: "さんびゃく"},
        **{600: "ろっぴゃく", 800: "はっぴゃく", 1_000: "せん", 3_000: "さんぜん", 8_000: "はっせん"},
        **{10_000: "いちまん", 12_345: "いちまんにせんさんびゃくよんじゅうご", 10**8: "いちおく"},
    },
}


@pytest.mark.parametrize(
    ("code", "number", "words"), [(c, n, w) for c, row in NUMBERS.items() for n, w in row.items()]
)
def test_numbers_are_those_of_a_grammar(code: str, number: int, words: str) -> None:
    assert language(code).number(str(number), False) == words

"""Chat lines of each language with their spoken texts, each written or read by its grammar."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from appliance.contract.tokens import Vocabulary
from appliance.text.languages import LANGUAGES, language
from appliance.text.sayable import FrontEnd
from appliance.text.scripts import LETTERS
from tests.harness.rows import rows

pytestmark = pytest.mark.once

HERE = Path(__file__).parent


def lines_of(kind: str) -> list[tuple[str, str, str]]:
    """(language, text, spoken) of all files of that kind."""
    return [
        (path.stem.removeprefix(kind), row["text"], row["spoken"])
        for path in sorted(HERE.glob(f"{kind}*.jsonl"))
        for row in map(json.loads, path.read_text("utf-8").splitlines())
    ]


ROWS = lines_of("lines_")
LINES = dict.fromkeys(code for code, *_ in ROWS)
TABLES = lines_of("rows_")
"""Lines for the rows of the tables that no chat line reaches."""
CHAT = [*map(dict.values, rows(str(HERE), "chat_lines.jsonl")), *ROWS]
AROUND = (("", "."), ("", ", ok"), ("", " lol"), ("@user ", ""), ('"', '"'), ("(", ")"), (" ", "  "))


def characters(ranges: str) -> list[str]:
    """Characters of the ranges within a pattern's brackets."""
    text = ranges.encode().decode("unicode_escape") if "\\u" in ranges else ranges
    expanded: list[str] = []
    for place, character in enumerate(text):
        if character == "-" and 0 < place < len(text) - 1:
            expanded += map(chr, range(ord(text[place - 1]) + 1, ord(text[place + 1])))
        else:
            expanded.append(character)
    return expanded


@cache
def front(code: str) -> FrontEnd:
    letters = [c for script in language(code).scripts for c in characters(LETTERS[script])]
    latin = characters(LETTERS["LATIN"])
    signs = [*map(chr, range(33, 127)), *"¿¡–—…«»“”’、。！？，・ー،؛؟।०१२३४५६७८९"]
    return FrontEnd(
        Vocabulary(tuple(dict.fromkeys([" ", *signs, *latin, *letters])), "char"), languages=(code,)
    )


def test_every_language_that_is_registered_has_its_lines() -> None:
    assert set(LINES) == set(LANGUAGES) - {"en", "zh"}  # chat_lines.jsonl has these languages
    counts = {code: sum(code == row[0] for row in ROWS) for code in LINES}
    assert min(counts.values()) >= 40, counts


@pytest.mark.parametrize(("code", "text", "spoken"), [*ROWS, *TABLES], ids=lambda value: value[:40])
def test_a_line_is_read_in_its_language(code: str, text: str, spoken: str) -> None:
    assert front(code).speakable(text).text == spoken


@pytest.mark.parametrize("code", LINES)
def test_no_digit_remains_in_lines_of_languages_with_the_same_script(code: str) -> None:
    for other, text, _ in ROWS:
        if language(other).scripts == language(code).scripts:
            assert not any(c.isdecimal() for c in front(code).speakable(text).text), text


def words(code: str, text: str) -> str:
    spoken = re.sub(r"[^\w\u0300-\u036f\u0900-\u097f]+", " ", f" {front(code).speakable(text).text} ".lower())
    return spoken.replace(" ", "") if code in ("ja", "zh") else spoken.replace("i\u0307", "i")


@pytest.mark.parametrize("each", [4, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("code", LANGUAGES)
def test_a_line_keeps_its_words_whatever_is_around_it_and_when_read_twice(code: str, each: int) -> None:
    for text in [text for of, text, _ in CHAT if of == code][::each]:
        alone, is_ended = words(code, text), text[-1] in ".!?。！？…"
        for before, after in AROUND:
            is_within = before in ('"', "(") and set('"()[]*\n') & set(text)
            if not (is_within or (is_ended and after == ".")):
                assert alone.rstrip() in words(code, f"{before}{text}{after}")
        once = front(code).speakable(text).text
        assert not once or front(code).speakable(once).text.lower() == once.lower()

"""Numbers whose words must differ, and numbers in words, written by hand."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from appliance.text.languages import LANGUAGES, ar, grammar, language
from appliance.text.languages.ru import numbers as russian
from tests.harness.rows import rows
from tests.text.languages.test_lines import ROWS, front

pytestmark = pytest.mark.once

NUMBERS = rows(__file__, "numbers.jsonl")


@pytest.mark.parametrize("code", [code for code in LANGUAGES if code not in ("en", "zh")])
def test_two_numbers_never_have_the_same_words(code: str) -> None:
    chance = random.Random(1)
    numbers = {*range(2_200), *(chance.randrange(10**size) for size in range(4, 13) for _ in range(60))}
    spoken = {language(code).number(str(number), False): number for number in numbers}
    assert len(spoken) == len(numbers)
    assert not any(c.isdigit() for words in spoken for c in words)


@pytest.mark.parametrize("code", sorted({code for code, *_ in ROWS}))
def test_a_line_takes_about_as_long_as_an_english_one(code: str) -> None:
    english = ["At 7:30 pm on 3/4/2025 we paid $1,250.50 for 3 kg, 20% off, in the 21st century."]
    lines = [text for of, text, _ in ROWS if of == code]
    # The ratio is 0.4 to 0.9 on a quiet machine. The languages alternate, so that a busy machine slows both.
    assert min(took(code, lines) / took("en", english) for _ in range(5)) < 3


def took(code: str, lines: Sequence[str]) -> float:
    """Seconds of the processor for one line."""
    start = time.process_time()
    for text in lines:
        front(code).speakable(text)
    return (time.process_time() - start) / len(lines)


ARABIC_OBLIQUE = {
    **{"عشرون ريال": "عشرين ريال", "ألفان وستة وعشرون": "ألفين وستة وعشرين", "مئتا شخص": "مئتي شخص"},
    **{"اثنا عشر": "اثني عشر", "دولاران": "دولارين", "مليون وثلاثة": "مليون وثلاثة"},
    **{"ثمان وعشرون دقيقة وعشر ثوان": "ثمان وعشرين دقيقة وعشر ثوان"},
}
"""Arabic words before and after a preposition."""
RUSSIAN_OF = {
    **{1: "одного", 2: "двух", 8: "восьми", 13: "тринадцати", 40: "сорока", 54: "пятидесяти четырёх"},
    **{80: "восьмидесяти", 90: "девяноста", 100: "ста", 250: "двухсот пятидесяти", 800: "восьмисот"},
    **{1_000: "одной тысячи", 3_300: "трёх тысяч трёхсот", 5_000_000: "пяти миллионов"},
}


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: f"{row['language']}-{row['words']}")
def test_a_number_in_words_agrees_with_the_grammar(row: dict[str, Any]) -> None:
    assert getattr(grammar(row["language"]), row["says"])(*row["of"]) == row["words"]


@pytest.mark.parametrize(("says", "arguments", "words"), [
    *((ar.oblique, (words,), after) for words, after in ARABIC_OBLIQUE.items()),
    *((lambda n: russian.genitive(russian.cardinal(n)), (n,), words) for n, words in RUSSIAN_OF.items()),
])  # fmt: skip
def test_oblique_and_genitive_numbers(says: Callable[..., str], arguments: Sequence[Any], words: str) -> None:
    assert says(*arguments) == words

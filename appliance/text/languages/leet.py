"""Words with digits in place of letters, as in names: gh0st_r1der."""

from __future__ import annotations

import re
from functools import cache

from appliance.text.phones.lexicon import KIND
from appliance.text.phones.table import ENGLISH, Table

_LETTERS = str.maketrans("013457", "oieast")
_WRITTEN = re.compile(r"(?=[^\W\d_]*\d)(?=.{4})[A-Za-z]+(?:[013457]{1,2}[A-Za-z]+)+([013457]?)(?![A-Za-z])")
"""Digits between letters; one that ends a word, mp3 or top5, counts alone."""


def spelt_out(name: str) -> str:
    """The words of a name in letters, where a dictionary of English has them."""
    return _WRITTEN.sub(_word, name) if re.search("[A-Za-z][0-9]", name) else name


def _word(match: re.Match[str]) -> str:
    whole, last = match[0], len(match[0]) - len(match[1])
    for end in (len(whole), last):
        word = whole[:end].translate(_LETTERS)
        if _dictionary().get(KIND, word.lower()) is not None:
            return word + whole[end:]
    return whole


@cache
def _dictionary() -> Table:
    return Table(ENGLISH)

"""Words with digits in place of letters, as in names: gh0st_r1der."""

from __future__ import annotations

import re
from functools import cache

from appliance.text.languages.en.capitals import pronounceable
from appliance.text.phones.lexicon import KIND
from appliance.text.phones.table import ENGLISH, Table

_LETTERS = str.maketrans("013457", "oieast")
WRITTEN = re.compile(
    r"(?<![A-Za-z\d])(?=[A-Za-z\d]{4})(?![A-Za-z]\d{1,2}[A-Za-z]\d{1,2}(?![A-Za-z\d]))[A-Za-z]+(?:[013457]{1,2}[A-Za-z]+)+([013457]?)(?![A-Za-z])"
)
"""Words with digits between letters.

A digit at the end, as in mp3 or top5, is not enough; S3E4 and L4D2 are no words.
"""


def word(match: re.Match[str]) -> str:
    """Letters of a match of WRITTEN, if the English dictionary has that word; else the match."""
    whole, last = match[0], len(match[0]) - len(match[1])
    for end in (len(whole), last):
        letters = whole[:end].translate(_LETTERS)
        is_drawn = len(re.findall(r"\d", whole[:end])) > 1 and whole.islower() and pronounceable(letters)
        if is_drawn or _dictionary().get(KIND, letters.lower()) is not None:
            return letters + whole[end:]
    return whole


@cache
def _dictionary() -> Table:
    return Table(ENGLISH)

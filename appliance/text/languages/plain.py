"""PLAIN: the language of texts whose numbers and signs stay as they are."""

from __future__ import annotations

import re
from functools import lru_cache

from appliance.text.scripts import MARKS
from appliance.text.spans import Kind, Language, Readings, before

MOST_CAPITALS = 4
"""Longest acronym, in letters. Longer capitals are shouted; in a line that shouts, so are shorter words."""
_UNSPOKEN = re.compile(r"(?!.*(.)\1.)(?!.*[AEIOUYÀ-ÆÈ-ÏÒ-ÖÙ-ÝАЕЁИОУЫЭЮЯΑΕΗΙΟΥΩ]).+")
"""Matches capitals that cannot be a word, because they have no vowel: RTX. But GRRR is shouted."""
_MORE = rf"(?:[^\W_]|[{MARKS}])*"
SMALL = "a-zß-öø-ÿа-яёα-ω"
"""Small letters, for a pattern's brackets."""
_SHOUTED = re.compile(
    rf"(?<!\w)[^\W\d_{SMALL}]{{{MOST_CAPITALS + 1},}}(?!\w)|^(?!.*(?<!\w)[{SMALL}]{{2,}}(?!\w))"
)


@lru_cache(maxsize=8)
def _has_shouting(text: str) -> bool:
    """True if a line of capitals has a word that is longer than an acronym, or no word in small letters."""
    return _SHOUTED.search(text) is not None


def unshouted(
    match: re.Match[str], shouted: bool, acronyms: frozenset[str] = frozenset()
) -> tuple[Kind, str] | None:
    """Write shouted capitals of any script in small letters. None for `acronyms` and other short words."""
    word = match[0]
    if word in acronyms:
        return None
    is_word = shouted and _has_shouting(match.string) and not _UNSPOKEN.fullmatch(word)
    if len(word) <= MOST_CAPITALS and not is_word:
        return None
    earlier = before(match).rstrip()
    is_first = not earlier or earlier[-1] in ".!?…\n¿¡"
    return Kind.SHOUTING, word.capitalize() if is_first else word.lower()


def _as_written(match: re.Match[str]) -> str:
    return match[0]


PLAIN = Language(
    code="",
    link="",
    mail="",
    listing="",
    comma=", ",
    point="",
    digit=lambda character: character,
    number=lambda plain, ordinal: plain,
    numbers=Readings(((Kind.NUMBER, rf"[^\W_]{_MORE}(?:[.,:/'’-]\d{_MORE})*", _as_written),)),
    words=Readings(((Kind.CODE, rf"(?=[^\W\d_]*[\d_])\w{_MORE}(?:_{_MORE})*", _as_written),)),
    signs=Readings(((Kind.SIGN, r"\^(?=\d)", lambda match: ""),)),
    capitals=unshouted,
    scripts=(),
)

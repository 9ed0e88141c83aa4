"""PLAIN: the language of which nothing is known; nothing is put into a text, digits and signs stay."""

from __future__ import annotations

import re

from appliance.text.spans import Kind, Language, Readings, before

MOST_CAPITALS = 4
"""Letters of what may be an acronym, in a line that is not shouted."""


def unshouted(
    match: re.Match[str], shouted: bool, acronyms: frozenset[str] = frozenset()
) -> tuple[Kind, str] | None:
    """Capitals lowered, in any script, but `acronyms`, and short ones in a line that is not shouted."""
    word = match[0]
    if word in acronyms or (len(word) <= MOST_CAPITALS and not shouted):
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
    digit=lambda character: character,
    number=lambda plain, ordinal: plain,
    numbers=Readings(((Kind.NUMBER, r"[^\W_]+(?:[.,:/'’-]\d+[^\W\d_]*)*", _as_written),)),
    words=Readings(((Kind.CODE, r"(?=[^\W\d_]*[\d_])\w+", _as_written),)),
    signs=Readings(((Kind.SIGN, r"\^(?=\d)", lambda match: ""),)),
    capitals=unshouted,
    scripts=(),
)

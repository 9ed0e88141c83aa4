"""Words that are said otherwise than written: names, above all."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

from appliance.errors import InvalidRequest
from appliance.text.line import LINK, MAIL
from appliance.text.marks import Marks
from appliance.text.normalise import normalise
from appliance.text.rewrite import Rewriting
from appliance.text.scripts import HAN

MOST_WORDS = 500
MOST_WORD, MOST_SAY = 64, 200
"""Characters."""


def check(words: Mapping[str, str], field: str = "pronunciations") -> None:
    """Raises InvalidRequest."""
    if len(words) > MOST_WORDS:
        raise InvalidRequest(field, f"has {len(words)} words; at most {MOST_WORDS} are allowed")
    for word, say in words.items():
        for text, most in ((word, MOST_WORD), (say, MOST_SAY)):
            if not normalise(text):
                raise InvalidRequest(field, f"of {word[:MOST_WORD]!r} has an empty side")
            if len(text) > most:
                raise InvalidRequest(
                    field, f"{text[:20]!r}… has {len(text)} characters; at most {most} are allowed"
                )


def pronounce(text: Rewriting, words: Mapping[str, str], marks: Marks) -> None:
    """Put marks in place of these words, in any case, with or without an @, outside of links."""
    if not words:
        return
    pattern, says = _compiled(frozenset(words.items()))

    def marked(match: re.Match[str]) -> str:
        say = says.get((match["word"] or "").lower())
        if say is None:
            return match[0]
        text.note("pronunciation", match["word"], say)
        return marks.text(say)

    text.text = pattern.sub(marked, unicodedata.normalize("NFC", text.text))


@lru_cache(maxsize=64)
def _compiled(words: frozenset[tuple[str, str]]) -> tuple[re.Pattern[str], Mapping[str, str]]:
    says = {unicodedata.normalize("NFC", word.strip()).lower(): normalise(say) for word, say in words}
    longest_first = "|".join(map(_whole, sorted(says, key=len, reverse=True)))
    return re.compile(f"{LINK}|{MAIL}|@?(?P<word>{longest_first})", re.IGNORECASE), says


def _whole(word: str) -> str:
    """Pattern of a whole word; Chinese has no spaces to tell by."""
    letter = f"[^\\W{HAN}]"
    before = f"(?<!{letter})" if re.match(letter, word) else ""
    after = f"(?!{letter})" if re.match(letter, word[-1]) else ""
    return f"{before}{re.escape(word)}{after}"

"""Captions: the position of each spoken word in the text as it was written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from appliance.audio.matching import Pair, Span, matched
from appliance.audio.words import TimedWord, planned
from appliance.request import Request, Segment

TOKEN = re.compile(r"\d+|[^\W\d\u2e80-\uffff_]+|\S")
"""A number, a word of a script with spaces, or a single character."""


Changes = Iterable[tuple[str, str]]
"""Pairs of a written part and the words that replace it."""


def written_spans(written: str, spoken: Sequence[TimedWord], changes: Changes = ()) -> list[Span]:
    """(begin, end) in characters of `written` for each word. Two words share a span or follow one another.

    All words of a rewritten part have the span of the whole part ("$5" for "five dollars"). If nothing is
    written for a word, its span is empty and follows the word before.
    """
    theirs = [*TOKEN.finditer(written)]
    tokens = [(number, token) for number, word in enumerate(spoken) for token in TOKEN.findall(word.text)]
    places: dict[int, Span] = {}
    for (i, i_end), (j, j_end) in matched_tokens([t[0] for t in theirs], [t for _, t in tokens], changes):
        span = theirs[i].start(), theirs[i_end - 1].end()
        for number, _ in tokens[j:j_end]:
            places[number] = places.get(number, span)[0], span[1]
    spans: list[Span] = []
    first = begin = end = 0
    for number in range(len(spoken)):
        span = places.get(number, (end, end))
        if span[0] >= end:
            first, begin = number, span[0]
        end = max(span[1], end)
        # Two words that share a token, as the comma after an emoji, get each other's tokens too.
        spans[first:] = [(begin, end)] * (number + 1 - first)
    return spans


def heard_characters(request: Request, segments: Sequence[Segment], heard_s: float) -> int:
    """Characters of the written text up to the last word that ends within `heard_s` of the reply.

    The end of a word is an estimate, as in a header's `words`.
    """
    spoken = planned(segments) if heard_s > 0.0 else []
    places = written_spans(request.written, spoken, [(one.before, one.after) for one in request.changes])
    over = sum(word.end_s <= heard_s for word in spoken)
    return max((end for _, end in places[:over]), default=0)


def matched_tokens(written: list[str], spoken: list[str], changes: Changes) -> list[Pair]:
    """Pairs of spans of tokens that correspond; case does not matter."""
    pairs = [(_whole_tokens(before), _whole_tokens(after)) for before, after in dict.fromkeys(changes)]
    return matched([*map(str.casefold, written)], [*map(str.casefold, spoken)], pairs)


def _whole_tokens(text: str) -> list[str]:
    """Tokens of one side of a change, without the last token if the side is shortened."""
    tokens = TOKEN.findall(text.casefold())
    return tokens[:-2] if text.endswith("…") else tokens

"""Captions: where each spoken word stands in the text as it was written."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.audio.matching import Span, matched
from appliance.audio.words import TimedWord, spans


def written_spans(written: str, spoken: Sequence[TimedWord]) -> list[Span]:
    """(begin, end) in characters of `written` for each word, both rising.

    Words that are equal but for case and punctuation are matched in order. What lies between two matches was
    rewritten ("$5" as "five dollars"): all its words have the whole of it. A word with nothing of its own
    between its neighbours' has an empty span after the one before.
    """
    places = spans(written)
    theirs = [_letters(written[begin:end]) for begin, end in places]
    found: list[Span] = []
    end = 0
    for (i, i_end), (j, j_end) in matched(theirs, [_letters(word.text) for word in spoken]):
        found += [(end, end)] * (j - len(found))
        begin, end = places[i][0], places[i_end - 1][1]
        found += [(begin, end)] * (j_end - j)
    return [*found, *[(end, end)] * (len(spoken) - len(found))]


def _letters(word: str) -> str:
    return "".join(filter(str.isalnum, word.casefold())) or word

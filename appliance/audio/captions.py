"""Captions: where each spoken word stands in the text as it was written."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.audio.words import Word, spans

AHEAD = 24
"""Words that may differ before the texts agree again: a long number as it is spoken."""

Span = tuple[int, int]


def written_spans(written: str, spoken: Sequence[Word]) -> list[Span]:
    """(begin, end) in characters of `written` for each word, both rising.

    Words that are equal but for case and punctuation are matched in order. What lies between two matches was
    rewritten ("$5" as "five dollars"): all its words have the whole of it. A word with nothing of its own
    between its neighbours' has an empty span after the one before.
    """
    places = spans(written)
    theirs = [_letters(written[begin:end]) for begin, end in places]
    ours = [_letters(word.text) for word in spoken]
    found: list[Span] = []
    i = j = end = 0
    while j < len(ours):
        skip_i, skip_j = _next_match(theirs[i : i + AHEAD], ours[j : j + AHEAD])
        between = places[i : i + skip_i]
        if len(between) == skip_j:
            found += between
        else:
            found += [(between[0][0], between[-1][1]) if between else (end, end)] * skip_j
        i, j = i + skip_i, j + skip_j
        if i < len(theirs) and j < len(ours) and theirs[i] == ours[j]:
            found.append(places[i])
            i, j = i + 1, j + 1
        end = found[-1][1] if found else 0
    return found


def _next_match(theirs: Sequence[str], ours: Sequence[str]) -> Span:
    """Numbers of words to pass over in each until both agree, the least in sum; all where they never do."""
    for total in range(len(theirs) + len(ours) - 1):
        for skip in range(min(total, len(theirs) - 1) + 1):
            other = total - skip
            if other < len(ours) and theirs[skip] == ours[other]:
                return skip, other
    return len(theirs), len(ours)


def _letters(word: str) -> str:
    return "".join(filter(str.isalnum, word.casefold()))

"""Matches the words of a text with the words of its rewritten form, by the cheapest edit between both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

WORD, SIGN = 2, 1
"""Cost of removing or inserting a word, and cost of any other token."""
OTHER_WORD = 3
"""Cost of replacing a word by a word. Other replacements cost as much as removing and inserting."""
CHANGE = 1
"""Cost of a change that the caller passes."""

BLOCK, RATIO = 256, 4
"""Tokens of one text that are matched at a time, and most tokens of the other text for each of these."""
Step = tuple[int, int, bool]
Span = tuple[int, int]
Pair = tuple[Span, Span]
Tokens = Sequence[str]
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.signedinteger]]
Known = Mapping[int, list[tuple[int, Numbers, int]]]
"""End of a change in `theirs` → (its tokens there, its possible ends in `ours`, its tokens in `ours`)."""


def matched(theirs: Tokens, ours: Tokens, changes: Iterable[tuple[Tokens, Tokens]] = ()) -> list[Pair]:
    """Pairs of spans that correspond, rising in both texts and never empty.

    Equal tokens correspond, in order. `changes` are tokens of `theirs` and the tokens that replaced them,
    wherever both occur. Between these, tokens correspond one by one if both texts have as many, else as a
    whole.
    """
    least = min(len(theirs), len(ours))
    head = next((n for n in range(least) if theirs[n] != ours[n]), least)
    tail = next((n for n in range(least - head) if theirs[-1 - n] != ours[-1 - n]), least - head)
    pairs = [(_one(n), _one(n)) for n in range(head)]
    i, j = begin = head, head
    for size, size_said, is_sure in _steps(
        theirs[head : len(theirs) - tail], ours[head : len(ours) - tail], changes
    ):
        if is_sure:
            pairs += [*_between(begin, (i, j)), ((i, i + size), (j, j + size_said))]
            begin = i + size, j + size_said
        i, j = i + size, j + size_said
    pairs += [*_between(begin, (i, j)), *((_one(i + n), _one(j + n)) for n in range(tail))]
    return [(their, our) for their, our in pairs if their[0] < their[1] and our[0] < our[1]]


def _one(number: int) -> Span:
    return number, number + 1


def _between(begin: Span, end: Span) -> Iterator[Pair]:
    """Pairs of the tokens between two certain pairs."""
    (i, j), (i_end, j_end) = begin, end
    if i_end - i == j_end - j:
        yield from ((_one(i + n), _one(j + n)) for n in range(i_end - i))
    else:
        yield (i, i_end), (j, j_end)


def _steps(theirs: Tokens, ours: Tokens, changes: Iterable[tuple[Tokens, Tokens]]) -> Iterator[Step]:
    """Steps of the cheapest edit: tokens of each text, and True for equal tokens and for a known change.

    A long text is matched in overlapping blocks, in time linear in its length.
    """
    changes = list(changes)
    while theirs or ours:
        is_last = len(theirs) <= BLOCK
        steps = _cheapest(theirs[:BLOCK], ours if is_last else ours[: RATIO * BLOCK], changes, whole=is_last)
        i = j = 0
        for size, size_said, is_sure in steps:
            if not is_last and i >= BLOCK // 2:
                break
            yield size, size_said, is_sure
            i, j = i + size, j + size_said
        theirs, ours = theirs[i:], ours[j:]


def _cheapest(
    theirs: Tokens, ours: Tokens, changes: Iterable[tuple[Tokens, Tokens]], *, whole: bool
) -> list[Step]:
    """Steps from the beginning to the end of `theirs`; unless `whole`, to any place in `ours`."""
    changes_by_end = _known(theirs, ours, changes)
    least = _least(theirs, ours, changes_by_end)
    steps: list[Step] = []
    i, j = len(theirs), len(ours) if whole else int(least[-1].argmin())
    while i or j:
        for size, ends, size_said in changes_by_end.get(i, ()):
            if least[i, j] == least[i - size, j - size_said] + CHANGE and j in ends:
                step = size, size_said, True
                break
        else:
            if i and j and theirs[i - 1] == ours[j - 1]:
                step = 1, 1, True
            elif i and j and least[i, j] == least[i - 1, j - 1] + _other(theirs[i - 1], ours[j - 1]):
                step = 1, 1, False
            else:
                is_left_out = i > 0 and least[i, j] == least[i - 1, j] + _cost(theirs[i - 1])
                step = int(is_left_out), int(not is_left_out), False
        steps.append(step)
        i, j = i - step[0], j - step[1]
    return steps[::-1]


def _known(theirs: Tokens, ours: Tokens, changes: Iterable[tuple[Tokens, Tokens]]) -> Known:
    """Places of known changes: end in `theirs` → (length there, ends in `ours`, length there)."""
    changes_by_end: dict[int, list[tuple[int, Numbers, int]]] = defaultdict(list)
    places, places_said = _places(theirs), _places(ours)
    for before, after in changes:
        if not (before and (begins := _positions(theirs, places, before))):
            continue
        begins_said = _positions(ours, places_said, after) if after else [*range(len(ours) + 1)]
        ends = np.array(begins_said, np.intp) + len(after)
        for begin in begins if begins_said else ():
            changes_by_end[begin + len(before)].append((len(before), ends, len(after)))
    return changes_by_end


def _places(tokens: Tokens) -> Mapping[str, list[int]]:
    places: dict[str, list[int]] = defaultdict(list)
    for place, token in enumerate(tokens):
        places[token].append(place)
    return places


def _positions(tokens: Tokens, places: Mapping[str, list[int]], pattern: Tokens) -> list[int]:
    return [n for n in places.get(pattern[0], ()) if list(tokens[n : n + len(pattern)]) == list(pattern)]


def _least(theirs: Tokens, ours: Tokens, changes_by_end: Known) -> Numbers:
    """(their tokens + 1, our tokens + 1): cost of the cheapest edit between the beginnings of both texts."""
    places = _places(ours)
    added = np.array([*map(_cost, ours)], np.int32)
    most = WORD * (len(theirs) + len(ours))
    kind = np.int16 if most + OTHER_WORD <= np.iinfo(np.int16).max else np.int32
    before = np.concatenate(([0], np.cumsum(added))).astype(kind)
    others = {cost: np.where(added == cost, _instead(cost, cost), cost + added) for cost in (WORD, SIGN)}
    least = np.empty((len(theirs) + 1, len(ours) + 1), kind)
    least[0] = before
    for i, token in enumerate(theirs, 1):
        above, cost = least[i - 1], _cost(token)
        instead = others[cost].astype(kind)
        instead[places.get(token, [])] = 0
        row = above + kind(cost)
        row[1:] = np.minimum(row[1:], above[:-1] + instead)
        for size, ends, size_said in changes_by_end.get(i, ()):
            row[ends] = np.minimum(row[ends], least[i - size][ends - size_said] + kind(CHANGE))
        least[i] = np.minimum.accumulate(row - before) + before
    return least


def _cost(token: str) -> int:
    return WORD if token[0].isalnum() else SIGN


def _other(token: str, other: str) -> int:
    return _instead(_cost(token), _cost(other))


def _instead(cost: int, cost_said: int) -> int:
    return OTHER_WORD if cost == cost_said == WORD else cost + cost_said

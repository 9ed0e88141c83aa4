"""Order of the sentences in which few hours have all pairs of phones."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice, pairwise

from appliance.text.phones.alphabet import tokens
from export.demo.corpus.sentences import Sentence

SHARES = {"fort": 9, "live": 3, "chat": 3, "rare": 3, "mini": 2}
"""Training sentences of each source in a row."""


def ordered(sentences: Sequence[Sentence], phonemes: Callable[[str], str]) -> list[Sentence]:
    """Training sentences, those of each source first that add most to it, then the others."""
    sources: dict[str, list[Sentence]] = {name: [] for name in SHARES}
    others: list[Sentence] = []
    for sentence in sentences:
        (sources[sentence.id[:4]] if sentence.split == "train" else others).append(sentence)
    queues = {name: iter(greedy(some, phonemes)) for name, some in sources.items()}
    found: list[Sentence] = []
    while some := [one for name, share in SHARES.items() for one in islice(queues[name], share)]:
        found += some
    return found + others


def greedy(sentences: Sequence[Sentence], phonemes: Callable[[str], str]) -> list[Sentence]:
    """By the pairs of phones that a sentence adds for each of its phones; the n-th of a pair counts 1/n."""
    pairs = [Counter(pairwise(tokens(phonemes(sentence.text)))) for sentence in sentences]
    had: Counter[tuple[str, str]] = Counter()

    def gain(number: int) -> float:
        some = pairs[number]
        return sum(n / (1 + had[pair]) for pair, n in some.items()) / (some.total() + 8)

    heap = [(-gain(number), number) for number in range(len(sentences))]
    heapq.heapify(heap)
    found = []
    while heap:
        _, number = heapq.heappop(heap)
        now = -gain(number)  # it only falls, as others are taken
        if heap and now > heap[0][0]:
            heapq.heappush(heap, (now, number))
            continue
        had += pairs[number]
        found.append(sentences[number])
    return found

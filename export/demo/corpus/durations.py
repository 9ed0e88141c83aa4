"""Mean durations of phones, inside a phrase and at its end."""

from __future__ import annotations

import numpy as np

from appliance.contract.placement import PLACES, SHORTEST, Table, places
from appliance.text.phones.alphabet import TOKENS, tokens
from export.demo.corpus.store import Store

DIGITS = 2


def table(store: Store) -> Table:
    """Mean frames of the training clips' phones by place; of a place that a phone never has, its longest."""
    sums: dict[str, list[list[float]]] = {token: [[0.0, 0.0] for _ in range(PLACES)] for token in TOKENS}
    for clip in store.clips:
        if clip.split != "train":
            continue
        said = tokens(clip.phones)
        counts = np.bincount(store.spoken[clip.start : clip.start + clip.frames], minlength=len(said))
        for token, place, count in zip(said, places(said), counts, strict=True):
            of = sums[token][place]
            of[0], of[1] = of[0] + float(count), of[1] + 1
    means = {token: [total / max(n, 1) for total, n in of] for token, of in sums.items()}
    return {
        token: [max(round(mean or max(some), DIGITS), SHORTEST) for mean in some]
        for token, some in means.items()
        if any(some)
    }

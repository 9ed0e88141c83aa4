"""Random inputs of step graphs that run without an engine."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Bundle
from appliance.contract.graphs import CONTEXT
from appliance.request import FloatArray

Feed = dict[str, NDArray[Any]]


def feed_of(bundle: Bundle, reference: int, reply: int, rows: int = 1) -> Feed:
    """Inputs of `step_keys`; each row has its own latents, condition and time."""
    d, rng = bundle.manifest.dimensions, np.random.default_rng([reference, reply])

    def normal(*shape: int) -> FloatArray:
        return rng.standard_normal(shape, dtype=np.float32)

    return {
        "latents": normal(rows, reply, d.mels),
        "condition": normal(rows, reply, d.dim).astype(d.compute),
        "mod_table": np.float32(0.3) * normal(rows + 1, d.rows, d.dim),
        "step_index": np.arange(1, rows + 1, dtype=np.int32),
        "lengths": np.full(rows, reply, np.int32),
        "reference": normal(rows, reference, d.mels),
        "reference_condition": normal(rows, reference, d.dim).astype(d.compute),
        "reference_lengths": np.full(rows, reference, np.int32),
    }


def reply_of(feed: Feed, kept: Sequence[NDArray[Any]], context: int = CONTEXT) -> Feed:
    """Inputs of `step_reply` after a `step_keys` whose keys and values are `kept`."""
    seen = {
        name.replace("reference", "context"): feed[name][:, -context:] if context else feed[name][:, :0]
        for name in ("reference", "reference_condition")
    }
    own = {name: array for name, array in feed.items() if name not in ("reference", "reference_condition")}
    names = (f"{what}_{block}" for block in range(len(kept) // 2) for what in ("keys", "values"))
    return {**own, **seen, **dict(zip(names, kept, strict=True))}

"""The traced step graphs, run by themselves: against each other, and whatever stands in their padding.

`test_matrix` compares what the engine makes of them with upstream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.contract.bundle import Bundle
from appliance.contract.graphs import CONTEXT
from appliance.request import FloatArray
from tests.export import small
from tests.export.small import BuiltBundle, Workshop

pytestmark = pytest.mark.torch

SAME = 1e-6
"""Between two forms of one graph."""


# In the other order than `test_matrix`: side by side, each makes bundles for both.
@pytest.fixture(scope="module", params=small.TRACED[::-1])
def made(request: pytest.FixtureRequest, workshop: Workshop) -> BuiltBundle:
    return workshop.make(request.param)


Feed = dict[str, NDArray[Any]]


def run(bundle: Bundle, name: str, variant: str, feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    return [*small.run(bundle.graph(name, variant), feed).values()]


def feed_of(bundle: Bundle, reference: int, reply: int, rows: int = 1) -> Feed:
    """Inputs of `step_keys`; each row has its own latents, condition and time."""
    d, rng = bundle.manifest.dimensions, np.random.default_rng([reference, reply])

    def normal(*shape: int) -> FloatArray:
        return rng.standard_normal(shape, dtype=np.float32)

    return {
        "latents": normal(rows, reply, d.mels),
        "condition": normal(rows, reply, d.dim),
        "mod_table": np.float32(0.3) * normal(rows + 1, d.rows, d.dim),
        "step_index": np.arange(1, rows + 1, dtype=np.int32),
        "lengths": np.full(rows, reply, np.int32),
        "reference": normal(rows, reference, d.mels),
        "reference_condition": normal(rows, reference, d.dim),
        "reference_lengths": np.full(rows, reference, np.int32),
    }


def reply_of(feed: Feed, kept: list[NDArray[Any]], context: int = CONTEXT) -> Feed:
    """Inputs of `step_reply` after a `step_keys` that gave `kept`."""
    seen = {
        name.replace("reference", "context"): feed[name][:, -context:] if context else feed[name][:, :0]
        for name in ("reference", "reference_condition")
    }
    own = {name: array for name, array in feed.items() if name not in ("reference", "reference_condition")}
    names = (f"{what}_{block}" for block in range(len(kept) // 2) for what in ("keys", "values"))
    return {**own, **seen, **dict(zip(names, kept, strict=True))}


@pytest.mark.parametrize("reference", [1, 10, 41])
def test_keys_and_reply_equal_the_whole_sequence(reference: int, made: BuiltBundle) -> None:
    feed = feed_of(made.bundle, reference, 53, rows=2)
    velocity, *kept = run(made.bundle, "step_keys", "default", feed)
    whole = {name: feed[name] for name in ("mod_table", "step_index")}
    whole["latents"] = np.concatenate([feed["reference"], feed["latents"]], axis=1)
    whole["condition"] = np.concatenate([feed["reference_condition"], feed["condition"]], axis=1)
    whole["lengths"] = feed["lengths"] + feed["reference_lengths"]
    [wanted] = run(made.bundle, "step", "default", whole)
    assert small.relative(velocity, wanted[:, reference:]) <= SAME
    [reply] = run(made.bundle, "step_reply", "default", reply_of(feed, kept))
    assert small.relative(reply, velocity) <= SAME
    [deaf] = run(made.bundle, "step_reply", "default", reply_of(feed, [0.9 * part for part in kept]))
    assert small.relative(deaf, velocity) > 100 * SAME  # the reference's keys and values matter
    [blind] = run(made.bundle, "step_reply", "default", reply_of(feed, kept, context=0))
    assert small.relative(blind, velocity) > 100 * SAME  # and so does what the convolution sees of it


@pytest.mark.parametrize("reference", [1, 10, 41])
def test_padding_on_both_sides_changes_nothing(reference: int, made: BuiltBundle) -> None:
    """The reference ends where the reply begins: its padding precedes it, the reply's follows."""
    feed = feed_of(made.bundle, reference, 53)
    velocity, *kept = run(made.bundle, "step_keys", "default", feed)
    sides = {"reference": 64 - reference, "reference_condition": 64 - reference}
    padded = {name: array.copy() for name, array in feed.items()}
    for name in ("reference", "reference_condition"):
        padded[name] = np.concatenate([litter(feed[name], sides[name]), feed[name]], axis=1)
    for name in ("latents", "condition"):
        padded[name] = np.concatenate([feed[name], litter(feed[name], 27)], axis=1)
    found, *keys = run(made.bundle, "step_keys", "default", padded)
    assert small.relative(found[:, :53], velocity) <= SAME
    for have, want in list(zip(keys, kept, strict=True))[1::2]:  # keys are turned by the padding's length
        assert small.relative(have[:, -reference:], want) <= SAME
    keys = [np.concatenate([litter(part, 64 - reference), part[:, -reference:]], axis=1) for part in keys]
    [reply] = run(made.bundle, "step_reply", "default", reply_of(padded, keys))
    assert small.relative(reply[:, :53], velocity) <= SAME


def litter(like: NDArray[Any], frames: int) -> NDArray[Any]:
    """Whatever an earlier lane left where nobody wrote since."""
    rng = np.random.default_rng(frames)
    return 5.0 * rng.standard_normal((len(like), frames, like.shape[2])).astype(like.dtype)

"""The traced step graphs, run without an engine: they agree with each other, whatever their padding holds.

`test_matrix` compares the engine's results with upstream.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.contract.bundle import Bundle
from tests.engine.lanes import relative
from tests.export.feeds import feed_of, reply_of
from tests.harness import small
from tests.harness.small import BuiltBundle, Workshop

pytestmark = pytest.mark.torch

SAME = 1e-6
"""Largest difference between two forms of a graph."""


# The order is the reverse of `test_matrix`'s, because the two run at the same time and share their bundles.
@pytest.fixture(scope="module", params=small.TRACED[::-1])
def made(request: pytest.FixtureRequest, workshop: Workshop) -> BuiltBundle:
    return workshop.make(request.param)


def run(bundle: Bundle, name: str, variant: str, feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    return [*small.run(bundle.graph(name, variant), feed).values()]


@pytest.mark.parametrize("reference", [1, 10, 41])
def test_padding_on_both_sides_changes_nothing(reference: int, made: BuiltBundle) -> None:
    """The reference ends at the begin of the reply: its padding precedes it, the reply's padding follows."""
    feed = feed_of(made.bundle, reference, 53)
    velocity, *kept = run(made.bundle, "step_keys", "default", feed)
    sides = {"reference": 64 - reference, "reference_condition": 64 - reference}
    padded = {name: array.copy() for name, array in feed.items()}
    for name in ("reference", "reference_condition"):
        padded[name] = np.concatenate([litter(feed[name], sides[name]), feed[name]], axis=1)
    for name in ("latents", "condition"):
        padded[name] = np.concatenate([feed[name], litter(feed[name], 27)], axis=1)
    found, *keys = run(made.bundle, "step_keys", "default", padded)
    assert relative(found[:, :53], velocity) <= SAME
    for have, want in list(zip(keys, kept, strict=True))[1::2]:  # the padding's length rotates the keys
        assert relative(have[:, -reference:], want) <= SAME
    keys = [np.concatenate([litter(part, 64 - reference), part[:, -reference:]], axis=1) for part in keys]
    [reply] = run(made.bundle, "step_reply", "default", reply_of(padded, keys))
    assert relative(reply[:, :53], velocity) <= SAME


def litter(like: NDArray[Any], frames: int) -> NDArray[Any]:
    """Random values, which stand for the rest of an earlier lane in memory that nobody has written since."""
    rng = np.random.default_rng(frames)
    return 5.0 * rng.standard_normal((len(like), frames, like.shape[2])).astype(like.dtype)

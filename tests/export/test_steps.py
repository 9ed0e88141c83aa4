"""The traced step graphs: every form against upstream, and against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from appliance.contract import graphs as contract
from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.graphs import CONTEXT
from appliance.contract.schedule import time_grid
from appliance.engine.engine import Synthesizer
from appliance.engine.replay import replay
from appliance.request import FloatArray
from tests.engine import lanes
from tests.export import small
from tests.export.small import BuiltBundle, Workshop

pytestmark = pytest.mark.torch

STEP, SAMPLE = 5e-6, 5e-5
"""Bounds on ‖a − b‖ / ‖b‖ against upstream: one velocity, generated frames of a whole sample."""
SAME = 1e-6
"""Between two forms of one graph."""
NFE = 7
"""`test_bundle` has the others."""
FORMS: dict[str, Callable[[BuiltBundle], Synthesizer]] = {
    "masked": lambda made: made.engine(variant="default"),
    "padded": lambda made: made.padded(),
    "fused": lambda made: made.engine(variant="ort-cpu"),
}
"""`step_keys` with an empty reference at true length, `step` padded, one row without masks."""


# In the other order than `test_bundle`: side by side, each makes bundles for both.
@pytest.fixture(scope="module", params=small.TRACED[::-1])
def made(request: pytest.FixtureRequest, workshop: Workshop) -> BuiltBundle:
    return workshop.make(request.param)


@pytest.fixture(scope="module")
def flow(made: BuiltBundle) -> Any:
    return small.upstream_flow(made.files, made.arch)


# Against upstream


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "given",
    [
        small.case(60),
        small.case(271, guidance=0.7),
        small.case(9, tokens=9, reference=1),
        small.case(40, tokens=77, reference=38),  # more tokens than frames, one frame to generate
        small.case(97, guidance=0.0),
    ],
    ids=lambda given: str(given.frames),
)
def test_one_step_equals_upstreams(form: str, made: BuiltBundle, flow: Any, given: small.Case) -> None:
    engine, start = FORMS[form](made), len(given.cond)
    for time in (0.0, 0.0012, 0.61):
        mel, _ = replay(engine, given.segment(np.array([time, time + 1.0])))
        wanted = small.upstream_velocity(flow, given, time)
        assert small.relative((mel - given.noise)[start:], wanted[start:]) <= STEP


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_sample_equals_upstreams(form: str, made: BuiltBundle, flow: Any) -> None:
    given = small.case(113)
    start = len(given.cond)
    mel, _ = replay(FORMS[form](made), given.segment(time_grid(NFE)))
    wanted = small.upstream_sample(flow, given, NFE)
    assert small.relative(mel[start:], wanted[start:]) <= SAMPLE
    way = (wanted - given.noise)[start:]  # without the noise, which both share
    assert np.abs(way).mean() > 0.05
    assert small.relative((mel - given.noise)[start:], way) <= SAMPLE


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reference", [1, 10, 38])
def test_a_reference_on_its_path_is_seen_as_upstream_would(
    form: str, reference: int, made: BuiltBundle, flow: Any
) -> None:
    """Sampling `short` without guidance is upstream's model whose first frames are put on their path."""
    given = small.case(70, reference=reference, guidance=0.0)
    times = time_grid(7)
    mel, _ = replay(FORMS[form](made), given.segment(times, "short"))
    wanted = upstream_on_path(flow, given, times)[reference:]
    assert small.relative(mel[reference:], wanted) <= SAMPLE
    exact = small.upstream_sample(flow, given, 7)[reference:]
    assert small.relative(exact, wanted) > 10 * SAMPLE  # it is another sampling


@torch.inference_mode()
def upstream_on_path(flow: Any, given: small.Case, times: NDArray[np.float64]) -> FloatArray:
    cond = torch.zeros(1, given.frames, small.MELS)
    known = len(given.cond)
    cond[0, :known] = torch.from_numpy(given.cond)
    ids = torch.from_numpy(given.ids).long()[None]
    noise = torch.from_numpy(given.noise)[None]
    y = noise.clone()
    for now, then in pairwise(times.tolist()):
        y[:, :known] = (1.0 - now) * noise[:, :known] + now * cond[:, :known]
        y = y + (then - now) * flow.transformer(x=y, cond=cond, text=ids, time=torch.tensor(now))
    return y[0].numpy()  # type: ignore[no-any-return]


# A padded device against exact shapes


@pytest.mark.parametrize("sampling", ["short", "short-kv"])
@pytest.mark.parametrize("reference", [1, 10, 38])
def test_forms_agree_in_every_sampling(sampling: Sampling, reference: int, made: BuiltBundle) -> None:
    given = small.case(70, reference=reference).segment(time_grid(7), sampling)
    found = {form: replay(make(made), given)[0][reference:] for form, make in FORMS.items()}
    way = found["masked"] - given.noise[reference:]
    assert np.abs(way).mean() > 0.05
    for form in ("padded", "fused"):
        assert small.relative(found[form] - given.noise[reference:], way) <= 1e-5


@pytest.mark.parametrize("lengths", [(60, 333, 1300), (60, 143, 47, 300)])
@pytest.mark.parametrize("sampling", ["exact", "short-kv"])
def test_a_padded_batch_equals_single_runs(
    lengths: tuple[int, ...], sampling: Sampling, made: BuiltBundle
) -> None:
    padded = made.padded(len(lengths))
    lanes.check_a_padded_batch(padded, lengths, made.engine(variant="default"), sampling)


# The graphs themselves

Feed = dict[str, NDArray[Any]]


def run(bundle: Bundle, name: str, variant: str, feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(bundle.graph(name, variant), providers=["CPUExecutionProvider"])
    outputs: list[NDArray[Any]] = session.run(None, dict(feed))
    return outputs


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
    depth = len(kept) // 2
    return {**own, **seen, **dict(zip(contract.kept_names(depth), kept, strict=True))}


@pytest.mark.parametrize("reference", [0, 1, 10, 41])
def test_the_fused_form_equals_the_masked_one(reference: int, made: BuiltBundle) -> None:
    feed = feed_of(made.bundle, reference, 53)
    masked, fused = (run(made.bundle, "step_keys", variant, feed) for variant in ("default", "ort-cpu"))
    assert len(masked) == 1 + 2 * made.arch.depth
    for found, wanted in zip(fused, masked, strict=True):
        assert found.shape == wanted.shape
        assert not wanted.size or small.relative(found, wanted) <= SAME
    if reference:
        given = reply_of(feed, masked[1:])
        one, other = (run(made.bundle, "step_reply", variant, given)[0] for variant in ("default", "ort-cpu"))
        assert small.relative(other, one) <= SAME


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


def test_a_row_depends_on_no_other_row(made: BuiltBundle) -> None:
    lanes.check_rows_of_one_call(made.bundle)


@pytest.mark.parametrize("frames", [1, 29])
def test_an_update_is_a_weighted_sum(frames: int, workshop: Workshop) -> None:
    rng = np.random.default_rng(3)
    names = ("latents", "guided", "unguided")
    feed = {name: rng.standard_normal((frames, small.MELS), dtype=np.float32) for name in names}
    weights = np.array([0.31, -0.17], np.float32)
    [found] = run(workshop.make("v1").bundle, "update", "default", {**feed, "weights": weights})
    wide = {name: array.astype(np.float64) for name, array in feed.items()}
    wanted = wide["latents"] + float(weights[0]) * wide["guided"] + float(weights[1]) * wide["unguided"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)

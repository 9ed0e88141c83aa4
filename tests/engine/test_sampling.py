"""The three samplings against samplers written out in numpy, over single calls of the masked graphs."""

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime
import pytest

from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.graphs import CONTEXT, kept
from appliance.engine.condition import padded_ids, padded_mel
from appliance.engine.engine import Synthesizer
from appliance.request import FloatArray, Segment
from tests.engine.lanes import SAMPLINGS, relative, segment, spoken

pytestmark = pytest.mark.once

PLAIN = 1e-5
"""Largest ‖a − b‖ / ‖b‖ of the engine against a plain sampler."""


class Plain:
    """Graphs of a bundle, each called on one row at its true length."""

    def __init__(self, bundle: Bundle) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        names = ("modulation", "condition", "step", "step_keys", "step_reply", "vocoder")
        on = (options, ["CPUExecutionProvider"])
        self.sessions = {name: onnxruntime.InferenceSession(bundle.graph(name), *on) for name in names}
        self.kept = [t.name for t in kept(bundle.manifest.dimensions)]

    def call(self, graph: str, **inputs: Any) -> list[FloatArray]:
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        out: list[FloatArray] = self.sessions[graph].run(None, arrays)
        return out

    def step(
        self, graph: str, t: float, x: FloatArray, condition: FloatArray, **more: Any
    ) -> list[FloatArray]:
        """Call a step graph on one row: velocity (N, M), then its other outputs."""
        (rows,) = self.call("modulation", t=np.array([t], np.float32))
        sizes = {"step_index": np.zeros(1, np.int32), "lengths": np.array([len(x)], np.int32)}
        given = {"latents": x[None], "condition": condition[None], "mod_table": rows, **sizes}
        velocity, *kept = self.call(graph, **given, **more)
        return [velocity[0], *kept]

    def condition(self, given: Segment) -> FloatArray:
        """(2, N, D)"""
        ids, mel = padded_ids(given.ids, given.frames), padded_mel(given.reference_log_mel, given.frames)
        return self.call("condition", ids=ids, log_mel=mel)[0]

    def sample(self, given: Segment) -> FloatArray:
        """(reply, M) after all steps, in the sampling of the segment."""
        guided, unguided = self.condition(given)
        p, w = len(given.reference_log_mel), given.guidance
        first = 0 if given.sampling == "exact" else p  # the frames before follow their path
        x, kept = given.noise[first:], dict[str, FloatArray]()
        key_steps = {0, int(np.argmax(given.times >= 0.076))}
        for i, (now, then) in enumerate(pairwise(given.times)):
            path = self.path(given, now)
            if given.sampling == "exact":
                (v,) = self.step("step", now, x, guided)
            elif given.sampling == "short":
                (whole,) = self.step("step", now, np.concatenate([path, x]), guided)
                v = whole[p:]
            elif i in key_steps:
                more = {"reference": path[None], "reference_condition": guided[None, :p]}
                v, *new = self.after("step_keys", now, x, guided, p, more)
                kept = dict(zip(self.kept, new, strict=True))
            else:
                seen = {"context": path[None], "context_condition": guided[None, :p]}
                more = {name: array[:, -CONTEXT:] for name, array in seen.items()}
                (v,) = self.after("step_reply", now, x, guided, p, more | kept)
            (u,) = self.step("step", now, x, unguided[first:])
            x = (x + (then - now) * (v + w * (v - u))).astype(np.float32)
        return x[p - first :]

    def after(
        self, graph: str, t: float, x: FloatArray, guided: FloatArray, p: int, more: dict[str, FloatArray]
    ) -> list[FloatArray]:
        """A step of the reply after a reference of p frames."""
        return self.step(graph, t, x, guided[p:], reference_lengths=np.array([p], np.int32), **more)

    @staticmethod
    def path(given: Segment, t: float) -> FloatArray:
        """The reference's latents at time t, on flow matching's path."""
        noise = given.noise[: len(given.reference_log_mel)]
        return ((1.0 - t) * noise + t * given.reference_log_mel).astype(np.float32)


@pytest.fixture(scope="module")
def plain(tiny: Bundle) -> Plain:
    return Plain(tiny)


def sampled(engine: Synthesizer, given: Segment) -> FloatArray:
    """(reply, M)"""
    mel, _ = spoken(engine, given)
    assert np.array_equal(mel[: len(given.reference_log_mel)], given.reference_log_mel)
    return mel[len(given.reference_log_mel) :]


def error(found: FloatArray, wanted: FloatArray, given: Segment) -> float:
    """Error relative to the distance between the result and the noise."""
    noise = given.noise[len(given.reference_log_mel) :]
    return relative(found - noise, wanted - noise)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("frames", "reference", "nfe", "guidance"), [
    (90, 41, 7, 2.0), (120, 30, 5, 0.7), (80, 26, 5, 0.0),
    # The reference is shorter than the convolutions' reach, the reply is one frame.
    *((n, p, 5, 2.0) for n, p in ((2, 1), (60, 1), (60, 29), (31, 30), (32, 31), (100, 99))),
])  # fmt: skip
def test_a_lane_equals_a_plain_sampler(
    either: Synthesizer,
    plain: Plain,
    sampling: Sampling,
    frames: int,
    reference: int,
    nfe: int,
    guidance: float,
) -> None:
    given = segment(frames, reference=reference, nfe=nfe, guidance=guidance, sampling=sampling, seed=nfe)
    assert error(sampled(either, given), plain.sample(given), given) <= PLAIN


def test_samplings_differ(engine: Synthesizer) -> None:
    """Samplings differ by far more than the tolerance above, so that none can pass as another."""
    given = segment(90, reference=41, nfe=7)
    found = [sampled(engine, dataclasses.replace(given, sampling=sampling)) for sampling in SAMPLINGS]
    for i in range(3):
        for j in range(i):
            assert error(found[i], found[j], given) > 100 * PLAIN


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_samples_are_a_vocoders_of_true_frames(either: Synthesizer, plain: Plain, sampling: Sampling) -> None:
    given = segment(80, reference=31, nfe=5, gain=0.25, sampling=sampling)
    mel, samples = spoken(either, given)
    assert samples.shape == ((80 - 30 - 1) * 256,) and samples.dtype == np.float32
    assert np.array_equal(samples, either.decode(mel[30:]) * np.float32(0.25))
    wanted = np.concatenate([given.reference_log_mel[30:], plain.sample(given)])
    assert relative(samples, plain.call("vocoder", log_mel=wanted)[0] * 0.25) <= 1e-4

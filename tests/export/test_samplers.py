"""Bundles of each sampler against the sampler written out in numpy, over upstream's arithmetic in plain torch."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from appliance.contract.sampler import Sampler
from appliance.engine.engine import Synthesizer
from appliance.request import FloatArray, Segment
from export.checkpoint import load_dit
from tests.engine.lanes import relative, segment
from tests.export import small
from tests.export.small import BuiltBundle, Workshop

pytestmark = [pytest.mark.torch, pytest.mark.once]

PARITY = 5e-5
NFES = (1, 2, 4)
NONE = Sampler(guidance="none", strengths=(2.0,))
EMBEDDED = Sampler(guidance="embedded", strengths=(0.5, 3.0))
RENOISE = Sampler("renoise", "none")
BOTH = Sampler("renoise", "embedded", strengths=(0.5, 3.0))
SAMPLERS = {"none": (NONE, 0.0), "embedded": (EMBEDDED, 2.0), "renoise": (RENOISE, 0.0), "both": (BOTH, 2.0)}


@pytest.fixture(params=SAMPLERS)
def made(request: pytest.FixtureRequest, workshop: Workshop) -> BuiltBundle:
    return workshop.sampled(*SAMPLERS[request.param])


class Plain:
    """A checkpoint's velocity by upstream's DiT, its time embedding written out."""

    def __init__(self, made: BuiltBundle) -> None:
        self.sampler = made.bundle.manifest.sampler
        embeds = self.sampler.guidance == "embedded"
        size = len(small.VOCABULARY)
        self.weights = dict(load_dit(made.files.checkpoint, made.arch, size, embeds_guidance=embeds))
        options = dataclasses.asdict(made.arch)
        self.model = small.upstream.dit_class()(**options, mel_dim=small.MELS, text_num_embeds=size)
        own = {name: value for name, value in self.weights.items() if "guidance_embed" not in name}
        self.model.load_state_dict(own)
        self.model.eval()

    def time(self, t: float, w: float) -> Tensor:
        """(1, D): two linear layers on sines and cosines of 1000·t, with those of 1000·w projected."""

        def waves(value: float) -> Tensor:
            frequencies = np.exp(-np.log(10_000.0) / 127 * np.arange(128))
            # Upstream multiplies in float32, where 1000·w is rounded: so must a reference.
            angles = (
                torch.tensor(1000.0)
                * torch.tensor(value, dtype=torch.float32)
                * torch.tensor(frequencies).float()
            )
            return torch.cat([angles.sin(), angles.cos()])

        seen, at = waves(t), self.weights
        if (embed := at.get("time_embed.guidance_embed.weight")) is not None:
            seen = seen + embed @ waves(w)
        hidden = at["time_embed.time_mlp.0.weight"] @ seen + at["time_embed.time_mlp.0.bias"]
        hidden = hidden * torch.sigmoid(hidden)
        return (at["time_embed.time_mlp.2.weight"] @ hidden + at["time_embed.time_mlp.2.bias"])[None]

    @torch.inference_mode()
    def velocity(self, given: Segment, x: FloatArray, t: float) -> FloatArray:
        """(N, M) of the row with text and reference."""
        cond = torch.zeros(1, *x.shape)
        cond[0, : len(given.reference_log_mel)] = torch.from_numpy(given.reference_log_mel)
        embedded = self.time(t, given.guidance)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.model.time_embed, "forward", lambda _: embedded)
            self.model.clear_cache()
            v = self.model(
                x=torch.from_numpy(x)[None],
                cond=cond,
                text=torch.from_numpy(given.ids).long()[None],
                time=torch.tensor(t, dtype=torch.float32),
            )
        return v[0].numpy()  # type: ignore[no-any-return]

    def sample(self, given: Segment) -> FloatArray:
        """(reply, M) from the noise of the segment, which is drawn for its seed and index if it has none."""
        x = drawn(given, 0) if given.noise is None else given.noise
        for step, (t, then) in enumerate(pairwise(given.times)):
            v = self.velocity(given, x, float(t))
            if self.sampler.update == "euler":
                x = x + (then - t) * v
            else:
                x = (1 - then) * drawn(given, step + 1) + then * (x + (1 - t) * v)
            x = x.astype(np.float32)
        return x[len(given.reference_log_mel) :]


def drawn(given: Segment, step: int) -> FloatArray:
    """numpy's stream of a seed and segment; of a later step, that spawned from it under the step's number."""
    sequence = np.random.SeedSequence([given.seed, given.index], spawn_key=[step] if step else [])
    shape = given.frames, small.MELS
    return np.random.Generator(np.random.PCG64(sequence)).standard_normal(shape, dtype=np.float32)


def asked(frames: int, nfe: int, w: float = 0.0, **values: object) -> Segment:
    """A segment of a request: its noise is its seed's."""
    return dataclasses.replace(segment(frames, nfe=nfe, guidance=w), noise=None, seed=7, index=2, **values)


def sampled(engine: Synthesizer, given: Segment) -> FloatArray:
    """(reply, M)"""
    lane = engine.open(given)
    for _ in range(lane.steps_left):
        engine.step([lane.id])
    mel = engine.log_mel(lane.id)[len(given.reference_log_mel) :]
    engine.close(lane.id)
    return mel


def from_noise(mel: FloatArray, given: Segment) -> FloatArray:
    """How far a reply has come from its first noise, which would hide an error."""
    return mel - drawn(given, 0)[len(given.reference_log_mel) :]


@pytest.mark.parametrize("nfe", NFES)
def test_a_lane_is_what_the_formula_makes(made: BuiltBundle, nfe: int) -> None:
    given = asked(70, nfe, 1.3 if made.bundle.manifest.dimensions.embeds_guidance else 0.0)
    wanted = from_noise(Plain(made).sample(given), given)
    for engine in (made.engine(), made.padded()):
        assert relative(from_noise(sampled(engine, given), given), wanted) <= PARITY

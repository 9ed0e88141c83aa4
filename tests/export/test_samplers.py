"""Bundles of each sampler against that sampler written out in numpy, over upstream's own DiT."""

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.mel import log_mel
from appliance.contract.sampler import Sampler
from appliance.engine import replay
from appliance.engine.cases import FEMALE
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.errors import InvalidRequest
from appliance.request import FloatArray, Segment
from export import assemble
from export.parity import comparison, oracles
from export.sources.checkpoint import CheckpointError, build_dit, build_vocoder, load_dit, load_vocos
from tests.engine.lanes import BATCHED, Padded, Watched, WatchedPadded, relative, segment, solo, staggered
from tests.fakes.nvidia import open_on
from tests.fakes.nvidia.device import Device
from tests.harness import small, traces
from tests.harness.daemons import BUNDLE
from tests.harness.small import BuiltBundle, Workshop

pytestmark = [pytest.mark.torch, pytest.mark.once]

PARITY = 5e-5
NFES = (1, 2, 4)
SAMPLERS = {
    "none": Sampler(guidance="none", strengths=(2.0,)),
    "embedded": Sampler(guidance="embedded", strengths=(0.5, 3.0)),
    "renoise": Sampler("renoise", "none"),
    "renoise embedded": Sampler("renoise", "embedded", strengths=(0.5, 3.0)),
}


def with_sampler(workshop: Workshop, name: str) -> BuiltBundle:
    """A bundle of a sampler; re-noising bundles share the graphs of others."""
    made = workshop.sampled(SAMPLERS[name].guidance)
    manifest = dataclasses.replace(made.bundle.manifest, sampler=SAMPLERS[name])
    return dataclasses.replace(made, bundle=dataclasses.replace(made.bundle, manifest=manifest))


@pytest.fixture(params=SAMPLERS)
def made(request: pytest.FixtureRequest, workshop: Workshop) -> BuiltBundle:
    return with_sampler(workshop, request.param)


class Plain:
    """A checkpoint's velocity by upstream's DiT, its time embedding written out."""

    def __init__(self, made: BuiltBundle) -> None:
        self.sampler = made.bundle.manifest.sampler
        size = len(small.VOCABULARY)
        self.weights = dict(load_dit(made.files.checkpoint, made.arch, size, sampler=self.sampler))
        known = {name: value for name, value in self.weights.items() if "guidance_embed" not in name}
        self.model = small.upstream_dit(made.arch, size, known)

    def time(self, t: float, w: float) -> Tensor:
        """(1, D): two linear layers on sines and cosines of 1000·t, plus a projection of the waves of
        1000·w."""

        def waves(value: float) -> Tensor:
            # Upstream computes in float32, and the trained weights depend on its rounding of 1000·t.
            frequencies = torch.exp(torch.arange(128).float() * (-np.log(10_000.0) / 127))
            angles = 1000.0 * torch.tensor(value, dtype=torch.float32) * frequencies
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
            ids = torch.from_numpy(given.ids).long()[None]
            v = self.model(torch.from_numpy(x)[None], cond, ids, torch.tensor(t, dtype=torch.float32))
        return v[0].numpy()  # type: ignore[no-any-return]

    def sample(self, given: Segment) -> FloatArray:
        """(reply, M) from the segment's noise, which is drawn for its seed and index if the segment has
        none."""
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
    """numpy's stream of a seed and segment; for a later step, the stream that the step's number spawns from
    it."""
    sequence = np.random.SeedSequence([given.seed, given.index], spawn_key=[step] if step else [])
    shape = given.frames, small.MELS
    return np.random.Generator(np.random.PCG64(sequence)).standard_normal(shape, dtype=np.float32)


def asked(frames: int, nfe: int, w: float = 0.0, **values: Any) -> Segment:
    """Segment of a request whose noise comes from its seed."""
    return dataclasses.replace(segment(frames, nfe=nfe, guidance=w), noise=None, seed=7, index=2, **values)


def from_noise(mel: FloatArray, given: Segment) -> FloatArray:
    """Distance of a reply from its first noise, which would hide an error."""
    return mel - drawn(given, 0)[len(given.reference_log_mel) :]


def test_a_lane_follows_the_formula(made: BuiltBundle) -> None:
    device, plain = Device(), Plain(made)
    engines = made.engine(), made.padded(), Synthesizer(made.bundle, open_on(device), lanes=1)
    for nfe in NFES:
        given = asked(70, nfe, 1.3 if made.bundle.manifest.dimensions.embeds_guidance else 0.0)
        expected = from_noise(plain.sample(given), given)
        for engine in engines:
            assert relative(from_noise(small.reply(engine, given), given), expected) <= PARITY
    assert not device.wrong


@pytest.mark.parametrize(("sampling", "nfe"), [("short", 4), ("short-kv", 2)])
def test_a_renoised_path_has_the_noise_of_its_step(workshop: Workshop, sampling: Sampling, nfe: int) -> None:
    """The path stays (1 − t)·noise + t·mel; if there are two steps, both compute its keys."""
    made = with_sampler(workshop, "renoise")
    given = asked(90, nfe, sampling=sampling)
    plain, known = Plain(made), given.reference_log_mel
    x = drawn(given, 0)[len(known) :]
    for step, (t, then) in enumerate(pairwise(given.times)):
        path = (1 - t) * drawn(given, step)[: len(known)] + t * known
        whole = np.concatenate([path, x]).astype(np.float32)
        clean = x + (1 - t) * plain.velocity(given, whole, float(t))[len(known) :]
        x = ((1 - then) * drawn(given, step + 1)[len(known) :] + then * clean).astype(np.float32)
    for engine in (made.engine(), made.padded()):
        assert relative(from_noise(small.reply(engine, given), given), from_noise(x, given)) <= PARITY


def test_lanes_of_other_strengths_and_steps_share_calls_and_equal_themselves(made: BuiltBundle) -> None:
    embeds = made.bundle.manifest.dimensions.embeds_guidance
    weak, strong = (1.3, 2.7) if embeds else (0.0, 0.0)
    segments = [
        dataclasses.replace(segment(n, nfe=nfe, guidance=w, seed=n, sampling=sampling), index=n)
        for n, nfe, w, sampling in (
            (80, 4, weak, "exact"),
            (131, 2, strong, "exact"),
            (97, 4, strong, "short"),
            (64, 7, weak, "exact"),
        )
    ]
    for backend in (OrtBackend(1), Padded()):
        engine = Synthesizer(made.bundle, backend, lanes=len(segments))
        alone = [solo(engine, one) for one in segments]
        for actual, expected in zip(staggered(engine, segments), alone, strict=True):
            assert relative(actual, expected) <= BATCHED
        if embeds:  # the strength changes the sound
            other = dataclasses.replace(segments[0], guidance=strong)
            assert relative(solo(engine, other), alone[0]) > 10 * BATCHED


@pytest.mark.parametrize("backend", [Watched, WatchedPadded])
def test_a_step_is_one_row_where_guidance_is_not_of_two(workshop: Workshop, backend: type[Watched]) -> None:
    """Calls, the condition and the scheduler's costs count one row, whatever the strength."""
    two = contract.read(BUNDLE, verify=False)
    for bundle, rows in ((two, 2), *((with_sampler(workshop, name).bundle, 1) for name in SAMPLERS)):
        watch = backend(1)
        engine = Synthesizer(bundle, watch, lanes=2)
        watch.watch()
        given = segment(80, nfe=4, guidance=2.0)
        solo(engine, given)
        assert sum(run.shapes["latents"][0] for run in watch.counted("step", "step_keys")) == 4 * rows
        [opened] = watch.counted("condition")
        assert opened.shapes["condition"][0] == rows
        assert sum(call.rows for call in engine.costs._calls_of([(given, 0)])) == rows
        assert engine.max_batch == max(watch.max_batch // rows, 1)


def test_replay_has_each_steps_noise_and_refuses_as_the_bundle(workshop: Workshop, tmp_path: Path) -> None:
    made = with_sampler(workshop, "renoise embedded")
    few = dataclasses.replace(made.bundle.manifest.sampler, steps=NFES)
    manifest = dataclasses.replace(made.bundle.manifest, sampler=few)
    engine = Synthesizer(dataclasses.replace(made.bundle, manifest=manifest), OrtBackend(1), lanes=1)
    given = asked(60, 4, 1.3)
    expected = small.reply(engine, given)

    def read(nfe: int, **changes: Any) -> Segment:
        noise = np.stack([drawn(given, step) for step in range(4)])
        arrays = {"cond": given.reference_log_mel[None], "ids": given.ids[None], "n_frames": given.frames}
        np.savez(tmp_path / "case.npz", **(arrays | {"noise": noise, "guidance": 1.3} | changes))
        return replay.read_case(tmp_path / "case.npz", engine, nfe)

    mel, _ = replay.replay(engine, read(4))
    assert np.array_equal(mel[len(given.reference_log_mel) :], expected)
    for nfe, changes, message in (
        (7, {}, "must be 1, 2 or 4 with this bundle, not 7"),
        (2, {}, r"noise must be \(60, 100\), or \(2, 60, 100\), not \(4, 60, 100\)"),
        (4, {"guidance": 4.0}, "must be between 0.5 and 3 with this bundle, not 4"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            read(nfe, **changes)


# The exporter


def test_the_gate_measures_a_sampler_and_sees_another(workshop: Workshop) -> None:
    made = with_sampler(workshop, "renoise embedded")
    bundle, size = made.bundle, len(small.VOCABULARY)
    weights = load_dit(made.files.checkpoint, made.arch, size, sampler=bundle.manifest.sampler)
    reference = oracles.TorchOracle(build_dit(weights, made.arch, size), bundle.manifest.sampler)
    vocos = build_vocoder(*load_vocos(made.files.vocoder_path))
    cases = oracles.CaseSet(
        *(bundle.manifest.mel, bundle.vocabulary(), small.MAX_FRAMES, 1.3, bundle.manifest.sampler),
        step_frames=(41,),
        sample_frames=50,
        nfes=NFES,
        readings=((FEMALE, 330),),
    )
    expected = oracles.expect([lambda: reference], lambda: vocos, cases)
    report = comparison.measure(bundle, expected)
    assert report.failed == [] and report.samplings == [] and report.sampling == "exact"
    assert {row.nfe for row in report.rows if row.what == "sample"} == set(NFES)
    other = dataclasses.replace(SAMPLERS["renoise embedded"], update="euler")
    euler = Bundle(bundle.folder, dataclasses.replace(bundle.manifest, sampler=other))
    failed = comparison.measure(euler, dataclasses.replace(expected, graphs=[], trajectories=[])).failed
    assert any(line.startswith("sample at 50 frames, NFE 4") for line in failed)


def test_dmospeechs_published_layout(workshop: Workshop, tmp_path: Path) -> None:
    """Student, teacher and critic lie in one file with the scale of the mels; all numbers are random."""
    made, scale = with_sampler(workshop, "renoise"), 2.5
    state = dict(load_dit(made.files.checkpoint, made.arch, len(small.VOCABULARY)))
    times = {n.replace("time_embed.", "time_embed2."): v + 1 for n, v in state.items() if "time_embed." in n}
    models = {
        "feedforward_model.": state | times,
        "guidance_model.real_unet.": {name: value + 1 for name, value in state.items()},
        "guidance_model.fake_unet.": {name: value + 2 for name, value in state.items()},
        "guidance_model.cls_pred_branch.0.": {"weight": torch.zeros(3, 3)},
    }
    whole = {prefix + name: value for prefix, of in models.items() for name, value in of.items()}
    path = tmp_path / "model_85000.pt"
    torch.save({"model_state_dict": whole, "scale": torch.tensor(scale), "step": 85_000}, path)
    sampler = Sampler("renoise", "none", steps=(4,))
    given = {"sampler": sampler, "defaults": contract.Defaults(guidance=0.0, grid="uniform")}
    sources = dataclasses.replace(small.sources(made.files), checkpoint=path, **given)
    with traces.reusing():
        bundle = small.unmeasured(assemble.load(sources), tmp_path / "bundle")
    assert bundle.manifest.mel.scale == scale and bundle.manifest.sampler == sampler
    theirs = 1 - np.cos(np.pi / 2 * np.array([0.0, 0.25, 0.5, 0.75, 1.0]))
    assert np.abs(bundle.manifest.times(4) - theirs).max() <= 1e-15
    with pytest.raises(ValueError, match="must be 4 with this bundle, not 7"):
        bundle.manifest.times(7)
    engine = Synthesizer(bundle, OrtBackend(1), lanes=1)
    given = dataclasses.replace(asked(70, 4), times=theirs)
    expected = Plain(made).sample(given)
    assert relative(from_noise(small.reply(engine, given), given), from_noise(expected, given)) <= PARITY
    voiced = small.upstream_wave(made.files, scale * expected)
    assert relative(engine.decode(expected), voiced) <= 1e-4
    tone = np.sin(np.arange(24_000) / 9).astype(np.float32)
    spec, plain = bundle.manifest.mel, made.bundle.manifest.mel
    assert np.allclose(log_mel(tone, spec) * scale, log_mel(tone, plain), atol=1e-5)
    assert spec.fingerprint != plain.fingerprint
    for broken, sampled_by, message in (
        ({"model_state_dict": whole, "scale": scale}, Sampler(guidance="none"), "sampler: {update: renoise"),
        ({"model_state_dict": whole}, sampler, "contains no scale of its log-mels"),
    ):
        torch.save(broken, path)
        with pytest.raises(CheckpointError, match=message):
            assemble.load(dataclasses.replace(sources, sampler=sampled_by))

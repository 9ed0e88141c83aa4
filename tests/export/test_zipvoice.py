"""ZipVoice against results of upstream's code (`golden/generate.py`), and bundles against that model."""

import dataclasses
import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from appliance.client import Client
from appliance.contract.bundle import Bundle, Precision, Sampling
from appliance.contract.graphs import signatures
from appliance.contract.sampler import Sampler
from appliance.contract.schedule import time_grid
from appliance.engine.condition import condition_inputs, floor_index, padded_mel
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.errors import BundleError
from appliance.request import FloatArray, Segment
from export import assemble
from export.families import NAMED, FamilyError, family, of, zipvoice
from export.families.declaration import Point
from export.graphs import parts
from export.model import zipformer
from export.model.vocos import Vocos
from export.model.zipformer import ZipVoice
from export.parity import LARGEST_HALF, comparison, oracles
from export.precision import rewrites
from export.sources.checkpoint import CheckpointError
from tests.engine.lanes import Padded, relative, segment, solo, staggered
from tests.export import plan
from tests.export.zipvoice import (
    ARCH,
    FRAMES,
    KEPT,
    MAX_FRAMES,
    STEPS,
    TOKENS,
    TRACED,
    drawn,
    inputs,
    made,
    published,
)
from tests.fakes.nvidia import open_on
from tests.fakes.nvidia.device import Device
from tests.harness import small, traces
from tests.harness.daemons import running
from tests.harness.rows import rows
from tests.harness.small import Workshop

pytestmark = [pytest.mark.torch, pytest.mark.once]

PARITY = 5e-6
GOLDEN = Path(__file__).parent / "golden" / "zipvoice.npz"
KINDS = ("base", "distill")


@pytest.fixture(scope="module")
def golden() -> dict[str, FloatArray]:
    with np.load(GOLDEN) as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def models() -> dict[str, ZipVoice]:
    return {kind: drawn(distilled=kind == "distill") for kind in KINDS}


@torch.inference_mode()
def text_of(model: ZipVoice, ids: NDArray[np.int64], frames: int) -> torch.Tensor:
    """(N, M) of the text; token 0 is upstream's padding and our filler."""
    index = torch.from_numpy(floor_index(len(ids), frames)).long()
    return model.text(torch.tensor([*ids, 0]), index)


@pytest.mark.parametrize("frames", FRAMES)
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_the_model_computes_what_upstreams_does(
    kind: str, frames: int, models: dict[str, ZipVoice], golden: dict[str, FloatArray]
) -> None:
    model, given = models[kind], inputs(frames)
    text = text_of(model, given.ids, frames)
    assert relative(text.numpy()[::-KEPT], golden[f"{kind} text {frames}"]) <= PARITY
    w = torch.tensor([2.2]) if kind == "distill" else None
    v = model(given.noise[None], given.speech[None], text[None], torch.tensor([0.3]), w)
    assert relative(v[0].numpy()[::-KEPT], golden[f"{kind} velocity {frames}"]) <= PARITY


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_the_evidences_velocity_is_the_models_without_text(kind: str, models: dict[str, ZipVoice]) -> None:
    model, given, w = models[kind], inputs(FRAMES[0]), torch.tensor([2.2]) if kind == "distill" else None
    text, ids = text_of(model, given.ids, FRAMES[0])[None], torch.from_numpy(given.ids) - 1
    for drops in (False, True):
        found = of(ARCH).velocity(model, Point(given.noise, given.speech, ids, 0.3, 2.2, drops, None))
        plain = model(given.noise[None], given.speech[None], text * (not drops), torch.tensor([0.3]), w)[0]
        assert torch.allclose(found, plain, atol=1e-5)


@pytest.mark.parametrize("padding", [1, 2, 3, 37])
@torch.inference_mode()
def test_rows_of_a_batch_equal_themselves(padding: int, models: dict[str, ZipVoice]) -> None:
    """Lengths have every remainder of the last level, and padding holds random values."""
    model, longest = models["base"], 80 + padding
    rng = torch.Generator().manual_seed(padding)
    lengths = torch.tensor([longest, 80, 79, 78, 77])
    x, speech, text = (torch.randn(5, longest, 100, generator=rng) for _ in range(3))
    t = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    together = model(x, speech, text, t, None, lengths)
    for row, n in enumerate(lengths.tolist()):
        part = [part[row : row + 1, :n] for part in (x, speech, text)]
        alone = model(*part, t[row : row + 1])
        assert relative(together[row, :n].numpy(), alone[0].numpy()) <= PARITY


@pytest.mark.parametrize(("kind", "w"), [("base", 0.0), ("base", 1.0), ("distill", 3.0)])
def test_samples_equal_upstreams_solver(
    kind: str, w: float, models: dict[str, ZipVoice], golden: dict[str, FloatArray]
) -> None:
    named = NAMED["ZipVoice-LibriTTS" if kind == "base" else "ZipVoice-LibriTTS-Distill"]
    model, given, frames = models[kind], inputs(FRAMES[1]), FRAMES[1]
    text = text_of(model, given.ids, frames)
    times = time_grid(STEPS, grid="shift", shift=0.7).tolist()
    cond = given.speech[: frames // 3]
    *_, (found, _) = zipformer.states(model, cond, text, given.noise, times, w, named.sampler)
    assert relative(found.numpy(), golden[f"{kind} sample {w:g}"]) <= 2 * PARITY


# Tests without torch's models


def test_the_grid_is_upstreams() -> None:
    for nfe, shift in ((4, 0.5), (8, 0.7), (16, 0.5)):
        u = torch.linspace(0.0, 1.0, nfe + 1)
        expected = shift * u / (1 + (shift - 1) * u)
        assert np.allclose(time_grid(nfe, grid="shift", shift=shift), expected.numpy(), atol=1e-7)


@pytest.mark.parametrize(("tokens", "frames"), [(5, 17), (4, 16), (7, 8), (9, 9), (10, 9), (1, 40)])
def test_every_token_has_as_many_frames_and_the_rest_the_padding(tokens: int, frames: int) -> None:
    expected = [token for token in range(tokens) for _ in range(frames // tokens)]
    expected += [tokens] * (frames - len(expected))
    assert floor_index(tokens, frames).tolist() == expected
    given = condition_inputs(np.arange(tokens, dtype=np.int32), np.zeros((1, 3), np.float32), frames, "floor")
    assert given["ids"].tolist() == [*range(1, tokens + 1), 0]
    assert given["upsample_index"].dtype == np.int32


def test_the_unguided_row_changes_at_a_half() -> None:
    sampler = zipvoice.TWO_ROWS
    assert sampler.conditions == ("full", "speech", "none")
    unguided = [sampler.unguided_at(t).condition for t in (0.0, 0.5, 0.5001, 1.0)]
    assert unguided == ["speech", "speech", "none", "none"]
    weights = sampler.weights(np.array([0.0, 0.5, 0.75, 1.0]), 1.5)
    assert np.allclose(weights, [[2.0, -1.5], [1.0, -0.75], [0.625, -0.375]])
    assert Sampler().conditions == ("full", "none") and Sampler(guidance="none").conditions == ("full",)


def test_a_model_json_is_a_family(tmp_path: Path) -> None:
    one = assemble.load(published(tmp_path / "zipvoice"))
    assert one.sources.family.arch == TRACED and one.declaration is of(TRACED)
    # The file has the characters of the transcripts; the model saw the output of upstream's cleaners.
    assert one.vocabulary.tokens == (*" !',.?", *string.ascii_uppercase)
    assert "".join(one.vocabulary.split("A_b\u00c9C", list)) == "AC"  # without unknown characters
    assert (one.text.case, one.text.tokenizer) == ("upper", "letters")
    kept = one.weights()[zipvoice.EMBED]
    whole = torch.load(one.sources.checkpoint)["model"][zipvoice.EMBED]
    numbers = [0, *(TOKENS.index(token) + 1 for token in one.vocabulary.tokens)]
    assert torch.equal(kept, whole[numbers])
    as_it_is = dataclasses.replace(one.sources, tokenizer="char")
    assert assemble.load(as_it_is).vocabulary.tokens == tuple(TOKENS)
    assert one.text.duration == "tokens"
    other = tmp_path / "other.json"
    stated = json.loads((tmp_path / "zipvoice/model/model.json").read_text())
    for change, message in rows(__file__, "refused_model_json.jsonl"):
        other.write_text(json.dumps(stated | change))
        with pytest.raises((FamilyError, assemble.BundleFailed), match=message):
            assemble.load(dataclasses.replace(one.sources, family=family(str(other))))
    with pytest.raises(FamilyError, match="LuxTTS: is not declared here; known of its kind: ZipVoice-Li"):
        family("LuxTTS")


def test_foreign_options_of_a_checkpoint_are_named(tmp_path: Path) -> None:
    mine = published(tmp_path / "zip")
    theirs = small.sources(small.write_files(tmp_path / "f5", small.V1))

    def refused(sources: assemble.Sources, message: str, **changes: Any) -> None:
        with pytest.raises((CheckpointError, BundleError), match=message):
            assemble.load(dataclasses.replace(sources, **changes))

    refused(theirs, "of ZipVoice, not of F5-TTS: --family ZipVoice-Li", checkpoint=mine.checkpoint)
    refused(mine, "of F5-TTS, not of ZipVoice: --family F5TTS_v1", checkpoint=theirs.checkpoint)
    refused(
        mine, "does not have it: its family needs sampler: {guidance: two-row", sampler=zipvoice.DISTILLED
    )
    deeper = dataclasses.replace(mine.family, arch=ARCH)
    refused(mine, r"tensors are missing: text_encoder\.", family=deeper)
    lines = mine.vocab.read_text().splitlines(keepends=True)
    mine.vocab.write_text("".join(lines[:-1]))
    refused(mine, "was trained with 95 tokens, the given file has 94")
    mine.vocab.write_text("".join(lines[1:]))
    refused(mine, "must number its tokens from 0, one of them _")


# Precision


class Kinds(TorchFunctionMode):
    """Element types of each operator's inputs; a silent promotion is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[torch.dtype]] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point() and a.ndim]
        kinds = {tensor.dtype for tensor in given}
        name = function.__name__
        assert len(kinds) < 2 or name == "index_select", (name, kinds)
        wide = name == "matmul" and len(given) == 2 and given[1].ndim == 4 and given[1].dtype == torch.float32
        self.seen.setdefault("scores" if wide else name, set()).update(kinds)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", ["standard", "single"])
@torch.inference_mode()
def test_a_half_precision_step_keeps_critical_float32(form: parts.Form, tmp_path: Path) -> None:
    given = assemble.load(published(tmp_path, distilled=True, arch=ARCH, name="ZipVoice-LibriTTS"))
    rows, frames = (1, [90]) if form == "single" else (3, [90, 71, 86])
    rng = torch.Generator().manual_seed(4)
    latents = torch.randn(rows, 90, 100, generator=rng)
    condition = torch.randn(rows, 90, ARCH.fm_decoder_dim, generator=rng)
    times = torch.randn(4, ARCH.stacks, ARCH.fm_decoder_dim, generator=rng) * 0.3
    index, lengths = torch.arange(rows, dtype=torch.int32), torch.tensor(frames, dtype=torch.int32)

    steps = {
        compute: zipvoice.ZipVoiceStep(given.weights(), ARCH, 100, 256, compute, form)
        for compute in (torch.float32, torch.float16)
    }
    whole = steps[torch.float32](latents, condition, times, index, lengths)
    with Kinds() as kinds:
        half = steps[torch.float16](latents, condition.half(), times, index, lengths)
    for row, n in enumerate(frames):
        assert relative(half[row, :n].numpy(), whole[row, :n].numpy()) <= 3e-3
    f16, f32 = {torch.float16}, {torch.float32}
    assert kinds.seen["conv2d"] == kinds.seen["matmul"] == kinds.seen["sigmoid"] == f16
    for name in ("scores", "softmax", "exp", "log", "maximum", "rsqrt", "square", "tanh", "sum"):
        assert kinds.seen[name] == f32, name


@pytest.mark.parametrize("form", ["standard", "single"])
@pytest.mark.parametrize(("frames", "reference"), [(90, 40), (77, 4), (61, 12), (200, 196)])
@torch.inference_mode()
def test_a_reply_after_stored_keys_equals_the_whole(
    form: parts.Form, frames: int, reference: int, tmp_path: Path
) -> None:
    """Replies at every rate, after references shorter than a convolution's reach, with random padding."""
    given = published(tmp_path, distilled=True, arch=ARCH, name="ZipVoice-LibriTTS")
    weights = assemble.load(given).weights()
    rng = torch.Generator().manual_seed(frames)
    x, condition = torch.randn(1, frames, 100, generator=rng), torch.randn(1, frames, 64, generator=rng)
    at = torch.randn(4, ARCH.stacks, 64, generator=rng) * 0.3, torch.ones(1, dtype=torch.int32)
    step, keys, reply = (
        kind(weights, ARCH, 100, 256, torch.float32, form) for kind in zipvoice.DECLARATION.steps.values()
    )
    whole = step(x, condition, *at, torch.tensor([frames]))[:, reference:]
    padding = (0, 0, 0, 0 if form == "single" else 13)
    own = [torch.nn.functional.pad(part[:, reference:], padding, value=3.0) for part in (x, condition)]
    left = torch.tensor([frames - reference])
    first, *kept = keys(*own, *at, left, x[:, :reference], condition[:, :reference])
    for found in (first, reply(*own, *at, left, tuple(kept))):
        assert relative(found[:, : frames - reference].numpy(), whole.numpy()) <= PARITY


def test_products_that_overflow_in_half_are_named() -> None:
    model = drawn(TRACED, distilled=True)
    case = oracles.random_case(60, zipvoice.MEL, len(TOKENS), guidance=3.0)
    decode = Vocos(small.VOCOS).eval()

    def peaks() -> dict[str, oracles.Peak]:
        solved = zipvoice.ZipVoiceOracle(model, zipvoice.DISTILLED).trajectory(case, time_grid(4))
        assert zipvoice.DECLARATION.peaks is not None
        return {peak.where: peak for peak in zipvoice.DECLARATION.peaks(model, decode, [solved], case)}

    calm, name = peaks(), "fm_decoder.encoders.0.layers.0.feed_forward2.in_proj"
    assert all(peak.holds for peak in calm.values())
    assert {"step", "condition"} < {peak.graph for peak in calm.values()}
    assert not any(".norm" in where or "time_emb" in where for where in calm if where.startswith("fm_"))
    model.get_submodule(name).weight.mul_(40.0 * LARGEST_HALF / calm[name].value)
    assert not peaks()[name].is_finite


@pytest.mark.slow
@pytest.mark.parametrize("precision", [pytest.param("fp16", marks=pytest.mark.thorough), "int8"])
def test_each_precision_passes_the_gate_and_speaks(precision: Precision, workshop: Workshop) -> None:
    bundle = made(workshop, distilled=True, precision=precision, measured=True)
    m = bundle.manifest
    assert (m.batch_invariant, m.reference) == (precision == "fp16", "zipvoice")
    found = {row["what"]: row for row in m.parity["rows"]}
    assert found["condition"]["bound"] == zipvoice.DECLARATION.bounds[precision]["condition"]
    given = [asked(bundle, 77, 4, 3.0), asked(bundle, 131, 4, 3.0), asked(bundle, 131, 4, 3.0, "short-kv")]
    engine = Synthesizer(bundle, OrtBackend(1), lanes=3)
    alone = [solo(engine, one) for one in given]
    for one, other in zip(staggered(engine, given), alone, strict=True):
        assert relative(one, other) <= PARITY
    if precision == "fp16":  # the device's CPU widens the same weights
        device = Device()
        on_device = Synthesizer(bundle, open_on(device), lanes=1)
        for one in (given[0], given[-1]):
            assert relative(small.reply(on_device, one), small.reply(engine, one)) <= 5e-3
        assert not device.wrong
        assert "default" in m.variants and {"ort-cpu", "float32", "float32-sums"} < m.variants.keys()
    else:
        kinds = [node.op_type for node in onnx.load(bundle.graph("step")).graph.node]
        kept = sum(kind == "MatMul" for kind in kinds)
        assert kinds.count("MatMulInteger") > kept


@pytest.mark.slow
@pytest.mark.thorough
def test_int8_may_be_as_far_from_float_as_upstreams_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief_gate: None
) -> None:
    none = {"mel": 0.0, "wave mel": 0.0, "heard": 0.0}
    given = assemble.load(published(tmp_path, distilled=False))
    monkeypatch.setitem(given.declaration.bounds, "int8", given.declaration.bounds["int8"] | none)  # type: ignore[arg-type]
    options = assemble.BuildOptions("int8", MAX_FRAMES)
    expected = assemble.expectations(given, options)

    def build(name: str) -> Bundle:
        with traces.reusing():
            return assemble.build(given, options, tmp_path / name, lambda b: comparison.measure(b, expected))

    bundle = build("bundle")
    rows = {(row["what"], row["variant"]): row for row in bundle.manifest.parity["rows"]}
    for what in ("mel", "wave mel"):
        theirs, ours = rows[what, comparison.PEER], rows[what, "default"]
        assert 0 < ours["error"] <= ours["bound"] == pytest.approx(theirs["error"], rel=1e-2)
    assert comparison.PEER not in bundle.manifest.variants
    assert not list(bundle.folder.glob("*upstream*"))
    # If upstream's INT8 had no error, ours would have to have none.
    monkeypatch.setattr(rewrites, "quantise_as_upstream", lambda path, to: rewrites.save(onnx.load(path), to))
    with pytest.raises(assemble.BundleFailed, match=r"mel at .* NFE 7, variant default"):
        build("other")


# Bundles


@pytest.fixture(scope="module")
def bundles(workshop: Workshop) -> dict[str, Bundle]:
    return {kind: made(workshop, distilled=kind == "distill") for kind in KINDS}


def wanted(model: ZipVoice, given: Segment, sampler: Sampler) -> FloatArray:
    """(reply, M) by the torch model, which the golden file proves; `ids` are upstream's numbers."""
    text = text_of(model, given.ids, given.frames)
    cond, noise = (torch.from_numpy(np.asarray(a)) for a in (given.reference_log_mel, given.noise))
    *_, (mel, _) = zipformer.states(model, cond, text, noise, given.times.tolist(), given.guidance, sampler)
    return mel[len(cond) :].numpy()


@torch.inference_mode()
def reusing(model: ZipVoice, given: Segment, sampler: Sampler, keys: set[int]) -> FloatArray:
    """(reply, M) by the torch model if the reference follows its path and steps outside `keys` reuse its
    keys.

    A row computes new keys if its condition changes. Frames of the last group begin the reply.
    """
    decoder, known = model.fm_decoder, len(given.reference_log_mel) // 4 * 4
    texts = text_of(model, given.ids, given.frames)
    mel = padded_mel(given.reference_log_mel, given.frames)
    noise, speech = (torch.from_numpy(np.asarray(a)) for a in (given.noise, mel))
    shown = {"full": (texts, speech), "speech": (texts * 0, speech), "none": (texts * 0, speech * 0)}
    table, kept = zipformer.offsets_table(given.frames, model.arch.pos_dim), dict[int, tuple[str, Any]]()
    weights = torch.from_numpy(sampler.weights(given.times, given.guidance))

    def velocity(row: int, name: str, x: torch.Tensor, step: int) -> torch.Tensor:
        now = torch.tensor([float(given.times[step])], dtype=torch.float32)
        fresh = step in keys or kept[row][0] != name
        path = torch.cat([(1 - now) * noise[:known] + now * speech[:known], x]) if fresh else x
        whole = decoder.in_proj(torch.cat([path, *(part[-len(path) :] for part in shown[name])], dim=-1))
        w = torch.tensor([given.guidance]) if sampler.guidance == "embedded" else None
        before = zip(TRACED.fm_decoder_downsampling_factor, kept.get(row, ("", [[], []]))[1], strict=True)
        pasts = [zipformer.Keeping(known // rate) if fresh else zipformer.Kept(of) for rate, of in before]
        rows = decoder.time_rows(now, w).split(1, dim=1)
        v = decoder(whole[None], table, rows, zipformer.Frames(len(path)), pasts)[0]
        if fresh:
            kept[row] = name, [past.kept for past in pasts]
        return v[-len(x) :]

    x = noise[known:]
    for step, now in enumerate(given.times[:-1].tolist()):
        names = ["full", sampler.unguided_at(now).condition][: sampler.rows(given.guidance)]
        v = [velocity(row, name, x, step) for row, name in enumerate(names)]
        x = x + weights[step, 0] * v[0] + weights[step, 1] * v[-1]
    return x[len(given.reference_log_mel) - known :].numpy()


def asked(bundle: Bundle, frames: int, nfe: int, w: float, sampling: Sampling = "exact") -> Segment:
    given = segment(frames, nfe=nfe, guidance=w, seed=frames, sampling=sampling)
    ids = given.ids % bundle.manifest.vocab_size
    return dataclasses.replace(given, ids=ids, times=bundle.manifest.times(nfe))


def numbered(given: Segment, tokens: Sequence[str]) -> Segment:
    """The segment with upstream's token numbers."""
    return dataclasses.replace(given, ids=np.array([TOKENS.index(tokens[i]) + 1 for i in given.ids]))


REUSED: list[tuple[int, int, Sampling, set[int]]] = [
    # References have a third of the frames: whole groups, broken groups, and less than a group.
    (98, 4, "short", set(range(4))),
    (93, 4, "short-kv", {0, 1}),
    (150, 8, "short-kv", {0, 1}),
    (86, 4, "short-once", {0}),
    (10, 4, "short-kv", {0, 1}),
]


@pytest.mark.slow
def test_bundles_speak(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    """Samples of each bundle are the model's, alone at true length, padded, and in a batch; a daemon
    speaks."""
    for kind, bundle in bundles.items():
        m = bundle.manifest
        assert m.arch is None and m.shapes is not None and m.model["fm_decoder_dim"] == TRACED.fm_decoder_dim
        model = drawn(TRACED, distilled=kind == "distill")
        strengths = (3.0, 1.3) if kind == "distill" else (1.0, 0.0)
        segments = [
            asked(bundle, frames, nfe, strengths[number % 2])
            for number, (frames, nfe) in enumerate(((77, 8), (131, 4), (90, 8), (201, 5)))
        ]
        tokens = bundle.vocabulary().tokens

        answers = [wanted(model, numbered(given, tokens), m.sampler) for given in segments]
        for frames, nfe, sampling, keys in REUSED:
            segments.append(asked(bundle, frames, nfe, strengths[0], sampling))
            answers.append(reusing(model, numbered(segments[-1], tokens), m.sampler, keys))
        device = Device()
        on_device = Synthesizer(bundle, open_on(device), lanes=1)
        for number in (0, 5):
            assert relative(small.reply(on_device, segments[number]), answers[number]) <= PARITY
        assert not device.wrong
        for backend in (OrtBackend(1), Padded()):
            engine = Synthesizer(bundle, backend, lanes=len(segments))
            for given, expected in zip(segments, answers, strict=True):
                assert relative(small.reply(engine, given), expected) <= PARITY
            alone = [solo(engine, given) for given in segments]
            for found, expected in zip(staggered(engine, segments), alone, strict=True):
                assert relative(found, expected) <= PARITY
            with pytest.raises(ValueError, match="ids must be fewer than 77 frames, not 77"):
                engine.open(dataclasses.replace(segments[0], ids=np.zeros(77, np.int32)))
    folder = bundles["distill"].folder
    with running(tmp_path, speaks_from=folder, synthesis={"nfe": 4}) as box, Client(box.address) as client:
        box.add_voice()
        spoken: Any = client.speak(text="Hello there, my friend.", voice="ann", seed=3)
        assert (spoken.header.guidance, spoken.header.nfe_steps) == (3.0, 4)
        # The line has 24 characters; the voice speaks 51 in 3 s. The last frame has no hop.
        expected_s = 3.0 * 23 / 51
        assert abs(len(spoken.audio) / 2 / 24_000 - expected_s) < 0.2
        weak: Any = client.speak(text="Hello there, my friend.", voice="ann", seed=3, guidance=1.0)
        assert weak.audio != spoken.audio


# Plans, built ahead of time

MAX_LAYER_LAUNCHES = 47
"""Launches per layer, which include half of the nodes between two layers; the sixteen published layers take
42 each. TensorRT-RTX does not fuse attention if three modules read its scores."""
WIDER = 1.2
"""Most launches over a range of lengths, relative to a single length: sizes cut out the relative
positions."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from timing caches, which stay empty
@pytest.mark.tensorrt
def test_tensorrt_builds_every_graph(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["distill"]
    layers = sum(TRACED.fm_decoder_num_layers)
    one = {"K": (1, 4, 64), "L": (1, 256, 4096), "R": (2, 2, 2), "S": (128, 128, 128), "T": (64, 64, 64)}

    def built(graph: str, frames: plan.Range) -> plan.Plan:
        spec = signatures(bundle.manifest.dimensions)[graph]
        return plan.of(bundle.graph(graph), spec, one | {"N": frames})

    fixed, ranging = built("step", (512, 512, 512)), built("step", (576, 1024, 1024))
    assert fixed.asserts == () and fixed.mha_count == 0
    assert len(fixed.launches) <= MAX_LAYER_LAUNCHES * layers
    assert len(ranging.launches) <= WIDER * len(fixed.launches)
    for graph in ("modulation", "condition", "update", "vocoder"):
        assert built(graph, (64, 512, 1024)).launches

"""ZipVoice: a Zipformer whose stacks add a vector of the time, by name or by a checkpoint's `model.json`.

The settings are those of k2-fsa/ZipVoice at 2f7326f (`infer_zipvoice.py`, `run_libritts.sh`).
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from appliance.contract.bundle import Defaults, Shapes
from appliance.contract.graphs import FRAME_MULTIPLE, KeptSizes
from appliance.contract.mel import MelSpec
from appliance.contract.sampler import Condition, Sampler, Unguided
from appliance.contract.tokens import Tokenizer, Vocabulary
from appliance.errors import BundleError
from appliance.fields import Count, Ranged, from_mapping
from export.families.declaration import Declaration, Family, FamilyError, Given, Point
from export.graphs import parts
from export.graphs.to_onnx import ANY_ROWS
from export.model import zipformer
from export.model.arch import ZipVoiceArch
from export.model.zipformer import Frames, Keeping, Past, ZipVoice
from export.parity import comparison, oracles, peaks
from export.precision.rewrites import Roles
from export.sources import checkpoint
from export.sources.checkpoint import CheckpointError, Weights
from export.sources.reading import PAD, numbered

CLEANED = frozenset(f" {string.ascii_uppercase}!',.?")
"""Characters that upstream's English cleaners leave. The front end speaks rarer signs as words."""
LETTERS = frozenset(f" {string.ascii_uppercase}")
INITIAL = "zh0"
"""Token that only pinyin has."""
EMBED = "embed.weight"
GUIDANCE = "fm_decoder.guidance_scale_embed.weight"
DIALOG = "is a ZipVoice-Dialog (two speakers), which is not supported; only ZipVoice and ZipVoice-Distill are"
KIN = checkpoint.Kin(
    "ZipVoice",
    frozenset(("embed", "text_encoder", "fm_decoder")),
    "fm_decoder.",
    ((re.compile(r"(?:^|\.)(?:spk_embed\.|fm_decoder\.in_proj\.\d)"), DIALOG),),
)
MEL = MelSpec("vocos", scale=10.0, floor=1e-7, rounded=True)
TWO_ROWS = Sampler(unguided=(Unguided("speech", 0.5, 2.0), Unguided("none", 1.0, 1.0)))
"""Up to t = ½ the unguided row has the reference, and the strength counts twice."""
DISTILLED = Sampler(guidance="embedded")
EMILIA, LIBRITTS = 0.5, 0.7
"""Shifts of the grid."""


_PARTS = {
    "from_latents": r"from_latents\.",
    "scores": r"self_attn_weights\.in_proj",
    "positions": r"linear_pos",
    "values": r"self_attn\d\.in_proj",
    "attention.out": r"self_attn\d\.out_proj",
    "nonlinear.in": r"nonlin_attention\.in_proj",
    "nonlinear.out": r"nonlin_attention\.out_proj",
    "convolution.in": r"conv_module\d\.in_proj",
    "convolution.out": r"conv_module\d\.out_proj",
    "up": r"feed_forward\d\.in_proj",
    "down": r"feed_forward\d\.out_proj",
    "final": r"decoder\.out_proj",
}
"""Role of a step graph's product → pattern of its weight's name."""


def _role(weight: str) -> str:
    if found := [role for role, part in _PARTS.items() if re.search(part, weight)]:
        return found[0]
    raise ValueError(f"{weight}: not a matrix of the step graph")


ROLES = Roles(tuple(_PARTS), ("from_latents", "values", "final"), _role)


def _defaults(w: float, shift: float) -> Defaults:
    return Defaults(guidance=w, grid="shift", shift=shift, cross_fade_s=0.1)


def _named(name: str, tokenizer: Tokenizer, shift: float) -> tuple[Family, Family]:
    base = Family(name, ZipVoiceArch(), MEL, tokenizer, sampler=TWO_ROWS, defaults=_defaults(1.0, shift))
    distilled = _defaults(3.0, shift)
    return base, dataclasses.replace(base, name=f"{name}-Distill", sampler=DISTILLED, defaults=distilled)


NAMED = (*_named("ZipVoice-LibriTTS", "letters", LIBRITTS), *_named("ZipVoice", "emilia", EMILIA))


def find(name: str, raw: Mapping[str, Any]) -> Family | None:
    """Family of a `model.json` at the path `name`. Raises FamilyError."""
    path = Path(name)
    if name == "LuxTTS":
        names = ", ".join(one.name for one in NAMED)
        raise FamilyError(f"is not declared here; known of its kind: {names}")
    if path.suffix != ".json":
        return None
    arch = from_mapping(ZipVoiceArch, raw.get("model"), where="model", error=FamilyError)
    mel = _mel(raw.get("feature", {}), "feature")
    return dataclasses.replace(NAMED[0], name=path.parent.name or path.stem, arch=arch, mel=mel)


@dataclass(frozen=True)
class _Feature(Ranged):
    """Section `feature` of a model.json."""

    sampling_rate: Count = MEL.sample_rate_hz
    type: Literal["vocos"] = "vocos"


def _mel(raw: object, where: str) -> MelSpec:
    feature: _Feature = from_mapping(_Feature, raw, where=where, error=FamilyError)
    try:
        return dataclasses.replace(MEL, sample_rate_hz=feature.sampling_rate)
    except ValueError as error:
        raise FamilyError(f"{where}: {error}") from error


def vocabulary(path: Path, tokenizer: Tokenizer, voice: str = "") -> Vocabulary:
    """Vocabulary of a `tokens.txt`, the space first, without the padding token. Raises BundleError.

    For `letters` it has only characters that the model was trained on: the file lists all characters of
    LibriTTS's transcripts, and upstream's cleaners leave capitals and few marks. `char` stands for `simple`.
    """
    numbers = numbered(path)
    if tokenizer == "char":
        tokenizer = "simple"
    if (INITIAL in numbers) != (tokenizer == "emilia") and tokenizer != "espeak":
        has, remedy = "letters", "letters, or simple for others than LibriTTS's"
        if INITIAL in numbers:
            has, remedy = "phones and pinyin", "emilia, or espeak:LANG for other languages"
        raise BundleError(f"{path}: has {has}: --tokenizer {remedy}, not {tokenizer}")
    if tokenizer == "letters" and (missing := LETTERS - numbers.keys()):
        raise BundleError(
            f"{path}: lacks {', '.join(map(repr, sorted(missing)[:3]))} of LibriTTS's letters: for those of "
            "other texts pass --tokenizer simple"
        )
    known = numbers.keys() - {PAD} if tokenizer != "letters" else numbers.keys() & CLEANED
    tokens = sorted(known, key=lambda token: (token != " ", numbers[token]))
    try:
        return Vocabulary(tuple(tokens), tokenizer, voice)
    except ValueError as error:
        raise BundleError(f"{path}: not a vocabulary: {error}") from error


def load(given: Given) -> Weights:
    """Weights under the names of `export.model.zipformer`. The embedding is in the vocabulary's order."""
    stored = checkpoint.load(given.checkpoint, given.weights, KIN, given.adapter)
    if EMBED not in stored:
        raise CheckpointError(f"{given.checkpoint}: no ZipVoice checkpoint, it has no {EMBED}")
    embeds = checkpoint.check_guidance(given.checkpoint, stored, GUIDANCE, given.sampler)
    numbers, size = numbered(given.vocab), given.vocabulary.size
    if (rows := stored.entry(EMBED).shape[0]) != len(numbers):
        raise checkpoint.OtherVocabulary(
            f"{given.checkpoint}: was trained with {rows} tokens, the given file has {len(numbers)}; give "
            "the tokens.txt that belongs to this checkpoint"
        )
    order = [numbers[PAD], *(numbers[token] for token in given.vocabulary.tokens)]
    ordered = stored.replaced(EMBED, stored.entry(EMBED).rows(order))
    entries = {name: ordered.entry(name) for name in ordered}
    found = checkpoint.checked(
        given.checkpoint, entries, lambda: ZipVoice(given.arch, size, embeds_guidance=embeds)
    )
    return Weights({name: found.entry(name) for name in found}, averaged=stored.averaged)


def build(weights: Mapping[str, Tensor], given: Given) -> ZipVoice:
    return _model(weights, given.arch)


def _model(weights: Mapping[str, Tensor], arch: ZipVoiceArch) -> ZipVoice:
    size, embeds = len(weights[EMBED]) - 1, GUIDANCE in weights
    made: ZipVoice = checkpoint.filled(lambda: ZipVoice(arch, size, embeds_guidance=embeds), weights)
    return made


def shapes(arch: ZipVoiceArch) -> Shapes:
    """Shapes of the step graphs, and sizes of the keys and values that they keep."""
    stacks = list(
        zip(
            arch.fm_decoder_downsampling_factor,
            arch.fm_decoder_num_layers,
            arch.fm_decoder_cnn_module_kernel,
            strict=True,
        )
    )
    kept = KeptSizes(
        keys=arch.fm_decoder_num_heads * arch.query_head_dim,
        gated=3 * arch.fm_decoder_dim // 4,
        values=arch.fm_decoder_num_heads * arch.value_head_dim,
        rates=tuple(factor for factor, count, _ in stacks for _ in range(count)),
        reaches=tuple(kernel // 2 for _, count, kernel in stacks for _ in range(count)),
    )
    return Shapes(arch.fm_decoder_dim, arch.stacks, "floor", kept)


class TimeTable(nn.Module):
    """t (K) [, strength (K)] → rows (K, stacks, D), in float32."""

    def __init__(self, model: ZipVoice) -> None:
        super().__init__()
        decoder = model.fm_decoder
        for stack in decoder.plain_stacks():
            del stack.layers
        self.decoder = decoder

    def forward(self, t: Tensor, strength: Tensor | None = None) -> Tensor:
        return self.decoder.time_rows(t, strength)


class TextCondition(nn.Module):
    """ids (T), log_mel (N, M), upsample_index (N) → condition (G, N, D)."""

    def __init__(
        self, model: ZipVoice, conditions: Sequence[Condition], max_frames: int, compute: torch.dtype
    ) -> None:
        super().__init__()
        self.compute, self.conditions, mels = compute, conditions, model.mels
        weight = model.fm_decoder.in_proj.weight  # (D, [latents M | text M | reference M])
        self.from_text = parts.Matrix(weight[:, mels : 2 * mels], None, compute)
        self.from_mel = parts.Matrix(weight[:, 2 * mels :], model.fm_decoder.in_proj.bias, compute)
        self.embedding = parts.kept(model.embed.weight, compute)
        self.encoder = with_matrices(model.text_encoder, compute)
        self.table = parts.kept(zipformer.offsets_table(max_frames, model.arch.pos_dim), compute)

    def forward(self, ids: Tensor, log_mel: Tensor, upsample_index: Tensor) -> Tensor:
        x = self.encoder.in_proj(nn.functional.embedding(ids, self.embedding)[None])
        frames = Frames(ids.shape[0], torch.full((1,), ids.shape[0] - 1, dtype=torch.int32))
        text = self.encoder(x, self.table, [None], frames)[0].index_select(0, upsample_index)
        mel, said = self.from_mel(log_mel.to(self.compute)), self.from_text(text)
        unheard = self.from_mel(torch.zeros_like(log_mel).to(self.compute))
        shown = {"full": mel + said, "speech": mel, "none": unheard}
        return torch.stack([shown[name] for name in self.conditions])


class ZipVoiceStep(nn.Module):
    """Velocity of rows; see `appliance.contract.graphs.step`. The `single` form has no masks."""

    def __init__(
        self,
        weights: Weights,
        arch: ZipVoiceArch,
        mels: int,
        max_frames: int,
        compute: torch.dtype,
        form: parts.Form = "standard",
    ) -> None:
        super().__init__()
        decoder = _model(weights, arch).fm_decoder
        self.rows = 1 if form == "single" else ANY_ROWS
        self.single = form == "single"
        self.compute = compute
        self.from_latents = parts.Matrix(decoder.in_proj.weight[:, :mels], None, compute)
        # Reference and padded reply together may exceed `max_frames`; the tracer knows no bound of their sum.
        self.most = max_frames + FRAME_MULTIPLE
        self.table = parts.kept(zipformer.offsets_table(2 * self.most, arch.pos_dim), compute)
        self.decoder = with_matrices(decoder, compute)
        self.rates, self.layers = arch.fm_decoder_downsampling_factor, arch.fm_decoder_num_layers
        # Other graphs run these parts.
        del self.decoder.in_proj, self.decoder.time_embed
        if GUIDANCE in weights:
            del self.decoder.guidance_scale_embed
        for stack in decoder.plain_stacks():
            del stack.time_emb

    def forward(
        self, latents: Tensor, condition: Tensor, mod_table: Tensor, step_index: Tensor, lengths: Tensor
    ) -> Tensor:
        return self.velocity(latents, condition, mod_table, step_index, lengths)

    def velocity(
        self,
        latents: Tensor,
        condition: Tensor,
        mod_table: Tensor,
        step_index: Tensor,
        lengths: Tensor,
        pasts: Sequence[Past] | None = None,
        begin: int = 0,
    ) -> Tensor:
        """(R, N − begin, M) from frame `begin` on, of rows of N.

        `lengths` count the frames from `begin` on.
        """
        for frames in (latents.shape[1] - begin, begin, *(past.frames for past in pasts or ())):
            torch._check(frames <= self.most)
        times = mod_table.index_select(0, step_index).to(self.compute).split(1, dim=1)
        x = self.from_latents(latents.to(self.compute)) + condition
        own = Frames(latents.shape[1] - begin, None if self.single else lengths)
        velocity: Tensor = self.decoder(x, self.table, times, own.after(begin), pasts, begin)
        return velocity.float()


class ZipVoiceStepKeys(ZipVoiceStep):
    """See `appliance.contract.graphs.step_keys`."""

    def forward(  # type: ignore[override]
        self,
        latents: Tensor,
        condition: Tensor,
        mod_table: Tensor,
        step_index: Tensor,
        lengths: Tensor,
        reference: Tensor,
        reference_condition: Tensor,
    ) -> tuple[Tensor, ...]:
        begin = reference.shape[1]
        x, given = torch.cat([reference, latents], dim=1), torch.cat([reference_condition, condition], dim=1)
        pasts = [Keeping(begin // rate) for rate in self.rates]
        velocity = self.velocity(x, given, mod_table, step_index, lengths, pasts, begin)
        return velocity, *(kept for past in pasts for kept in past.kept)


class ZipVoiceStepReply(ZipVoiceStep):
    """See `appliance.contract.graphs.step_reply`."""

    def forward(  # type: ignore[override]
        self,
        latents: Tensor,
        condition: Tensor,
        mod_table: Tensor,
        step_index: Tensor,
        lengths: Tensor,
        kept: tuple[Tensor, ...],
    ) -> Tensor:
        ends = list(itertools.accumulate(zipformer.KEPT_PER_LAYER * count for count in self.layers))
        pasts = [zipformer.Kept(kept[begin:end]) for begin, end in itertools.pairwise([0, *ends])]
        return self.velocity(latents, condition, mod_table, step_index, lengths, pasts)


class ZipVoiceFeedForward(nn.Module):
    """The model's feed-forward, with the constants of SwooshL in the biases of its products."""

    def __init__(self, plain: zipformer.ZipformerFeedForward, compute: torch.dtype) -> None:
        super().__init__()
        first, second = plain.in_proj, plain.out_proj
        self.in_proj = parts.Matrix(first.weight, first.bias - zipformer.SWOOSH_L.right, compute)
        self.out_proj = after_swoosh(second, zipformer.SWOOSH_L, compute)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out_proj(swoosh(self.in_proj(x)).to(x.dtype))
        return y


class ZipVoiceConvolution(nn.Module):
    """The model's convolution, with the constants of SwooshR in the biases around it.

    It is a convolution of two axes with one row, because ONNX Runtime's blocked kernels require two axes.
    """

    def __init__(self, plain: zipformer.Convolution, compute: torch.dtype) -> None:
        super().__init__()
        self.in_proj = parts.Matrix(plain.in_proj.weight, plain.in_proj.bias, compute)
        depthwise = plain.depthwise_conv
        assert depthwise.bias is not None
        self.weight = parts.kept(depthwise.weight[:, :, None], compute)
        self.bias = parts.kept(depthwise.bias - zipformer.SWOOSH_R.right, compute)
        self.out_proj = after_swoosh(plain.out_proj, zipformer.SWOOSH_R, compute)

    def forward(self, x: Tensor, valid: Tensor | None, past: Past) -> Tensor:
        reach = self.weight.shape[3] // 2
        y = past.led(zipformer.gated(self.in_proj(x), valid), reach).mT[:, :, None]
        if past.leads:
            y = F.pad(y, (0, reach))
        around = (0, 0 if past.leads else reach)
        y = F.conv2d(y, self.weight, self.bias, padding=around, groups=y.shape[1])[:, :, 0].mT
        z: Tensor = self.out_proj(swoosh(y).to(x.dtype))
        return z


def swoosh(x: Tensor) -> Tensor:
    """ln(1 + eˣ) − 0.08·x in float32: a Swoosh without its constants.

    From 20 on it is x, before eˣ overflows.
    """
    x = x.float()
    return torch.maximum(x, (x.clamp(max=20.0).exp() + 1.0).log()) - zipformer.SLOPE * x


def after_swoosh(linear: nn.Linear, of: zipformer.Swoosh, compute: torch.dtype) -> parts.Matrix:
    """The product after `swoosh` of x − right. Its bias contains the rest, −0.08·right − down."""
    sums = linear.weight.to(compute).double().sum(dim=1)
    bias = linear.bias - (zipformer.SLOPE * of.right + of.down) * sums
    return parts.Matrix(linear.weight, bias.float(), compute)


def with_matrices(module: Any, compute: torch.dtype) -> Any:
    """Replace layers in place by those of graphs, and convert all other weights except those of norms."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            module.add_module(name, parts.Matrix(child.weight, child.bias, compute))
        elif isinstance(child, zipformer.ZipformerFeedForward):
            module.add_module(name, ZipVoiceFeedForward(child, compute))
        elif isinstance(child, zipformer.Convolution):
            module.add_module(name, ZipVoiceConvolution(child, compute))
        elif isinstance(child, zipformer.Bypass):
            child.to(compute)
        else:
            with_matrices(child, compute)
    return module.requires_grad_(False)


def _text(model: ZipVoice, case: oracles.Case) -> Tensor:
    given = oracles.condition_inputs(case, "floor")
    ids, index = (torch.from_numpy(given[name]).long() for name in ("ids", "upsample_index"))
    return model.text(ids, index)


class ZipVoiceOracle(oracles.TorchOracle):
    """Oracle on the plain torch model of `export.model.zipformer`."""

    model: Any
    upsampling = "floor"  # type: ignore[assignment]

    def _states(
        self, case: oracles.Case, times: NDArray[np.float64], dtype: torch.dtype
    ) -> Iterator[tuple[Tensor, Tensor]]:
        with torch.inference_mode():
            text = _text(self.model, case)
        cond, noise = (torch.from_numpy(array).to(dtype) for array in (case.cond, case.noise))
        at = times.tolist()
        return zipformer.states(self.model, cond, text, noise, at, case.guidance, self.sampler)

    def _rows(self, t: Tensor, strength: Tensor) -> Tensor:
        w = strength[None] if self.sampler.guidance == "embedded" else None
        rows: Tensor = self.model.fm_decoder.time_rows(t[None], w)[0]
        return rows

    def _condition(self, case: oracles.Case, dtype: torch.dtype) -> Tensor:
        text, speech = _text(self.model, case), torch.zeros(case.frames, self.model.mels, dtype=dtype)
        speech[: len(case.cond)] = torch.from_numpy(case.cond)
        shown = {"full": (speech, text), "speech": (speech, text * 0), "none": (speech * 0, text * 0)}
        parts = zip(*(shown[name] for name in self.sampler.conditions), strict=True)
        projected: Tensor = self.model.projected(*(torch.stack(part) for part in parts))
        return projected


def _velocity(model: ZipVoice, at: Point) -> Tensor:
    frames, tokens, index = len(at.latents), len(at.ids), at.index
    if index is None:
        index = torch.clamp(torch.arange(frames) // max(frames // tokens, 1), max=tokens)
    text = model.text(torch.cat([at.ids + 1, at.ids[:1] * 0]), index) * (not at.drops_text)
    strength = torch.tensor([at.w]) if hasattr(model.fm_decoder, "guidance_scale_embed") else None
    return model(at.latents[None], at.cond[None], text[None], torch.tensor([at.t]), strength)[0]


_IN_FLOAT32 = frozenset({"norm", "time_embed", "time_emb", "guidance_scale_embed"})
"""Modules that every precision computes in float32, as it computes attention scores and Swoosh."""


@torch.inference_mode()
def _peaks(
    model: ZipVoice, decode: nn.Module, solved: Sequence[oracles.Trajectory], short: oracles.Case
) -> Sequence[oracles.Peak]:
    found = peaks.Peaks()
    with peaks.watched(model, found.noting("step", {"text_encoder": "condition"}), _IN_FLOAT32):
        for case, time, latents in peaks.points(solved, short):
            speech = nn.functional.pad(torch.from_numpy(case.cond), (0, 0, 0, case.frames - len(case.cond)))
            text, w = _text(model, case), torch.tensor([case.guidance])
            strength = w if hasattr(model.fm_decoder, "guidance_scale_embed") else None
            model(torch.from_numpy(latents)[None], speech[None], text[None], torch.tensor([time]), strength)
    return found.with_vocoder(decode, solved)


DECLARATION = Declaration(
    name="ZipVoice",
    arch=ZipVoiceArch,
    named=NAMED,
    mark="fm_decoder.in_proj.weight",
    find=find,
    load=load,
    build=build,
    shapes=shapes,
    modulation=lambda weights, given, max_frames, stored, compute: TimeTable(build(weights, given)),
    condition=lambda weights, given, max_frames, stored, compute: TextCondition(
        build(weights, given), given.sampler.conditions, max_frames, compute
    ),
    steps={"step": ZipVoiceStep, "step_keys": ZipVoiceStepKeys, "step_reply": ZipVoiceStepReply},
    single=("step", "step_keys", "step_reply"),
    samplings=(),
    precisions=("fp32", "fp16", "int8"),
    bounds={
        "fp32": {
            "modulation": 5e-6,
            "condition": 5e-6,
            "step": 1e-5,
            "vocoder": 1e-5,
            "sample": 5e-5,
            "wave": 5e-4,
        },
        # The bounds are three to ten times the errors of full-size random weights:
        # tests/records/precision.md.
        "fp16": {
            "modulation": 5e-6,
            "condition": 3e-3,
            "step": 5e-3,
            "vocoder": 1e-2,
            "sample": 5e-3,
            "wave": 1e-1,
        },
        "int8": comparison.BOUNDS["int8"] | {"modulation": 5e-6},
    },
    oracles=lambda load, given: [lambda: ZipVoiceOracle(build(load(), given), given.sampler)],
    velocity=_velocity,
    peaks=_peaks,
    vocabulary=vocabulary,
    weights="raw",
    roles=ROLES,
    upstream_int8=True,
    duration="tokens",
    reference="zipvoice",
)

"""ZipVoice's flow decoder and text encoder in plain torch (arXiv 2506.13053).

Layers and names are those of k2-fsa/ZipVoice at 2f7326f (`models/modules/zipformer.py`), if they act in
inference. Upstream pads rows of a batch and downsamples the padding. Here the last frame of each row fills
its tail at every level, so a row in a batch equals the row alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.sampler import Sampler
from export.model.arch import ZipVoiceArch
from export.model.exact import wide

MASKED_SCORE = -1000.0
PERIOD = 10_000.0
GUIDANCE_WIDTH = 192
"""Width of a strength's waves, however wide those of a time are."""


@dataclass(frozen=True)
class Frames:
    """Lengths of rows at one level. If `lengths` is None, every row has n frames."""

    n: int
    lengths: Tensor | None = None
    """(R,)"""

    def valid(self) -> Tensor | None:
        """(R, n)"""
        if self.lengths is None:
            return None
        return torch.arange(self.n, device=self.lengths.device) < self.lengths[:, None]

    def after(self, frames: int) -> Frames:
        """Lengths with `frames` more frames before each row."""
        if not frames:
            return self
        return Frames(frames + self.n, None if self.lengths is None else frames + self.lengths)

    def fewer(self, factor: int) -> Frames:
        lengths = None if self.lengths is None else (self.lengths + (factor - 1)) // factor
        return Frames((self.n + factor - 1) // factor, lengths)


class Past:
    """Frames before a stack's own, which its layers mix in. This base class has none."""

    frames = 0
    """Number of the reference's frames that are not among the stack's own."""
    leads = False
    """True if convolutions have frames in place of the zeros before the first frame."""

    def joined(self, x: Tensor) -> Tensor:
        """x (R, n, A) of the stack's frames → (R, frames + n, A), to attend to."""
        return x

    def led(self, x: Tensor, reach: int) -> Tensor:
        """x (R, n, D) → a convolution's input, of reach + n frames if `leads`."""
        return x


WHOLE = Past()


class Keeping(Past):
    """Collects the states of the first `begin` frames for later steps, by layer in the order of computation.

    The states of a layer are keys, gated values, and two each of values and of the last frames before a
    convolution.
    """

    def __init__(self, begin: int) -> None:
        self.begin, self.kept = begin, list[Tensor]()

    def joined(self, x: Tensor) -> Tensor:
        self.kept.append(x[:, : self.begin])
        return x

    def led(self, x: Tensor, reach: int) -> Tensor:
        self.kept.append(F.pad(x[:, : self.begin], (0, 0, reach, 0)).narrow(1, self.begin, reach))
        return x


class Kept(Past):
    """The reference of an earlier step, from the states of a `Keeping`."""

    leads = True

    def __init__(self, kept: Sequence[Tensor]) -> None:
        self.frames, self._next = kept[0].shape[1], iter(kept)

    def joined(self, x: Tensor) -> Tensor:
        return torch.cat([next(self._next), x], dim=1)

    def led(self, x: Tensor, reach: int) -> Tensor:
        return self.joined(x)


KEPT_PER_LAYER = 6
"""Number of tensors that `Keeping` collects for each layer."""


SLOPE = 0.08


@dataclass(frozen=True)
class Swoosh:
    """ln(1 + e^(x − right)) − SLOPE·x − down."""

    right: float
    down: float

    def __call__(self, x: Tensor) -> Tensor:
        # torch's softplus has a threshold; this is exact on both sides of it.
        shifted = x - self.right
        softplus = shifted.clamp(min=0.0) + torch.log1p(torch.exp(-shifted.abs()))
        return softplus - SLOPE * x - self.down


SWOOSH_L, SWOOSH_R = Swoosh(4.0, 0.035), Swoosh(1.0, 0.313261687)


def waves(values: Tensor, width: int) -> Tensor:
    """(K,) → (K, width): cosines, then sines, of the value at falling rates, as float32 rounds them."""
    half = width // 2
    rates = torch.exp(-math.log(PERIOD) * torch.arange(half, dtype=torch.float32) / half)
    angles = (values.float()[:, None] * rates).to(values)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def offsets_table(most: int, width: int) -> Tensor:
    """(2·most, width) encoding of the offsets 1 − most to most: sines between cosines, the last column 1."""
    offset = torch.arange(1 - most, most + 1, dtype=torch.float32)[:, None]
    span = width**0.5
    bent = span * offset.sign() * ((offset.abs() + span).log() - math.log(span))
    angle = (bent / (width / (2.0 * math.pi))).atan() * torch.arange(1, width // 2 + 1)
    table = torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(1)
    table[:, -1] = 1.0
    return table


def offsets_of(table: Tensor, n: int, keys: int) -> Tensor:
    """(n + keys, width): offsets 1 − keys to n, of the last n frames to all `keys`."""
    return table.narrow(0, table.shape[0] // 2 - keys, n + keys)


class ZipformerFeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out_proj(SWOOSH_L(self.in_proj(x)))
        return y


class AttentionWeights(nn.Module):
    """Shares (R, heads, n, keys) that three modules of a layer use: q·k, unscaled, and a term by offset."""

    def __init__(self, dim: int, heads: int, arch: ZipVoiceArch) -> None:
        super().__init__()
        self.heads, self.width, self.pos_width = heads, arch.query_head_dim, arch.pos_head_dim
        self.in_proj = nn.Linear(dim, (2 * self.width + self.pos_width) * heads)
        self.linear_pos = nn.Linear(arch.pos_dim, heads * self.pos_width, bias=False)

    def forward(self, x: Tensor, offsets: Tensor, heard: Tensor | None, past: Past) -> Tensor:
        """x (R, n, D), offsets (n + keys, pos_dim), heard (R, keys): keys that are not padding."""
        n, whole = x.shape[1], self.width * self.heads
        q, k, p = self.in_proj(x).split((whole, whole, self.pos_width * self.heads), dim=-1)
        k = past.joined(k)
        keys, span = k.shape[1], k.shape[1] + n
        q, k, p = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, p))
        # Four axes, because with a product in float16 ONNX Runtime 1.31 crashes on the transposition of
        # three.
        places = self.linear_pos(offsets.to(x.dtype))[None]
        places = places.unflatten(-1, (self.heads, -1)).permute(0, 2, 3, 1)
        near = (p @ places).flatten(2)  # (R, heads, n·span): row i has offsets from -(keys - 1) on
        # A shift of n − 1, and rows that are one shorter, put the offset of key j to frame i at (i, j).
        near = near.narrow(2, n - 1, n * (span - 1)).unflatten(2, (n, span - 1))[..., :keys]
        scores = wide(q) @ wide(k).mT + wide(near)
        if heard is not None:
            scores = scores.masked_fill(~heard[:, None, None], MASKED_SCORE)
        return scores.softmax(dim=-1).to(x.dtype)


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj, self.out_proj = nn.Linear(dim, heads * width), nn.Linear(heads * width, dim)

    def forward(self, x: Tensor, shares: Tensor, past: Past) -> Tensor:
        y: Tensor = self.out_proj(attend(past.joined(self.in_proj(x)), shares))
        return y


class NonlinearAttention(nn.Module):
    """tanh(s)·x by the first head's shares, times y."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = 3 * dim // 4
        self.in_proj, self.out_proj = nn.Linear(dim, 3 * hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor, shares: Tensor, past: Past) -> Tensor:
        s, x, y = self.in_proj(x).chunk(3, dim=-1)
        gated = past.joined(x * wide(s).tanh().to(x.dtype))
        z: Tensor = self.out_proj(attend(gated, shares[:, :1]) * y)
        return z


def attend(x: Tensor, shares: Tensor) -> Tensor:
    """x (R, keys, A) by shares (R, heads, n, keys) → (R, n, A)."""
    values = x.unflatten(-1, (shares.shape[1], -1)).transpose(1, 2)
    return (shares @ values[:, :, : shares.shape[3]]).transpose(1, 2).flatten(2)


class Convolution(nn.Module):
    """Gated linear unit, depthwise convolution, SwooshR."""

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.depthwise_conv = nn.Conv1d(dim, dim, kernel, groups=dim)

    def forward(self, x: Tensor, valid: Tensor | None, past: Past) -> Tensor:
        reach = self.depthwise_conv.kernel_size[0] // 2
        y = past.led(gated(self.in_proj(x), valid), reach)
        y = self.depthwise_conv(F.pad(y.mT, (0 if past.leads else reach, reach))).mT
        z: Tensor = self.out_proj(SWOOSH_R(y))
        return z


def gated(x: Tensor, valid: Tensor | None) -> Tensor:
    """(R, n, 2·D) → (R, n, D): one half times the sigmoid of the other, zero if `valid` (R, n) is false."""
    x, gate = x.chunk(2, dim=-1)
    y = x * gate.sigmoid()
    return y if valid is None else y.masked_fill(~valid[..., None], 0.0)


class BiasNorm(nn.Module):
    """x·e^log_scale / √mean((x − bias)²), in float32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias, self.log_scale = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        y = wide(x)
        scale = (y - wide(self.bias)).square().mean(dim=-1, keepdim=True).rsqrt()
        return (y * (scale * wide(self.log_scale).exp())).to(x.dtype)


class Bypass(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bypass_scale = nn.Parameter(torch.full((dim,), 0.5))

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        return before + (after - before) * self.bypass_scale


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int, kernel: int, arch: ZipVoiceArch) -> None:
        super().__init__()
        self.self_attn_weights = AttentionWeights(dim, heads, arch)
        self.self_attn1 = SelfAttention(dim, heads, arch.value_head_dim)
        self.self_attn2 = SelfAttention(dim, heads, arch.value_head_dim)
        self.feed_forward1 = ZipformerFeedForward(dim, hidden * 3 // 4)
        self.feed_forward2 = ZipformerFeedForward(dim, hidden)
        self.feed_forward3 = ZipformerFeedForward(dim, hidden * 5 // 4)
        self.nonlin_attention = NonlinearAttention(dim)
        self.conv_module1, self.conv_module2 = Convolution(dim, kernel), Convolution(dim, kernel)
        self.norm = BiasNorm(dim)
        self.bypass = Bypass(dim)
        self.bypass_mid = Bypass(dim)

    def forward(
        self,
        x: Tensor,
        offsets: Tensor,
        time: Tensor | None,
        valid: Tensor | None,
        heard: Tensor | None,
        past: Past,
    ) -> Tensor:
        """x (R, n, D), time (R, 1, D), which is added three times; masks of frames and of keys."""
        whole, shares = x, self.self_attn_weights(x, offsets, heard, past)
        x = self.timed(x, time)
        x = x + self.feed_forward1(x)
        x = x + self.nonlin_attention(x, shares, past)
        x = x + self.self_attn1(x, shares, past)
        x = self.timed(x, time)
        x = x + self.conv_module1(x, valid, past)
        x = x + self.feed_forward2(x)
        x = self.bypass_mid(whole, x)
        x = x + self.self_attn2(x, shares, past)
        x = self.timed(x, time)
        x = x + self.conv_module2(x, valid, past)
        x = x + self.feed_forward3(x)
        y: Tensor = self.bypass(whole, self.norm(x))
        return y

    @staticmethod
    def timed(x: Tensor, time: Tensor | None) -> Tensor:
        return x if time is None else x + time


class Stack(nn.Module):
    """Layers at one rate, with a projection of the time."""

    def __init__(
        self, count: int, dim: int, heads: int, hidden: int, kernel: int, arch: ZipVoiceArch, *, timed: bool
    ) -> None:
        super().__init__()
        if timed:
            self.time_emb = nn.Sequential(nn.Identity(), nn.Linear(arch.time_embed_dim, dim))
        self.layers = nn.ModuleList(Layer(dim, heads, hidden, kernel, arch) for _ in range(count))

    def forward(self, x: Tensor, table: Tensor, time: Tensor | None, frames: Frames, past: Past) -> Tensor:
        attended = frames.after(past.frames)
        offsets = offsets_of(table, frames.n, attended.n)
        valid, heard = frames.valid(), attended.valid()
        for layer in self.layers:
            x = layer(x, offsets, time, valid, heard, past)
        return x


class ZipformerDownsample(nn.Module):
    """Softmax-weighted sums of `factor` frames, in float32. The last frame of a row fills its tail."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(factor))

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        factor = self.bias.shape[0]
        valid = frames.valid()
        if valid is None or frames.lengths is None:
            last = x[:, -1:]
        else:
            place = (frames.lengths - 1)[:, None, None].long()
            last = x.gather(1, place.expand(-1, 1, x.shape[2]))
            x = torch.where(valid[..., None], x, last)
        n = frames.fewer(factor).n
        whole = torch.cat([x, last.expand(-1, factor - 1, -1)], dim=1).narrow(1, 0, n * factor)
        shares = wide(self.bias).softmax(dim=0)[:, None]
        return (wide(whole).unflatten(1, (n, factor)) * shares).sum(dim=2).to(x.dtype)


class DownsampledStack(nn.Module):
    def __init__(self, stack: Stack, dim: int, factor: int) -> None:
        super().__init__()
        self.downsample = ZipformerDownsample(factor)
        self.encoder = stack
        self.out_combiner = Bypass(dim)
        self.factor = factor

    def forward(self, x: Tensor, table: Tensor, time: Tensor | None, frames: Frames, past: Past) -> Tensor:
        y = self.encoder(self.downsample(x, frames), table, time, frames.fewer(self.factor), past)
        y = y[:, :, None].expand(-1, -1, self.factor, -1).flatten(1, 2).narrow(1, 0, frames.n)
        z: Tensor = self.out_combiner(x, y)
        return z


class Zipformer(nn.Module):
    """Stacks between two projections. Unless `timed`, they run at one rate, as in the text encoder."""

    def __init__(
        self,
        widths: tuple[int, int, int],
        layers: Sequence[tuple[int, int, int]],
        heads: int,
        hidden: int,
        arch: ZipVoiceArch,
        *,
        timed: bool = False,
        embeds_guidance: bool = False,
    ) -> None:
        """`widths` of input, stacks and output. `layers`: (factor, number, kernel) of each stack."""
        super().__init__()
        given, dim, made = widths
        self.time_width = arch.time_embed_dim
        self.in_proj, self.out_proj = nn.Linear(given, dim), nn.Linear(dim, made)
        stacks = [
            (Stack(count, dim, heads, hidden, kernel, arch, timed=timed), factor)
            for factor, count, kernel in layers
        ]
        self.encoders = nn.ModuleList(
            stack if factor == 1 else DownsampledStack(stack, dim, factor) for stack, factor in stacks
        )
        if timed:
            width = arch.time_embed_dim
            self.time_embed = nn.Sequential(
                nn.Linear(width, 2 * width), nn.Identity(), nn.Linear(2 * width, width)
            )
        if embeds_guidance:
            self.guidance_scale_embed = nn.Linear(GUIDANCE_WIDTH, arch.time_embed_dim, bias=False)

    def forward(
        self,
        x: Tensor,
        table: Tensor,
        times: Sequence[Tensor | None],
        frames: Frames,
        pasts: Sequence[Past] | None = None,
        begin: int = 0,
    ) -> Tensor:
        """x (R, n, D) after the input projection, `times` (R, 1, D) and the past of each stack → (R, n −
        begin, output).
        """
        pasts = pasts or [WHOLE] * len(self.encoders)
        for stack, time, past in zip(self.encoders, times, pasts, strict=True):
            x = stack(x, table, time, frames, past)
        y: Tensor = self.out_proj(x[:, begin:] if begin else x)
        return y

    def time_rows(self, t: Tensor, strength: Tensor | None = None) -> Tensor:
        """t (K,) → (K, stacks, D): the vector that each stack adds."""
        seen = waves(t, self.time_width)
        if strength is not None:
            seen = seen + self.guidance_scale_embed(waves(strength, GUIDANCE_WIDTH))
        seen = self.time_embed[2](SWOOSH_R(self.time_embed[0](seen)))
        active = SWOOSH_R(seen)
        return torch.stack([plain.time_emb[1](active) for plain in self.plain_stacks()], dim=1)

    def plain_stacks(self) -> list[Any]:
        """The stacks inside, without any downsampling around them."""
        return [getattr(stack, "encoder", stack) for stack in self.encoders]


class ZipVoice(nn.Module):
    """Velocity of latents at a time, given reference and text. Names are those of upstream's checkpoints.

    Row 0 of the embedding is the padding token's, which upstream has at its own number.
    """

    def __init__(self, arch: ZipVoiceArch, vocab_size: int, *, embeds_guidance: bool = False) -> None:
        """`vocab_size` excludes the padding token."""
        super().__init__()
        self.arch, self.mels = arch, arch.feat_dim
        self.embed = nn.Embedding(vocab_size + 1, arch.text_embed_dim)
        self.text_encoder = Zipformer(
            (arch.text_embed_dim, arch.text_encoder_dim, arch.feat_dim),
            [(1, arch.text_encoder_num_layers, arch.text_encoder_cnn_module_kernel)],
            arch.text_encoder_num_heads,
            arch.text_encoder_feedforward_dim,
            arch,
        )
        stacks = (
            arch.fm_decoder_downsampling_factor,
            arch.fm_decoder_num_layers,
            arch.fm_decoder_cnn_module_kernel,
        )
        self.fm_decoder = Zipformer(
            (3 * arch.feat_dim, arch.fm_decoder_dim, arch.feat_dim),
            list(zip(*stacks, strict=True)),
            arch.fm_decoder_num_heads,
            arch.fm_decoder_feedforward_dim,
            arch,
            timed=True,
            embeds_guidance=embeds_guidance,
        )

    def text(self, ids: Tensor, index: Tensor) -> Tensor:
        """ids (T,) of tokens + 1 and a last 0, the padding; index (N,) of each frame's token → (N, M).

        No token attends to the padding. Frames beyond the last token have the padding's encoding.
        """
        encoder, count = self.text_encoder, ids.shape[0]
        lengths = torch.tensor([count - 1])
        x = encoder.in_proj(self.embed(ids)[None])
        table = offsets_table(count, self.arch.pos_dim)
        return encoder(x, table, [None], Frames(count, lengths))[0].index_select(0, index)

    def projected(self, speech: Tensor, text: Tensor) -> Tensor:
        """Input projection of zero latents: (G, N, M) each → (G, N, D)."""
        nothing = torch.zeros_like(speech)
        y: Tensor = self.fm_decoder.in_proj(torch.cat([nothing, text, speech], dim=-1))
        return y

    def forward(
        self,
        latents: Tensor,
        speech: Tensor,
        text: Tensor,
        t: Tensor,
        strength: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """(R, N, M) each, at times t (R,) → velocity (R, N, M). `lengths` (R,) are those of padded rows."""
        x = self.fm_decoder.in_proj(torch.cat([latents, text, speech], dim=-1))
        rows = self.fm_decoder.time_rows(t, strength).split(1, dim=1)
        table = offsets_table(latents.shape[1], self.arch.pos_dim)
        y: Tensor = self.fm_decoder(x, table, rows, Frames(latents.shape[1], lengths))
        return y


@torch.inference_mode()
def states(
    model: ZipVoice,
    cond: Tensor,
    text: Tensor,
    noise: Tensor,
    times: Sequence[float],
    guidance: float,
    sampler: Sampler,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Latents (N, M) before each step, with the velocities (rows, N, M) at it; finally the latents after all
    steps.

    `cond` (R, M) is the reference's log-mel, `text` (N, M) the result of `ZipVoice.text`.
    """
    speech, latents = F.pad(cond, (0, 0, 0, len(text) - len(cond))), noise
    shown = {"full": (text, speech), "speech": (text * 0, speech), "none": (text * 0, speech * 0)}
    for now, then in itertools.pairwise(times):
        names = ["full"]
        weight = guidance
        if sampler.rows(guidance) == 2:
            other = sampler.unguided_at(now)
            names.append(other.condition)
            weight = guidance * other.factor
        texts, speeches = (torch.stack(part) for part in zip(*(shown[name] for name in names), strict=True))
        t = torch.full((len(names),), now, dtype=latents.dtype)
        w = torch.full_like(t, guidance) if sampler.guidance == "embedded" else None
        velocity = model(latents.expand(len(names), -1, -1), speeches, texts, t, w)
        yield latents, velocity
        c, u = velocity[0], velocity[-1]
        guided = c if len(names) == 1 else (1.0 + weight) * c - weight * u
        latents = latents + float(then - now) * guided
    yield latents, latents[None, :0]

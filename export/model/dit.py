"""Reference DiT of F5-TTS, for one sentence at a time.

Parameters have upstream's names (after `ema_model.transformer.`), so official weights load strictly. F5-TTS:
arXiv 2410.06885. ConvNeXt V2: arXiv 2301.00808. Rotary embedding: arXiv 2104.09864.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.bundle import Arch
from appliance.contract.sampler import Sampler

CONV_GROUPS = 16  # groups of the convolutional position embedding; they must divide `dim`
FILLER = 0  # padding id of text; token i of the vocabulary has id i + 1
MAX_POSITIONS = 8192  # frames, 87.4 s: the length of upstream's table of text positions
TIME_FREQUENCIES = 128
TIME_SCALE = 1000.0
ROTARY_THETA = 10_000.0
POSITION_THETA = 10_000.0
EPS = 1e-6


def time_features(t: Tensor) -> Tensor:
    """Sinusoidal features of a time in 0…1, sines first: () → (256,). Angles are rounded to float32."""
    decay = math.log(10_000.0) / (TIME_FREQUENCIES - 1)
    frequencies = torch.exp(torch.arange(TIME_FREQUENCIES, dtype=torch.float32, device=t.device) * -decay)
    angles = (TIME_SCALE * t.float() * frequencies).to(t)
    return torch.cat((angles.sin(), angles.cos()))


def position_table(frames: int, dim: int) -> Tensor:
    """Text position table (frames, dim): cosines, then sines."""
    frequencies = 1.0 / POSITION_THETA ** (torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(frames).float(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def rotary_frequencies(dim_head: int) -> Tensor:
    """Rotary frequencies of neighbouring channel pairs: (dim_head / 2,)."""
    return 1.0 / ROTARY_THETA ** (torch.arange(0, dim_head, 2).float() / dim_head)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate neighbouring channel pairs of x (…, N, C) by angles (N, C / 2)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


def upsample_index(tokens: int, frames: int) -> Tensor:
    """Token index of each frame (frames,) int64 for `tokens` spread evenly.

    Each token gets frames // tokens frames; the remainder goes to the last tokens, one each.
    """
    tokens = min(tokens, frames)
    repeats = torch.full((tokens,), frames // tokens)
    repeats[tokens - frames % tokens :] += 1
    return torch.repeat_interleave(torch.arange(tokens), repeats)


class GlobalResponseNorm(nn.Module):
    """Response norm of ConvNeXt V2. Energies are summed over all frames, so results depend on N."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, 1, dim))
        self.beta = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        energy = x.square().sum(dim=1, keepdim=True).sqrt()  # (G, 1, C)
        share = energy / (energy.mean(dim=-1, keepdim=True) + EPS)
        return self.gamma * (x * share) + self.beta + x


class TextBlock(nn.Module):
    """ConvNeXt V2 block over the text sequence: (G, N, C) → (G, N, C)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=EPS)
        self.pwconv1 = nn.Linear(dim, 2 * dim)
        self.grn = GlobalResponseNorm(2 * dim)
        self.pwconv2 = nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.dwconv(x.mT).mT)
        return x + self.pwconv2(self.grn(F.gelu(self.pwconv1(h))))


class TextEmbedding(nn.Module):
    """Token ids → a vector per frame, with text and without."""

    def __init__(self, arch: Arch, vocab_size: int) -> None:
        super().__init__()
        self.masks = arch.text_mask_padding
        self.upsamples = arch.text_embedding_average_upsampling
        self.text_embed = nn.Embedding(vocab_size + 1, arch.text_dim)
        if arch.conv_layers:
            self.text_blocks = nn.Sequential(*(TextBlock(arch.text_dim) for _ in range(arch.conv_layers)))

    def forward(self, ids: Tensor, frames: int, rows: int = 2, index: Tensor | None = None) -> Tensor:
        """Embed vocabulary indices (T,) → (rows, frames, text_dim); the second row has no text.

        Upsampled text has the token `index` (frames,) in each frame; None: tokens are spread evenly.
        Both rows take the filler mask of the text, so in families that mask fillers both depend on T.
        """
        shown = (ids + 1)[:frames]
        padded = F.pad(shown, (0, frames - len(shown)), value=FILLER)
        filler = (padded == FILLER)[None, :, None]
        x = self.text_embed(torch.stack((padded, torch.full_like(padded, FILLER)))[:rows])
        if hasattr(self, "text_blocks"):
            x = x + position_table(frames, x.shape[-1]).to(x)
            if self.masks:
                x = x.masked_fill(filler, 0.0)
            for block in self.text_blocks:
                x = block(x)
                if self.masks:
                    x = x.masked_fill(filler, 0.0)
        if self.upsamples:
            x = x[:, (upsample_index(len(shown), frames) if index is None else index).to(x.device)]
        return x


class TimeEmbedding(nn.Module):
    """Time → input vector of all modulations: () → (D,).

    An embedded guidance strength has features like a time, and their projection is added to the time's
    (latent consistency models, arXiv 2310.04378; ZipVoice-Distill). Upstream lacks it, so the name is ours.
    """

    def __init__(self, dim: int, *, embeds_guidance: bool = False) -> None:
        super().__init__()
        width = 2 * TIME_FREQUENCIES
        self.time_mlp = nn.Sequential(nn.Linear(width, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.guidance_embed = nn.Linear(width, width, bias=False) if embeds_guidance else None

    def forward(self, t: Tensor, strength: Tensor | None = None) -> Tensor:
        features = time_features(t)
        if self.guidance_embed is not None:
            assert strength is not None, "these weights take a guidance strength"
            features = features + self.guidance_embed(time_features(strength))
        embedded: Tensor = self.time_mlp(features)
        return embedded


class ConvPositionEmbedding(nn.Module):
    """Residual pair of grouped convolutions over 31 frames."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1d = nn.Sequential(
            nn.Conv1d(dim, dim, kernel_size=31, padding=15, groups=CONV_GROUPS),
            nn.Mish(),
            nn.Conv1d(dim, dim, kernel_size=31, padding=15, groups=CONV_GROUPS),
            nn.Mish(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.conv1d(x.mT).mT + x


class InputEmbedding(nn.Module):
    """Project concatenated latents, reference and text to the model width."""

    def __init__(self, mels: int, text_dim: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(2 * mels + text_dim, dim)
        self.conv_pos_embed = ConvPositionEmbedding(dim)

    def forward(self, latents: Tensor, cond: Tensor, text: Tensor) -> Tensor:
        embedded: Tensor = self.conv_pos_embed(self.proj(torch.cat((latents, cond, text), dim=-1)))
        return embedded


class Attention(nn.Module):
    """Self-attention with rotary positions on all or the first `pe_attn_head` heads."""

    def __init__(self, arch: Arch) -> None:
        super().__init__()
        inner = arch.heads * arch.dim_head
        self.dim_head = arch.dim_head
        self.rotated = arch.heads if arch.pe_attn_head is None else arch.pe_attn_head
        self.to_q = nn.Linear(arch.dim, inner)
        self.to_k = nn.Linear(arch.dim, inner)
        self.to_v = nn.Linear(arch.dim, inner)
        self.to_out = nn.ModuleList([nn.Linear(inner, arch.dim)])
        normed = arch.qk_norm == "rms_norm"
        self.q_norm = nn.RMSNorm(arch.dim_head, eps=EPS) if normed else nn.Identity()
        self.k_norm = nn.RMSNorm(arch.dim_head, eps=EPS) if normed else nn.Identity()

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        q = self._rotate(self.q_norm(self._heads(self.to_q(x))), angles)
        k = self._rotate(self.k_norm(self._heads(self.to_k(x))), angles)
        v = self._heads(self.to_v(x))
        mixed = F.scaled_dot_product_attention(q, k, v)  # (G, H, N, C)
        out: Tensor = self.to_out[0](mixed.transpose(1, 2).flatten(-2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.dim_head)).transpose(1, 2)  # (G, H, N, C)

    def _rotate(self, x: Tensor, angles: Tensor) -> Tensor:
        return torch.cat((rotate(x[:, : self.rotated], angles), x[:, self.rotated :]), dim=1)


class FeedForward(nn.Module):
    """Two linear layers with tanh-approximated GELU, nested for upstream's parameter names."""

    def __init__(self, dim: int, mult: int) -> None:
        super().__init__()
        rise = nn.Sequential(nn.Linear(dim, mult * dim), nn.GELU(approximate="tanh"))
        self.ff = nn.Sequential(rise, nn.Identity(), nn.Linear(mult * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.ff(x)
        return out


class Modulation(nn.Module):
    """Linear layer: time embedding → `chunks` vectors of width D."""

    def __init__(self, dim: int, chunks: int) -> None:
        super().__init__()
        self.chunks = chunks
        self.linear = nn.Linear(dim, chunks * dim)

    def forward(self, t: Tensor) -> tuple[Tensor, ...]:
        out: Tensor = self.linear(F.silu(t))
        return out.chunk(self.chunks)


def normalise(x: Tensor) -> Tensor:
    """Layer norm over the last axis without weights."""
    return F.layer_norm(x, x.shape[-1:], eps=EPS)


class Block(nn.Module):
    """Attention and feed-forward, modulated and gated by time: (G, N, D) → (G, N, D)."""

    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self.attn_norm = Modulation(arch.dim, 6)
        self.attn = Attention(arch)
        self.ff = FeedForward(arch.dim, arch.ff_mult)

    def forward(self, x: Tensor, t: Tensor, angles: Tensor) -> Tensor:
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.attn_norm(t)
        x = x + gate_a * self.attn(normalise(x) * (1 + scale_a) + shift_a, angles)
        return x + gate_m * self.ff(normalise(x) * (1 + scale_m) + shift_m)


class Rotary(nn.Module):
    """Rotary frequencies under upstream's name, which checkpoints contain."""

    inv_freq: Tensor

    def __init__(self, dim_head: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", rotary_frequencies(dim_head))

    def forward(self, frames: int) -> Tensor:
        """Angles (frames, dim_head / 2), rounded to float32."""
        rates = self.inv_freq.float()
        return torch.outer(torch.arange(frames).to(rates), rates).to(self.inv_freq)


class DiT(nn.Module):
    """Velocity of latents at a time, given reference and text."""

    def __init__(self, arch: Arch, vocab_size: int, mels: int, *, embeds_guidance: bool = False) -> None:
        """Build the modules; `vocab_size` excludes the filler."""
        super().__init__()
        self.arch, self.mels, self.vocab_size = arch, mels, vocab_size
        self.time_embed = TimeEmbedding(arch.dim, embeds_guidance=embeds_guidance)
        self.text_embed = TextEmbedding(arch, vocab_size)
        self.input_embed = InputEmbedding(mels, arch.text_dim, arch.dim)
        self.rotary_embed = Rotary(arch.dim_head)
        self.transformer_blocks = nn.ModuleList(Block(arch) for _ in range(arch.depth))
        if arch.long_skip_connection:
            self.long_skip_connection = nn.Linear(2 * arch.dim, arch.dim, bias=False)
        self.norm_out = Modulation(arch.dim, 2)
        self.proj_out = nn.Linear(arch.dim, mels)

    def forward(
        self, latents: Tensor, cond: Tensor, text: Tensor, t: Tensor, strength: Tensor | None = None
    ) -> Tensor:
        """Velocity at time `t` (): latents (N, M), zero-padded reference (N, M) → (G, N, M).

        `text` (G, N, text_dim) comes from `text_embed`; the second row has neither text nor reference.
        `strength` () is for weights that embed it.
        """
        rows = len(text)
        seen = torch.stack((cond, torch.zeros_like(cond)))[:rows]
        x = self.input_embed(latents.expand(rows, -1, -1), seen, text)
        first = x
        angles = self.rotary_embed(x.shape[1])
        time = self.time_embed(t, strength)
        for block in self.transformer_blocks:
            x = block(x, time, angles)
        if self.arch.long_skip_connection:
            x = self.long_skip_connection(torch.cat((x, first), dim=-1))
        scale, shift = self.norm_out(time)
        velocity: Tensor = self.proj_out(normalise(x) * (1 + scale) + shift)
        return velocity


@torch.inference_mode()
def states(
    model: DiT,
    cond: Tensor,
    ids: Tensor,
    frames: int,
    noise: Tensor,
    times: Sequence[float],
    guidance: float,
    sampler: Sampler,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Latents (frames, M) before each step, with the velocities (rows, frames, M) at it; then the final
    latents.

    `cond` (R, M) is the reference's log-mel, `ids` (T,) are vocabulary indices, `times` increase from 0 to 1.
    A re-noising sampler needs the noise (steps, frames, M) of each step. Raises ValueError if lengths do not
    fit.
    """
    reference = len(cond)
    if not max(reference, len(ids)) < frames <= MAX_POSITIONS:
        raise ValueError(
            f"frames must be above {reference} reference frames and {len(ids)} tokens "
            f"and at most {MAX_POSITIONS}, not {frames}"
        )
    noises = noise if noise.ndim == 3 else noise[None]
    if noises.shape[1:] != (frames, model.mels):
        raise ValueError(f"noise must be {(frames, model.mels)}, not {tuple(noise.shape)}")
    rows = sampler.rows(guidance)
    padded = F.pad(cond, (0, 0, 0, frames - reference))
    text = model.text_embed(ids, frames, rows)
    latents = noises[0]
    for step, (now, then) in enumerate(itertools.pairwise(times)):
        t, w = (torch.tensor(float(value)).to(latents) for value in (now, guidance))
        velocity = model(latents, padded, text, t, w)
        yield latents, velocity
        guided = velocity[0] if rows == 1 else velocity[0] + (velocity[0] - velocity[1]) * guidance
        if sampler.update == "renoise":
            clean = latents + (1.0 - float(now)) * guided
            fresh = noises[step + 1] if step + 1 < len(noises) else torch.zeros_like(clean)
            latents = (1.0 - float(then)) * fresh + float(then) * clean
        else:
            latents = latents + float(then - now) * guided
    yield latents, latents[None, :0]

"""Small random ZipVoice models in the published layout, and their bundles."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from appliance.contract.bundle import Bundle, Precision
from export import assemble
from export.families import NAMED, family
from export.model.arch import ZipVoiceArch
from export.model.zipformer import ZipVoice
from export.parity import comparison
from tests.export.random_checkpoint import draw_zipvoice, write_random_vocos, write_random_zipvoice
from tests.harness import small

TOKENS = [" ", *(chr(code) for code in range(33, 127) if chr(code) != "_")]
ARCH = ZipVoiceArch(
    fm_decoder_num_layers=(1, 1, 2, 1, 1),
    fm_decoder_dim=64,
    fm_decoder_feedforward_dim=96,
    text_encoder_num_layers=2,
    text_encoder_dim=32,
    text_encoder_feedforward_dim=48,
    text_embed_dim=24,
    time_embed_dim=32,
)
"""Architecture with every rate of the published models."""
TRACED = dataclasses.replace(
    ARCH,
    fm_decoder_downsampling_factor=(1, 4),
    fm_decoder_num_layers=(1, 1),
    fm_decoder_cnn_module_kernel=(31, 7),
    text_encoder_num_layers=1,
)
"""Architecture with fewer layers, because each takes seconds to trace."""
FRAMES = (40, 77, 511, 1250, 2000)
STEPS = 8
KEPT = 53
"""Stride of the stored frames, counted from the last frame."""
SEED = 5
MAX_FRAMES = 1024


@dataclass(frozen=True)
class Inputs:
    ids: NDArray[np.int64]
    """Upstream's numbers; its padding is token 0."""
    noise: Tensor
    speech: Tensor


def inputs(frames: int) -> Inputs:
    """Text, noise and a reference of a third of the frames, in the range of log-mels ÷ 10."""
    rng = np.random.default_rng([SEED, frames])
    noise, speech = rng.standard_normal((2, frames, 100), dtype=np.float32)
    speech[frames // 3 :] = 0.0
    ids = rng.integers(1, len(TOKENS) + 1, max(frames // 9, 4))
    return Inputs(ids, torch.from_numpy(noise), torch.from_numpy(speech * np.float32(0.5)))


def drawn(arch: ZipVoiceArch = ARCH, *, distilled: bool) -> ZipVoice:
    """The model of a seed, as `write_random_zipvoice` writes it."""
    model = ZipVoice(arch, len(TOKENS), embeds_guidance=distilled).eval().requires_grad_(False)
    for name, value in model.named_parameters():
        value.copy_(draw_zipvoice(name, tuple(value.shape), SEED))
    return model


def published(
    folder: Path,
    *,
    distilled: bool = False,
    arch: ZipVoiceArch = TRACED,
    name: str = "",
    tokens: Sequence[str] = TOKENS,
) -> assemble.Sources:
    """A random model of a named family; without a name, of the family in its model.json."""
    files = write_random_zipvoice(folder / "model", arch, tokens, SEED, embeds_guidance=distilled)
    named = family(str(files / "model.json"))
    if name:
        named = dataclasses.replace(NAMED[f"{name}-Distill" if distilled else name], arch=arch)
    return assemble.Sources(
        named,
        files / "model.pt",
        files / "tokens.txt",
        "vocos",
        write_random_vocos(folder / "vocos", small.VOCOS, SEED),
        weights_licence="CC-BY-4.0",
        languages=("en",) if named.tokenizer == "letters" else None,
        sampler=named.sampler,
        defaults=named.defaults,
    )


def made(
    workshop: small.Workshop,
    *,
    distilled: bool,
    precision: Precision = "fp32",
    measured: bool = False,
    name: str = "ZipVoice-LibriTTS",
    tokens: Sequence[str] = TOKENS,
    voice: str = "",
) -> Bundle:
    """The bundle of a random model. `measured` runs the gate, `voice` is espeak's."""

    def write(folder: Path) -> None:
        sources = published(folder, distilled=distilled, name=name, tokens=tokens)
        if voice:
            sources = dataclasses.replace(sources, tokenizer="espeak", voice=voice, languages=(voice,))
        given = assemble.load(sources)
        if not measured:
            small.unmeasured(given, folder / "bundle", precision, MAX_FRAMES)
            return
        options = assemble.BuildOptions(precision, MAX_FRAMES)
        expected, tried = assemble.expectations(given, options), given.declaration.samplings
        assemble.build(given, options, folder / "bundle", lambda b: comparison.measure(b, expected, tried))

    given = hashlib.sha256(repr((distilled, measured, tokens, voice)).encode()).hexdigest()[:8]
    return workshop.bundle(f"{name}-{precision}-{given}", write)

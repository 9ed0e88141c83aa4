"""A family with random weights: its checkpoint, upstream's sampler, and the same synthesis by our engine."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Arch

if TYPE_CHECKING:
    from export.families import Family
    from export.model.vocos import VocosConfig

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
MELS = 100
GUIDANCE, SEED = 2.0, 0


def write(work: Path, family: Family, vocabulary: int, vocos: VocosConfig | None = None) -> None:
    """Write WORK/checkpoint and WORK/vocos, by default as wide as charactr/vocos-mel-24khz."""
    from tests.export.random_checkpoint import VOCOS_MEL_24KHZ, write_random, write_random_vocos

    words = [*f" {string.ascii_letters}.,", *(f"t{i}" for i in range(vocabulary))]
    write_random(work / "checkpoint", family.arch, words[:vocabulary], SEED)
    write_random_vocos(work / "vocos", vocos or VOCOS_MEL_24KHZ, SEED)


def inputs(reference: int, tokens: int, vocabulary: int) -> tuple[FloatArray, IntArray]:
    rng = np.random.default_rng(SEED)
    mel = rng.normal(-3.0, 2.0, (reference, MELS)).clip(-11.5, 3.0).astype(np.float32)
    return mel, rng.integers(0, vocabulary, tokens, dtype=np.int32)


def upstream_noise(frames: int, device: str = "cpu") -> FloatArray:
    """Noise that upstream draws for the seed on a device."""
    import torch

    torch.manual_seed(SEED)
    return np.asarray(torch.randn(frames, MELS, device=device).float().cpu().numpy())


def sampler(arch: Arch, vocabulary: int, weights: Callable[[Any], Mapping[str, Any]]) -> Any:
    """`CFM` of f5-tts; `weights` makes the weights of its DiT."""
    import torch

    from tests.oracle import upstream

    sizes = {name: getattr(arch, name) for name in ("dim", "depth", "heads", "ff_mult", "text_dim")}
    dit = upstream.dit_class()(
        **sizes, conv_layers=arch.conv_layers, text_num_embeds=vocabulary, mel_dim=MELS
    )
    dit.load_state_dict(weights(dit), strict=False, assign=True)

    class Mel(torch.nn.Module):
        n_mel_channels = MELS

    return upstream.cfm_class()(transformer=dit, mel_spec_module=Mel(), num_channels=MELS).eval()


def sample(cfm: Any, reference: Any, ids: Any, frames: int, nfe: int, lanes: int = 1) -> Any:
    """(lanes, frames, MELS) of upstream, from tensors on the sampler's device."""
    given = (reference[None].expand(lanes, -1, -1), ids.long()[None].expand(lanes, -1), frames)
    out, _ = cfm.sample(*given, steps=nfe, cfg_strength=GUIDANCE, sway_sampling_coef=-1.0, seed=SEED)
    return out.float()

"""Sizes of models. Reading them needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from appliance.contract.bundle import Arch
from appliance.fields import Count, Ranged

_BASE: Mapping[str, Any] = {"dim": 1024, "depth": 22, "heads": 16, "ff_mult": 2, "conv_layers": 4}
_SMALL = {**_BASE, "dim": 768, "depth": 18, "heads": 12}
_V0: Mapping[str, Any] = {"text_mask_padding": False, "pe_attn_head": 1}
F5TTS = {
    "F5TTS_v1_Base": Arch(**_BASE),
    "F5TTS_Base": Arch(**_BASE, **_V0),
    "F5TTS_v1_Small": Arch(**_SMALL),
    "F5TTS_Small": Arch(**_SMALL, **_V0),
}
"""Name in the YAML files of f5-tts 1.1.22 (`model.name`) → architecture."""


def flags_of(arch: Mapping[str, Any]) -> str:
    """Flags of a DiT that no tensor shows, as text, by the keys of `Arch`."""
    heads, masks = arch.get("pe_attn_head"), arch.get("text_mask_padding", True)
    upsamples = arch.get("text_embedding_average_upsampling", False)
    told = f"pe_attn_head: {'null' if heads is None else heads}, text_mask_padding: {str(masks).lower()}"
    return told + (", text_embedding_average_upsampling: true" if upsamples else "")


@dataclass(frozen=True)
class ZipVoiceArch(Ranged):
    """Section `model` of a checkpoint's `model.json`. Absent keys have upstream's defaults."""

    fm_decoder_downsampling_factor: tuple[int, ...] = (1, 2, 4, 2, 1)
    fm_decoder_num_layers: tuple[int, ...] = (2, 2, 4, 4, 4)
    fm_decoder_cnn_module_kernel: tuple[int, ...] = (31, 15, 7, 15, 31)
    fm_decoder_feedforward_dim: Count = 1536
    fm_decoder_num_heads: Count = 4
    fm_decoder_dim: Count = 512
    text_encoder_num_layers: Count = 4
    text_encoder_feedforward_dim: Count = 512
    text_encoder_cnn_module_kernel: Count = 9
    text_encoder_num_heads: Count = 4
    text_encoder_dim: Count = 192
    query_head_dim: Count = 32
    value_head_dim: Count = 12
    pos_head_dim: Count = 4
    pos_dim: Count = 48
    time_embed_dim: Count = 192
    text_embed_dim: Count = 192
    feat_dim: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        stacks = [
            self.fm_decoder_downsampling_factor,
            self.fm_decoder_num_layers,
            self.fm_decoder_cnn_module_kernel,
        ]
        if len({len(values) for values in stacks}) > 1 or min(map(min, stacks)) < 1:
            raise ValueError("fm_decoder_*: factors, layers and kernels must be as many, and above 0")
        if not all(kernel % 2 for kernel in (*stacks[2], self.text_encoder_cnn_module_kernel)):
            raise ValueError("cnn_module_kernel: must be odd")
        if self.pos_dim % 2 or self.time_embed_dim % 2:
            raise ValueError("pos_dim, time_embed_dim: must be even")
        for width, heads in (
            (self.fm_decoder_dim, self.fm_decoder_num_heads),
            (self.text_encoder_dim, self.text_encoder_num_heads),
        ):
            if width % 4 or 3 * width // 4 % heads:
                raise ValueError(f"a width of {width} has no {heads} equal heads of 3/4 of it")

    @property
    def stacks(self) -> int:
        return len(self.fm_decoder_num_layers)

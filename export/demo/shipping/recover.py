"""Recover weights in upstream's layout from a step graph."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from appliance.contract.bundle import Arch
from export.checkpoint import CheckpointError
from export.modules import angles, rates


def step_weights(path: Path, arch: Arch) -> dict[str, Tensor]:
    """Weights of a float step graph under upstream's names, in float32, bit-exact for float16 graphs.

    The input projection is the part for latents only.
    Raises CheckpointError for a rounded rotary table.
    """
    model = onnx.load(path)
    stored = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in model.graph.initializer
    }
    half = stored["from_latents.weight"].dtype == torch.float16
    whole = arch.dim_head**-0.5
    scales = {"q": whole**0.5, "k": whole**0.5} if half else {"q": whole, "k": 1.0}
    order = torch.cat([torch.arange(0, arch.dim_head, 2), torch.arange(1, arch.dim_head, 2)]).argsort()
    weights: dict[str, Tensor] = {"input_embed.proj.weight": stored["from_latents.weight"].T}
    for i, layer in ((0, "0"), (2, "2")):
        for kind, name in (("weight", f"w{i}"), ("bias", f"b{i}")):
            weights[f"input_embed.conv_pos_embed.conv1d.{layer}.{kind}"] = stored[f"position_conv.{name}"]
    for block in range(arch.depth):
        old, new = f"blocks.{block}", f"transformer_blocks.{block}"
        qkv = [stored[f"{old}.attention.qkv.{kind}"].chunk(3, dim=-1) for kind in ("weight", "bias")]
        for i, key in enumerate("qkv"):
            weight, bias = qkv[0][i].T, qkv[1][i]
            if key in scales:
                factor = 1.0 if arch.qk_norm is not None else scales[key]
                weight, bias = (
                    a.float().unflatten(0, (arch.heads, -1))[:, order].flatten(0, 1) / factor
                    for a in (weight, bias)
                )
                if arch.qk_norm is not None:
                    gain = stored[f"{old}.attention.gain"][i * arch.heads]
                    weights[f"{new}.attn.{key}_norm.weight"] = gain[order] / scales[key]
            weights[f"{new}.attn.to_{key}.weight"], weights[f"{new}.attn.to_{key}.bias"] = weight, bias
        for have, want in (("attention.out", "attn.to_out.0"), ("up", "ff.ff.0.0"), ("down", "ff.ff.2")):
            weights[f"{new}.{want}.weight"] = stored[f"{old}.{have}.weight"].T
            weights[f"{new}.{want}.bias"] = stored[f"{old}.{have}.bias"]
    if arch.long_skip_connection:
        weights["long_skip_connection.weight"] = stored["skip.weight"].T
    weights["proj_out.weight"], weights["proj_out.bias"] = stored["out.weight"].T, stored["out.bias"]
    table = angles(len(stored["cos"]), rates(arch.dim_head)).cos()
    if not torch.allclose(stored["cos"].flatten(1), table, atol=1e-6):
        raise CheckpointError(
            f"{path}: its rotary table is rounded; export the bundle from its checkpoint again"
        )
    return {name: tensor.float() for name, tensor in weights.items()}

"""Parts of the graphs' modules: stored weights, matrices, norms, and functions that runtimes compute well.

Weights have upstream's names, and are rearranged to avoid transposes and strides. Axes are those of
`appliance.contract.graphs`. `compute` is the element type of matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.graphs import MAX_OPSET

Weights = Mapping[str, Tensor]
Form = Literal["standard", "single", "cuda"]
"""Operators of step graphs. standard: for rows. single, cuda: ONNX Runtime's own, for one unpadded row, or
for rows on a GPU.
"""

NORM_EPS = 1e-6
MASKED_SCORE = -3e4  # finite in float16, and far below any score that a softmax can still see


def kept(tensor: Tensor, dtype: torch.dtype = torch.float32) -> nn.Buffer:
    """Weight of a graph: contiguous, without gradient."""
    return nn.Buffer(tensor.detach().to(dtype).contiguous())


def kept_float(tensor: Tensor) -> nn.Buffer:
    """Weight that is float32 in every precision."""
    return kept(tensor)


class ConvNeXt(nn.Module):
    """First half of a ConvNeXt block: convolution of each channel, norm, matrix to the inner width."""

    def __init__(self, weights: Weights, name: str, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        self.conv = kept(weights[f"{name}.dwconv.weight"], compute)
        self.conv_bias = kept(weights[f"{name}.dwconv.bias"], compute)
        self.norm_weight = kept_float(weights[f"{name}.norm.weight"])
        self.norm_bias = kept_float(weights[f"{name}.norm.bias"])
        self.up = Matrix(weights[f"{name}.pwconv1.weight"], weights[f"{name}.pwconv1.bias"], compute)

    def wide(self, x: Tensor) -> Tensor:
        """(G, dim, N) → (G, N, inner)."""
        y = F.conv1d(x, self.conv, self.conv_bias, padding=self.conv.shape[2] // 2, groups=x.shape[1])
        y = layer_norm(y.transpose(1, 2), self.norm_weight, self.norm_bias).to(self.compute)
        return F.gelu(self.up(y))


class Matrix(nn.Module):
    """x @ w + b, with w stored as (in, out), the layout of MatMul."""

    def __init__(self, weight: Tensor, bias: Tensor | None, compute: torch.dtype) -> None:
        super().__init__()
        self.weight = kept(weight.T, compute)
        self.bias = None if bias is None else kept(bias, compute)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Layer norm over the last axis, in float32."""
    x = x.float()
    return F.layer_norm(x, (x.shape[-1],), weight, bias, NORM_EPS)


def silu(x: Tensor) -> Tensor:
    """x / (1 + e^(−x)): the Sigmoid of ONNX Runtime 1.31.1 has a relative error of 1e-5 at −5 on a CPU."""
    return x / (1.0 + (-x).exp())


class RowLinear(nn.Module):
    """Linear layer in float32. Its weight (out, in), Gemm's layout, may be stored in float16."""

    def __init__(self, weight: Tensor, bias: Tensor, stored: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias = kept(weight, stored), kept_float(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.float(), self.bias)


def mish(x: Tensor) -> Tensor:
    """x·tanh(ln(1 + eˣ)) = x·n / (n + 2), n = eˣ(eˣ + 2). It is ten times as fast as the runtimes' softplus.

    In float32, because eˣ overflows float16 at 11. From 20 on it is x.
    """
    x = x.float()
    e = x.clamp(max=20.0).exp()
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


def contrib(operator: str, inputs: tuple[Tensor | None, ...], **attributes: float) -> Tensor:
    """Call an operator that only ONNX Runtime has; see `symbol`."""
    return symbol(f"com.microsoft::{operator}", inputs, version=1, **attributes)


def symbol(
    operator: str, inputs: tuple[Tensor | None, ...], version: int = MAX_OPSET, **attributes: float
) -> Tensor:
    """Call an ONNX operator whose output has the shape and type of its first input."""
    like = inputs[0]
    assert like is not None
    result: Tensor = torch.onnx.ops.symbolic(
        operator, inputs, {**attributes}, dtype=like.dtype, shape=like.shape, version=version
    )
    return result

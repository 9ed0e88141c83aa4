"""Float64 arithmetic of a float32 model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def wide(x: Tensor) -> Tensor:
    """`x` in float32, or unchanged if it is float64."""
    return x if x.dtype == torch.float64 else x.float()


@contextmanager
def in_float64(model: nn.Module) -> Iterator[None]:
    """Let `model` compute in float64 with its float32 weights. One module's weights are widened at a time.

    The model's inputs must be float64.
    """
    narrow: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def widen(module: nn.Module, given: object) -> None:
        # The weights are changed through `data`, so tied weights stay tied and no parameter is registered
        # again.
        narrow[module] = [(tensor, tensor.data) for tensor in _own(module)]
        for tensor, data in narrow[module]:
            tensor.data = data.double()

    def restore(module: nn.Module, given: object, made: object) -> None:
        for tensor, data in narrow.pop(module):
            tensor.data = data

    handles = []
    for module in model.modules():
        if _own(module):
            handles.append(module.register_forward_pre_hook(widen))
            handles.append(module.register_forward_hook(restore, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _own(module: nn.Module) -> list[Tensor]:
    """Floating-point tensors of a module, without its submodules."""
    tensors = itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False))
    return [tensor for tensor in tensors if tensor.is_floating_point()]

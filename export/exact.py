"""Float64 arithmetic of a float32 model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def wide(x: Tensor) -> Tensor:
    """`x` in float32, or as it is in float64."""
    return x if x.dtype == torch.float64 else x.float()


@contextmanager
def in_float64(model: nn.Module) -> Iterator[None]:
    """Let `model` compute in float64 on its float32 weights, of which one module's at a time are widened.

    Tensors that it is given must be float64.
    """
    narrow: dict[nn.Module, dict[str, Tensor]] = {}

    def widen(module: nn.Module, given: object) -> None:
        # By `data`, so that tied weights stay one and no parameter is registered anew.
        own = {f"{kind} {name}": tensor for kind, name, tensor in _own(module)}
        narrow[module] = {place: tensor.data for place, tensor in own.items()}
        for tensor in own.values():
            tensor.data = tensor.data.double()

    def restore(module: nn.Module, given: object, made: object) -> None:
        before = narrow.pop(module)
        for kind, name, tensor in _own(module):
            tensor.data = before[f"{kind} {name}"]

    handles = []
    for module in model.modules():
        if next(_own(module), None) is not None:
            handles.append(module.register_forward_pre_hook(widen))
            handles.append(module.register_forward_hook(restore, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _own(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Floating-point tensors of a module but not of those inside it."""
    for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
        for name, tensor in tensors.items():
            if tensor is not None and tensor.is_floating_point():
                yield kind, name, tensor

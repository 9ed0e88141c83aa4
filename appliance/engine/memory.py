"""Device memory of a warm engine: its allocations, made on a backend that only counts them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from appliance.contract.bundle import Bundle
from appliance.contract.graphs import GraphSpec
from appliance.engine.backend import Backend, Bound, Graph, HostArray, Ranges, Tensor
from appliance.engine.engine import Synthesizer


def tensor_bytes(bundle: Bundle, backend: Backend, lanes: int) -> int:
    """Bytes of all tensors of a warm engine, without weights and working memory."""
    counting = _Counting(backend)
    engine = Synthesizer(bundle, counting, host=_Counting(backend), lanes=lanes)
    engine.reserve()
    return counting.bytes


@dataclass(frozen=True, eq=False)
class _Described:
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class _Counting:
    """A backend, graph and binding of the same sizes that computes and allocates nothing."""

    can_interrupt = builds = False

    def __init__(self, backend: Backend) -> None:
        self.name, self.label = backend.name, backend.label
        self.frame_multiple, self.max_batch = backend.frame_multiple, backend.max_batch
        self.bytes = 0

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
        return self

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        return self

    def run(self, *, release: bool = False, capture: bool = False) -> None: ...

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        kind = np.dtype(dtype)
        self.bytes += math.prod(shape) * kind.itemsize
        return _Described(tuple(shape), kind)

    def view(self, tensor: Tensor, shape: Sequence[int], at: tuple[int, ...] = ()) -> Tensor:
        return _Described(tuple(shape), tensor.dtype)

    def upload(self, array: HostArray, to: Tensor) -> None: ...

    def copy(self, source: Tensor, to: Tensor) -> None: ...

    def download(self, tensor: Tensor) -> HostArray:
        return np.zeros(tensor.shape, tensor.dtype)

    def wait(self) -> None: ...

    def interrupt(self, on: bool) -> None: ...

    def close(self) -> None: ...

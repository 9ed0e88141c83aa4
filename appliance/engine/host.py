"""Tensors that are numpy arrays."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import cast

import numpy as np

from appliance.engine.backend import HostArray, Tensor


class HostMemory:
    """Tensors in main memory, for the backend on the CPU."""

    builds = False
    can_interrupt = False
    frame_multiple = max_batch = 1

    def interrupt(self, on: bool) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot interrupt a call")

    def empty(self, shape: Sequence[int], dtype: str) -> HostArray:
        # The system provides pages when they are first written. Reused heap would be cleared by writing,
        # which made an engine that is loaded a second time 125 MB larger.
        size = math.prod(shape)
        memory = mmap.mmap(-1, max(size * np.dtype(dtype).itemsize, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(memory, dtype, size).reshape(shape)

    def view(self, tensor: Tensor, shape: Sequence[int], at: tuple[int, ...] = ()) -> HostArray:
        array = cast(HostArray, tensor)
        start = sum(i * math.prod(array.shape[axis + 1 :]) for axis, i in enumerate(at))
        return array.reshape(-1)[start : start + math.prod(shape)].reshape(shape)

    def upload(self, array: HostArray, to: Tensor) -> None:
        np.copyto(cast(HostArray, to), array)

    def copy(self, source: Tensor, to: Tensor) -> None:
        np.copyto(cast(HostArray, to), cast(HostArray, source))

    def download(self, tensor: Tensor) -> HostArray:
        return cast(HostArray, tensor).copy()

    def wait(self) -> None: ...

    def close(self) -> None: ...

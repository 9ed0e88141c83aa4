"""Tensors that are numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from appliance.engine.backend import HostArray, Tensor


class HostMemory:
    builds = False
    can_interrupt = False
    frame_multiple = max_batch = 1

    def interrupt(self, on: bool) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot interrupt a call")

    def empty(self, shape: Sequence[int], dtype: str) -> HostArray:
        return np.zeros(shape, dtype)  # the system provides pages when they are first written

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

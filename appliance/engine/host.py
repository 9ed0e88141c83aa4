"""Tensors in host memory: numpy arrays, which a runtime binds by address."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from appliance.engine.backend import HostArray, Tensor


class HostMemory:
    """The memory of a backend that computes on numpy arrays, and whose calls run to their end."""

    builds = False
    can_interrupt = False
    max_batch: int

    def rows(self, frames: int) -> int:
        """See `Backend.rows`."""
        return self.max_batch

    def interrupt(self, on: bool) -> None:
        """See `Backend.interrupt`."""
        raise NotImplementedError(f"{type(self).__name__} cannot interrupt a call")

    def empty(self, shape: Sequence[int], dtype: str) -> HostArray:
        """See `Backend.empty`. The system hands out the pages when they are first written."""
        return np.zeros(shape, dtype)

    def view(self, tensor: Tensor, shape: Sequence[int], at: tuple[int, ...] = ()) -> HostArray:
        """See `Backend.view`."""
        array = cast(HostArray, tensor)
        start = sum(i * math.prod(array.shape[axis + 1 :]) for axis, i in enumerate(at))
        return array.reshape(-1)[start : start + math.prod(shape)].reshape(shape)

    def upload(self, array: HostArray, to: Tensor) -> None:
        """See `Backend.upload`."""
        np.copyto(cast(HostArray, to), array)

    def copy(self, source: Tensor, to: Tensor) -> None:
        """See `Backend.copy`."""
        np.copyto(cast(HostArray, to), cast(HostArray, source))

    def download(self, tensor: Tensor) -> HostArray:
        """See `Backend.download`."""
        return cast(HostArray, tensor).copy()

    def wait(self) -> None:
        """See `Backend.wait`. Every call has ended."""

    def settle(self) -> None:
        """See `Backend.settle`."""

    def close(self) -> None:
        """See `Backend.close`. Graphs and arrays end with their last reference."""

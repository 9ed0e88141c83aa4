"""The runtime interface of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.contract.graphs import GraphSpec

HostArray = NDArray[Any]
Shapes = Mapping[str, Sequence[int]]
"""Axis letter → sizes that will be bound, ascending; with exact shapes, the least and the largest."""


class Tensor(Protocol):
    """Device memory with a fixed address, shape and element type."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


class Bound(Protocol):
    def run(self, *, release: bool = False) -> None:
        """Compute, without waiting for a device; `release` then returns working memory to the system.

        Raises EngineFault when the runtime fails, Interrupted after `Backend.interrupt`; either leaves the
        outputs undefined.
        """
        ...


class Graph(Protocol):
    """A loaded graph."""

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        """Bind every input and output by name. Raises EngineFault for tensors that do not fit."""
        ...


class Backend(Protocol):
    name: str
    """Name in a manifest's `backends`."""
    label: str
    """The name, with the arithmetic of the steps where a graph does not fix it."""
    exact_shapes: bool
    """True: any shape runs, empty tensors too; rows are neither padded nor batched."""
    buckets: tuple[int, ...]
    """Frames to which rows are padded, ascending; empty with exact shapes."""
    max_batch: int
    """Largest number of rows in one call, at any length."""
    builds: bool
    """True: graphs are compiled for this device and verified before use; see `prepare.py`."""
    can_interrupt: bool

    def rows(self, frames: int) -> int:
        """Largest number of rows of that length in one call, at most `max_batch`."""
        ...

    def load(self, name: str, path: Path, spec: GraphSpec, shapes: Shapes) -> Graph:
        """Raises BundleError when the runtime cannot read the file."""
        ...

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Allocate memory filled with zeros."""
        ...

    def view(self, tensor: Tensor, shape: Sequence[int], at: tuple[int, ...] = ()) -> Tensor:
        """A tensor of `shape` on the memory of `tensor`, contiguous from index `at`."""
        ...

    def upload(self, array: HostArray, to: Tensor) -> None:
        """to[...] = array. `array` may be changed as soon as this returns."""
        ...

    def copy(self, source: Tensor, to: Tensor) -> None:
        """to[...] = source; the two may not overlap."""
        ...

    def download(self, tensor: Tensor) -> HostArray:
        """A host copy; waits for everything enqueued before."""
        ...

    def wait(self) -> None:
        """Wait for everything enqueued. Raises EngineFault when it failed."""
        ...

    def interrupt(self, on: bool) -> None:
        """Make the current call and all later ones raise Interrupted, until called with False. Any thread."""
        ...

    def settle(self) -> None:
        """End the warm-up: what is bound from now on may take no more memory of the device."""
        ...

    def close(self) -> None:
        """Release everything; the backend is not used afterwards."""
        ...

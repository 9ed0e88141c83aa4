"""The runtime interface of the engine. `ort.py`, `openvino.py` and `trt.py` alone import their runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.contract.graphs import GraphSpec

HostArray = NDArray[Any]
Shapes = Mapping[str, Sequence[int]]
"""Axis letter → sizes that will be bound, ascending; where shapes are exact, the least and the largest."""


class Tensor(Protocol):
    """Memory on the backend's device, of a fixed address, shape and element type."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


class Bound(Protocol):
    """A graph bound to the tensors that it reads and writes."""

    def run(self, *, release: bool = False) -> None:
        """Compute, without waiting for a device; `release` gives working memory back to the system then.

        Raises EngineFault when the runtime refuses or fails, Interrupted when it was told to stop; its
        outputs are undefined afterwards.
        """
        ...


class Graph(Protocol):
    """A loaded graph."""

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        """Bind every input and output by name. Raises EngineFault for tensors that do not fit."""
        ...


class Backend(Protocol):
    """A runtime: loads graphs and owns memory."""

    name: str
    """Name that manifests list under `backends`."""
    label: str
    """The name, with the arithmetic of the steps where a graph does not fix it."""
    exact_shapes: bool
    """True: any shape runs, empty tensors too, so rows are neither padded nor batched."""
    buckets: tuple[int, ...]
    """Frames to which rows are padded, ascending; none where shapes are exact."""
    max_batch: int
    """Rows that one call may hold; see `rows` for those of one size."""
    builds: bool
    """True: graphs are built for this device, and what they compute is compared with the CPU's numbers
    before it is relied on; see `prepare.py`."""
    can_interrupt: bool
    """True if `interrupt` ends a call under way."""

    def rows(self, frames: int) -> int:
        """Rows of so many frames that one call may hold, at most `max_batch`."""
        ...

    def load(self, name: str, path: Path, spec: GraphSpec, shapes: Shapes) -> Graph:
        """Load the graph `name`. Raises BundleError when the runtime cannot read the file."""
        ...

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        """New memory, filled with zeros."""
        ...

    def view(self, tensor: Tensor, shape: Sequence[int], at: tuple[int, ...] = ()) -> Tensor:
        """A tensor of `shape` on the contiguous memory of `tensor` from index `at` on."""
        ...

    def upload(self, array: HostArray, to: Tensor) -> None:
        """to[...] = array, of the same shape. `array` may be changed as soon as this returns."""
        ...

    def copy(self, source: Tensor, to: Tensor) -> None:
        """to[...] = source, of the same shape; the two may not overlap."""
        ...

    def download(self, tensor: Tensor) -> HostArray:
        """A host copy; waits for what computes it."""
        ...

    def wait(self) -> None:
        """Return when everything that was enqueued is computed. Raises EngineFault when it failed."""
        ...

    def interrupt(self, on: bool) -> None:
        """Make the call under way, and all until this is called with False, raise Interrupted. Any thread."""
        ...

    def settle(self) -> None:
        """End the warm-up: what is bound from now on may take no more memory of the device."""
        ...

    def close(self) -> None:
        """Release everything; the backend is not used afterwards."""
        ...

"""The runtime interface of the engine."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import FLOAT32, FLOAT32_SUMS
from appliance.contract.graphs import GraphSpec

HostArray = NDArray[Any]
Ranges = Mapping[str, tuple[int, int]]
"""Axis letter → the least and the largest size that will be bound."""
RUNS_BEFORE_CAPTURE = 2
"""The first run of a binding allocates and selects kernels, and with some versions so does the second."""


class Arithmetic(enum.Enum):
    """Answers of the gate, in the order in which they are tried: each costs more time than the one before."""

    FLOAT32_SUMS = "float32 sums"
    """Products of float16 numbers, summed in float32."""
    TF32 = "TF32"
    """Products of 10-bit mantissas, all else in float32."""
    FLOAT32 = "float32"

    @property
    def variant(self) -> str:
        """The bundle's variant that holds its graphs."""
        return FLOAT32_SUMS if self is Arithmetic.FLOAT32_SUMS else FLOAT32


class Tensor(Protocol):
    """Device memory with a fixed address, shape and element type."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


class Bound(Protocol):
    def run(self, *, release: bool = False, capture: bool = False) -> None:
        """Compute, without waiting for a device; `release` then returns working memory to the system.

        `capture` allows a CUDA graph in place of launches, after RUNS_BEFORE_CAPTURE runs of the binding.
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
    frame_multiple: int
    """Rows are padded to a multiple of it. 1: rows run at their true length, alone, and empty tensors too."""
    max_batch: int
    """Largest number of rows in one call."""
    builds: bool
    """True: graphs are compiled for this device and verified before use; see `prepare.py`."""
    can_interrupt: bool

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
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

    def close(self) -> None:
        """Release everything; the backend is not used afterwards."""
        ...

"""The interface of a runtime, as the engine uses it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import FLOAT32, FLOAT32_SUMS
from appliance.contract.graphs import GraphSpec
from appliance.errors import EngineFault

HostArray = NDArray[Any]
Ranges = Mapping[str, tuple[int, int]]
"""Axis letter → smallest and largest size that will be bound."""
RUNS_BEFORE_CAPTURE = 2
"""Runs before a capture, because the first ones may still allocate and select kernels."""


class Arithmetic(enum.Enum):
    """Arithmetic for a graph that is wrong as exported, in the order of trial."""

    FLOAT32_SUMS = "float32 sums"  # products of float16 numbers, summed in float32
    TF32 = "TF32"  # products of 10-bit mantissas, all else in float32
    FLOAT32 = "float32"

    @property
    def variant(self) -> str:
        return FLOAT32_SUMS if self is Arithmetic.FLOAT32_SUMS else FLOAT32


class Tensor(Protocol):
    """Device memory with a fixed address, shape and element type."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


class Bound(Protocol):
    """A graph with its inputs and outputs."""

    def run(self, *, release: bool = False, capture: bool = False) -> None:
        """Compute, without waiting for the device. `release` then returns working memory to the system.

        `capture` allows a CUDA graph in place of launches, after RUNS_BEFORE_CAPTURE runs. Raises
        EngineFault, or Interrupted after `Backend.interrupt`. The outputs are then undefined.
        """
        ...


class Graph(Protocol):
    """A loaded graph."""

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        """Bind every input and output by name. Raises EngineFault for tensors that do not fit."""
        ...


class Backend(Protocol):
    """A runtime on a device: loads graphs, and owns the memory of tensors."""

    name: str
    label: str
    """The name, with any unusual computation: "ort-cuda (plain attention)"."""
    frame_multiple: int
    """Rows are padded to a multiple of this. 1: rows run alone, at their true length."""
    max_batch: int
    """Most rows in one call."""
    builds: bool
    """True if graphs are compiled for this device and verified before use (`tensorrt/prepare.py`)."""
    can_interrupt: bool

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
        """Load a graph. Raises BundleError if the runtime cannot read the file."""
        ...

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Allocate a tensor of zeros."""
        ...

    def view(self, tensor: Tensor, shape: Sequence[int], at: tuple[int, ...] = ()) -> Tensor:
        """A tensor on the memory of `tensor`, contiguous from index `at`."""
        ...

    def upload(self, array: HostArray, to: Tensor) -> None:
        """to[...] = array. The array may change afterwards."""
        ...

    def copy(self, source: Tensor, to: Tensor) -> None:
        """to[...] = source. They must not overlap."""
        ...

    def download(self, tensor: Tensor) -> HostArray:
        """Wait for the device, and copy to the host."""
        ...

    def wait(self) -> None:
        """Wait for everything enqueued. Raises EngineFault if something of it failed."""
        ...

    def interrupt(self, on: bool) -> None:
        """Make calls raise Interrupted, including the current one, until called with False.

        Any thread may call this.
        """
        ...

    def close(self) -> None: ...


def sizes_of(
    spec: GraphSpec,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    fault: Callable[[str], EngineFault],
) -> dict[str, int]:
    """Size of each axis. Raises `fault` if tensors contradict the spec or each other."""
    sizes: dict[str, int] = {}
    for what, specs, tensors in (("inputs", spec.inputs, inputs), ("outputs", spec.outputs, outputs)):
        if difference := {one.name for one in specs} ^ tensors.keys():
            raise fault(f"missing or unknown {what}: {', '.join(sorted(difference))}")
        for one in specs:
            dtype, shape = tensors[one.name].dtype.name, tensors[one.name].shape
            if dtype != one.dtype or len(shape) != len(one.axes):
                raise fault(f"{one.name}: {dtype} {shape} is not {one.dtype} {one.axes}")
            for axis, size in zip(one.axes, shape, strict=True):
                expected = axis if isinstance(axis, int) else sizes.setdefault(axis, size)
                if size != expected:
                    raise fault(f"{one.name}: {axis} is {size}, not {expected}")
    return sizes

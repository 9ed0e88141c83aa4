"""What the engine asks of a runtime. `ort.py` and `trt.py` are the only importers of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

HostArray = NDArray[Any]


class Tensor(Protocol):
    """Memory on the backend's device, of a fixed shape and element type."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


class Graph(Protocol):
    """A loaded graph."""

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Compute into `outputs`, which have the right shapes already. Does not wait for a device."""
        ...


class Backend(Protocol):
    """A runtime: loads graphs and owns memory."""

    name: str
    """As manifests list it under `backends`."""
    exact_shapes: bool
    """True: any shape runs, so frames need no padding to a bucket."""

    def load(self, path: Path) -> Graph:
        """Raises BundleError when the runtime cannot read the file."""
        ...

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        """New memory, filled with zeros."""
        ...

    def upload(self, array: HostArray, to: Tensor, put: tuple[int, ...] = ()) -> None:
        """to[put][:k] = array, with k the length of `array`."""
        ...

    def copy(
        self, source: Tensor, to: Tensor, *, take: tuple[int, ...] = (), put: tuple[int, ...] = ()
    ) -> None:
        """to[put][:k] = source[take][:k], with k the shorter of the two first axes: one run of bytes."""
        ...

    def download(self, tensor: Tensor) -> HostArray:
        """A host copy; waits for what computes it."""
        ...

    def close(self) -> None:
        """Release everything; the backend is not used afterwards."""
        ...

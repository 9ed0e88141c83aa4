"""Peak arithmetic and bandwidth of Jetson AGX Orin by power mode, and of an H100, from public figures.

Peak in FP16 = processing clusters · 8 tensor cores · 512 operations a clock · clock; INT8 is twice that. The
64 GB module's 170 sparse INT8 TOPS at 1.3 GHz, as NVIDIA gives them, are 85 dense and 42.6 in FP16: the same.
The modes are those of the vendor's nvpmodel.conf; the 15 W mode lowers the memory's clock to two thirds.
H100 SXM: 66 clusters, tensor cores of twice the width, 989 dense FP16 TFLOPS at 1.83 GHz, HBM3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TENSOR_CORES = 8
"""Tensor cores of a processing cluster (TPC): two multiprocessors with four each."""
OPERATIONS = 512
"""Operations per clock: 256 dense FP16 products, each multiplied and added."""


@dataclass(frozen=True)
class Mode:
    """Power mode: clusters that are on, GPU clock, memory bandwidth."""

    clusters: int
    hz: float
    bytes_per_s: float = 204.8e9
    operations: int = OPERATIONS
    """Operations of a tensor core per clock."""

    @property
    def flops(self) -> float:
        return self.clusters * TENSOR_CORES * self.operations * self.hz


DEVICES: Mapping[str, Mapping[str, Mode]] = {
    "agx-orin-64": {
        "MAXN": Mode(8, 1300.5e6),
        "50W": Mode(8, 816e6),
        "30W": Mode(4, 612e6),
        "15W": Mode(3, 408e6, 136.5e9),
    },
    "agx-orin-32": {
        "MAXN": Mode(7, 930.75e6),
        "40W": Mode(7, 816e6),
        "30W": Mode(4, 612e6),
        "15W": Mode(3, 408e6, 136.5e9),
    },
    "h100-sxm": {"MAXN": Mode(66, 1830e6, 3.35e12, operations=1024)},
}


@dataclass(frozen=True)
class RowWork:
    """Operations of one row of one step: `frame`·N + `pair`·N²."""

    frame: float
    pair: float


BASE = RowWork(frame=22 * 16.78e6 + 9.8e6, pair=22 * 4096)
"""F5TTS_v1_Base: 22 blocks of width 1024, convolutions and the two projections."""
REACHED = 0.45
"""Assumed share of the peak: between torch F5 on Orin (0.2) and the best public engines on server GPUs
(0.5)."""


def row_seconds(work: RowWork, mode: Mode, reached: float = REACHED) -> RowWork:
    """Seconds instead of operations, at a share of the mode's peak."""
    return RowWork(work.frame / (mode.flops * reached), work.pair / (mode.flops * reached))

"""Arithmetic of a Jetson AGX Orin 64 GB at MAXN, from public figures.

Peak in FP16 = processing clusters · 8 tensor cores · 512 operations a clock · clock. The module's 170 sparse
INT8 TOPS at 1.3 GHz, as NVIDIA gives them, are 85 dense and 42.6 in FP16: the same.
"""

from __future__ import annotations

CLUSTERS, TENSOR_CORES, HZ = 8, 8, 1300.5e6
"""Clusters that are on, tensor cores of each (two multiprocessors with four), GPU clock."""
OPERATIONS = 512
"""Operations of a tensor core per clock: 256 dense FP16 products, each multiplied and added."""
REACHED = 0.45
"""Assumed share of the peak: between torch F5 on Orin (0.2) and the best public engines on server GPUs
(0.5)."""
FRAME, PAIR = 22 * 16.78e6 + 9.8e6, 22 * 4096
"""F5TTS_v1_Base, one row of one step of N frames: FRAME·N + PAIR·N² operations (22 blocks of width 1024,
convolutions and the two projections)."""


def seconds(operations: float) -> float:
    return operations / (CLUSTERS * TENSOR_CORES * OPERATIONS * HZ * REACHED)

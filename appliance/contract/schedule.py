"""Time grids of the flow ODE, and its initial noise.

EPSS: empirically pruned step sampling, arXiv 2505.19931, from upstream's `get_epss_timesteps`; uniform for
other step counts. Sway sampling: F5-TTS, arXiv 2410.06885, eq. 7. Shift: ZipVoice, arXiv 2506.13053.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from appliance.contract.limits import MAX_NFE

GRIDS = ("epss", "uniform", "shift")
KEY_TIMES = {"short-kv": (0.0, 0.076), "short-once": (0.0,)}
"""Sampling → times at which a step computes the reference's keys and values."""

EPSS_32NDS: dict[int, tuple[int, ...]] = {
    5: (0, 2, 4, 8, 16, 32),
    6: (0, 2, 4, 6, 8, 16, 32),
    7: (0, 2, 4, 6, 8, 16, 24, 32),
    10: (0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
    12: (0, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
    16: (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32),
}
"""NFE → grid points in units of 1/32."""


def check_nfe(nfe: int) -> None:
    """Raise ValueError unless `nfe` is in 1..MAX_NFE."""
    if not 1 <= nfe <= MAX_NFE:
        raise ValueError(f"nfe must be between 1 and {MAX_NFE}, not {nfe}")


@lru_cache(MAX_NFE)
def time_grid(nfe: int, *, grid: str = "epss", sway: float = -1.0, shift: float = 1.0) -> NDArray[np.float64]:
    """(nfe + 1,) increasing times, read-only. The model is evaluated at all of them but the last.

    `sway` acts on the grids epss and uniform. `shift` acts on its own grid: u → s·u / (1 + (s − 1)·u), on
    equal steps. Raises ValueError for an `nfe` or a grid that is not allowed, or a sway that makes times
    decrease.
    """
    check_nfe(nfe)
    if grid not in GRIDS:
        raise ValueError(f"grid must be one of {', '.join(GRIDS)}, not {grid!r}")
    if not math.isfinite(sway):
        raise ValueError(f"sway must be finite, not {sway}")
    if not 0.0 < shift <= 1.0:
        raise ValueError(f"shift must be above 0 and at most 1, not {shift}")
    if grid == "epss" and nfe in EPSS_32NDS:
        t = np.array(EPSS_32NDS[nfe], dtype=np.float64) / 32.0
    else:
        t = np.linspace(0.0, 1.0, nfe + 1, dtype=np.float64)
    if grid == "shift":
        t = shift * t / (1.0 + (shift - 1.0) * t)
    else:
        t = t + sway * (np.cos(np.pi / 2.0 * t) - 1.0 + t)
    if not (np.diff(t.astype(np.float32)) > 0).all():
        raise ValueError(f"sway {sway} with nfe {nfe} makes times that do not increase")
    t.flags.writeable = False
    return t


def key_steps(times: NDArray[np.float64], sampling: str) -> frozenset[int]:
    """Steps that compute the reference's keys and values."""
    if sampling not in KEY_TIMES:
        return frozenset(range(len(times) - 1))
    reached = np.searchsorted(times[:-1], KEY_TIMES[sampling])
    return frozenset(int(step) for step in reached if step < len(times) - 1)


def noise(seed: int, segment: int, frames: int, mels: int, step: int = 0) -> NDArray[np.float32]:
    """(frames, mels) standard normal noise, equal on every machine.

    `step`: the noise is for the time before this step. Steps from 1 on have streams spawned from the first's.
    """
    sequence = np.random.SeedSequence([seed, segment], spawn_key=(step,) if step else ())
    generator = np.random.Generator(np.random.PCG64(sequence))
    return generator.standard_normal((frames, mels), dtype=np.float32)

"""Audio of segments → one stream with linear cross-fades."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Joiner:
    """Cross-fades segments. The whole output equals upstream's for the list of segments.

    Neighbours overlap by the cross-fade, or by the shorter of them. Only the samples of the overlap are held
    back.
    """

    def __init__(self, overlap_samples: int) -> None:
        if overlap_samples < 0:
            raise ValueError(f"overlap_samples must be at least 0, not {overlap_samples}")
        self._overlap = overlap_samples
        # float64, because a segment shorter than the overlap is faded more than once.
        self._held: NDArray[np.float64] = np.zeros(0)

    def push(
        self, samples: NDArray[np.float32], *, pause: int = 0, last: bool = False
    ) -> NDArray[np.float32]:
        """Add (samples,) of the next segment; return the samples that are final, with `last` all of them.

        `pause` samples of silence follow the segment, without a cross-fade.
        """
        if (last or pause) and not len(self._held):
            joined: NDArray[np.floating] = samples
        else:
            joined = crossfade(self._held, samples, self._overlap)
        final = len(joined) if last or pause else max(len(joined) - self._overlap, 0)
        self._held = joined[final:].astype(np.float64)
        final_samples = joined[:final].astype(np.float32, copy=False)
        return np.concatenate([final_samples, np.zeros(pause, np.float32)]) if pause else final_samples

    def flush(self) -> NDArray[np.float32]:
        """Return the samples that were held back."""
        return self.push(np.zeros(0, np.float32), last=True)


def overlap_samples(cross_fade_s: float, rate_hz: int) -> int:
    """Samples of the cross-fade, rounded down as in upstream."""
    return int(cross_fade_s * rate_hz)


def crossfade(left: NDArray[np.floating], right: NDArray[np.floating], overlap: int) -> NDArray[np.float64]:
    """Overlap both by `overlap` samples, or by the length of the shorter one."""
    overlap = min(overlap, len(left), len(right))
    fade_start = len(left) - overlap
    fade_out, fade_in = np.linspace(1, 0, overlap), np.linspace(0, 1, overlap)
    faded = left[fade_start:] * fade_out + right[:overlap] * fade_in
    return np.concatenate([left[:fade_start], faded, right[overlap:]])

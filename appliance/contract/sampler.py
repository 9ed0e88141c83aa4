"""How a bundle samples its flow: rows of a step, numbers of steps, and the update.

Models without guidance: arXiv 2504.20334. Embedded strength: ZipVoice-Distill, arXiv 2506.13053. Re-noising:
DMOSpeech 2, arXiv 2507.14988.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from appliance.contract.limits import MAX_GUIDANCE, MAX_NFE
from appliance.contract.schedule import check_nfe

Update = Literal["euler", "renoise"]
"""Step from t to t' with the velocity v.

`euler`: x + (t' − t)·v. `renoise`: (1 − t')·noise' + t'·(x + (1 − t)·v), with other noise' for each step
(`schedule.noise`).
"""
Guidance = Literal["two-row", "none", "embedded"]
"""Guidance with strength w.

`two-row`: v = c + w·(c − u), from a row with text and reference (c) and a row without (u); below
UNGUIDED_BELOW the first row alone. `none`: one row, the weights contain the strength. `embedded`: one row,
and w is an input of the model.
"""
Condition = Literal["full", "speech", "none"]
"""Inputs of a row: text and reference, the reference alone, or neither."""
UNGUIDED_BELOW = 1e-5
"""Smallest strength with an unguided row, as in upstream's `CFM.sample`."""


@dataclass(frozen=True)
class Unguided:
    """Condition of the unguided row, up to and including a time."""

    condition: Condition = "none"
    until: float = 1.0
    factor: float = 1.0
    """Factor of the strength."""


@dataclass(frozen=True)
class Sampler:
    """How the flow is sampled: update, guidance, and numbers of steps."""

    update: Update = "euler"
    guidance: Guidance = "two-row"
    steps: tuple[int, ...] = ()
    """Numbers of steps that the weights were trained for, increasing; empty allows any."""
    strengths: tuple[float, ...] = ()
    """Smallest and largest strength that the weights were trained with, or the only one; empty if unknown."""
    unguided: tuple[Unguided, ...] = ()
    """Unguided rows of `two-row`, by time; empty if the row never has text or reference."""

    def __post_init__(self) -> None:
        for nfe in self.steps:
            check_nfe(nfe)
        if any(a >= b for a, b in pairwise(self.steps)):
            raise ValueError(f"steps: must increase, not {', '.join(map(str, self.steps))}")
        strengths = (0.0, *self.strengths, MAX_GUIDANCE)
        if len(self.strengths) > 2 or not all(a <= b for a, b in pairwise(strengths)):
            raise ValueError(f"strengths: must be up to two increasing numbers of 0 to {MAX_GUIDANCE:g}")
        if self.update == "renoise" and self.guidance == "two-row":
            raise ValueError("update: renoise has one row: guidance must be none or embedded, not two-row")
        if self.unguided and self.guidance != "two-row":
            raise ValueError(f"unguided: is of a second row, which guidance {self.guidance} has not")
        ends = [0.0, *(one.until for one in self.unguided)]
        if self.unguided and (ends[-1] != 1.0 or any(a >= b for a, b in pairwise(ends))):
            raise ValueError("unguided: until must increase from above 0 to 1")

    def check_steps(self, nfe: int) -> None:
        """Raise ValueError for a number of steps that is not allowed."""
        check_nfe(nfe)
        if self.steps and nfe not in self.steps:
            raise ValueError(f"must be {self.steps_allowed} with this bundle, not {nfe}")

    @property
    def steps_allowed(self) -> str:
        if not self.steps:
            return f"1 to {MAX_NFE}"
        *others, last = map(str, self.steps)
        return f"{', '.join(others)} or {last}" if others else last

    def nearest(self, nfe: int) -> int:
        """Allowed number of steps nearest to `nfe`; of two, the larger."""
        return min(reversed(self.steps), key=lambda steps: abs(steps - nfe), default=nfe)

    def check_strength(self, w: float) -> None:
        """Raise ValueError for a strength that the weights do not allow."""
        if self.guidance == "none" and w != 0.0:
            raise ValueError(
                f"must be 0 or absent with this bundle, whose weights have it in them, not {w:g}"
            )
        if self.guidance == "embedded" and self.strengths:
            least, most = self.strengths[0], self.strengths[-1]
            if not least <= w <= most:
                raise ValueError(f"must be between {least:g} and {most:g} with this bundle, not {w:g}")

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions that a bundle computes for a segment, the guided row's first, as in the graph."""
        if self.guidance != "two-row":
            return ("full",)
        return "full", *dict.fromkeys(one.condition for one in self.unguided or (Unguided(),))

    def unguided_at(self, t: float) -> Unguided:
        """Condition of the unguided row at a time."""
        return next((one for one in self.unguided if np.float32(t) <= np.float32(one.until)), Unguided())

    @property
    def most_rows(self) -> int:
        """Rows of a guided lane."""
        return 2 if self.guidance == "two-row" else 1

    def rows(self, w: float) -> int:
        """Rows of a lane with guidance `w`."""
        return self.most_rows if w >= UNGUIDED_BELOW else 1

    def weights(self, times: NDArray[np.float64], w: float) -> NDArray[np.float32]:
        """(NFE, 2) weights of the `update` graph.

        `euler`: weights of both rows' velocities; the latents have weight 1. `renoise`: weights of latents
        and velocity; (1 − t')·noise' is added.
        """
        now, then = times[:-1], times[1:]
        if self.update == "renoise":
            return np.stack([then, then * (1.0 - now)], axis=1).astype(np.float32)
        if self.rows(w) == 1:
            rows = np.array([(1.0, 0.0)], np.float32)
        else:
            strengths = [w * self.unguided_at(t).factor for t in now]
            rows = np.array([(1.0 + strength, -strength) for strength in strengths], np.float32)
        return np.diff(times).astype(np.float32)[:, None] * rows


UPSTREAM = Sampler()

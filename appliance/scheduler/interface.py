"""The engine as the scheduler drives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from appliance.request import Cost, FloatArray, Lane, PassedOver, Segment


class CostEstimates(Protocol):
    """Estimates of the seconds that the engine's calls take."""

    def of(self, segment: Segment) -> Cost: ...

    def together(self, steps: Sequence[tuple[Segment, int]]) -> float:
        """Cost of one call that all these steps share."""

    def learn(self, call: str, steps: Sequence[tuple[Segment, int]], seconds: float) -> None:
        """Correct the estimates by a measured call. `call`: "open", "step" or "finish"."""

    def reset(self) -> None:
        """Forget the durations of calls, and return to the measurements of the warm-up."""


class Engine(Protocol):
    """The engine of one bundle. All methods run on one thread, except `interrupt`."""

    @property
    def backend(self) -> str: ...

    @property
    def passed_over(self) -> Sequence[PassedOver]:
        """Backends tried before this one."""

    @property
    def max_lanes(self) -> int: ...

    @property
    def max_batch(self) -> int:
        """Lanes that may share a call."""

    @property
    def costs(self) -> CostEstimates: ...

    def open(self, segment: Segment) -> Lane: ...

    def step(self, lane_ids: Sequence[int]) -> None: ...

    def finish(self, lane_id: int) -> FloatArray:
        """Decode a segment whose steps are done. Returns (samples,) at the model's rate, all finite. The lane
        stays open.
        """

    def close(self, lane_id: int) -> None: ...

    @property
    def can_interrupt(self) -> bool: ...

    def interrupt(self, on: bool) -> None:
        """Make calls raise Interrupted, from the current call on, until switched off. Lanes stay open."""

    def self_test(self, segment: Segment | None = None) -> None:
        """Synthesise a segment; without one, a known input. Raises EngineFault if that fails."""

    def shutdown(self) -> None: ...


class Restful(Protocol):
    """An engine that can give its memory back."""

    idle_s: float
    """Seconds without a job after which it rests."""
    wake_s: float
    """Seconds that a wake takes."""

    def rest(self) -> None:
        """Free the memory. No lane may be open."""

    def wake(self) -> None:
        """Load the engine again, in about `wake_s`; does nothing if it is awake."""

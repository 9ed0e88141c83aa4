"""The engine as the scheduler drives it: its interface, and one call of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from appliance.job import Cost, FloatArray, Segment
from appliance.playout import Job


class EngineLane(Protocol):
    """A segment that the engine works on."""

    @property
    def id(self) -> int: ...


class CostEstimates(Protocol):
    """Estimates of the engine's calls, in seconds."""

    def of(self, segment: Segment) -> Cost:
        """One segment alone."""
        ...

    def together(self, steps: Sequence[tuple[Segment, int]]) -> float:
        """One call that does these steps, each the given one of its segment."""
        ...

    def learn(self, call: str, steps: Sequence[tuple[Segment, int]], seconds: float) -> None:
        """Correct the estimate of such a call ("open", "step", "finish") by the time that one took."""
        ...

    def reset(self) -> None:
        """Forget what was learnt."""
        ...


class Engine(Protocol):
    """Interface of the engine that the scheduler drives, from one thread only."""

    @property
    def backend(self) -> str:
        """Label of the runtime."""
        ...

    @property
    def max_lanes(self) -> int: ...

    @property
    def max_batch(self) -> int:
        """Lanes that may share a call; 1 where a bundle's numbers depend on what else is in the batch."""
        ...

    @property
    def costs(self) -> CostEstimates: ...

    def open(self, segment: Segment) -> EngineLane: ...

    def step(self, lane_ids: Sequence[int]) -> None: ...

    def finish(self, lane_id: int) -> FloatArray:
        """(samples,) at the model's rate, all finite."""
        ...

    def close(self, lane_id: int) -> None: ...

    @property
    def can_interrupt(self) -> bool:
        """True if `interrupt` ends a call under way."""
        ...

    def interrupt(self, on: bool) -> None:
        """Make the call under way, and all until this is called with False, raise Interrupted.

        No lane is lost by it. Any thread may call it.
        """
        ...

    def prove(self) -> None:
        """Synthesise a known input. Raises the engine's error."""
        ...

    def shutdown(self) -> None:
        """Release everything."""
        ...


@dataclass(frozen=True, eq=False)
class EngineCall:
    """One call of the engine."""

    kind: Literal["open", "step", "finish"]
    jobs: tuple[Job, ...]
    begun: float
    cost_s: float
    """Estimate."""
    due: float
    """Deadline of the job for which it is made."""
    preempted: Job | None = None
    """BULK job that must give up its lane first."""

    @property
    def engine(self) -> Engine:
        """Engine that makes it."""
        engine: Engine = self.jobs[0].engine
        return engine

    @property
    def steps(self) -> list[tuple[Segment, int]]:
        """Segments and steps that the call works on."""
        return [(job.segment, job.steps) for job in self.jobs]

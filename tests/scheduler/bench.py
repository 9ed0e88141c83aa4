"""The one builder of a scheduler over a virtual clock, on a fake engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from appliance.config import SchedulerConfig
from appliance.request import Playout, Segment, SegmentAudio, Terms
from appliance.scheduler.job import Job, Result
from appliance.scheduler.loop import Scheduler
from appliance.scheduler.workload import Observer
from tests.fakes_engine import FakeEngine, segment

CALL_S = 0.01
"""Time that each call of the fake engine takes, and is estimated to take."""


class Bench:
    """A scheduler with an engine whose calls move the clock; `serve` enters its loop in the test's thread."""

    def __init__(
        self,
        *,
        lanes: int = 4,
        batch: int = 1,
        observer: Observer | None = None,
        **config: object,
    ) -> None:
        self.now = 100.0
        self.engine = FakeEngine(max_lanes=lanes, max_batch=batch)
        self.engine.costs.call_s = CALL_S
        self.engine.on_call = self.tick
        self.alarms: list[tuple[float, Callable[[], None]]] = []
        self.scheduler = Scheduler(
            SchedulerConfig(**config),  # type: ignore[arg-type]
            clock=lambda: self.now,
            call_at=lambda when, act: self.alarms.append((when, act)),
            observer=observer,
        )
        self.scheduler.start(self.engine)
        self.results: dict[str, list[Result]] = {}

    def tick(self) -> None:
        self.now += CALL_S

    def job(
        self,
        name: str,
        *,
        stream: bool = True,
        deadline: float = math.inf,
        buffer_s: float = math.inf,
        **terms: object,
    ) -> Job:
        self.results[name] = []
        known = Terms(name, playout=Playout.OVERLAP)
        return Job(
            replace(known, **terms),  # type: ignore[arg-type]
            self.results[name].append,
            self.now,
            deadline=deadline,
            stream=stream,
            buffer_s=buffer_s,
        )

    def admit(
        self, name: str, segments: int = 1, *, nfe: int = 4, frames: int = 60, **options: object
    ) -> Job:
        job = self.job(name, **options)  # type: ignore[arg-type]
        self.scheduler.admit(job, [pieces(name, segments, nfe, frames)])
        return job

    def work(self) -> None:
        """Run as long as there is something to do."""
        while self.scheduler.run_once():
            pass

    def until(self, name: str, segments: int = 1) -> None:
        """Run until so many segments of a job have gone out."""
        while len(self.results[name]) < segments:
            assert self.scheduler.run_once()

    def serve(self) -> None:
        self.scheduler.drain()
        self.scheduler.start(self.engine)
        self.scheduler.run()

    def opened(self) -> list[str]:
        """Texts of the segments in the order in which their lanes were opened."""
        return [call.removeprefix("open ") for call in self.engine.calls if call.startswith("open")]

    def ends(self) -> dict[str, type]:
        """How each job ended: with the last segment or an error."""
        last = {name: results[-1] for name, results in self.results.items() if results}
        return {name: type(e) for name, e in last.items() if not isinstance(e, SegmentAudio) or e.last}


def pieces(name: str, segments: int, nfe: int = 4, frames: int = 60) -> list[Segment]:
    return [segment(f"{name}{i}", index=i, nfe=nfe, frames=frames) for i in range(segments)]


def raising(error: Exception) -> Callable[..., Any]:
    def act(*_: object) -> None:
        raise error

    return act

"""Recording of a scheduler: every call of the engine, and why each request waited.

Written as JSON trace events for ui.perfetto.dev and chrome://tracing. A request's slices leave no gap from
its arrival to its end: its waits and its work are all of its time.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import ApplianceError, EngineFault, StorageError
from appliance.request import FloatArray, Segment
from appliance.scheduler import Scheduler
from appliance.scheduler.calls import Engine, EngineCall, EngineLane
from appliance.scheduler.playout import Job

LIMIT = 100_000
"""Newest slices that are kept, of at most 500 bytes each."""
TEXT, QUEUE, TURN, LANES, BATCH, PAUSED, READER, HELD, LOOP = (
    "text", "queue", "turn", "lanes", "batch", "paused", "reader", "held", "loop",
)  # fmt: skip
REASONS = {
    TEXT: "not admitted yet: its text is cut and planned",
    QUEUE: "not begun: the engine works for others that are due earlier, or is woken",
    TURN: "begun, and another lane has its turn",
    LANES: "due first, but all lanes are taken",
    BATCH: "due first, but a lane is opened that shall share its steps",
    PAUSED: "its channel is paused",
    READER: "its reader is slow: it is set aside",
    HELD: "made, and held until its first sound is due",
    LOOP: "between two calls of the engine",
}
"""Reasons of waiting, with their explanations."""
CALLS, LANE, REQUESTS = 1, 2, 3
"""Groups of tracks, which the viewer calls processes."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Span of time on one track, in seconds of the scheduler's clock."""

    process: int
    thread: int
    """0 in CALLS, the lane's place in LANE, the request's number in REQUESTS."""
    name: str
    begun: float
    ended: float
    arguments: dict[str, Any]


@dataclass
class _Since:
    """Start and reason of a wait; None during a call for the request."""

    time: float
    reason: str | None


class TracedScheduler(Scheduler):
    """Scheduler that records; every call costs time in proportion to the number of requests."""

    def __init__(self, *given: Any, limit: int = LIMIT, **named: Any) -> None:
        super().__init__(*given, **named)
        self._slices: deque[Slice] = deque(maxlen=limit)
        self._recorded = 0
        self._refused: Counter[str] = Counter()
        self._origin = self._clock()
        self._waits: dict[Job, _Since] = {}
        """Current waits of the requests that have not ended."""
        self._places: dict[Job, int] = {}
        """Track of each open lane: the lowest that was free."""
        self._made_now: EngineCall | None = None

    def admit(
        self,
        job: Job,
        ways: Sequence[Sequence[Segment]],
        merging: Job | None = None,
        generation: int | None = None,
    ) -> int | None:
        with self._changed:
            try:
                way = super().admit(job, ways, merging, generation)
            except ApplianceError as error:
                self._refused[type(error).__name__] += 1
                raise
            if way is not None:
                now = self._clock()
                self._add_request(job, TEXT, job.arrived, now)
                if not job.ended:
                    self._waits[job] = _Since(now, QUEUE)
            return way

    def write(self, path: Path) -> None:
        """Write all that is recorded as JSON. Raises StorageError."""
        with self._changed:
            slices, recorded = list(self._slices), self._recorded
        events = [*_names(slices), *(_event(one, self._origin) for one in slices)]
        document = {
            "displayTimeUnit": "ms",
            "otherData": {
                "backend": self.backend,
                "dropped": recorded - len(slices),
                "refused": dict(self._refused),
            },
            "traceEvents": events,
        }
        try:
            with path.open("w", encoding="utf-8") as file:
                json.dump(document, file, ensure_ascii=False, separators=(",", ":"))
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error

    # Steps of the scheduler, under its lock.

    def _pick(self) -> EngineCall | None:
        if self._made_now is not None:
            self._add_call(self._made_now, self._clock(), "interrupted")
        call = self._made_now = super()._pick()
        now = self._clock() if call is None else call.begun
        order = sorted(self._workload.demands(now), key=self._workload.urgency)
        places = {demand.job: place for place, demand in reversed(list(enumerate(order)))}
        for job, since in self._waits.items():
            reason = None if call and job in call.jobs else self._reason(job, call, places)
            if reason != since.reason:
                self._add_wait(job, now)
                self._waits[job] = _Since(now, reason)
        return call

    def _settle(
        self, engine: Engine, call: EngineCall, result: EngineLane | FloatArray | None, now: float
    ) -> None:
        if call.kind == "open":
            taken = self._places.values()
            self._places[call.jobs[0]] = next(p for p in range(len(taken) + 1) if p not in taken)
        self._add_call(call, now)
        super()._settle(engine, call, result, now)

    def _fail(self, call: EngineCall, fault: EngineFault) -> None:
        self._add_call(call, self._clock(), "failed")
        super()._fail(call, fault)

    def _give_up_lane(self, job: Job) -> None:
        self._places.pop(job, None)
        super()._give_up_lane(job)

    def _complete(self, job: Job) -> None:
        self._add_end(job)
        super()._complete(job)

    def _end(self, job: Job, why: ApplianceError) -> None:
        self._add_end(job)
        super()._end(job, why)

    # Recording.

    def _reason(self, job: Job, call: EngineCall | None, places: dict[Job, int]) -> str:
        if job.channel.paused is not None:
            return PAUSED
        if job.made:
            return HELD
        if not job.has_room:
            return READER
        if call is None:
            return LOOP
        if places[job] < min(places[other] for other in call.jobs):
            if job.lane is None:
                return LANES
            if call.kind == "open":
                return BATCH
        return TURN if job.begun else QUEUE

    def _add(self, added: Slice) -> None:
        self._recorded += 1
        self._slices.append(added)

    def _add_call(self, call: EngineCall, now: float, ended: str = "") -> None:
        """Record a call on the tracks of the engine, its lanes and its requests."""
        self._made_now = None
        known: dict[str, Any] = {"due_in_ms": _ms(call.due - call.begun), "estimated_ms": _ms(call.cost_s)}
        known |= {"lanes": len(call.jobs), **({"ended": ended} if ended else {})}
        self._add(Slice(CALLS, 0, call.kind, call.begun, now, known))
        for job in call.jobs:
            of: dict[str, Any] = {
                "request": job.terms.request_id,
                "segment": job.done,
                "together": len(call.jobs),
            }
            of |= {"step": job.steps} if call.kind == "step" else {}
            of |= {"ended": ended} if ended else {}
            if job in self._places:
                self._add(Slice(LANE, self._places[job], call.kind, call.begun, now, of))
            if job in self._waits:
                self._add(Slice(REQUESTS, job.number, call.kind, call.begun, now, of))
                self._waits[job] = _Since(now, LOOP)

    def _add_request(self, job: Job, name: str, begun: float, ended: float) -> None:
        self._add(Slice(REQUESTS, job.number, name, begun, ended, {"request": job.terms.request_id}))

    def _add_wait(self, job: Job, now: float) -> None:
        since = self._waits[job]
        if since.reason is not None and now > since.time:
            self._add_request(job, since.reason, since.time, now)

    def _add_end(self, job: Job) -> None:
        """Record the rest of a request, which may end during a call for it."""
        now = self._clock()
        if job in self._waits:
            if self._waits[job].reason is None and self._made_now is not None:
                self._add_request(job, self._made_now.kind, self._made_now.begun, now)
            self._add_wait(job, now)
            del self._waits[job]


def _names(slices: Sequence[Slice]) -> Iterator[dict[str, Any]]:
    """Metadata events that name the tracks."""
    for process, name in ((CALLS, "engine calls"), (LANE, "lanes"), (REQUESTS, "requests")):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
        yield {
            "ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}
        }  # fmt: skip
    tracks = {(one.process, one.thread): one.arguments.get("request", "") for one in slices}
    for (process, thread), request in sorted(tracks.items()):
        name = {CALLS: "engine", LANE: f"lane {thread}"}.get(process, request)
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}


def _event(one: Slice, origin: float) -> dict[str, Any]:
    """Complete event; times in microseconds, to the nanosecond."""
    begun, ended = (round((time - origin) * 1e9) for time in (one.begun, one.ended))
    return {
        "ph": "X",
        "name": one.name,
        "cat": "wait" if one.name in REASONS else "work",
        "pid": one.process,
        "tid": one.thread,
        "ts": begun / 1e3,
        "dur": (ended - begun) / 1e3,
        "args": one.arguments,
    }


def _ms(seconds: float) -> float | None:
    """Milliseconds; None for infinity, which JSON lacks."""
    return round(seconds * 1e3, 3) if math.isfinite(seconds) else None

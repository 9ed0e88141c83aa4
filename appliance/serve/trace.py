"""Records every engine call, and why each request waited, as JSON trace events for Perfetto.

The slices of a request cover its whole time, from arrival to end.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import ApplianceError, StorageError
from appliance.scheduler.job import GOING, Job
from appliance.scheduler.workload import CallOutcome, Clock, EngineCall, Observer, Workload

LIMIT = 100_000
"""Slices in memory, of at most 500 bytes each."""
TEXT, QUEUE, TURN, LANES, BATCH, PAUSED, APPROVAL, READER, HELD, LOOP = (
    "text", "queue", "turn", "lanes", "batch", "paused", "approval", "reader", "held", "loop",
)  # fmt: skip
REASONS = {
    TEXT: "not admitted yet: its text is cut and planned",
    QUEUE: "not begun: the engine works for others that are due earlier, or is woken",
    TURN: "begun, and another lane has its turn",
    LANES: "due first, but all lanes are taken",
    BATCH: "due first, but a lane is opened that shall share its steps",
    PAUSED: "its channel is paused",
    APPROVAL: "it waits for a moderator's approval",
    READER: "its reader is slow: it is set aside",
    HELD: "made, and held until its first sound is due",
    LOOP: "between two calls of the engine",
}
CALLS, LANE, REQUESTS = 1, 2, 3
"""Numbers of the groups of tracks."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A span of time in a trace."""

    process: int
    thread: int
    """Track in its group: 0, the lane's number, or the request's number."""
    name: str
    begun: float
    ended: float
    arguments: dict[str, Any]


@dataclass
class _Since:
    """A wait that has not ended. The reason is None during a call."""

    time: float
    reason: str | None


class Recorder(Observer):
    """Records engine calls and the waits between them, as a trace."""

    def __init__(self, clock: Clock = time.monotonic, *, limit: int = LIMIT) -> None:
        self._slices: deque[Slice] = deque(maxlen=limit)
        self._lock = threading.Lock()
        """Held because `write` runs on another thread."""
        self._recorded = 0
        self._refused: Counter[str] = Counter()
        self._origin = clock()
        self._waits: dict[Job, _Since] = {}
        self._places: dict[Job, int] = {}
        self._call: EngineCall | None = None

    def write(self, path: Path, backend: str = "") -> None:
        """Write the recording. Raises StorageError."""
        with self._lock:
            slices, recorded = list(self._slices), self._recorded
        events = [*_names(slices), *(_event(one, self._origin) for one in slices)]
        document = {
            "displayTimeUnit": "ms",
            "otherData": {
                "backend": backend,
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

    # Events.

    def admitted(self, job: Job, now: float) -> None:
        self._add_request(job, TEXT, job.arrived, now)
        if not job.ended:
            self._waits[job] = _Since(now, QUEUE)

    def refused(self, error: ApplianceError) -> None:
        self._refused[type(error).__name__] += 1

    def picked(self, call: EngineCall | None, workload: Workload) -> None:
        """Note why each waiting job does not run in this call."""
        self._call = call
        now = workload.clock() if call is None else call.begun
        first = {job: workload.urgency(demands[0]) for job, demands in workload.timetable(now).items()}
        for job, since in self._waits.items():
            reason = None if call and job in call.jobs else _reason(job, call, first)
            if reason != since.reason:
                self._add_wait(job, now)
                self._waits[job] = _Since(now, reason)

    def settled(self, call: EngineCall, outcome: CallOutcome, now: float) -> None:
        self._places = {job: place for job, place in self._places.items() if job.lane is not None}
        if call.kind == "open" and outcome is CallOutcome.DONE:
            places = self._places.values()
            self._places[call.jobs[0]] = next(p for p in range(len(places) + 1) if p not in places)
        self._add_call(call, outcome, now)
        self._call = None

    def ended(self, job: Job, now: float) -> None:
        if job in self._waits:
            if self._waits[job].reason is None and self._call is not None:
                self._add_request(job, self._call.kind, self._call.begun, now)
            self._add_wait(job, now)
            del self._waits[job]

    # Recording.

    def _add(self, added: Slice) -> None:
        with self._lock:
            self._recorded += 1
            self._slices.append(added)

    def _add_call(self, call: EngineCall, outcome: CallOutcome, now: float) -> None:
        """Add slices of a call: for the engine, and for each job's lane and request."""
        ended = {} if outcome is CallOutcome.DONE else {"ended": outcome.value}
        details: dict[str, Any] = {"due_in_ms": _ms(call.due - call.begun), "estimated_ms": _ms(call.cost_s)}
        self._add(Slice(CALLS, 0, call.kind, call.begun, now, details | {"lanes": len(call.jobs)} | ended))
        for job in call.jobs:
            of: dict[str, Any] = {
                "request": job.terms.request_id,
                "segment": job.segments_done,
                "together": len(call.jobs),
            }
            of |= ({"step": job.steps} if call.kind == "step" else {}) | ended
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


def _reason(job: Job, call: EngineCall | None, urgency: Mapping[Job, tuple[float, ...]]) -> str:
    """Reason for which a job waits. `urgency` has the sort key of each job."""
    if job.channel.hold is not GOING:
        return APPROVAL if job.channel.unapproved else PAUSED
    if job.is_done:
        return HELD
    if not job.has_room:
        return READER
    if call is None:
        return LOOP
    if urgency[job] < min(urgency[other] for other in call.jobs):
        if job.lane is None:
            return LANES
        if call.kind == "open":
            return BATCH
    return TURN if job.begun else QUEUE


def _names(slices: Sequence[Slice]) -> Iterator[dict[str, Any]]:
    """Events that name the tracks of a trace."""
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
    """Trace event of a slice. Times are in microseconds, rounded to the nanosecond."""
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

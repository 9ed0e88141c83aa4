"""Progress of a long command on standard error: its stages, and the time left for the planned work.

    with progress.shown(plan):
        progress.begin("gate of ort-cpu")     # a line of a log; on a terminal the bar's words
        progress.did(frames=500, rows=2)      # evaluations of the velocity

`begin`, `did` and `part` may be called anywhere; outside of `shown` they do nothing. Stages are planned in
`workload`. A stage that is not planned is shown, too, but adds nothing to the time left.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")

SHOWN_S = 0.2
"""Shortest time, in seconds, between two changes of a terminal's line."""
MAX_DRIFT = 4.0
"""Largest factor, up or down, by which measured kinds of work correct the guesses for other kinds. A small
model's costs differ too much between kinds for a larger one.
"""
CALIBRATED_S = 0.5
"""Seconds of a kind of work after which its own rate is measured."""


@dataclass
class Stage:
    """Work of one kind, in units of that kind."""

    name: str
    kind: str
    """Kind of work. Stages of a kind share a rate, which the first of them measures."""
    work: float
    work_done: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Plan:
    """Expected stages of a command and their work."""

    stages: Sequence[Stage] = ()
    """Stages in the order in which they begin."""
    evaluation: Callable[[int], float] = lambda frames: 0.0
    """Function of a number of frames that returns the work of one row."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Kind → guessed seconds for a unit of work; 1 for kinds that are missing."""


class Progress:
    """Progress line of a command."""

    def __init__(
        self, plan: Plan, stream: IO[str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._clock, self._plan = clock, plan
        self._waiting = list(plan.stages)
        self._stage = Stage("", "", 0.0)
        self._took: dict[str, float] = {}
        self._done_by: dict[str, float] = {}
        self._begun = self._stage_begun = clock()
        self._shown_at, self._share = -SHOWN_S, 0.0
        self._bar: Any = None
        if self._stream.isatty():
            form = "{desc} {percentage:3.0f} % |{bar}| {elapsed}{postfix}"
            self._bar = tqdm(total=1.0, file=self._stream, bar_format=form, dynamic_ncols=True)

    def begin(self, name: str, detail: str = "") -> None:
        """Enter a stage, or another part of the current one. Earlier stages of the plan count as finished."""
        if name != self._stage.name:
            self._settle()
            number = next((n for n, stage in enumerate(self._waiting) if stage.name == name), None)
            if number is None:
                self._stage = Stage(name, "", 0.0)
            else:
                self._stage = self._waiting[number]
                del self._waiting[: number + 1]
        line = f"{name} {detail}".rstrip()
        if self._bar is None:
            print(
                f"{_clock(self._clock() - self._begun)} {line}{self._left()}", file=self._stream, flush=True
            )
        else:
            self._bar.set_description_str(line, refresh=False)
            self._show()

    def did(self, frames: int, rows: int = 1, steps: int = 1) -> None:
        """Count evaluations of the velocity."""
        self._advance(rows * steps * self._plan.evaluation(frames))

    def part(self, share: float) -> None:
        """Count a share of the stage's work."""
        self._advance(share * self._stage.work)

    def left_s(self) -> float | None:
        """Seconds left; None if nothing is planned."""
        if not self._plan.stages:
            return None
        took, done = dict(self._took), dict(self._done_by)
        kind = self._stage.kind
        took[kind] = took.get(kind, 0.0) + self._clock() - self._stage_begun
        done[kind] = done.get(kind, 0.0) + self._stage.work_done
        measured = [one for one in took if done.get(one, 0.0) > 0.0 and took[one] >= CALIBRATED_S]
        # Kinds without a measurement are assumed to be as far from their guesses as the measured ones.
        expected_s = sum(done[one] * self._guess(one) for one in measured)
        drift = sum(took[one] for one in measured) / expected_s if measured else 1.0
        drift = min(max(drift, 1 / MAX_DRIFT), MAX_DRIFT)

        def rate(one: str) -> float:
            return took[one] / done[one] if one in measured else drift * self._guess(one)

        here = max(self._stage.work - self._stage.work_done, 0.0) * rate(kind)
        return here + sum(stage.work * rate(stage.kind) for stage in self._waiting)

    def _guess(self, kind: str) -> float:
        return self._plan.rates.get(kind, 1.0)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self._bar is None:
            print(line, file=self._stream, flush=True)
        else:
            self._bar.write(line, file=self._stream)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _settle(self) -> None:
        now, kind = self._clock(), self._stage.kind
        if self._stage.work_done:
            self._took[kind] = self._took.get(kind, 0.0) + now - self._stage_begun
            self._done_by[kind] = self._done_by.get(kind, 0.0) + self._stage.work_done
        self._stage_begun = now

    def _advance(self, work: float) -> None:
        self._stage.work_done += work
        if self._bar is not None and self._clock() >= self._shown_at + SHOWN_S:
            self._show()

    def _show(self) -> None:
        self._shown_at = self._clock()
        if (left := self.left_s()) is not None:
            passed = self._shown_at - self._begun
            # A bar that goes back would look like an error.
            self._share = max(self._share, passed / max(passed + left, 1e-9))
        self._bar.n = min(self._share, 1.0)
        self._bar.set_postfix_str(self._left().removeprefix(", "), refresh=False)
        self._bar.refresh()

    def _left(self) -> str:
        left = self.left_s()
        return "" if left is None else f", {_rounded(left)} left"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _rounded(seconds: float) -> str:
    if seconds < 10:
        return "under 10 s"
    return f"about {round(seconds, -1):.0f} s" if seconds < 95 else f"about {seconds / 60:.0f} min"


_CURRENT: ContextVar[Progress | None] = ContextVar("_CURRENT", default=None)


@contextmanager
def shown(plan: Plan, stream: IO[str] | None = None) -> Iterator[Progress]:
    """Show the progress of the block."""
    progress = Progress(plan, stream)
    token = _CURRENT.set(progress)
    try:
        yield progress
    finally:
        _CURRENT.reset(token)
        progress.close()


def begin(name: str, detail: str = "") -> None:
    """See `Progress.begin`."""
    if (progress := _CURRENT.get()) is not None:
        progress.begin(name, detail)


def did(frames: int, rows: int = 1, steps: int = 1) -> None:
    """See `Progress.did`."""
    if (progress := _CURRENT.get()) is not None:
        progress.did(frames, rows, steps)


def part(share: float) -> None:
    """See `Progress.part`."""
    if (progress := _CURRENT.get()) is not None:
        progress.part(share)


def each(items: Iterable[T], frames: int, rows: int = 1) -> Iterator[T]:
    """Yield the items of a solution, and count an evaluation before each item but the first."""
    for number, item in enumerate(items):
        did(frames, rows * (number > 0))
        yield item


def say(line: str) -> None:
    """Print a line on standard error, above any bar."""
    if (progress := _CURRENT.get()) is not None:
        progress.say(line)
    else:
        print(line, file=sys.stderr)

"""Retries of a synthesis: they wait for a daemon that does not answer and repeat refused requests."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from appliance.client.failures import CallFailed
from appliance.client.messages import Event, Piece
from appliance.rpc.appliance_pb2 import OVERLAP, End, SynthesizeRequest

BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 2.0
"""Seconds before the first retry, which double with each retry, and their limit."""
LOST = ("UNAVAILABLE", "UNKNOWN", "INTERNAL")
"""Statuses of a call whose daemon or connection was lost."""
HOLD_S = 60.0
"""Seconds that a serial channel's request waits for a daemon that does not answer, until it is admitted."""
LOOK_S = 0.02
"""Seconds between two checks of whether earlier requests of the channel still wait."""


class ChannelOrder:
    """Requests that wait for the daemon, by serial channel, in the order of their calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._awaiting: dict[str, set[int]] = {}

    def number(self) -> int:
        with self._lock:
            return next(self._numbers)

    def join(self, channel: str, number: int) -> None:
        if channel:
            with self._lock:
                self._awaiting.setdefault(channel, set()).add(number)

    def leave(self, channel: str, number: int) -> None:
        with self._lock:
            line = self._awaiting.get(channel, set())
            line.discard(number)
            if not line:
                self._awaiting.pop(channel, None)

    def has_earlier(self, channel: str, number: int) -> bool:
        with self._lock:
            return any(other < number for other in self._awaiting.get(channel, ()))


@dataclass
class Attempts:
    """Attempts of one synthesis under one request id, until it is admitted or has its first audio."""

    call: Callable[..., Any]
    request: SynthesizeRequest
    timeout: float | None
    """Seconds for all attempts together."""
    retries: int
    """Number of attempts that are allowed after the first."""
    address: str
    lines: ChannelOrder = field(default_factory=ChannelOrder)
    """Order of the requests on each serial channel."""
    hold_s: float | None = None
    """Seconds of waiting, without `retries`, for a daemon that does not answer.

    A number waits until the first audio; None waits HOLD_S on a serial channel, until the request is
    admitted.
    """
    on_admitted: Callable[[], object] = lambda: None
    """Called when the daemon has the request, or the request has ended; again after each lost attempt."""
    begun: float = field(default_factory=time.monotonic)
    """Time of the first attempt, on time.monotonic."""
    count: int = 0
    """Attempts that were refused or lost. Attempts that found no daemon do not count."""
    is_last: bool = False
    """True once the caller has received an event: then there is no other attempt."""
    early_events: list[Event] = field(default_factory=list)
    """Events before the first audio. The caller gets them only if this attempt is the last."""

    def __post_init__(self) -> None:
        self._channel = "" if self.request.playout == OVERLAP else self.request.channel
        self._until_audio = bool(self.retries or self.hold_s)
        if self.hold_s is None:
            self.hold_s = HOLD_S if self._channel else 0.0
        self._number = self.lines.number()
        self._absent = 0
        self._is_admitted = False
        self._away_since = self.begun
        self._last = CallFailed("UNAVAILABLE", "those before it on its channel await the daemon")
        if self._may_repeat and not self.request.request_id:
            # A box that still works on an earlier attempt refuses the next one, instead of speaking both.
            self.request.request_id = uuid.uuid4().hex

    @property
    def _may_repeat(self) -> bool:
        return bool(self.retries or self.hold_s)

    def must_wait(self) -> bool:
        """True while an earlier request of the channel waits for the daemon.

        Raises CallFailed if patience ends.
        """
        if not (self._may_repeat and self.lines.has_earlier(self._channel, self._number)):
            return False
        self.lines.join(self._channel, self._number)
        if self._patience_left_s() <= 0.0:
            raise self._last
        return True

    def begin(self) -> Any:
        self.early_events.clear()
        left_s = self._left_s()
        return self.call(self.request, timeout=None if left_s is None else max(left_s, 0.0))

    def received(self, event: Event) -> list[Event]:
        """Add an event; return the events that the caller gets now."""
        self.admitted()
        self.early_events.append(event)
        self.is_last = self.is_last or not self._until_audio or isinstance(event, (Piece, End))
        if not self.is_last:
            return []
        events, self.early_events = self.early_events, []
        return events

    def admitted(self) -> None:
        """Let later requests of the channel follow: the daemon has this one, or it has ended."""
        if not self._is_admitted:
            self._is_admitted = True
            self.lines.leave(self._channel, self._number)
            self.on_admitted()

    def wait_s(self, failure: CallFailed) -> float:
        """Seconds until the next attempt. Raises `failure` if it is final."""
        if self.is_last or not self._may_repeat:
            raise failure
        self._last = failure
        if self._is_admitted:
            self._away_since = time.monotonic()
        if failure.status == "UNAVAILABLE":
            self._absent += 1
            wait_s = max(failure.retry_s or 0.0, _backoff_s(self._absent))
            left_s: float | None = self._patience_left_s()
        else:
            self.count += 1
            wait_s = self._refused_s(failure)
            left_s = self._left_s()
        if left_s is not None and wait_s >= left_s:
            raise failure
        self._is_admitted = False
        self.lines.join(self._channel, self._number)
        return wait_s

    def _refused_s(self, failure: CallFailed) -> float:
        """Seconds until the next attempt after a refusal, or after a call that was lost on the way."""
        if self.count > self.retries:
            raise failure
        wait_s = _backoff_s(self.count)
        if failure.status == "RESOURCE_EXHAUSTED" and failure.retry_s is not None:
            return max(failure.retry_s, wait_s)
        # This field is at fault if the daemon still works on an earlier attempt.
        is_ours = failure.field == "request_id" and self.count + self._absent > 1
        if not is_ours and (failure.reason or failure.status not in LOST):
            raise failure
        return wait_s

    def _left_s(self) -> float | None:
        return None if self.timeout is None else self.timeout - (time.monotonic() - self.begun)

    def _patience_left_s(self) -> float:
        """Seconds for which the request still waits for a daemon that does not answer."""
        patience_s = max(self.hold_s or 0.0, LONGEST_BACKOFF_S * self.retries)
        patience_s -= time.monotonic() - self._away_since
        if (left_s := self._left_s()) is None:
            return patience_s
        return left_s if self.retries else min(patience_s, left_s)


def _backoff_s(count: int) -> float:
    wait_s: float = min(BACKOFF_S * 2 ** (min(count, 16) - 1), LONGEST_BACKOFF_S)
    return wait_s * random.uniform(0.5, 1.0)

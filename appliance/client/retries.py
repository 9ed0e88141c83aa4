"""Retries of a synthesis, until its first audio."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from appliance.client.failures import CallFailed
from appliance.client.messages import Event, Piece
from appliance.rpc.appliance_pb2 import End, SynthesizeRequest

BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 2.0
"""Wait before the first retry, doubled with each retry, and its limit."""
LOST = ("UNAVAILABLE", "UNKNOWN", "INTERNAL")
"""Statuses of a call whose box went away."""


@dataclass
class Attempts:
    """Attempts of one synthesis under one request id, until the first audio."""

    call: Callable[..., Any]
    request: SynthesizeRequest
    timeout: float | None
    """For all attempts together."""
    retries: int
    address: str
    begun: float = field(default_factory=time.monotonic)
    count: int = 0
    has_audio: bool = False
    held: list[Event] = field(default_factory=list)
    """Events before the first audio: the attempt may not be the last."""

    def __post_init__(self) -> None:
        if self.retries and not self.request.request_id:
            # A box that still works on the last attempt then refuses the next one, rather than do both.
            self.request.request_id = uuid.uuid4().hex

    def begin(self) -> Any:
        self.count += 1
        self.held.clear()
        return self.call(self.request, timeout=self._left_s())

    def received(self, event: Event) -> list[Event]:
        """Take an event; returns those that the caller may have."""
        self.held.append(event)
        self.has_audio = self.has_audio or isinstance(event, (Piece, End))
        if self.retries and not self.has_audio:
            return []
        events, self.held = self.held, []
        return events

    def wait_s(self, failure: CallFailed) -> float:
        """Seconds until the next attempt. Raises a failure that is final."""
        if self.has_audio or self.count > self.retries:
            raise failure
        wait_s: float = min(BACKOFF_S * 2 ** (self.count - 1), LONGEST_BACKOFF_S) * random.uniform(0.5, 1.0)
        if failure.status == "RESOURCE_EXHAUSTED" and failure.retry_s is not None:
            wait_s = max(failure.retry_s, wait_s)
        elif failure.field == "request_id" and self.count > 1:
            pass  # The last attempt has not ended there yet.
        elif failure.status != "UNAVAILABLE" and (failure.reason or failure.status not in LOST):
            raise failure
        left_s = self._left_s()
        if left_s is not None and wait_s >= left_s:
            raise failure
        return wait_s

    def _left_s(self) -> float | None:
        return None if self.timeout is None else self.timeout - (time.monotonic() - self.begun)

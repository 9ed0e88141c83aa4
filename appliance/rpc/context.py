"""A gRPC call on the server's side: context, deadline, reader, end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import grpc

from appliance.errors import ApplianceError, Cancelled

CALLER_KEY = "x-f5-caller"
"""Metadata by which the gateway, over the Unix socket, names whom it calls for."""

Context = grpc.aio.ServicerContext[Any, Any]


def remaining_s(context: Context) -> float:
    """Seconds until the caller's deadline; infinite without one."""
    # None where the caller set no deadline, which the declared type does not say.
    left = cast("float | None", context.time_remaining())
    return math.inf if left is None else left


async def send(context: Context, message: object) -> None:
    """Send a message; returns when the transport has taken it. Raises Cancelled if the caller is gone."""
    try:
        await context.write(message)
    except grpc.aio.InternalError as error:  # raised where the call ends while a message is on its way
        raise Cancelled("the caller went away") from error


async def send_metadata(context: Context, metadata: tuple[tuple[str, str], ...]) -> None:
    """Send the initial metadata. Raises Cancelled if the caller is gone."""
    try:
        await context.send_initial_metadata(metadata)
    except grpc.aio.InternalError as error:
        raise Cancelled("the caller went away") from error


@dataclass(eq=False, kw_only=True)
class OpenCall:
    """A call that sends messages, and that the daemon can end."""

    context: Context
    clock: Callable[[], float]
    task: asyncio.Task[Any]
    writing_since: float | None = None
    """Time from which on a message in the transport waits for its reader."""
    ended_by: ApplianceError | None = None
    """Why the daemon ended it."""

    def end(self, why: ApplianceError) -> None:
        if self.ended_by is None:
            self.ended_by = why
            self.task.cancel()

    async def send(self, message: object, played: float = -math.inf) -> None:
        """Send a message. Until `played` the reader has something to play, and need take nothing.

        Raises Cancelled if the caller is gone.
        """
        self.writing_since = max(self.clock(), played)
        await send(self.context, message)
        self.writing_since = None

    async def send_last(self, message: object, samples: int) -> NoReturn:
        """Send the last message of a call that the daemon has ended after so many samples; raise its end."""
        why, self.ended_by = self.ended_by, None  # its reader may stall now
        if why is not None and samples and self.writing_since is None:
            await self.send(message)
        raise why or asyncio.CancelledError

    def has_stalled(self, now: float, limit_s: float) -> bool:
        return self.writing_since is not None and now - self.writing_since > limit_s


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task

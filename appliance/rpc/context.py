"""A gRPC call on the server's side: its deadline, its reader, its end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import grpc

from appliance.errors import ApplianceError, Cancelled

CALLER_KEY = "x-f5-caller"
"""Metadata in which the gateway, over the Unix socket, names the caller that it acts for."""

Context = grpc.aio.ServicerContext[Any, Any]


def remaining_s(context: Context) -> float:
    """Seconds until the caller's deadline; infinite without one."""
    # gRPC returns None if the caller set no deadline; its declared type says float.
    remaining = cast("float | None", context.time_remaining())
    return math.inf if remaining is None else remaining


async def send(context: Context, message: object) -> None:
    """Send a message; return when the transport has taken it. Raises Cancelled if the caller is gone."""
    try:
        await context.write(message)
    except grpc.aio.InternalError as error:  # raised if the call ends while a message is on its way
        raise Cancelled("the caller went away") from error


async def send_metadata(context: Context, metadata: tuple[tuple[str, str], ...]) -> None:
    """Send the initial metadata. Raises Cancelled if the caller is gone."""
    try:
        await context.send_initial_metadata(metadata)
    except grpc.aio.InternalError as error:
        raise Cancelled("the caller went away") from error


@dataclass(eq=False, kw_only=True)
class OpenCall:
    """A call that sends messages. The daemon can end it."""

    context: Context
    clock: Callable[[], float]
    task: asyncio.Task[Any]
    writing_since: float | None = None
    """Time since which a message in the transport waits for the reader; None if none waits."""
    ended_by: ApplianceError | None = None
    """Reason why the daemon ended the call."""

    def end(self, why: ApplianceError) -> None:
        if self.ended_by is None:
            self.ended_by = why
            self.task.cancel()

    async def send(self, message: object, played: float = -math.inf) -> None:
        """Send a message. Until the time `played` the reader has audio to play, and may take nothing."""
        self.writing_since = max(self.clock(), played)
        await send(self.context, message)
        self.writing_since = None

    async def send_last(self, message: object, samples: int) -> NoReturn:
        """Send the last message of a call that the daemon has ended, `samples` long; raise the reason."""
        why, self.ended_by = self.ended_by, None  # the reader may stall from now on
        if why is not None and samples and self.writing_since is None:
            await self.send(message)
        raise why or asyncio.CancelledError

    def has_stalled(self, now: float, limit_s: float) -> bool:
        return self.writing_since is not None and now - self.writing_since > limit_s


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task

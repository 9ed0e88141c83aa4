"""The load generator of all measurements by a client, and what that client receives.

It sends requests one after the other, in a closed loop, or at planned times.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from appliance.bench import BenchError
from appliance.bench.arrivals import Message
from appliance.bench.outcome import OK, Outcome
from appliance.bench.output import show_progress
from appliance.client import AsyncClient, AsyncStream, CallFailed, Credentials, Header, Options, Piece
from appliance.client.connection import NO_CREDENTIALS
from appliance.client.sounding import NO_VOICE, check_audible, peak

REFUSED_S = 0.1
"""Seconds that a closed loop pauses after a refusal."""


@contextlib.asynccontextmanager
async def connected(
    address: str, voice: str, timeout_s: float, *, clients: int = 1, credentials: Credentials = NO_CREDENTIALS
) -> AsyncIterator[Load]:
    """Connect to a daemon. An empty `voice` is the daemon's first. Raises BenchError, CallFailed."""
    async with contextlib.AsyncExitStack() as stack:
        each = [AsyncClient(address, credentials, own_connection=True) for _ in range(clients)]
        for client in each:
            await stack.enter_async_context(client)
        if not (voice := voice or await anext((voice.name async for voice in each[0].voices()), "")):
            raise BenchError(NO_VOICE)
        yield Load(each, voice, timeout_s)


class Load:
    """Clients of one daemon and their voice."""

    def __init__(self, clients: Sequence[AsyncClient], voice: str, timeout_s: float) -> None:
        self._clients = clients
        self.voice = voice
        self._timeout_s = timeout_s
        self._run = f"bench-{secrets.token_hex(4)}"
        self._numbers = itertools.count()

    async def send(self, message: Message, start: float | None = None, **options: Any) -> Outcome:
        """Send one message now. `options` are those of `AsyncClient.stream`. Does not raise CallFailed.

        Times count from `start` + `message.at_s` on time.monotonic(); if `start` is None, from now.
        """
        number, start = next(self._numbers), time.monotonic() if start is None else start
        client, request_id = self._clients[number % len(self._clients)], f"{self._run}-{number}"
        due, patience_s = start + message.at_s, message.queue_timeout_s
        if patience_s is None and not message.channel:
            patience_s = 0.0  # the first audio counts, or the refusal: no wait in the queue
        outcome = Outcome(message, sent_s=time.monotonic() - due)
        own: Options = {
            "encoding": "pcm16",
            "priority": message.priority,
            "channel": f"{self._run}-{message.channel}" if message.channel else request_id,
            "playout": "serial" if message.channel else "overlap",
            "user": message.user,
            "supersede": message.supersede,
            "queue_timeout": patience_s,
            "request_id": request_id,
        }
        stream = client.stream(
            message.text, **{"voice": self.voice, "timeout": self._timeout_s, **own, **options}
        )
        cancelling = asyncio.create_task(_cancel_later(client, stream, request_id, outcome, due))
        try:
            await _receive(stream, outcome, due)
            outcome.status = OK
        except CallFailed as failure:
            outcome.failure, outcome.status, outcome.reason = failure, failure.status, failure.reason
        finally:
            cancelling.cancel()
        outcome.end_s = time.monotonic() - due
        return outcome

    async def alone(self, text: str, **options: Any) -> Outcome:
        """Send a text now, with the daemon's default options. Does not raise CallFailed."""
        own: dict[str, Any] = {"channel": "", "playout": None, "queue_timeout": None}
        return await self.send(Message(0.0, text), **own, **options)

    async def speak(self, text: str, **options: Any) -> Outcome:
        """Have the engine speak a text. Raises CallFailed, also for silence."""
        # A seed that was used before might be answered from the phrase cache, without the engine.
        outcome = await self.alone(text, seed=secrets.randbits(32), **options)
        if outcome.failure:
            raise outcome.failure
        check_audible(outcome.audio_s, outcome.peak, options.get("voice", self.voice))
        return outcome

    async def closed(self, draw: Callable[[], str], workers: int, duration_s: float) -> tuple[float, float]:
        """Keep `workers` bulk requests running; return seconds of audio and of wall time."""
        outcomes: list[Outcome] = []
        begun = time.monotonic()

        async def work() -> None:
            while time.monotonic() < begun + duration_s:
                outcomes.append(await self.send(Message(0.0, draw(), priority="bulk")))
                if outcomes[-1].failure:
                    await asyncio.sleep(REFUSED_S)

        await asyncio.gather(*(work() for _ in range(workers)))
        return sum(outcome.audio_s for outcome in outcomes), time.monotonic() - begun

    async def open(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send every message at its time, independently of the others."""
        start = time.monotonic()
        tasks: list[asyncio.Task[Outcome]] = []
        counter = itertools.count(1)

        def show(_: object) -> None:
            ended, total = next(counter), len(messages)
            line = f"{time.monotonic() - start:5.0f} s   {len(tasks)} of {total} sent   {ended} ended"
            show_progress(line + "\n" * (ended == total))

        for message in messages:
            await asyncio.sleep(max(0.0, start + message.at_s - time.monotonic()))
            tasks.append(asyncio.create_task(self.send(message, start)))
            tasks[-1].add_done_callback(show)
        return list(await asyncio.gather(*tasks))


async def _receive(stream: AsyncStream, outcome: Outcome, due: float) -> None:
    """Collect the events of a stream."""
    async for event in stream:
        if isinstance(event, Piece):
            outcome.pieces.append((event.sample_offset, event.arrived - due))
            outcome.samples += len(event.data) // 2
            outcome.digest.update(event.data)
            outcome.peak = max(outcome.peak, peak(event.data))
        elif isinstance(event, Header):
            outcome.header = event
        else:
            outcome.timings = event.timings


async def _cancel_later(
    client: AsyncClient, stream: AsyncStream, request_id: str, outcome: Outcome, due: float
) -> None:
    """Cancel the request after the time in its message, if it has one."""
    if outcome.message.cancel_after_s is None:
        return
    await asyncio.sleep(outcome.message.cancel_after_s)
    outcome.cancel_s = time.monotonic() - due
    try:
        await client.cancel(request_id)
    except CallFailed:
        # The daemon does not know the request, or does not offer CancelSynthesis.
        outcome.cancel_s = None
        stream.cancel()

"""Requests one after the other, in a closed loop, or at planned times."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from appliance.bench.arrivals import Message
from appliance.bench.outcome import Outcome
from appliance.client import AsyncClient, AsyncStream, CallFailed, Header, Options, Piece

PROGRESS_S = 1.0
REFUSED_S = 0.1
"""Pause of a closed loop after a refusal."""


class Load:
    """Clients of one daemon and their voice."""

    def __init__(self, clients: Sequence[AsyncClient], voice: str, timeout_s: float) -> None:
        self._clients = clients
        self._voice = voice
        self._timeout_s = timeout_s
        self._run = f"storm-{secrets.token_hex(4)}"
        self._numbers = itertools.count()

    async def send(self, message: Message, start: float, **options: Any) -> Outcome:
        """Send one message now; `options` are of `AsyncClient.stream`. Does not raise CallFailed.

        Times count from `start` + `message.at_s` on time.monotonic().
        """
        number = next(self._numbers)
        client, request_id = self._clients[number % len(self._clients)], f"{self._run}-{number}"
        due, patience_s = start + message.at_s, message.queue_timeout_s
        if patience_s is None and not message.channel:
            patience_s = 0.0  # its first audio is measured, or it is refused
        outcome = Outcome(message, sent_s=time.monotonic() - due)
        own: Options = {
            "encoding": "pcm16",
            "priority": message.priority,
            "channel": f"{self._run}-{message.channel}" if message.channel else request_id,
            "playout": "serial" if message.channel else "overlap",
            "user": message.user,
            "supersede": message.supersede,
            "queue_timeout": patience_s,
            "min_nfe": message.min_nfe,
            "request_id": request_id,
        }
        stream = client.stream(message.text, self._voice, timeout=self._timeout_s, **{**own, **options})
        cancelling = asyncio.create_task(_cancel_later(client, stream, request_id, outcome, due))
        try:
            await _receive(stream, outcome, due)
            outcome.status = "OK"
        except CallFailed as failure:
            outcome.status, outcome.reason = failure.status, failure.reason
        finally:
            cancelling.cancel()
        outcome.end_s = time.monotonic() - due
        return outcome

    async def solo(self, texts: Sequence[str], **options: Any) -> list[Outcome]:
        """Send each text after the reply to the one before."""
        return [await self.send(Message(0.0, text), time.monotonic(), **options) for text in texts]

    async def closed(self, draw: Callable[[], str], workers: int, duration_s: float) -> tuple[float, float]:
        """Keep `workers` bulk requests running; returns seconds of audio and of wall time."""
        outcomes: list[Outcome] = []
        begun = time.monotonic()

        async def work() -> None:
            while time.monotonic() < begun + duration_s:
                message = Message(0.0, draw(), priority="bulk")
                outcomes.append(await self.send(message, time.monotonic()))
                if outcomes[-1].status != "OK":
                    await asyncio.sleep(REFUSED_S)

        await asyncio.gather(*(work() for _ in range(workers)))
        return sum(outcome.audio_s for outcome in outcomes), time.monotonic() - begun

    async def open(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send every message at its time, whatever the others do."""
        start = time.monotonic()
        tasks: list[asyncio.Task[Outcome]] = []
        progress = asyncio.create_task(_progress(tasks, len(messages), start))
        for message in messages:
            await asyncio.sleep(max(0.0, start + message.at_s - time.monotonic()))
            tasks.append(asyncio.create_task(self.send(message, start)))
        outcomes = await asyncio.gather(*tasks)
        progress.cancel()
        return list(outcomes)


async def _receive(stream: AsyncStream, outcome: Outcome, due: float) -> None:
    pace = outcome.message.pace
    async for event in stream:
        if isinstance(event, Piece):
            outcome.pieces.append((event.sample_offset, event.arrived - due))
            outcome.samples += len(event.data) // 2
            outcome.digest.update(event.data)
            if pace:
                played_s = outcome.audio_s / pace - (time.monotonic() - due - outcome.pieces[0][1])
                await asyncio.sleep(max(0.0, played_s))
        elif isinstance(event, Header):
            outcome.header = event
        else:
            outcome.timings = event.timings


async def _cancel_later(
    client: AsyncClient, stream: AsyncStream, request_id: str, outcome: Outcome, due: float
) -> None:
    if outcome.message.cancel_after_s is None:
        return
    await asyncio.sleep(outcome.message.cancel_after_s)
    outcome.cancel_s = time.monotonic() - due
    try:
        await client.cancel(request_id)
    except CallFailed:
        # The daemon does not know the request, or does not serve CancelSynthesis.
        outcome.cancel_s = None
        stream.cancel()


async def _progress(tasks: Sequence[asyncio.Task[Outcome]], total: int, start: float) -> None:
    if not sys.stderr.isatty():
        return
    try:
        while True:
            done = sum(task.done() for task in tasks)
            line = f"{time.monotonic() - start:5.0f} s   {len(tasks)} of {total} sent   {done} ended"
            print(f"\r{line}", end="", file=sys.stderr, flush=True)
            await asyncio.sleep(PROGRESS_S)
    finally:
        print(file=sys.stderr)

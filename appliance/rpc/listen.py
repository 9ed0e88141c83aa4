"""Listen: finished segments of a channel for players that did not ask for them.

A tap is what listeners are given of one request. It is made with the request's first finished segment, if
anybody listens then, and is given out in the order in which its channel plays, however the segments came.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from appliance import words
from appliance.audio.reply import Reply
from appliance.contract.bundle import Manifest
from appliance.errors import ApplianceError, Cancelled, EngineFault, ReaderStalled, TooManyCalls
from appliance.job import Encoding, Playout, SegmentAudio
from appliance.playout import Job, State, Utterance, next_change
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.requests import utterance_of, words_of
from appliance.scheduler import Scheduler
from appliance.words import Word
from appliance.workload import Clock

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

MAX_LISTENERS = 64
MIB = 1 << 20
BUFFER_BYTES = 32 * MIB
"""Audio that waits for one listener: more than the longest reply, which may come at once."""
KEPT_BYTES = 64 * MIB
"""Audio of all utterances that is kept for listeners who come in the middle of one."""
LINGER_S = 30.0
"""Time for which audio is still copied after the last listener has left: it may come back."""


@dataclass(eq=False)
class Listener:
    """One Listen call."""

    channel: str
    task: asyncio.Task[Any]
    waiting: asyncio.Queue[pb.ListenResponse] = field(default_factory=asyncio.Queue)
    waiting_bytes: int = 0
    writing_since: float | None = None
    """Time at which the transport was given the message that it has not yet taken."""
    paused: list[str] | None = None
    """Channels that it was told are paused."""
    ended_by: ApplianceError | None = None

    def put(self, response: pb.ListenResponse) -> None:
        """Send that when all before it has been taken."""
        self.waiting_bytes += len(response.audio.data)
        if self.waiting_bytes > BUFFER_BYTES:
            self.end(ReaderStalled(f"the listener has let {BUFFER_BYTES // MIB} MiB of audio wait"))
        elif self.ended_by is None:
            self.waiting.put_nowait(response)

    def end(self, why: ApplianceError) -> None:
        """End it now, whatever it waits for."""
        if self.ended_by is None:
            self.ended_by = why
            self.task.cancel()


@dataclass(eq=False)
class Tap:
    """Messages of one request for its listeners."""

    job: Job
    reply: Reply
    rate_hz: int
    waiting: list[SegmentAudio] = field(default_factory=list)
    """Segments that are not given out yet."""
    sent: list[pb.ListenResponse] = field(default_factory=list)
    """Messages that were sent, for a listener that comes in the middle."""
    listeners: set[Listener] = field(default_factory=set)
    begun: bool = False
    whole: bool = False
    """True once all of it has been given out."""
    samples: int = 0
    words: list[Word] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The request's id."""
        return self.job.terms.request_id


Sounding = Callable[..., Awaitable[Any]]
"""Runs (samples, function, *arguments), on a thread where there are many samples."""


class Taps:
    """Gives what is spoken to who listens: on the event loop, by one task while there is anybody."""

    def __init__(self, scheduler: Scheduler, clock: Clock, sounding: Sounding, message_s: float) -> None:
        self._scheduler, self._clock, self._sounding = scheduler, clock, sounding
        self._message_s = message_s
        self._listeners: set[Listener] = set()
        self._taps: dict[Job, Tap] = {}
        self._kept_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._left = -math.inf
        """Time at which the last listener left."""
        self.changed = asyncio.Event()
        """Set when the scheduler's queue has changed."""

    @property
    def listening(self) -> int:
        """Listeners that are connected."""
        return len(self._listeners)

    @property
    def are_open(self) -> bool:
        """True while there is a listener, or was until lately."""
        return self._task is not None

    def made(self, job: Job, manifest: Manifest, segment: SegmentAudio) -> None:
        """Take a finished segment of an admitted request; none of one that began unheard."""
        if segment.segment == 0:
            rate_hz = manifest.mel.sample_rate_hz
            self._taps[job] = Tap(job, Reply(manifest, Encoding.PCM16, rate_hz, self._message_s), rate_hz)
        if (tap := self._taps.get(job)) is not None:
            tap.waiting.append(segment)
            self.changed.set()

    async def listen(self, channel: str, context: Context) -> None:
        """Serve a Listen call. Raises TooManyCalls, ReaderStalled."""
        with self._listener(channel) as listener:
            try:
                while True:
                    response = await listener.waiting.get()
                    listener.writing_since = self._clock()
                    await context.write(response)
                    listener.writing_since = None
                    listener.waiting_bytes -= len(response.audio.data)
            except asyncio.CancelledError:
                if listener.ended_by is None:
                    raise
                raise listener.ended_by from None
            except grpc.aio.InternalError as error:
                raise listener.ended_by or Cancelled("the listener went away") from error

    def drop_stalled(self, limit_s: float) -> None:
        """End the listeners who have taken nothing for so long."""
        now = self._clock()
        for listener in self._listeners:
            if listener.writing_since is not None and now - listener.writing_since > limit_s:
                listener.end(ReaderStalled("the listener has taken no audio for too long"))

    @contextmanager
    def _listener(self, channel: str) -> Iterator[Listener]:
        if len(self._listeners) >= MAX_LISTENERS:
            raise TooManyCalls(f"{MAX_LISTENERS} listen already, which is the limit", retry_s=1.0)
        task = asyncio.current_task()
        assert task is not None
        listener = Listener(channel, task)
        self._tell_paused(listener, self._scheduler.paused)
        for tap in self._taps.values():
            if tap.begun and _hears(listener, tap.job):
                utterance, _ = self._scheduler.position_of(tap.job)
                listener.put(self._begin(tap, utterance))
                for response in tap.sent:
                    listener.put(response)
                tap.listeners.add(listener)
        self._listeners.add(listener)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        self.changed.set()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            for tap in self._taps.values():
                tap.listeners.discard(listener)
            self._left = self._clock()
            self.changed.set()

    async def _run(self) -> None:
        """Send, while anybody listens and a little longer."""
        try:
            while self._listeners or self._clock() < self._left + LINGER_S:
                self.changed.clear()
                stands = {tap: self._scheduler.position_of(tap.job) for tap in self._taps.values()}
                paused = self._scheduler.paused
                # Segments that were finished before that look have arrived after this.
                await asyncio.sleep(0)
                for listener in self._listeners:
                    self._tell_paused(listener, paused)
                for tap, (utterance, before) in stands.items():
                    await self._advance(tap, utterance, before)
                now = self._clock()
                until = next_change([u for u, _ in stands.values() if u.state is not State.ENDED], now)
                if not self._listeners:
                    until = min(until, self._left + LINGER_S)
                with suppress(asyncio.TimeoutError):
                    left_s = until - now + 1e-3 if math.isfinite(until) else None
                    await asyncio.wait_for(self.changed.wait(), left_s)
        except Exception as error:
            logger.exception("background task listen died")
            for listener in self._listeners:
                listener.end(EngineFault(f"listening failed: {type(error).__name__}: {error}"))
        finally:
            self._task = None
            self._taps.clear()
            self._kept_bytes = 0

    def _tell_paused(self, listener: Listener, paused: list[str]) -> None:
        here = [channel for channel in paused if listener.channel in ("", channel)]
        if here != listener.paused:
            listener.paused = here
            listener.put(pb.ListenResponse(paused=pb.PausedChannels(channels=here)))

    async def _advance(self, tap: Tap, utterance: Utterance, before: list[Job]) -> None:
        """Give out what is there of a request whose turn on its channel it is; end it when it has ended."""
        if utterance.why is None:
            if any(not job.ended or self._is_behind(job) for job in before):
                return
            while tap.waiting:
                await self._give_out(tap, tap.waiting.pop(0), utterance)
        if utterance.why is not None or (tap.whole and utterance.state is State.ENDED):
            del self._taps[tap.job]
            self._kept_bytes -= sum(len(response.audio.data) for response in tap.sent)
            reason = utterance_of(utterance, self._clock()).reason
            end = pb.UtteranceEnd(
                request_id=tap.name, reason=reason, samples=tap.samples, words=words_of(tap.words)
            )
            for listener in tap.listeners:
                listener.put(pb.ListenResponse(end=end))

    def _is_behind(self, job: Job) -> bool:
        tap = self._taps.get(job)
        return tap is not None and not tap.whole

    async def _give_out(self, tap: Tap, made: SegmentAudio, utterance: Utterance) -> None:
        pieces, spoken = await self._sounding(len(made.samples), _pieces, tap, made)
        if not tap.begun:
            tap.begun = True
            begin = self._begin(tap, utterance)
            for listener in self._listeners:
                if _hears(listener, tap.job):
                    tap.listeners.add(listener)
                    listener.put(begin)
        tap.words += spoken
        tap.whole = made.last
        for number, (data, samples) in enumerate(pieces, 1):
            audio = pb.UtteranceAudio(
                request_id=tap.name,
                data=data,
                sample_offset=tap.samples,
                segment=made.segment,
                last=made.last and number == len(pieces),
                words=words_of(spoken if number == 1 else ()),
            )
            tap.samples += samples
            response = pb.ListenResponse(audio=audio)
            if self._kept_bytes + len(data) <= KEPT_BYTES:
                self._kept_bytes += len(data)
                tap.sent.append(response)
            for listener in tap.listeners:
                listener.put(response)

    def _begin(self, tap: Tap, utterance: Utterance) -> pb.ListenResponse:
        begin = pb.UtteranceBegin(
            utterance=utterance_of(utterance, self._clock()),
            sample_rate_hertz=tap.rate_hz,
            playout=pb.OVERLAP if tap.job.terms.playout is Playout.OVERLAP else pb.SERIAL,
            words=words_of(words.planned(tap.job.segments)),
        )
        return pb.ListenResponse(begin=begin)


def _hears(listener: Listener, job: Job) -> bool:
    return listener.channel in ("", job.terms.channel)


def _pieces(tap: Tap, made: SegmentAudio) -> tuple[list[tuple[bytes, int]], list[Word]]:
    """The messages of a segment, at least one of the last, and when its words are said."""
    pieces = list(tap.reply.messages(made))
    if made.last and not pieces:
        pieces = [(b"", 0)]
    segments = tap.job.segments
    start_s = words.starts_s(segments)[made.segment]
    return pieces, words.from_audio(segments[made.segment], start_s, made.samples, tap.rate_hz)

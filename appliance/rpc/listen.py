"""Listen calls: a channel's audio, for players that did not send its requests.

A broadcast is the audio of one request. It begins with the first finished segment, if a listener is there,
and is sent in the order in which the channel plays.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from appliance.audio import words
from appliance.audio.captions import written_spans
from appliance.audio.mouth import Mouth
from appliance.audio.reply import ReplyAudio
from appliance.audio.words import TimedWord
from appliance.encodings import Encoding
from appliance.errors import EngineFault, ReaderStalled, RequestNotFound
from appliance.request import Playout, SegmentAudio
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.call import SynthesisCall
from appliance.rpc.callers import PlacedCall, current_call
from appliance.rpc.replies import utterance_message, word_messages
from appliance.rpc.speaking import Speaking
from appliance.scheduler.job import Job, State, Utterance
from appliance.scheduler.queue import next_change

logger = logging.getLogger(__name__)

MIB = 1 << 20
BUFFER_BYTES = 32 * MIB
"""Limit of the audio that waits for one listener: more than the longest reply."""
KEPT_BYTES = 64 * MIB
"""Limit of the audio in memory for listeners who join during a broadcast."""
LINGER_S = 30.0
"""Seconds in which a listener that left may return without missing audio."""


@dataclass(eq=False, kw_only=True)
class Listener:
    """A client of `Listen`, and the messages that wait for it."""

    call: PlacedCall
    channel: str
    """Empty for all channels."""
    waiting: asyncio.Queue[pb.ListenResponse] = field(default_factory=asyncio.Queue)
    waiting_bytes: int = 0
    paused: list[str] | None = None
    """Paused channels that the listener last received."""

    def put(self, response: pb.ListenResponse) -> None:
        self.waiting_bytes += len(response.audio.data)
        if self.waiting_bytes > BUFFER_BYTES:
            self.call.end(ReaderStalled(f"the listener has let {BUFFER_BYTES // MIB} MiB of audio wait"))
        elif self.call.ended_by is None:
            self.waiting.put_nowait(response)

    def put_paused(self, channels: Iterable[str]) -> None:
        here = [channel for channel in channels if self.is_on(channel)]
        if here != self.paused:
            self.paused = here
            self.put(pb.ListenResponse(paused=pb.PausedChannels(channels=here)))

    def is_on(self, channel: str) -> bool:
        return self.channel in ("", channel)

    async def send_waiting(self) -> None:
        """Send the waiting messages until the call ends."""
        while True:
            response = await self.waiting.get()
            await self.call.send(response)
            self.waiting_bytes -= len(response.audio.data)


@dataclass(eq=False)
class Broadcast:
    """The audio of one request."""

    job: Job
    reply: ReplyAudio
    """PCM16 at the model's rate."""
    rate_hz: int
    waiting: list[SegmentAudio] = field(default_factory=list)
    """Finished segments that are not sent yet."""
    sent: list[pb.ListenResponse] = field(default_factory=list)
    """Messages so far, for listeners who join during the broadcast."""
    listeners: set[Listener] = field(default_factory=set)
    """Calls that get this audio."""
    begun: bool = False
    """True once the first message was sent."""
    complete: bool = False
    """True once the last segment was sent."""
    samples: int = 0
    """Samples sent so far."""
    mouth: Mouth = field(init=False)
    words: list[TimedWord] = field(default_factory=list)
    """Words of the segments so far, with their times."""
    caption: list[pb.WordTiming] = field(default_factory=list)
    """Planned words, with their positions in the text as it was written."""

    def __post_init__(self) -> None:
        self.mouth = Mouth(self.rate_hz)

    def put(self, response: pb.ListenResponse) -> None:
        for listener in self.listeners:
            listener.put(response)

    def begin_message(self, utterance: Utterance, now: float) -> pb.ListenResponse:
        begin = pb.UtteranceBegin(
            utterance=utterance_message(utterance, now),
            sample_rate_hertz=self.rate_hz,
            playout=pb.OVERLAP if self.job.terms.playout is Playout.OVERLAP else pb.SERIAL,
            words=self.caption,
        )
        return pb.ListenResponse(begin=begin)

    def end_message(self, utterance: Utterance, now: float) -> pb.ListenResponse:
        end = pb.UtteranceEnd(
            request_id=self.job.terms.request_id,
            reason=utterance_message(utterance, now).reason,
            samples=self.samples,
            words=word_messages(self.words),
        )
        return pb.ListenResponse(end=end)

    def encode(self, finished: SegmentAudio) -> list[pb.ListenResponse]:
        """Messages of the next segment; the first message has its words. May run on another thread."""
        if not self.caption:
            planned = words.planned(self.job.segments)
            self.caption = word_messages(planned)
            changes = [(change.before, change.after) for change in self.job.request.changes]
            places = written_spans(self.job.request.written, planned, changes)
            for word, place in zip(self.caption, places, strict=True):
                word.written_begin, word.written_end = place
        encoded = list(self.reply.messages(finished))
        if finished.last and not encoded:
            encoded = [(b"", 0)]
        segments = self.job.segments
        segment, start_s = segments[finished.segment], words.starts_s(segments)[finished.segment]
        timed = words.from_audio(segment, start_s, finished.samples, self.rate_hz)
        self.words += timed
        messages = []
        for number, (data, samples) in enumerate(encoded, 1):
            audio = pb.UtteranceAudio(
                request_id=self.job.terms.request_id,
                data=data,
                sample_offset=self.samples,
                segment=finished.segment,
                last=finished.last and number == len(encoded),
                words=word_messages(timed if number == 1 else ()),
                mouth=self.mouth.push(data),
            )
            self.samples += samples
            messages.append(pb.ListenResponse(audio=audio))
        return messages


class Broadcaster:
    """Sends the audio that channels play to their listeners. One task runs while there are listeners."""

    def __init__(self, speaking: Speaking, message_s: float) -> None:
        self._speaking, self._workers, self._message_s = speaking, speaking.workers, message_s
        self._clock, self._queue = speaking.clock, speaking.speech.scheduler.queue
        self._listeners: set[Listener] = set()
        self._broadcasts: dict[Job, Broadcast] = {}
        self._kept_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._last_left_at = -math.inf
        """Time at which the last listener left."""
        self.changed = asyncio.Event()

    @property
    def listening(self) -> int:
        return len(self._listeners)

    def publish(self, call: SynthesisCall, segment: SegmentAudio) -> None:
        """Add a finished segment; ignored if the request's first segment was not published."""
        job = call.job
        if segment.segment == 0:
            rate_hz = call.speech.manifest.mel.sample_rate_hz
            reply = ReplyAudio(call.speech.manifest, Encoding.PCM16, rate_hz, self._message_s, call.level)
            self._broadcasts[job] = Broadcast(job, reply, rate_hz)
        if (broadcast := self._broadcasts.get(job)) is not None:
            broadcast.waiting.append(segment)
            self.changed.set()

    async def preview(self, channel: str, name: str) -> bytes:
        """WAV file of the finished part of a held request. Raises RequestNotFound if no part is finished."""
        for utterance in self._queue.utterances()[0]:
            job, terms = utterance.job, utterance.job.terms
            is_it = utterance.state is State.HELD and (terms.channel, terms.request_id) == (channel, name)
            if is_it and job.unreleased and (call := self._speaking.find(terms.key)):
                return await call.preview()
        raise RequestNotFound(f"{name!r} is not held on {channel!r}, or nothing of it is made yet: try again")

    async def listen(self, channel: str) -> None:
        """Serve a Listen call."""
        listener = Listener(call=current_call(), channel=channel)
        await self._speaking.begin(listener.call.context)
        with self._joined(listener):
            await listener.send_waiting()

    @contextmanager
    def _joined(self, listener: Listener) -> Iterator[None]:
        """Send a listener all messages of current broadcasts, and later ones while the context lasts."""
        listener.put_paused(self._queue.paused)
        for broadcast in self._broadcasts.values():
            if broadcast.begun and listener.is_on(broadcast.job.terms.channel):
                utterance, _ = self._queue.position_of(broadcast.job)
                listener.put(broadcast.begin_message(utterance, self._clock()))
                for response in broadcast.sent:
                    listener.put(response)
                broadcast.listeners.add(listener)
        self._listeners.add(listener)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
            self._speaking.on_segment = self.publish
        self.changed.set()
        try:
            yield
        finally:
            self._listeners.discard(listener)
            for broadcast in self._broadcasts.values():
                broadcast.listeners.discard(listener)
            self._last_left_at = self._clock()
            self.changed.set()

    async def _run(self) -> None:
        """Follow the queue and send its events to listeners. Ends LINGER_S after the last listener."""
        try:
            while self._listeners or self._clock() < self._last_left_at + LINGER_S:
                self.changed.clear()
                queue = {b: self._queue.position_of(b.job) for b in self._broadcasts.values()}
                paused = self._queue.paused
                # After this, the segments that were finished before the queue was read have arrived.
                await asyncio.sleep(0)
                for listener in self._listeners:
                    listener.put_paused(paused)
                for broadcast, (utterance, before) in queue.items():
                    await self._advance(broadcast, utterance, before)
                now = self._clock()
                until = next_change([u for u, _ in queue.values() if u.state is not State.ENDED], now)
                if not self._listeners:
                    until = min(until, self._last_left_at + LINGER_S)
                with suppress(asyncio.TimeoutError):
                    left_s = until - now + 1e-3 if math.isfinite(until) else None
                    await asyncio.wait_for(self.changed.wait(), left_s)
        except Exception as error:
            logger.exception("background task listen died")
            for listener in self._listeners:
                listener.call.end(EngineFault(f"listening failed: {type(error).__name__}: {error}"))
        finally:
            self._task = self._speaking.on_segment = None
            self._broadcasts.clear()
            self._kept_bytes = 0

    async def _advance(self, broadcast: Broadcast, utterance: Utterance, before: list[Job]) -> None:
        """Send a broadcast's finished segments and its end, once the jobs `before` are complete."""
        if utterance.why is None:
            if any(not job.ended or self._is_incomplete(job) for job in before):
                return
            while broadcast.waiting:
                await self._send(broadcast, broadcast.waiting.pop(0), utterance)
        if utterance.why is not None or (broadcast.complete and utterance.state is State.ENDED):
            del self._broadcasts[broadcast.job]
            self._kept_bytes -= sum(len(response.audio.data) for response in broadcast.sent)
            broadcast.put(broadcast.end_message(utterance, self._clock()))

    def _is_incomplete(self, job: Job) -> bool:
        broadcast = self._broadcasts.get(job)
        return broadcast is not None and not broadcast.complete

    async def _send(self, broadcast: Broadcast, finished: SegmentAudio, utterance: Utterance) -> None:
        """Encode a segment, and send it to the listeners of its channel."""
        messages = await self._workers.run(len(finished.samples), broadcast.encode, finished)
        if not broadcast.begun:
            broadcast.begun = True
            channel = broadcast.job.terms.channel
            broadcast.listeners.update(one for one in self._listeners if one.is_on(channel))
            broadcast.put(broadcast.begin_message(utterance, self._clock()))
        broadcast.complete = finished.last
        for response in messages:
            size = len(response.audio.data)
            if self._kept_bytes + size <= KEPT_BYTES:
                self._kept_bytes += size
                broadcast.sent.append(response)
            broadcast.put(response)

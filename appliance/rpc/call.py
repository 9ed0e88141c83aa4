"""A request of any service, from its wish to the messages of its reply."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from appliance.audio import words
from appliance.audio.captions import heard_characters
from appliance.audio.marking import mark_of
from appliance.audio.phrases import Phrase
from appliance.audio.reply import AudioWorkers, ReplyAudio
from appliance.audio.words import TimedWord
from appliance.encodings import Encoding
from appliance.request import ReplyLevel, Request, SegmentAudio, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.context import OpenCall
from appliance.rpc.replies import passed_over_messages, trailers, word_messages
from appliance.scheduler.job import Job, Result
from appliance.speech.speech import PlannedWay, Ready, Speech
from appliance.speech.wish import Wish
from appliance.speech.work import Work

logger = logging.getLogger(__name__)

SAMPLE_BYTES = 4


class Current(Protocol):
    """Holder of the current Speech, which a reload or a swap replaces."""

    @property
    def speech(self) -> Speech: ...


class Counters(Protocol):
    """Counters of the daemon's metrics."""

    def spoken(self, timings: Timings, promised_s: float) -> None: ...

    def skipped(self) -> None: ...


class Health(Protocol):
    """State of the machine that concerns calls."""

    @property
    def degraded(self) -> str:
        """One word for programs, if the daemon serves requests more slowly than it should; else ""."""


@dataclass(eq=False, kw_only=True)
class SynthesisCall(OpenCall):
    """A request from its wish to the last message of its reply. Every service makes one per request."""

    received_wish: Wish
    """The wish before a bundle has made its choices."""
    current: Current
    counters: Counters
    health: Health
    workers: AudioWorkers
    job: Job
    results: asyncio.Queue[Result]
    """Results of the job, in order."""
    message_s: float
    """Longest audio in one message of a stream, in seconds."""

    admitted: bool = False
    """True once the scheduler has admitted the job. The fields below are set by then."""
    ready: Ready = field(init=False)
    way: PlannedWay = field(init=False)
    """Best way to serve the call; after admission, the way that the scheduler chose."""

    phrase: list[SegmentAudio] = field(default_factory=list)
    """Segments of the reply, for the cache."""
    words: list[TimedWord] = field(default_factory=list)
    """Words of the segments so far, if the request asks for word timings."""
    first_audio: float = math.nan
    """Time at which the transport got the first audio."""

    # Admission.

    def make_ready(self) -> Work[None]:
        """Make the wish ready and admit its job, unless its text has nothing to speak.

        Raises what `Speech.ready` and `Scheduler.admit` raise.
        """
        # Try again if the bundle was swapped during the work, or if the request to merge with has begun.
        while (way := (yield from self._try_to_admit())) is None:
            pass
        self.way = self.ready.ways[way]

    def _try_to_admit(self) -> Work[int | None]:
        """Index of the way that the scheduler chose; None means: try again."""
        # A text beyond the limit is refused before anything reads it.
        yield self.received_wish.size(self.current.speech.synthesis.max_text_characters)
        job, current = self.job, self.current.speech
        earlier = current.scheduler.queue.mergeable(job.terms)
        job.merged = self.received_wish.merged(earlier.merged if earlier else 0)
        self.ready = ready = yield from current.ready(self.received_wish, job.merged)
        self.way, speech = ready.ways[0], ready.speech
        if ready.is_empty:
            return 0
        job.request, job.cached = self.request, ready.cached_segments
        planned = [way.segments for way in ready.ways]
        return speech.scheduler.admit(job, planned, earlier, speech.generation, speech.bundle)

    @cached_property
    def reply(self) -> ReplyAudio:
        return self._reply(self.wish.encoding, self.wish.sample_rate_hz)

    def _reply(self, encoding: Encoding, rate_hz: int) -> ReplyAudio:
        speech, mark = self.speech, mark_of(self.speech.audio.marked)
        return ReplyAudio(speech.manifest, encoding, rate_hz, self.message_s, self.level, mark)

    @property
    def speech(self) -> Speech:
        """Speech of the bundle that this call's language chose."""
        return self.ready.speech

    @property
    def wish(self) -> Wish:
        return self.ready.wish

    @property
    def level(self) -> ReplyLevel:
        audio = self.speech.audio
        channel_gain_db = audio.channel_gain_db.get(self.job.terms.channel, 0.0)
        return ReplyLevel(audio.loudness_lufs, self.wish.gain_db + channel_gain_db)

    @property
    def request(self) -> Request:
        return self.way.request

    @property
    def is_empty(self) -> bool:
        """True if the text has nothing to speak."""
        return self.ready.is_empty

    @property
    def promised_s(self) -> float:
        """Seconds from arrival to the promised first audio; 0 without a promise."""
        promised = math.isfinite(self.job.due) and not self.job.late_s
        return self.job.due - self.job.arrived if promised else 0.0

    @property
    def audio_bytes(self) -> int:
        """Most bytes of audio that the call may hold: samples that wait to be read, and the encoded reply."""
        waiting_s = min(self.job.audio_s, self.job.buffer_s)
        encoded_s = 0.0 if self.job.stream else self.job.audio_s
        rates = self.speech.manifest.mel.sample_rate_hz, self.wish.sample_rate_hz
        return int(SAMPLE_BYTES * (waiting_s * rates[0] + encoded_s * rates[1]))

    @property
    def heard_characters(self) -> int:
        """Characters of the written text that have been played."""
        if self.is_empty:
            return 0
        was, _ = self.speech.scheduler.queue.position_of(self.job)
        # The queue considers a reply played when it is sent, unless it knows the player.
        heard_s = min(was.heard_s, self.job.channel.at(self.clock()) - was.starts)
        return heard_characters(self.request, self.job.segments, heard_s)

    # Results and messages.

    async def segments(self) -> AsyncIterator[SegmentAudio]:
        """Finished segments, in order. Raises the error that ended the job."""
        is_last = self.is_empty
        while not is_last:
            result = await self.results.get()
            if not isinstance(result, SegmentAudio):
                raise result
            if self.way.key is not None:
                self.phrase.append(result)
            yield result
            is_last = result.last

    def header(self, before_s: float = 0.0, before_segments: int = 0) -> pb.Header:
        """Header of the reply. In a session: of a clause that follows this much audio."""
        wish, request, terms, engine = self.wish, self.request, self.wish.terms, self.speech.engine
        planned = words.planned(self.job.segments) if wish.word_timings else []
        return pb.Header(
            sample_rate_hertz=wish.sample_rate_hz,
            encoding=wish.encoding.name,
            nfe_steps=request.nfe,
            seed=request.seed,
            guidance=request.guidance,
            segmentation=request.segmentation.name,
            voice=request.voice,
            segments=len(self.job.segments),
            text=request.text,
            backend=engine.backend,
            request_id=terms.request_id,
            priority=terms.priority.name,
            promised_ms=self.promised_s * 1e3,
            words=word_messages([word.moved(before_s, before_segments) for word in planned]),
            cached=bool(self.ready.cached_segments),
            changes=[pb.TextChange(kind=c.kind, before=c.before, after=c.after) for c in request.changes],
            skipped_reason=request.skipped_reason * self.is_empty,
            passed_over=passed_over_messages(engine.passed_over),
        )

    async def whole_audio(self) -> bytes:
        """Audio of the whole reply. Raises the error that ended the job."""
        async for segment in self.segments():
            await self.workers.run(len(segment.samples), self.reply.keep, segment)
            await self._time_words(segment)
        reply = self.reply
        audio: bytes = await self.workers.run(reply.samples, reply.whole, costly=reply.is_costly)
        self.first_audio = self.clock()
        return audio

    async def preview(self) -> bytes:
        """WAV file of the finished audio that waits to be sent."""
        reply = self._reply(Encoding.WAV, self.speech.manifest.mel.sample_rate_hz)
        for segment in tuple(self.job.unreleased):
            await self.workers.run(len(segment.samples), reply.keep, segment)
        return bytes(await self.workers.run(reply.samples, reply.whole))

    async def audio(self) -> AsyncIterator[tuple[pb.Audio, int]]:
        """Audio messages, each with its number of samples. Raises the error that ended the job."""
        reply, sequence, offset = self.reply, 0, 0
        async for segment in self.segments():
            encoded = await self.workers.run(len(segment.samples), reply.messages, segment)
            while message := await self.workers.run(0, next, encoded, None, costly=reply.is_costly):
                data, samples = message
                if not sequence:
                    self.first_audio = self.clock()
                audio = pb.Audio(data=data, sequence=sequence, sample_offset=offset, segment=segment.segment)
                is_made = segment.segment + self.results.qsize() + 1 >= len(self.job.segments)
                audio.rest_is_made = is_made and not sequence
                yield audio, samples
                sequence, offset = sequence + 1, offset + samples
            await self._time_words(segment)

    async def _time_words(self, finished: SegmentAudio) -> None:
        """Add the times of the words in a finished segment, corrected by its silence."""
        if self.wish.word_timings:
            segments, samples = self.job.segments, finished.samples
            segment, start_s = segments[finished.segment], words.starts_s(segments)[finished.segment]
            rate_hz = self.speech.manifest.mel.sample_rate_hz
            self.words += await self.workers.run(
                len(samples), words.from_audio, segment, start_s, samples, rate_hz
            )

    async def write(self, message: object, samples: int = 0) -> None:
        """Send a message that contains this number of samples. Raises Cancelled if the caller is gone.

        A client's receive window may hold more than a minute of audio.
        """
        played = self.first_audio + self.job.sent_s if self.job.sent_s else -math.inf
        await self.send(message, played)
        self.speech.scheduler.queue.sent(self.job, samples / self.wish.sample_rate_hz)

    # The end.

    def finish(self, *, with_trailers: bool = True) -> Timings:
        """Complete the timings, keep the phrase, set the trailers, log and count the request."""
        job, reply = self.job, self.reply
        if self.way.key is not None:
            self.speech.phrases.keep(self.way.key, Phrase.of(self.phrase, self.request.seed))
        timings = replace(
            job.timings,
            first_audio_s=self.first_audio - job.arrived if reply.samples else 0.0,
            total_s=self.clock() - job.arrived,
            audio_s=reply.audio_s,
            join_s=reply.join_s,
            encode_s=reply.encode_s,
        )
        if with_trailers:
            figures = trailers(timings, job.terms, self.promised_s, self.health.degraded)
            self.context.set_trailing_metadata(figures)
        # Logging and counting wait until the reply is on its way.
        asyncio.get_running_loop().call_soon(self._record, timings)
        return timings

    def _record(self, timings: Timings) -> None:
        """Log and count the request."""
        terms = self.job.terms
        if self.is_empty:
            logger.info("request %s of %s: nothing to speak", terms.request_id, terms.client)
            self.counters.skipped()
            return
        logger.info(
            "request %s of %s, voice %r: %.2f s of audio in %.2f s, first after %.2f s, waited %.2f s",
            *(terms.request_id, terms.client, self.request.voice),
            *(timings.audio_s, timings.total_s, timings.first_audio_s, timings.queue_s),
        )
        self.counters.spoken(timings, self.promised_s)

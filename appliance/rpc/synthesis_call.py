"""One synthesis call while it lasts: its request is planned and admitted, its results become messages."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from appliance.audio import words
from appliance.audio.phrases import Key, Phrase, Phrases, key_of
from appliance.audio.reply import Reply
from appliance.audio.words import Word
from appliance.contract.bundle import Manifest
from appliance.plan import Planner
from appliance.request import Request, Segment, SegmentAudio, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.calls import OpenCall
from appliance.rpc.replies import header_message, trailers
from appliance.rpc.requests import ParsedRequest, RequestDefaults
from appliance.rpc.workers import AudioWorkers
from appliance.scheduler import Scheduler
from appliance.scheduler.job import Job, Result
from appliance.scheduler.workload import Clock

logger = logging.getLogger(__name__)


class SynthesisObserver(Protocol):
    """Counter of finished and skipped requests."""

    def spoken(self, timings: Timings, promised_s: float) -> None: ...

    def skipped(self) -> None: ...


@dataclass
class Components:
    """Parts of the daemon that serve calls; a reload or a bundle swap replaces some."""

    planner: Planner
    scheduler: Scheduler
    defaults: RequestDefaults
    observer: SynthesisObserver
    clock: Clock
    at_hand: Callable[[str], bool] = lambda voice: False
    """True if a voice is in memory, prepared."""
    phrases: Phrases = field(default_factory=lambda: Phrases(0))
    degraded: Callable[[], str] = lambda: ""
    """Why requests are served worse than they should be, in one word for machines; else empty."""


@dataclass(eq=False, kw_only=True)
class SynthesisCall(OpenCall):
    """A request on its way from message to reply."""

    parsed: ParsedRequest
    components: Components
    workers: AudioWorkers
    job: Job
    results: asyncio.Queue[Result]
    peer: str
    """The caller, for limits; empty for the box's own calls."""
    message_s: float
    """Longest audio in one message of a stream."""

    admitted: bool = False
    """True once it has the three below."""
    manifest: Manifest = field(init=False)
    """Manifest of the bundle that it is planned for."""
    request: Request = field(init=False)
    reply: Reply = field(init=False)

    cached: bool = False
    """True if its audio was made for an earlier request."""
    phrase_key: Key | None = None
    """Key to keep its audio under, if it is to be kept."""
    phrase: list[SegmentAudio] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    """Word timings of the segments so far, if the request asks for them."""
    first_audio: float = math.nan
    """Time at which the transport was given its first audio, if it was."""

    # Admission.

    def admit(self) -> None:
        """Plan the request and have the scheduler admit its job; blocks while the text is planned.

        Raises what `Planner.ways` and `Scheduler.admit` raise, and InvalidRequest.
        """
        # Planned again where the bundle was swapped meanwhile, or the request to merge with was begun.
        while not self._plan_and_admit():
            pass

    def _plan_and_admit(self) -> bool:
        parts, job, parsed = self.components, self.job, self.parsed
        generation = parts.scheduler.engines.generation  # read before what is planned with
        self.manifest = parts.planner.manifest
        earlier = parts.scheduler.queue.mergeable(parsed.terms)
        job.merged = parsed.merge_count + (earlier.merged if earlier else 0)
        ways = parts.planner.ways(parsed.ways_for(job.merged, parts.defaults))
        job.voice, job.text = ways[0][0].voice, ways[0][0].text
        keys = self._phrase_keys([segments for _, segments in ways])
        kept = parts.phrases.find(keys) if keys else None
        job.kept = ()
        if kept is not None:
            place, phrase = kept
            request, segments = ways[place]
            ways, job.kept = [(replace(request, seed=phrase.seed), segments)], phrase.segments
        way = parts.scheduler.admit(job, [segments for _, segments in ways], earlier, generation)
        if way is None:
            return False
        self.request = ways[way][0]
        self.reply = Reply(self.manifest, self.request.encoding, self.request.sample_rate_hz, self.message_s)
        self.cached = kept is not None
        self.phrase_key = keys[way] if keys and not kept else None
        return True

    def _phrase_keys(self, ways: Sequence[Sequence[Segment]]) -> list[Key]:
        """The key of each way; none where its audio is not to be kept."""
        parts, seeded = self.components, self.parsed.seeded
        if not parts.phrases.takes(seeded=seeded):
            return []
        made_by = f"{self.manifest!r} {parts.scheduler.engines.backend}"
        return [key_of(segments, made_by, seeded=seeded) for segments in ways]

    @property
    def promised_s(self) -> float:
        """Seconds from arrival to the promised first audio; 0 without a promise."""
        promised = math.isfinite(self.job.due) and not self.job.late_s
        return self.job.due - self.job.arrived if promised else 0.0

    # Results and messages.

    async def segments(self) -> AsyncIterator[SegmentAudio]:
        """Finished segments, in order. Raises the error that ended the job."""
        while isinstance(result := await self.results.get(), SegmentAudio):
            if self.phrase_key is not None:
                self.phrase.append(result)
            yield result
            if result.last:
                return
        raise result

    def header(self, before_s: float = 0.0, before_segments: int = 0) -> pb.Header:
        """Return the header; in a session, after so much audio."""
        job, request, engines = self.job, self.request, self.components.scheduler.engines
        planned = words.planned(job.segments) if request.word_timings else []
        return header_message(
            *(request, job.terms, len(job.segments), engines.backend, self.promised_s),
            [word.moved(before_s, before_segments) for word in planned],
            passed_over=engines.passed_over,
            cached=self.cached,
        )

    async def whole(self) -> bytes:
        """The reply's audio, once all of it is finished. Raises the error that ended the job."""
        async for segment in self.segments():
            await self.workers.run(len(segment.samples), self.reply.keep, segment)
            await self._time_words(segment)
        reply = self.reply
        audio: bytes = await self.workers.run(reply.samples, reply.whole, costly=reply.is_costly)
        self.first_audio = self.clock()
        return audio

    async def audio(self) -> AsyncIterator[tuple[pb.Audio, int]]:
        """The reply's audio message by message, each as soon as it is encoded, and its number of samples.

        Raises the error that ended the job.
        """
        reply, sequence, offset = self.reply, 0, 0
        async for segment in self.segments():
            encoded, count = reply.messages(segment), len(segment.samples)
            while message := await self.workers.run(count, next, encoded, None, costly=reply.is_costly):
                data, samples = message
                if not sequence:
                    self.first_audio = self.clock()
                audio = pb.Audio(data=data, sequence=sequence, sample_offset=offset, segment=segment.segment)
                yield audio, samples
                sequence, offset = sequence + 1, offset + samples
            await self._time_words(segment)

    async def _time_words(self, finished: SegmentAudio) -> None:
        if self.request.word_timings:
            segments, samples = self.job.segments, finished.samples
            segment, start_s = segments[finished.segment], words.starts_s(segments)[finished.segment]
            rate_hz = self.manifest.mel.sample_rate_hz
            self.words += await self.workers.run(
                len(samples), words.from_audio, segment, start_s, samples, rate_hz
            )

    async def write(self, message: object, samples: int = 0) -> None:
        """Send a message that holds so many samples. Raises Cancelled if the caller is gone."""
        await self.send(message)
        if samples:
            self.components.scheduler.queue.written(self.job, samples / self.request.sample_rate_hz)

    def stalled_s(self, now: float, *, playing: bool) -> float:
        """Seconds for which its reader has taken nothing.

        A client's window may hold more than a minute of audio, and one that reads as it plays (`playing`)
        takes nothing more until it has played that.
        """
        if self.writing_since is None:
            return 0.0
        since = self.writing_since
        if playing and not math.isnan(self.first_audio):
            since = max(since, self.first_audio + self.job.written_s)
        return now - since

    # The end.

    def finish(self, *, with_trailers: bool = True) -> Timings:
        """Complete the timings, keep the phrase, set the trailers, log and count the request."""
        parts, job, reply = self.components, self.job, self.reply
        if self.phrase_key is not None:
            parts.phrases.keep(self.phrase_key, Phrase.of(self.phrase, self.request.seed))
        timings = replace(
            job.timings,
            first_audio_s=self.first_audio - job.arrived if reply.samples else 0.0,
            total_s=self.clock() - job.arrived,
            audio_s=reply.audio_s,
            join_s=reply.join_s,
            encode_s=reply.encode_s,
        )
        if with_trailers:
            figures = trailers(timings, job.terms, self.promised_s, parts.degraded())
            self.context.set_trailing_metadata(figures)
        # Once the reply is on its way.
        asyncio.get_running_loop().call_soon(self._record, timings)
        return timings

    def _record(self, timings: Timings) -> None:
        terms = self.job.terms
        logger.info(
            "request %s of %s, voice %r: %.2f s of audio in %.2f s, first after %.2f s, waited %.2f s",
            *(terms.request_id, terms.client, self.request.voice),
            *(timings.audio_s, timings.total_s, timings.first_audio_s, timings.queue_s),
        )
        self.components.observer.spoken(timings, self.promised_s)

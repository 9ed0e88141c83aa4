"""Requests of every service: parsed, planned, admitted; their results become messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from appliance.audio import words
from appliance.audio.marking import mark_of
from appliance.audio.phrases import Key, Phrase, Phrases, key_of
from appliance.audio.reply import AudioWorkers, Reply
from appliance.audio.tags import KEY
from appliance.audio.words import Word
from appliance.config import ServerConfig
from appliance.contract.bundle import Manifest
from appliance.errors import ApplianceError, DeadlineMissed, InvalidRequest, ReaderStalled
from appliance.plan import Planner
from appliance.request import Level, Request, Segment, SegmentAudio, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.callers import current_call
from appliance.rpc.context import Context, OpenCall, current_task, remaining_s, send_metadata
from appliance.rpc.replies import header_message, timings_message, trailers, word_messages
from appliance.rpc.requests import ParsedRequest, RequestDefaults, may_hold_tags, parse
from appliance.scheduler import Scheduler
from appliance.scheduler.job import Job, Result
from appliance.scheduler.workload import Clock
from appliance.text.pieces.arriving import TextSplitter

logger = logging.getLogger(__name__)

SHORT_TEXT, FEW_WORDS = 200, 16
"""Characters of a text, and its pronunciations, that the event loop reads and plans, in a millisecond."""
SAMPLE_BYTES = 4


@dataclass(frozen=True)
class Reading:
    """Planner and defaults of one bundle under one configuration, taken whole."""

    planner: Planner
    defaults: RequestDefaults
    generation: int = 0
    """Engine of the bundle."""

    @property
    def manifest(self) -> Manifest:
        return self.planner.manifest


@dataclass
class Components:
    """Parts of the daemon; a reload or a bundle swap replaces `reading`."""

    reading: Reading
    scheduler: Scheduler
    clock: Clock
    spoken: Callable[[Timings, float], None] = lambda timings, promised_s: None
    """Counts a finished request."""
    skipped: Callable[[], None] = lambda: None
    """Counts a request with nothing to speak."""
    at_hand: Callable[[str, str], bool] = lambda voice, style: False
    """True if a voice is prepared in memory in this style."""
    phrases: Phrases = field(default_factory=lambda: Phrases(0))
    degraded: Callable[[], str] = lambda: ""
    """One word for machines on why requests are served worse than they should be; else empty."""

    @property
    def planner(self) -> Planner:
        return self.reading.planner

    @property
    def defaults(self) -> RequestDefaults:
        return self.reading.defaults

    def change(
        self, *, generation: int | None = None, planner: Planner | None = None, **changes: Any
    ) -> None:
        """Replace the reading: its planner, engine, and values of its defaults."""
        now = self.reading
        self.reading = Reading(
            planner or now.planner,
            replace(now.defaults, **changes),
            now.generation if generation is None else generation,
        )


@dataclass(eq=False, kw_only=True)
class SynthesisCall(OpenCall):
    parsed: ParsedRequest
    components: Components
    workers: AudioWorkers
    job: Job
    results: asyncio.Queue[Result]
    message_s: float
    """Longest audio in one message of a stream."""

    admitted: bool = False
    """True once it has all below."""
    manifest: Manifest = field(init=False)
    level: Level = field(init=False)
    """With the manifest, before its first audio may arrive; that of each way to serve it."""
    request: Request = field(init=False)
    reply: Reply = field(init=False)

    cached: bool = False
    """True if an earlier request's audio serves it."""
    phrase_key: Key | None = None
    """Set if its audio is to be kept."""
    phrase: list[SegmentAudio] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    """Words of the segments so far, if asked for."""
    first_audio: float = math.nan
    """Time at which the transport was given it."""

    # Admission.

    def plan_and_admit(self) -> None:
        """Plan the request and have the scheduler admit its job.

        Raises what `Planner.ways` and `Scheduler.admit` raise, and InvalidRequest.
        """
        # Planned again where the bundle was swapped meanwhile, or the request to merge with was begun.
        while not self._try_to_admit():
            pass

    def _try_to_admit(self) -> bool:
        parts, job, parsed = self.components, self.job, self.parsed
        reading = parts.reading
        self.manifest = reading.manifest
        earlier = parts.scheduler.queue.mergeable(parsed.terms)
        job.merged = parsed.merge_count + (earlier.merged if earlier else 0)
        # Read again where that was with what a reload or a swap has replaced since.
        ways = reading.planner.ways(parsed.ways_for(job.merged, reading.defaults))
        best = ways[0][0]
        job.voice, job.text, job.written, self.level = best.voice, best.text, best.written, best.level
        keys = self._phrase_keys([segments for _, segments in ways])
        kept = parts.phrases.find(keys) if keys else None
        job.kept = ()
        if kept is not None:
            place, phrase = kept
            request, segments = ways[place]
            ways, job.kept = [(replace(request, seed=phrase.seed), segments)], phrase.segments
        way = parts.scheduler.admit(job, [segments for _, segments in ways], earlier, reading.generation)
        if way is None:
            return False
        self.request = ways[way][0]
        self.reply = Reply(
            *(self.manifest, self.request.encoding, self.request.sample_rate_hz, self.message_s, self.level),
            mark_of(reading.defaults.audio.marked),
        )
        self.cached = kept is not None
        self.phrase_key = keys[way] if keys and not kept else None
        return True

    def _phrase_keys(self, ways: Sequence[Sequence[Segment]]) -> list[Key]:
        """Key of each way; none where audio is not to be kept."""
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

    @property
    def audio_bytes(self) -> int:
        """Most audio that it holds: samples that its reader has not taken, and the encoded whole."""
        waiting_s = min(self.job.audio_s, self.job.buffer_s)
        encoded_s = 0.0 if self.job.stream else self.job.audio_s
        rates = self.manifest.mel.sample_rate_hz, self.request.sample_rate_hz
        return int(SAMPLE_BYTES * (waiting_s * rates[0] + encoded_s * rates[1]))

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
        """Header; in a session, after so much audio."""
        job, request, engines = self.job, self.request, self.components.scheduler.engines
        planned = words.planned(job.segments) if request.word_timings else []
        return header_message(
            *(request, job.terms, len(job.segments), engines.backend, self.promised_s),
            [word.moved(before_s, before_segments) for word in planned],
            passed_over=engines.passed_over,
            cached=self.cached,
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
            self.components.scheduler.queue.sent(self.job, samples / self.request.sample_rate_hz)

    def stalled_s(self, now: float) -> float:
        """Seconds for which its reader has taken nothing, after what it can play.

        A client's window may hold more than a minute of audio.
        """
        if self.writing_since is None:
            return 0.0
        since = self.writing_since
        if not math.isnan(self.first_audio):
            since = max(since, self.first_audio + self.job.sent_s)
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
        self.components.spoken(timings, self.promised_s)


class Speaking:
    """Calls of all services. Construct on the event loop that serves it."""

    def __init__(self, components: Components, server: ServerConfig) -> None:
        self.components = components
        self._server = server
        self.session_idle_s = server.session_idle_s
        self._loop = asyncio.get_running_loop()
        self._calls: set[SynthesisCall] = set()
        self._reading = 0
        """Requests that the planner's thread has to read."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._planner_thread = ThreadPoolExecutor(1, thread_name_prefix="plan")
        self.workers = AudioWorkers()
        self.on_segment: Callable[[SynthesisCall, SegmentAudio], None] | None = None
        """Called on the event loop."""

    async def answer(
        self,
        message: pb.SynthesizeRequest,
        context: Context,
        reply_of: Callable[[pb.SynthesizeResponse], object] = lambda response: response,
    ) -> None:
        """Send the whole reply. The call is under way, and is charged, until its reader has taken it."""
        parsed = await self.read_message(message, context, stream=False)
        if parsed.is_empty:
            request = parsed.ways[0]
            manifest, message_s = self.components.planner.manifest, self._server.message_s
            mark = mark_of(self.components.defaults.audio.marked)
            reply = Reply(manifest, request.encoding, request.sample_rate_hz, message_s, mark=mark)
            empty = reply.whole()
            header = self.skip(parsed, context)
            await self.begin(context)
            await context.write(reply_of(pb.SynthesizeResponse(audio=empty, header=header, timings={})))
            return
        async with self.call(parsed, context) as call:
            # Tells a client, whose next request is to come after this one, that it has been admitted.
            await self.begin(context)
            response = pb.SynthesizeResponse(audio=await call.whole_audio(), header=call.header())
            response.timings.CopyFrom(timings_message(call.finish()))
            response.words.extend(word_messages(call.words))
            await call.write(await self.workers.run(call.reply.samples, reply_of, response))

    async def begin(self, context: Context) -> None:
        """Send the initial metadata of a call that will have audio: its mark. Raises Cancelled."""
        mark = mark_of(self.components.defaults.audio.marked)
        await send_metadata(context, ((KEY, mark),) if mark else ())

    async def read_message(
        self, message: pb.SynthesizeRequest, context: Context, *, stream: bool
    ) -> ParsedRequest:
        """Check a request message. Raises Unavailable, InvalidRequest, UnsupportedEncoding."""
        parts, is_short = self.components, self._is_short(message)
        parts.scheduler.check_open(message.request_id)
        read = partial(
            parse,
            *(message, parts.defaults),
            stream=stream,
            client=context.peer(),
            caller=current_call().caller.key,
            is_short=is_short,
        )
        # In order of arrival, as `call` is: what comes while the thread reads waits for it.
        if not self._reading and is_short:
            return read()
        self._reading += 1
        try:
            return await self._loop.run_in_executor(self._planner_thread, read)
        finally:
            self._reading -= 1

    def _is_short(self, message: pb.SynthesizeRequest) -> bool:
        words = len(message.pronunciations) + len(self.components.defaults.pronunciations(message.voice))
        return len(message.text) <= SHORT_TEXT and words <= FEW_WORDS and not may_hold_tags(message)

    def skip(self, parsed: ParsedRequest, context: Context | None = None) -> pb.Header:
        """Count and log a request with nothing to speak; return its header. `context` gets its trailers."""
        terms, parts = parsed.terms, self.components
        logger.info("request %s of %s: nothing to speak", terms.request_id, terms.client)
        parts.skipped()
        if context is not None:
            context.set_trailing_metadata(trailers(Timings(), terms))
        engines = parts.scheduler.engines
        return header_message(parsed.ways[0], terms, 0, engines.backend, 0.0, passed_over=engines.passed_over)

    @asynccontextmanager
    async def call(self, parsed: ParsedRequest, context: Context) -> AsyncIterator[SynthesisCall]:
        """Plan and admit a request; end its job when the context exits.

        Raises Unavailable, InvalidRequest, TooManyCalls beyond the caller's bytes, and what
        `SynthesisCall.plan_and_admit` raises.
        """
        call = self._new_call(parsed, context)
        self._calls.add(call)
        self._idle.clear()
        try:
            # Jobs are admitted in order of arrival: what comes while the thread is planning waits for it.
            request, at_hand = parsed.ways[0], self.components.at_hand
            is_quick = (
                parsed.is_short
                and not self.components.planner.waits
                and all(at_hand(request.voice, style) for style in request.styles)
            )
            if is_quick and self.planning == 1:
                call.plan_and_admit()
            else:
                await self._loop.run_in_executor(self._planner_thread, call.plan_and_admit)
            call.admitted = True
            call.job.timings.text_s = call.clock() - call.job.arrived
            # gRPC has a whole reply until it is read, which its reader may never do.
            with current_call().holding(call.audio_bytes, to_the_end=not parsed.stream):
                yield call
        except (asyncio.CancelledError, ApplianceError) as caught:
            error = caught if isinstance(caught, ApplianceError) else call.ended_by
            self._log_failure(call, error)
            if call.admitted:
                self.components.scheduler.queue.stop_playout(call.job)
            if error is None:
                raise
            raise error from caught.__cause__
        finally:
            self.components.scheduler.queue.cancel(call.job)
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()

    def _new_call(self, parsed: ParsedRequest, context: Context) -> SynthesisCall:
        parts, server, terms = self.components, self._server, parsed.terms
        arrived, left_s = parts.clock(), remaining_s(context)
        if left_s <= 0.0:
            raise DeadlineMissed.passed("before the request arrived")
        parts.scheduler.check_open(terms.request_id, taken=self._find(terms.request_id) is not None)
        results: asyncio.Queue[Result] = asyncio.Queue()
        job = Job(
            terms,
            # It holds the queue and not the call: watchers of the scheduler's queue remember ended jobs.
            partial(self.deliver, terms.request_id, results),
            arrived,
            deadline=arrived + left_s,
            stream=parsed.stream,
            buffer_s=server.stream_buffer_s if parsed.stream else math.inf,
        )
        return SynthesisCall(
            context=context,
            clock=parts.clock,
            task=current_task(),
            parsed=parsed,
            components=parts,
            workers=self.workers,
            job=job,
            results=results,
            message_s=server.message_s,
        )

    def deliver(self, request_id: str, results: asyncio.Queue[Result], result: Result) -> None:
        """Move a result from the scheduler's thread to the event loop."""
        with contextlib.suppress(RuntimeError):  # a closed loop has no reader left
            self._loop.call_soon_threadsafe(self._arrive, request_id, results, result)

    def _arrive(self, request_id: str, results: asyncio.Queue[Result], result: Result) -> None:
        results.put_nowait(result)
        call = self._find(request_id) if self.on_segment is not None else None
        if self.on_segment is not None and call is not None and isinstance(result, SegmentAudio):
            self.on_segment(call, result)

    def _log_failure(self, call: SynthesisCall, error: ApplianceError | None) -> None:
        reason: object = error or "the call was cancelled"
        if isinstance(error, InvalidRequest):
            reason = f"{error.field} is refused"  # the whole message may quote the text
        terms, voice = call.parsed.terms, call.parsed.message.voice
        logger.info("request %s of %s, voice %.64r: %s", terms.request_id, terms.client, voice, reason)

    # Calls under way.

    @property
    def planning(self) -> int:
        """Calls that are not admitted yet."""
        return sum(not call.admitted for call in list(self._calls))

    @property
    def sending(self) -> int:
        """Calls whose audio is made, but not yet taken."""
        return sum(call.admitted and call.job.ended for call in list(self._calls))

    def cancel(self, request_id: str, why: ApplianceError) -> bool:
        """End a request, also one that is all sent and still sounds; False where there is none."""
        queue = self.components.scheduler.queue
        return self.end(request_id, why) or bool(
            queue.end(lambda utterance: utterance.job.terms.request_id == request_id, why)
        )

    def end(self, request_id: str, why: ApplianceError) -> bool:
        """False where there is no such call."""
        if (call := self._find(request_id)) is None:
            return False
        call.end(why)
        return True

    def drop_stalled(self, limit_s: float) -> None:
        """End stalled calls; see `SynthesisCall.stalled_s`."""
        now = self.components.clock()
        for call in self._calls:
            if call.stalled_s(now) > limit_s:
                call.end(ReaderStalled("the reader has taken no audio for too long"))

    async def idle(self) -> None:
        await self._idle.wait()

    def _find(self, request_id: str) -> SynthesisCall | None:
        return next((call for call in self._calls if call.job.terms.request_id == request_id), None)

    # Threads.

    async def text_splitter(self, request: Request) -> TextSplitter:
        """Splitter for a text that is still being written. Raises VoiceNotFound, StorageError."""
        planner = self.components.planner
        return await self._loop.run_in_executor(self._planner_thread, planner.splitter, request)

    def close(self) -> None:
        self._planner_thread.shutdown(wait=False, cancel_futures=True)
        self.workers.close()

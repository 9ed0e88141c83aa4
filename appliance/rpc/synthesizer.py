"""The Synthesizer service: a message becomes a job, what the scheduler delivers becomes the reply."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import grpc

from appliance import words
from appliance.audio.reply import Reply
from appliance.config import ServerConfig
from appliance.contract.bundle import Manifest
from appliance.errors import (
    ApplianceError,
    Cancelled,
    DeadlineMissed,
    InvalidRequest,
    ReaderStalled,
    RequestNotFound,
    TooManyCalls,
)
from appliance.job import Request, Segment, SegmentAudio, Timings
from appliance.phrases import Key, Phrase, Phrases, key_of
from appliance.plan import Planner
from appliance.playout import Job, Result
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.listen import Taps
from appliance.rpc.requests import (
    Asked,
    Defaults,
    asked_of,
    header_of,
    merge_count,
    text_of,
    timings_of,
    trailers_of,
    words_of,
)
from appliance.rpc.session import Conversation
from appliance.scheduler import Scheduler
from appliance.text.written import Written
from appliance.words import Word
from appliance.workload import Clock

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
SHORT_SAMPLES = 1 << 17
"""Up to 5 s of audio, which take about a millisecond, are encoded on the event loop."""
SHORT_TEXT = 200
"""Characters of a text that is planned on the event loop, which takes less than a millisecond."""
SOUND_THREADS = 2
"""Threads that cross-fade, resample and encode."""


class Observer(Protocol):
    """Counter of what was spoken."""

    def spoken(self, timings: Timings, promised_s: float) -> None: ...

    def skipped(self) -> None: ...


@dataclass
class Speech:
    """Parts of the daemon that the service uses."""

    planner: Planner
    scheduler: Scheduler
    defaults: Defaults
    observer: Observer
    clock: Clock
    at_hand: Callable[[str], bool] = lambda voice: False
    """True if a voice is in memory, prepared."""
    phrases: Phrases = field(default_factory=lambda: Phrases(0))
    degraded: Callable[[], str] = lambda: ""
    """Why requests are served worse than they should be, in one word for machines; else empty."""


@dataclass(eq=False)
class Call:
    """One synthesis call while it lasts."""

    job: Job
    asked: Asked
    results: asyncio.Queue[Result]
    peer: str
    """Key of the caller for limits; empty for the box's own calls."""
    task: asyncio.Task[Any]
    manifest: Manifest = field(init=False)
    """Manifest of the bundle that it is planned for."""
    request: Request = field(init=False)
    """Request as it is served."""
    reply: Reply = field(init=False)
    admitted: bool = False
    """True once it has the three above."""
    cached: bool = False
    """True if its audio was made for an earlier request."""
    key: Key | None = None
    """Key under which its phrase will be kept, if it will be."""
    parts: list[SegmentAudio] = field(default_factory=list)
    """Audio of that phrase, segment by segment."""
    words: list[Word] = field(default_factory=list)
    """Heard so far, where they were asked for."""
    first_audio: float = math.nan
    """Time at which the transport was given its first audio, if it was."""
    writing_since: float | None = None
    """Time at which the transport was given the message that it has not yet taken."""
    ended_by: ApplianceError | None = None
    """Why the daemon ended it, if it did."""

    @property
    def promised_s(self) -> float:
        """Seconds from arrival to the promised first audio; 0 without a promise."""
        promised = math.isfinite(self.job.due) and not self.job.late_s
        return self.job.due - self.job.arrived if promised else 0.0

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

    def end(self, why: ApplianceError) -> None:
        """End it now, whatever it waits for."""
        if self.ended_by is None:
            self.ended_by = why
            self.task.cancel()

    async def made(self) -> AsyncIterator[SegmentAudio]:
        """Finished segments, in order. Raises the error that ended the job."""
        while isinstance(result := await self.results.get(), SegmentAudio):
            if self.key is not None:
                self.parts.append(result)
            yield result
            if result.last:
                return
        raise result


class SynthesizerService(appliance_pb2_grpc.SynthesizerServicer):
    """Speaks; see appliance.proto."""

    def __init__(
        self, speech: Speech, server: ServerConfig, peer: Callable[[Context], str] = lambda context: ""
    ) -> None:
        self.speech = speech
        self._server, self._peer = server, peer
        self._calls: set[Call] = set()
        self._sessions: list[str] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._planning = ThreadPoolExecutor(1, thread_name_prefix="plan")
        self._sound = ThreadPoolExecutor(SOUND_THREADS, thread_name_prefix="sound")
        self.taps = Taps(speech.scheduler, speech.clock, self._sounding, server.message_s)

    async def Synthesize(self, message: pb.SynthesizeRequest, context: Context) -> pb.SynthesizeResponse:
        asked = self.asked(message, context, stream=False)
        if asked.is_empty:
            audio = self._reply(self.speech.planner.manifest, asked.ways[0]).whole()
            return pb.SynthesizeResponse(audio=audio, header=self.skipped(asked, context), timings={})
        async with self.call(message, context, stream=False, asked=asked) as call:
            async for made in call.made():
                await self._sounding(len(made.samples), call.reply.keep, made)
                await self._hear(call, made)
            audio = await self._sounding(call.reply.samples, call.reply.whole, costly=call.reply.is_costly)
            call.first_audio = self.speech.clock()
            timings = self.finish(call, context)
            return pb.SynthesizeResponse(
                audio=audio,
                header=self.header(call),
                timings=timings_of(timings),
                words=words_of(call.words),
            )

    async def StreamSynthesize(self, message: pb.SynthesizeRequest, context: Context) -> None:
        asked = self.asked(message, context, stream=True)
        if asked.is_empty:
            await context.write(pb.StreamSynthesizeResponse(header=self.skipped(asked, context)))
            await context.write(pb.StreamSynthesizeResponse(end={}))
            return
        async with self.call(message, context, stream=True, asked=asked) as call:
            await self.write(call, context, pb.StreamSynthesizeResponse(header=self.header(call)))
            async for audio, samples in self.audio(call):
                await self.write(call, context, pb.StreamSynthesizeResponse(audio=audio), samples)
            timings = self.finish(call, context)
            end = pb.End(samples=call.reply.samples, timings=timings_of(timings), words=words_of(call.words))
            await self.write(call, context, pb.StreamSynthesizeResponse(end=end))

    async def Session(self, messages: AsyncIterator[pb.SessionRequest], context: Context) -> None:
        with self.session(context) as idle_s:
            await Conversation(self, context, idle_s).hold(messages)

    @contextlib.contextmanager
    def session(self, context: Context) -> Iterator[float]:
        """Room for a call of many messages; gives the seconds it may be idle. Raises TooManyCalls."""
        self._check_room(peer := self._peer(context), len(self._sessions))
        self._sessions.append(peer)
        try:
            yield self._server.session_idle_s
        finally:
            self._sessions.remove(peer)

    async def CancelSynthesis(
        self, message: pb.CancelSynthesisRequest, context: Context
    ) -> pb.CancelSynthesisResponse:
        if not self.end(message.request_id, Cancelled("cancelled by CancelSynthesis")):
            raise RequestNotFound(f"no request {message.request_id!r} waits or sounds")
        return pb.CancelSynthesisResponse()

    def end(self, request_id: str, why: ApplianceError) -> bool:
        """End the call of that request, whatever it waits for; False where there is none."""
        if (call := self._named(request_id)) is None:
            return False
        call.end(why)
        return True

    @property
    def planning(self) -> int:
        """Calls that are not admitted yet."""
        return sum(not call.admitted for call in list(self._calls))

    @property
    def sending(self) -> int:
        """Calls whose audio is made and on its way to their readers."""
        return sum(call.admitted and call.job.ended for call in list(self._calls))

    async def written(self, request: Request) -> Written:
        """Collects a text that is being written. Raises VoiceNotFound, StorageError."""
        planner = self.speech.planner
        return await asyncio.get_running_loop().run_in_executor(self._planning, planner.written, request)

    async def idle(self) -> None:
        """Returns when no call is under way."""
        await self._idle.wait()

    def drop_stalled(self, limit_s: float, *, playing: bool = True) -> None:
        """End the calls whose readers have taken nothing for so long; `playing`: after what they can play."""
        now = self.speech.clock()
        for call in self._calls:
            if call.stalled_s(now, playing=playing) > limit_s:
                call.end(ReaderStalled("the reader has taken no audio for too long"))
        self.taps.drop_stalled(limit_s)

    def _named(self, request_id: str) -> Call | None:
        return next((call for call in self._calls if call.job.terms.request_id == request_id), None)

    def close(self) -> None:
        """Let the threads go."""
        self._planning.shutdown(wait=False, cancel_futures=True)
        self._sound.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def call(
        self, message: pb.SynthesizeRequest, context: Context, *, stream: bool, asked: Asked | None = None
    ) -> AsyncIterator[Call]:
        """Plan and admit a job; end it when the context exits. `asked` is what the message asks for."""
        speech, arrived, client = self.speech, self.speech.clock(), context.peer()
        deadline = _deadline(context, arrived)
        speech.scheduler.check_open(message.request_id)
        if self._named(message.request_id):
            raise InvalidRequest("request_id", f"{message.request_id} is in use by another call")
        self._check_room(peer := self._peer(context), len(self._calls))
        asked = asked or self.asked(message, context, stream=stream)
        results: asyncio.Queue[Result] = asyncio.Queue()
        request_id = asked.terms.request_id
        loop = asyncio.get_running_loop()

        def arrive(result: Result) -> None:
            # It must not hold on to the call: those who watch the queue remember ended jobs.
            results.put_nowait(result)
            if self.taps.are_open and isinstance(result, SegmentAudio) and (call := self._named(request_id)):
                self.taps.made(call.job, call.manifest, result)

        def deliver(result: Result) -> None:
            # A closed loop has no reader left.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(arrive, result)

        job = Job(
            asked.terms,
            deliver,
            arrived,
            deadline=deadline,
            stream=stream,
            buffer_s=self._server.stream_buffer_s if stream else math.inf,
        )

        def admit() -> Request:
            while True:
                generation = speech.scheduler.generation  # read before what is planned with
                call.manifest = speech.planner.manifest
                earlier = speech.scheduler.mergeable(asked.terms)
                job.merged = merge_count(message) + (earlier.merged if earlier else 0)
                wanted = asked.ways
                if job.merged > 1:
                    said = pb.SynthesizeRequest()
                    said.CopyFrom(message)
                    said.text = text_of(message, job.merged)
                    wanted = asked_of(said, speech.defaults, stream=stream, client=client).ways
                ways = speech.planner.ways(wanted)
                job.voice, job.text = ways[0][0].voice, ways[0][0].text
                keys, found = self._kept(ways, seeded=asked.seeded)
                if found is not None:
                    place, phrase = found
                    request, segments = ways[place]
                    ways = [(replace(request, seed=phrase.seed), segments)]
                job.kept = phrase.segments if found else ()
                pieces = [segments for _, segments in ways]
                way = speech.scheduler.admit(job, pieces, earlier, generation)
                if way is not None:
                    call.cached = bool(job.kept)
                    call.key = keys[way] if keys and not job.kept else None
                    return ways[way][0]

        task = asyncio.current_task()
        assert task is not None
        call = Call(job, asked, results, peer, task)
        self._calls.add(call)
        self._idle.clear()
        try:
            # Jobs are admitted in order of arrival: what comes while the thread is planning waits for it.
            is_short = len(message.text) <= SHORT_TEXT and speech.at_hand(message.voice)
            if is_short and self.planning == 1:
                call.request = admit()
            else:
                call.request = await loop.run_in_executor(self._planning, admit)
            call.reply = self._reply(call.manifest, call.request)
            call.admitted = True
            job.timings.text_s = speech.clock() - arrived
            yield call
        except (asyncio.CancelledError, ApplianceError) as caught:
            error = caught if isinstance(caught, ApplianceError) else call.ended_by
            if call.admitted:
                speech.scheduler.stop_playout(job)
            reason: object = error or "the call was cancelled"
            if isinstance(error, InvalidRequest):
                reason = f"{error.field} is refused"  # the whole message may quote the text
            logger.info(
                "request %s of %s, voice %.64r: %s",
                *(asked.terms.request_id, client, message.voice, reason),
            )
            if error is None:
                raise
            raise error from caught.__cause__
        finally:
            speech.scheduler.cancel(job)
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()

    def _reply(self, manifest: Manifest, request: Request) -> Reply:
        return Reply(manifest, request.encoding, request.sample_rate_hz, self._server.message_s)

    def _check_room(self, peer: str, under_way: int) -> None:
        """Raises TooManyCalls when there is no room for another call of that peer."""
        server = self._server
        if under_way >= server.max_calls:
            raise TooManyCalls(f"{server.max_calls} calls are under way, which is the limit", retry_s=1.0)
        own = sum(call.peer == peer for call in self._calls) + self._sessions.count(peer) if peer else 0
        if own >= server.max_calls_of_peer:
            raise TooManyCalls(
                f"{server.max_calls_of_peer} calls of {peer} are under way, which is the limit", retry_s=1.0
            )

    def asked(self, message: pb.SynthesizeRequest, context: Context, *, stream: bool) -> Asked:
        """Parse a request message. Raises Unavailable, InvalidRequest, UnsupportedEncoding."""
        self.speech.scheduler.check_open(message.request_id)
        return asked_of(message, self.speech.defaults, stream=stream, client=context.peer())

    def skipped(self, asked: Asked, context: Context) -> pb.Header:
        """The header of a request of which nothing can be spoken; counted and logged."""
        logger.info("request %s of %s: nothing to speak", asked.terms.request_id, context.peer())
        self.speech.observer.skipped()
        context.set_trailing_metadata(trailers_of(Timings(), asked.terms))
        return header_of(asked.ways[0], asked.terms, 0, self.speech.scheduler.backend, 0.0)

    def header(self, call: Call, before_s: float = 0.0, before_segments: int = 0) -> pb.Header:
        """Return the header of a call's request; in a session, others came before it."""
        job = call.job
        timed = words.planned(job.segments) if call.request.word_timings else []
        return header_of(
            *(call.request, job.terms, len(job.segments), self.speech.scheduler.backend, call.promised_s),
            [word.moved(before_s, before_segments) for word in timed],
            cached=call.cached,
        )

    def _kept(
        self, ways: Sequence[tuple[Request, Sequence[Segment]]], *, seeded: bool
    ) -> tuple[list[Key], tuple[int, Phrase] | None]:
        """The keys of a request's ways, where its phrase may be kept, and the best way that is, if one is."""
        speech = self.speech
        if not speech.phrases.takes(seeded=seeded):
            return [], None
        made_by = f"{speech.planner.manifest!r} {speech.scheduler.backend}"
        keys = [key_of(segments, made_by, seeded=seeded) for _, segments in ways]
        return keys, speech.phrases.find(keys)

    async def _hear(self, call: Call, made: SegmentAudio) -> None:
        """Find where the words of a segment are, if that was asked for."""
        if call.request.word_timings:
            segments, rate_hz = call.job.segments, self.speech.planner.manifest.mel.sample_rate_hz
            segment, start_s = segments[made.segment], words.starts_s(segments)[made.segment]
            call.words += await self._sounding(
                len(made.samples), words.from_audio, segment, start_s, made.samples, rate_hz
            )

    async def _sounding(
        self, samples: int, work: Callable[..., Any], *arguments: Any, costly: bool = False
    ) -> Any:
        """Join, resample or encode: on a thread where there is much, since going there takes its time too."""
        if samples <= SHORT_SAMPLES and not costly:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._sound, work, *arguments)

    async def audio(self, call: Call) -> AsyncIterator[tuple[pb.Audio, int]]:
        """A call's audio in messages, each with its samples. Raises the error that ended its job."""
        sequence = offset = 0
        async for made in call.made():
            async for data, samples in self._messages(call.reply, made):
                if not sequence:
                    call.first_audio = self.speech.clock()
                yield (
                    pb.Audio(data=data, sequence=sequence, sample_offset=offset, segment=made.segment),
                    samples,
                )
                sequence, offset = sequence + 1, offset + samples
            await self._hear(call, made)

    async def _messages(self, reply: Reply, made: SegmentAudio) -> AsyncIterator[tuple[bytes, int]]:
        """Each message of a segment as soon as it is encoded."""
        messages = reply.messages(made)
        while (
            message := await self._sounding(len(made.samples), next, messages, None, costly=reply.is_costly)
        ) is not None:
            yield message

    async def write(self, call: Call, context: Context, message: object, samples: int = 0) -> None:
        """Send a message that holds so many samples; returns when the transport has taken it.

        A slow reader holds this up and nothing else. Raises Cancelled when there is none any more.
        """
        call.writing_since = self.speech.clock()
        try:
            await context.write(message)
        except grpc.aio.InternalError as error:  # so gRPC says it where a message was on its way
            raise Cancelled("the caller went away") from error
        call.writing_since = None
        if samples:
            self.speech.scheduler.written(call.job, samples / call.request.sample_rate_hz)

    def finish(self, call: Call, context: Context | None = None) -> Timings:
        """Complete the timings, count and log them, send them as trailers of `context`; keep the phrase."""
        if call.key is not None:
            self.speech.phrases.keep(call.key, Phrase.of(call.parts, call.request.seed))
        job, now = call.job, self.speech.clock()
        timings = replace(
            job.timings,
            first_audio_s=call.first_audio - job.arrived if call.reply.samples else 0.0,
            total_s=now - job.arrived,
            audio_s=call.reply.audio_s,
            join_s=call.reply.join_s,
            encode_s=call.reply.encode_s,
        )
        terms, promised_s = job.terms, call.promised_s
        if context is not None:
            context.set_trailing_metadata(trailers_of(timings, terms, promised_s, self.speech.degraded()))

        def record() -> None:
            logger.info(
                "request %s of %s, voice %r: %.2f s of audio in %.2f s, first after %.2f s, waited %.2f s",
                *(terms.request_id, terms.client, call.request.voice),
                *(timings.audio_s, timings.total_s, timings.first_audio_s, timings.queue_s),
            )
            self.speech.observer.spoken(timings, promised_s)

        # Once the reply is on its way.
        asyncio.get_running_loop().call_soon(record)
        return timings


def _deadline(context: Context, arrived: float) -> float:
    # None where the caller set no deadline, which the declared type does not say.
    left = cast("float | None", context.time_remaining())
    if left is None:
        return math.inf
    if left <= 0.0:
        raise DeadlineMissed("the deadline passed before the request arrived")
    return arrived + left

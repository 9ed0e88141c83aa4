"""The Synthesizer service: message → request → job → results → messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from appliance.audio.reply import Reply
from appliance.config import ServerConfig
from appliance.errors import (
    ApplianceError,
    Cancelled,
    DeadlineMissed,
    InvalidRequest,
    ReaderStalled,
    RequestNotFound,
    TooManyCalls,
)
from appliance.request import Request, SegmentAudio, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.calls import Context, current_task, remaining_s
from appliance.rpc.listen import Broadcaster
from appliance.rpc.replies import header_message, timings_message, trailers, word_messages
from appliance.rpc.requests import ParsedRequest, parse
from appliance.rpc.session import SessionCall
from appliance.rpc.synthesis_call import Components, SynthesisCall
from appliance.rpc.workers import AudioWorkers
from appliance.scheduler.job import Job, Result
from appliance.text.written import Written

logger = logging.getLogger(__name__)

SHORT_TEXT = 200
"""Characters of a text that is planned on the event loop, which takes less than a millisecond."""


class SynthesizerService(appliance_pb2_grpc.SynthesizerServicer):
    """Speaks; see appliance.proto. Construct on the event loop that serves it."""

    def __init__(
        self,
        components: Components,
        server: ServerConfig,
        peer: Callable[[Context], str] = lambda context: "",
    ) -> None:
        """`peer` identifies a caller for limits; empty for the box's own calls."""
        self.components = components
        self._server, self._peer = server, peer
        self._loop = asyncio.get_running_loop()
        self._calls: set[SynthesisCall] = set()
        self._sessions: list[str] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._planner_thread = ThreadPoolExecutor(1, thread_name_prefix="plan")
        self._workers = AudioWorkers()
        self.broadcaster = Broadcaster(
            components.scheduler.queue, components.clock, self._workers, server.message_s
        )

    # The methods of the protocol.

    async def Synthesize(self, message: pb.SynthesizeRequest, context: Context) -> pb.SynthesizeResponse:
        parsed = self.parse(message, context, stream=False)
        if parsed.is_empty:
            request = parsed.ways[0]
            manifest, message_s = self.components.planner.manifest, self._server.message_s
            empty = Reply(manifest, request.encoding, request.sample_rate_hz, message_s).whole()
            return pb.SynthesizeResponse(audio=empty, header=self.skip(parsed, context), timings={})
        async with self.call(parsed, context) as call:
            # Tells a client, whose next request is to come after this one, that it has been admitted.
            await context.send_initial_metadata(())
            audio = await call.whole()
            timings = call.finish()
            return pb.SynthesizeResponse(
                audio=audio,
                header=call.header(),
                timings=timings_message(timings),
                words=word_messages(call.words),
            )

    async def StreamSynthesize(self, message: pb.SynthesizeRequest, context: Context) -> None:
        parsed = self.parse(message, context, stream=True)
        if parsed.is_empty:
            await context.write(pb.StreamSynthesizeResponse(header=self.skip(parsed, context)))
            await context.write(pb.StreamSynthesizeResponse(end={}))
            return
        async with self.call(parsed, context) as call:
            await call.write(pb.StreamSynthesizeResponse(header=call.header()))
            async for audio, samples in call.audio():
                await call.write(pb.StreamSynthesizeResponse(audio=audio), samples)
            timings = timings_message(call.finish())
            end = pb.End(samples=call.reply.samples, timings=timings, words=word_messages(call.words))
            await call.write(pb.StreamSynthesizeResponse(end=end))

    async def Session(self, messages: AsyncIterator[pb.SessionRequest], context: Context) -> None:
        with self.open_session(context) as idle_s:
            await SessionCall(self, context, idle_s).serve(messages)

    async def CancelSynthesis(
        self, message: pb.CancelSynthesisRequest, context: Context
    ) -> pb.CancelSynthesisResponse:
        if not self.end(message.request_id, Cancelled("cancelled by CancelSynthesis")):
            raise RequestNotFound(f"no request {message.request_id!r} waits or sounds")
        return pb.CancelSynthesisResponse()

    # The route of a request, also for sessions and Riva's clients.

    def parse(self, message: pb.SynthesizeRequest, context: Context, *, stream: bool) -> ParsedRequest:
        """Check a request message. Raises Unavailable, InvalidRequest, UnsupportedEncoding."""
        self.components.scheduler.check_open(message.request_id)
        return parse(message, self.components.defaults, stream=stream, client=context.peer())

    def skip(self, parsed: ParsedRequest, context: Context) -> pb.Header:
        """Count and log a request of which nothing can be spoken; return the header of its reply."""
        terms, parts = parsed.terms, self.components
        logger.info("request %s of %s: nothing to speak", terms.request_id, terms.client)
        parts.observer.skipped()
        context.set_trailing_metadata(trailers(Timings(), terms))
        engines = parts.scheduler.engines
        return header_message(parsed.ways[0], terms, 0, engines.backend, 0.0, passed_over=engines.passed_over)

    @asynccontextmanager
    async def call(self, parsed: ParsedRequest, context: Context) -> AsyncIterator[SynthesisCall]:
        """Plan and admit a request; end its job when the context exits.

        Raises Unavailable, InvalidRequest, TooManyCalls, and what `SynthesisCall.admit` raises.
        """
        call = self._new_call(parsed, context)
        self._calls.add(call)
        self._idle.clear()
        try:
            # Jobs are admitted in order of arrival: what comes while the thread is planning waits for it.
            request = parsed.message
            is_quick = len(request.text) <= SHORT_TEXT and self.components.at_hand(request.voice)
            if is_quick and self.planning == 1:
                call.admit()
            else:
                await self._loop.run_in_executor(self._planner_thread, call.admit)
            call.admitted = True
            call.job.timings.text_s = call.clock() - call.job.arrived
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
        self._check_room(peer := self._peer(context), len(self._calls))
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
            workers=self._workers,
            job=job,
            results=results,
            peer=peer,
            message_s=server.message_s,
        )

    def deliver(self, request_id: str, results: asyncio.Queue[Result], result: Result) -> None:
        """Move a result from the scheduler's thread to the event loop."""
        with contextlib.suppress(RuntimeError):  # a closed loop has no reader left
            self._loop.call_soon_threadsafe(self._arrive, request_id, results, result)

    def _arrive(self, request_id: str, results: asyncio.Queue[Result], result: Result) -> None:
        results.put_nowait(result)
        call = self._find(request_id) if self.broadcaster.is_running else None
        if call is not None and isinstance(result, SegmentAudio):
            self.broadcaster.publish(call.job, call.manifest, result)

    def _log_failure(self, call: SynthesisCall, error: ApplianceError | None) -> None:
        reason: object = error or "the call was cancelled"
        if isinstance(error, InvalidRequest):
            reason = f"{error.field} is refused"  # the whole message may quote the text
        terms, voice = call.parsed.terms, call.parsed.message.voice
        logger.info("request %s of %s, voice %.64r: %s", terms.request_id, terms.client, voice, reason)

    # Limits.

    @contextlib.contextmanager
    def open_session(self, context: Context) -> Iterator[float]:
        """Count a call of many messages; yields the seconds it may be idle. Raises TooManyCalls."""
        self._check_room(peer := self._peer(context), len(self._sessions))
        self._sessions.append(peer)
        try:
            yield self._server.session_idle_s
        finally:
            self._sessions.remove(peer)

    def _check_room(self, peer: str, under_way: int) -> None:
        """Raises TooManyCalls."""
        server = self._server
        if under_way >= server.max_calls:
            raise TooManyCalls(f"{server.max_calls} calls are under way, which is the limit", retry_s=1.0)
        own = sum(call.peer == peer for call in self._calls) + self._sessions.count(peer) if peer else 0
        if own >= server.max_calls_of_peer:
            raise TooManyCalls(
                f"{server.max_calls_of_peer} calls of {peer} are under way, which is the limit", retry_s=1.0
            )

    # Calls under way.

    @property
    def planning(self) -> int:
        """Calls that are not admitted yet."""
        return sum(not call.admitted for call in list(self._calls))

    @property
    def sending(self) -> int:
        """Calls whose audio is made and on its way to their readers."""
        return sum(call.admitted and call.job.ended for call in list(self._calls))

    def end(self, request_id: str, why: ApplianceError) -> bool:
        """End the call of a request, whatever it waits for; False where there is none."""
        if (call := self._find(request_id)) is None:
            return False
        call.end(why)
        return True

    def drop_stalled(self, limit_s: float, *, playing: bool = True) -> None:
        """End the calls whose readers have taken nothing for so long; `playing`: after what they can play."""
        now = self.components.clock()
        for call in self._calls:
            if call.stalled_s(now, playing=playing) > limit_s:
                call.end(ReaderStalled("the reader has taken no audio for too long"))
        self.broadcaster.drop_stalled(limit_s)

    async def idle(self) -> None:
        """Return when no call is under way."""
        await self._idle.wait()

    def _find(self, request_id: str) -> SynthesisCall | None:
        return next((call for call in self._calls if call.job.terms.request_id == request_id), None)

    # Threads.

    async def text_splitter(self, request: Request) -> Written:
        """Return a splitter for a text that is still being written. Raises VoiceNotFound, StorageError."""
        planner = self.components.planner
        return await self._loop.run_in_executor(self._planner_thread, planner.written, request)

    def close(self) -> None:
        self._planner_thread.shutdown(wait=False, cancel_futures=True)
        self._workers.close()

"""Requests of every service: parsed, planned, admitted; their results become messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from appliance.audio.marking import mark_of
from appliance.audio.reply import AudioWorkers, ReplyAudio
from appliance.audio.tags import KEY
from appliance.config import ServerConfig
from appliance.errors import ApplianceError, DeadlineMissed, InvalidRequest, ReaderStalled
from appliance.request import AT_FIRST, Request, SegmentAudio, Switch, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.call import SynthesisCall
from appliance.rpc.callers import current_call
from appliance.rpc.context import Context, current_task, remaining_s, send_metadata
from appliance.rpc.replies import header_message, timings_message, trailers, word_messages
from appliance.rpc.requests import ParsedRequest, may_hold_tags, parse, resolved
from appliance.rpc.speech import Speech
from appliance.scheduler.job import Job, Result
from appliance.text.languages import base_code
from appliance.text.pieces.arriving import TextSplitter

logger = logging.getLogger(__name__)

SHORT_TEXT, FEW_WORDS = 200, 16
"""Characters of a text, and its pronunciations, that the event loop reads and plans, in a millisecond."""


class Speaking:
    """Calls of all services. Construct on the event loop that serves it."""

    def __init__(self, present: Callable[[], Speech], server: ServerConfig) -> None:
        self._present = present
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

    @property
    def speech(self) -> Speech:
        """That of new requests."""
        return self._present()

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
            manifest, message_s = self.speech.manifest, self._server.message_s
            mark = mark_of(self.speech.defaults.audio.marked)
            reply = ReplyAudio(manifest, request.encoding, request.sample_rate_hz, message_s, mark=mark)
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
        mark = mark_of(self.speech.defaults.audio.marked)
        await send_metadata(context, ((KEY, mark),) if mark else ())

    async def read_message(
        self, message: pb.SynthesizeRequest, context: Context, *, stream: bool, begin: Switch = AT_FIRST
    ) -> ParsedRequest:
        """Check a request message. Raises Unavailable, InvalidRequest, UnsupportedEncoding."""
        speech, is_short = self.speech, self._is_short(message)
        speech.scheduler.check_open(message.request_id)
        client, caller = context.peer(), current_call().caller.key

        def read() -> ParsedRequest:
            whole, bundle = resolved(message, speech.defaults)
            return parse(
                whole,
                speech.of(bundle).defaults,
                stream=stream,
                client=client,
                caller=caller,
                is_short=is_short,
                begin=begin,
                bundle=bundle,
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
        words = len(message.pronunciations) + len(self.speech.defaults.pronunciations(message.voice))
        return len(message.text) <= SHORT_TEXT and words <= FEW_WORDS and not may_hold_tags(message)

    def skip(self, parsed: ParsedRequest, context: Context | None = None) -> pb.Header:
        """Count and log a request with nothing to speak; return its header. `context` gets its trailers."""
        terms, speech = parsed.terms, self.speech
        logger.info("request %s of %s: nothing to speak", terms.request_id, terms.client)
        speech.skipped()
        if context is not None:
            context.set_trailing_metadata(trailers(Timings(), terms))
        engines = speech.scheduler.engines
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
            request, speech = parsed.ways[0], self.speech.of(parsed.bundle)
            is_quick = (
                parsed.is_short
                and not speech.planner.waits
                and all(speech.at_hand(*speaker) for speaker in request.speakers)
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
                self.speech.scheduler.queue.stop_playout(call.job)
            if error is None:
                raise
            raise error from caught.__cause__
        finally:
            self.speech.scheduler.queue.cancel(call.job)
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()

    def _new_call(self, parsed: ParsedRequest, context: Context) -> SynthesisCall:
        speech, server, terms = self.speech, self._server, parsed.terms
        arrived, left_s = speech.clock(), remaining_s(context)
        if left_s <= 0.0:
            raise DeadlineMissed.passed("before the request arrived")
        speech.scheduler.check_open(terms.request_id, taken=self._find(terms.request_id) is not None)
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
            clock=speech.clock,
            task=current_task(),
            parsed=parsed,
            present=lambda: self._present().of(parsed.bundle),
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
        queue = self.speech.scheduler.queue
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
        """End each call from which its reader has taken nothing for `limit_s`."""
        now = self.speech.clock()
        for call in self._calls:
            if call.has_stalled(now, limit_s):
                call.end(ReaderStalled("the reader has taken no audio for too long"))

    async def idle(self) -> None:
        await self._idle.wait()

    def _find(self, request_id: str) -> SynthesisCall | None:
        return next((call for call in self._calls if call.job.terms.request_id == request_id), None)

    # Threads.

    async def text_splitter(self, message: pb.SynthesizeRequest, request: Request) -> TextSplitter:
        """Splitter for a text that is still being written. Raises VoiceNotFound, StorageError."""
        speech = self.speech
        budgets = await self._loop.run_in_executor(self._planner_thread, speech.planner.budgets, request)
        codes = filter(None, (base_code(message.language_code), *speech.defaults.languages))
        verbatim, most = message.text_handling == pb.VERBATIM, speech.defaults.synthesis.max_text_characters
        return TextSplitter(budgets, tuple(codes), most=most, verbatim=verbatim)

    async def cut(self, splitter: TextSplitter) -> str | None:
        """Next piece of a text that is still being written, as `TextSplitter.cut`."""
        if splitter.waiting > SHORT_TEXT:
            return await self._loop.run_in_executor(self._planner_thread, splitter.cut)
        await asyncio.sleep(0)  # a message may have many pieces
        return splitter.cut()

    def close(self) -> None:
        self._planner_thread.shutdown(wait=False, cancel_futures=True)
        self.workers.close()

"""Requests of every service: makes their wishes ready, has them admitted, and turns results into messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from appliance.audio.marking import mark_of
from appliance.audio.reply import AudioWorkers
from appliance.audio.tags import KEY
from appliance.config import ServerConfig
from appliance.errors import ApplianceError, DeadlineMissed, InvalidRequest, ReaderStalled
from appliance.request import SegmentAudio
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.call import Counters, Current, Health, SynthesisCall
from appliance.rpc.callers import current_call
from appliance.rpc.context import Context, current_task, remaining_s, send_metadata
from appliance.rpc.replies import timings_message, word_messages
from appliance.rpc.requests import wish_of
from appliance.rpc.roles import CallAccess
from appliance.rpc.turns import AT_ONCE, Turns, in_a_slice
from appliance.scheduler.job import Job, Result, State
from appliance.scheduler.workload import Clock
from appliance.speech.speech import Speech
from appliance.speech.wish import Wish
from appliance.speech.work import LOOKUP
from appliance.text.pieces.arriving import TextSplitter

T = TypeVar("T")
logger = logging.getLogger(__name__)

SYNTHESIZE = "/appliance.v1.Synthesizer/Synthesize"


class Speaking:
    """The calls of all services. Must be constructed on the event loop that serves it."""

    def __init__(
        self,
        current: Current,
        server: ServerConfig,
        counters: Counters,
        health: Health,
        clock: Clock = time.monotonic,
    ) -> None:
        self._current, self._server = current, server
        self._counters, self._health, self.clock = counters, health, clock
        self.session_idle_s = server.session_idle_s
        self._loop = asyncio.get_running_loop()
        self._calls: set[SynthesisCall] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._turns = Turns()
        self.workers = AudioWorkers()
        self.on_segment: Callable[[SynthesisCall, SegmentAudio], None] | None = None
        """Called on the event loop for each finished segment."""

    @property
    def speech(self) -> Speech:
        """Speech for new requests."""
        return self._current.speech

    def wish(self, message: pb.SynthesizeRequest, context: Context, *, stream: bool) -> Wish:
        """Wish of the current call's caller. Raises InvalidRequest, UnsupportedEncoding."""
        place, client = current_call(), context.peer()
        try:
            return wish_of(message, stream=stream, client=client, caller=place.caller.key, reach=place.reach)
        except ApplianceError as error:
            place.leave(place.held_bytes)
            _log_failure(message.request_id, client, message.voice, error)
            raise

    async def answer(
        self,
        message: pb.SynthesizeRequest,
        context: Context,
        reply_of: Callable[[pb.SynthesizeResponse], object] = lambda response: response,
    ) -> None:
        """Send the whole reply. The call stays open, and charged, until its reader has taken the reply."""
        async with self.call(self.wish(message, context, stream=False), context) as call:
            # The metadata reports the admission to a client that wants to send its next request after this
            # one.
            await self.begin(context)
            response = pb.SynthesizeResponse(audio=await call.whole_audio(), header=call.header())
            response.timings.CopyFrom(timings_message(call.finish()))
            response.words.extend(word_messages(call.words))
            await call.write(await self.workers.run(call.reply.samples, reply_of, response))

    async def begin(self, context: Context) -> None:
        """Send the initial metadata of a call with audio: the mark of synthetic speech. Raises Cancelled."""
        mark = mark_of(self.speech.audio.marked)
        await send_metadata(context, ((KEY, mark),) if mark else ())

    @asynccontextmanager
    async def call(self, wish: Wish, context: Context) -> AsyncIterator[SynthesisCall]:
        """Make a wish ready and admit it; end its job when the context exits.

        Raises Unavailable, DeadlineMissed, TooManyCalls if the caller holds too many bytes, and the errors of
        `SynthesisCall.make_ready`.
        """
        place = current_call()
        call = self._new_call(wish, context)
        self._calls.add(call)
        self._idle.clear()
        try:
            try:
                await self._turns.take(place.caller.usage, call.job.terms.line, call.make_ready())
            finally:
                place.leave(place.held_bytes)
            call.admitted = True
            call.job.timings.text_s = call.clock() - call.job.arrived
            # gRPC holds a whole reply in memory until its reader has taken it, which may never happen.
            with place.holding(call.audio_bytes, to_the_end=not wish.stream):
                yield call
        except (asyncio.CancelledError, ApplianceError) as caught:
            error = caught if isinstance(caught, ApplianceError) else call.ended_by
            _log_failure(wish.terms.request_id, wish.terms.client, wish.voice, error)
            self.speech.scheduler.queue.stop_playout(call.job)
            if error is None:
                raise
            raise error from caught.__cause__
        finally:
            self.speech.scheduler.queue.cancel(call.job)
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()

    def _new_call(self, wish: Wish, context: Context) -> SynthesisCall:
        """Make a call for a request, with a job for the scheduler.

        Raises DeadlineMissed if its time is over.
        """
        speech, server, terms = self.speech, self._server, wish.terms
        arrived, left_s = self.clock(), remaining_s(context)
        if left_s <= 0.0:
            raise DeadlineMissed.passed("before the request arrived")
        speech.scheduler.check_open(terms.key, is_taken=self.find(terms.key) is not None)
        results: asyncio.Queue[Result] = asyncio.Queue()
        job = Job(
            terms,
            # The callback has the queue but not the call, because watchers remember ended jobs.
            partial(self.deliver, terms.key, results),
            arrived,
            deadline=arrived + left_s,
            stream=wish.stream,
            buffer_s=server.stream_buffer_s if wish.stream else math.inf,
        )
        return SynthesisCall(
            context=context,
            clock=self.clock,
            task=current_task(),
            received_wish=wish,
            current=self._current,
            counters=self._counters,
            health=self._health,
            workers=self.workers,
            job=job,
            results=results,
            message_s=server.message_s,
        )

    def deliver(self, key: str, results: asyncio.Queue[Result], result: Result) -> None:
        """Move a result from the scheduler's thread to the event loop."""
        with contextlib.suppress(RuntimeError):  # a closed loop has no reader left
            self._loop.call_soon_threadsafe(self._arrive, key, results, result)

    def _arrive(self, key: str, results: asyncio.Queue[Result], result: Result) -> None:
        results.put_nowait(result)
        if self.on_segment is not None and isinstance(result, SegmentAudio) and (call := self.find(key)):
            self.on_segment(call, result)

    # Calls under way.

    @property
    def planning(self) -> int:
        """Number of calls that are not admitted yet."""
        return sum(not call.admitted for call in list(self._calls))

    @property
    def sending(self) -> int:
        """Number of calls with finished audio that their readers have not taken."""
        return sum(call.admitted and call.job.ended for call in list(self._calls))

    def cancel(self, request_id: str, why: ApplianceError) -> bool:
        """End a request of the caller, or of any caller if the token allows it, even if all of it is sent and
        sounds.

        Returns False if there is no such request.
        """
        reach = current_call().reach

        def is_it(job: Job) -> bool:
            return job.terms.request_id == request_id and reach in ("", job.terms.caller)

        calls = [call for call in self._calls if is_it(call.job)]
        for call in calls:
            call.end(why)
        return bool(calls or self.speech.scheduler.queue.end(lambda one: is_it(one.job), why))

    def end(self, key: str, why: ApplianceError) -> None:
        if (call := self.find(key)) is not None:
            call.end(why)

    def drop_revoked(self, access: CallAccess) -> None:
        """End each call whose token is no longer valid, unless it sounds already."""
        queue = self.speech.scheduler.queue
        for call in self._calls:
            try:
                access(SYNTHESIZE, call.context)
            except ApplianceError as why:
                if not call.admitted or queue.position_of(call.job)[0].state in (State.WAITING, State.HELD):
                    call.end(why)

    def drop_stalled(self, limit_s: float) -> None:
        """End each call whose reader has taken nothing for `limit_s`."""
        now = self.clock()
        for call in self._calls:
            if call.has_stalled(now, limit_s):
                call.end(ReaderStalled("the reader has taken no audio for too long"))

    async def idle(self) -> None:
        await self._idle.wait()

    def find(self, key: str) -> SynthesisCall | None:
        return next((call for call in self._calls if call.job.terms.key == key), None)

    # Threads.

    async def splitter(self, wish: Wish) -> TextSplitter:
        """Splitter for a text that arrives in pieces; see `Speech.splitter`."""
        return await self._in_turn(LOOKUP, partial(self.speech.splitter, wish))

    async def fit(self, splitter: TextSplitter, wish: Wish) -> None:
        """Set the splitter's voice to that of the first clause, if the language decides the voice."""
        if wish.is_by_language:
            with contextlib.suppress(ApplianceError):  # the clause itself will end with this error
                splitter.fit(await self._in_turn(LOOKUP, partial(self.speech.budgets, wish)))

    async def cut(self, splitter: TextSplitter) -> str | None:
        """Next piece of an unfinished text; see `TextSplitter.cut`."""
        await asyncio.sleep(0)  # a message may have many pieces
        # A cut reads only the text of one piece, even if more text waits.
        return await self._in_turn(min(splitter.waiting, AT_ONCE), splitter.cut)

    async def _in_turn(self, characters: int, act: Callable[[], T]) -> T:
        """Do work on this many characters when it is the current caller's turn; return the result."""
        return await self._turns.take(current_call().caller.usage, "", in_a_slice(characters, act))

    def close(self) -> None:
        self._turns.close()
        self.workers.close()


def _log_failure(request_id: str, client: str, voice: str, error: ApplianceError | None) -> None:
    reason: object = error or "the call was cancelled"
    if isinstance(error, InvalidRequest):
        reason = f"{error.field} is refused"  # the whole message may quote the text
    shown = repr(request_id)[1:-1]  # a refused id may have any length, and line breaks
    logger.info("request %.64s of %s, voice %.64r: %s", shown, client, voice, reason)

"""One Session call: turns clauses into requests while the client still writes the text."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from appliance.audio.words import TimedWord
from appliance.errors import ApplianceError, Cancelled, DeadlineMissed, InvalidRequest, UnsupportedEncoding
from appliance.request import AT_FIRST, Switch, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.call import SynthesisCall
from appliance.rpc.callers import current_call
from appliance.rpc.context import Context
from appliance.rpc.replies import timings_message, word_messages
from appliance.rpc.speaking import Speaking
from appliance.rpc.status import reason_of, rule_for
from appliance.speech.wish import Wish
from appliance.text.pieces.arriving import TextSplitter

MAX_CLAUSES_ADMITTED = 4
"""Clauses that the scheduler has at a time; later clauses wait here."""
MAX_WAITING = 64
"""Limit of waiting clauses and ends of utterances. At the limit, no message is read until one is sent."""
MAX_ID_CHARACTERS = 48
"""Longest id of a session. The ids of its requests extend it."""
REFUSED_FIELDS = ("merge_key", "supersede_key", "merge_text", "merge_count", "merge_count_is_total")
"""Fields by which a request replaces others of its channel."""


@dataclass(eq=False)
class SessionUtterance:
    """A text from its first piece to its flush."""

    number: int
    begun: float
    clauses: int = 0
    """Clauses that were cut from the text so far."""
    sequence: int = 0
    """Sequence number of the next audio message."""
    samples: int = 0
    """Samples sent so far."""
    first_audio: float | None = None
    timings: Timings = field(default_factory=Timings)
    words: list[TimedWord] = field(default_factory=list)
    calls: set[SynthesisCall] = field(default_factory=set)
    """Calls of clauses that are not finished."""
    error: ApplianceError | None = None
    """Reason why the utterance ends unspoken; None while it is spoken."""
    begin: Switch = AT_FIRST
    """Voice and style in which the next clause begins."""
    unspoken: SynthesisCall | None = None
    """Last clause that has nothing to speak."""
    spoken: list[SynthesisCall] = field(default_factory=list)
    """Clauses so far, in order."""

    @property
    def failed(self) -> bool:
        return self.error is not None

    def fail(self, error: ApplianceError) -> None:
        """End the clauses, unless the utterance has failed already."""
        if self.error is None:
            self.error = error
            for call in self.calls:
                call.end(error)


class SessionCall:
    """Speaks a session's clauses in order, each as a separate request.

    Each clause and each end of an utterance is a task, which sends after the task before it.
    """

    def __init__(self, speaking: Speaking, context: Context, idle_s: float) -> None:
        """`idle_s`: seconds with nothing to read and nothing to speak after which the session ends."""
        self._speaking, self._context, self._idle_s = speaking, context, idle_s
        self._clock = speaking.clock
        self._last_active = self._clock()
        self._wish: Wish
        """Options of the session's clauses; set once there is a splitter."""
        self._splitter: TextSplitter | None = None
        self._utterances: dict[int, SessionUtterance] = {}
        self._current: SessionUtterance | None = None
        self._count = 0
        self._slots = asyncio.Semaphore(MAX_CLAUSES_ADMITTED)
        self._reading = asyncio.Lock()
        """Held until a clause is admitted, because the next clause begins with its voice tags."""
        self._last: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: list[asyncio.Task[None]] = []
        """Ended tasks whose results `serve` has not read yet; the reader may be one of them."""
        self._moved = asyncio.Event()
        """Set when a task has ended."""

    async def serve(self, messages: AsyncIterator[pb.SessionRequest]) -> None:
        """Serve until the client has closed its side and every clause is spoken.

        Raises InvalidRequest for a message out of order, UnsupportedEncoding, VoiceNotFound, StorageError,
        and DeadlineMissed if the session is idle for too long.
        """
        reading = asyncio.ensure_future(self._read(messages))
        reading.add_done_callback(self._end)
        try:
            while not reading.done() or self._tasks or self._ended:
                self._moved.clear()
                left_s = self._last_active + self._idle_s - self._clock()
                if not (self._ended or self._tasks or left_s > 0.0):
                    raise DeadlineMissed.idle(self._idle_s)
                if not self._ended:
                    await self._wait(None if self._tasks else left_s)
                while self._ended:
                    self._ended.pop(0).result()
        finally:
            for task in (reading, *self._tasks):
                task.cancel()
            await asyncio.gather(reading, *self._tasks, return_exceptions=True)

    async def _wait(self, limit_s: float | None) -> None:
        """Wait until a task has ended. (In Python 3.10, wait_for may swallow a cancellation.)"""
        moved = asyncio.ensure_future(self._moved.wait())
        try:
            await asyncio.wait((moved,), timeout=limit_s)
        finally:
            moved.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ended.append(task)
        self._last_active = self._clock()
        self._moved.set()

    # Messages.

    async def _read(self, messages: AsyncIterator[pb.SessionRequest]) -> None:
        """Handle the client's messages. Waits before the next one while too many clauses are unspoken."""
        async for message in messages:
            self._last_active = self._clock()
            kind = message.WhichOneof("message")
            if (self._splitter is None) != (kind == "configure"):
                raise InvalidRequest("configure", "must be in the first message, and in no other")
            if kind == "configure":
                await self._configure(message.configure)
            elif kind == "text" and self._splitter is not None:
                await self._add(self._splitter, message.text)
            elif kind == "flush":
                self._flush()
            elif kind == "cancel":
                self._cancel(message.cancel.utterance)
            while len(self._tasks) >= MAX_WAITING:
                self._moved.clear()
                await self._moved.wait()
        self._flush()

    async def _configure(self, message: pb.SynthesizeRequest) -> None:
        """Check the first message, and prepare the splitter."""
        _check_configuration(message)
        wish = self._speaking.wish(message, self._context, stream=True)
        terms = wish.terms
        self._wish = replace(wish, terms=replace(terms, channel=terms.channel or terms.request_id))
        self._splitter = await self._speaking.splitter(self._wish)
        # The metadata lets the client write on. A client whose message meets an ended call would lose its
        # status.
        await self._speaking.begin(self._context)

    async def _add(self, splitter: TextSplitter, text: str) -> None:
        """Add text to the current utterance, and speak each clause that is complete."""
        if self._current is None:
            self._count += 1
            self._current = SessionUtterance(self._count, self._clock())
            self._utterances[self._count] = self._current
        utterance = self._current
        if utterance.failed:
            return
        splitter.take(text)
        if splitter.is_too_long:
            utterance.fail(
                InvalidRequest("text", f"an utterance has {splitter.most} characters at most; flush")
            )
            splitter.begin()
        while not utterance.failed and (clause := await self._speaking.cut(splitter)) is not None:
            is_first = bool(clause) and not utterance.clauses
            self._speak(utterance, clause)
            if is_first:
                await self._speaking.fit(splitter, replace(self._wish, text=clause))

    def _flush(self) -> None:
        utterance, self._current = self._current, None
        if utterance is not None and self._splitter is not None:
            rest = self._splitter.rest()
            if not utterance.failed:
                self._speak(utterance, rest)
            self._start(self._finish(utterance, self._last))

    def _cancel(self, number: int) -> None:
        if not 1 <= number <= self._count:
            raise InvalidRequest("cancel.utterance", f"must be 1 to {self._count}, not {number}")
        if (utterance := self._utterances.get(number)) is not None:
            utterance.fail(Cancelled("cancelled by the session"))
        if self._current is not None and self._current.number == number:
            self._flush()

    # Clauses.

    def _speak(self, utterance: SessionUtterance, clause: str) -> None:
        """Start the request of one clause, unless the clause is invisible."""
        # The service refuses invisible text. The front end decides whether any other clause is spoken.
        if not any(character.isprintable() and not character.isspace() for character in clause):
            return
        utterance.clauses += 1
        further = f"-{utterance.clauses}" * (utterance.clauses > 1)
        request_id = f"{self._wish.terms.request_id}.{utterance.number}{further}"
        self._start(self._serve_clause(utterance, request_id, clause, self._last))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._last = asyncio.ensure_future(work)
        self._tasks.add(self._last)
        self._last.add_done_callback(self._end)

    async def _serve_clause(
        self, utterance: SessionUtterance, request_id: str, clause: str, before: asyncio.Task[None] | None
    ) -> None:
        """Admit a clause at once; send it after `before`. In any case, do not end before that task."""
        async with self._slots:
            try:
                if not utterance.failed:
                    await self._speak_clause(utterance, request_id, clause, before)
            except ApplianceError as error:
                utterance.fail(error)
            # The tasks after this one, up to the utterance's end, wait for this one alone.
            await _ended(before)

    async def _speak_clause(
        self, utterance: SessionUtterance, request_id: str, clause: str, before: asyncio.Task[None] | None
    ) -> None:
        """Speak one clause, after the clause `before` has ended. Clauses are planned in order."""
        async with AsyncExitStack() as stack:
            async with self._reading:
                terms = replace(self._wish.terms, request_id=request_id)
                goes_on = bool(utterance.spoken)
                wish = replace(self._wish, terms=terms, text=clause, begin=utterance.begin, goes_on=goes_on)
                call = await stack.enter_async_context(self._speaking.call(wish, self._context))
                utterance.begin = call.request.last
            if call.is_empty:
                utterance.unspoken = call
                return
            if utterance.error is not None:  # the utterance failed while the clause was planned
                return
            utterance.calls.add(call)
            utterance.spoken.append(call)
            try:
                await _ended(before)
                await self._send(utterance, call, clause)
            finally:
                utterance.calls.discard(call)

    async def _send(self, utterance: SessionUtterance, call: SynthesisCall, clause: str) -> None:
        """Send a clause's audio. Numbers and times count from the beginning of the utterance."""
        number = utterance.number
        # Times of words are relative to the utterance, like numbers of samples and segments.
        before = utterance.timings.audio_s, utterance.timings.segments
        header = call.header(*before)
        header.written = clause
        await call.write(pb.SessionResponse(utterance=number, header=header))
        async for audio, samples in call.audio():
            audio.sequence, audio.sample_offset = utterance.sequence, utterance.samples
            audio.segment = utterance.timings.segments
            if utterance.first_audio is None:
                utterance.first_audio = self._clock()
            await call.write(pb.SessionResponse(utterance=number, audio=audio), samples)
            utterance.sequence += 1
            utterance.samples += samples
        utterance.words += [word.moved(*before) for word in call.words]
        utterance.timings = _sum(utterance.timings, call.finish(with_trailers=False))

    async def _finish(self, utterance: SessionUtterance, before: asyncio.Task[None] | None) -> None:
        """Send the end of an utterance, or its error."""
        await _ended(before)
        response = pb.SessionResponse(utterance=utterance.number)
        heard_characters = sum(call.heard_characters for call in utterance.spoken)
        if (error := utterance.error) is not None:
            response.error.code = rule_for(error).code.value[0]
            response.error.message, response.error.reason = str(error), reason_of(type(error))
            response.error.heard_characters = heard_characters
        else:
            timings = utterance.timings
            if utterance.unspoken is not None and not timings.segments:
                header = utterance.unspoken.header()
                header.written = utterance.unspoken.wish.text
                utterance.unspoken.finish(with_trailers=False)
                await current_call().send(pb.SessionResponse(utterance=utterance.number, header=header))
            if utterance.first_audio is not None:
                timings.first_audio_s = utterance.first_audio - utterance.begun
            timings.total_s = self._clock() - utterance.begun
            response.end.samples, response.end.heard_characters = utterance.samples, heard_characters
            response.end.timings.CopyFrom(timings_message(timings))
            response.end.words.extend(word_messages(utterance.words))
        del self._utterances[utterance.number]
        played = (
            -math.inf if utterance.first_audio is None else utterance.first_audio + utterance.timings.audio_s
        )
        await current_call().send(response, played)


def _check_configuration(message: pb.SynthesizeRequest) -> None:
    """Raise InvalidRequest or UnsupportedEncoding if a session cannot have these options."""
    refused = {
        "text": (message.text, "must be empty; text comes in messages of its own"),
        **{name: (getattr(message, name), "has no meaning in a session") for name in REFUSED_FIELDS},
        "text_handling": (
            message.text_handling == pb.SSML,
            "must be CHAT or VERBATIM: SSML is read as a whole",
        ),
        "playout": (message.playout == pb.OVERLAP, "must be SERIAL: utterances follow one another"),
        "request_id": (
            len(message.request_id) > MAX_ID_CHARACTERS,
            f"has at most {MAX_ID_CHARACTERS} characters in a session",
        ),
    }
    for name, (is_wrong, reason) in refused.items():
        if is_wrong:
            raise InvalidRequest(f"configure.{name}", reason)
    if message.audio_config.encoding not in (pb.AUDIO_ENCODING_UNSPECIFIED, pb.PCM16):
        raise UnsupportedEncoding("a session sends PCM16, which needs no header")


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await asyncio.wait([task])


def _sum(a: Timings, b: Timings) -> Timings:
    """Sum of two clauses' times. `_finish` sets the times that an utterance has as a whole."""
    both = {name: value + getattr(b, name) for name, value in vars(a).items()}
    return Timings(**{**both, "nfe": b.nfe})

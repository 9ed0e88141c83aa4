"""One Session call: clauses of a text become requests while the rest of it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from appliance.errors import ApplianceError, Cancelled, DeadlineMissed, InvalidRequest, UnsupportedEncoding
from appliance.job import Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.requests import request_id_of, request_of, timings_of, words_of
from appliance.rpc.status import reason_of, rule_for
from appliance.text.written import Written
from appliance.words import Word

if TYPE_CHECKING:
    from appliance.rpc.synthesizer import Call, SynthesizerService

Context = grpc.aio.ServicerContext[Any, Any]

ADMITTED = 4
"""Clauses that are with the scheduler at a time; later ones wait here."""
MAX_NAME = 48
"""Characters of a session's id, which its requests' ids begin with."""
NOT_HERE = ("merge_key", "supersede_key", "merge_text", "merge_count")
"""Fields that say how a request stands to others of its channel; in a session one follows the other."""


@dataclass(eq=False)
class Utterance:
    """A text from its first piece to its flush."""

    number: int
    begun: float
    characters: int = 0
    clauses: int = 0
    sequence: int = 0
    samples: int = 0
    first_audio: float | None = None
    timings: Timings = field(default_factory=Timings)
    words: list[Word] = field(default_factory=list)
    calls: set[Call] = field(default_factory=set)
    error: ApplianceError | None = None
    """Why it ends before it is spoken."""

    def failed(self) -> bool:
        """True if it has such an error."""
        return self.error is not None


class Conversation:
    """Reads a session's messages and speaks its clauses in order, each as a request of its own."""

    def __init__(self, service: SynthesizerService, context: Context, idle_s: float) -> None:
        """`idle_s`: seconds without a message and without anything to say, after which it ends."""
        self._service, self._context, self._idle_s = service, context, idle_s
        self._clock = service.speech.clock
        self._busy = self._clock()  # when it last was
        self._configured = pb.SynthesizeRequest()
        self._written: Written | None = None
        self._utterances: dict[int, Utterance] = {}
        self._current: Utterance | None = None
        self._count = 0
        self._places = asyncio.Semaphore(ADMITTED)
        self._last: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def hold(self, messages: AsyncIterator[pb.SessionRequest]) -> None:
        """Serve until the client has closed its side and all has been spoken.

        Raises InvalidRequest for a message out of place, UnsupportedEncoding, VoiceNotFound, StorageError,
        DeadlineMissed when nothing comes.
        """
        reading = asyncio.ensure_future(self._read(messages))
        try:
            while not reading.done() or self._tasks:
                waits = {reading, *self._tasks} if not reading.done() else self._tasks
                left_s = None if self._tasks else max(self._busy + self._idle_s - self._clock(), 0.0)
                done, _ = await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if self._tasks:
                    self._busy = self._clock()
                    self._tasks -= done
                elif not done and self._clock() >= self._busy + self._idle_s:
                    raise DeadlineMissed(f"nothing was written for {self._idle_s:g} s")
        finally:
            for task in (reading, *self._tasks):
                task.cancel()
            await asyncio.gather(reading, *self._tasks, return_exceptions=True)

    async def _read(self, messages: AsyncIterator[pb.SessionRequest]) -> None:
        async for message in messages:
            self._busy = self._clock()
            kind = message.WhichOneof("message")
            if (self._written is None) != (kind == "configure"):
                reason = "must be the first message, and no other"
                raise InvalidRequest("configure", reason)
            if kind == "configure":
                await self._configure(message.configure)
            elif kind == "text":
                self._add(message.text)
            elif kind == "flush":
                self._flush()
            elif kind == "cancel":
                self._cancel(message.cancel.utterance)
        self._flush()

    async def _configure(self, message: pb.SynthesizeRequest) -> None:
        if message.text:
            raise InvalidRequest("configure.text", "must be empty; text comes in messages of its own")
        for name in NOT_HERE:
            if getattr(message, name):
                raise InvalidRequest(f"configure.{name}", "has no meaning in a session")
        if message.text_handling == pb.SSML:
            raise InvalidRequest(
                "configure.text_handling", "must be CHAT or VERBATIM: SSML is read as a whole"
            )
        if message.playout == pb.OVERLAP:
            raise InvalidRequest("configure.playout", "must be SERIAL: utterances follow one another")
        if message.audio_config.encoding not in (pb.AUDIO_ENCODING_UNSPECIFIED, pb.PCM16):
            raise UnsupportedEncoding("a session sends PCM16, which needs no header")
        if len(message.request_id) > MAX_NAME:
            raise InvalidRequest("configure.request_id", f"has at most {MAX_NAME} characters in a session")
        self._configured.CopyFrom(message)
        self._configured.request_id = request_id_of(message)
        self._configured.channel = message.channel or self._configured.request_id
        probe = pb.SynthesizeRequest()
        probe.CopyFrom(self._configured)
        probe.text = "a"
        request = request_of(probe, self._service.speech.defaults, stream=True)
        self._written = await self._service.written(request)
        # Tells a client that writes on that it may: one whose message meets an ended call loses the status.
        await self._context.send_initial_metadata(())

    def _add(self, text: str) -> None:
        assert self._written is not None
        if self._current is None:
            self._count += 1
            self._current = Utterance(self._count, self._clock())
            self._utterances[self._count] = self._current
        utterance = self._current
        utterance.characters += len(text)
        most = self._service.speech.defaults.synthesis.max_text_characters
        if utterance.characters > most and utterance.error is None:
            self._end(utterance, InvalidRequest("text", f"an utterance has {most} characters at most; flush"))
        if utterance.error is None:
            for clause in self._written.add(text):
                self._say(utterance, clause)

    def _flush(self) -> None:
        utterance, self._current = self._current, None
        if self._written is not None and (rest := self._written.rest()) and utterance and not utterance.error:
            self._say(utterance, rest)
        if utterance is not None:
            self._follow(self._finish(utterance, self._last))

    def _cancel(self, number: int) -> None:
        if not 1 <= number <= self._count:
            raise InvalidRequest("cancel.utterance", f"must be 1 to {self._count}, not {number}")
        if (utterance := self._utterances.get(number)) is not None and utterance.error is None:
            self._end(utterance, Cancelled("cancelled by the session"))
        if self._current is not None and self._current.number == number:
            self._flush()

    def _end(self, utterance: Utterance, why: ApplianceError) -> None:
        utterance.error = why
        for call in utterance.calls:
            call.end(why)

    def _say(self, utterance: Utterance, clause: str) -> None:
        if not any(character.isalnum() for character in clause):
            return
        utterance.clauses += 1
        message = pb.SynthesizeRequest()
        message.CopyFrom(self._configured)
        message.text = clause
        message.request_id += f".{utterance.number}"
        if utterance.clauses > 1:
            message.request_id += f"-{utterance.clauses}"
        self._follow(self._speak(utterance, message, self._last))

    def _follow(self, work: Any) -> None:
        self._last = asyncio.ensure_future(work)
        self._tasks.add(self._last)

    async def _speak(
        self, utterance: Utterance, message: pb.SynthesizeRequest, before: asyncio.Task[None] | None
    ) -> None:
        """Admit a clause at once, and send it when what comes before it has been sent."""
        async with self._places:
            if utterance.failed():
                return
            try:
                asked = self._service.asked(message, self._context, stream=True)
                if asked.is_empty:
                    return
                async with self._service.call(message, self._context, stream=True, asked=asked) as call:
                    if utterance.failed():  # since it was planned
                        return
                    utterance.calls.add(call)
                    try:
                        await _after(before)
                        await self._send(utterance, call)
                    finally:
                        utterance.calls.discard(call)
            except ApplianceError as error:
                if utterance.error is None:
                    self._end(utterance, error)
                await _after(before)

    async def _send(self, utterance: Utterance, call: Call) -> None:
        service, number = self._service, utterance.number
        # Words count within the utterance, as samples and segments do.
        before = utterance.timings.audio_s, utterance.timings.segments
        header = pb.SessionResponse(utterance=number, header=service.header(call, *before))
        await service.write(call, self._context, header)
        async for audio, samples in service.audio(call):
            audio.sequence, audio.sample_offset = utterance.sequence, utterance.samples
            audio.segment = utterance.timings.segments
            if utterance.first_audio is None:
                utterance.first_audio = self._clock()
            answer = pb.SessionResponse(utterance=number, audio=audio)
            await service.write(call, self._context, answer, samples)
            utterance.sequence += 1
            utterance.samples += samples
        utterance.words += [word.moved(*before) for word in call.words]
        utterance.timings = _sum(utterance.timings, service.finish(call))

    async def _finish(self, utterance: Utterance, before: asyncio.Task[None] | None) -> None:
        """Say that an utterance has ended, and how."""
        await _after(before)
        answer = pb.SessionResponse(utterance=utterance.number)
        if (error := utterance.error) is not None:
            answer.error.code = rule_for(error).code.value[0]
            answer.error.message, answer.error.reason = str(error), reason_of(type(error))
        else:
            timings, now = utterance.timings, self._clock()
            if utterance.first_audio is not None:
                timings.first_audio_s = utterance.first_audio - utterance.begun
            timings.total_s = now - utterance.begun
            answer.end.samples = utterance.samples
            answer.end.timings.CopyFrom(timings_of(timings))
            answer.end.words.extend(words_of(utterance.words))
        del self._utterances[utterance.number]
        try:
            await self._context.write(answer)
        except grpc.aio.InternalError as gone:
            raise Cancelled("the caller went away") from gone


async def _after(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await asyncio.wait([task])


def _sum(a: Timings, b: Timings) -> Timings:
    return Timings(
        queue_s=a.queue_s + b.queue_s,
        text_s=a.text_s + b.text_s,
        condition_s=a.condition_s + b.condition_s,
        steps_s=a.steps_s + b.steps_s,
        vocoder_s=a.vocoder_s + b.vocoder_s,
        join_s=a.join_s + b.join_s,
        encode_s=a.encode_s + b.encode_s,
        audio_s=a.audio_s + b.audio_s,
        segments=a.segments + b.segments,
        nfe=b.nfe,
    )

"""Text that is spoken while it is written, over ElevenLabs' WebSockets.

Each context is a session of the daemon. /stream-input has one, and ends with it; /multi-stream-input has
several, by `context_id`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import numpy as np
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from appliance.audio.encode import Encoder
from appliance.audio.marking import mark_of
from appliance.client import (
    CallFailed,
    End,
    Event,
    Header,
    Options,
    Piece,
    Session,
)
from appliance.encodings import Encoding
from appliance.gateway.alignment import spoken, written
from appliance.gateway.body import Fields, invalid, json_object
from appliance.gateway.connection import SessionWriter, cancel, heard, running
from appliance.gateway.elevenlabs import format_of, options_of, settings_of
from appliance.gateway.refusals import Refusal, refusal_of
from appliance.gateway.speech import SILENCE_S, AudioFormat, mark_headers, voice_of
from appliance.options import AUTO

MAX_CONTEXTS = 8
"""Contexts of a connection that are spoken at a time: the sessions that the daemon gives one caller."""
MAX_CLOSING = 32
"""Contexts of a connection that are closed and still spoken, or wait for that."""
TURN_END_S = 0.1
"""Longest time from the flush to the closing of a context whose turn is over: clients send both at once."""
AT_ONCE_S = 0.01
"""Time from which on it is an interruption all the same, if its first sound came meanwhile or another context
begins with the next message."""
PASSES = 4
"""Passes of the event loop in which a message arrives that the client has sent already: one reads the
connection, the others hand it on."""
MAX_WAITING = 32_768
"""Characters of a context that wait for the daemon."""
MAX_NAME = 128
"""Characters of a context's id."""
INACTIVITY_S, LONGEST_INACTIVITY_S = 20.0, 180.0
"""Time without a message and with nothing to speak, after which a connection is closed."""
RESTART = 1012
"""Code with which uvicorn says that the gateway ends (RFC 6455's registry: service restart)."""
OK, ABNORMAL, REFUSED = 1000, 1006, 1008

FINAL = {"audio": None, "isFinal": True}

Send = Callable[[dict[str, Any]], Awaitable[None]]


async def stream_input(websocket: WebSocket) -> None:
    """WebSocket /v1/text-to-speech/{voice_id}/stream-input."""
    await _serve(websocket, is_multi=False)


async def multi_stream_input(websocket: WebSocket) -> None:
    """WebSocket /v1/text-to-speech/{voice_id}/multi-stream-input."""
    await _serve(websocket, is_multi=True)


async def _serve(websocket: WebSocket, *, is_multi: bool) -> None:
    fields = Fields(websocket.query_params)
    options = options_of(fields)
    audio_format = format_of(fields)
    inactivity_s = fields.number("inactivity_timeout", 1.0, LONGEST_INACTIVITY_S) or INACTIVITY_S
    # Utterances of a session follow one another.
    options["playout"] = None
    options["word_timings"], options["rate"] = True, audio_format.rate_hz
    voice = await voice_of(websocket, websocket.path_params["voice_id"])
    # A voice that is not there is refused before the connection is a WebSocket.
    if voice != AUTO:
        await websocket.app.state.client.voice(voice)
    mark = mark_of(websocket.app.state.config.audio.marked)
    headers = [(name.encode(), value.encode()) for name, value in mark_headers(mark).items()]
    await websocket.accept(headers=headers)
    connection = Connection(websocket, voice, audio_format, options, mark, is_multi=is_multi)
    with suppress(WebSocketDisconnect):
        try:
            await connection.serve(inactivity_s)
        finally:
            await connection.end()


class Connection:
    def __init__(
        self,
        websocket: WebSocket,
        voice: str,
        audio_format: AudioFormat,
        options: Options,
        mark: str,
        *,
        is_multi: bool,
    ) -> None:
        self._websocket, self._voice, self._mark = websocket, voice, mark
        self._format, self._options, self._is_multi = audio_format, options, is_multi
        self._contexts: dict[str, Context] = {}
        """Latest by id."""
        self._tasks: dict[asyncio.Task[None], Context] = {}
        self._places = asyncio.Semaphore(MAX_CONTEXTS)
        self._just_closed: Context | None = None
        """By the message before."""
        self._clock = ClientClock()

    async def serve(self, inactivity_s: float) -> None:
        """Take messages until the client leaves, or all that it has closed is spoken."""
        code, reason = OK, ""
        while code == OK:
            message = await self._next(inactivity_s)
            if message is None:
                if any(context.is_busy for context in self._tasks.values()):
                    continue
                code = REFUSED
                if not any(context.has_failed for context in self._contexts.values()):
                    reason = f"nothing was sent for {inactivity_s:g} s"
                    await self._tell_error("", reason, "input_timeout_exceeded")
            elif message["type"] == "websocket.disconnect":
                if message["code"] != RESTART:
                    raise WebSocketDisconnect(message["code"])
                code = RESTART
                for context in self._contexts.values():
                    context.finish()
            else:
                try:
                    raw = message.get("text") or message.get("bytes") or ""
                    if await self._take(Fields(json_object(raw, "a message"))):
                        break
                except Refusal as refusal:
                    code, reason = REFUSED, refusal.message
                    await self._tell_error("", refusal.message, refusal.code)
        if code == OK:
            await self._until_spoken()
            if not self._is_multi and any(context.has_failed for context in self._contexts.values()):
                code = REFUSED
        elif code == REFUSED:
            await self.end()
        elif self._tasks:
            await asyncio.wait(self._tasks)
        self._check_open()
        await self._websocket.close(code, reason[:100])

    async def _next(self, limit_s: float) -> Any:
        """Next message; None if none comes in time, or the only context has failed."""
        async with running(self._websocket.receive()) as (receiving,):
            waits = (receiving,) if self._is_multi else (receiving, *self._tasks)
            for _ in range(PASSES):
                if not receiving.done():
                    await asyncio.sleep(0)
            if not receiving.done():
                self._clock.start()
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            self._clock.stop()
            return receiving.result() if receiving.done() else None

    async def _until_spoken(self) -> None:
        """Wait until all contexts have ended, or the client leaves."""
        async with running(self._left()) as (leaving,):
            while self._tasks and not leaving.done():
                await asyncio.wait((leaving, *self._tasks), return_when=asyncio.FIRST_COMPLETED)

    async def _left(self) -> None:
        """Wait until the client leaves; what it says now has no effect."""
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            pass
        if message["code"] == RESTART:
            await asyncio.Event().wait()

    async def end(self) -> None:
        """Cancel what is still spoken."""
        await cancel([*self._tasks])

    async def _take(self, fields: Fields) -> bool:
        """Do what a message says; True if it is the last. Raises Refusal."""
        if not self._is_multi:
            context = self._write("", fields)
            is_last = bool(fields.get("text") == "")
            if is_last and context is not None:
                context.finish()
            return is_last
        name = fields.text("context_id") or fields.text("contextId") or ""
        if len(name) > MAX_NAME:
            raise invalid("context_id", f"has at most {MAX_NAME} characters")
        closed, self._just_closed = self._just_closed, None
        try:
            context = self._write(name, fields, closed)
            if fields.flag("close_context") and context is not None:
                context.close()
                self._just_closed = context
        except Refusal as refusal:
            # Others' contexts go on.
            await self._tell_error(name, refusal.message, refusal.code)
            if (context := self._contexts.get(name)) is None:
                await self._tell(name, FINAL)
            else:
                context.cancel()
        is_last = fields.flag("close_socket")
        if is_last:
            for context in self._contexts.values():
                if not context.is_closing:
                    context.end()
        return is_last

    def _write(self, name: str, fields: Fields, closed: Context | None = None) -> Context | None:
        """Say what a message says, in a context that it may begin. Raises Refusal."""
        text, context = fields.text("text"), self._contexts.get(name)
        if (context is None or context.is_closing) and (
            text or (text == "" and fields.get("voice_settings"))
        ):
            if closed is not None and closed.may_be_interrupted:
                closed.cancel()
            context = self._open(name, fields)
        if context is not None:
            if text:
                context.say(text)
            if fields.flag("flush"):
                context.flush()
        return context

    def _open(self, name: str, fields: Fields) -> Context:
        closing = sum(context.is_closing for context in self._tasks.values())
        if len(self._tasks) - closing >= MAX_CONTEXTS or closing >= MAX_CLOSING:
            message = f"{MAX_CONTEXTS} contexts may be open, and {MAX_CLOSING} closed that are still spoken"
            raise Refusal(429, message, code="too_many_calls")
        options: Options = {**self._options, **settings_of(fields)}
        state = self._websocket.app.state
        most = state.config.synthesis.max_text_characters
        session = partial(state.client.session, self._voice, **options)
        tell = partial(self._tell, name)
        encoder = Encoder(Encoding(self._format.encoding), self._format.rate_hz or 24_000, self._mark)
        context = Context(session, encoder, tell, most, self._places, self._clock)
        self._contexts[name] = context
        task = asyncio.ensure_future(context.run())
        self._tasks[task] = context

        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            if self._is_multi and self._contexts.get(name) is context:
                del self._contexts[name]

        task.add_done_callback(ended)
        return context

    async def _tell(self, name: str, told: dict[str, Any]) -> None:
        self._check_open()
        named = {"contextId": name} if self._is_multi else {}
        message = {**told, **named}
        # A clause may have thousands of characters.
        is_long = bool(told.get("alignment"))
        text = await asyncio.to_thread(json.dumps, message) if is_long else json.dumps(message)
        await self._websocket.send_text(text)

    def _check_open(self) -> None:
        """Raises WebSocketDisconnect after a failed attempt to send."""
        if self._websocket.application_state is not WebSocketState.CONNECTED:
            raise WebSocketDisconnect(ABNORMAL)

    async def _tell_error(self, name: str, message: str, code: str) -> None:
        await self._tell(name, {"error": message, "message": message, "code": code})


class ClientClock:
    """Time that a client lets pass: it stands while a message is worked on and the next is there already.

    So two messages that were sent at once are not apart, however busy this machine is.
    """

    def __init__(self) -> None:
        self._stood_s = 0.0
        """In all."""
        self._stopped_at: float | None = None

    def now(self) -> float:
        """Seconds, of which differences count."""
        now = asyncio.get_running_loop().time() if self._stopped_at is None else self._stopped_at
        return now - self._stood_s

    def start(self) -> None:
        if self._stopped_at is not None:
            self._stood_s += asyncio.get_running_loop().time() - self._stopped_at
            self._stopped_at = None

    def stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = asyncio.get_running_loop().time()


class Context:
    """One text: what is said is spoken in order, each flush ends an utterance."""

    def __init__(
        self,
        session: Callable[[], Session],
        encoder: Encoder,
        send: Send,
        most_characters: int,
        places: asyncio.Semaphore,
        clock: ClientClock,
    ) -> None:
        """`session` opens one with the first words, in one of `places`; `most_characters` of an utterance."""
        self._session, self._send, self._most = session, send, most_characters
        self._places, self._clock = places, clock
        self._encoder = encoder
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()
        """Texts, "" for a flush, None at the end."""
        self._waiting = 0
        self._begun = asyncio.Event()
        self._speaking: asyncio.Future[None] | None = None
        self._is_flushed, self._has_said = True, False
        self._flushed_at, self._heard_at = -math.inf, math.inf
        """Times of its last flush, and of its first audio."""
        self._in_flight = 0
        """Flushed utterances that have not ended."""
        self._base_s = 0.0
        """Audio of the utterances that have."""
        self._told_ms = 0
        """End of the alignments that were sent."""
        self.is_closing = self.has_failed = self._is_cancelled = False
        self.may_be_interrupted = False
        """True if it may have been closed for an interruption, although it is spoken to its end."""

    @property
    def is_busy(self) -> bool:
        return self._in_flight > 0

    def say(self, text: str) -> None:
        """Raises Refusal if too much waits already."""
        if not self._begun.is_set() and text.isspace():
            return
        if self._waiting + len(text) > MAX_WAITING:
            raise Refusal(429, f"over {MAX_WAITING} characters wait to be spoken", code="too_large")
        self._waiting += len(text)
        self._is_flushed, self._has_said = False, True
        self._texts.put_nowait(text)
        self._begun.set()

    def flush(self) -> None:
        self._flushed_at = self._clock.now()
        if not self._is_flushed:
            self._is_flushed = True
            self._in_flight += 1
            self._texts.put_nowait("")

    def finish(self) -> None:
        """Speak what was said, and end."""
        if not self.is_closing:
            self.flush()
            self.is_closing = True
            self._texts.put_nowait(None)
            self._begun.set()

    def close(self) -> None:
        """End at once, but speak what was flushed just now.

        Clients close contexts that are over, right after a flush, and contexts whose listener interrupts.
        """
        since_s = self._clock.now() - self._flushed_at
        limit_s = AT_ONCE_S if self._flushed_at < self._heard_at < math.inf else TURN_END_S
        if self.is_busy and (self.is_closing or since_s > limit_s):
            self.cancel()
        else:
            self.may_be_interrupted = since_s > AT_ONCE_S
            self.end()

    def end(self) -> None:
        """Speak what was flushed, and end; of a text in the middle, nothing more."""
        if self._is_flushed:
            self.finish()
        else:
            self.cancel()

    def cancel(self) -> None:
        self.is_closing = self._is_cancelled = True
        if self._speaking is not None:
            self._speaking.cancel()
        self._begun.set()

    async def run(self) -> None:
        """Speak until it is closed, and send its last message."""
        async with running(self._speak()) as (self._speaking,):
            await asyncio.wait((self._speaking,))
        self.is_closing = True
        error = None if self._speaking.cancelled() else self._speaking.exception()
        with suppress(WebSocketDisconnect):
            if isinstance(error, CallFailed):
                self.has_failed = True
                told = (await refusal_of(error)).message
                code = (error.reason or error.status).lower()
                await self._send({"error": told, "message": told, "code": code})
            elif error is not None:
                raise error
            await self._send(FINAL)

    async def _speak(self) -> None:
        await self._begun.wait()
        if self._is_cancelled or not self._has_said:
            return
        async with self._places:
            session = self._session()
            async with running(self._write(session)), aclosing(heard(session)) as events:
                async for event in events:
                    await self._take(event)
        await self._send_pcm16(b"", last=True)

    async def _write(self, session: Session) -> None:
        writer = SessionWriter(session, self._most)
        with suppress(CallFailed):  # the reader is told as well
            while (text := await self._texts.get()) is not None:
                self._waiting -= len(text)
                if text:
                    ended = await writer.say(text)  # meanwhile it may be flushed
                    self._in_flight += ended
                elif not await writer.flush():
                    self._in_flight -= 1
            await session.close()

    async def _take(self, event: Event) -> None:
        if isinstance(event, Header):
            if event.text:
                await self._send_audio(b"", await asyncio.to_thread(self._alignments, event))
        elif isinstance(event, Piece):
            await self._send_pcm16(event.data)
        elif isinstance(event, End):
            self._in_flight -= 1
            self._base_s += event.samples / self._encoder.rate_hz
            if not self._base_s:
                # Clients take a context without audio for a failure.
                self._base_s = SILENCE_S
                silence = np.zeros(round(SILENCE_S * self._encoder.rate_hz), "<i2")
                await self._send_pcm16(silence.tobytes())

    def _alignments(self, header: Header) -> dict[str, Any]:
        said = spoken(header).moved(self._base_s)
        as_written = written(header.written or header.text, header, said)
        since_ms, self._told_ms = self._told_ms, max(said.end_ms, self._told_ms)
        return {"alignment": as_written.in_ms(since_ms), "normalizedAlignment": said.in_ms(since_ms)}

    async def _send_pcm16(self, data: bytes, *, last: bool = False) -> None:
        """Send what the encoder makes of a session's audio; compressing would hold up the event loop."""
        push = partial(self._encoder.push_pcm16, np.frombuffer(data, "<i2"), last=last)
        if encoded := await asyncio.to_thread(push) if self._encoder.compresses else push():
            await self._send_audio(encoded, {})

    async def _send_audio(self, data: bytes, alignments: dict[str, Any]) -> None:
        if data:
            self._heard_at = min(self._heard_at, self._clock.now())
        nothing = {"alignment": None, "normalizedAlignment": None}
        audio = base64.b64encode(data).decode()
        await self._send({"audio": audio, "isFinal": None, **nothing, **alignments})


PATH = "/v1/text-to-speech/{voice_id}"
ROUTES: list[BaseRoute] = [
    WebSocketRoute(f"{PATH}/stream-input", stream_input),
    WebSocketRoute(f"{PATH}/multi-stream-input", multi_stream_input),
]

"""ElevenLabs' WebSockets, which speak a text while it is being written."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import numpy as np
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from appliance.audio.encode import Encoder
from appliance.audio.marking import mark_of
from appliance.client import CallFailed, End, Event, Header, Options, Piece, Session
from appliance.encodings import Encoding
from appliance.gateway.alignment import Untold, align_spoken, align_written
from appliance.gateway.authorisation import KEY_FOLLOWS, bare
from appliance.gateway.body import Fields, invalid, json_object, within
from appliance.gateway.connection import MAX_SESSIONS, SessionWriter, cancel, follow, running, session_places
from appliance.gateway.elevenlabs import format_of, options_of, settings_of
from appliance.gateway.refusals import Refusal, refusal_of
from appliance.gateway.speech import SILENCE_S, AudioFormat, mark_headers, voice_of
from appliance.options import AUTO

MAX_CONTEXTS = MAX_SESSIONS
"""Contexts that one connection may speak at a time."""
MAX_CLOSING = 32
"""Most closed contexts of a connection that still speak, or wait to speak."""
MAX_WAITING = 32_768
"""Most characters of a context that may wait for the daemon."""
MAX_NAME = 128
"""Longest id of a context, in characters."""
INACTIVITY_S, LONGEST_INACTIVITY_S = 20.0, 180.0
"""Default and longest time without a message, and with nothing to speak, before a connection is closed."""
RESTART = 1012
"""Close code with which uvicorn reports that the gateway ends (registry of RFC 6455: service restart)."""
OK, ABNORMAL, REFUSED = 1000, 1006, 1008

FINAL = {"audio": None, "isFinal": True, "heardCharacters": 0}

Send = Callable[[dict[str, Any]], Awaitable[None]]


async def stream_input(websocket: WebSocket) -> None:
    """WebSocket /v1/text-to-speech/{voice_id}/stream-input."""
    await _serve(websocket, is_multi=False)


async def multi_stream_input(websocket: WebSocket) -> None:
    """WebSocket /v1/text-to-speech/{voice_id}/multi-stream-input."""
    await _serve(websocket, is_multi=True)


async def _serve(websocket: WebSocket, *, is_multi: bool) -> None:
    """Accept the connection, with its key and options, and serve it."""
    fields = Fields(websocket.query_params)
    options = options_of(fields)
    audio_format = format_of(fields)
    inactivity_s = fields.number("inactivity_timeout", 1.0, LONGEST_INACTIVITY_S) or INACTIVITY_S
    # Utterances of a session always follow one another.
    options["playout"] = None
    options["word_timings"], options["rate"] = True, audio_format.rate_hz
    mark = mark_of(websocket.app.state.config.audio.marked)
    headers = [(name.encode(), value.encode()) for name, value in mark_headers(mark).items()]
    with suppress(WebSocketDisconnect):
        try:
            first = await _with_key(websocket, headers)
            voice = await _voice(websocket)
        except Refusal as refusal:
            if websocket.application_state is not WebSocketState.CONNECTED:
                raise
            await websocket.send_json(_error(refusal.message, refusal.code))
            await websocket.close(REFUSED, refusal.message[:100])
            return
        if not first:
            await websocket.accept(headers=headers)
        connection = Connection(websocket, voice, audio_format, options, mark, first, is_multi=is_multi)
        try:
            await connection.serve(inactivity_s)
        finally:
            await connection.end()


async def _with_key(websocket: WebSocket, headers: list[tuple[bytes, bytes]]) -> list[Any]:
    """First message of a client that has sent no token yet but may send it there; else none.

    Raises Refusal.
    """
    if (refusal_of_key := websocket.scope.get(KEY_FOLLOWS)) is None:
        return []
    await websocket.accept(headers=headers)
    with within(INACTIVITY_S):
        message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    fields = _fields(message)
    key = fields.text("xi_api_key") or bare(fields.text("authorization") or "")
    if (refused := refusal_of_key(key)) is not None:
        raise refused
    return [message]


async def _voice(websocket: WebSocket) -> str:
    """Voice that the address names. Raises Refusal, possibly before the connection is a WebSocket."""
    try:
        voice = await voice_of(websocket, websocket.path_params["voice_id"])
        if voice != AUTO:
            await websocket.app.state.client.voice(voice)
    except CallFailed as error:
        raise refusal_of(error) from error
    return voice


def _fields(message: Any) -> Fields:
    return Fields(json_object(message.get("text") or message.get("bytes") or "", "a message"))


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": message, "message": message, "code": code}


class Connection:
    """A WebSocket connection with its contexts."""

    def __init__(
        self,
        websocket: WebSocket,
        voice: str,
        audio_format: AudioFormat,
        options: Options,
        mark: str,
        ahead: list[Any],
        *,
        is_multi: bool,
    ) -> None:
        """`ahead` has the messages that were read before."""
        self._ahead = ahead
        self._websocket, self._voice, self._mark = websocket, voice, mark
        self._format, self._options, self._is_multi = audio_format, options, is_multi
        self._contexts: dict[str, Context] = {}
        """Latest context by id."""
        self._tasks: dict[asyncio.Task[None], Context] = {}
        self._places = session_places()

    async def serve(self, inactivity_s: float) -> None:
        """Handle messages until the client leaves, or the last closed context has ended."""
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
                    if await self._take(_fields(message)):
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
        """Next message; None if none comes in time, or if the only context has failed."""
        if self._ahead:
            return self._ahead.pop()
        async with running(self._websocket.receive()) as (receiving,):
            waits = (receiving,) if self._is_multi else (receiving, *self._tasks)
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            return receiving.result() if receiving.done() else None

    async def _until_spoken(self) -> None:
        """Wait until all contexts have ended, or the client leaves."""
        async with running(self._left()) as (leaving,):
            while self._tasks and not leaving.done():
                await asyncio.wait((leaving, *self._tasks), return_when=asyncio.FIRST_COMPLETED)

    async def _left(self) -> None:
        """Wait until the client leaves; drop its messages."""
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            pass
        if message["code"] == RESTART:
            await asyncio.Event().wait()

    async def end(self) -> None:
        """Cancel the contexts that still speak."""
        await cancel([*self._tasks])

    async def _take(self, fields: Fields) -> bool:
        """Handle a message. Returns True if it is the last one. Raises Refusal."""
        if not self._is_multi:
            context = self._write("", fields)
            is_last = bool(fields.get("text") == "")
            if is_last and context is not None:
                context.finish()
            return is_last
        name = fields.text("context_id") or fields.text("contextId") or ""
        if len(name) > MAX_NAME:
            raise invalid("context_id", f"has at most {MAX_NAME} characters")
        try:
            context = self._write(name, fields)
            if fields.flag("close_context") and context is not None:
                context.close()
        except Refusal as refusal:
            # The other contexts go on.
            await self._tell_error(name, refusal.message, refusal.code)
            if (context := self._contexts.get(name)) is None:
                await self._tell(name, FINAL)
            else:
                context.cancel()
        is_last = fields.flag("close_socket")
        if is_last:
            for context in self._contexts.values():
                if not context.is_closing:
                    context.close()
        return is_last

    def _write(self, name: str, fields: Fields) -> Context | None:
        """Write a message's text to its context, which the message may open. Raises Refusal."""
        text, context = fields.text("text"), self._contexts.get(name)
        if (context is None or context.is_closing) and (
            text or (text == "" and fields.get("voice_settings"))
        ):
            context = self._open(name, fields)
        if context is not None:
            if text:
                context.say(text)
            if fields.flag("flush"):
                context.flush()
        return context

    def _open(self, name: str, fields: Fields) -> Context:
        """Open a context, and start its task. Refuses if too many are open or closing."""
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
        context = Context(session, encoder, tell, most, self._places)
        self._contexts[name] = context
        task = asyncio.ensure_future(context.run())
        self._tasks[task] = context

        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            if self._is_multi and self._contexts.get(name) is context:
                del self._contexts[name]

        task.add_done_callback(ended)
        return context

    async def _tell(self, name: str, message: dict[str, Any]) -> None:
        self._check_open()
        named = {"contextId": name} if self._is_multi else {}
        await self._websocket.send_text(json.dumps({**message, **named}))

    def _check_open(self) -> None:
        """Raise WebSocketDisconnect if an earlier message could not be sent."""
        if self._websocket.application_state is not WebSocketState.CONNECTED:
            raise WebSocketDisconnect(ABNORMAL)

    async def _tell_error(self, name: str, message: str, code: str) -> None:
        await self._tell(name, _error(message, code))


class Context:
    """Text of one `context_id`. Each flush ends an utterance."""

    def __init__(
        self,
        session: Callable[[], Session],
        encoder: Encoder,
        send: Send,
        most_characters: int,
        places: asyncio.Semaphore,
    ) -> None:
        """`session` opens a session when the first words come. The session takes a place of `places`."""
        self._session, self._send, self._most = session, send, most_characters
        self._places, self._encoder = places, encoder
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()
        """Texts; "" for a flush; None at the end."""
        self._waiting = 0
        self._begun = asyncio.Event()
        self._speaking: asyncio.Future[None] | None = None
        self._is_flushed, self._has_said = True, False
        self._in_flight = 0
        """Flushed utterances that have not ended."""
        self._base_s = 0.0
        """Seconds of audio of the utterances that have ended."""
        self._samples = 0
        self._aligned = {"alignment": Untold(), "normalizedAlignment": Untold()}
        self._unheard = Untold()
        self._played_at = -math.inf
        """Time at which a player will have played all audio sent so far."""
        self.is_closing = self.has_failed = self._is_cancelled = False

    @property
    def is_busy(self) -> bool:
        return self._in_flight > 0

    def say(self, text: str) -> None:
        """Add a text. Raises Refusal if too much text waits already."""
        if not self._begun.is_set() and text.isspace():
            return
        if self._waiting + len(text) > MAX_WAITING:
            raise Refusal(429, f"over {MAX_WAITING} characters wait to be spoken", code="too_large")
        self._waiting += len(text)
        self._is_flushed, self._has_said = False, True
        self._texts.put_nowait(text)
        self._begun.set()

    def flush(self) -> None:
        if not self._is_flushed:
            self._is_flushed = True
            self._in_flight += 1
            self._texts.put_nowait("")

    def finish(self) -> None:
        """Flush, speak to the end, and end."""
        if not self.is_closing:
            self.flush()
            self.is_closing = True
            self._texts.put_nowait(None)
            self._begun.set()

    def close(self) -> None:
        """End after the flushed words. If there are unflushed words, or at a second call, end at once."""
        if not self._is_flushed or (self.is_closing and self.is_busy):
            self.cancel()
        else:
            self.finish()

    def cancel(self) -> None:
        self.is_closing = self._is_cancelled = True
        if self._speaking is not None:
            self._speaking.cancel()
        self._begun.set()

    async def run(self) -> None:
        """Speak until the context is closed, and send its last message."""
        async with running(self._speak()) as (self._speaking,):
            await asyncio.wait((self._speaking,))
        self.is_closing = True
        error = None if self._speaking.cancelled() else self._speaking.exception()
        with suppress(WebSocketDisconnect):
            if isinstance(error, CallFailed):
                self.has_failed = True
                refusal = refusal_of(error)
                await self._send(_error(refusal.message, refusal.code))
            elif error is not None:
                raise error
            # The player is assumed to have begun with the first audio.
            left_s = max(self._played_at - time.monotonic(), 0.0)
            over = self._unheard.take(self._samples / self._encoder.rate_hz - left_s)
            characters = len("".join(one.character for one in over).rstrip())
            await self._send({**FINAL, "heardCharacters": characters})

    async def _speak(self) -> None:
        """Speak the context's text from its first message to its close."""
        await self._begun.wait()
        if self._is_cancelled or not self._has_said:
            return
        async with self._places:
            session = self._session()
            async with running(self._write(session)), aclosing(follow(session)) as events:
                async for event in events:
                    await self._take(event)
        await self._send_pcm16(b"", last=True)

    async def _write(self, session: Session) -> None:
        writer = SessionWriter(session, self._most)
        with suppress(CallFailed):  # the reader gets the error too
            while (text := await self._texts.get()) is not None:
                self._waiting -= len(text)
                if text:
                    ended = await writer.say(text)  # a flush may come at the same time
                    self._in_flight += ended
                elif not await writer.flush():
                    self._in_flight -= 1
            await session.close()

    async def _take(self, event: Event) -> None:
        """Send the audio of an event. A context that ends without audio gets a short silence."""
        if isinstance(event, Header):
            if event.text:
                await asyncio.to_thread(self._align, event)
        elif isinstance(event, Piece):
            await self._send_pcm16(event.data)
        elif isinstance(event, End):
            self._in_flight -= 1
            self._base_s += event.samples / self._encoder.rate_hz
            await self._send_audio(b"", math.inf)
            if not self._base_s:
                # Clients consider a context without audio a failure.
                self._base_s = SILENCE_S
                silence = np.zeros(round(SILENCE_S * self._encoder.rate_hz), "<i2")
                await self._send_pcm16(silence.tobytes())

    def _align(self, header: Header) -> None:
        normalized = align_spoken(header, begin_s=self._base_s)
        self._aligned["normalizedAlignment"].add(normalized)
        own = align_written(header.written or header.text, header, normalized)
        self._aligned["alignment"].add(own)
        self._unheard.add(own)

    async def _send_pcm16(self, data: bytes, *, last: bool = False) -> None:
        """Encode a session's audio and send it. Codecs work on a thread."""
        samples = np.frombuffer(data, "<i2")
        self._samples += len(samples)
        self._played_at = max(self._played_at, time.monotonic()) + len(samples) / self._encoder.rate_hz
        push = partial(self._encoder.push_pcm16, samples, last=last)
        encoded = await asyncio.to_thread(push) if self._encoder.compresses else push()
        if encoded:
            await self._send_audio(encoded, self._samples / self._encoder.rate_hz)

    async def _send_audio(self, data: bytes, until_s: float) -> None:
        """Send audio, which may be empty, and the words that end by `until_s`."""
        alignments = {kind: untold.until(until_s) for kind, untold in self._aligned.items()}
        if data or any(alignments.values()):
            audio = base64.b64encode(data).decode()
            await self._send({"audio": audio, "isFinal": None, **alignments})


PATH = "/v1/text-to-speech/{voice_id}"
ROUTES: list[BaseRoute] = [
    WebSocketRoute(f"{PATH}/stream-input", stream_input),
    WebSocketRoute(f"{PATH}/multi-stream-input", multi_stream_input),
]

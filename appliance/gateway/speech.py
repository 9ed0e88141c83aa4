"""HTTP replies with speech, streamed or whole. If the client disconnects, its call ends."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote
from weakref import WeakValueDictionary

import numpy as np
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from appliance.audio.encode import as_file, encode
from appliance.audio.marking import mark_of
from appliance.audio.tags import KEY
from appliance.client import AsyncClient, CallFailed, Encoding, End, Event, Header, Options, Piece
from appliance.client.retries import HOLD_S
from appliance.encodings import Encoding as AudioEncoding
from appliance.gateway.body import COMMON_NAMES, Fields, shown
from appliance.gateway.connection import running
from appliance.gateway.refusals import REQUEST_ID, Refusal, refusal_of
from appliance.options import AUTO

logger = logging.getLogger(__name__)

SILENCE_S = 0.1
IGNORED = "x-ignored-parameters"
"""Header that names parameters without effect."""
MAX_NAMES, MAX_NAME = 16, 64
SPEAK_TIMEOUT_S = 300.0
AGAIN_S = 0.5
"""Seconds between two attempts to reach a daemon that does not answer."""
MOST_LISTED = 32
"""Voices that an error message lists."""
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)
"""OpenAI's names of voices, which clients send unless their user chooses a stored voice."""


@dataclass(frozen=True)
class AudioFormat:
    """Encoding of a reply, and its media type."""

    encoding: Encoding
    media_type: str
    rate_hz: int | None = None


@dataclass(frozen=True)
class SpeechRequest:
    """A request for speech, from any of the HTTP APIs."""

    text: str
    voice: str
    format: AudioFormat
    options: Options
    names: dict[str, str]
    """Field of the gRPC request → parameter of this API."""
    turn: asyncio.Lock
    """Lock of the request's channel, held until the daemon has admitted the request."""
    ignored: Sequence[str] = ()
    """Parameters without effect, for a header of the reply."""
    until: float = 0.0
    """Time (of `time.monotonic`) until which the request waits for a daemon that does not answer."""
    mark: str = ""
    """Mark of synthetic audio; "" if the audio has none."""

    @asynccontextmanager
    async def in_turn(self) -> AsyncIterator[dict[str, Any]]:
        """Arguments for the client's `speak` and `stream`, once earlier requests of the channel are admitted.

        The deadline includes the wait.
        """
        await self.turn.acquire()
        with ExitStack() as turn:
            turn.callback(self.turn.release)
            yield {
                **{"text": self.text, "voice": self.voice, **self.options},
                **{"encoding": self.format.encoding, "rate": self.format.rate_hz},
                "timeout": SPEAK_TIMEOUT_S + (self.options.get("queue_timeout") or 0.0),
                "hold_s": max(self.until - time.monotonic(), 0.0),
                "on_admitted": turn.close,
            }

    @property
    def headers(self) -> dict[str, str]:
        headers = {"x-accel-buffering": "no", REQUEST_ID: quote(self.options["request_id"] or "")}
        if self.ignored:
            headers[IGNORED] = ", ".join(quote(name[:MAX_NAME]) for name in self.ignored[:MAX_NAMES])
        return headers

    @property
    def audio_headers(self) -> dict[str, str]:
        """Headers of a reply that has audio."""
        return {**self.headers, **mark_headers(self.mark)}

    def silence(self) -> bytes:
        """A short silent file, for a text with nothing to speak."""
        rate_hz = self.format.rate_hz or 24_000
        samples = np.zeros(round(SILENCE_S * rate_hz), np.float32)
        return encode(samples, AudioEncoding(self.format.encoding), rate_hz, self.mark)

    def refusal(self, error: CallFailed) -> Refusal:
        return refusal_of(error, {**COMMON_NAMES, **self.names})


class Framing:
    """Format of a streamed reply's body around its audio. This class sends the audio alone."""

    media_type = ""
    """Media type of the body; "" stands for the audio's."""

    def begin(self, header: Header) -> None:
        """Read the header, which comes before the audio. Runs on a thread, because a text may be long."""

    def piece(self, piece: Piece) -> bytes:
        return piece.data

    def end(self, end: End) -> bytes:
        """Bytes after the audio."""
        return b""


class WholeFile(Framing):
    """Streamed WAV or FLAC, sent as one file with its length in its header."""

    def __init__(self) -> None:
        self._stream = bytearray()

    def piece(self, piece: Piece) -> bytes:
        self._stream += piece.data
        return b""

    def end(self, end: End) -> bytes:
        return as_file(bytes(self._stream), end.samples)


class Spoken(Response):
    """Sends speech while the engine speaks it, or a whole reply with its length.

    The status is sent with the first audio. A later error breaks the connection, so no client mistakes half
    of a reply for the whole.
    """

    def __init__(
        self,
        client: AsyncClient,
        speech: SpeechRequest,
        framing: Framing | None = None,
        *,
        is_streamed: bool = True,
    ) -> None:
        self._client, self._speech = client, speech
        self._framing, self._is_streamed = framing or Framing(), is_streamed
        media_type = self._framing.media_type or speech.format.media_type
        super().__init__(media_type=media_type, headers=speech.audio_headers)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._send(scope, receive, send))

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply. An error before the first byte is a refusal; a later one cuts the reply off."""
        is_begun, whole = False, b""
        try:
            async with aclosing(self._body()) as body:
                async for part in body:
                    if not self._is_streamed:
                        whole += part
                        continue
                    if not is_begun:
                        is_begun = True
                        await self._begin(send)
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except CallFailed as error:
            if is_begun:
                # uvicorn closes the connection of a reply whose body is incomplete.
                logger.info("a reply is cut off: %s", error.reason or error.status)
                return
            refusal = self._speech.refusal(error)
            await refusal.response(scope, self._speech.headers)(scope, receive, send)
            return
        if not is_begun:
            self.headers["content-length"] = str(len(whole))
            await self._begin(send)
        await send({"type": "http.response.body", "body": whole, "more_body": False})

    async def _body(self) -> AsyncGenerator[bytes, None]:
        """Bytes of the reply's file, in its framing. A reply without audio gets a short silence."""
        framing, end, is_silent = self._framing, End(), True
        async with aclosing(self._events()) as events:
            async for event in events:
                if isinstance(event, Header):
                    await asyncio.to_thread(framing.begin, event)
                elif isinstance(event, End):
                    end = event
                elif event.data:
                    if event.rest_is_made and self._is_streamed and self._has_length:
                        framing, self._is_streamed = WholeFile(), False
                    is_silent = False
                    yield framing.piece(event)
        if is_silent:
            framing = self._framing
            yield framing.piece(Piece(self._speech.silence(), 0, 0, 0.0))
        yield await asyncio.to_thread(framing.end, end)

    @property
    def _has_length(self) -> bool:
        """True for a file whose header states its length."""
        return type(self._framing) is Framing and self._speech.format.encoding in ("wav", "flac")

    async def _events(self) -> AsyncGenerator[Event, None]:
        """Events of the reply: of a stream, or of a whole reply in one piece."""
        if is_blank(self._speech.text):
            return
        async with self._speech.in_turn() as arguments:
            if not self._is_streamed:
                reply = await self._client.speak(**arguments)
                yield reply.header
                yield Piece(b"" if reply.header.skipped_reason else reply.audio, 0, 0, 0.0)
                yield End(words=reply.words)
                return
            async with aclosing(cast("Any", aiter(self._client.stream(**arguments)))) as events:
                async for event in events:
                    yield event

    async def _begin(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


def is_streamed(fields: Fields, default: bool = True) -> bool:
    """Value of `stream`. False asks for a file with its length."""
    return default if fields.get("stream") is None else fields.flag("stream")


def mark_headers(mark: str) -> dict[str, str]:
    """Headers that mark synthetic audio; none for an empty `mark`."""
    return {KEY: mark} if mark else {}


def is_blank(text: str) -> bool:
    """True for an invisible text, which the daemon would refuse."""
    return not any(letter.isprintable() and not letter.isspace() for letter in text)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or cancel it when the client disconnects."""
    async with running(work, _disconnected(receive)) as (working, disconnect):
        await asyncio.wait((working, disconnect), return_when=asyncio.FIRST_COMPLETED)
    if not working.cancelled():
        working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def speech_of(
    request: HTTPConnection,
    text: str,
    voice: str,
    audio_format: AudioFormat,
    options: Options,
    names: dict[str, str],
    ignored: Sequence[str],
) -> SpeechRequest:
    """Look up the voice; earlier requests of the channel come first. Raises Refusal, CallFailed."""
    channel = options.get("channel") if options.get("playout") != "overlap" else ""
    turns: WeakValueDictionary[str, asyncio.Lock] = request.app.state.turns
    turn = turns.setdefault(channel, asyncio.Lock()) if channel else asyncio.Lock()
    # An error of a refused request names it too.
    request.scope[REQUEST_ID] = options["request_id"] = options.get("request_id") or secrets.token_hex(6)
    until = 0.0
    if options.get("channel"):
        patience_s = options.get("queue_timeout")
        until = time.monotonic() + (HOLD_S if patience_s is None else patience_s)
    async with turn:
        voice = await _awaited_voice(request, voice, until)
    mark = mark_of(request.app.state.config.audio.marked)
    return SpeechRequest(text, voice, audio_format, options, names, turn, ignored, until, mark)


async def _awaited_voice(request: HTTPConnection, name: str, until: float) -> str:
    """Call `voice_of`; until the time `until`, wait for a daemon that does not answer."""
    while True:
        try:
            return await voice_of(request, name)
        except CallFailed as failure:
            if failure.status != "UNAVAILABLE" or time.monotonic() + AGAIN_S > until:
                raise
        await asyncio.sleep(AGAIN_S)


async def voice_of(request: HTTPConnection, name: str) -> str:
    """Stored voice that an API's name stands for, in any case; "" names none. Raises Refusal, CallFailed."""
    whole, client = request.app.state.config, request.app.state.client
    config = whole.gateway
    # Stored names are lower case, and clients show them in any case.
    name = name.lower()
    for other, voice in config.voices.items():
        if other.lower() == name:
            return str(voice)
    if name and name not in OPENAI_VOICES:
        return name
    stored = [voice.name async for voice in client.voices()]
    if name in stored:
        return name
    if config.voice or whole.text.languages:
        return str(config.voice or AUTO)
    if len(stored) == 1:
        return str(stored[0])
    raise not_stored(name, stored)


def not_stored(name: str, stored: Sequence[str]) -> Refusal:
    """Refusal of an unknown or missing name of a voice. It lists the stored voices."""
    message = f"no voice is stored under the name {shown(name)}" if name else "a voice has to be named"
    more = ", …" if len(stored) > MOST_LISTED else ""
    choice = f"those here are {', '.join(stored[:MOST_LISTED])}{more}" if stored else "none is stored"
    return Refusal(
        404 if name else 400,
        f"voice: {message}; {choice} (gateway.voice and gateway.voices map names)",
        code="voice_not_found",
        param="voice",
    )

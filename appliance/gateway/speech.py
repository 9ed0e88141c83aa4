"""Speech as HTTP replies: whole, or sent while it is made. A client that goes away ends its call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from appliance.audio.encode import encode
from appliance.client import AsyncClient, CallFailed, Encoding, Event, Header, Options, Piece
from appliance.gateway.failures import Refusal, refusal
from appliance.gateway.fields import CALLED
from appliance.job import Encoding as Samples

logger = logging.getLogger(__name__)

SILENCE_S = 0.1
SPEAK_S = 300.0
OPENAIS_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)
"""Which clients send that know no others."""


@dataclass(frozen=True)
class Form:
    """A form of audio: what gRPC calls it, HTTP's media type, and its rate where the API fixes one."""

    encoding: Encoding
    media_type: str
    rate_hz: int | None = None


@dataclass(frozen=True)
class Wanted:
    """A text and how it is to be spoken."""

    text: str
    voice: str
    form: Form
    options: Options
    names: dict[str, str]
    """Fields of the gRPC request → parameters of this API."""

    @property
    def is_blank(self) -> bool:
        """True if there is nothing to see in it, which the daemon would call a mistake."""
        return not any(letter.isprintable() and not letter.isspace() for letter in self.text)

    @property
    def arguments(self) -> Options:
        """Keyword arguments for the client."""
        return {**self.options, "encoding": self.form.encoding, "rate": self.form.rate_hz}

    def silence(self) -> bytes:
        """Reply to a text with nothing to say: a short file in its form."""
        rate_hz = self.form.rate_hz or 24_000
        samples = np.zeros(round(SILENCE_S * rate_hz), np.float32)
        return encode(samples, Samples(self.form.encoding), rate_hz)

    def refusal(self, error: CallFailed) -> Refusal:
        """The answer where its call fails."""
        return refusal(error, {**CALLED, **self.names})


class Reply(Response):
    """Sends speech as it is made. The status waits for the first sound: what fails before has its own.

    What fails later breaks the connection, so that no client takes half of a reply for all of it.
    """

    def __init__(
        self,
        client: AsyncClient,
        wanted: Wanted,
        *,
        media_type: str = "",
        frame: Callable[[bytes], bytes] = bytes,
        last: bytes = b"",
    ) -> None:
        """`frame` wraps each piece of audio, `last` follows the audio."""
        super().__init__(media_type=media_type or wanted.form.media_type)
        del self.headers["content-length"]
        self._client, self._wanted, self._frame, self._last = client, wanted, frame, last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, lambda: self._send(scope, receive, send))

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted, is_begun = self._wanted, False
        try:
            async with aclosing(self._audio()) as audio:
                async for data in audio:
                    if not is_begun:
                        is_begun = True
                        await self._begin(send)
                    await _write(send, self._frame(data))
        except CallFailed as error:
            if not is_begun:
                await wanted.refusal(error).response(scope["path"])(scope, receive, send)
                return
            logger.info("a reply is cut off: %s", error.reason or error.status)
            # To return without an end makes uvicorn close the connection.
            return
        if not is_begun:
            await self._begin(send)
            await _write(send, self._frame(wanted.silence()))
        await send({"type": "http.response.body", "body": self._last, "more_body": False})

    async def _audio(self) -> AsyncGenerator[bytes, None]:
        wanted = self._wanted
        if wanted.is_blank:
            return
        stream = self._client.stream(wanted.text, wanted.voice, timeout=SPEAK_S, **wanted.arguments)
        async with aclosing(cast("AsyncGenerator[Event, None]", aiter(stream))) as events:
            async for event in events:
                if isinstance(event, Header):
                    self.headers["x-request-id"] = event.request_id
                elif isinstance(event, Piece) and event.data:
                    yield event.data

    async def _begin(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


class WholeReply(Response):
    """Sends speech in one piece, in a file that knows its length."""

    def __init__(self, client: AsyncClient, wanted: Wanted) -> None:
        super().__init__(media_type=wanted.form.media_type)
        self._client, self._wanted = client, wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, lambda: self._send(scope, receive, send))

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = self._wanted
        answer: Response
        try:
            audio = b"" if wanted.is_blank else await self._speak()
            answer = Response(audio or wanted.silence(), media_type=wanted.form.media_type)
        except CallFailed as error:
            answer = wanted.refusal(error).response(scope["path"])
        await answer(scope, receive, send)

    async def _speak(self) -> bytes:
        wanted = self._wanted
        reply = await self._client.speak(wanted.text, wanted.voice, timeout=SPEAK_S, **wanted.arguments)
        return b"" if reply.header.skipped_reason else reply.audio


async def while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work; cancel it when the client goes away."""
    # Not a task group: a call of grpc.aio ends with a CancelledError of its own, which that would pass on.
    working = asyncio.ensure_future(work())
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait((working, leaving))
    if not working.cancelled():
        working.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def voice_of(request: Request, asked: str) -> str:
    """The stored voice that a name of this API means. Raises Refusal, CallFailed."""
    config, client = request.app.state.config.gateway, request.app.state.client
    if asked in config.voices:
        return str(config.voices[asked])
    if asked and asked not in OPENAIS_VOICES:
        return asked
    stored = [voice.name async for voice in client.voices()]
    if asked in stored:
        return asked
    if config.voice:
        return str(config.voice)
    if len(stored) == 1:
        return str(stored[0])
    there = f"those here are {', '.join(stored)}" if stored else "none is stored"
    message = f"no voice is stored under the name {asked!r}" if asked else "a voice has to be named"
    raise Refusal(
        404 if asked else 400,
        f"voice: {message}; {there} (gateway.voice and gateway.voices in the configuration map names)",
        code="voice_not_found",
        param="voice",
    )


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})

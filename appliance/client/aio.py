"""The client for asyncio, and sessions, which speak a text while it is being written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import grpc

from appliance.client.calls import AsyncCalls
from appliance.client.connecting import InOrder
from appliance.client.connection import REACH_S, SPEAK_S, channel_metadata
from appliance.client.failures import CallFailed, grpc_failures
from appliance.client.messages import (
    Event,
    Heard,
    Reply,
    event_of,
    heard_of,
    streamed_reply,
    synthesize_request,
    whole_reply,
)
from appliance.client.retries import LOOK_S, Attempts
from appliance.options import Options
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.appliance_pb2 import QueueEvent, UtteranceError, Voice

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncClient(AsyncCalls):
    """Client for asyncio, with the methods of `Client`. Must be constructed inside its event loop."""

    _grpc = grpc.aio

    def _interceptors(self) -> Sequence[Any]:
        return (InOrder(lambda: self._connection.inner),)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    async def speak(
        self,
        text: str,
        voice: str,
        *,
        timeout: float | None = SPEAK_S,
        hold_s: float | None = None,
        on_admitted: Callable[[], object] = lambda: None,
        **options: Unpack[Options],
    ) -> Reply:
        """Speak a text. Before the first audio, wait up to `hold_s` for a daemon that does not answer.

        `on_admitted` is called, possibly more than once, when the daemon has admitted or refused the request.
        """
        method = self._synthesize
        attempts = self._attempts(method, text, voice, timeout, options, hold_s, on_admitted)
        try:
            while True:
                while attempts.must_wait():
                    await asyncio.sleep(LOOK_S)
                call = attempts.begin()
                try:
                    with grpc_failures(self.address):
                        metadata = await call.initial_metadata()
                        if not call.done():  # refused
                            attempts.admitted()
                        [response] = [message async for message in messages_of(call)]
                        return whole_reply(response, attempts.begun, metadata)
                except CallFailed as failure:
                    await asyncio.sleep(attempts.wait_s(failure))
                finally:
                    call.cancel()
        finally:
            attempts.admitted()

    def stream(
        self,
        text: str,
        voice: str,
        *,
        timeout: float | None = SPEAK_S,
        hold_s: float | None = None,
        on_admitted: Callable[[], object] = lambda: None,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """Stream a text; see `speak`. With `hold_s`, the Header comes together with the first audio."""
        method = self._synthesizer.StreamSynthesize
        return AsyncStream(self._attempts(method, text, voice, timeout, options, hold_s, on_admitted))

    def watch(self, channel: str = "") -> AsyncIterator[QueueEvent]:
        return self._follow(self._queue.WatchQueue, pb.WatchQueueRequest(channel=channel))

    def listen(self, channel: str = "") -> AsyncIterator[Heard]:
        return self._follow(self._queue.Listen, pb.ListenRequest(channel=channel), heard_of)

    def session(self, voice: str, **options: Unpack[Options]) -> Session:
        """Speak a text while it is being written. The options apply to all of its clauses."""
        configure = synthesize_request("", voice, options)
        call = self._synthesizer.Session(metadata=channel_metadata(configure.channel))
        return Session(call, configure, self.address)

    async def voices(self, *, timeout: float | None = REACH_S) -> AsyncIterator[Voice]:
        token = ""
        while True:
            page = await self._voices_page(token, timeout)
            for voice in page.voices:
                yield voice
            if not (token := page.next_page_token):
                return

    async def _follow(
        self, method: Any, request: Any, read: Callable[[Any], Any] = lambda event: event
    ) -> AsyncIterator[Any]:
        with grpc_failures(self.address):
            async with aclosing(messages_of(method(request))) as messages:
                async for response in messages:
                    yield read(response)


async def messages_of(call: Any) -> AsyncGenerator[Any, None]:
    """Yield the messages of a call. If the iteration ends early, the call is cancelled."""
    messages = aiter(call)
    try:
        while True:
            reading = asyncio.ensure_future(anext(messages, None))
            if (message := await asyncio.shield(reading)) is None:
                return
            yield message
    finally:
        # grpc.aio never frees a cancelled read. Only the end of the call ends it.
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)


class AsyncStream:
    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._call = None if attempts.must_wait() else attempts.begin()
        self._cancelled = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Event]:
        attempts = self._attempts
        try:
            while True:
                while self._call is None:
                    if attempts.must_wait():
                        await self._wait(LOOK_S)
                    else:
                        self._call = attempts.begin()
                try:
                    with grpc_failures(attempts.address):
                        async with aclosing(messages_of(self._call)) as messages:
                            async for message in messages:
                                for event in attempts.received(event_of(message)):
                                    yield event
                    return
                except CallFailed as failure:
                    wait_s = attempts.wait_s(failure)
                await self._wait(wait_s)
                self._call = None
        except asyncio.CancelledError:
            # grpc.aio raises the same error for a cancelled call and for a cancelled task.
            if not self._cancelled.is_set():
                raise
            raise CallFailed("CANCELLED", "cancelled by this client") from None
        finally:
            attempts.admitted()
            if self._call is not None:
                self._call.cancel()

    async def _wait(self, seconds: float) -> None:
        """Wait before the next attempt. Raises CancelledError if the stream is cancelled."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._cancelled.wait(), seconds)
            raise asyncio.CancelledError

    def cancel(self) -> None:
        """Cancel the call. Its iteration raises CallFailed with CANCELLED."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    async def reply(self) -> Reply:
        """Receive the whole stream."""
        events = [event async for event in self]
        metadata = await self._call.initial_metadata() if self._call is not None else ()
        return streamed_reply(events, self._attempts.begun, metadata)


class Session:
    """A text that is spoken while it is being written, in utterances numbered from 1.

        session = client.session("anna")
        async def write() -> None:
            async for words in model:
                await session.say(words)
            await session.close()
        async for utterance, event in session: ...

    The iteration yields the number of an utterance with each event: a Header for each clause, Pieces, and
    finally an End or an UtteranceError. Leaving the iteration early cancels the call.
    """

    def __init__(self, call: Any, configure: pb.SynthesizeRequest, address: str) -> None:
        self._call, self._configure, self._address = call, configure, address
        self._is_open = False
        self._writing = asyncio.Lock()

    async def say(self, text: str) -> None:
        """Append text to the current utterance."""
        await self._write(pb.SessionRequest(text=text))

    async def flush(self) -> None:
        """End the current utterance. The next text begins another."""
        await self._write(pb.SessionRequest(flush=pb.Flush()))

    async def cancel(self, utterance: int) -> None:
        """Cancel an utterance by its number. It may be the current one."""
        await self._write(pb.SessionRequest(cancel=pb.CancelUtterance(utterance=utterance)))

    async def close(self) -> None:
        """End the text. Everything written so far is still spoken."""
        with grpc_failures(self._address):
            await self._call.done_writing()

    async def _write(self, message: pb.SessionRequest) -> None:
        """Send a message. The first one configures the session. Raises CallFailed if the call has ended."""
        async with self._writing:
            try:
                if not self._is_open:
                    self._is_open = True
                    await self._call.write(pb.SessionRequest(configure=self._configure))
                    await self._call.initial_metadata()  # or the status of a refusal
                await self._call.write(message)
            except (asyncio.InvalidStateError, grpc.RpcError):  # the daemon has ended the call
                code, details = await self._call.code(), await self._call.details()
                raise CallFailed(code.name, details) from None

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event | UtteranceError]]:
        with grpc_failures(self._address):
            async with aclosing(messages_of(self._call)) as messages:
                async for message in messages:
                    number = message.utterance
                    yield number, message.error if message.HasField("error") else event_of(message)

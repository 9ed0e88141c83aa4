"""The gRPC client, blocking (`Client`) and for asyncio (`AsyncClient`), with the same methods.

    with Client() as client:
        wav = client.speak("Hello, chat.", "anna").audio
        for event in client.stream("Hello, chat.", "anna", priority="high"):
            if isinstance(event, Piece):
                play(event.data)

Methods raise CallFailed, and ValueError or OverflowError for an argument that the message cannot hold.
`timeout` is a call's deadline in seconds, at which the daemon stops working on it too; None sets none.

Calls that are about a channel carry its name as the metadata `x-channel`, by which a proxy in front of
several boxes finds the one that plays it. With `retries`, `speak` and `stream` are tried again when a box or
a proxy fails them before their first audio, under the same request id; never once there is audio.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args
from urllib.parse import quote

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from appliance.rpc import admin_pb2, admin_pb2_grpc, appliance_pb2_grpc
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.admin_pb2 import Status
from appliance.rpc.appliance_pb2 import (
    End,
    Header,
    ListUtterancesResponse,
    PausedChannels,
    QueueEvent,
    Timings,
    Utterance,
    UtteranceAudio,
    UtteranceBegin,
    UtteranceEnd,
    UtteranceError,
    Voice,
    WordTiming,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "CallFailed",
    "Client",
    "Credentials",
    "Encoding",
    "End",
    "Event",
    "Header",
    "Heard",
    "Operator",
    "Options",
    "PausedChannels",
    "Piece",
    "Priority",
    "QueueEvent",
    "Reply",
    "Session",
    "Status",
    "Stream",
    "Timings",
    "Utterance",
    "UtteranceAudio",
    "UtteranceBegin",
    "UtteranceEnd",
    "UtteranceError",
    "Voice",
    "WordTiming",
    "plain",
]

ADDRESS = "127.0.0.1:50051"
ADMIN_SOCKET = "/run/f5-appliance/admin.sock"
REACH_S = 5.0
"""Default timeout of calls that compute nothing."""
SPEAK_S = 300.0
"""Default timeout of a synthesis: above what the longest text takes at the speed of speech."""
UPLOAD_S = 60.0
SAMPLE_BYTES = 2
WAV_HEADER_BYTES = 44
DETAILS_KEY = "grpc-status-details-bin"
CHANNEL_KEY = "x-channel"
BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 2.0
"""Wait before the first retry, doubled with each one after it up to the second value."""
LOST = ("UNAVAILABLE", "UNKNOWN", "INTERNAL")
"""Statuses with which a proxy, or gRPC itself, ends a call whose box went away."""

Encoding = Literal["wav", "pcm16", "flac", "mp3", "ogg_opus", "mulaw"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)
Priority = Literal["bulk", "normal", "high", "realtime"]
PRIORITIES: tuple[str, ...] = get_args(Priority)


@dataclass(frozen=True)
class Credentials:
    """Server certificate, client certificate and token of a connection."""

    authority: bytes = b""
    """PEM of the certificate, or of its authority, that the box has to show; empty: plain text."""
    token: str = ""
    """Made by `appliance tokens add` on the box."""
    certificate: bytes = b""
    """PEM of a certificate of one's own with its key, where the box asks for one."""
    key: bytes = b""

    def connection(self, kind: Any, address: str, own_connection: bool) -> Any:
        """A channel of the module `kind` (grpc, grpc.aio), whose calls show the token."""
        options = _arguments(own_connection)
        if self.authority:
            shown = (self.key, self.certificate) if self.certificate else (None, None)
            channel = kind.secure_channel(
                address, grpc.ssl_channel_credentials(self.authority, *shown), options=options
            )
        else:
            channel = kind.insecure_channel(address, options=options)
        token = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        return _Labelling(channel, token)


Metadata = tuple[tuple[str, str], ...]


class _Labelling:
    """A channel whose calls carry the token and the name of the channel that they are about.

    gRPC's own call credentials would refuse to show a token over loopback.
    """

    def __init__(self, channel: Any, token: Metadata) -> None:
        self._token = token
        self.close = channel.close
        for kind in ("unary_unary", "unary_stream", "stream_stream"):
            setattr(self, kind, partial(self._make, getattr(channel, kind)))

    def _make(self, make: Any, *arguments: Any, **options: Any) -> Any:
        method = make(*arguments, **options)

        def call(*request: Any, metadata: Metadata = (), **options: Any) -> Any:
            about = _label_of(getattr(request[0], "channel", "")) if request else ()
            return method(*request, metadata=(*self._token, *about, *metadata), **options)

        return call


def _label_of(channel: str) -> Metadata:
    """Metadata of a call about a channel; what is not ASCII is percent-encoded."""
    return ((CHANNEL_KEY, quote(channel)),) if channel else ()


NO_CREDENTIALS = Credentials()


class Options(TypedDict, total=False):
    """Optional arguments of `speak` and `stream`. None or absent: the daemon's default."""

    encoding: Encoding | None
    """Default: WAV from `speak`, PCM16 from `stream`."""
    rate: int | None
    """Hz; default: the model's."""
    speed: float | None
    """Speaking rate, 0.25 to 4; above 1 is faster."""
    nfe: int | None
    """Function evaluations of the flow, 1 to 64."""
    seed: int | None
    guidance: float | None
    segmentation: Literal["upstream", "low_latency"] | None
    priority: Priority | None
    channel: str | None
    """Player of the reply; replies of one channel play one after the other."""
    user: str | None
    """Author of the message, for rate limits."""
    text_handling: Literal["chat", "verbatim", "ssml"] | None
    """Default: chat, whose links, emoji and numbers become words."""
    pronunciations: Mapping[str, str] | None
    """Words and how they are said, beside those of the voice."""
    max_spoken: float | None
    """Seconds of speech to which the text is cut, at a clause."""
    supersede: str | None
    """Abort this channel's waiting requests with the same key."""
    merge: str | None
    """Speak one request for all of this channel with the same key that still wait."""
    merge_count: int | None
    """Requests that this one counts for; default 1."""
    merge_text: str | None
    """Text of two or more, with "{count}"; default: the text and the number of times."""
    queue_timeout: float | None
    """Seconds by which the first sound may miss its target before the request is refused."""
    min_nfe: int | None
    """Accept a reply with as few steps as this rather than a refusal."""
    playout: Literal["serial", "overlap"] | None
    request_id: str | None
    """Name for `cancel`: 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-"."""
    word_timings: bool | None
    """Have `words` in header, end and reply."""


@dataclass(frozen=True)
class Piece:
    """One audio message of a stream."""

    data: bytes
    sample_offset: int
    """Samples of this reply that were encoded before `data`."""
    segment: int
    arrived: float
    """time.monotonic() when it was read."""


Event = Header | Piece | End
Heard = PausedChannels | UtteranceBegin | UtteranceAudio | UtteranceEnd
"""Messages that `listen` gives; see appliance.proto."""


@dataclass(frozen=True)
class Reply:
    """A complete reply. Times are seconds from the call, measured at this end."""

    audio: bytes
    header: Header
    timings: Timings
    wall_s: float
    first_audio_s: float
    """Equal to `wall_s` for a reply in one message."""
    words: Sequence[WordTiming] = ()
    """Start and end of each word; filled with `word_timings`."""

    @property
    def audio_s(self) -> float:
        """Duration of the audio: from its size, or as the daemon says where that does not tell."""
        if self.header.encoding not in (pb.WAV, pb.PCM16):
            return self.timings.audio_ms / 1e3
        size = len(self.audio) - (WAV_HEADER_BYTES if self.header.encoding == pb.WAV else 0)
        rate_hz = self.header.sample_rate_hertz
        return size / SAMPLE_BYTES / rate_hz if rate_hz else 0.0


class CallFailed(Exception):
    """A call that was refused, broke, was cancelled or ran out of time."""

    def __init__(
        self, status: str, message: str, reason: str = "", field: str = "", retry_s: float | None = None
    ) -> None:
        super().__init__(f"{message} ({status})")
        self.status = status
        """Name of the gRPC status: "RESOURCE_EXHAUSTED"."""
        self.message = message
        self.reason = reason
        """The daemon's own reason, "QUEUE_FULL"; empty where gRPC itself failed the call."""
        self.field = field
        """Field of the request that is wrong, or empty."""
        self.retry_s = retry_s
        """Seconds after which the same call may succeed; None: no time is known."""

    @property
    def unreachable(self) -> bool:
        """True if no daemon listens at the address; one whose certificate or TLS does not fit does."""
        answered = any(sign in self.message for sign in ("handshake", "erification", "Socket closed"))
        return self.status == "UNAVAILABLE" and not self.reason and "connect" in self.message and not answered


@dataclass
class _Attempts:
    """A synthesis that may be tried again until its first audio."""

    call: Callable[..., Any]
    """Begins the gRPC call."""
    request: pb.SynthesizeRequest
    timeout: float | None
    retries: int
    begun: float = field(default_factory=time.monotonic)
    tried: int = 0
    held: list[Event] = field(default_factory=list)
    """Came before the first audio, of an attempt that may not be the last."""
    sounds: bool = False

    def __post_init__(self) -> None:
        if self.retries and not self.request.request_id:
            # A box that still works on the last attempt then refuses the next one, rather than do both.
            self.request.request_id = uuid.uuid4().hex

    def next(self) -> Any:
        """Begin an attempt."""
        self.tried += 1
        self.held.clear()
        return self.call(self.request, timeout=self._left_s())

    def take(self, event: Event) -> list[Event]:
        """Events that can be given out now that this one has come."""
        self.held.append(event)
        self.sounds = self.sounds or isinstance(event, (Piece, End))
        if self.retries and not self.sounds:
            return []
        events, self.held = self.held, []
        return events

    def wait_s(self, failure: CallFailed) -> float:
        """Seconds until the next attempt. Raises the failure where that is of no use or comes too late."""
        if self.sounds or self.tried > self.retries:
            raise failure
        wait_s: float = min(BACKOFF_S * 2 ** (self.tried - 1), LONGEST_BACKOFF_S) * random.uniform(0.5, 1.0)
        if failure.status == "RESOURCE_EXHAUSTED" and failure.retry_s is not None:
            wait_s = max(failure.retry_s, wait_s)
        elif failure.field == "request_id" and self.tried > 1:
            pass  # The last attempt has not ended there yet.
        elif failure.status != "UNAVAILABLE" and (failure.reason or failure.status not in LOST):
            raise failure
        left_s = self._left_s()
        if left_s is not None and wait_s >= left_s:
            raise failure
        return wait_s

    def _left_s(self) -> float | None:
        return None if self.timeout is None else self.timeout - (time.monotonic() - self.begun)


class Stream:
    """A reply as it comes: a Header, Pieces, an End. Leaving the iteration early cancels the call."""

    def __init__(self, attempts: _Attempts) -> None:
        self._attempts, self._call = attempts, attempts.next()
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[Event]:
        try:
            while True:
                try:
                    with _failures():
                        for message in self._call:
                            yield from self._attempts.take(_event(message))
                    return
                except CallFailed as failure:
                    if self._cancelled.wait(self._attempts.wait_s(failure)):
                        raise
                self._call = self._attempts.next()
                if self._cancelled.is_set():
                    self._call.cancel()
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """End the call from any thread; its iteration raises CallFailed with CANCELLED."""
        self._cancelled.set()
        self._call.cancel()

    def reply(self) -> Reply:
        """Receive the whole stream."""
        return _gathered(list(self), self._attempts.begun)


class AsyncStream:
    """Stream for asyncio."""

    def __init__(self, attempts: _Attempts) -> None:
        self._attempts, self._call = attempts, attempts.next()
        self._cancelled = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            while True:
                try:
                    with _failures():
                        async for message in self._call:
                            for event in self._attempts.take(_event(message)):
                                yield event
                    return
                except CallFailed as failure:
                    wait_s = self._attempts.wait_s(failure)
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._cancelled.wait(), wait_s)
                    raise asyncio.CancelledError
                self._call = self._attempts.next()
        except asyncio.CancelledError:
            # grpc.aio raises the same for a cancelled call as for a cancelled task.
            if not self._cancelled.is_set():
                raise
            raise CallFailed("CANCELLED", "cancelled by this client") from None
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """End the call; its iteration raises CallFailed with CANCELLED."""
        self._cancelled.set()
        self._call.cancel()

    async def reply(self) -> Reply:
        """Receive the whole stream."""
        return _gathered([event async for event in self], self._attempts.begun)


class Session:
    """A text that is spoken while it is written, in utterances that are counted from 1.

        session = client.session("anna")
        async def write() -> None:
            async for words in model:
                await session.say(words)
            await session.close()
        async for utterance, event in session: ...

    Its iteration gives each utterance's number with a Header for each clause, its Pieces, and at last an End,
    or an UtteranceError. Leaving it early cancels the call.
    """

    def __init__(self, call: Any, configure: pb.SynthesizeRequest) -> None:
        self._call, self._configure = call, configure
        self._is_open = False
        self._writing = asyncio.Lock()

    async def say(self, text: str) -> None:
        """More of the utterance that is being written."""
        await self._write(pb.SessionRequest(text=text))

    async def flush(self) -> None:
        """The utterance is complete; the next text begins another."""
        await self._write(pb.SessionRequest(flush=pb.Flush()))

    async def cancel(self, utterance: int) -> None:
        """End an utterance, also the one that is being written."""
        await self._write(pb.SessionRequest(cancel=pb.CancelUtterance(utterance=utterance)))

    async def close(self) -> None:
        """No more text comes; what was written is spoken to its end."""
        with _failures():
            await self._call.done_writing()

    async def _write(self, message: pb.SessionRequest) -> None:
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
        try:
            with _failures():
                async for message in self._call:
                    number = message.utterance
                    yield number, message.error if message.HasField("error") else _event(message)
        finally:
            self._call.cancel()


class Client:
    """A blocking client; any number of threads may share it."""

    def __init__(
        self,
        address: str = ADDRESS,
        credentials: Credentials = NO_CREDENTIALS,
        *,
        own_connection: bool = False,
        retries: int = 0,
    ) -> None:
        """Connect on first use to host:port or unix:PATH.

        `own_connection` shares no TCP connection with other clients of this process. `retries` is how often a
        synthesis is tried again within its timeout: after up to 2 s when its box is away, and when it is
        refused for the load after the time that the box says. A stream's Header then comes with the first
        audio.
        """
        self._connection = credentials.connection(grpc, address, own_connection)
        self._retries = retries
        self._synthesizer = appliance_pb2_grpc.SynthesizerStub(self._connection)
        self._voices = appliance_pb2_grpc.VoicesStub(self._connection)
        self._queue = appliance_pb2_grpc.QueueStub(self._connection)
        self._health: Any = health_pb2_grpc.HealthStub(self._connection)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and cancel its calls."""
        self._connection.close()

    def speak(
        self, text: str, voice: str, *, timeout: float | None = SPEAK_S, **options: Unpack[Options]
    ) -> Reply:
        """Speak a text and return the whole reply."""
        request = _request(text, voice, **options)
        attempts = _Attempts(self._synthesizer.Synthesize, request, timeout, self._retries)
        while True:
            try:
                with _failures():
                    return _whole(attempts.next(), attempts.begun)
            except CallFailed as failure:
                time.sleep(attempts.wait_s(failure))

    def stream(
        self, text: str, voice: str, *, timeout: float | None = SPEAK_S, **options: Unpack[Options]
    ) -> Stream:
        """Speak a text; the reply comes while it is made."""
        request = _request(text, voice, **options)
        return Stream(_Attempts(self._synthesizer.StreamSynthesize, request, timeout, self._retries))

    def cancel(self, request_id: str, *, channel: str = "", timeout: float | None = REACH_S) -> None:
        """End a request of any client by its id; `channel` finds its box behind a proxy."""
        request = pb.CancelSynthesisRequest(request_id=request_id)
        method = partial(self._synthesizer.CancelSynthesis, metadata=_label_of(channel))
        self._call(method, request, timeout)

    def utterances(self, channel: str = "", *, timeout: float | None = REACH_S) -> list[Utterance]:
        """Return the waiting and sounding requests of a channel, or of all, in order of playing."""
        return list(self.queue(channel, timeout=timeout).utterances)

    def queue(self, channel: str = "", *, timeout: float | None = REACH_S) -> ListUtterancesResponse:
        """Utterances of a channel, or of all, in order of playing, and which of them are paused."""
        request = pb.ListUtterancesRequest(channel=channel)
        response: ListUtterancesResponse = self._call(self._queue.ListUtterances, request, timeout)
        return response

    def watch(self, channel: str = "") -> Iterator[QueueEvent]:
        """Yield the waiting and sounding requests, then each change; leaving the iteration ends the watch."""
        call = self._queue.WatchQueue(pb.WatchQueueRequest(channel=channel))
        try:
            with _failures():
                yield from call
        finally:
            call.cancel()

    def listen(self, channel: str = "") -> Iterator[Heard]:
        """Yield the audio of a channel, or of all, for any caller's requests; leaving the iteration ends it.

        First the paused channels: what begins from then on is heard.
        """
        call = self._queue.Listen(pb.ListenRequest(channel=channel))
        try:
            with _failures():
                for response in call:
                    yield _heard(response)
        finally:
            call.cancel()

    def cancel_of(
        self, *, user: str = "", channel: str = "", timeout: float | None = REACH_S
    ) -> list[Utterance]:
        """End all requests of a user, of a channel, or of a user on a channel."""
        request = pb.CancelUtterancesRequest(user_key=user, channel=channel)
        return list(self._call(self._queue.CancelUtterances, request, timeout).utterances)

    def skip(self, channel: str, *, timeout: float | None = REACH_S) -> list[Utterance]:
        """End what sounds on a channel."""
        return list(self._call(self._queue.Skip, pb.ChannelRequest(channel=channel), timeout).utterances)

    def clear(self, channel: str, *, timeout: float | None = REACH_S) -> list[Utterance]:
        """End what waits on a channel."""
        return list(self._call(self._queue.Clear, pb.ChannelRequest(channel=channel), timeout).utterances)

    def pause(self, channel: str, *, timeout: float | None = REACH_S) -> None:
        """Hold a channel until `resume`."""
        self._call(self._queue.Pause, pb.ChannelRequest(channel=channel), timeout)

    def resume(self, channel: str, *, timeout: float | None = REACH_S) -> None:
        """Let a channel go on."""
        self._call(self._queue.Resume, pb.ChannelRequest(channel=channel), timeout)

    def voices(self, *, timeout: float | None = REACH_S) -> Iterator[Voice]:
        """Iterate over all voices by name; `timeout` is for each page."""
        token = ""
        while True:
            page = self._call(self._voices.ListVoices, pb.ListVoicesRequest(page_token=token), timeout)
            yield from page.voices
            if not (token := page.next_page_token):
                return

    def voice(self, name: str, *, timeout: float | None = REACH_S) -> Voice:
        """Return a stored voice."""
        voice: Voice = self._call(self._voices.GetVoice, pb.GetVoiceRequest(name=name), timeout)
        return voice

    def add_voice(
        self,
        name: str,
        audio: bytes,
        transcript: str,
        *,
        consent_note: str = "",
        display_name: str = "",
        pronunciations: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout: float | None = UPLOAD_S,
    ) -> Voice:
        """Store a reference voice from a WAV, FLAC, Ogg or MP3 file and exactly what is said in it."""
        request = pb.CreateVoiceRequest(
            name=name,
            audio=audio,
            transcript=transcript,
            consent_note=consent_note,
            display_name=display_name,
            pronunciations=pronunciations,
            validate_only=validate_only,
        )
        voice: Voice = self._call(self._voices.CreateVoice, request, timeout)
        return voice

    def update_voice(
        self,
        name: str,
        *,
        display_name: str | None = None,
        pronunciations: Mapping[str, str] | None = None,
        timeout: float | None = REACH_S,
    ) -> Voice:
        """Change what is not None; `pronunciations` takes the place of all that there are."""
        request = _update(name, display_name, pronunciations)
        voice: Voice = self._call(self._voices.UpdateVoice, request, timeout)
        return voice

    def remove_voice(self, name: str, *, timeout: float | None = REACH_S) -> None:
        """Delete a stored voice."""
        self._call(self._voices.DeleteVoice, pb.DeleteVoiceRequest(name=name), timeout)

    def health(self, service: str = "", *, timeout: float | None = REACH_S) -> str:
        """Return "SERVING" or "NOT_SERVING"; the empty service is the whole daemon."""
        return _serving(
            self._call(self._health.Check, health_pb2.HealthCheckRequest(service=service), timeout)
        )

    def _call(self, method: Any, request: Any, timeout: float | None) -> Any:
        with _failures():
            return method(request, timeout=timeout)


class Operator:
    """A client of the Admin socket, on the box itself."""

    def __init__(self, socket: str = ADMIN_SOCKET) -> None:
        self._connection = grpc.insecure_channel(f"unix:{socket}")
        self._admin = admin_pb2_grpc.AdminStub(self._connection)

    def __enter__(self) -> Operator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def status(self) -> Status:
        """Return the daemon's description and state."""
        status: Status = self._call(self._admin.GetStatus, admin_pb2.GetStatusRequest())
        return status

    def drain(self) -> None:
        """Let it finish what is under way and end."""
        self._call(self._admin.Drain, admin_pb2.DrainRequest())

    def reload(self) -> list[str]:
        """Let it read its configuration; returns the sections that need a restart."""
        return list(self._call(self._admin.Reload, admin_pb2.ReloadRequest()).need_restart)

    def log_level(self, level: str) -> None:
        """Log from this level on: debug, info, warning or error."""
        self._call(self._admin.SetLogLevel, admin_pb2.SetLogLevelRequest(level=level))

    def self_test(self) -> float:
        """Let the engine speak a silence; returns its seconds."""
        return float(self._call(self._admin.SelfTest, admin_pb2.SelfTestRequest()).took_ms) / 1e3

    def swap(self, bundle: str, *, timeout: float | None = None) -> Status:
        """Let it speak from another bundle; no stream is dropped."""
        request = admin_pb2.SwapBundleRequest(path=bundle)
        status: Status = self._call(self._admin.SwapBundle, request, timeout)
        return status

    def _call(self, method: Any, request: Any, timeout: float | None = UPLOAD_S) -> Any:
        with _failures():
            return method(request, timeout=timeout)


class AsyncClient:
    """Client for asyncio; make it inside the event loop that uses it."""

    def __init__(
        self,
        address: str = ADDRESS,
        credentials: Credentials = NO_CREDENTIALS,
        *,
        own_connection: bool = False,
        retries: int = 0,
    ) -> None:
        """Connect on first use to host:port or unix:PATH; see Client."""
        self._connection = credentials.connection(grpc.aio, address, own_connection)
        self._retries = retries
        self._synthesizer = appliance_pb2_grpc.SynthesizerStub(self._connection)
        self._voices = appliance_pb2_grpc.VoicesStub(self._connection)
        self._queue = appliance_pb2_grpc.QueueStub(self._connection)
        self._health: Any = health_pb2_grpc.HealthStub(self._connection)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and cancel its calls."""
        await self._connection.close()

    async def speak(
        self, text: str, voice: str, *, timeout: float | None = SPEAK_S, **options: Unpack[Options]
    ) -> Reply:
        """Speak a text and return the whole reply."""
        request = _request(text, voice, **options)
        attempts = _Attempts(self._synthesizer.Synthesize, request, timeout, self._retries)
        while True:
            try:
                with _failures():
                    return _whole(await attempts.next(), attempts.begun)
            except CallFailed as failure:
                await asyncio.sleep(attempts.wait_s(failure))

    def stream(
        self, text: str, voice: str, *, timeout: float | None = SPEAK_S, **options: Unpack[Options]
    ) -> AsyncStream:
        """Speak a text; the reply comes while it is made."""
        request = _request(text, voice, **options)
        return AsyncStream(_Attempts(self._synthesizer.StreamSynthesize, request, timeout, self._retries))

    async def cancel(self, request_id: str, *, channel: str = "", timeout: float | None = REACH_S) -> None:
        """End a request of any client by its id; `channel` finds its box behind a proxy."""
        request = pb.CancelSynthesisRequest(request_id=request_id)
        method = partial(self._synthesizer.CancelSynthesis, metadata=_label_of(channel))
        await self._call(method, request, timeout)

    async def utterances(self, channel: str = "", *, timeout: float | None = REACH_S) -> list[Utterance]:
        """Return the waiting and sounding requests of a channel, or of all, in order of playing."""
        return list((await self.queue(channel, timeout=timeout)).utterances)

    async def queue(self, channel: str = "", *, timeout: float | None = REACH_S) -> ListUtterancesResponse:
        """Utterances of a channel, or of all, in order of playing, and which of them are paused."""
        request = pb.ListUtterancesRequest(channel=channel)
        response: ListUtterancesResponse = await self._call(self._queue.ListUtterances, request, timeout)
        return response

    async def watch(self, channel: str = "") -> AsyncIterator[QueueEvent]:
        """Yield the waiting and sounding requests, then each change; leaving the iteration ends the watch."""
        call = self._queue.WatchQueue(pb.WatchQueueRequest(channel=channel))
        try:
            with _failures():
                async for event in call:
                    yield event
        finally:
            call.cancel()

    async def listen(self, channel: str = "") -> AsyncIterator[Heard]:
        """Yield the audio of a channel, or of all, for any caller's requests; leaving the iteration ends it.

        First the paused channels: what begins from then on is heard.
        """
        call = self._queue.Listen(pb.ListenRequest(channel=channel))
        try:
            with _failures():
                async for response in call:
                    yield _heard(response)
        finally:
            call.cancel()

    async def cancel_of(
        self, *, user: str = "", channel: str = "", timeout: float | None = REACH_S
    ) -> list[Utterance]:
        """End all requests of a user, of a channel, or of a user on a channel."""
        request = pb.CancelUtterancesRequest(user_key=user, channel=channel)
        return list((await self._call(self._queue.CancelUtterances, request, timeout)).utterances)

    async def skip(self, channel: str, *, timeout: float | None = REACH_S) -> list[Utterance]:
        """End what sounds on a channel."""
        request = pb.ChannelRequest(channel=channel)
        return list((await self._call(self._queue.Skip, request, timeout)).utterances)

    async def clear(self, channel: str, *, timeout: float | None = REACH_S) -> list[Utterance]:
        """End what waits on a channel."""
        request = pb.ChannelRequest(channel=channel)
        return list((await self._call(self._queue.Clear, request, timeout)).utterances)

    async def pause(self, channel: str, *, timeout: float | None = REACH_S) -> None:
        """Hold a channel until `resume`."""
        await self._call(self._queue.Pause, pb.ChannelRequest(channel=channel), timeout)

    async def resume(self, channel: str, *, timeout: float | None = REACH_S) -> None:
        """Let a channel go on."""
        await self._call(self._queue.Resume, pb.ChannelRequest(channel=channel), timeout)

    def session(self, voice: str, **options: Unpack[Options]) -> Session:
        """Speak a text while it is written; options as in `speak`, for all of its clauses."""
        configure = _request("", voice, **options)
        return Session(self._synthesizer.Session(metadata=_label_of(configure.channel)), configure)

    async def voices(self, *, timeout: float | None = REACH_S) -> AsyncIterator[Voice]:
        """Iterate over all voices by name; `timeout` is for each page."""
        token = ""
        while True:
            request = pb.ListVoicesRequest(page_token=token)
            page = await self._call(self._voices.ListVoices, request, timeout)
            for voice in page.voices:
                yield voice
            if not (token := page.next_page_token):
                return

    async def voice(self, name: str, *, timeout: float | None = REACH_S) -> Voice:
        """Return a stored voice."""
        voice: Voice = await self._call(self._voices.GetVoice, pb.GetVoiceRequest(name=name), timeout)
        return voice

    async def add_voice(
        self,
        name: str,
        audio: bytes,
        transcript: str,
        *,
        consent_note: str = "",
        display_name: str = "",
        pronunciations: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout: float | None = UPLOAD_S,
    ) -> Voice:
        """Store a reference voice from a WAV, FLAC, Ogg or MP3 file and exactly what is said in it."""
        request = pb.CreateVoiceRequest(
            name=name,
            audio=audio,
            transcript=transcript,
            consent_note=consent_note,
            display_name=display_name,
            pronunciations=pronunciations,
            validate_only=validate_only,
        )
        voice: Voice = await self._call(self._voices.CreateVoice, request, timeout)
        return voice

    async def update_voice(
        self,
        name: str,
        *,
        display_name: str | None = None,
        pronunciations: Mapping[str, str] | None = None,
        timeout: float | None = REACH_S,
    ) -> Voice:
        """Change what is not None; `pronunciations` takes the place of all that there are."""
        request = _update(name, display_name, pronunciations)
        voice: Voice = await self._call(self._voices.UpdateVoice, request, timeout)
        return voice

    async def remove_voice(self, name: str, *, timeout: float | None = REACH_S) -> None:
        """Delete a stored voice."""
        await self._call(self._voices.DeleteVoice, pb.DeleteVoiceRequest(name=name), timeout)

    async def health(self, service: str = "", *, timeout: float | None = REACH_S) -> str:
        """Return "SERVING" or "NOT_SERVING"; the empty service is the whole daemon."""
        request = health_pb2.HealthCheckRequest(service=service)
        return _serving(await self._call(self._health.Check, request, timeout))

    async def _call(self, method: Any, request: Any, timeout: float | None) -> Any:
        with _failures():
            return await method(request, timeout=timeout)


def _arguments(own_connection: bool) -> Sequence[tuple[str, int]]:
    return (
        # gRPC's 4 MiB are 80 s of audio.
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # gRPC's two minutes are long after a daemon was restarted.
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.use_local_subchannel_pool", int(own_connection)),
    )


def _request(
    text: str,
    voice: str,
    *,
    encoding: str | None = None,
    rate: int | None = None,
    speed: float | None = None,
    nfe: int | None = None,
    seed: int | None = None,
    guidance: float | None = None,
    segmentation: str | None = None,
    priority: str | None = None,
    channel: str | None = None,
    user: str | None = None,
    text_handling: str | None = None,
    pronunciations: Mapping[str, str] | None = None,
    max_spoken: float | None = None,
    supersede: str | None = None,
    merge: str | None = None,
    merge_count: int | None = None,
    merge_text: str | None = None,
    queue_timeout: float | None = None,
    min_nfe: int | None = None,
    playout: str | None = None,
    request_id: str | None = None,
    word_timings: bool | None = None,
) -> pb.SynthesizeRequest:
    return pb.SynthesizeRequest(
        text=text,
        voice=voice,
        audio_config={
            "encoding": _upper(encoding),
            "sample_rate_hertz": rate,
            "speaking_rate": speed,
        },
        nfe_steps=nfe,
        seed=seed,
        guidance=guidance,
        segmentation=_upper(segmentation),
        priority=_upper(priority),
        channel=channel,
        user_key=user,
        text_handling=_upper(text_handling),
        pronunciations=pronunciations,
        max_spoken_seconds=max_spoken,
        supersede_key=supersede,
        merge_key=merge,
        merge_count=merge_count,
        merge_text=merge_text,
        queue_timeout=None if queue_timeout is None else timedelta(seconds=queue_timeout),
        min_nfe_steps=min_nfe,
        playout=_upper(playout),
        request_id=request_id,
        word_timings=bool(word_timings),
    )


def _update(
    name: str, display_name: str | None, pronunciations: Mapping[str, str] | None
) -> pb.UpdateVoiceRequest:
    words = None if pronunciations is None else pb.Pronunciations(words=pronunciations)
    return pb.UpdateVoiceRequest(name=name, display_name=display_name, pronunciations=words)


def _upper(name: str | None) -> str | None:
    return name and name.upper()


def _event(message: pb.StreamSynthesizeResponse | pb.SessionResponse) -> Event:
    arrived = time.monotonic()
    if message.HasField("audio"):
        audio = message.audio
        return Piece(audio.data, audio.sample_offset, audio.segment, arrived)
    return message.header if message.HasField("header") else message.end


def _heard(response: pb.ListenResponse) -> Heard:
    kind = response.WhichOneof("message")
    if kind == "begin":
        return response.begin
    if kind == "audio":
        return response.audio
    return response.end if kind == "end" else response.paused


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON holds it: bytes in base64, enumerations by name, 64-bit integers as strings."""
    fields: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields


def _whole(reply: pb.SynthesizeResponse, begun: float) -> Reply:
    wall_s = time.monotonic() - begun
    return Reply(reply.audio, reply.header, reply.timings, wall_s, wall_s, reply.words)


def _gathered(events: Sequence[Event], begun: float) -> Reply:
    wall_s = time.monotonic() - begun
    pieces = [event for event in events if isinstance(event, Piece)]
    header = next((event for event in events if isinstance(event, Header)), Header())
    end = next((event for event in events if isinstance(event, End)), End())
    first_audio_s = pieces[0].arrived - begun if pieces else wall_s
    audio = b"".join(piece.data for piece in pieces)
    return Reply(audio, header, end.timings, wall_s, first_audio_s, end.words)


def _serving(reply: health_pb2.HealthCheckResponse) -> str:
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


@contextmanager
def _failures() -> Iterator[None]:
    """Raise gRPC's errors as CallFailed."""
    try:
        yield
    except grpc.RpcError as error:
        raise _failure(error) from error


def _failure(error: Any) -> CallFailed:
    """Read the details that the daemon packs into google.rpc.Status: ErrorInfo, BadRequest, RetryInfo."""
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            status.ParseFromString(value)
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    retry_s = None
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
        if detail.Unpack(retry):
            retry_s = retry.retry_delay.ToTimedelta().total_seconds()
    field = bad.field_violations[0].field if bad.field_violations else ""
    return CallFailed(error.code().name, error.details() or "", info.reason, field, retry_s)

"""The blocking clients: Client, and Operator for the Admin socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2

from appliance.client.connection import ADMIN_SOCKET, REACH_S, SPEAK_S, UPLOAD_S, ClientBase, channel_metadata
from appliance.client.failures import CallFailed, grpc_failures
from appliance.client.messages import (
    Event,
    Heard,
    Options,
    Reply,
    event_of,
    heard_of,
    serving_status,
    streamed_reply,
    update_voice_request,
    whole_reply,
)
from appliance.client.retries import Attempts
from appliance.rpc import admin_pb2, admin_pb2_grpc
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.admin_pb2 import Status
from appliance.rpc.appliance_pb2 import ListUtterancesResponse, QueueEvent, Utterance, Voice

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(ClientBase):
    """A blocking client; any number of threads may share it."""

    _grpc = grpc

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
        attempts = self._attempts(self._synthesizer.Synthesize, text, voice, timeout, options)
        while True:
            try:
                with grpc_failures(self.address):
                    return whole_reply(attempts.begin(), attempts.begun)
            except CallFailed as failure:
                time.sleep(attempts.wait_s(failure))

    def stream(
        self, text: str, voice: str, *, timeout: float | None = SPEAK_S, **options: Unpack[Options]
    ) -> Stream:
        """Speak a text; iterate over the result to receive the reply while it is made."""
        return Stream(self._attempts(self._synthesizer.StreamSynthesize, text, voice, timeout, options))

    def cancel(self, request_id: str, *, channel: str = "", timeout: float | None = REACH_S) -> None:
        """Cancel a request of any client by its id; behind a proxy, `channel` finds its box."""
        request = pb.CancelSynthesisRequest(request_id=request_id)
        method = partial(self._synthesizer.CancelSynthesis, metadata=channel_metadata(channel))
        self._call(method, request, timeout)

    def utterances(self, channel: str = "", *, timeout: float | None = REACH_S) -> list[Utterance]:
        """Waiting and sounding requests of one channel, or all, in order of playing."""
        return list(self.queue(channel, timeout=timeout).utterances)

    def queue(self, channel: str = "", *, timeout: float | None = REACH_S) -> ListUtterancesResponse:
        """`utterances`, and which channels are paused."""
        request = pb.ListUtterancesRequest(channel=channel)
        response: ListUtterancesResponse = self._call(self._queue.ListUtterances, request, timeout)
        return response

    def watch(self, channel: str = "") -> Iterator[QueueEvent]:
        """Yield the waiting and sounding requests, then each change, until the iteration is left."""
        call = self._queue.WatchQueue(pb.WatchQueueRequest(channel=channel))
        try:
            with grpc_failures(self.address):
                yield from call
        finally:
            call.cancel()

    def listen(self, channel: str = "") -> Iterator[Heard]:
        """Yield the paused channels, then the audio of one channel, or all, until the iteration is left."""
        call = self._queue.Listen(pb.ListenRequest(channel=channel))
        try:
            with grpc_failures(self.address):
                for response in call:
                    yield heard_of(response)
        finally:
            call.cancel()

    def cancel_of(
        self, *, user: str = "", channel: str = "", timeout: float | None = REACH_S
    ) -> list[Utterance]:
        """Cancel and return all requests of a user, of a channel, or of a user on a channel."""
        request = pb.CancelUtterancesRequest(user_key=user, channel=channel)
        return list(self._call(self._queue.CancelUtterances, request, timeout).utterances)

    def skip(self, channel: str, *, timeout: float | None = REACH_S) -> list[Utterance]:
        """Cancel and return the requests that sound on a channel."""
        return list(self._call(self._queue.Skip, pb.ChannelRequest(channel=channel), timeout).utterances)

    def clear(self, channel: str, *, timeout: float | None = REACH_S) -> list[Utterance]:
        """Cancel and return the requests that wait on a channel."""
        return list(self._call(self._queue.Clear, pb.ChannelRequest(channel=channel), timeout).utterances)

    def pause(self, channel: str, *, timeout: float | None = REACH_S) -> None:
        """Hold back a channel's audio until `resume`."""
        self._call(self._queue.Pause, pb.ChannelRequest(channel=channel), timeout)

    def resume(self, channel: str, *, timeout: float | None = REACH_S) -> None:
        """Continue a paused channel."""
        self._call(self._queue.Resume, pb.ChannelRequest(channel=channel), timeout)

    def voices(self, *, timeout: float | None = REACH_S) -> Iterator[Voice]:
        """Yield all voices by name; `timeout` is for each page."""
        token = ""
        while True:
            page = self._call(self._voices.ListVoices, pb.ListVoicesRequest(page_token=token), timeout)
            yield from page.voices
            if not (token := page.next_page_token):
                return

    def voice(self, name: str, *, timeout: float | None = REACH_S) -> Voice:
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
        """Store a voice from a WAV, FLAC, Ogg or MP3 file and a transcript of exactly its words."""
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
        """Change what is not None; `pronunciations` replaces all that are stored."""
        request = update_voice_request(name, display_name, pronunciations)
        voice: Voice = self._call(self._voices.UpdateVoice, request, timeout)
        return voice

    def remove_voice(self, name: str, *, timeout: float | None = REACH_S) -> None:
        self._call(self._voices.DeleteVoice, pb.DeleteVoiceRequest(name=name), timeout)

    def health(self, service: str = "", *, timeout: float | None = REACH_S) -> str:
        """ "SERVING" or "NOT_SERVING"; the empty service is the whole daemon."""
        return serving_status(
            self._call(self._health.Check, health_pb2.HealthCheckRequest(service=service), timeout)
        )

    def _call(self, method: Any, request: Any, timeout: float | None) -> Any:
        with grpc_failures(self.address):
            return method(request, timeout=timeout)


class Stream:
    """A reply as it comes: a Header, Pieces, an End. Leaving the iteration early cancels the call."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts, self._call = attempts, attempts.begin()
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[Event]:
        try:
            while True:
                try:
                    with grpc_failures(self._attempts.address):
                        for message in self._call:
                            yield from self._attempts.received(event_of(message))
                    return
                except CallFailed as failure:
                    if self._cancelled.wait(self._attempts.wait_s(failure)):
                        raise
                self._call = self._attempts.begin()
                if self._cancelled.is_set():
                    self._call.cancel()
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Cancel the call from any thread; its iteration raises CallFailed with CANCELLED."""
        self._cancelled.set()
        self._call.cancel()

    def reply(self) -> Reply:
        """Receive the whole stream."""
        return streamed_reply(list(self), self._attempts.begun)


class Operator:
    """A client of the Admin socket, on the box itself."""

    def __init__(self, socket: str = ADMIN_SOCKET) -> None:
        self._address = f"unix:{socket}"
        self._connection = grpc.insecure_channel(self._address)
        self._admin = admin_pb2_grpc.AdminStub(self._connection)

    def __enter__(self) -> Operator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def status(self) -> Status:
        """Daemon's description and state."""
        status: Status = self._call(self._admin.GetStatus, admin_pb2.GetStatusRequest())
        return status

    def drain(self) -> None:
        """Make the daemon finish what is under way and exit."""
        self._call(self._admin.Drain, admin_pb2.DrainRequest())

    def reload(self) -> list[str]:
        """Make the daemon read its configuration again; returns the sections that need a restart."""
        return list(self._call(self._admin.Reload, admin_pb2.ReloadRequest()).need_restart)

    def log_level(self, level: str) -> None:
        """Set the lowest level that is logged: debug, info, warning or error."""
        self._call(self._admin.SetLogLevel, admin_pb2.SetLogLevelRequest(level=level))

    def self_test(self) -> float:
        """Make the engine compute a silence; returns its seconds."""
        return float(self._call(self._admin.SelfTest, admin_pb2.SelfTestRequest()).took_ms) / 1e3

    def swap(self, bundle: str, *, timeout: float | None = None) -> Status:
        """Load and use the bundle in another folder; no stream is dropped."""
        request = admin_pb2.SwapBundleRequest(path=bundle)
        status: Status = self._call(self._admin.SwapBundle, request, timeout)
        return status

    def _call(self, method: Any, request: Any, timeout: float | None = UPLOAD_S) -> Any:
        with grpc_failures(self._address):
            return method(request, timeout=timeout)

"""The blocking client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import grpc

from appliance.client.calls import BlockingCalls
from appliance.client.connection import REACH_S, SPEAK_S
from appliance.client.failures import CallFailed, grpc_failures
from appliance.client.messages import Event, Heard, Reply, event_of, heard_of, streamed_reply, whole_reply
from appliance.client.retries import LOOK_S, Attempts
from appliance.options import Options
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.appliance_pb2 import QueueEvent, Voice

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(BlockingCalls):
    """A blocking client. Any number of threads may share it."""

    _grpc = grpc

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and cancel its calls."""
        self._connection.close()

    def speak(
        self, text: str, voice: str, *, timeout: float | None = SPEAK_S, **options: Unpack[Options]
    ) -> Reply:
        attempts = self._attempts(self._synthesize, text, voice, timeout, options)
        try:
            while True:
                while attempts.must_wait():
                    time.sleep(LOOK_S)
                call = attempts.begin()
                try:
                    with grpc_failures(self.address):
                        [response] = call
                        return whole_reply(response, attempts.begun, call.initial_metadata())
                except CallFailed as failure:
                    time.sleep(attempts.wait_s(failure))
                finally:
                    call.cancel()
        finally:
            attempts.admitted()

    def stream(
        self, text: str, voice: str, *, timeout: float | None = SPEAK_S, **options: Unpack[Options]
    ) -> Stream:
        """Speak a text. The iteration receives the reply while the engine speaks it."""
        return Stream(self._attempts(self._synthesizer.StreamSynthesize, text, voice, timeout, options))

    def watch(self, channel: str = "") -> Iterator[QueueEvent]:
        """Yield the waiting and sounding requests, then each change."""
        return self._follow(self._queue.WatchQueue, pb.WatchQueueRequest(channel=channel))

    def listen(self, channel: str = "") -> Iterator[Heard]:
        """Yield the paused channels, then the audio of one channel, or of all."""
        return self._follow(self._queue.Listen, pb.ListenRequest(channel=channel), heard_of)

    def voices(self, *, timeout: float | None = REACH_S) -> Iterator[Voice]:
        """Yield all voices by name. `timeout` is for each page."""
        token = ""
        while True:
            page = self._voices_page(token, timeout)
            yield from page.voices
            if not (token := page.next_page_token):
                return

    def _follow(
        self, method: Any, request: Any, read: Callable[[Any], Any] = lambda event: event
    ) -> Iterator[Any]:
        """Responses of a stream, until the iteration ends."""
        call = method(request)
        try:
            with grpc_failures(self.address):
                for response in call:
                    yield read(response)
        finally:
            call.cancel()


class Stream:
    """A reply: a Header, Pieces, an End. Leaving the iteration early cancels the call."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._call = None if attempts.must_wait() else attempts.begin()
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[Event]:
        attempts = self._attempts
        try:
            while True:
                while self._call is None:
                    if not attempts.must_wait():
                        self._call = attempts.begin()
                    elif self._cancelled.wait(LOOK_S):
                        raise CallFailed("CANCELLED", "cancelled by this client")
                if self._cancelled.is_set():
                    self._call.cancel()
                try:
                    with grpc_failures(attempts.address):
                        for message in self._call:
                            yield from attempts.received(event_of(message))
                    return
                except CallFailed as failure:
                    if self._cancelled.wait(attempts.wait_s(failure)):
                        raise
                self._call = None
        finally:
            attempts.admitted()
            if self._call is not None:
                self._call.cancel()

    def cancel(self) -> None:
        """Cancel the call, from any thread. Its iteration raises CallFailed with CANCELLED."""
        self._cancelled.set()
        if (call := self._call) is not None:
            call.cancel()

    def reply(self, each: Callable[[Event], object] = lambda event: None) -> Reply:
        """Receive the whole stream; call `each` with every event as it arrives."""
        events = []
        for event in self:
            each(event)
            events.append(event)
        metadata = self._call.initial_metadata() if self._call is not None else ()
        return streamed_reply(events, self._attempts.begun, metadata)

"""Calls with one answer, for both clients: each builds its request and says how to read the response."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from grpc_health.v1 import health_pb2

from appliance.client.connection import REACH_S, UPLOAD_S, ClientBase, channel_metadata
from appliance.client.failures import grpc_failures
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.appliance_pb2 import ListUtterancesResponse, Utterance, Voice

if TYPE_CHECKING:
    from google.protobuf.message import Message

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Rpc(Generic[T]):
    """Description of a call: its method and request, and how to read its response."""

    method: Callable[..., Any]
    request: Message
    timeout: float | None
    read: Callable[[Any], T] = lambda response: cast("T", response)
    """Reads the response: response → answer."""


class Call(Protocol[P, T_co]):
    """Method of both clients: one returns the answer, the other an awaitable of it."""

    @overload
    def __get__(self, client: BlockingCalls, owner: type | None = None) -> Callable[P, T_co]: ...
    @overload
    def __get__(
        self, client: AsyncCalls, owner: type | None = None
    ) -> Callable[P, Coroutine[Any, Any, T_co]]: ...


def call(ask: Callable[Concatenate[Any, P], Rpc[T]]) -> Call[P, T]:
    """Method of both clients that makes the call which `ask` describes."""

    @wraps(ask)
    def method(client: BlockingCalls | AsyncCalls, *arguments: P.args, **options: P.kwargs) -> Any:
        return client._answer(partial(ask, client, *arguments, **options))

    return cast("Call[P, T]", method)


class Calls(ClientBase):
    """Calls that both clients have, except speaking."""

    @call
    def cancel(self, request_id: str, *, channel: str = "", timeout: float | None = REACH_S) -> Rpc[None]:
        """Cancel any client's request by its id. Behind a proxy, `channel` finds the box."""
        method = partial(self._synthesizer.CancelSynthesis, metadata=channel_metadata(channel))
        return Rpc(method, pb.CancelSynthesisRequest(request_id=request_id), timeout, _nothing)

    @call
    def utterances(self, channel: str = "", *, timeout: float | None = REACH_S) -> Rpc[list[Utterance]]:
        """Waiting and sounding requests of one channel, or of all, in order of playback."""
        request = pb.ListUtterancesRequest(channel=channel)
        return Rpc(self._queue.ListUtterances, request, timeout, _utterances)

    @call
    def queue(self, channel: str = "", *, timeout: float | None = REACH_S) -> Rpc[ListUtterancesResponse]:
        """The result of `utterances`, and the channels that are paused or moderated."""
        request = pb.ListUtterancesRequest(channel=channel)
        return Rpc(self._queue.ListUtterances, request, timeout)

    @call
    def cancel_of(
        self, *, user: str = "", channel: str = "", timeout: float | None = REACH_S
    ) -> Rpc[list[Utterance]]:
        """Cancel and return the requests of a user, of a channel, or of a user on a channel."""
        request = pb.CancelUtterancesRequest(user_key=user, channel=channel)
        return Rpc(self._queue.CancelUtterances, request, timeout, _utterances)

    @call
    def skip(self, channel: str, *, timeout: float | None = REACH_S) -> Rpc[list[Utterance]]:
        """Cancel and return the requests that sound on a channel."""
        return Rpc(self._queue.Skip, pb.ChannelRequest(channel=channel), timeout, _utterances)

    @call
    def clear(self, channel: str, *, timeout: float | None = REACH_S) -> Rpc[list[Utterance]]:
        """Cancel and return the requests that wait on a channel."""
        return Rpc(self._queue.Clear, pb.ChannelRequest(channel=channel), timeout, _utterances)

    @call
    def pause(self, channel: str, *, timeout: float | None = REACH_S) -> Rpc[None]:
        """Hold a channel's audio until `resume`."""
        return Rpc(self._queue.Pause, pb.ChannelRequest(channel=channel), timeout, _nothing)

    @call
    def resume(self, channel: str, *, timeout: float | None = REACH_S) -> Rpc[None]:
        return Rpc(self._queue.Resume, pb.ChannelRequest(channel=channel), timeout, _nothing)

    @call
    def moderate(self, channel: str, *, timeout: float | None = REACH_S) -> Rpc[None]:
        """Hold later requests of a channel until `approve`."""
        return Rpc(self._queue.Moderate, pb.ChannelRequest(channel=channel), timeout, _nothing)

    @call
    def unmoderate(self, channel: str, *, timeout: float | None = REACH_S) -> Rpc[None]:
        """Speak later requests of a channel without approval. Held requests stay held."""
        return Rpc(self._queue.Unmoderate, pb.ChannelRequest(channel=channel), timeout, _nothing)

    @call
    def approve(
        self, channel: str, request_ids: Sequence[str] = (), *, timeout: float | None = REACH_S
    ) -> Rpc[list[Utterance]]:
        """Approve held requests of a channel, or all of them; return them in their new state."""
        request = pb.ApprovalRequest(channel=channel, request_ids=request_ids)
        return Rpc(self._queue.Approve, request, timeout, _utterances)

    @call
    def reject(
        self, channel: str, request_ids: Sequence[str] = (), *, timeout: float | None = REACH_S
    ) -> Rpc[list[Utterance]]:
        """End and return these requests of a channel, or all that it holds."""
        request = pb.ApprovalRequest(channel=channel, request_ids=request_ids)
        return Rpc(self._queue.Reject, request, timeout, _utterances)

    @call
    def preview(self, channel: str, request_id: str, *, timeout: float | None = REACH_S) -> Rpc[bytes]:
        """WAV file of the finished part of a held request."""
        request = pb.PreviewRequest(channel=channel, request_id=request_id)
        return Rpc(self._queue.Preview, request, timeout, lambda response: bytes(response.audio))

    @call
    def _voices_page(self, token: str, timeout: float | None) -> Rpc[pb.ListVoicesResponse]:
        return Rpc(self._voices.ListVoices, pb.ListVoicesRequest(page_token=token), timeout)

    @call
    def voice(self, name: str, *, timeout: float | None = REACH_S) -> Rpc[Voice]:
        return Rpc(self._voices.GetVoice, pb.GetVoiceRequest(name=name), timeout)

    @call
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
    ) -> Rpc[Voice]:
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
        return Rpc(self._voices.CreateVoice, request, timeout)

    @call
    def update_voice(
        self,
        name: str,
        *,
        display_name: str | None = None,
        pronunciations: Mapping[str, str] | None = None,
        timeout: float | None = REACH_S,
    ) -> Rpc[Voice]:
        """Change the values that are not None. `pronunciations` replaces all stored ones."""
        words = None if pronunciations is None else pb.Pronunciations(words=pronunciations)
        request = pb.UpdateVoiceRequest(name=name, display_name=display_name, pronunciations=words)
        return Rpc(self._voices.UpdateVoice, request, timeout)

    @call
    def remove_voice(self, name: str, *, timeout: float | None = REACH_S) -> Rpc[None]:
        return Rpc(self._voices.DeleteVoice, pb.DeleteVoiceRequest(name=name), timeout, _nothing)

    @call
    def add_style(
        self,
        voice: str,
        style: str,
        audio: bytes,
        transcript: str,
        *,
        consent_note: str = "",
        validate_only: bool = False,
        timeout: float | None = UPLOAD_S,
    ) -> Rpc[Voice]:
        """Store another recording of a voice; return the voice with all its recordings."""
        request = pb.CreateStyleRequest(
            voice=voice,
            style=style,
            audio=audio,
            transcript=transcript,
            consent_note=consent_note,
            validate_only=validate_only,
        )
        return Rpc(self._voices.CreateStyle, request, timeout)

    @call
    def remove_style(self, voice: str, style: str, *, timeout: float | None = REACH_S) -> Rpc[None]:
        request = pb.DeleteStyleRequest(voice=voice, style=style)
        return Rpc(self._voices.DeleteStyle, request, timeout, _nothing)

    @call
    def health(self, service: str = "", *, timeout: float | None = REACH_S) -> Rpc[str]:
        """Health of a service, "SERVING" or "NOT_SERVING"; the empty service is the whole daemon."""
        request = health_pb2.HealthCheckRequest(service=service)
        return Rpc(self._health.Check, request, timeout, _serving_status)


class BlockingCalls(Calls):
    def _answer(self, ask: Callable[[], Rpc[T]]) -> T:
        call = ask()
        with grpc_failures(self.address):
            return call.read(call.method(call.request, timeout=call.timeout))


class AsyncCalls(Calls):
    async def _answer(self, ask: Callable[[], Rpc[T]]) -> T:
        call = ask()
        with grpc_failures(self.address):
            return call.read(await call.method(call.request, timeout=call.timeout))


def _utterances(response: Any) -> list[Utterance]:
    return list(response.utterances)


def _serving_status(response: health_pb2.HealthCheckResponse) -> str:
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def _nothing(response: Any) -> None:
    """Return None for a response without fields."""

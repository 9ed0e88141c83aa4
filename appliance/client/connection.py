"""Connection of a client to a daemon: address, TLS, token and stubs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from appliance.addresses import LOOPBACK_GRPC
from appliance.client.messages import synthesize_request
from appliance.client.retries import Attempts, ChannelOrder
from appliance.options import Options
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.context import CALLER_KEY

ADDRESS = LOOPBACK_GRPC
REACH_S = 5.0
"""Default timeout of calls that compute nothing."""
SPEAK_S = 300.0
"""Default timeout of a synthesis; the longest speech is shorter."""
UPLOAD_S = 60.0
PING_MS, PONG_MS = 4_000, 5_000
"""Interval of pings while a call is open, and the longest wait for an answer."""
CHANNEL_KEY = "x-channel"
"""Metadata by which a proxy finds the box that plays a channel."""
CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""Value of CALLER_KEY in this context; empty: it is not sent."""
TOKEN: ContextVar[str] = ContextVar("TOKEN", default="")
"""Token of whoever this context calls for; empty: the client's own is sent."""

SYNTHESIZE = "/appliance.v1.Synthesizer/Synthesize"

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Credentials:
    authority: bytes = b""
    """PEM of the server's certificate or authority; empty: no TLS."""
    token: str = ""
    """Made by `appliance tokens add` on the box."""
    certificate: bytes = b""
    """PEM, where the box asks for one."""
    key: bytes = b""
    name: str = ""
    """Name in the server's certificate, if it is not the address's."""


NO_CREDENTIALS = Credentials()


class ClientBase:
    _grpc: Any
    """grpc or grpc.aio."""

    def __init__(
        self,
        address: str = ADDRESS,
        credentials: Credentials = NO_CREDENTIALS,
        *,
        own_connection: bool = False,
        retries: int = 0,
    ) -> None:
        """Connect on first use to host:port or unix:PATH.

        `own_connection` is not shared with other clients of this process. `retries` is how often `speak` and
        `stream` try again within their timeout after a refusal, after the time that it names. With it they
        also await a daemon that is away, stops or starts, as long as their timeout, until the first audio,
        which the Header then comes with. Without it requests of a serial channel await a daemon for a minute,
        until they are admitted. Those of a channel reach it in the order of their calls.
        """
        self.address = address
        self._connection = _connect(self._grpc, address, credentials, own_connection, self._interceptors())
        self._retries, self._lines = retries, ChannelOrder()
        self._synthesizer = appliance_pb2_grpc.SynthesizerStub(self._connection)
        # As a stream of one message, which it is on the wire: its metadata comes before the answer.
        self._synthesize = self._connection.unary_stream(
            SYNTHESIZE,
            request_serializer=pb.SynthesizeRequest.SerializeToString,
            response_deserializer=pb.SynthesizeResponse.FromString,
        )
        self._voices = appliance_pb2_grpc.VoicesStub(self._connection)
        self._queue = appliance_pb2_grpc.QueueStub(self._connection)
        self._health: Any = health_pb2_grpc.HealthStub(self._connection)

    def _interceptors(self) -> Sequence[Any]:
        return ()

    def _attempts(
        self,
        method: Callable[..., Any],
        text: str,
        voice: str,
        timeout: float | None,
        options: Options,
        hold_s: float | None = None,
        on_admitted: Callable[[], object] = lambda: None,
    ) -> Attempts:
        request = synthesize_request(text, voice, options)
        return Attempts(
            *(method, request, timeout, self._retries, self.address, self._lines, hold_s, on_admitted)
        )


def channel_metadata(channel: str) -> Metadata:
    """Metadata of a call about a channel, percent-encoded."""
    if not channel:
        return ()
    from urllib.parse import quote

    return ((CHANNEL_KEY, quote(channel)),)


def _connect(
    module: Any, address: str, credentials: Credentials, own_connection: bool, interceptors: Sequence[Any]
) -> Any:
    options: tuple[tuple[str, int | str], ...] = (
        # gRPC's 4 MiB are 80 s of audio.
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # gRPC's two minutes are long after a daemon was restarted.
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # A daemon that is frozen keeps its connections open.
        ("grpc.keepalive_time_ms", PING_MS),
        ("grpc.keepalive_timeout_ms", PONG_MS),
        # Where this is longer (60 s by default), the timeout above has no effect.
        ("grpc.http2.ping_timeout_ms", PONG_MS),
        # By default no third ping is sent while a call waits for its turn.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", int(own_connection)),
    )
    if credentials.name:
        options += (("grpc.ssl_target_name_override", credentials.name),)
    more = {"interceptors": interceptors} if interceptors else {}
    if credentials.authority:
        pair = (credentials.key, credentials.certificate) if credentials.certificate else (None, None)
        tls = grpc.ssl_channel_credentials(credentials.authority, *pair)
        connection = module.secure_channel(address, tls, options=options, **more)
    else:
        connection = module.insecure_channel(address, options=options, **more)
    return _WithMetadata(connection, credentials.token)


class _WithMetadata:
    """gRPC channel whose calls carry the token, the caller and the `channel` of their request.

    gRPC's own call credentials refuse to send a token without TLS.
    """

    def __init__(self, connection: Any, token: str) -> None:
        self.inner = connection
        self._token = token
        self.close = connection.close

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        """Method that makes a call's method of this kind: `unary_unary`, `unary_stream`, `stream_stream`."""
        make = getattr(self.inner, kind)
        return lambda *arguments, **options: self._with_metadata(make(*arguments, **options))

    def _with_metadata(self, method: Any) -> Any:
        def call(*request: Any, metadata: Metadata = (), **options: Any) -> Any:
            channel = channel_metadata(getattr(request[0], "channel", "")) if request else ()
            caller = ((CALLER_KEY, CALLER.get()),) if CALLER.get() else ()
            bearer = TOKEN.get() or self._token
            token = (("authorization", f"Bearer {bearer}"),) if bearer else ()
            return method(*request, metadata=(*token, *caller, *channel, *metadata), **options)

        return call

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
"""Default timeout of calls without computation, in seconds."""
SPEAK_S = 300.0
"""Default timeout of a synthesis, in seconds. Even the longest speech takes less."""
UPLOAD_S = 60.0
PING_MS, PONG_MS = 4_000, 5_000
"""Interval of pings while a call is open, and longest wait for the answer to one."""
CHANNEL_KEY = "x-channel"
"""Metadata with the channel, by which a proxy finds the box that plays the channel."""
CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""Value of CALLER_KEY in this context; "" sends none."""
TOKEN: ContextVar[str] = ContextVar("TOKEN", default="")
"""Token of the caller in this context; "" sends the client's own token."""

SYNTHESIZE = "/appliance.v1.Synthesizer/Synthesize"

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Credentials:
    """Certificates and token for a connection."""

    authority: bytes = b""
    """Certificate of the server or its authority, in PEM; empty means no TLS."""
    token: str = ""
    """Token from `appliance tokens add` on the box."""
    certificate: bytes = b""
    """Certificate of the client in PEM, if the box asks for one."""
    key: bytes = b""
    name: str = ""
    """Name in the server's certificate, if it differs from the host of the address."""


NO_CREDENTIALS = Credentials()


class ClientBase:
    """Connection to a daemon, for both clients."""

    _grpc: Any
    """The module grpc or grpc.aio."""

    def __init__(
        self,
        address: str = ADDRESS,
        credentials: Credentials = NO_CREDENTIALS,
        *,
        own_connection: bool = False,
        retries: int = 0,
    ) -> None:
        """Connect to host:port or unix:PATH at the first call.

        `own_connection`: do not share the connection with other clients of this process.

        `retries`: how often `speak` and `stream` try again after a refusal, within their timeout and after
        the time that the refusal names. With retries they also wait, for the whole timeout, for a daemon that
        does not answer, stops or starts, until the first audio; the Header then comes with that.

        Without retries, requests of a serial channel wait up to a minute for a daemon, until they are
        admitted. Requests of a channel reach the daemon in the order of their calls.
        """
        self.address = address
        self._connection = _connect(self._grpc, address, credentials, own_connection, self._interceptors())
        self._retries, self._lines = retries, ChannelOrder()
        self._synthesizer = appliance_pb2_grpc.SynthesizerStub(self._connection)
        # On the wire this is a stream of one message; called as a stream, it yields its metadata before the
        # answer.
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
    """Metadata of a call about a channel. The name is percent-encoded."""
    if not channel:
        return ()
    from urllib.parse import quote

    return ((CHANNEL_KEY, quote(channel)),)


def _connect(
    module: Any, address: str, credentials: Credentials, own_connection: bool, interceptors: Sequence[Any]
) -> Any:
    options: tuple[tuple[str, int | str], ...] = (
        # gRPC's default of 4 MiB is 80 s of audio.
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # gRPC's default of two minutes is too long after a daemon has been restarted.
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # The connections of a frozen daemon stay open.
        ("grpc.keepalive_time_ms", PING_MS),
        ("grpc.keepalive_timeout_ms", PONG_MS),
        # The timeout above has no effect if this one is longer (the default is 60 s).
        ("grpc.http2.ping_timeout_ms", PONG_MS),
        # By default, gRPC sends no third ping while a call waits for its turn.
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
    """gRPC channel whose calls carry the token, the caller, and the `channel` of their request.

    gRPC's own call credentials refuse to send a token without TLS.
    """

    def __init__(self, connection: Any, token: str) -> None:
        self.inner = connection
        self._token = token
        self.close = connection.close

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        """Factory of calls of this kind: `unary_unary`, `unary_stream`, `stream_stream`."""
        make = getattr(self.inner, kind)
        return lambda *arguments, **options: self._with_metadata(make(*arguments, **options))

    def _with_metadata(self, method: Any) -> Any:
        """A method whose calls carry token, caller and channel as metadata."""

        def call(*request: Any, metadata: Metadata = (), **options: Any) -> Any:
            channel = channel_metadata(getattr(request[0], "channel", "")) if request else ()
            caller = ((CALLER_KEY, CALLER.get()),) if CALLER.get() else ()
            bearer = TOKEN.get() or self._token
            token = (("authorization", f"Bearer {bearer}"),) if bearer else ()
            return method(*request, metadata=(*token, *caller, *channel, *metadata), **options)

        return call

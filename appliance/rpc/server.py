"""The gRPC servers: services, health and reflection on TCP and a Unix socket; Admin on another socket."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
from google.protobuf.runtime_version import VersionError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from appliance.config import ServerConfig, split_address
from appliance.durable import locked, storage_errors
from appliance.errors import AddressInUse, StorageError, cannot_listen
from appliance.rpc import admin_pb2_grpc, appliance_pb2, appliance_pb2_grpc
from appliance.rpc.admin import AdminService
from appliance.rpc.callers import Callers
from appliance.rpc.moderation import QueueService
from appliance.rpc.speaking import Speaking
from appliance.rpc.status import CallObserver, StatusInterceptor
from appliance.rpc.synthesizer import SynthesizerService
from appliance.rpc.tls import credentials
from appliance.rpc.voices import VoicesService
from appliance.voices.index import VoiceIndex
from appliance.voices.prompts import Prompts

logger = logging.getLogger(__name__)

AddService = Callable[[grpc.aio.Server], None]

SERVICES = tuple(service.full_name for service in appliance_pb2.DESCRIPTOR.services_by_name.values())
CLOCKS = "clocks"
"""Name in gRPC health: SERVING while the box's clocks are pinned as they should be."""
SOCKET_MODE = 0o660
OPERATOR_MODE = 0o600
MAX_SEND_BYTES = 64 << 20
"""Longest reply: 11 minutes of speech at 48 kHz. Longer ones are streamed."""
UNCOMPRESSED = 1
"""Bit set of the accepted compression algorithms: identity alone."""
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 20_000, 10_000
IDLE_MS = 600_000
"""Milliseconds without calls after which a connection is closed."""
HANDSHAKE_MS = 20_000
AGE_MS = 3_600_000
"""Age in milliseconds after which a connection takes no new calls, so that clients see a new certificate."""
OTHER_STREAMS = 64
"""Calls of one connection that are not for synthesis: watches, lookups."""


@dataclass(frozen=True)
class RunningServer:
    """A gRPC server that listens."""

    server: grpc.aio.Server
    health: health.aio.HealthServicer
    port: int
    services: tuple[str, ...] = SERVICES

    async def set_serving(self) -> None:
        """Set the daemon's and each service's health to SERVING."""
        for name in ("", *self.services):
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def set_clocks(self, good: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self.health.set(CLOCKS, status.SERVING if good else status.NOT_SERVING)


def riva_services(speaking: Speaking, store: VoiceIndex, prompts: Prompts) -> dict[str, AddService]:
    """NVIDIA Riva's service, if its messages are installed."""
    try:
        from appliance.rpc import riva
    # Riva's messages raise other errors if grpcio or protobuf is older than their compiler.
    except (ImportError, RuntimeError, VersionError) as error:
        logger.info("Riva's clients are not served (extra riva): %s", error)
        return {}
    return {riva.SERVICE: partial(riva.add_to_server, riva.RivaService(speaking, store, prompts))}


async def listen(
    config: ServerConfig,
    synthesizer: SynthesizerService,
    voices: VoicesService,
    queue: QueueService,
    observe: CallObserver,
    callers: Callers,
    extra_services: Mapping[str, AddService] | None = None,
) -> RunningServer:
    """Start the server, with health NOT_SERVING."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_a_fault)
    tls = credentials(config)
    server = grpc.aio.server(
        interceptors=(StatusInterceptor(observe, callers),),
        options=(
            ("grpc.max_receive_message_length", config.max_receive_bytes),
            ("grpc.max_send_message_length", MAX_SEND_BYTES),
            # A kilobyte of gzip may become a megabyte in memory before its size is known.
            ("grpc.compression_enabled_algorithms_bitset", UNCOMPRESSED),
            # Two daemons on one port would each get some of the calls.
            ("grpc.so_reuseport", 0),
            # The connection of a frozen or unplugged client stays open, and so do its streams.
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            # The timeout above has no effect if this one is longer (the default is 60 s).
            ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            # By default, the third ping on a quiet connection ends its calls. Clients may ping every 10 s.
            ("grpc.http2.max_ping_strikes", 0),
            # A window that grows with the network's speed takes memory for each unread call. While a message
            # is read, the window has the message's length anyway.
            ("grpc.http2.bdp_probe", 0),
            # Open calls count as activity, health watches included.
            ("grpc.max_connection_idle_ms", IDLE_MS),
            ("grpc.max_connection_age_ms", AGE_MS),
            ("grpc.max_concurrent_streams", config.max_calls + OTHER_STREAMS),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ),
    )
    servicer = health.aio.HealthServicer()
    extra = extra_services or {}
    services = (*SERVICES, *extra)
    for name in ("", *services, CLOCKS):
        await servicer.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    appliance_pb2_grpc.add_SynthesizerServicer_to_server(synthesizer, server)
    appliance_pb2_grpc.add_VoicesServicer_to_server(voices, server)
    appliance_pb2_grpc.add_QueueServicer_to_server(queue, server)
    for add in extra.values():
        add(server)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if config.reflection:
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    port = _bind_tcp(server, config.listen, tls)
    if config.socket:
        _bind_socket(server, Path(config.socket), "server.socket")
    await server.start()
    if config.socket:
        os.chmod(config.socket, SOCKET_MODE)
    return RunningServer(server, servicer, port, services)


def _is_a_fault(record: logging.LogRecord) -> bool:
    """False for a request that grpcio cannot decode.

    The fault is the caller's, and is logged without a traceback.
    """
    return not (record.exc_info and record.exc_info[0] is UnicodeDecodeError)


async def listen_to_operator(path: Path, admin: AdminService, observe: CallObserver) -> grpc.aio.Server:
    """Start the server of the Admin service. Raises AddressInUse, StorageError."""
    server = grpc.aio.server(interceptors=(StatusInterceptor(observe),))
    admin_pb2_grpc.add_AdminServicer_to_server(admin, server)
    _bind_socket(server, path, "server.admin_socket")
    await server.start()
    path.chmod(OPERATOR_MODE)
    return server


def _bind_tcp(server: grpc.aio.Server, address: str, tls: grpc.ServerCredentials | None) -> int:
    """Listen on an address, and return its port. Raises AddressInUse."""
    host, port = split_address("listen", address)
    _try_to_bind(host.strip("[]"), port)
    try:
        if tls is not None:
            return int(server.add_secure_port(f"{host}:{port}", tls))
        return int(server.add_insecure_port(f"{host}:{port}"))
    except RuntimeError as error:
        raise AddressInUse(f"server.listen: cannot listen on {address}") from error


def _try_to_bind(host: str, port: int) -> None:
    """Raise the reason if a port cannot be bound; gRPC only logs it."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.closing(socket.socket(family, kind)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        raise cannot_listen("server.listen", f"{host}:{port}", error) from error


def _bind_socket(server: grpc.aio.Server, path: Path, key: str) -> None:
    """Listen on a Unix socket. Raises StorageError, and AddressInUse if another daemon answers there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{key}: {path.parent}: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        # gRPC reports both this and another daemon's socket as "cannot listen".
        raise StorageError(f"{key}: {path.parent}: Permission denied")
    # gRPC replaces an existing socket file without a warning. The lock keeps two daemons that start together
    # apart.
    with storage_errors(f"{key}: {path.parent}"), locked(path.parent):
        if _answers(path, key):
            raise AddressInUse(f"{key}: another daemon listens on {path}")
        try:
            server.add_insecure_port(f"unix:{path.absolute()}")
        except RuntimeError as error:
            raise AddressInUse(f"{key}: cannot listen on {path}") from error


def _answers(path: Path, key: str) -> bool:
    """True if a process listens on the socket file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{key}: {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise StorageError(f"{key}: {path} exists and is not a socket")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        return probe.connect_ex(str(path)) == 0

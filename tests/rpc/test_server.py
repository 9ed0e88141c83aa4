"""The server around the services: health, reflection, both listeners, busy addresses."""

import asyncio
import contextlib
import fcntl
import logging
import re
import socket
import stat
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from appliance.config import ServerConfig
from appliance.durable import locked
from appliance.errors import AddressInUse, StorageError
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc import server as module
from appliance.rpc.callers import Callers
from appliance.rpc.server import SERVICES, listen
from tests.harness.hostile import PREFACE, begun_call, frame
from tests.harness.patience import PATIENCE_S, scaled, until
from tests.rpc.conftest import Box, refused, request

HEALTH = health_pb2.HealthCheckResponse

NAMES = ("", "appliance.v1.Synthesizer", "appliance.v1.Voices", "nvidia.riva.tts.RivaSpeechSynthesis")


def health(channel: grpc.aio.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel)


async def state_of(channel: grpc.aio.Channel) -> set[str]:
    """States of the daemon and its services"""
    replies = [await health(channel).Check(health_pb2.HealthCheckRequest(service=name)) for name in NAMES]
    return {HEALTH.ServingStatus.Name(reply.status) for reply in replies}


async def test_health_is_serving_from_ready_to_the_drain(box: Box, channel: grpc.aio.Channel) -> None:
    watch = health(channel).Watch(health_pb2.HealthCheckRequest(service="appliance.v1.Voices"))
    assert (await watch.read()).status == HEALTH.NOT_SERVING
    assert await state_of(channel) == {"NOT_SERVING"}
    await box.server.set_serving()
    assert (await watch.read()).status == HEALTH.SERVING
    assert await state_of(channel) == {"SERVING"}
    await box.server.health.enter_graceful_shutdown()
    await box.server.set_serving()
    assert await state_of(channel) == {"NOT_SERVING"}
    watch.cancel()
    await refused(health(channel).Check(health_pb2.HealthCheckRequest(service="nothing")), code="NOT_FOUND")


async def test_clocks_have_a_health_of_their_own(box: Box, channel: grpc.aio.Channel) -> None:
    watch = health(channel).Watch(health_pb2.HealthCheckRequest(service="clocks"))
    assert (await watch.read()).status == HEALTH.NOT_SERVING
    await box.server.set_clocks(True)
    assert (await watch.read()).status == HEALTH.SERVING
    assert await state_of(channel) == {"NOT_SERVING"}
    await box.server.set_serving()
    await box.server.set_clocks(False)
    assert (await watch.read()).status == HEALTH.NOT_SERVING
    assert await state_of(channel) == {"SERVING"}
    watch.cancel()


async def test_reflection_lists_the_services_and_gives_the_proto(channel: grpc.aio.Channel) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    questions = ({"list_services": ""}, {"file_containing_symbol": "appliance.v1.Voices"})
    messages = (reflection_pb2.ServerReflectionRequest(**question) for question in questions)  # type: ignore[arg-type]
    replies = [reply async for reply in stub.ServerReflectionInfo(iter(list(messages)))]
    assert {service.name for service in replies[0].list_services_response.service} == {
        *SERVICES,
        "nvidia.riva.tts.RivaSpeechSynthesis",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    described = replies[1].file_descriptor_response.file_descriptor_proto
    files = [descriptor_pb2.FileDescriptorProto.FromString(data) for data in described]
    assert files[0].package == "appliance.v1"


async def test_the_unix_socket_speaks_the_same(box: Box) -> None:
    assert stat.S_IMODE(box.socket.stat().st_mode) == 0o660
    async with grpc.aio.insecure_channel(f"unix:{box.socket}") as channel:
        stub = appliance_pb2_grpc.SynthesizerStub(channel)
        assert (await stub.Synthesize(request())).header.segments == 2


@asynccontextmanager
async def served(
    voices: Any = None, *, listen_on: str = "127.0.0.1:0", at: Path | str = ""
) -> AsyncIterator[str]:
    """The address of a server without services' methods, at a port and a socket."""
    synthesizer: Any = appliance_pb2_grpc.SynthesizerServicer()
    queue: Any = appliance_pb2_grpc.QueueServicer()
    voices = voices or appliance_pb2_grpc.VoicesServicer()
    config = ServerConfig(listen=listen_on, socket=str(at))
    listening = await listen(config, synthesizer, voices, queue, lambda *call: None, Callers())
    try:
        yield f"127.0.0.1:{listening.port}"
    finally:
        await listening.server.stop(0)


async def start(**place: Any) -> None:
    async with served(**place):
        pass


async def test_a_busy_address_stays_with_its_daemon(box: Box) -> None:
    with pytest.raises(AddressInUse, match=r"server\.listen: cannot listen on 127"):
        await start(listen_on=box.address)
    with pytest.raises(AddressInUse, match="another daemon listens"):
        await start(at=box.socket)
    async with grpc.aio.insecure_channel(f"unix:{box.socket}") as channel:
        assert await appliance_pb2_grpc.VoicesStub(channel).ListVoices(pb.ListVoicesRequest())


def test_two_starts_at_once_give_one_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, looks, flock = tmp_path / "grpc.sock", threading.Event(), fcntl.flock
    bound: Any = SimpleNamespace(add_insecure_port=lambda address: 1)
    with socket.socket(socket.AF_UNIX) as first, ThreadPoolExecutor(1) as pool:
        with locked(tmp_path):
            monkeypatch.setattr(fcntl, "flock", lambda *arguments: (looks.set(), flock(*arguments)))
            late = pool.submit(module._bind_socket, bound, path, "server.socket")
            until(lambda: looks.is_set() or late.done())
            first.bind(str(path))
            first.listen()
        with pytest.raises(AddressInUse, match="another daemon listens"):
            late.result(PATIENCE_S)


async def test_files_in_the_sockets_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server replaces a dead daemon's socket. It refuses any other file and leaves it alone."""
    path, real = tmp_path / "grpc.sock", Path.stat
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    await start(at=path)
    path.unlink(missing_ok=True)
    path.write_text("mine")
    with pytest.raises(StorageError, match="is not a socket"):
        await start(at=path)
    assert path.read_text() == "mine"

    def closed(self: Path, **options: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied")
        return real(self, **options)

    with monkeypatch.context() as patch, pytest.raises(StorageError, match=r"grpc\.sock: Permission denied"):
        patch.setattr(Path, "stat", closed)
        await start(at=path)
    path.unlink()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(StorageError, match=rf"server\.socket: {tmp_path}: Permission denied"):
        await start(at=path)


async def test_a_drained_scheduler_answers_unavailable(box: Box, channel: grpc.aio.Channel) -> None:
    box.scheduler.drain()
    await refused(box.say(), "draining", code="UNAVAILABLE")


GZIP_CLIENT = """
import sys, grpc
with grpc.insecure_channel(
    sys.argv[1], options=(("grpc.max_send_message_length", -1),), compression=grpc.Compression.Gzip
) as channel:
    try:
        channel.unary_unary("/appliance.v1.Voices/CreateVoice")(bytes(100 << 20))
    except grpc.RpcError as error:
        print(error.code().name, error.details())
"""


def peak_mib() -> float:
    """Peak of this process's memory since the last reset."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) / 1024


async def test_a_compressed_message_is_refused_before_it_is_inflated(box: Box) -> None:
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mib()
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GZIP_CLIENT, box.address, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(client.communicate(), PATIENCE_S)
    assert output.decode().startswith("UNIMPLEMENTED Compression algorithm 'gzip' is disabled")
    assert peak_mib() - before < 20


DATA, RESET, PING, GOAWAY, ACK, END = 0, 3, 6, 7, 1, 1
PINGS = 20


@dataclass
class ByHand:
    """A hand-made HTTP/2 connection: gRPC's client answers pings, and sends few pings."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def frame(self) -> tuple[int, int, bytes] | None:
        """Kind, flags and content of the next frame; None once the server has closed."""
        try:
            head = await asyncio.wait_for(self.reader.readexactly(9), PATIENCE_S)
            content = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return head[3], head[4], content

    async def until(self, awaited: int) -> bytes:
        """Content of the next frame of a kind, without acknowledgements of settings."""
        while (frame := await self.frame()) is not None:
            kind, _, content = frame
            assert kind != GOAWAY, content
            if kind == awaited:
                return content
        raise AssertionError("the server has closed")


@asynccontextmanager
async def by_hand(address: str, *, watching: bool = False) -> AsyncIterator[ByHand]:
    """Connect; with `watching`, watch the health on stream 1 up to the first answer."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    connection = ByHand(reader, writer)
    writer.write(PREFACE)
    if watching:
        writer.write(begun_call(1, "/grpc.health.v1.Health/Watch") + frame(DATA, END, 1, bytes(5)))
        await connection.until(DATA)
    try:
        yield connection
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_client_may_ping_a_quiet_connection_as_often_as_it_likes(box: Box) -> None:
    async with by_hand(box.address) as client:
        for number in range(PINGS):
            client.writer.write(frame(PING, 0, 0, number.to_bytes(8, "big")))
            assert await client.until(PING) == number.to_bytes(8, "big")


async def test_a_request_that_grpcio_cannot_decode_logs_nothing(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (UnicodeDecodeError("utf-8", b"", 0, 1, "odd"), RuntimeError("odd")):
        logging.getLogger("grpc._cython.cygrpc").error("odd", exc_info=error)
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [RuntimeError]


async def test_a_reply_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SEND_BYTES", 1_000)

    class Long(appliance_pb2_grpc.VoicesServicer):
        async def GetVoice(self, message: pb.GetVoiceRequest, context: Any) -> pb.Voice:
            return pb.Voice(transcript="a" * 2_000)

    async with served(Long()) as address, grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
            await appliance_pb2_grpc.VoicesStub(channel).GetVoice(pb.GetVoiceRequest())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("pings", [0, 3])
async def test_a_client_that_freezes_is_dropped(monkeypatch: pytest.MonkeyPatch, pings: int) -> None:
    """Several pings with no message between them do not keep it."""
    monkeypatch.setattr(module, "KEEPALIVE_MS", int(scaled(100)))
    monkeypatch.setattr(module, "KEEPALIVE_TIMEOUT_MS", int(scaled(500)))
    async with served() as address, by_hand(address, watching=True) as client:
        for _ in range(pings):
            client.writer.write(frame(PING, ACK, 0, await client.until(PING)))
        await client.until(PING)  # gets no answer
        while await client.frame() is not None:
            pass


async def test_idle_connections_are_closed_and_watches_are_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_MS", 300)
    async with served() as address, by_hand(address, watching=True) as client:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.until(RESET), 0.7)
        client.writer.write(frame(RESET, 0, 1, (8).to_bytes(4, "big")))
        while await client.frame() is not None:
            pass


async def test_a_connection_that_never_says_a_word_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_MS", 300)
    async with served() as address:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        await writer.wait_closed()

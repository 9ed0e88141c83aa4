"""Budgets of callers: places, bytes, messages that arrive."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import grpc
import pytest

from appliance.errors import InvalidRequest
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc, callers
from appliance.rpc.callers import PlaceKind, check_fields
from appliance.rpc.context import OpenCall
from tests.harness.daemons import SMALL_WINDOW
from tests.harness.patience import PATIENCE_S
from tests.rpc.conftest import Box, connection, read, refusal, refused, request, sentences, start
from tests.rpc.test_synthesizer import Stub

RAW = "/appliance.v1.Synthesizer/Synthesize"


def caller(name: str) -> tuple[tuple[str, str], ...]:
    return (("x-f5-caller", name),)


async def opened(make: Callable[[], Any], most: int) -> list[Any]:
    """Open calls until the daemon refuses one; return the calls, each after its first message."""
    calls: list[Any] = []
    while len(calls) <= most:
        calls.append(make())
        try:
            await asyncio.wait_for(calls[-1].read(), PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            calls.pop()
            break
    return calls


async def test_places_to_watch_are_shared_by_connection_and_caller(box: Box) -> None:
    async with connection(box) as one, connection(box) as two, connection(box) as three:
        held = []
        for channel, room in ((one, 8), (two, 8), (three, 0)):
            queue = appliance_pb2_grpc.QueueStub(channel)
            watches = await opened(partial(queue.WatchQueue, pb.WatchQueueRequest()), 20)
            assert len(watches) == room
            held += watches
        async with grpc.aio.insecure_channel(f"unix:{box.socket}") as local:
            queue = appliance_pb2_grpc.QueueStub(local)
            for name in ("http 192.0.2.1", "http 192.0.2.2"):
                watch = partial(queue.WatchQueue, pb.WatchQueueRequest(), metadata=caller(name))
                held += (watches := await opened(watch, 20))
                assert len(watches) == 16
        assert len(box.callers._calls) == 48


async def test_a_caller_named_over_tcp_is_ignored(
    synthesizer: Stub, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(callers.OF_CALLER, PlaceKind.OTHER, 1)  # type: ignore[arg-type]
    with box.held():
        first = start(synthesizer.Synthesize(request(), metadata=caller("http 192.0.2.1")))
        await box.soon(lambda: bool(box.callers._calls))
        (call,) = box.callers._calls
        assert call.caller.key == "ipv4:127.0.0.1"
    await first


async def test_a_reply_that_is_not_read_is_charged_until_its_connection_ends(
    synthesizer: Stub, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "HELD_BYTES", 3 << 20)
    long = request(sentences(20), audio_config={"sample_rate_hertz": 48_000})  # ten seconds of audio
    async with connection(box, *SMALL_WINDOW) as slow:
        unread = slow.unary_stream(RAW, request_serializer=pb.SynthesizeRequest.SerializeToString)(long)
        await box.soon(lambda: any(call.writing_since for call in box.speaking._calls))
        full = {"code": "RESOURCE_EXHAUSTED", "reason": "TOO_MANY_CALLS"}
        await refused(synthesizer.Synthesize(long), "would hold more than 3 MiB", **full)
        # A stream counts only the bytes that may wait for its reader.
        assert (await read(box.stream(sentences(20))))[1]
        # The call is stalled: its job and its place for speech are free, but gRPC still holds its messages.
        box.speaking.drop_stalled(0.0)
        await box.soon(lambda: not box.speaking._calls)
        await refusal(synthesizer.Synthesize(long))
        del unread
    await box.soon(lambda: not box.callers._calls)
    assert (await synthesizer.Synthesize(long)).audio


async def test_messages_have_a_length_by_method_and_a_number_of_fields(channel: grpc.aio.Channel) -> None:
    for message, said in (
        (b"\x0a" + b"\xff\xff\x7f" + b"a" * 0x1FFFFF, "at most 524288 are allowed"),
        (b"\x0a\x00" * 60_000, "has more than 2048 fields"),
        (b"\xff" * 100, "is not the protobuf of a Synthesize request"),
        (b"\x82\x01\x06\x0a\x01a\x12\x01b" * 40_000, "has more than 2048 fields"),
    ):
        await refused(channel.unary_unary(RAW)(message, timeout=PATIENCE_S), said)


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"])
async def test_health_refuses_invalid_protobuf_too(channel: grpc.aio.Channel, method: str) -> None:
    await refused(channel.unary_stream(method)(b"\xff\xff", timeout=PATIENCE_S).read())


async def test_a_call_without_message_or_of_an_unknown_method_has_a_status(
    channel: grpc.aio.Channel,
) -> None:
    call = channel.stream_unary(RAW)(timeout=PATIENCE_S)
    await call.done_writing()
    await refused(call, "closed without one")
    unknown = {"code": "UNIMPLEMENTED", "reason": "UNKNOWN_METHOD"}
    await refused(channel.unary_unary("/x/Y")(b"", timeout=PATIENCE_S), **unknown)


async def test_a_message_that_does_not_arrive_ends_its_call(channel: grpc.aio.Channel, box: Box) -> None:
    late = [channel.stream_unary(RAW)(timeout=PATIENCE_S) for _ in range(callers.INSIDE)]
    arriving = lambda: sum(call.arriving_since is not None for call in box.callers._calls)  # noqa: E731
    await box.soon(lambda: arriving() == len(late))
    waiting = start(box.say())
    await box.soon(lambda: len(box.callers._calls) == len(late) + 1)
    assert arriving() == len(late)
    box.callers.drop_stalled(0.0)
    for call in late:
        await refused(call, "message did not arrive within", code="DEADLINE_EXCEEDED")
    assert (await waiting).audio


def test_fields_are_counted_whatever_the_bytes_are() -> None:
    odd = b"\x0d1234\x091234567812\x03abc"
    for message in (b"", b"\xff" * 30, b"\x08\x96\x01" * 2_048, odd, b"\x0a\xff"):
        check_fields(message)
    with pytest.raises(InvalidRequest):
        check_fields(b"\x08\x96\x01" * 2_049)


async def test_a_call_stalls_while_it_sends_and_ends_once() -> None:
    class Taking:
        async def write(self, message: float) -> None:
            assert [call.has_stalled(now, 30.0) for now in (message, message + 0.1)] == [False, True]

    task, taking = asyncio.create_task(asyncio.sleep(2 * PATIENCE_S)), cast("Any", Taking())
    call = OpenCall(context=taking, clock=lambda: 5.0, task=task)
    await call.send(35.0)
    await call.send(42.0, played=12.0)
    assert not call.has_stalled(1e9, 30.0)
    for why in (first := InvalidRequest("text", "is odd"), InvalidRequest("text", "is long")):
        call.end(why)
    assert call.ended_by is first
    await asyncio.wait_for(asyncio.wait((task,)), PATIENCE_S)
    assert task.cancelled()


async def test_a_client_who_leaves_at_the_end_is_no_error(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(4):
        async with connection(box, *SMALL_WINDOW) as slow:
            stub = appliance_pb2_grpc.SynthesizerStub(slow)
            unread = [stub.StreamSynthesize(request(sentences(20))) for _ in range(4)]
            await box.soon(lambda: sum(bool(call.writing_since) for call in box.speaking._calls) == 4)
            box.speaking.drop_stalled(0.0)
            for call in unread:
                call.cancel()
        await box.soon(lambda: not box.callers._calls)
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]

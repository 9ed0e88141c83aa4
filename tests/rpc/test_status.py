"""The table from errors to statuses, and the interceptor that applies it to every call."""

import asyncio
import inspect
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from appliance import errors
from appliance.errors import (
    ApplianceError,
    InvalidReference,
    InvalidRequest,
    Overloaded,
    QueueFull,
    ResourceExhausted,
)
from appliance.rpc.status import TABLE, rule_for, to_status
from tests.harness.patience import PATIENCE_S, scaled
from tests.rpc.conftest import Box, read, refused, reply_of, request, start

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ApplianceError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_its_own_or_its_parents_status(kind: type[ApplianceError]) -> None:
    assert kind in TABLE or kind in (InvalidReference, ResourceExhausted)
    assert isinstance(TABLE.get(kind, TABLE[InvalidRequest]).code, grpc.StatusCode)


def test_the_nearest_class_counts() -> None:
    assert rule_for(InvalidReference("audio", "is silent")).code is grpc.StatusCode.INVALID_ARGUMENT

    class Sudden(errors.QueueFull):
        pass

    assert rule_for(Sudden("no room")).code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_longest_message_fits_into_a_clients_8_kib() -> None:
    status = to_status(InvalidRequest("text", "長" * 100_000))
    percent_encoded = 3 * len(status.message.encode())
    base64 = 4 * len(status.SerializeToString()) / 3
    assert percent_encoded + base64 < 8_000
    assert status.message.startswith("text: 長")
    assert status.message.endswith("…")


def details_of(error: ApplianceError) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo]:
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in to_status(error).details:
        detail.Unpack(info), detail.Unpack(retry)
    return info, retry


@pytest.mark.parametrize(("error", "seconds", "wait_ms"), [
    (Overloaded("no room", 0.734), 0.734, "734"),
    (QueueFull("no room", 12.5), 12.5, "12500"),
    (QueueFull("no room"), 1.0, None),
    (InvalidRequest("text", "is empty"), 0.0, None),
])  # fmt: skip
def test_an_errors_own_wait_comes_first(error: ApplianceError, seconds: float, wait_ms: str | None) -> None:
    info, retry = details_of(error)
    assert retry.retry_delay.ToNanoseconds() / 1e9 == pytest.approx(seconds)
    assert info.metadata.get("wait_ms") == wait_ms


MALFORMED = [b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe", b"\x08" + b"\xff" * 11]
"""A bad tag, a string that ends early, a string that is not UTF-8, an endless number."""


@pytest.mark.parametrize(
    "method", ["Synthesizer/Synthesize", "Synthesizer/StreamSynthesize", "Voices/CreateVoice"]
)
async def test_bytes_that_are_no_message_are_invalid_and_counted(
    box: Box, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    stream = method.endswith("/StreamSynthesize")
    for data in MALFORMED:
        call: Any = (channel.unary_stream if stream else channel.unary_unary)(f"/appliance.v1.{method}")(data)
        await refused(call.read() if stream else call, "is not the protobuf of a", field="message")
    assert box.observed == 4 * [(method.partition("/")[2], "INVALID_ARGUMENT", "INVALID_REQUEST")]
    assert caplog.records == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("deadline", [False, True])
async def test_a_missed_deadline_is_not_counted_as_cancelled(box: Box, stream: bool, deadline: bool) -> None:
    with box.held():
        first = start(box.say())
        await box.soon(lambda: box.scheduler.load.running == 1)
        ask: Any = box.synthesizer.StreamSynthesize if stream else box.synthesizer.Synthesize
        # gRPC rounds a timeout above a second up to steps of 10 ms.
        call = ask(request("late"), timeout=scaled(1.001) if deadline else PATIENCE_S)
        waiting = asyncio.ensure_future(read(call) if stream else reply_of(call))
        await box.soon(lambda: box.scheduler.load.waiting == 1)
        if not deadline:
            call.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await box.soon(lambda: bool(box.observed))
        name = "StreamSynthesize" if stream else "Synthesize"
        expected = ("DEADLINE_EXCEEDED", "DEADLINE_MISSED") if deadline else ("CANCELLED", "")
        assert box.observed == [(name, *expected)]
    assert (await first).audio
    assert box.opened == ["one", "two"]

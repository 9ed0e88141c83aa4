"""Calls that a grpc.aio client leaves by `break`: grpcio from 1.83 on never cancels them (grpc#43462)."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from riva.client.proto import riva_tts_pb2, riva_tts_pb2_grpc

from appliance.client import Client
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from tests.harness.daemons import SMALL_WINDOW, Running, running
from tests.harness.patience import PATIENCE_S, scaled, until

pytestmark = pytest.mark.slow

STALLED = "the reader has taken no audio for too long"
LONG = " ".join(f"Line {number} of many." for number in range(20))
Door = Callable[[grpc.aio.Channel, str], Awaitable[None]]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon on which a sixteenth of a caller's places, a single one, is for sessions."""
    server = {"write_timeout_s": 0.5, "max_calls_of_peer": 16}
    with running(tmp_path_factory.mktemp("dropped"), server=server) as box:
        box.add_voice()
        yield box


def connected(box: Running) -> grpc.aio.Channel:
    """Open a new connection with a small window."""
    options = (("grpc.use_local_subchannel_pool", 1), *SMALL_WINDOW)
    return grpc.aio.insecure_channel(box.address, options=options)


async def stream(channel: grpc.aio.Channel, text: str) -> None:
    synthesizer = appliance_pb2_grpc.SynthesizerStub(channel)
    asked = pb.SynthesizeRequest(text=text, voice="ann", channel="stage")
    async for message in synthesizer.StreamSynthesize(asked, timeout=10 * PATIENCE_S):
        if message.WhichOneof("message") == "audio":
            break


async def session(channel: grpc.aio.Channel, text: str) -> None:
    configure = pb.SynthesizeRequest(voice="ann", channel="stage")
    said = open_ended(
        *(pb.SessionRequest(configure=configure), pb.SessionRequest(text=text)),
        pb.SessionRequest(flush=pb.Flush()),
    )
    async for message in appliance_pb2_grpc.SynthesizerStub(channel).Session(said):
        if message.WhichOneof("message") == "audio":
            break


async def riva(channel: grpc.aio.Channel, text: str) -> None:
    said = open_ended(riva_tts_pb2.SynthesizeSpeechRequest(text=text, voice_name="F5.ann"))
    async for message in riva_tts_pb2_grpc.RivaSpeechSynthesisStub(channel).SynthesizeOnline(said):
        assert message.audio
        break


async def open_ended(*messages: Any) -> AsyncIterator[Any]:
    for message in messages:
        yield message
    await asyncio.Event().wait()


@pytest.mark.parametrize("door", [stream, session, riva])
async def test_the_channel_of_a_dropped_call_is_soon_free(box: Running, door: Door) -> None:
    """The daemon waits for the playing time of the audio in the window plus `server.write_timeout_s`."""
    client, begun = Client(box.address), len(box.lines)

    def is_free() -> bool:
        return STALLED in "".join(box.lines[begun:]) and not client.utterances()

    async with connected(box) as channel:
        await door(channel, LONG)
        gc.collect()
        left = time.monotonic()
        await asyncio.to_thread(until, is_free, lambda: box.log)
        assert time.monotonic() - left < scaled(15.0), "far less than the usual 30 s"
        assert channel.get_state() is grpc.ChannelConnectivity.READY, "the connection is as it was"
        if door is session:
            # The session's place is free again: this caller has a single place.
            async with connected(box) as other:
                while not await is_let_in(other):
                    assert time.monotonic() - left < scaled(15.0)
                    await asyncio.sleep(0.1)


async def is_let_in(channel: grpc.aio.Channel) -> bool:
    try:
        await session(channel, "Hi.")
    except grpc.aio.AioRpcError as error:
        # grpc.aio reports INTERNAL if a write fails before the refusal has been read.
        assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL)
        return False
    return True

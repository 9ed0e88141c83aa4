"""Number of characters of an interrupted reply that its player has reached, by the queue's clock."""

from collections.abc import Iterator
from threading import Event

import pytest

from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.replies import utterance_message
from tests.harness.patience import PATIENCE_S
from tests.rpc.conftest import Box, refusal, request
from tests.rpc.test_session import cancel, session

FIRST = "Hello, my good friends."
WRITTEN = f"{FIRST} Come in and stay for a while. And listen."


@pytest.fixture(autouse=True)
def stays_at_second_segment(box: Box) -> Iterator[Event]:
    go = Event()

    def wait_after_the_first() -> None:
        if any(call.startswith("finish ") for call in box.engine.calls):
            go.wait(PATIENCE_S)

    box.engine.on_step = wait_after_the_first
    yield go
    go.set()


async def until_heard(box: Box, characters: int) -> None:
    def heard() -> list[int]:
        present = box.scheduler.queue.utterances()[0]
        return [utterance_message(one, 0.0).heard_characters for one in present]

    await box.soon(lambda: heard()[:1] == [characters])


async def test_a_skipped_stream_ends_with_its_heard_characters(box: Box) -> None:
    moderator, stage = appliance_pb2_grpc.QueueStub(box.channel), pb.ChannelRequest(channel="stage")
    watch = moderator.WatchQueue(pb.WatchQueueRequest(channel="stage"))
    call = box.synthesizer.StreamSynthesize(request(WRITTEN, channel="stage"))
    await until_heard(box, len(FIRST) - 1)  # this planner drops the full stop
    [skipped] = (await moderator.Skip(stage)).utterances
    messages = [await call.read()]
    while not messages[-1].HasField("end"):
        messages.append(await call.read())
    assert messages[-1].end.heard_characters == skipped.heard_characters == len(FIRST) - 1
    assert messages[-1].end.samples == sum(len(m.audio.data) for m in messages) // 2 > 0
    assert (await refusal(call.read()))[1]["ErrorInfo"].reason == "SKIPPED"
    while not (ended := [u for u in (await watch.read()).utterances if u.state == pb.ENDED]):
        pass
    assert [(u.reason, u.heard_characters) for u in ended] == [("SKIPPED", len(FIRST) - 1)]


async def test_a_cancelled_utterance_is_counted(box: Box, stays_at_second_segment: Event) -> None:
    client = await session(box, nfe_steps=3, channel="stage")
    await client.write(WRITTEN)
    await until_heard(box, len(FIRST))
    await client.write(cancel(1))
    await client.until(box, 1, "CANCELLED")
    assert client.heard == {1: len(FIRST)}
    stays_at_second_segment.set()
    await client.end()

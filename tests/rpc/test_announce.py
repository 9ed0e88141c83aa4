"""Names read out before lines, and users whose lines are not read, for each way to send a line."""

import asyncio
from typing import Any

import pytest

from appliance.config import ChannelRow, TextConfig
from appliance.contract import bundle
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.text.sayable import FrontEnd
from tests.harness.daemons import ROOT
from tests.rpc.conftest import Box, refused, start
from tests.rpc.test_session import FLUSH, session

ANN = {"user_key": "Ann_99", "announce": "{user} says", "channel": "stage", "seed": None}


def rows(box: Box, **row: Any) -> None:
    """Reload the configuration with this row for the channel."""
    vocabulary = bundle.read(ROOT / "appliance/demo/bundle").vocabulary()
    choices = TextConfig(channels={"stage": ChannelRow(**row)})
    box.change(front=FrontEnd(vocabulary, choices, languages=("en",)))


@pytest.fixture(autouse=True)
def front(box: Box) -> None:
    rows(box)


def opened(box: Box) -> list[str]:
    """Texts that the engine began, in order."""
    return [call.removeprefix("open ") for call in box.engine.calls if call.startswith("open ")]


NAMED = "Ann nine nine says: "


async def test_a_name_is_spoken_once_within_the_pause_of_its_channel(box: Box) -> None:
    async def said(text: str, **fields: Any) -> str:
        return str((await box.say(text, **{**ANN, **fields})).header.text)

    assert await said("hi") == NAMED + "hi"
    assert await said("hi 5", user_key="@ann_99") == "hi five"
    assert await said("hi", user_key="bob", announce="{user}") == "bob: hi"
    assert await said("hi", channel="other") == NAMED + "hi"
    assert await said("<speak>hi</speak>", user_key="eve", text_handling="SSML") == "eve says: hi"
    assert await said("hi", user_key="~~") == "hi"
    assert await said("...", user_key="dan") == ""
    assert await said("HI", user_key="dan", text_handling="VERBATIM") == "dan says: HI"
    rows(box, announce_pause_s=0.0)
    assert await said("hi") == NAMED + "hi"
    [held] = [u.job.request for u in box.scheduler.queue.utterances()[0] if u.job.request.voice][-1:]
    assert (held.written, held.opening) == ("hi", "Ann nine nine says:")
    await refused(box.say("hi", announce="{user}"), field="announce")


async def test_silent_users_are_not_read(box: Box) -> None:
    rows(box, silent=("NightBot",))
    for user in ("nightbot", "@Nightbot"):
        reply = await box.say(
            "Follow me!", user_key=user, channel="stage", audio_config={"encoding": "PCM16"}
        )
        assert (reply.header.text, reply.audio) == ("", b"")
        assert reply.header.skipped_reason == "its user is on the silent list of its channel"
    client = await session(box, channel="stage", user_key="nightbot")
    await client.end("Follow me! Now.")
    assert list(client.skipped.values()) == [reply.header.skipped_reason] and client.audio == {}
    assert (await box.say("Follow me!", user_key="nightbot", channel="other")).header.text == "Follow me!"
    assert opened(box) == ["Follow me!"]


@pytest.mark.parametrize("key", ["merge_key", "supersede_key"])
async def test_the_replacement_of_a_line_speaks_its_name(box: Box, key: str) -> None:
    with box.held():
        calls = [start(box.say("one", **{**ANN, key: "k"}))]
        await box.soon(lambda: box.scheduler.load.running == 1)
        calls.append(start(box.say("two", **{**ANN, key: "k"})))
        await box.soon(calls[0].done)
        calls.append(start(box.say("four", **ANN)))
        await box.soon(lambda: len(box.scheduler.queue.utterances()[0]) == 2)
    await asyncio.wait(calls)
    assert opened(box)[-2:] == [NAMED + ("two, two times" if key == "merge_key" else "two"), "four"]


async def test_a_line_that_nobody_heard_leaves_the_name_to_the_next(box: Box) -> None:
    moderator = appliance_pb2_grpc.QueueStub(box.channel)
    await moderator.Moderate(pb.ChannelRequest(channel="stage"))
    first = start(box.say("one", **ANN))
    await box.soon(lambda: len(box.scheduler.queue.utterances()[0]) == 1)
    second = start(box.say("two", **ANN))
    await box.soon(lambda: len(box.scheduler.queue.utterances()[0]) == 2)
    assert [u.job.request.text for u in box.scheduler.queue.utterances()[0]] == [NAMED + "one", "two"]
    await moderator.Reject(pb.ApprovalRequest(channel="stage"))
    await asyncio.wait([first, second])
    third = start(box.say("three", **ANN))
    await box.soon(lambda: len(box.scheduler.queue.utterances()[0]) == 1)
    await moderator.Approve(pb.ApprovalRequest(channel="stage"))
    assert (await third).header.text == NAMED + "three"


async def test_an_utterance_of_a_session_is_one_line(box: Box) -> None:
    rows(box, announce_pause_s=0.0)
    client = await session(box, **{**ANN, "seed": 7})
    await client.end("... Yes. One two three four five six. Seven eight nine ten. ", FLUSH, "More.")
    assert client.texts[1][0].startswith(NAMED) and len(client.texts[1]) > 1
    assert not any("Ann" in text for text in client.texts[1][1:])
    assert client.texts[2] == [NAMED + "More."]

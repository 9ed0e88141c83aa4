"""Lines that wait for a moderator's approval, over real gRPC with a fake engine."""

import asyncio
from typing import Any

import grpc
import pytest

from appliance.audio.phrases import Phrases
from appliance.rpc import appliance_pb2 as pb
from tests.harness.patience import PATIENCE_S
from tests.rpc.conftest import Box, read, refused, request, sentences, start
from tests.rpc.test_listen import Player, audio_of, listening, plain
from tests.rpc.test_queue import Moderator, moderator, on, overlay
from tests.rpc.test_synthesizer import Stub

__all__ = ["moderator"]


def of(*request_ids: str) -> pb.ApprovalRequest:
    return pb.ApprovalRequest(channel="stage", request_ids=request_ids)


async def made(box: Box, count: int) -> None:
    """Wait until the engine has made `count` requests."""
    await box.soon(lambda: sum(u.job.is_done for u in box.scheduler.queue.utterances()[0]) == count)


def heard_of(player: Player, name: str) -> bytes:
    return player.utterances[name].samples if name in player.utterances else b""


@pytest.mark.parametrize("kind", ["unary", "stream", "cached"])
async def test_an_approved_line_sounds_like_an_unmoderated_one(
    synthesizer: Stub, moderator: Moderator, box: Box, kind: str
) -> None:
    if kind == "cached":
        box.change(phrases=Phrases(1 << 20))
    message = request("one. two", channel="stage", request_id="r", audio_config={"encoding": pb.PCM16})
    expected = await plain(synthesizer, message)
    async with listening(moderator) as player, overlay(moderator) as watch:
        await moderator.Moderate(on("stage"))
        if kind == "unary":
            call = start(synthesizer.Synthesize(message))
        else:
            call = start(audio_of(synthesizer.StreamSynthesize(message)))
        await watch.until("stage r HELD")
        await made(box, 1)
        listed = await moderator.ListUtterances(pb.ListUtterancesRequest(channel="stage"))
        [line] = listed.utterances
        assert (line.state, line.starts_in_ms, list(listed.moderated)) == (pb.HELD, 0.0, ["stage"])
        preview = await moderator.Preview(pb.PreviewRequest(channel="stage", request_id="r"))
        assert preview.audio[44:].startswith(expected + b"LIST")
        # Another channel's line comes after everything that the daemon could have sent of this line.
        await box.say(channel="other")
        assert player.utterances == {} and not call.done()
        [approved] = (await moderator.Approve(of("r"))).utterances
        assert (approved.request_id, approved.state) == ("r", pb.SOUNDING)
        reply = await asyncio.wait_for(call, PATIENCE_S)
        await player.soon(lambda: len(heard_of(player, "r")) == len(expected))
        await watch.until("stage r SOUNDING")
    assert (reply.audio if kind == "unary" else reply) == heard_of(player, "r") == expected
    assert (await moderator.Approve(of())).utterances == []


async def test_a_rejected_line_never_sounds(moderator: Moderator, box: Box) -> None:
    await moderator.Moderate(on("stage"))
    async with listening(moderator) as player, overlay(moderator) as watch:
        calls: dict[str, asyncio.Future[Any]] = {}
        for name in ("bad", "good", "worse", "late"):
            calls[name] = start(read(box.stream("hi", channel="stage", request_id=name)))
            await watch.until(f"stage {name} HELD")
        await made(box, 4)
        [ended] = (await moderator.Reject(of("bad"))).utterances
        assert (ended.request_id, ended.state, ended.reason) == ("bad", pb.HELD, "REJECTED")
        await moderator.Approve(of("good"))
        # A reject without ids ends the other held lines; the sounding line stays.
        assert [u.request_id for u in (await moderator.Reject(of())).utterances] == ["worse", "late"]
        for name in ("bad", "worse", "late"):
            await refused(calls[name], "rejected", code="ABORTED", reason="REJECTED")
            await watch.until(f"stage {name} ENDED REJECTED")
        await player.until("good")
        assert player.order == ["good"]
    assert (await moderator.Reject(of("nobody"))).utterances == []


async def test_a_rejection_after_an_approval_wins(synthesizer: Stub, moderator: Moderator, box: Box) -> None:
    await moderator.Moderate(on("stage"))
    async with listening(moderator) as player, overlay(moderator) as watch:
        start(synthesizer.Synthesize(request(sentences(20), channel="stage", request_id="r")))
        await watch.until("stage r HELD")
        await moderator.Approve(of("r"))
        await watch.until("stage r SOUNDING")
        assert (await moderator.Reject(of())).utterances == []
        assert [u.reason for u in (await moderator.Reject(of("r"))).utterances] == ["REJECTED"]
        await player.until("r", "REJECTED")


async def test_a_channel_is_moderated_until_it_is_no_more(moderator: Moderator, box: Box) -> None:
    async with overlay(moderator, "stage") as watch:
        await moderator.Moderate(on("other"))
        await moderator.Moderate(on("stage"))
        held = start(box.say(channel="stage", request_id="held"))
        await watch.until("stage held HELD")
        await moderator.Unmoderate(on("stage"))
        await box.say(channel="stage", request_id="free")
        assert [u.state for u in watch.present.values() if u.request_id == "held"] == [pb.HELD]
        listed = await moderator.ListUtterances(pb.ListUtterancesRequest())
        assert list(listed.moderated) == ["other"]
        await moderator.Clear(on("stage"))
        await refused(held, code="ABORTED", reason="CLEARED")


async def test_an_approval_names_its_channel(moderator: Moderator) -> None:
    await refused(moderator.Approve(pb.ApprovalRequest(request_ids=["r"])), "channel: is missing")
    await refused(moderator.Reject(pb.ApprovalRequest()), "channel: is missing")
    await refused(moderator.Approve(of(*map(str, range(1_001)))), "request_ids: are 1001")


async def test_a_line_ends_with_its_caller(synthesizer: Stub, moderator: Moderator, box: Box) -> None:
    await moderator.Moderate(on("stage"))
    call = synthesizer.StreamSynthesize(request("hi", channel="stage", request_id="r"))
    await call.read()
    await made(box, 1)
    call.cancel()
    await box.soon(lambda: box.scheduler.queue.utterances()[0] == [])
    with pytest.raises(asyncio.CancelledError):
        await call.read()
    assert await call.code() is grpc.StatusCode.CANCELLED

"""A moderator's verbs over real gRPC with a fake engine: one evening on two channels."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from appliance.errors import Cancelled, StorageError
from appliance.request import RequestCounts
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.scheduler.workload import QueueState
from tests.harness.daemons import SMALL_WINDOW
from tests.harness.engine import raising
from tests.harness.patience import PATIENCE_S
from tests.rpc.conftest import Box, Follower, connection, details_of, read, refused, request, sentences, start
from tests.rpc.test_scheduling import large_buffer, lazy
from tests.rpc.test_synthesizer import Stub

README = (Path(__file__).parents[2] / "appliance/rpc/README.md").read_text("utf-8")
Moderator = appliance_pb2_grpc.QueueStub


@pytest.fixture
def moderator(channel: grpc.aio.Channel) -> Moderator:
    return Moderator(channel)


def on(channel: str) -> pb.ChannelRequest:
    return pb.ChannelRequest(channel=channel)


class Overlay(Follower):
    """Follows the queue as an overlay does, and writes down each change."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.present: dict[str, pb.Utterance] = {}
        self.paused: list[str] | None = None

    def take(self, message: Any) -> None:
        self.paused = list(message.paused)
        for u in message.utterances:
            before = self.present.get(u.request_id)
            state = pb.UtteranceState.Name(u.state)
            if before is None or before.state != u.state:
                reason = f" {u.reason}" if u.state == pb.ENDED else ""
                self.lines.append(f"{u.channel} {u.request_id} {state}{reason}")
            if u.state == pb.ENDED:
                self.present.pop(u.request_id, None)
            else:
                self.present[u.request_id] = u

    async def until(self, line: str) -> None:
        await self.soon(lambda: line in self.lines)


@asynccontextmanager
async def overlay(moderator: Moderator, channel: str = "") -> AsyncIterator[Overlay]:
    watching = Overlay()
    events = moderator.WatchQueue(pb.WatchQueueRequest(channel=channel))
    async with watching.following(events, lambda: watching.paused is not None):
        yield watching


async def test_an_evening(synthesizer: Stub, moderator: Moderator, box: Box) -> None:
    """The transcript of the evening equals the README's."""
    calls: dict[str, asyncio.Future[Any]] = {}

    async with overlay(moderator) as watch:

        async def say(name: str, text: str, channel: str = "stage", **fields: Any) -> None:
            message = request(text, channel=channel, request_id=name, **fields)
            calls[name] = start(synthesizer.Synthesize(message))
            await watch.until(f"{channel} {name} WAITING")

        async def spoken() -> None:
            """Wait for the engine: on a loaded machine a verb could otherwise come while the engine still
            speaks."""
            await box.soon(lambda: all(u.job.is_done for u in box.scheduler.queue.utterances()[0]))

        def do(what: str) -> None:
            watch.lines.append(f"-- {what}")

        do("a long message, and chat behind it")
        with box.held():
            await say("long", sentences(20))
        await watch.until("stage long SOUNDING")
        with box.held():
            await say("hello", sentences(8))
            await box.soon(lambda: box.scheduler.load.running == 1)
            await say("spam", "buy followers", user_key="troll")
            rose = {"merge_key": "ann rose", "merge_text": "Ann sent {count} roses"}
            await say("rose", "Ann sent a rose", **rose)
            await say("score", "one nil", supersede_key="score")
            do("more roses, and another goal")
            await say("roses", "Ann sent a rose", merge_count=4, **rose)
            await say("goal", "two nil", supersede_key="score")
            await watch.until("stage score ENDED SUPERSEDED")
            do("Cancel what the troll says")
            await moderator.CancelUtterances(pb.CancelUtterancesRequest(user_key="troll"))
            await watch.until("stage spam ENDED CANCELLED")
            do("an alert on another channel")
            await say("alert", "raid", "alerts", priority="REALTIME")
        await watch.until("alerts alert SOUNDING")
        await watch.until("alerts alert ENDED SPOKEN")
        await spoken()
        do("Skip")
        skipped = await moderator.Skip(on("stage"))
        assert [u.request_id for u in skipped.utterances] == ["long"]
        await watch.until("stage hello SOUNDING")
        do("Pause; a message comes; Skip; Resume")
        await moderator.Pause(on("stage"))
        await say("late", "good night")
        await spoken()
        held = [await moderator.ListUtterances(pb.ListUtterancesRequest(channel="stage")) for _ in range(2)]
        assert held[0] == held[1]  # a pause stops the countdown to the start
        await moderator.Skip(on("stage"))
        await watch.until("stage hello ENDED SKIPPED")
        assert watch.paused == ["stage"]
        await moderator.Resume(on("stage"))
        await watch.until("stage roses SOUNDING")
        do("Clear")
        cleared = await moderator.Clear(on("stage"))
        assert [u.request_id for u in cleared.utterances] == ["goal", "late"]
        await watch.until("stage roses ENDED SPOKEN")
        assert watch.present == {} and watch.paused == []

    # Delivered replies: a unary reply that was finished before a moderator's verb has its audio.
    ends = {name: await outcome(call) for name, call in calls.items()}
    assert ends == {
        "long": "20 sentences",
        "hello": "8 sentences",
        "spam": "CANCELLED CANCELLED",
        "rose": "ABORTED MERGED",
        "score": "ABORTED SUPERSEDED",
        "roses": "1 sentences",
        "goal": "1 sentences",
        "alert": "1 sentences",
        "late": "1 sentences",
    }
    assert "open Ann sent 5 roses" in box.engine.calls
    for text in ("Ann sent a rose", "one nil", "buy followers"):
        assert f"open {text}" not in box.engine.calls
    [transcript] = re.findall(r"```text\n(-- a long.*?)```", README, re.DOTALL)
    assert "\n".join(watch.lines) + "\n" == transcript


async def outcome(call: asyncio.Future[Any]) -> str:
    try:
        reply = await call
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name} {details_of(error)['ErrorInfo'].reason}"
    return f"{reply.header.segments} sentences"


async def test_a_watcher_of_a_channel_sees_no_other(moderator: Moderator, box: Box) -> None:
    async with overlay(moderator, "b") as watch:
        for channel in ("a", "b"):
            await box.say("hi", channel=channel, request_id=f"on-{channel}")
        await watch.until("b on-b SOUNDING")
        assert all(line.startswith("b ") for line in watch.lines)
        listed = await moderator.ListUtterances(pb.ListUtterancesRequest(channel="b"))
        [utterance] = listed.utterances
        assert (utterance.voice, utterance.text, utterance.merged) == ("ann", "hi", 1)
        assert utterance.length_ms == pytest.approx(501.8, abs=50.0)
        assert -utterance.length_ms <= utterance.starts_in_ms <= 0.0
    await box.soon(lambda: not box.queue._watchers)


@large_buffer
async def test_a_skipped_stream_that_is_only_read_ends_too(moderator: Moderator, box: Box) -> None:
    async with connection(box, *SMALL_WINDOW) as other:
        call = await lazy(box, other, on="stage")
        await box.soon(lambda: box.scheduler.load == RequestCounts())
        [ended] = (await moderator.Skip(on("stage"))).utterances
        assert (ended.state, ended.reason) == (pb.SOUNDING, "SKIPPED")
        await refused(read(call), code="ABORTED", reason="SKIPPED")


INCOMPLETE = [
    ("Skip", pb.ChannelRequest(), "channel: is missing"),
    ("Clear", pb.ChannelRequest(), "channel: is missing"),
    ("Pause", pb.ChannelRequest(channel="x" * 129), "channel: has 129 characters"),
    ("CancelUtterances", pb.CancelUtterancesRequest(), "request_ids: or user_key or channel"),
    ("ListUtterances", pb.ListUtterancesRequest(channel="x" * 129), "channel: has 129 characters"),
]


VERBS = {
    **dict.fromkeys(("Pause", "Resume", "Moderate", "Unmoderate", "Skip", "Clear"), pb.ChannelRequest),
    **dict.fromkeys(("Approve", "Reject"), pb.ApprovalRequest),
    "CancelUtterances": pb.CancelUtterancesRequest,
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_answers_once_it_is_stored_or_with_the_error(
    moderator: Moderator, box: Box, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    reached, go, message = threading.Event(), threading.Event(), VERBS[verb](channel="stage")
    monkeypatch.setattr(box.kept, "save", lambda: reached.set() or go.wait(PATIENCE_S))
    call = start(getattr(moderator, verb)(message))
    await asyncio.to_thread(reached.wait, PATIENCE_S)
    await moderator.ListUtterances(pb.ListUtterancesRequest())  # arrives after the verb
    assert not call.done()
    go.set()
    await call
    monkeypatch.setattr(box.kept, "save", raising(StorageError("not stored: the disk is full")))
    await refused(
        getattr(moderator, verb)(message), "disk is full", code="FAILED_PRECONDITION", reason="STORAGE_ERROR"
    )


async def test_the_queue_reports_since_when_a_channel_is_paused(moderator: Moderator, box: Box) -> None:
    box.scheduler.queue.restore(QueueState(paused={"stage": 1_000.5, "alerts": 2_000.0}))
    listed = await moderator.ListUtterances(pb.ListUtterancesRequest())
    assert (list(listed.paused), list(listed.paused_since)) == (["alerts", "stage"], [2_000.0, 1_000.5])
    listed = await moderator.ListUtterances(pb.ListUtterancesRequest(channel="stage"))
    assert (list(listed.paused), list(listed.paused_since)) == (["stage"], [1_000.5])


@pytest.mark.parametrize(("is_total", "merged"), [(False, [2, 6, 9]), (True, [2, 4, 4])])
async def test_a_count_adds_to_the_waiting_one_unless_it_is_total(
    moderator: Moderator, box: Box, is_total: bool, merged: list[int]
) -> None:
    await moderator.Pause(on("stage"))
    gift = {"channel": "stage", "merge_key": "ann", "merge_count_is_total": is_total}
    queue, counts = box.scheduler.queue, list[int]()
    for number, count in enumerate((2, 4, 3), 1):
        start(box.say("a rose", merge_count=count, **gift))
        await box.soon(lambda n=number: sum(map(len, queue.utterances()[:2])) == n)
        counts.append(queue.utterances()[0][0].job.merged)
    assert counts == merged


async def test_a_verb_needs_its_object(moderator: Moderator) -> None:
    for method, message, error in INCOMPLETE:
        await refused(getattr(moderator, method)(message), error)


@large_buffer
async def test_a_client_that_goes_away_frees_its_channel(box: Box) -> None:
    async with connection(box, *SMALL_WINDOW) as other:
        call = await lazy(box, other, on="stage")
        await box.soon(lambda: box.scheduler.load == RequestCounts())
        assert [u.job.terms.channel for u in box.scheduler.queue.utterances()[0]] == ["stage"]
        call.cancel()
        await box.soon(lambda: box.scheduler.queue.utterances()[0] == [])
    [ended] = box.scheduler.queue.utterances()[1]
    assert isinstance(ended.why, Cancelled)

"""The Listen call over real gRPC with a fake engine: a channel's speech, for a listener who did not request
it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest

from appliance.audio.mouth import Mouth
from appliance.audio.phrases import Phrases
from appliance.config import AudioConfig
from appliance.request import FloatArray, Segment, SegmentAudio
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc, callers
from appliance.rpc import listen as rpc
from appliance.rpc.call import SynthesisCall
from appliance.rpc.callers import PlaceKind
from appliance.scheduler.job import Job
from tests.harness.daemons import SMALL_WINDOW
from tests.harness.engine import samples_of
from tests.harness.patience import PATIENCE_S
from tests.rpc.conftest import Box, Follower, connection, read, refused, request, sentences, start
from tests.rpc.test_queue import Moderator, moderator, on
from tests.rpc.test_synthesizer import Stub

__all__ = ["moderator"]

PCM = {"encoding": pb.PCM16}


@dataclass
class Utterance:
    """Begin, audio and end that a player got of an utterance."""

    begin: pb.UtteranceBegin
    audio: list[pb.UtteranceAudio] = field(default_factory=list)
    end: pb.UtteranceEnd | None = None

    @property
    def samples(self) -> bytes:
        return b"".join(piece.data for piece in self.audio)


class Player(Follower):
    """Stores messages, and checks the promises that every player relies on."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.utterances: dict[str, Utterance] = {}
        self.paused: list[str] | None = None

    def take(self, message: pb.ListenResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "paused":
            self.paused = list(message.paused.channels)
            return
        assert self.paused is not None  # comes first
        if kind == "begin":
            name = message.begin.utterance.request_id
            assert name not in self.utterances
            self.order.append(name)
            self.utterances[name] = Utterance(message.begin)
        elif kind == "audio":
            utterance = self.utterances[message.audio.request_id]
            assert utterance.end is None and not any(piece.last for piece in utterance.audio)
            assert message.audio.sample_offset == len(utterance.samples) // 2
            utterance.audio.append(message.audio)
        else:
            self.utterances[message.end.request_id].end = message.end

    async def until(self, name: str, reason: str = "SPOKEN") -> Utterance:
        """Wait for the end of an utterance, and return its messages."""

        def ended() -> bool:
            utterance = self.utterances.get(name)
            return utterance is not None and utterance.end is not None

        await self.soon(ended)
        utterance = self.utterances[name]
        assert utterance.end is not None and utterance.end.reason == reason
        return utterance


@asynccontextmanager
async def listening(moderator: Moderator, channel: str = "stage") -> AsyncIterator[Player]:
    player = Player()
    call = moderator.Listen(pb.ListenRequest(channel=channel))
    async with player.following(call, lambda: player.paused is not None):
        yield player


async def plain(synthesizer: Stub, message: pb.SynthesizeRequest) -> bytes:
    """PCM16 of a stream of the same request on no channel."""
    own = pb.SynthesizeRequest()
    own.CopyFrom(message)
    own.ClearField("channel")
    own.ClearField("request_id")
    own.audio_config.encoding = pb.PCM16
    own.audio_config.sample_rate_hertz = 0
    return await audio_of(synthesizer.StreamSynthesize(own))


async def audio_of(call: Any) -> bytes:
    return b"".join([message.audio.data async for message in call])


FIELDS: dict[str, dict[str, Any]] = {
    "8 kHz MP3 stream": {"audio_config": {"encoding": pb.MP3, "sample_rate_hertz": 8_000}},
    "levelled": {"gain_db": -3.0, "priority": pb.BULK, "playout": pb.SERIAL},
    "bulk": {"priority": pb.BULK},
    "overlap": {"playout": pb.OVERLAP},
}
TEXTS = {"long": sentences(15), "session": "one"}


@pytest.mark.parametrize("kind", [
    "unary", "stream", "8 kHz MP3 stream", "bulk", "overlap", "long", "session", "cached", "levelled",
])  # fmt: skip
async def test_a_listener_hears_a_stream_of_the_same_request(
    synthesizer: Stub, moderator: Moderator, box: Box, kind: str
) -> None:
    text = TEXTS.get(kind, "one. two. three")
    fields = {"channel": "stage", "request_id": "r", "user_key": "mo", **FIELDS.get(kind, {})}
    if kind == "levelled":
        box.change(audio=AudioConfig())
    elif kind == "cached":
        box.change(phrases=Phrases(1 << 20))
    message = request(text, **fields)
    expected = await plain(synthesizer, message)  # stores the phrase if `cached`
    name = "r"
    async with listening(moderator) as player:
        if kind == "cached":
            _hear_before_its_admission_returns(box)
        if kind == "session":
            name = "r.1"
            await _speak_in_session(synthesizer, message)
        elif kind in ("unary", "bulk", "long"):
            await synthesizer.Synthesize(message)
        else:
            header, _ = await read(synthesizer.StreamSynthesize(message))
            assert header.cached == (kind == "cached")
        await player.soon(lambda: name in player.utterances and _is_whole(player.utterances[name]))
        if kind != "unary":  # a unary call waits for its end
            await moderator.CancelUtterances(pb.CancelUtterancesRequest(channel="stage"))
        utterance = await player.until(name, "SPOKEN" if kind == "unary" else "CANCELLED")
    assert len(expected) == 2 * 49 * 256 * len(text.split(". "))
    assert utterance.samples == expected
    complete = [(piece.sample_offset + len(piece.data) // 2) // 480 for piece in utterance.audio]
    assert [len(piece.mouth) for piece in utterance.audio] == np.diff(complete, prepend=0).tolist()
    assert b"".join(piece.mouth for piece in utterance.audio) == Mouth(24_000).push(expected)
    assert [piece.last for piece in utterance.audio] == [*[False] * (len(utterance.audio) - 1), True]
    assert max(len(piece.data) for piece in utterance.audio) <= 0.2 * 48_000 + 2
    begin, end = utterance.begin, utterance.end
    u = begin.utterance
    assert (u.channel, u.user_key, u.voice, u.text) == ("stage", "mo", "ann", text)
    assert begin.sample_rate_hertz == 24_000
    assert begin.playout == (pb.OVERLAP if kind in ("bulk", "overlap") else pb.SERIAL)
    words = [word.word for word in begin.words]
    assert words == text.replace(".", "").split() if kind != "session" else ["one"]
    assert end is not None and [word.word for word in end.words] == words
    assert [word for piece in utterance.audio for word in piece.words] == list(end.words)
    assert end.samples == len(utterance.samples) // 2


def _hear_before_its_admission_returns(box: Box) -> None:
    """Stop the planner's thread, after the scheduler has admitted a cached phrase, until the phrase's audio
    has come."""
    admit, publish, come = box.scheduler.admit, box.speaking.on_segment, threading.Event()
    assert publish is not None

    def publish_and_tell(call: SynthesisCall, segment: SegmentAudio) -> None:
        try:
            publish(call, segment)
        finally:
            come.set()

    def admit_and_wait(job: Job, *others: Any) -> int | None:
        way = admit(job, *others)
        assert not job.cached or come.wait(PATIENCE_S)
        return way

    box.speaking.on_segment, box.scheduler.admit = publish_and_tell, admit_and_wait  # type: ignore[method-assign]


def _is_whole(utterance: Utterance) -> bool:
    return any(piece.last for piece in utterance.audio)


async def _speak_in_session(synthesizer: Stub, message: pb.SynthesizeRequest) -> None:
    configure = pb.SynthesizeRequest()
    configure.CopyFrom(message)
    configure.ClearField("text")
    call = synthesizer.Session()
    await call.write(pb.SessionRequest(configure=configure))
    await call.write(pb.SessionRequest(text=message.text))
    await call.done_writing()
    async for _ in call:
        pass


async def test_a_listener_hears_its_channel_or_everything(box: Box, moderator: Moderator) -> None:
    async with listening(moderator) as player, listening(moderator, "") as all_of_it:
        for channel in ("other", "stage", ""):
            await box.say("hi", channel=channel, request_id=f"on-{channel}")
        await player.until("on-stage")
        await all_of_it.until("on-")
        assert player.order == ["on-stage"]
        assert all_of_it.order == ["on-other", "on-stage", "on-"]


async def test_order_is_the_channels_however_the_engine_went(moderator: Moderator, box: Box) -> None:
    """A slow reader's stream is set aside, so that the engine finishes it after the utterance that plays
    next."""
    async with listening(moderator) as player, connection(box, *SMALL_WINDOW) as slow:
        first = appliance_pb2_grpc.SynthesizerStub(slow).StreamSynthesize(
            request(sentences(30), channel="stage", request_id="first", audio_config=PCM)
        )
        await first.read()
        await box.soon(lambda: box.scheduler.load.parked == 1)
        await box.say("b0. b1", channel="stage", request_id="second")
        assert "finish b1" in box.engine.calls and "open t29" not in box.engine.calls
        assert player.order == ["first"]
        while await first.read() is not grpc.aio.EOF:
            pass
        await player.soon(lambda: player.order == ["first", "second"])
        assert player.utterances["first"].audio[-1].last
        await moderator.CancelUtterances(pb.CancelUtterancesRequest(channel="stage"))
        await player.until("first", "CANCELLED")
        await player.until("second", "CANCELLED")


async def test_skip_reaches_the_player_though_all_audio_was_sent(box: Box, moderator: Moderator) -> None:
    async with listening(moderator) as player:
        for name in ("long", "next"):
            await box.say(sentences(8), channel="stage", request_id=name)
        await player.soon(lambda: "next" in player.order)
        await moderator.Skip(on("stage"))
        await player.until("long", "SKIPPED")
        assert player.utterances["next"].end is None
        await moderator.Skip(on("stage"))
        await player.until("next", "SKIPPED")


async def test_a_paused_channel_waits_for_listeners_too(moderator: Moderator, box: Box) -> None:
    async with listening(moderator) as player, listening(moderator, "other") as other:
        await moderator.Pause(on("stage"))
        await player.soon(lambda: player.paused == ["stage"])
        held = start(box.say("hi", channel="stage", request_id="held"))
        await box.soon(lambda: "finish hi" in box.engine.calls)
        await box.say("hi", channel="other", request_id="free")
        await other.until("free")
        assert player.order == [] and other.paused == []
        await moderator.Resume(on("stage"))
        await held
        await player.until("held")
        assert player.paused == []


async def test_the_first_message_tells_of_the_rest(synthesizer: Stub, moderator: Moderator, box: Box) -> None:
    gate = threading.Event()

    def speak(segment: Segment) -> FloatArray:
        assert "one" in segment.text or gate.wait(PATIENCE_S)
        return samples_of(segment)

    box.engine.speak = speak

    def messages(seed: int) -> AsyncIterator[pb.StreamSynthesizeResponse]:
        return aiter(synthesizer.StreamSynthesize(request("one. two", channel="stage", seed=seed)))

    unmade = messages(1)
    assert not any([(await anext(unmade)).audio.rest_is_made for _ in range(2)])
    gate.set()
    assert not any([message.audio.rest_is_made async for message in unmade])
    await moderator.Pause(on("stage"))
    made = messages(2)
    header = await anext(made)
    await box.soon(lambda: any(len(u.job.unreleased) == 2 for u in box.scheduler.queue.utterances()[0]))
    await moderator.Resume(on("stage"))
    assert header.HasField("header") and (await anext(made)).audio.rest_is_made


async def test_a_late_listener_joins_in(synthesizer: Stub, moderator: Moderator, box: Box) -> None:
    message = request(sentences(6), channel="stage", request_id="r")
    expected = await plain(synthesizer, message)
    async with listening(moderator) as player:
        assert player.paused == []
    await box.soon(lambda: box.broadcaster.listening == 0)
    await synthesizer.Synthesize(message)  # nobody listens
    async with listening(moderator) as player, listening(moderator, "other") as other:
        await player.soon(lambda: player.order and player.utterances["r"].samples == expected)
        assert -3_000 < player.utterances["r"].begin.utterance.starts_in_ms < 0
        assert other.order == []


async def test_an_utterance_without_listeners_at_its_begin_costs_nothing(
    synthesizer: Stub, moderator: Moderator, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc.Broadcast, "__init__", lambda *arguments: pytest.fail("a broadcast was made"))
    for message in (request(), request(channel="stage")):
        await synthesizer.Synthesize(message)
    assert box.broadcaster._task is None


async def test_a_listener_that_reads_nothing_is_ended_and_slows_nobody(
    synthesizer: Stub, moderator: Moderator, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "BUFFER_BYTES", 150_000)
    async with listening(moderator) as player, connection(box, *SMALL_WINDOW) as slow:
        lazy = appliance_pb2_grpc.QueueStub(slow).Listen(pb.ListenRequest(channel="stage"))
        await lazy.read()
        await box.soon(lambda: box.broadcaster.listening == 2)
        for number in range(8):
            name = f"r{number}"
            message = request(sentences(5), channel="stage", request_id=name)
            await asyncio.wait_for(synthesizer.Synthesize(message), PATIENCE_S)
            await player.soon(lambda name=name: name in player.order and _is_whole(player.utterances[name]))
        await box.soon(lambda: box.broadcaster.listening == 1)
        with pytest.raises(grpc.aio.AioRpcError, match="audio wait") as ended:
            while await lazy.read() is not grpc.aio.EOF:
                pass
        assert ended.value.code() is grpc.StatusCode.ABORTED


async def test_a_listener_without_a_sign_of_life_is_ended(moderator: Moderator, box: Box) -> None:
    async with connection(box, *SMALL_WINDOW) as slow:
        lazy = appliance_pb2_grpc.QueueStub(slow).Listen(pb.ListenRequest())
        await lazy.read()
        await box.say(sentences(20))

        def dropped() -> bool:
            box.callers.drop_stalled(0.05)
            return box.broadcaster.listening == 0

        await box.soon(dropped)


async def test_listeners_are_bounded(moderator: Moderator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "OF_ALL", {PlaceKind.LISTEN: 1})
    async with listening(moderator):
        await refused(
            moderator.Listen(pb.ListenRequest()).read(), code="RESOURCE_EXHAUSTED", reason="TOO_MANY_CALLS"
        )
    await refused(moderator.Listen(pb.ListenRequest(channel="x" * 1_000)).read())

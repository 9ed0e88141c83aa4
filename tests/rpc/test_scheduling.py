"""Scheduler options of requests, and the refusals, over real gRPC with a fake engine."""

import asyncio
import gc
import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from appliance.audio import reply as workers
from appliance.audio.reply import ReplyAudio
from appliance.config import LanguageRow, SchedulerConfig, SynthesisConfig
from appliance.contract.sampler import Sampler
from appliance.durable import version_of
from appliance.request import Request, RequestCounts, Segment, Segmentation
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.call import SynthesisCall
from appliance.rpc.callers import INSIDE
from appliance.speech.speech import fewer
from appliance.text.polyglot import LanguageTable
from appliance.voices import index
from tests.harness.daemons import SMALL_WINDOW
from tests.harness.engine import Device, FakeEngine
from tests.harness.patience import PATIENCE_S, scaled
from tests.harness.segments import segment
from tests.rpc.conftest import Box, connection, read, refusal, refused, reply_of, request, sentences, start
from tests.rpc.test_synthesizer import Stub

TICK_S = 0.005
"""Seconds that a call of the fake engine takes if a test slows it."""


async def test_a_long_stream_does_not_hold_up_the_next_caller(box: Box) -> None:
    box.engine.costs.device = Device(TICK_S)
    box.engine.on_step = lambda: time.sleep(TICK_S)
    long = asyncio.ensure_future(read(box.stream(sentences(80))))
    await box.soon(lambda: "open t4" in box.engine.calls)
    async with connection(box) as channel:
        call = appliance_pb2_grpc.SynthesizerStub(channel).StreamSynthesize(request("Hello."))
        await read(call)
    assert not long.done()
    _, samples = await long
    assert samples == 80 * 49 * 256
    assert box.opened.index("Hello.") < 40


@pytest.mark.parametrize("at_hand", [False, True])
async def test_messages_of_a_connection_are_read_in_order_of_arrival(box: Box, at_hand: bool) -> None:
    slowly = ("slow " * 50).strip()
    box.set_at_hand(at_hand)
    with box.planning(slowly) as (reached, go):
        slow = start(box.say(slowly))
        await box.soon(reached.is_set)
        quick = start(box.say("quick"))
        await box.soon(lambda: box.speaking.planning == 2)
        go.set()
        assert (await quick).audio and (await slow).audio
    assert box.opened == [slowly, "quick"]


@pytest.mark.parametrize("server_keys", [{"max_calls": 64}], ids=["many_calls"])
@pytest.mark.parametrize("at_hand", [False, True])
async def test_a_strangers_line_is_planned_ahead_of_a_callers_long_texts(box: Box, at_hand: bool) -> None:
    """The long texts wait before the planner, and each is planned once."""
    box.scheduler.config = SchedulerConfig()
    box.set_at_hand(at_hand)
    texts = [f"{number} " + ("word " * 50).strip() for number in range(32)]
    async with grpc.aio.insecure_channel(f"unix:{box.socket}") as local:
        stranger, planned, plain = appliance_pb2_grpc.SynthesizerStub(local), list[str](), box.planner.cut
        box.planner.cut = lambda inputs: planned.append(inputs.text) or plain(inputs)
        with box.planning(texts[0]) as (reached, go):
            long = [start(box.say(texts[0]))]
            await box.soon(reached.is_set)
            long += [start(box.say(text)) for text in texts[1:]]
            await box.soon(lambda: box.speaking.planning == INSIDE)
            line = start(stranger.Synthesize(request("Hello.")))
            await box.soon(lambda: (box.speaking.planning, len(planned)) in ((INSIDE + 1, 0), (INSIDE, 1)))
            go.set()
            assert (await line).audio
            assert all(reply.audio for reply in await asyncio.gather(*long))
    assert planned.index("Hello.") == (0 if at_hand else 1)
    assert sorted(planned) == sorted([*texts, "Hello."])


async def test_a_request_planned_after_a_swap_is_parsed_again(box: Box) -> None:
    """A request without a number of steps: the new bundle does not take the old bundle's number."""
    message = request("asked before")
    message.ClearField("nfe_steps")
    with box.planning("slow") as (reached, go):
        slow = start(box.synthesizer.Synthesize(pb.SynthesizeRequest(text="slow", voice="ann")))
        await box.soon(reached.is_set)
        quick = start(box.synthesizer.Synthesize(message))
        named = start(box.say("named", nfe_steps=3))
        await box.soon(lambda: box.speaking.planning == 3)
        other = FakeEngine()

        def switch() -> None:
            generation = box.scheduler.engines.generation
            box.set_sampler(Sampler(steps=(2,)), nfe=2, generation=generation)

        box.scheduler.engines.replace(other, switch)
        go.set()
        assert (await quick).header.nfe_steps == 2
        await refused(named, exactly="nfe_steps: must be 2 with this bundle, not 3")
        assert (await slow).header.nfe_steps == 2
    assert "open asked before" in other.calls


async def test_a_short_text_of_a_voice_in_memory_is_planned_without_another_thread(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    del box.store.index.at_hand
    planned, looked, plain = list[str](), list[str](), box.planner.cut

    def cut(inputs: Request) -> list[Segment]:
        planned.append(threading.current_thread().name)
        return plain(inputs)

    def version(path: Path) -> object:
        looked.append(threading.current_thread().name)
        return version_of(path)

    box.planner.cut = cut
    monkeypatch.setattr(index, "version_of", version)
    for recent_s, text in (
        (PATIENCE_S, "short"),
        (PATIENCE_S, "short"),
        (PATIENCE_S, "a" * 201),
        (0, "short"),
    ):
        monkeypatch.setattr(index, "RECENT_S", recent_s)
        assert (await box.say(text)).audio
    box.change(table=LanguageTable({"en": LanguageRow("ann")}))
    assert (await box.say("short", voice="auto")).header.voice == "ann"
    assert [name.startswith("plan") for name in planned] == [True, False, True, True, True]
    assert looked and all(name.startswith("plan") for name in looked)


async def test_a_priority_is_a_promise_and_a_place(box: Box) -> None:
    promised = {}
    for name in ("REALTIME", "HIGH", "NORMAL", "BULK"):
        header, _ = await read(box.stream("a", priority=name, channel=name))
        assert pb.Priority.Name(header.priority) == name
        promised[name] = header.promised_ms
    for name, least in {"REALTIME": 300, "HIGH": 450, "NORMAL": 600}.items():
        assert least <= promised[name] < least + scaled(5_000)
    assert promised["BULK"] == 0.0
    assert (await box.say()).header.priority == pb.NORMAL
    box.engine.calls.clear()
    with box.held():
        calls = [start(box.say("now", channel="0"))]
        await box.soon(lambda: "step" in box.engine.calls)
        for number, name in enumerate(("BULK", "NORMAL", "REALTIME"), 1):
            calls.append(start(box.say(name, priority=name, channel=str(number))))
            await box.soon(lambda number=number: box.scheduler.load.waiting == number)  # type: ignore[misc]
    await asyncio.gather(*calls)
    assert box.opened == ["now", "REALTIME", "NORMAL", "BULK"]


@pytest.mark.parametrize(("frame_s", "seed", "backend", "frames", "reference", "streamed", "whole"), [
    (1e-6, None, "ort-cpu (int8)", 400, 100, pb.UPSTREAM, pb.UPSTREAM),
    (4e-4, None, "ort-cpu", 400, 100, pb.LOW_LATENCY, pb.UPSTREAM),
    (1e-6, 1, "ort-cpu", 400, 100, pb.LOW_LATENCY, pb.UPSTREAM),
    (1e-6, None, "ort-cpu (int8)", 860, 100, pb.LOW_LATENCY, pb.LOW_LATENCY),
    (1e-6, None, "ort-cpu", 1200, 430, pb.UPSTREAM, pb.UPSTREAM),
    (1e-6, None, "ort-cuda", 860, 100, pb.UPSTREAM, pb.UPSTREAM),
])  # fmt: skip
async def test_a_text_is_cut_where_its_first_sound_would_be_late_or_its_pieces_long_for_a_cpu(
    box: Box, frame_s: float, seed: int | None, backend: str, frames: int, reference: int,
    streamed: int, whole: int,
) -> None:  # fmt: skip
    def cut(inputs: Request) -> list[Segment]:
        """A piece, or a short piece and the rest, which together cost more."""
        each = [frames] if inputs.segmentation is Segmentation.UPSTREAM else [reference + 60, frames]
        settings = {"nfe": inputs.nfe, "reference_frames": reference}
        return [segment(f"{i}", index=i, frames=n, **settings) for i, n in enumerate(each)]

    box.planner.cut, box.engine.costs.device, box.engine.backend = cut, Device(0.002, frame_s), backend
    header, _ = await read(box.stream(seed=seed))
    assert (header.segmentation, header.segments) == (streamed, 1 if streamed == pb.UPSTREAM else 2)
    assert (await box.say(seed=seed)).header.segmentation == whole
    assert (await box.say(seed=seed, segmentation=pb.UPSTREAM)).header.segmentation == pb.UPSTREAM


async def test_fewer_steps_are_taken_if_allowed_and_are_reported(synthesizer: Stub, box: Box) -> None:
    box.engine.costs.device = Device(scaled(0.1))
    message = request("one", nfe_steps=32)
    late = synthesizer.Synthesize(message, timeout=scaled(2.5))
    await refused(late, code="DEADLINE_EXCEEDED", reason="DEADLINE_MISSED")
    message.min_nfe_steps = 4
    call = synthesizer.Synthesize(message, timeout=scaled(2.5))
    reply = await call
    taken = reply.header.nfe_steps
    assert 4 <= taken <= 24 and reply.timings.nfe_steps == taken
    assert ("x-nfe", str(taken)) in list(await call.trailing_metadata())
    assert box.engine.calls.count("step") == taken


async def test_more_steps_than_are_allowed_are_refused(box: Box) -> None:
    box.change(synthesis=SynthesisConfig(max_nfe=8))
    assert (await box.say(nfe_steps=8)).audio
    error = "nfe_steps: must be between 1 and 8, not 9"
    await refused(box.say(nfe_steps=9), field="nfe_steps", exactly=error)


async def test_steps_that_the_bundle_lacks_are_refused(box: Box) -> None:
    few = Sampler(guidance="none", steps=(2, 4, 8), strengths=(2.0,))
    box.set_sampler(few, guidance=0.0)
    for message in (request(nfe_steps=4), request(nfe_steps=4, guidance=0.0)):
        reply = await box.synthesizer.Synthesize(message)
        assert (reply.header.nfe_steps, reply.header.guidance) == (4, 0.0)
    error = "nfe_steps: must be 2, 4 or 8 with this bundle, not 7"
    await refused(box.say(nfe_steps=7), field="nfe_steps", exactly=error)
    error = "guidance: must be 0 or absent with this bundle, whose weights have it in them, not 2"
    await refused(box.say(nfe_steps=4, guidance=2.0), exactly=error)
    box.set_sampler(Sampler(guidance="embedded", strengths=(1, 3)), guidance=2.0)
    assert (await box.say(guidance=1.5)).header.guidance == 1.5
    error = "guidance: must be between 1 and 3 with this bundle, not 0.5"
    await refused(box.say(guidance=0.5), exactly=error)


def test_fewer_steps_fit_the_bundle() -> None:
    assert [*fewer(16, 2, (1, 2, 4, 16))] == [4, 2] and [*fewer(4, 2, ())] == [3, 2]


async def test_a_caller_that_fills_its_share_leaves_room_for_others(box: Box) -> None:
    async with connection(box) as second, grpc.aio.insecure_channel(f"unix:{box.socket}") as local:
        again, other = map(appliance_pb2_grpc.SynthesizerStub, (second, local))
        with box.held():
            calls = [start(box.say())]
            await box.soon(lambda: box.scheduler.load.running == 1)
            calls += [start(box.say(channel=f"c{i}")) for i in range(4)]
            await box.soon(lambda: box.scheduler.load.waiting == 4)
            # Another connection of the same address gets the same refusal.
            full = {"code": "RESOURCE_EXHAUSTED", "reason": "QUEUE_FULL"}
            share = "requests of this caller wait already, which is its share"
            await refused(again.Synthesize(request(channel="c4")), **full, exactly=f"4 {share}")
            calls += [start(other.Synthesize(request(channel=f"d{i}"))) for i in range(2)]
            await box.soon(lambda: box.scheduler.load.waiting == 6)
            await refused(other.Synthesize(request()), **full, exactly=f"2 {share}")
        assert all(reply.audio for reply in await asyncio.gather(*calls))


async def test_a_queue_timeout_bounds_the_wait_for_what_plays_before(box: Box) -> None:
    with box.held():
        calls = [start(box.say(sentences(20)))]
        await box.soon(lambda: box.scheduler.load.running == 1)
        for seconds in (0, 2):
            call, error = box.say(queue_timeout=Duration(seconds=seconds)), f"queue_timeout is {seconds} s"
            details = await refused(call, error, code="RESOURCE_EXHAUSTED", reason="OVERLOADED")
            assert details["RetryInfo"].retry_delay.ToMilliseconds() > 5_000
        calls += [start(box.say(queue_timeout=Duration(seconds=60))), start(box.say())]
        await box.soon(lambda: box.scheduler.load.waiting == 2)
    replies = await asyncio.gather(*calls)
    assert replies[1].header.promised_ms > 20 * 49 * 256 / 24


async def test_calls_are_limited_however_little_they_want(box: Box) -> None:
    box.scheduler.config = SchedulerConfig()
    with box.held():
        calls = [start(box.say()) for _ in range(12)]
        await box.soon(lambda: box.scheduler.load == RequestCounts(waiting=11, running=1))
        limit = "12 calls are under way, which is the limit"
        await refused(box.say(), code="RESOURCE_EXHAUSTED", reason="TOO_MANY_CALLS", exactly=limit)
    assert all(reply.audio for reply in await asyncio.gather(*calls))
    assert (await box.say()).audio


async def cancel(synthesizer: Stub, request_id: str) -> None:
    await synthesizer.CancelSynthesis(pb.CancelSynthesisRequest(request_id=request_id))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_cancelled_by_its_id(synthesizer: Stub, box: Box, stream: bool) -> None:
    with box.held():
        message = request(request_id="mine")
        call = synthesizer.StreamSynthesize(message) if stream else synthesizer.Synthesize(message)
        if stream:
            assert (await call.read()).header.request_id == "mine"
        waiting = asyncio.ensure_future(refusal(call.read() if stream else call))
        await box.soon(lambda: box.scheduler.load.running == 1)
        for _ in range(2):
            await refused(synthesizer.Synthesize(message), field="request_id")
        await cancel(synthesizer, "mine")
        error, details = await waiting
        assert error.code() is grpc.StatusCode.CANCELLED
        assert details["ErrorInfo"].reason == "CANCELLED"
        assert box.scheduler.load == RequestCounts()
        for unknown in ("mine", "other", ""):
            await refused(cancel(synthesizer, unknown), code="NOT_FOUND", reason="REQUEST_NOT_FOUND")
    await box.soon(lambda: box.engine.lanes == 0)
    assert (await synthesizer.Synthesize(message)).audio


async def test_another_connection_cancels_by_the_id_that_the_daemon_drew(box: Box) -> None:
    with box.held():
        call = box.stream()
        drawn = (await call.read()).header.request_id
        async with connection(box) as channel:
            await cancel(appliance_pb2_grpc.SynthesizerStub(channel), drawn)
        error, _ = await refusal(call.read())
    assert error.code() is grpc.StatusCode.CANCELLED


async def test_a_request_that_is_planned_can_be_cancelled_by_its_id(box: Box) -> None:
    with box.planning() as (reached, _):
        waiting = asyncio.ensure_future(refused(box.say(request_id="mine"), code="CANCELLED"))
        await box.soon(reached.is_set)
        await cancel(box.synthesizer, "mine")
        await waiting
    assert (await box.say(request_id="mine")).audio


async def test_a_call_that_is_cancelled_while_it_is_planned_leaves_nothing_behind(box: Box) -> None:
    with box.planning() as (reached, _):
        call = box.say(request_id="mine")
        waiting = start(call)
        await box.soon(reached.is_set)
        assert box.speaking.planning == 1
        call.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(box.speaking.idle(), PATIENCE_S)
    assert (await box.say("next", request_id="mine")).audio
    assert box.opened == ["next"]
    assert (box.speaking.planning, box.speaking.sending, box.scheduler.load) == (0, 0, RequestCounts())


large_buffer = pytest.mark.parametrize("server_keys", [{"stream_buffer_s": 600.0}], ids=["large_buffer"])


async def lazy(box: Box, channel: grpc.aio.Channel, request_id: str = "lazy", on: str = "") -> Any:
    """A stream of minutes that the engine has finished, after its header was read; needs `large_buffer`."""
    box.change(synthesis=SynthesisConfig())
    fields = {"request_id": request_id, "channel": on, "audio_config": {"sample_rate_hertz": 48_000}}
    message = request(sentences(300), nfe_steps=1, **fields)
    call = appliance_pb2_grpc.SynthesizerStub(channel).StreamSynthesize(message)
    assert (await call.read()).WhichOneof("message") == "header"
    await box.soon(lambda: box.speaking.sending == 1)
    return call


def calls_in_memory() -> int:
    gc.collect()
    return sum(isinstance(one, SynthesisCall) for one in gc.get_objects())


async def _round_trip(box: Box, channel: grpc.aio.Channel) -> None:
    """Make a call after the messages already sent on a connection, and remove it from `observed`."""
    await refusal(appliance_pb2_grpc.VoicesStub(channel).GetVoice(pb.GetVoiceRequest(name="none")))
    box.observed.pop()


@large_buffer
async def test_a_stalled_reader_loses_its_call_and_its_audio(box: Box) -> None:
    # The clock stands still while the window fills, however long that takes.
    now = time.monotonic()
    box.speaking.clock = lambda: now
    async with connection(box) as channel:
        call = await lazy(box, channel, on="stage")
        await box.soon(lambda: box.scheduler.load == RequestCounts())
        [utterance], _, _ = box.scheduler.queue.utterances()
        taken_s, still = -1.0, 0
        while still < 10:  # until the client's window is full
            still = still + 1 if utterance.job.sent_s == taken_s else 0
            taken_s = utterance.job.sent_s
            await asyncio.sleep(scaled(0.05))
            await _round_trip(box, channel)  # a busy machine may pause the stream for long
        assert taken_s > 6.0, "a client's window takes many seconds"
        for later_s in (29.0, taken_s + 25.0, taken_s + 35.0):
            assert box.speaking.sending == 1 and not box.observed, "what it has may be played first"
            box.speaking.clock = lambda later_s=later_s: now + later_s  # type: ignore[misc]
            box.speaking.drop_stalled(30.0)
            await _round_trip(box, channel)  # the answer comes after the end of a stalled call
        await asyncio.wait_for(box.speaking.idle(), PATIENCE_S)
        assert box.observed == [("StreamSynthesize", "ABORTED", "READER_STALLED")]
        # Only the status waits for the reader.
        await box.soon(lambda: calls_in_memory() == 0)
        error, details = await asyncio.wait_for(refusal(read(call)), PATIENCE_S)
        assert error.code() is grpc.StatusCode.ABORTED
        assert details["ErrorInfo"].reason == "READER_STALLED"


@large_buffer
async def test_a_finished_reply_is_cancelled_by_its_id_too(box: Box) -> None:
    async with connection(box, *SMALL_WINDOW) as channel:
        call = await lazy(box, channel)
        await refused(box.say(request_id="lazy"))
        await cancel(box.synthesizer, "lazy")
        await asyncio.wait_for(box.speaking.idle(), PATIENCE_S)
        await refused(read(call), code="CANCELLED")
    assert (await box.say(request_id="lazy")).audio


async def test_a_sent_reply_that_still_sounds_is_cancelled_by_its_id(box: Box) -> None:
    box.change(synthesis=SynthesisConfig())
    long = {"channel": "stage", "request_id": "long"}
    await read(box.stream(sentences(400), **long))
    [sounding] = box.scheduler.queue.utterances()[0]
    assert (sounding.job.terms.request_id, sounding.state.name) == ("long", "SOUNDING")
    await cancel(box.synthesizer, "long")
    assert not box.scheduler.queue.utterances()[0]
    await refused(cancel(box.synthesizer, "long"), code="NOT_FOUND")
    header, _ = await read(box.stream("next", channel="stage"))
    assert 0.0 < header.promised_ms < 1e3 * scaled(5), "it does not wait for what is not heard"


@pytest.mark.parametrize("server_keys", [{"stream_buffer_s": 0.0}])
async def test_a_parked_stream_goes_on_once_it_is_read(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's idle thread alone would look again much later."""
    monkeypatch.setattr("appliance.scheduler.loop.IDLE_WAIT_S", 2 * PATIENCE_S)
    stream = read(box.stream(sentences(30), nfe_steps=1))
    _, samples = await asyncio.wait_for(stream, PATIENCE_S)
    assert samples == 30 * 49 * 256


@pytest.mark.parametrize("name", ["keep", "whole", "messages"])
async def test_audio_is_put_together_while_others_are_answered(
    synthesizer: Stub, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch, name: str, box: Box
) -> None:
    threads: list[str] = []
    working, go = threading.Event(), threading.Event()
    real = getattr(ReplyAudio, name)

    def held(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        working.set()
        assert go.wait(PATIENCE_S)
        return real(*arguments)

    monkeypatch.setattr(ReplyAudio, name, held)
    monkeypatch.setattr(workers, "SHORT_SAMPLES", 0)
    call: Any = synthesizer.StreamSynthesize if name == "messages" else synthesizer.Synthesize
    whole = asyncio.ensure_future(read(call(request())) if name == "messages" else reply_of(call(request())))
    await box.soon(working.is_set)
    health: Any = health_pb2_grpc.HealthStub(channel)
    await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    go.set()
    await whole
    assert threads and all(thread.startswith("audio") for thread in threads)


@large_buffer
async def test_the_states_of_requests_add_up(box: Box) -> None:
    async with connection(box, *SMALL_WINDOW) as channel:
        call = await lazy(box, channel)
        with box.held():
            calls = [start(box.say(channel=f"c{i}")) for i in range(3)]
            await box.soon(lambda: box.scheduler.load == RequestCounts(waiting=2, running=1))
            with box.planning("last") as (reached, _):
                calls += [start(box.say("last", channel=f"d{i}")) for i in range(2)]
                await box.soon(reached.is_set)
                await box.soon(lambda: box.speaking.planning == 2)
                assert (box.speaking.sending, box.scheduler.load) == (1, RequestCounts(waiting=2, running=1))
        await asyncio.gather(*calls)
        call.cancel()
    await asyncio.wait_for(box.speaking.idle(), PATIENCE_S)
    assert (box.speaking.planning, box.speaking.sending, box.scheduler.load) == (0, 0, RequestCounts())


async def test_the_wait_is_from_arrival_and_logged(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    plain = box.planner.cut
    box.planner.cut = lambda inputs: time.sleep(0.1) or plain(inputs)
    with caplog.at_level(logging.INFO, "appliance.rpc"):
        call = box.say("Secret words", request_id="chat-7")
        await call
        trailers = dict(list(await call.trailing_metadata()))
        await refusal(box.say("Secret words", request_id="chat-8", voice="bob"))
        await refusal(box.say("Secret words", request_id="chat-9", gain_db=99))
        await refusal(box.say("Secret words", request_id="a\n" + 99 * "b"))
    assert 100 <= float(trailers["x-queue-ms"]) <= float(trailers["x-ttfa-ms"])
    lines = [record.getMessage() for record in caplog.records]
    assert re.match(r"request chat-7 of ipv4:127\.0\.0\.1:\d+, voice 'ann': 0\.52 s of audio in", lines[0])
    assert re.match(r"request chat-8 of ipv4:127\.0\.0\.1:\d+, voice 'bob': no voice", lines[1])
    assert re.match(r"request chat-9 of ipv4:127\.0\.0\.1:\d+, voice 'ann': gain_db is refused", lines[2])
    assert re.match(r"request a\\nb{61} of ipv4:127\.0\.0\.1:\d+, voice 'ann': request_id is", lines[3])
    assert "Secret" not in caplog.text

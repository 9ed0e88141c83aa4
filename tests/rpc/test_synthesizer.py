"""The Synthesizer service over real gRPC, with a fake engine."""

import asyncio
import io
import threading
import wave
from typing import Any

import grpc
import numpy as np
import pytest
import soundfile

from appliance.audio import encode
from appliance.audio.marking import MARK
from appliance.audio.tags import KEY, id3_tag
from appliance.audio.wav import wav_header
from appliance.config import AudioConfig, SchedulerConfig
from appliance.errors import EngineFault
from appliance.request import FloatArray, RequestCounts, Segment
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from tests.harness.daemons import SMALL_WINDOW
from tests.harness.engine import samples_of
from tests.harness.patience import PATIENCE_S
from tests.harness.rows import rows
from tests.harness.segments import segment
from tests.rpc.conftest import Box, connection, read, refusal, refused, reply_of, request, sentences

Stub = appliance_pb2_grpc.SynthesizerStub


def expected(*texts: str, nfe: int = 3, seed: int = 5) -> np.ndarray[Any, Any]:
    return np.concatenate([samples_of(segment(t, index=i, nfe=nfe, seed=seed)) for i, t in enumerate(texts)])


async def test_unary_wav_holds_the_engines_samples(box: Box) -> None:
    reply = await box.say(request_id="chat-1")
    with wave.open(io.BytesIO(reply.audio)) as audio:
        assert (audio.getframerate(), audio.getnchannels(), audio.getsampwidth()) == (24_000, 1, 2)
        assert audio.readframes(10**9) == encode.pcm16(expected("one", "two"))
    # The deadline of a whole reply is the target of NORMAL requests plus the playing time.
    assert 600 + 2 * 49 * 256 / 24 <= reply.header.promised_ms < 10_000
    reply.header.ClearField("promised_ms")
    assert reply.header == pb.Header(
        sample_rate_hertz=24_000,
        encoding=pb.WAV,
        nfe_steps=3,
        seed=5,
        guidance=2.0,
        segmentation=pb.UPSTREAM,
        voice="ann",
        segments=2,
        text="one. two",
        backend="fake (f64)",
        request_id="chat-1",
        priority=pb.NORMAL,
    )
    assert (reply.timings.segments, reply.timings.nfe_steps) == (2, 3)
    assert reply.timings.audio_ms == pytest.approx(2 * 49 * 256 / 24)


async def test_stream_and_unary_give_the_same_samples(synthesizer: Stub) -> None:
    for rate in (0, 8_000, 44_100):
        query = request(audio_config={"encoding": pb.PCM16, "sample_rate_hertz": rate})
        whole = (await synthesizer.Synthesize(query)).audio
        streamed = [message async for message in synthesizer.StreamSynthesize(query)]
        assert b"".join(message.audio.data for message in streamed) == whole


@pytest.mark.parametrize("encoding", [pb.FLAC, pb.MP3, pb.OGG_OPUS, pb.MULAW, pb.ALAW])
async def test_coded_streams_and_replies_are_the_same(synthesizer: Stub, encoding: int) -> None:
    query = request(audio_config={"encoding": encoding, "sample_rate_hertz": 48_000})
    reply = await synthesizer.Synthesize(query)
    messages = [message async for message in synthesizer.StreamSynthesize(query)]
    assert reply.header.encoding == messages[0].header.encoding == encoding
    streamed = b"".join(message.audio.data for message in messages)
    offsets = [message.audio.sample_offset for message in messages[1:-1]]
    assert offsets == sorted(set(offsets)) and offsets[0] == 0
    assert messages[-1].end.samples == round(reply.timings.audio_ms * 48)
    if encoding in (pb.MP3, pb.MULAW, pb.ALAW):
        tag = id3_tag(MARK) if encoding == pb.MP3 else b""
        assert reply.audio.startswith(tag) and streamed.startswith(tag)
        assert reply.audio.endswith(streamed[len(tag) :])
    elif encoding == pb.FLAC:
        head = 42  # signature and STREAMINFO, which counts the samples
        assert reply.audio[head:] == streamed[head:]
        pcm = request(audio_config={"encoding": pb.PCM16, "sample_rate_hertz": 48_000})
        samples, _ = soundfile.read(io.BytesIO(reply.audio), dtype="int16")
        assert samples.tobytes() == (await synthesizer.Synthesize(pcm)).audio
    else:
        decoded = [soundfile.read(io.BytesIO(audio))[0] for audio in (reply.audio, streamed)]
        assert np.array_equal(*decoded)
        assert len(decoded[0]) == messages[-1].end.samples


async def test_a_wrong_rate_names_the_rates_of_the_encoding(synthesizer: Stub) -> None:
    query = request(audio_config={"encoding": pb.OGG_OPUS, "sample_rate_hertz": 44_100})
    message = "8000, 12000, 16000, 24000, 48000 Hz for OGG_OPUS, not 44100"
    await refused(synthesizer.Synthesize(query), message, field="audio_config.sample_rate_hertz")


async def test_a_stream_is_header_audio_end(box: Box) -> None:
    messages = [message async for message in box.stream()]
    kinds = [message.WhichOneof("message") for message in messages]
    assert kinds == ["header", *["audio"] * (len(messages) - 2), "end"]
    header, end = messages[0].header, messages[-1].end
    assert (header.encoding, header.segmentation) == (pb.PCM16, pb.LOW_LATENCY)
    offset = 0
    for number, message in enumerate(messages[1:-1]):
        audio = message.audio
        assert (audio.sequence, audio.sample_offset) == (number, offset)
        assert 0.1 <= len(audio.data) / 2 / 24_000 <= 0.2
        offset += len(audio.data) // 2
    assert sorted({message.audio.segment for message in messages[1:-1]}) == [0, 1]
    assert end.samples == offset == 2 * 49 * 256


async def test_a_streamed_wav_has_its_header_once(synthesizer: Stub) -> None:
    message = request(audio_config={"encoding": pb.WAV})
    data = b"".join([m.audio.data async for m in synthesizer.StreamSynthesize(message)])
    assert data == wav_header(24_000, mark=MARK) + encode.pcm16(expected("one", "two"))


@pytest.mark.parametrize("is_marked", [True, False])
async def test_audio_is_marked_as_configured(box: Box, synthesizer: Stub, is_marked: bool) -> None:
    box.change(audio=AudioConfig(loudness_lufs=None, marked=is_marked))
    query = request(audio_config={"encoding": pb.WAV})
    whole, stream = synthesizer.Synthesize(query), synthesizer.StreamSynthesize(query)
    async with grpc.aio.insecure_channel(box.address) as channel:
        listen = appliance_pb2_grpc.QueueStub(channel).Listen(pb.ListenRequest())
        for call in (whole, stream, listen):
            assert dict(list(await call.initial_metadata())).get(KEY) == (MARK if is_marked else None)
    audio = b"".join([message.audio.data async for message in stream])
    for data in (audio, (await whole).audio):
        assert (MARK.encode() in data) is is_marked


@pytest.mark.parametrize("stream", [False, True])
async def test_trailers_carry_the_figures(synthesizer: Stub, box: Box, stream: bool) -> None:
    message = request(request_id="chat-1")
    call = (synthesizer.StreamSynthesize if stream else synthesizer.Synthesize)(message)
    if stream:
        async for _ in call:
            pass
    else:
        await call
    trailers = dict(list(await call.trailing_metadata()))
    assert (trailers["x-segments"], trailers["x-nfe"]) == ("2", "3")
    assert float(trailers["x-audio-ms"]) == pytest.approx(2 * 49 * 256 / 24, abs=0.1)
    times = [float(trailers[f"x-{name}-ms"]) for name in ("queue", "ttfa", "synth")]
    assert all(t >= 0.0 for t in times) and times[0] <= times[1]
    assert float(trailers["x-rtf"]) > 0.0
    assert trailers["x-request-id"] == "chat-1"
    ((timings, promised_s),) = box.spoken
    assert timings.segments == 2
    assert float(trailers["x-promised-ms"]) == pytest.approx(1e3 * promised_s, abs=0.1)
    assert box.observed[-1] == ("StreamSynthesize" if stream else "Synthesize", "OK", "")


async def test_absent_fields_take_the_defaults_and_a_drawn_seed_repeats(synthesizer: Stub) -> None:
    plain = pb.SynthesizeRequest(text="one", voice="ann")
    first, second = await synthesizer.Synthesize(plain), await synthesizer.Synthesize(plain)
    assert first.header.seed != second.header.seed
    plain.seed = first.header.seed
    assert (await synthesizer.Synthesize(plain)).audio == first.audio
    # Zero in an optional field is a value, not the default.
    plain.seed, plain.guidance = 0, 0.0
    header = (await synthesizer.Synthesize(plain)).header
    assert (header.seed, header.guidance) == (0, 0.0)


async def test_concurrent_requests_get_their_own_audio(box: Box) -> None:
    box.scheduler.config = SchedulerConfig()
    texts = [f"text {i}. and more" for i in range(10)]
    replies = await asyncio.gather(
        *(box.say(text, seed=i, audio_config={"encoding": pb.PCM16}) for i, text in enumerate(texts))
    )
    for i, reply in enumerate(replies):
        assert reply.header.text == texts[i]
        assert reply.audio == encode.pcm16(expected(f"text {i}", "and more", seed=i))


BAD_REQUESTS: list[tuple[dict[str, Any], str, str]] = [
    *rows(__file__, "bad_requests.jsonl"),
    ({"text": "a" * 501}, "text", "has 501 characters, at most 500"),
    ({"text": "长" * 100_000}, "text", "has 100000 characters, at most 500"),
]
"""Fields, the wrong field or a status other than INVALID_ARGUMENT, words of the message."""


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_requests_get_their_error_and_the_daemon_goes_on(box: Box, stream: bool) -> None:
    for fields, fault, message in BAD_REQUESTS:
        query = request(**fields)
        call = box.synthesizer.StreamSynthesize(query).read() if stream else box.synthesizer.Synthesize(query)
        code = fault if fault.isupper() else "INVALID_ARGUMENT"
        details = await refused(call, message, code=code)
        if fault != code:
            assert [violation.field for violation in details["BadRequest"].field_violations] == [fault]
        assert details["ErrorInfo"].domain == "f5-appliance"
        assert box.observed[-1][1:] == (code, details["ErrorInfo"].reason)
    assert box.engine.calls == []
    assert (await box.say()).audio


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_cancels_frees_the_engine_within_one_call(box: Box, stream: bool) -> None:
    reached, go = threading.Event(), threading.Event()

    def hold() -> None:
        if box.engine.calls.count("step") == 2:
            reached.set()
            go.wait(PATIENCE_S)

    box.engine.on_step = hold
    call = (box.synthesizer.StreamSynthesize if stream else box.synthesizer.Synthesize)(request(nfe_steps=32))
    waiting = asyncio.ensure_future(call.read() if stream else reply_of(call))
    await box.soon(reached.is_set)
    call.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await box.soon(lambda: box.scheduler.load == RequestCounts())
    go.set()
    await box.soon(lambda: box.engine.lanes == 0)
    assert box.engine.calls == ["open one", "step", "step"]
    assert (await box.say()).audio


async def test_a_fault_of_the_engine_is_internal_and_ends_one_request(box: Box) -> None:
    def fail(segment: Segment) -> FloatArray:
        raise EngineFault("the vocoder produced numbers that are not finite")

    box.engine.speak = fail
    await refused(box.say(), code="INTERNAL", reason="ENGINE_FAULT")
    received = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for message in box.stream():
            received.append(message.WhichOneof("message"))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert received == ["header"]
    box.engine.speak = samples_of
    assert (await box.say()).audio
    assert "self_test" not in box.engine.calls


async def test_the_unexpected_is_internal_and_in_the_log(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    box.store.index.reference = lambda *_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    error, _ = await refusal(box.say())
    assert error.code() is grpc.StatusCode.INTERNAL
    number = str(error.details()).split()[2].rstrip(";")
    assert f"error {number}" in caplog.text
    assert "ZeroDivisionError" in caplog.text and "Synthesize from ipv4:127.0.0.1:" in caplog.text
    assert "ZeroDivision" not in str(error.details())
    del box.store.index.reference
    assert (await box.say()).audio


async def test_a_slow_reader_is_set_aside_while_others_are_served(box: Box) -> None:
    # A client's window grows with its connection; a fixed window makes this reader slow.
    async with connection(box, *SMALL_WINDOW) as channel:
        many = request(sentences(100), nfe_steps=1, audio_config={"sample_rate_hertz": 48_000})
        slow = appliance_pb2_grpc.SynthesizerStub(channel).StreamSynthesize(many)
        assert (await slow.read()).WhichOneof("message") == "header"
        await box.soon(lambda: box.scheduler.load == RequestCounts(running=1, parked=1))
        assert box.engine.calls.count("step") < 100
        assert (await box.say("other")).audio
        assert "other" in box.opened
        _, samples = await read(slow)
    assert samples == pytest.approx(100 * 49 * 256 * 2, abs=2)

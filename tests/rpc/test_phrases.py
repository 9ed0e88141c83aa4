"""Repeated phrases and word timings, over real gRPC with a fake engine."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from appliance.audio.phrases import Phrases
from appliance.request import Request, Segment
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.voices.records import Place
from tests.rpc.conftest import Box, speech_wav

Stub = appliance_pb2_grpc.SynthesizerStub


@pytest.fixture
def phrases(box: Box) -> Iterator[Phrases]:
    box.change(phrases=Phrases(1 << 20))
    yield box.speech.phrases


async def stream(box: Box, **fields: Any) -> list[pb.StreamSynthesizeResponse]:
    return [message async for message in box.stream(**fields)]


def audio(messages: list[pb.StreamSynthesizeResponse]) -> list[tuple[bytes, int, int]]:
    return [(one.audio.data, one.audio.sample_offset, one.audio.segment) for one in messages[1:-1]]


async def test_a_phrase_that_comes_again_is_the_same_and_costs_nothing(
    box: Box, phrases: Phrases, caplog: pytest.LogCaptureFixture
) -> None:
    first = await stream(box)
    calls = list(box.engine.calls)
    with caplog.at_level(logging.INFO):
        call = box.stream(request_id="again")
        again = [message async for message in call]
        trailers = dict(list(await call.trailing_metadata()))
    assert box.engine.calls == calls
    assert audio(again) == audio(first)
    assert (first[0].header.cached, again[0].header.cached) == (False, True)
    for message in (first[0], again[0]):
        message.header.request_id, message.header.cached, message.header.promised_ms = "", False, 0.0
    assert again[0] == first[0]
    assert again[-1].end.samples == first[-1].end.samples
    timings = again[-1].end.timings
    assert (timings.segments, timings.nfe_steps, timings.steps_ms) == (2, 3, 0.0)
    assert timings.audio_ms == first[-1].end.timings.audio_ms
    assert trailers["x-segments"] == "2" and trailers["x-request-id"] == "again"
    await box.soon(lambda: len(box.spoken) == 2)
    assert any("request again" in record.message for record in caplog.records)
    assert (phrases.hits, phrases.misses) == (1, 1)


async def test_a_request_that_is_planned_again_is_not_served_by_what_its_first_plan_found(
    box: Box, phrases: Phrases, monkeypatch: pytest.MonkeyPatch
) -> None:
    await box.say()
    calls, admit = len(box.engine.calls), box.scheduler.admit

    def swapped(*_: object) -> None:
        monkeypatch.setattr(box.scheduler, "admit", admit)
        monkeypatch.setattr(phrases, "find", lambda keys: None)

    monkeypatch.setattr(box.scheduler, "admit", swapped)
    await box.say()
    assert len(box.engine.calls) == 2 * calls


async def test_every_encoding_and_both_calls_share_a_phrase(box: Box, phrases: Phrases) -> None:
    async def spoken() -> dict[int, Any]:
        return {
            encoding: await box.say(
                audio_config={"encoding": encoding, "sample_rate_hertz": 16_000}, segmentation=pb.LOW_LATENCY
            )
            for encoding in (pb.WAV, pb.PCM16, pb.FLAC, pb.MP3, pb.MULAW)
        }

    box.change(phrases=Phrases(0))
    fresh = await spoken()
    box.change(phrases=phrases)
    await stream(box, segmentation=pb.LOW_LATENCY)
    calls = list(box.engine.calls)
    for encoding, reply in (await spoken()).items():
        assert reply.header.cached and reply.audio == fresh[encoding].audio
    assert box.engine.calls == calls


@pytest.mark.parametrize(
    "fields",
    [{"text": "one. too"}, {"seed": 6}, {"nfe_steps": 4}, {"voice": "bob"}],
    ids=lambda fields: next(iter(fields)),
)
async def test_another_phrase_is_synthesised(box: Box, phrases: Phrases, fields: dict[str, Any]) -> None:
    plain = box.planner.cut

    def cut(request: Request) -> list[Segment]:
        """Segments with the features of the request's voice, as the real planner sets them."""
        features = box.store.index.reference(request.voice).features
        return [replace(one, reference_log_mel=features.log_mel) for one in plain(request)]

    box.store.create(Place("bob"), speech_wav(level=0.2), "Hello there.")
    box.planner.cut = cut
    await box.say()
    assert not (await box.say(**fields)).header.cached
    assert (await box.say()).header.cached
    box.engine.backend = "another"
    assert not (await box.say()).header.cached
    box.store.delete(Place("ann"))
    box.store.create(Place("ann"), speech_wav(level=0.2), "Hello there.")
    assert not (await box.say()).header.cached


async def test_unseeded_phrases_are_cached_only_by_configuration(synthesizer: Stub, box: Box) -> None:
    plain = pb.SynthesizeRequest(text="one", voice="ann")
    for drawn in (False, True):
        box.change(phrases=Phrases(1 << 20, drawn_seeds=drawn))
        first, second = await synthesizer.Synthesize(plain), await synthesizer.Synthesize(plain)
        assert second.header.cached is drawn
        assert box.speech.phrases.misses == drawn
        assert (second.header.seed == first.header.seed) is drawn
        # The fake engine may make the same sound for two seeds.
        assert second.audio == first.audio or not drawn


async def test_a_cancelled_phrase_is_not_cached(box: Box, phrases: Phrases) -> None:
    with box.held():
        call = box.stream()
        await call.read()
        call.cancel()
        await box.soon(lambda: not box.scheduler.load.running)
    await box.speaking.idle()
    assert phrases.size_bytes == 0
    assert not (await box.say(segmentation=pb.LOW_LATENCY)).header.cached


async def test_words_are_timed_in_header_and_end(box: Box, phrases: Phrases) -> None:
    for cached in (False, True):
        messages = await stream(box, text="one two, three. four", word_timings=True)
        header, end = messages[0].header, messages[-1].end
        assert header.cached is cached
        assert [word.word for word in header.words] == ["one", "two,", "three", "four"]
        assert [word.segment for word in header.words] == [0, 0, 0, 1]
        assert [word.word for word in end.words] == [word.word for word in header.words]
        half_s = 49 * 256 / 24_000
        for words in (header.words, end.words):
            times = [time for word in words for time in (word.start_s, word.end_s)]
            assert times == sorted(times)
            assert times[0] >= 0.0 and times[5] <= half_s <= times[6] and times[7] <= 2 * half_s
    # The fake engine's sound has no silence: words begin and end with their segments.
    assert np.allclose([end.words[0].start_s, end.words[3].end_s], [0.0, 2 * half_s], atol=0.011)
    reply = await box.say("one two, three. four", word_timings=True)
    assert list(reply.header.words) == list(header.words) and list(reply.words) == list(end.words)


async def test_words_are_timed_only_when_asked_for(box: Box) -> None:
    reply = await box.say()
    assert not reply.header.words and not reply.words

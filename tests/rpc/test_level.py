"""Loudness and gains over real gRPC, with an engine whose samples are speech."""

import numpy as np
import pytest
import soundfile

from appliance.audio.loudness import loudness
from appliance.audio.phrases import Phrases
from appliance.config import AudioConfig
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from tests.harness.daemons import SPEECH
from tests.harness.engine import samples_of
from tests.harness.segments import RATE_HZ
from tests.rpc.conftest import Box, request

Stub = appliance_pb2_grpc.SynthesizerStub
LUFS = -20.0
FACTOR = 10 ** (-6.0 / 20)


@pytest.fixture(autouse=True)
def speech(box: Box) -> None:
    samples, _ = soundfile.read(SPEECH, dtype="float32")
    box.engine.speak = lambda segment: 4 * samples_of(segment).mean() * np.asarray(samples, np.float32)


async def spoken(synthesizer: Stub, **fields: object) -> np.ndarray:
    fields = {"audio_config": {"encoding": pb.PCM16}, **fields}
    reply = await synthesizer.Synthesize(request("one. two. three", segmentation=pb.LOW_LATENCY, **fields))
    return np.frombuffer(reply.audio, "<i2") / np.float32(32_767)


async def test_segments_of_other_levels_are_all_at_the_target(synthesizer: Stub, box: Box) -> None:
    segments = np.split(await spoken(synthesizer), 3)
    levels = [loudness(part, RATE_HZ) for part in segments]
    assert max(levels) - min(levels) > 9
    box.change(audio=AudioConfig(loudness_lufs=LUFS))
    whole = await spoken(synthesizer)
    for part in (whole, *np.split(whole, 3)):
        assert loudness(part, RATE_HZ) == pytest.approx(LUFS, abs=0.2)
    query = request("one. two. three", segmentation=pb.LOW_LATENCY)
    messages = [message async for message in synthesizer.StreamSynthesize(query)]
    streamed = b"".join(message.audio.data for message in messages)
    assert np.array_equal(np.frombuffer(streamed, "<i2") / np.float32(32_767), whole)


async def test_gains_of_request_and_channel_add_up(synthesizer: Stub, box: Box) -> None:
    box.change(audio=AudioConfig(LUFS, {"alerts": -4.0}))
    gains = [
        loudness(await spoken(synthesizer, **fields), RATE_HZ) - LUFS
        for fields in ({}, {"gain_db": 2.0}, {"channel": "alerts"}, {"channel": "alerts", "gain_db": -20.0})
    ]
    assert gains == pytest.approx([0.0, 2.0, -4.0, -24.0], abs=0.2)


@pytest.mark.parametrize("lufs", [None, LUFS])
async def test_a_kept_phrase_has_the_level_asked_for(synthesizer: Stub, box: Box, lufs: float | None) -> None:
    box.change(phrases=Phrases(1 << 24))
    box.change(audio=AudioConfig(lufs))
    first = await spoken(synthesizer)
    assert np.array_equal(await spoken(synthesizer), first)
    quieter = await spoken(synthesizer, gain_db=-6.0)
    np.testing.assert_allclose(quieter, first * FACTOR, atol=1 / 32_767)
    assert np.array_equal(await spoken(synthesizer), first)
    assert (box.speech.phrases.hits, box.speech.phrases.misses) == (3, 1)

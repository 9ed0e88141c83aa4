"""PCM, WAV and rates, against soundfile, the wave module and arithmetic."""

import io
import wave
from typing import get_args

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from appliance.audio.encode import Encoder, Resampler, check_rate, encode, pcm16
from appliance.audio.wav import wav_header
from appliance.encodings import SUFFIXES, Encoding, EncodingName
from appliance.errors import InvalidRequest
from appliance.rpc import appliance_pb2 as pb


def test_every_list_of_encodings_has_them_all() -> None:
    names = [encoding.value for encoding in Encoding]
    assert list(get_args(EncodingName)) == names and set(SUFFIXES.values()) == set(names)
    assert {name.lower() for name in pb.AudioEncoding.DESCRIPTOR.values_by_name} - {
        "audio_encoding_unspecified"
    } == set(names)


def noise(samples: int) -> np.ndarray:
    return (np.random.default_rng(samples).standard_normal(samples) * 0.3).astype(np.float32)


def test_pcm_is_clipped_and_rounded_to_even():
    half = 1 / 32767
    given = np.array([0, 1, -1, 1.5, -9, half, 0.5 * half, 1.5 * half, -0.5 * half, -1.5 * half])
    want = [0, 32767, -32767, 32767, -32767, 1, 0, 2, 0, -2]
    assert np.frombuffer(pcm16(given), "<i2").tolist() == want


def test_wav_reads_back_in_two_readers():
    samples = noise(1_001)
    audio = encode(samples, Encoding.WAV, 22_050)
    read, rate = soundfile.read(io.BytesIO(audio), dtype="int16")
    assert rate == 22_050
    assert int.from_bytes(audio[4:8], "little") == len(audio) - 8
    assert read.tobytes() == pcm16(samples)
    with wave.open(io.BytesIO(audio)) as file:
        assert file.getparams()[:4] == (1, 2, 22_050, 1_001)
        assert file.readframes(2_000) == pcm16(samples)


def test_a_streamed_wav_can_be_read_to_its_end():
    audio = wav_header(24_000) + pcm16(noise(500))
    read, rate = soundfile.read(io.BytesIO(audio), dtype="int16")
    assert (rate, read.tobytes()) == (24_000, pcm16(noise(500)))


@pytest.mark.parametrize("encoding", [Encoding.WAV, Encoding.PCM16])
@given(cuts=st.lists(st.integers(0, 700), max_size=5))
def test_streamed_bytes_equal_unary_bytes(encoding, cuts):
    samples = noise(700)
    encoder = Encoder(encoding, 24_000, mark="")
    streamed = b"".join(encoder.push(part) for part in np.split(samples, sorted(cuts)))
    unary = encode(samples, encoding, 24_000, mark="")
    head = 44 if encoding is Encoding.WAV else 0
    assert streamed[head:] == unary[head:] == pcm16(samples)
    assert streamed[:4] == unary[:4]


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
@given(cuts=st.lists(st.integers(0, 9_000), max_size=5))
def test_resampling_does_not_depend_on_the_cuts(rate_hz, cuts):
    samples = noise(9_000)
    whole = Resampler(24_000, rate_hz).push(samples, last=True)
    stream = Resampler(24_000, rate_hz)
    parts = np.split(samples, sorted(cuts))
    pushed = [stream.push(part, last=place == len(parts) - 1) for place, part in enumerate(parts)]
    assert np.array_equal(np.concatenate(pushed), whole)
    assert abs(len(whole) - 9_000 * rate_hz / 24_000) <= 1


def test_resampling_keeps_a_tone():
    tone = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000).astype(np.float32)
    got = Resampler(24_000, 44_100).push(tone, last=True)
    want = np.sin(2 * np.pi * 440 * np.arange(len(got)) / 44_100)
    assert np.abs(got - want)[1_000:-1_000].max() < 1e-5


def test_the_models_own_rate_is_passed_through():
    samples = noise(100)
    assert Resampler(24_000, 24_000).push(samples) is samples


@pytest.mark.parametrize("rate_hz", [0, 2, 7_999, 48_001, -24_000])
def test_other_rates_are_refused_with_the_allowed_ones(rate_hz):
    with pytest.raises(InvalidRequest, match=f"rate_hertz: must be from 8000 to 48000 Hz, not {rate_hz}"):
        check_rate(rate_hz, Encoding.PCM16)


def test_allowed_rates():
    for encoding in Encoding:
        assert [check_rate(rate, encoding) for rate in (8_000, 24_000, 48_000)] == [8_000, 24_000, 48_000]

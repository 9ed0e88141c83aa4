"""Files in, integers out; and everything that is refused, with its reason."""

from __future__ import annotations

import contextlib
import struct
import time

import numpy as np
import pytest
import soundfile

from appliance.audio import decode as module
from appliance.audio.decode import decode
from appliance.errors import InvalidReference
from tests.audio.conftest import burst, to_file


@pytest.mark.parametrize(
    ("format", "subtype", "dtype"),
    [
        ("WAV", "PCM_16", np.int16),
        ("WAV", "PCM_24", np.int32),
        ("WAV", "PCM_32", np.int32),
        ("WAV", "PCM_U8", np.int8),
        ("WAVEX", "PCM_16", np.int16),
        ("FLAC", "PCM_16", np.int16),
        ("FLAC", "PCM_24", np.int32),
        ("FLAC", "PCM_S8", np.int8),
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_whole_numbers_come_back_exactly(format, subtype, dtype, channels):
    bits = {"PCM_16": 16, "PCM_24": 24, "PCM_32": 32, "PCM_U8": 8, "PCM_S8": 8}[subtype]
    whole = np.random.default_rng(1).integers(-(1 << bits - 1), 1 << bits - 1, (5_000, channels))
    recording = decode(to_file(whole / 2.0 ** (bits - 1), 44_100, format, subtype))
    assert recording.rate_hz == 44_100
    assert recording.samples.dtype == dtype
    assert np.array_equal(
        recording.samples.astype(np.int64) >> (8 * recording.samples.itemsize - bits), whole
    )


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_floats_are_rounded_and_clipped(subtype):
    wave = np.array([[0.5], [-1.0], [1.5], [-7.0], [np.nan], [0.0]])
    samples = decode(to_file(wave, subtype=subtype)).samples[:, 0]
    assert samples.tolist() == [1 << 30, -(1 << 31), (1 << 31) - 1, -(1 << 31), 0, 0]


@pytest.mark.parametrize(
    ("format", "subtype"), [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]
)
@pytest.mark.parametrize("rate_hz", [24_000, 48_000])
def test_lossy_files_sound_the_same(format, subtype, rate_hz):
    seconds = np.arange(2 * rate_hz) / rate_hz
    wave = 0.3 * np.sin(2 * np.pi * 440 * seconds)[:, None]
    recording = decode(to_file(wave, rate_hz, format, subtype))
    assert (recording.samples.dtype, recording.rate_hz) == (np.int16, rate_hz)
    assert abs(len(recording.samples) - len(wave)) <= 2_500
    middle = recording.mono()[rate_hz // 2 : rate_hz]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.03)


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        (b"", "is empty"),
        (b"these are not sounds" * 99, "is not audio that can be read"),
        (b"RIFF\x00\x00\x00\x00WAVE", "audio: "),
        (b"\x89PNG\r\n\x1a\n" + bytes(500), "is not audio that can be read"),
        (to_file(burst(0.0)), "holds no samples"),
        (to_file(burst(0.5), format="AIFF"), "has format AIFF, allowed are wav, flac, ogg or mp3"),
        (to_file(burst(0.5), 4_000), "has 4000 samples a second, allowed are 8000 to 192000"),
        (to_file(burst(0.5, channels=3)), "has 3 channels, at most 2"),
        (to_file(burst(61.0, rate_hz=8_000), 8_000), "lasts 61 s, at most 60 s"),
        (bytes(module.MAX_BYTES + 1), "has 16777217 bytes, at most 16777216"),
    ],
)
def test_refusals_name_the_reason(audio, message):
    with pytest.raises(InvalidReference, match=message) as caught:
        decode(audio)
    assert caught.value.field == "audio"


@pytest.mark.parametrize(
    ("format", "subtype"),
    [
        ("WAV", "PCM_16"),
        ("WAVEX", "PCM_24"),
        ("FLAC", "PCM_16"),
        ("OGG", "VORBIS"),
        ("MP3", "MPEG_LAYER_III"),
    ],
)
@pytest.mark.parametrize("kept", [0.3, 0.7, 0.95])
def test_a_file_that_ends_too_early_is_refused(format, subtype, kept):
    whole = to_file(burst(3.0), format=format, subtype=subtype)
    decode(whole)
    with pytest.raises(InvalidReference, match=r"cut off|not audio that can be read"):
        decode(whole[: int(len(whole) * kept)])


def test_a_wav_of_unknown_length_is_whole():
    audio = bytearray(to_file(burst(1.0)))
    place = audio.index(b"data") + 4
    audio[place : place + 4] = audio[4:8] = struct.pack("<I", 0xFFFFFFFF)
    assert len(decode(bytes(audio)).samples) == 24_000


def test_a_flac_of_unknown_length_is_refused():
    audio = bytearray(to_file(burst(1.0), format="FLAC"))
    audio[21] &= 0xF0  # 36 bits of STREAMINFO: total samples
    audio[22:26] = bytes(4)
    with pytest.raises(InvalidReference, match="does not say how long it is"):
        decode(bytes(audio))


def test_a_forty_minute_file_is_refused_before_it_is_decoded(tmp_path):
    path = tmp_path / "long.flac"
    with soundfile.SoundFile(path, "w", 16_000, 1, format="FLAC", subtype="PCM_16") as file:
        for _ in range(40):
            file.write(np.zeros(60 * 16_000, np.int16))
    audio = path.read_bytes()
    assert len(audio) < module.MAX_BYTES
    start = time.perf_counter()
    with pytest.raises(InvalidReference, match="lasts 2400 s"):
        decode(audio)
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_decode_or_are_refused(seed):
    draw = np.random.default_rng(seed)
    format, subtype = [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")][
        seed % 4
    ]
    audio = bytearray(to_file(burst(0.5), format=format, subtype=subtype))
    for place in draw.integers(0, min(len(audio), 400), 6):
        audio[place] = draw.integers(0, 256)
    with contextlib.suppress(InvalidReference):
        assert decode(bytes(audio)).samples.ndim == 2

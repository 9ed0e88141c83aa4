"""FLAC, MP3, Ogg Opus and μ-law, against decoders: soundfile, ffmpeg if it is installed, and arithmetic."""

import io
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.audio import compress
from appliance.audio.encode import Encoder, check_encoding, check_rate, encode, pcm16
from appliance.encodings import Encoding
from appliance.errors import InvalidRequest, UnsupportedEncoding
from tests.harness.daemons import SPEECH

pytestmark = pytest.mark.once

CODED = [Encoding.FLAC, Encoding.MP3, Encoding.OGG_OPUS]
FLAC_BLOCK = 1_152


def voice(seconds: float, rate_hz: int) -> np.ndarray:
    """`seconds` of the demo voice."""
    recording, recorded_hz = soundfile.read(SPEECH, dtype="float32")
    sound = soxr.resample(recording, recorded_hz, rate_hz)
    return np.resize(sound, round(seconds * rate_hz)).astype(np.float32)


def streamed(samples: np.ndarray, encoding: Encoding, rate_hz: int, cuts: list[int]) -> list[bytes]:
    encoder, parts = Encoder(encoding, rate_hz), np.split(samples, sorted(cuts))
    return [encoder.push(part, last=place == len(parts)) for place, part in enumerate(parts, 1)]


def decoded(data: bytes) -> tuple[np.ndarray, int]:
    """(samples,) as int16, and their rate."""
    return soundfile.read(io.BytesIO(data), dtype="int16")


def of_length(flac: bytes, samples: int) -> bytes:
    """A FLAC stream with its number of samples filled in: libsndfile reads no stream without it."""
    place = 4 + 4 + 13
    head = flac[:place] + (flac[place] & 0xF0).to_bytes(1, "big")
    return head + samples.to_bytes(4, "big") + flac[place + 5 :]


def untagged(mp3: bytes) -> bytes:
    """An MP3 without its tag (ID3v2.3, section 3.1)."""
    assert mp3.startswith(b"ID3\3\0\0")
    a, b, c, d = mp3[6:10]
    return mp3[10 + (a << 21 | b << 14 | c << 7 | d) :]


def mp3_samples(data: bytes) -> int:
    """Samples in an MP3 stream's whole frames, found by their headers alone (ISO 11172-3, 13818-3)."""
    v1 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
    v2 = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
    data, place, count = untagged(data), 0, 0
    while place + 4 <= len(data):
        head = int.from_bytes(data[place : place + 4], "big")
        version, kind = head >> 19 & 3, head >> 17 & 3
        assert (head >> 21, kind) == (0x7FF, 1), f"no header of layer III at byte {place}"
        kbits = (v1 if version == 3 else v2)[(head >> 12 & 15) - 1]
        rate_hz = (44_100, 48_000, 32_000)[head >> 10 & 3] >> {3: 0, 2: 1, 0: 2}[version]
        samples = 1_152 if version == 3 else 576
        place += samples // 8 * kbits * 1_000 // rate_hz + (head >> 9 & 1)
        count += samples * (place <= len(data))
    return count


def int16(samples: np.ndarray) -> np.ndarray:
    return np.frombuffer(pcm16(samples), "<i2")


@settings(max_examples=25)
@given(
    seconds=st.floats(0.01, 1.5),
    rate_hz=st.sampled_from((8_000, 11_025, 24_000, 44_100, 48_000)),
    cuts=st.lists(st.floats(0, 1), max_size=6),
)
def test_flac_streamed_and_whole_is_pcm16(seconds: float, rate_hz: int, cuts: list[float]) -> None:
    samples = voice(seconds, rate_hz)
    places = [int(cut * len(samples)) for cut in cuts]
    stream = b"".join(streamed(samples, Encoding.FLAC, rate_hz, places))
    for data in (of_length(stream, len(samples)), encode(samples, Encoding.FLAC, rate_hz)):
        read, rate = decoded(data)
        assert rate == rate_hz
        assert np.array_equal(read, int16(samples))


@settings(max_examples=20)
@given(
    seconds=st.floats(0.01, 1.5),
    rate_hz=st.sampled_from((8_000, 16_000, 24_000, 48_000)),
    cuts=st.lists(st.floats(0, 1), max_size=6),
)
@pytest.mark.slow
def test_streamed_mp3_and_opus_are_the_whole_reply(seconds: float, rate_hz: int, cuts: list[float]) -> None:
    samples = voice(seconds, rate_hz)
    places = [int(cut * len(samples)) for cut in cuts]
    # The whole MP3 has the same frames, without the first one, which counts the frames.
    whole = encode(samples, Encoding.MP3, rate_hz)
    stream = b"".join(streamed(samples, Encoding.MP3, rate_hz, places))
    frames = untagged(stream)
    assert whole.endswith(frames)
    assert b"Info" in whole[: -len(frames)]
    assert mp3_samples(stream) >= len(samples)
    assert len(decoded(whole)[0]) == len(samples)
    # The whole Opus file has the same packets and another serial number, because each encoder draws its own.
    whole = encode(samples, Encoding.OGG_OPUS, rate_hz)
    parts = b"".join(streamed(samples, Encoding.OGG_OPUS, rate_hz, places))
    opus = [decoded(data)[0] for data in (whole, parts)]
    assert np.array_equal(*opus)
    assert len(opus[0]) == len(samples)


@pytest.mark.parametrize("rate_hz", compress.FORMATS[Encoding.MP3].rates_hz)
def test_a_streamed_mp3_is_read_at_its_length(rate_hz: int) -> None:
    """Samples end quietly: a variable bit rate would make the estimated length too short."""
    samples = voice(4.15, rate_hz)
    samples[rate_hz:] *= 0.001
    stream = b"".join(streamed(samples, Encoding.MP3, rate_hz, [rate_hz, 2 * rate_hz]))
    read, rate = decoded(stream)
    assert rate == rate_hz
    assert 0 <= len(read) - len(samples) <= 3_000


@pytest.mark.parametrize("rate_hz", [8_000, 24_000, 48_000])
@pytest.mark.parametrize("encoding", CODED)
def test_decoded_audio_sounds_like_its_source(encoding: Encoding, rate_hz: int) -> None:
    samples = voice(3.0, rate_hz)
    read, rate = decoded(encode(samples, encoding, rate_hz))
    assert (rate, len(read)) == (rate_hz, len(samples))
    wanted = int16(samples) / 32_767.0
    assert np.corrcoef(read, wanted)[0, 1] > 0.95


@pytest.mark.parametrize("rate_hz", [8_000, 24_000, 48_000])
@pytest.mark.parametrize("encoding", CODED)
def test_the_encoder_holds_back_at_most_a_block(encoding: Encoding, rate_hz: int) -> None:
    """Bytes follow the samples: a file cut off anywhere decodes to nearly all of its input."""
    samples, step_s = voice(2.0, rate_hz), 0.1
    cuts = [round(place * step_s * rate_hz) for place in range(1, 20)]
    parts = streamed(samples, encoding, rate_hz, cuts)
    for fed in (3, 10, 15):
        data, count = b"".join(parts[:fed]), round(fed * step_s * rate_hz)
        if encoding is Encoding.FLAC:
            given = (count - 1) // FLAC_BLOCK * FLAC_BLOCK
            assert np.array_equal(decoded(of_length(data, given))[0], int16(samples)[:given])
        elif encoding is Encoding.MP3:
            assert count - mp3_samples(data) <= 4 * (1_152 if rate_hz > 24_000 else 576)
        else:
            assert count - len(decoded(data)[0]) <= 0.09 * rate_hz


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("encoding", CODED)
def test_ffmpeg_decodes_it(encoding: Encoding, is_stream: bool, tmp_path: Path) -> None:
    samples = voice(2.0, 24_000)
    data = (
        b"".join(streamed(samples, encoding, 24_000, [4_800, 30_000]))
        if is_stream
        else encode(samples, encoding, 24_000)
    )
    (tmp_path / "given").write_bytes(data)  # from a pipe, FFmpeg 5 plays the end's padding too
    command = [
        "ffmpeg", "-v", "error", "-i", tmp_path / "given", "-f", "s16le", "-ar", "24000", "-ac", "1", "-",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, check=True)
    assert ran.stderr == b""
    read = np.frombuffer(ran.stdout, "<i2")
    if encoding is Encoding.FLAC:
        assert np.array_equal(read, int16(samples))
    assert 0 <= len(read) - len(samples) <= (3_000 if encoding is Encoding.MP3 and is_stream else 0)


def test_mulaw_is_g711() -> None:
    """The reference is the recommendation's formula: each code's middle is nearest to its neighbours'
    middles."""
    samples = np.linspace(-1, 1, 20_001).astype(np.float32)
    codes = np.frombuffer(encode(samples, Encoding.MULAW, 8_000), np.uint8)
    assert b"".join(streamed(samples, Encoding.MULAW, 8_000, [7, 800])) == codes.tobytes()
    sent = (~codes).astype(int)
    exponent, mantissa = (sent >> 4) & 7, sent & 15
    size = ((2 * mantissa + 33) << exponent) - 33
    value = np.where(sent & 0x80, -size, size) * 4
    step = 8 << exponent
    error = np.abs(value - np.clip(int16(samples).astype(int), -32_635, 32_635))
    assert (error <= step / 2 + 4).all()


@pytest.mark.parametrize(("encoding", "rate_hz", "allowed"), [
    (Encoding.OGG_OPUS, 44_100, "8000, 12000, 16000, 24000, 48000"),
    (Encoding.MP3, 23_000, "8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000"),
])  # fmt: skip
def test_rates_that_a_format_lacks_are_refused(encoding: Encoding, rate_hz: int, allowed: str) -> None:
    with pytest.raises(InvalidRequest, match=f"one of {allowed} Hz for {encoding.name}, not {rate_hz}"):
        check_rate(rate_hz, encoding)
    with pytest.raises(soundfile.SoundFileError):
        compress.Compressor(encoding, rate_hz)


def test_every_rate_that_is_named_is_written() -> None:
    for encoding, form in compress.FORMATS.items():
        for rate_hz in form.rates_hz:
            data = encode(voice(0.1, rate_hz), check_encoding(encoding), check_rate(rate_hz, encoding))
            assert decoded(data)[1] == rate_hz


def test_an_old_libsndfile_names_the_missing_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundfile, "check_format", lambda container, codec: container != "MP3")
    with pytest.raises(UnsupportedEncoding, match=r"MP3 cannot be .* WAV, PCM16, FLAC, OGG_OPUS, MULAW"):
        check_encoding(Encoding.MP3)
    assert check_encoding(Encoding.FLAC) is Encoding.FLAC

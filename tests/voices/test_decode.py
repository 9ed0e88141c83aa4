"""Decoding of files to integers; and every refusal with its reason."""

import contextlib
import io
import random
import re
import struct
import time
import tracemalloc

import numpy as np
import pytest
import soundfile

from appliance.contract.mel import MelSpec
from appliance.errors import InvalidReference
from appliance.voices import decode as decode_module
from appliance.voices.decode import decode
from appliance.voices.reference import prepare
from tests.harness.hostile import mutated
from tests.harness.patience import scaled
from tests.harness.sounds import burst, to_file

pytestmark = pytest.mark.once


LOSSY = [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]
OF_WAV = ("PCM_16", "PCM_24", "PCM_32", "PCM_U8")
WHOLE = {"WAV": OF_WAV, "WAVEX": ("PCM_16",), "FLAC": ("PCM_16", "PCM_24", "PCM_S8")}


@pytest.mark.parametrize(("format", "subtype"), [(form, one) for form, of in WHOLE.items() for one in of])
@pytest.mark.parametrize("channels", [1, 2])
def test_whole_numbers_come_back_exactly(format, subtype, channels):
    bits = int(re.sub(r"\D", "", subtype))
    dtype = {8: np.int8, 16: np.int16}.get(bits, np.int32)
    whole = np.random.default_rng(1).integers(-(1 << bits - 1), 1 << bits - 1, (5_000, channels))
    recording = decode(to_file(whole / 2.0 ** (bits - 1), 44_100, format, subtype))
    assert recording.rate_hz == 44_100
    assert recording.samples.dtype == dtype
    unused = 8 * recording.samples.itemsize - bits
    assert np.array_equal(recording.samples.astype(np.int64) >> unused, whole)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_floats_are_rounded_and_clipped(subtype):
    wave = np.array([[0.5], [-1.0], [1.5], [-7.0], [np.nan], [0.0]])
    samples = decode(to_file(wave, subtype=subtype)).samples[:, 0]
    assert samples.tolist() == [1 << 30, -(1 << 31), (1 << 31) - 1, -(1 << 31), 0, 0]


@pytest.mark.parametrize(("format", "subtype"), LOSSY)
@pytest.mark.parametrize("rate_hz", [24_000, 48_000])
def test_lossy_files_sound_the_same(format, subtype, rate_hz):
    seconds = np.arange(2 * rate_hz) / rate_hz
    wave = 0.3 * np.sin(2 * np.pi * 440 * seconds)[:, None]
    recording = decode(to_file(wave, rate_hz, format, subtype))
    assert (recording.samples.dtype, recording.rate_hz) == (np.int16, rate_hz)
    assert abs(len(recording.samples) - len(wave)) <= 2_500
    middle = recording.mono()[rate_hz // 2 : rate_hz]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.03)


@pytest.mark.parametrize(("audio", "message"), [
    (b"", "is empty"),
    (b"these are not sounds" * 99, "is not audio that can be read .it begins with b'these ar'"),
    (b"RIFF\x00\x00\x00\x00WAVE", "audio: "),
    (b"\x89PNG\r\n\x1a\n" + bytes(500), "is not audio that can be read"),
    (b"ID3\x04\x00\x00\x00\x00\x00\x02..", "is not audio that can be read"),
    (b"\xff\xfb", "is not audio that can be read"),
    (to_file(burst(0.0)), "contains no samples"),
    (to_file(burst(0.5), format="AIFF"), "is not audio that can be read .it begins with b'FORM"),
    (to_file(burst(0.5), 4_000), "has 4000 samples a second, allowed are 8000 to 192000"),
    (to_file(burst(0.5, channels=3)), "has 3 channels, at most 2"),
    (to_file(burst(61.0, rate_hz=8_000), 8_000), "lasts 61 s, at most 60 s"),
    ((b"ID3\x04" + bytes(6)) * 65, "has more than 64 tags in front"),
    *((head + part * 4_097, "more than 4,096 chunks or pages") for head, part in (
        (b"RIFF\x00\x00\x00\x00WAVE", b"junk\x00\x00\x00\x00"), (b"", b"OggS" + bytes(23)),
    )),
    *(  # codecs that cannot be read twice
        (to_file(burst(1.0, rate_hz=8_000), 8_000, "WAV", codec), f"samples of kind {codec}: save it as")
        for codec in ("GSM610", "G721_32", "NMS_ADPCM_16", "NMS_ADPCM_24", "NMS_ADPCM_32")
    ),
])  # fmt: skip
def test_refusals_name_the_reason(audio, message):
    with pytest.raises(InvalidReference, match=message) as caught:
        decode(audio)
    assert caught.value.field == "audio"


@pytest.mark.parametrize(("format", "subtype"), [
    ("WAV", "PCM_16"), ("WAVEX", "PCM_24"), ("RF64", "PCM_16"), ("FLAC", "PCM_16"), *LOSSY,
])  # fmt: skip
@pytest.mark.parametrize("kept", [0.3, 0.7, 0.95])
def test_a_file_that_ends_too_early_is_refused(format, subtype, kept):
    whole = to_file(burst(3.0), format=format, subtype=subtype)
    decode(whole)
    with pytest.raises(InvalidReference, match=r"cut off|not audio that can be read"):
        decode(whole[: int(len(whole) * kept)])


def pages_of(ogg: bytes) -> list[bytes]:
    return [b"OggS" + page for page in ogg.split(b"OggS")[1:]]


def page_of(packet: bytes, flags: int, serial: int, number: int = 0, position: int = 0) -> bytes:
    """An Ogg page with its checksum."""
    lengths = bytes([255] * (len(packet) // 255) + [len(packet) % 255])
    head = b"OggS\0" + struct.pack("<BqIIIB", flags, position, serial, number, 0, len(lengths)) + lengths
    remainder = 0
    for byte in head + packet:
        remainder ^= byte << 24
        for _ in range(8):
            remainder = (remainder << 1 ^ (0x04C11DB7 if remainder >> 31 else 0)) & 0xFFFFFFFF
    return head[:22] + struct.pack("<I", remainder) + head[26:] + packet


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_file_ends_where_its_streams_end(subtype: str) -> None:
    whole = to_file(burst(3.0), format="OGG", subtype=subtype)
    pages = pages_of(whole)
    assert b"".join(pages) == whole
    samples = len(decode(whole).samples)
    for kept in range(1, len(pages)):
        with pytest.raises(InvalidReference, match="cut off: its stream has no last page"):
            decode(b"".join(pages[:kept]))
    first, last = page_of(b"other", 2, serial=7), page_of(b"", 4, serial=7, number=1)
    beside = [pages[0], first, *pages[1:]]
    assert len(decode(b"".join([*beside, last])).samples) == samples
    with pytest.raises(InvalidReference, match="cut off"):
        decode(b"".join(beside))
    with pytest.raises(InvalidReference, match="several recordings, one after another"):
        decode(whole + whole)
    assert len(decode(whole + b"TAG" + bytes(125)).samples) == samples


def test_flac_in_ogg_is_cut_off_like_any_other() -> None:
    with pytest.raises(InvalidReference, match="cut off"):
        decode(page_of(b"\x7fFLAC\x01\x00", 2, serial=1) + page_of(b"frames", 0, serial=1, number=1))


def mp3_frames(audio: bytes) -> list[bytes]:
    """The frames of an MP3 file; all begin with the same bytes."""
    starts = [place for place in range(len(audio)) if audio[place : place + 2] == audio[:2]]
    return [audio[a:b] for a, b in zip(starts, [*starts[1:], len(audio)], strict=True)]


def mp3_of(mode: str, rate_hz: int) -> bytes:
    wave = 0.3 * np.sin(np.arange(3 * rate_hz) * np.linspace(0.01, 0.2, 3 * rate_hz))
    stream = io.BytesIO()
    with soundfile.SoundFile(
        stream, "w", rate_hz, 1, "MPEG_LAYER_III", format="MP3", bitrate_mode=mode, compression_level=0.5
    ) as file:
        file.write(wave)
    return stream.getvalue()


@pytest.mark.parametrize("rate_hz", [24_000, 44_100])
@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
def test_an_mp3_has_as_many_frames_as_it_says(mode: str, rate_hz: int) -> None:
    audio = mp3_of(mode, rate_hz)
    frames = mp3_frames(audio)
    tagged = b"ID3\x04\x00\x10\x00\x00\x01\x00" + bytes(138)
    assert len(decode(tagged + audio + b"TAG" + bytes(125)).samples) == 3 * rate_hz
    for kept in (len(frames) // 2, len(frames) - 1):
        with pytest.raises(InvalidReference, match="cut off"):
            decode(b"".join(frames[:kept]))


@pytest.mark.parametrize("rate_hz", [24_000, 44_100])
def test_an_mp3_that_does_not_say_its_length_is_whole_or_refused(rate_hz: int) -> None:
    steady = b"".join(mp3_frames(mp3_of("CONSTANT", rate_hz))[1:])
    assert 0 <= len(decode(steady).samples) - 3 * rate_hz < 4 * 1152
    for missing in (1, 17, 100):
        with pytest.raises(InvalidReference, match="cut off: its last frame is incomplete"):
            decode(steady[:-missing])
    varying = mp3_frames(mp3_of("VARIABLE", rate_hz))[1:]
    if len(set(map(len, varying))) > 1:
        with pytest.raises(InvalidReference, match="does not say how long it is"):
            decode(b"".join(varying))


def test_no_other_parser_sees_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    # SD2 writes a second file, and RAW has no header.
    known = {"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "RAW", "SD2"}
    others = []
    for format in set(soundfile.available_formats()) - known:
        with contextlib.suppress(ValueError, RuntimeError):
            subtype = soundfile.default_subtype(format)
            others.append(to_file(burst(0.1, rate_hz=8_000), 8_000, format, subtype))
    assert len(others) > 10
    monkeypatch.setattr(soundfile, "SoundFile", lambda *_, **__: pytest.fail("it was parsed"))
    for other in others:
        for audio in (other, b"ID3\x03\x00\x00\x00\x00\x00\x01!" + other):
            with pytest.raises(InvalidReference, match="is not audio that can be read"):
                decode(audio)


def test_a_wav_of_unknown_length_is_whole():
    audio = bytearray(to_file(burst(1.0)))
    place = audio.index(b"data") + 4
    audio[place : place + 4] = audio[4:8] = struct.pack("<I", 0xFFFFFFFF)
    assert len(decode(bytes(audio)).samples) == 24_000


def test_a_forty_minute_file_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "long.flac"
    with soundfile.SoundFile(path, "w", 16_000, 1, format="FLAC", subtype="PCM_16") as file:
        for _ in range(40):
            file.write(np.zeros(60 * 16_000, np.int16))
    audio = path.read_bytes()
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(InvalidReference, match="lasts 2400 s"):
        decode(audio)


@pytest.mark.parametrize(("rate_hz", "channels", "allowed_s"), [
    (192_000, 2, 15), (192_000, 1, 30), (96_000, 2, 30), (48_000, 2, 60),
])  # fmt: skip
def test_high_rates_are_allowed_less_time(rate_hz, channels, allowed_s):
    def silence_of(seconds: float) -> bytes:
        return to_file(np.zeros((round(seconds * rate_hz), channels), np.int16), rate_hz, "FLAC")

    assert len(decode(silence_of(allowed_s)).samples) == allowed_s * rate_hz
    with pytest.raises(InvalidReference, match=rf"lasts \d+ s, at most {allowed_s} s are allowed"):
        decode(silence_of(allowed_s + 1))


@pytest.mark.parametrize(("format", "subtype", "rate_hz", "channels", "seconds"), [
    ("FLAC", "PCM_24", 48_000, 2, 60),
    ("FLAC", "PCM_24", 192_000, 1, 30),
    ("WAV", "FLOAT", 48_000, 2, 30),
    ("OGG", "VORBIS", 48_000, 2, 60),
])  # fmt: skip
def test_the_largest_upload_is_bounded_in_memory(format, subtype, rate_hz, channels, seconds):
    audio = to_file(burst(seconds, 0.1, rate_hz, channels), rate_hz, format, subtype)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidReference, match=f"lasts {seconds}.* s without its silences"):
            prepare(audio, MelSpec("vocos"), 0.1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100e6


def flac_of(seconds: int, claimed: int) -> bytes:
    """A FLAC whose header states another length than it has."""
    audio = bytearray(to_file(burst(seconds, rate_hz=8_000), 8_000, "FLAC"))
    audio[21] = audio[21] & 0xF0 | claimed >> 32  # 36 bits of STREAMINFO: total samples
    audio[22:26] = (claimed & 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(audio)


def test_a_flac_is_read_to_its_stated_length_and_refused_if_short_or_silent_on_it() -> None:
    assert len(decode(flac_of(50, claimed=8_000)).samples) == 8_000
    early = "cut off|not audio that can be read"
    for claimed, message in ((8_000 * 50, early), (0, "does not say how long")):
        with pytest.raises(InvalidReference, match=message):
            decode(flac_of(1, claimed=claimed))


@pytest.mark.parametrize(("format", "subtype"), LOSSY)
def test_twelve_mebibytes_of_joined_silent_files_are_read_in_bounded_time(format, subtype):
    one = to_file(np.zeros((60 * 16_000, 1)), 16_000, format, subtype)
    start = time.thread_time()
    with contextlib.suppress(InvalidReference):
        assert len(decode(one * ((12 << 20) // len(one))).samples) <= decode_module.MAX_SAMPLES
    assert time.thread_time() - start < scaled(2.0)


def test_damaged_bytes_are_prepared_or_refused(capfd):
    """Only InvalidReference is raised, and the decoder's callbacks print nothing."""
    dice = random.Random(1)
    codecs = ("PCM_16", "PCM_U8", "FLOAT", "ULAW", "GSM610", "MS_ADPCM", "IMA_ADPCM", "G721_32")
    kinds = [*(("WAV", codec) for codec in codecs), ("WAVEX", "FLOAT"), ("RF64", "PCM_24"), *LOSSY]
    kinds += [("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("AIFF", "PCM_16"), ("AU", "PCM_16"), ("W64", "PCM_16")]
    whole = [to_file(burst(0.3, rate_hz=8_000), 8_000, *kind) for kind in kinds]
    for case in range(400):
        audio = whole[case % len(whole)]
        # Most damage is in the header, which decides how the file is decoded.
        end = len(audio) if dice.random() < 0.3 else 120
        with contextlib.suppress(InvalidReference):
            damaged = mutated(audio[:end], dice) + audio[end:]
            assert prepare(damaged, MelSpec("vocos"), 0.1).log_mel.ndim == 2
    assert "Traceback" not in capfd.readouterr().err

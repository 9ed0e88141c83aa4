"""The mark of synthetic audio, read by soundfile, the wave module and the formats' own layout."""

import io
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from appliance.audio.encode import Encoder, encode, pcm16
from appliance.audio.marking import MARK
from appliance.audio.tags import SOURCE_TYPE
from appliance.cli import main
from appliance.encodings import Encoding

RATE_HZ = 24_000
ROOMY = [Encoding.WAV, Encoding.FLAC, Encoding.MP3, Encoding.OGG_OPUS]
SAMPLES = (np.sin(np.arange(RATE_HZ) / 20) * 0.3).astype(np.float32)
COST = {Encoding.WAV: 22, Encoding.FLAC: 16, Encoding.MP3: 25, Encoding.OGG_OPUS: 13}
"""Largest number of bytes that a container adds to the bytes of the mark."""


def streamed(encoding: Encoding, mark: str) -> list[bytes]:
    encoder = Encoder(encoding, RATE_HZ, mark)
    parts = np.split(SAMPLES, 10)
    return [encoder.push(part, last=place == len(parts)) for place, part in enumerate(parts, 1)]


def test_the_mark_is_the_industrys_term_in_few_bytes() -> None:
    assert SOURCE_TYPE == "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
    assert SOURCE_TYPE in MARK and MARK.isascii() and MARK.isprintable() and len(MARK) < 160


@pytest.mark.parametrize("encoding", ROOMY)
def test_files_and_streams_are_marked_and_sound_as_before(encoding: Encoding) -> None:
    plain, marked = streamed(encoding, ""), streamed(encoding, MARK)
    for data in (encode(SAMPLES, encoding, RATE_HZ), b"".join(marked)):
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            assert file.comment == MARK
    files = [encode(SAMPLES, encoding, RATE_HZ, mark) for mark in ("", MARK)]
    heard = [soundfile.read(io.BytesIO(data), dtype="int16")[0] for data in files]
    assert len(heard[0]) == len(SAMPLES) and np.array_equal(*heard)
    # The mark and the first sound share a message, which grows by the mark. No other message grows.
    grown = [len(a) - len(b) for a, b in zip(marked, plain, strict=True)]
    first = next(place for place, data in enumerate(plain) if data)
    assert len(MARK) < grown.pop(first) <= len(MARK) + COST[encoding]
    assert not any(grown)


@pytest.mark.parametrize("encoding", ROOMY)
def test_the_shortest_stream_is_marked(encoding: Encoding) -> None:
    """A stream of one message, whose only bytes come with its end."""
    data = Encoder(encoding, RATE_HZ).push(SAMPLES[:100], last=True)
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        assert file.comment == MARK


@pytest.mark.parametrize("encoding", ROOMY)
def test_an_empty_mark_writes_no_comment(encoding: Encoding) -> None:
    for data in (encode(SAMPLES, encoding, RATE_HZ, ""), b"".join(streamed(encoding, ""))):
        assert b"digitalSourceType" not in data and b"LIST" not in data and b"ID3" not in data


@pytest.mark.parametrize("encoding", [encoding for encoding in Encoding if encoding not in ROOMY])
def test_encodings_without_comments_do_not_change(encoding: Encoding) -> None:
    assert encode(SAMPLES, encoding, RATE_HZ) == encode(SAMPLES, encoding, RATE_HZ, "")
    assert streamed(encoding, MARK) == streamed(encoding, "")


def test_a_wav_file_has_its_samples_after_44_bytes_and_a_stream_to_its_end() -> None:
    pcm, file = pcm16(SAMPLES), encode(SAMPLES, Encoding.WAV, RATE_HZ)
    assert file[44 : 44 + len(pcm)] == pcm
    assert struct.unpack_from("<I", file, 4) == (len(file) - 8,)
    assert struct.unpack_from("<I", file, 40) == (len(pcm),)
    stream = b"".join(streamed(Encoding.WAV, MARK))
    assert stream.endswith(b"data\xff\xff\xff\xff" + pcm) and len(stream) % 2 == 0
    for data in (file, stream):
        with wave.open(io.BytesIO(data)) as read:
            assert read.readframes(2 * len(SAMPLES)) == pcm


def test_the_command_tells_marked_and_unreadable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "given"

    def asked(data: bytes) -> tuple[int, str]:
        path.write_bytes(data)
        status = main(["marked", str(path)])
        return status, capsys.readouterr().out

    for encoding in ROOMY:
        assert asked(encode(SAMPLES, encoding, RATE_HZ)) == (0, f"marked: {MARK}\n")
        assert asked(b"".join(streamed(encoding, MARK))) == (0, f"marked: {MARK}\n")
        assert asked(encode(SAMPLES, encoding, RATE_HZ, "")) == (1, "not marked\n")
    for encoding, ours in ((Encoding.WAV, b"ICMT"), (Encoding.FLAC, b"comment=")):
        data = encode(SAMPLES, encoding, RATE_HZ)
        assert ours in data and asked(data.replace(ours, b"IKEYIKE="[-len(ours) :]))[0] == 0
    # ffmpeg writes the first frame, other programs the second; the third is a picture's.
    frames = (b"TXXX\3comment\0" + MARK.encode(), b"COMM\1eng\xff\xfe\0\0" + SOURCE_TYPE.encode("utf-16"))
    picture = b'APIC\0image/jpeg\0\3\0<Description a:DigitalSourceType="%b"/>' % SOURCE_TYPE.encode()
    for frame, status in (*((text, 0) for text in frames), (picture, 1)):
        held = struct.pack(">4sIH", frame[:4], len(frame) - 4, 0) + frame[4:] + b"TSSE"
        tag = b"ID3\3\0\0" + struct.pack(">BBBB", 0, 0, len(held) >> 7, len(held) & 127) + held
        assert asked(tag + encode(SAMPLES, Encoding.MP3, RATE_HZ, ""))[0] == status
    assert asked(b"no audio") == (2, "")
    path.unlink()
    assert main(["marked", str(path)]) == 2

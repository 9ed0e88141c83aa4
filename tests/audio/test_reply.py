"""A reply's bytes: the pieces of a stream, the whole of a message, and the plain way of making both."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.audio import compress, encode, join
from appliance.audio.loudness import levelled
from appliance.audio.reply import ReplyAudio
from appliance.contract import bundle
from appliance.contract.bundle import Manifest
from appliance.encodings import Encoding
from appliance.request import AS_MADE, FloatArray, ReplyLevel, SegmentAudio
from tests.harness.daemons import BUNDLE

MANIFEST = bundle.read(BUNDLE, verify=False).manifest
MESSAGE_S = 0.2


def reply_of(
    rate_hz: int = 24_000,
    encoding: Encoding = Encoding.PCM16,
    manifest: Manifest = MANIFEST,
    level: ReplyLevel = AS_MADE,
) -> ReplyAudio:
    return ReplyAudio(manifest, encoding, rate_hz, MESSAGE_S, level, mark="")


def made_of(lengths: list[int], pauses_s: Sequence[float] = ()) -> list[SegmentAudio]:
    rng = np.random.default_rng(len(lengths))
    pauses_s = [*pauses_s, *(0.0 for _ in lengths)]
    return [
        SegmentAudio(rng.uniform(-1.1, 1.1, n).astype(np.float32), i, i == len(lengths) - 1, pauses_s[i])
        for i, n in enumerate(lengths)
    ]


def plainly(
    segments: list[SegmentAudio], rate_hz: int, cross_fade_s: float, level: ReplyLevel = AS_MADE
) -> FloatArray:
    """The plain way: level each segment, cross-fade all segments between two pauses at once, then resample
    the whole."""
    overlap = join.overlap_samples(cross_fade_s, MANIFEST.mel.sample_rate_hz)
    parts: list[FloatArray] = [np.zeros(0, np.float32)]
    for segment in segments:
        parts[-1] = np.asarray(join.crossfade(parts[-1], levelled(segment.samples, 24_000, level), overlap))
        if segment.pause_s:
            parts += [np.zeros(round(segment.pause_s * 24_000), np.float32), np.zeros(0, np.float32)]
    joined = np.concatenate(parts).astype(np.float32)
    return encode.Resampler(MANIFEST.mel.sample_rate_hz, rate_hz).push(joined, last=True)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 30_000), min_size=1, max_size=5),
    st.sampled_from((8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000)),
    st.sampled_from((Encoding.WAV, Encoding.PCM16)),
    st.sampled_from((0.0, 0.15)),
    st.lists(st.sampled_from((0.0, 0.0, 0.3)), max_size=5),
    st.sampled_from((AS_MADE, ReplyLevel(-18.0), ReplyLevel(None, 6.0))),
)
def test_a_stream_a_whole_reply_and_the_plain_way_are_the_same(
    lengths: list[int],
    rate_hz: int,
    encoding: Encoding,
    cross_fade_s: float,
    pauses_s: list[float],
    level: ReplyLevel,
) -> None:
    manifest = replace(MANIFEST, defaults=replace(MANIFEST.defaults, cross_fade_s=cross_fade_s))
    segments = made_of(lengths, pauses_s)
    streamed = reply_of(rate_hz, encoding, manifest, level)
    messages = [message for made in segments for message in streamed.messages(made)]
    whole = reply_of(rate_hz, encoding, manifest, level)
    for made in segments:
        whole.keep(made)
    head = 44 if encoding is Encoding.WAV else 0
    data = b"".join(data for data, _ in messages)
    wanted = encode.pcm16(plainly(segments, rate_hz, cross_fade_s, level))
    assert whole.whole()[head:] == wanted
    if wanted:  # a stream without audio has no message for a header either
        assert data[head:] == wanted
    assert streamed.samples == whole.samples == len(wanted) // 2 == sum(count for _, count in messages)
    assert streamed.audio_s == len(wanted) / 2 / rate_hz


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 30_000), min_size=1, max_size=4),
    st.sampled_from((8_000, 24_000, 48_000)),
    st.sampled_from([encoding for encoding in Encoding if encoding in compress.FORMATS]),
)
def test_coded_messages_are_the_coded_samples(lengths: list[int], rate_hz: int, encoding: Encoding) -> None:
    segments = made_of(lengths)
    wanted = plainly(segments, rate_hz, MANIFEST.defaults.cross_fade_s)
    reply = reply_of(rate_hz, encoding)
    messages = [message for made in segments for message in reply.messages(made)]
    assert reply.samples == len(wanted) == sum(count for _, count in messages)
    if not len(wanted):
        assert messages == []
    elif encoding is not Encoding.OGG_OPUS:  # each encoder draws another serial number
        compressor = compress.Compressor(encoding, rate_hz, mark="")
        pcm = np.frombuffer(encode.pcm16(wanted), np.int16)
        assert b"".join(data for data, _ in messages) == compressor.push(pcm, last=True)


@pytest.mark.parametrize("count", [1, 2_399, 4_800, 4_801, 9_600, 12_544, 100_000])
def test_messages_of_a_segment_are_even(count: int) -> None:
    reply = reply_of()
    lengths = [samples for _, samples in reply.messages(SegmentAudio(np.zeros(count, np.float32), 0, True))]
    assert sum(lengths) == count
    assert max(lengths) <= 4_800
    assert max(lengths) - min(lengths) <= 1
    assert len(lengths) == math.ceil(count / 4_800)


def test_no_samples_make_no_message() -> None:
    reply = reply_of()
    assert list(reply.messages(SegmentAudio(np.zeros(0, np.float32), 0, True))) == []
    assert reply_of().whole() == b""

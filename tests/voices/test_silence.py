"""Every cut against pydub's, on random signals of every width, rate and number of channels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.voices.recording import Recording
from appliance.voices.reference import LONG_PAUSES, SHORT_PAUSES
from appliance.voices.silence import Loudness, Silence, leading_silence_ms, silent, sounding, split_on_silence

pytestmark = pytest.mark.once

RATES_HZ = [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000]
LEVELS_DBFS = [-120.0, -60.0, -51.0, -50.0, -49.0, -42.5, -41.5, -40.5, -39.5, -20.0, -6.0]


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Stretches of noise at levels about the thresholds, some with a click."""
    rate_hz, width = draw(st.sampled_from(RATES_HZ)), draw(st.sampled_from([1, 2, 2, 2, 4]))
    channels = draw(st.integers(1, 2))
    noise = np.random.default_rng(draw(st.integers(0, 999)))
    stretch = st.tuples(st.integers(1, 2_600), st.sampled_from(LEVELS_DBFS), st.booleans())
    parts = []
    for ms, level, click in draw(st.lists(stretch, min_size=1, max_size=6)):
        part = noise.standard_normal((ms * rate_hz // 1000 + ms % 7, channels)) * 10 ** (level / 20)
        part[: click * 3] = 0.5
        parts.append(part)
    full = 2.0 ** (8 * width - 1)
    wave = np.clip(np.rint(np.concatenate(parts) * full), -full, full - 1)
    return Recording(wave.astype(f"int{8 * width}"), rate_hz)


def to_pydub(pydub, recording: Recording):
    samples = recording.samples
    return pydub.AudioSegment(
        data=np.ascontiguousarray(samples).tobytes(),
        sample_width=samples.itemsize,
        frame_rate=recording.rate_hz,
        channels=samples.shape[1],
    )


def same(ours: Recording, theirs) -> bool:
    return ours.samples.tobytes() == theirs.raw_data


PARAMETERS = [LONG_PAUSES, SHORT_PAUSES, Silence(300, -45, 100, step_ms=7), Silence(50, -45, 20, step_ms=90)]
PARAMETERS.append(Silence(101, -45, 333, step_ms=3))


@settings(max_examples=150)
@given(recording=recordings(), parameters=st.sampled_from(PARAMETERS))
def test_splits_equal_pydubs(pydub, recording, parameters):
    keys = {
        "min_silence_len": parameters.minimum_ms,
        "silence_thresh": parameters.threshold_dbfs,
        "seek_step": parameters.step_ms,
    }
    whole = to_pydub(pydub, recording)
    assert silent(recording, parameters) == [tuple(s) for s in pydub.silence.detect_silence(whole, **keys)]
    assert sounding(recording, parameters) == [*map(tuple, pydub.silence.detect_nonsilent(whole, **keys))]
    ours = split_on_silence(recording, parameters)
    theirs = pydub.silence.split_on_silence(whole, keep_silence=parameters.keep_ms, **keys)
    assert len(ours) == len(theirs)
    assert all(same(left, right) for left, right in zip(ours, theirs, strict=True))


@settings(max_examples=60)
@given(recording=recordings(), threshold=st.sampled_from([-50.0, -42.0, -30.0]))
def test_leading_silence_equals_pydubs(pydub, recording, threshold):
    whole = to_pydub(pydub, recording)
    assert leading_silence_ms(recording, threshold) == pydub.silence.detect_leading_silence(whole, threshold)
    backwards = pydub.silence.detect_leading_silence(whole.reverse(), threshold)
    assert leading_silence_ms(recording.reversed(), threshold) == backwards


@settings(max_examples=100)
@given(recording=recordings(), start=st.integers(0, 9_000), length=st.integers(0, 3_000))
def test_cuts_and_levels_equal_pydubs(pydub, recording, start, length):
    whole = to_pydub(pydub, recording)
    assert recording.duration_ms == len(whole)
    start = min(start, recording.duration_ms)
    piece = whole[start : start + length]
    assert same(recording.cut(start, start + length), piece)
    assert Loudness(recording).rms(np.array([start]), length)[0] == piece.rms


def test_an_empty_recording_has_no_silence_and_no_sound():
    empty = Recording(np.zeros((0, 1), np.int16), 24_000)
    assert (empty.duration_ms, leading_silence_ms(empty, -42.0), silent(empty, LONG_PAUSES)) == (0, 0, [])


@pytest.mark.parametrize("width", [1, 2, 4])
def test_full_scale_is_one(width):
    recording = Recording(np.array([[-(1 << (8 * width - 1))]]).astype(f"int{8 * width}"), 24_000)
    assert recording.mono().tolist() == [-1.0]

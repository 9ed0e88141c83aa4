"""Loudness, true peak and level: published figures, the filter step by step, soxr's peaks."""

import math

import numpy as np
import pytest
import soundfile
import soxr

from appliance.audio.loudness import QUIETEST_LUFS, _frame_peaks, levelled, loudness
from appliance.engine.cases import FEMALE, MALE
from appliance.request import AS_MADE, FloatArray, ReplyLevel
from tests.harness.daemons import ROOT

RATE_HZ = 24_000
MONO_LU = -10 * math.log10(2)
"""Difference between a signal on one channel and EBU's signals, which have two."""
VOICES = (MALE, FEMALE)
TARGET = ReplyLevel(-18.0)


def voice(name: str) -> FloatArray:
    path = ROOT / "appliance" / "demo" / "voices" / f"{name}.wav"
    return np.asarray(soundfile.read(path, dtype="float32")[0], np.float32)


def sine(hz: float, dbfs: float, seconds: float, rate_hz: int, phase_deg: float = 0.0) -> FloatArray:
    angle = 2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz + math.radians(phase_deg)
    return (10 ** (dbfs / 20) * np.sin(angle)).astype(np.float32)


def peak_db(samples: FloatArray) -> float:
    """True peak by soxr's interpolation, at eight times the rate."""
    return 20 * math.log10(np.abs(soxr.resample(samples, 1, 8, quality="VHQ")).max())


@pytest.mark.once
@pytest.mark.parametrize("rate_hz", (8_000, 16_000, 22_050, 24_000, 44_100, 48_000))
def test_a_sine_of_full_scale_has_the_published_loudness(rate_hz: int) -> None:
    """BS.1770: 997 Hz at 0 dBFS on one front channel is -3.01 LKFS."""
    assert loudness(sine(997, 0.0, 5.0, rate_hz), rate_hz) == pytest.approx(-3.01, abs=0.03)


@pytest.mark.once
@pytest.mark.parametrize(("parts", "lufs"), [
    ([(-23.0, 20.0)], -23.0), ([(-33.0, 20.0)], -33.0),
    ([(-36.0, 10.0), (-23.0, 60.0), (-36.0, 10.0)], -23.0),
    ([(-72.0, 10.0), (-36.0, 10.0), (-23.0, 60.0), (-36.0, 10.0), (-72.0, 10.0)], -23.0),
    ([(-26.0, 20.0), (-20.0, 20.1), (-26.0, 20.0)], -23.0),
])  # fmt: skip
def test_the_gates_pass_ebus_cases(parts: list[tuple[float, float]], lufs: float) -> None:
    """EBU Tech 3341, cases 1 to 5: within 0.1 LU."""
    samples = np.concatenate([sine(1_000, dbfs, seconds, RATE_HZ) for dbfs, seconds in parts])
    assert loudness(samples, RATE_HZ) == pytest.approx(lufs + MONO_LU, abs=0.1)


@pytest.mark.once
@pytest.mark.parametrize("name", VOICES)
def test_speech_is_as_loud_as_by_the_filters_recursion(name: str) -> None:
    samples = voice(name)
    assert loudness(samples, RATE_HZ) == pytest.approx(_step_by_step(samples), abs=0.1)


def _step_by_step(samples: FloatArray) -> float:
    """BS.1770-4 written out step by step, at 48 kHz."""
    signal = [float(value) for value in soxr.resample(samples, RATE_HZ, 48_000, quality="VHQ")]
    for (b0, b1, b2), (a1, a2) in (
        ((1.53512485958697, -2.69169618940638, 1.19839281085285), (-1.69065929318241, 0.73248077421585)),
        ((1.0, -2.0, 1.0), (-1.99004745483398, 0.99007225036621)),
    ):
        filtered, x1, x2, y1, y2 = [], 0.0, 0.0, 0.0, 0.0
        for x in signal:
            y = b0 * x + b1 * x1 + b2 * x2 - a1 * y1 - a2 * y2
            x1, x2, y1, y2 = x, x1, y, y1
            filtered.append(y)
        signal = filtered
    squares = np.square(signal)
    blocks = [squares[begin : begin + 19_200].mean() for begin in range(0, len(squares) - 19_199, 4_800)]
    loud = [power for power in blocks if -0.691 + 10 * math.log10(power) > -70]
    gate = -0.691 + 10 * math.log10(np.mean(loud)) - 10
    loud = [power for power in loud if -0.691 + 10 * math.log10(power) > gate]
    return -0.691 + 10 * math.log10(np.mean(loud))


@pytest.mark.once
@pytest.mark.parametrize(("share", "phase_deg", "amplitude", "dbtp"), [
    (4, 0.0, 0.5, -6.0), (4, 45.0, 0.5, -6.0), (6, 60.0, 0.5, -6.0), (8, 67.5, 0.5, -6.0),
    (4, 45.0, 1.41, 3.0),
])  # fmt: skip
def test_the_true_peak_passes_ebus_cases(share: int, phase_deg: float, amplitude: float, dbtp: float) -> None:
    """EBU Tech 3341, cases 15 to 19: within +0.2 and -0.4 dB. The ends are faded because the case's sine has
    no ends."""
    samples = sine(48_000 / share, 20 * math.log10(amplitude), 1.0, 48_000, phase_deg)
    samples[:4_800] *= np.linspace(0, 1, 4_800, dtype=np.float32)
    samples[-4_800:] *= np.linspace(1, 0, 4_800, dtype=np.float32)
    assert dbtp - 0.4 <= 20 * math.log10(_frame_peaks(samples, 48_000, 0.0).max()) <= dbtp + 0.2


@pytest.mark.parametrize("name", VOICES)
@pytest.mark.parametrize(("lufs", "rate_hz"), [(-23.0, 24_000), (-18.0, 24_000), (-16.0, 22_050)])
def test_every_loudness_is_raised_or_lowered_to_the_target(name: str, lufs: float, rate_hz: int) -> None:
    for gain_db in (-9.0, 0.0, 9.0):
        made = levelled(voice(name) * np.float32(10 ** (gain_db / 20)), rate_hz, ReplyLevel(lufs))
        assert loudness(made, rate_hz) == pytest.approx(lufs, abs=0.1)
        assert peak_db(made) <= -1.0


@pytest.mark.parametrize("gain_db", (-20.0, -6.0, 6.0, 12.0, 20.0, 40.0))
def test_a_gain_moves_the_level_and_no_peak_reaches_full_scale(gain_db: float) -> None:
    for name in VOICES:
        made = levelled(voice(name), RATE_HZ, ReplyLevel(-18.0, gain_db))
        assert peak_db(made) <= -1.0
        if gain_db <= 0:
            assert loudness(made, RATE_HZ) == pytest.approx(-18.0 + gain_db, abs=0.1)
        else:
            assert loudness(made, RATE_HZ) > -18.0 + min(gain_db, 3.0)


def test_a_gain_alone_is_a_factor_and_no_level_changes_nothing() -> None:
    samples = voice(FEMALE)
    assert levelled(samples, RATE_HZ, AS_MADE) is samples
    assert np.array_equal(levelled(samples, RATE_HZ, ReplyLevel(gain_db=-20.0)), samples * np.float32(0.1))
    assert peak_db(levelled(samples, RATE_HZ, ReplyLevel(gain_db=20.0))) <= -1.0


def test_a_breath_is_not_raised_to_speech_and_a_click_after_silence_is_lowered() -> None:
    breath = np.random.default_rng(1).normal(0.0, 1e-3, RATE_HZ).astype(np.float32)
    raised = levelled(breath, RATE_HZ, TARGET)
    np.testing.assert_allclose(raised, breath * 10 ** ((-18.0 - QUIETEST_LUFS) / 20), rtol=1e-5)
    click = np.append(0.0 * breath, np.float32(0.5))  # in no whole hop, so no loudness is measured
    assert peak_db(levelled(click, RATE_HZ, TARGET)) <= -1.0


@pytest.mark.parametrize("count", (0, 1, 2_399, 2_400, 9_599, 9_600, 9_601))
def test_pieces_around_a_block_are_measured_as_far_as_they_go(count: int) -> None:
    """Any part of a steady tone is as loud as the whole."""
    tone = sine(997, -30.0, 1.0, RATE_HZ)
    assert loudness(np.zeros(count, np.float32), RATE_HZ) == -math.inf
    assert not levelled(np.zeros(count, np.float32), RATE_HZ, TARGET).any()
    assert len(levelled(tone[:count], RATE_HZ, TARGET)) == count
    if count > 2_000:
        assert loudness(tone[:count], RATE_HZ) == pytest.approx(-33.01, abs=0.5)


def test_a_peak_is_lowered_smoothly_and_distant_samples_are_not() -> None:
    tone = sine(200, -12.0, 2.0, RATE_HZ, phase_deg=1.0)  # no sample is 0
    tone[24_000:24_480] *= 8
    gains = levelled(tone, RATE_HZ, ReplyLevel(gain_db=1e-9)) / tone
    assert np.abs(np.diff(gains)).max() < 0.01 and gains.min() < 0.5
    np.testing.assert_allclose(np.delete(gains, np.s_[22_800:25_681]), 1.0, rtol=1e-6)

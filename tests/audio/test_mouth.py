"""The mouth track against vowels of known formants, and against the envelope of the demo's voice."""

from collections import Counter

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from appliance.audio.mouth import FRAME_S, Mouth, Shape
from tests.harness.daemons import ROOT

RATE_HZ = 24_000
VOWELS = {
    "a": ((730, 1_090, 2_440), {Shape.OPEN}),
    "i": ((270, 2_290, 3_010), {Shape.WIDE}),
    "u": ((300, 870, 2_240), {Shape.ROUND}),
    "ɔ": ((570, 840, 2_410), {Shape.OPEN, Shape.ROUND}),
    "ɛ": ((530, 1_840, 2_480), {Shape.WIDE, Shape.OPEN}),
    "æ": ((660, 1_720, 2_410), {Shape.OPEN, Shape.WIDE}),
}
"""Formants in Hz, men's means in Peterson and Barney, 1952, table II; and shapes."""


def pcm(samples: NDArray[np.float64], peak: float = 0.5) -> bytes:
    return (samples / np.abs(samples).max() * peak * 32_767).astype("<i2").tobytes()


def vowel(formants_hz: tuple[int, ...], pitch_hz: float) -> NDArray[np.float64]:
    """Half a second of a voice's harmonics, which fall by 12 dB an octave, through resonances 90 Hz wide."""
    t = np.arange(RATE_HZ // 2) / RATE_HZ
    harmonics = np.arange(pitch_hz, 5_000, pitch_hz)
    gains = harmonics**-2.0
    for centre in formants_hz:
        gains *= centre**2 / np.hypot(centre**2 - harmonics**2, 90 * harmonics)
    gains *= harmonics  # radiation at the lips
    voice: NDArray[np.float64] = gains @ np.sin(2 * np.pi * harmonics[:, None] * t)
    return voice


def shapes(data: bytes) -> list[Shape]:
    return [Shape(frame & 15) for frame in Mouth(RATE_HZ).push(data)]


@pytest.mark.parametrize("pitch_hz", [100.0, 130.0, 200.0])
@pytest.mark.parametrize("name", VOWELS)
def test_vowels_have_their_shapes(name: str, pitch_hz: float) -> None:
    formants_hz, wanted = VOWELS[name]
    found = Counter(shapes(pcm(vowel(formants_hz, pitch_hz))))
    assert sum(found[shape] for shape in wanted) >= 0.8 * sum(found.values()), found


def test_hisses_hums_and_silence_have_theirs() -> None:
    noise = np.diff(np.random.default_rng(0).standard_normal(RATE_HZ // 2), n=3)
    t = np.arange(RATE_HZ // 2) / RATE_HZ
    assert Counter(shapes(pcm(noise))).most_common(1)[0][0] is Shape.TEETH
    assert set(shapes(pcm(np.sin(2 * np.pi * 150 * t)))) == {Shape.CLOSED}
    assert set(Mouth(RATE_HZ).push(bytes(RATE_HZ))) == {0}


@pytest.mark.parametrize("name", ["heart", "michael"])
def test_the_mouth_follows_the_audio_and_pieces_make_no_difference(name: str) -> None:
    path = ROOT / f"appliance/demo/voices/{name}.wav"
    samples, rate_hz = soundfile.read(path, dtype="int16")
    data = samples.astype("<i2").tobytes()
    whole = Mouth(rate_hz).push(data)
    hop = round(rate_hz * FRAME_S)
    assert len(whole) == len(data) // 2 // hop
    rectified = np.abs(np.frombuffer(data, "<i2")[: len(whole) * hop] / 32_768).reshape(-1, hop)
    opened = np.frombuffer(whole, np.uint8) >> 4
    assert np.corrcoef(opened, rectified.mean(axis=1))[0, 1] >= 0.9
    assert len(set(shapes(data))) >= 4
    pieced, cuts = Mouth(rate_hz), np.random.default_rng(1).integers(0, len(data) // 2, 40)
    pieces = np.split(np.frombuffer(data, "<i2"), np.sort(cuts))
    assert b"".join(pieced.push(piece.tobytes()) for piece in pieces) == whole

"""Transcripts against their recordings, through the store, which every way to add a voice calls.

Recordings are the demo's, and sounds with as many syllables as a speaker of the language counts, at its pace.
"""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from appliance.voices.records import Place
from tests.harness.daemons import store_in
from tests.harness.rows import rows
from tests.harness.sounds import RATE_HZ, to_file

RIGHT = "We are live every Monday at seven, so say hello."
OTHER = "Please bring those heavy boxes down to the shop, and then call my brother about the party."
FEW, MANY = "the transcript probably lacks words", "the transcript probably has words too many"
UNMARKED = "the transcript has no punctuation"
READ = dict(rows(__file__, "fit.jsonl"))
"""Transcript, its syllables by hand, seconds."""


def read(syllables: int, seconds: float) -> bytes:
    """Vowels with a consonant's dip between them."""
    time_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    vowel = sum(np.sin(2 * np.pi * 150 * overtone * time_s) / overtone for overtone in range(1, 12))
    return to_file((0.1 * vowel * np.sin(np.pi * syllables * time_s / seconds) ** 2)[:, None])


def told(folder: Path, audio: bytes, transcript: str) -> list[str]:
    """Beginnings of the warnings about the transcript."""
    found = store_in(folder).create(Place("ann"), audio, transcript, validate_only=True).warnings
    return [start for start in (FEW, MANY, UNMARKED) for warning in found if warning.startswith(start)]


@pytest.mark.parametrize("voice", ["heart", "michael"])
def test_the_demos_voices(tmp_path: Path, root: Path, voice: str) -> None:
    audio = (root / f"appliance/demo/voices/{voice}.wav").read_bytes()
    for transcript, expected in {
        RIGHT: [],
        "We are live every Monday at seven.": [],
        RIGHT.lower().replace(",", "").replace(".", ""): [UNMARKED],
        "We are live.": [FEW],
        "We are live every Monday,": [FEW],
        "at seven, so say hello.": [FEW],
        OTHER: [MANY],
        f"{RIGHT} {RIGHT}": [MANY],
        "2026": [FEW, UNMARKED],
        "https://www.twitch.tv/videos/123456789?t=1h2m3s,": [MANY],
    }.items():
        assert told(tmp_path, audio, transcript) == expected, transcript
    wave, rate_hz = soundfile.read(io.BytesIO(audio), always_2d=True)
    assert told(tmp_path, to_file(wave[: len(wave) // 2], rate_hz), RIGHT) == [MANY]


@pytest.mark.parametrize("language", READ)
def test_a_transcript_has_the_syllables_of_the_recording(tmp_path: Path, language: str) -> None:
    transcript, syllables, seconds = READ[language]
    assert told(tmp_path, read(syllables, seconds), transcript) == []
    assert told(tmp_path, read(3 * syllables, 3 * seconds), transcript) == [FEW]
    assert told(tmp_path, read(syllables, seconds), f"{transcript} {transcript}") == [MANY]


@pytest.mark.parametrize(("transcript", "marked"), rows(__file__, "marked.jsonl"))
def test_speech_without_punctuation(tmp_path: Path, transcript: str, marked: bool) -> None:
    assert (UNMARKED in told(tmp_path, read(12, 2.8), transcript)) == (not marked)
    assert UNMARKED not in told(tmp_path, read(12, 2.3), transcript)

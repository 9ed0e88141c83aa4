"""Compares a transcript with its recording: both should have about as many syllables.

Replies take their pace from the seconds of the reference over the letters of its transcript.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.config import TextConfig
from appliance.request import FloatArray
from appliance.text.chat.chat import rewrite
from appliance.text.chat.line import LINK, MAIL, Languages
from appliance.text.chat.marks import PRIVATE, Marks
from appliance.text.chat.rewrite import Rewriting
from appliance.text.languages import resolve
from appliance.text.pieces import pace
from appliance.text.scripts import LETTERS

USUAL_PACE = 16.0
"""Weighed letters per second of speech: about the median of 60 clips in 21 languages, which had 8.9 to 23."""
BOUNDS = (0.62, 1.7)
"""Bounds of recorded over written syllables, times √(USUAL_PACE / pace).

True transcripts had 0.66 to 1.66, doubled ones at most 0.59, halves at least 1.35, and 1.67 in 95 of 100.
"""
PACES = (3.0, 45.0)
"""Slowest and fastest believable pace, in weighed letters per second, whatever the recording."""
LEAST_DIFFERENCE = 3
"""Smallest difference in syllables that counts. Among few syllables, one more or less is a large share."""
UNMARKED_S = 2.5
"""Longest unpunctuated speech without a warning: 27 of 270 words of replies were wrong, with marks 8."""
_SYLLABLES = {
    **{"CJK": 1.0, "HANGUL": 1.0, "HIRAGANA": 1.0, "KATAKANA": 1.0, "ARABIC": 0.42, "HEBREW": 0.32},
    **{"THAI": 0.5, "LAO": 0.5, "BENGALI": 0.5, "TAMIL": 0.4},
    **dict.fromkeys(("DEVANAGARI", "GURMUKHI", "GUJARATI", "ORIYA", "TELUGU", "KANNADA", "MALAYALAM"), 0.43),
    **dict.fromkeys(("SINHALA", "TIBETAN", "MYANMAR", "KHMER", "ETHIOPIC"), 0.5),
}
"""Syllables per letter or mark, of scripts that do not write each vowel as a letter."""
_JAPANESE_HAN = 1.7
_KANA = re.compile(f"[{LETTERS['HIRAGANA']}{LETTERS['KATAKANA']}]")
_NO_SYLLABLE = re.compile("[ぁぃぅぇぉっゃゅょんァィゥェォッャュョンー]")
_COUNTED = {script: re.compile(f"[{LETTERS[script]}]") for script in _SYLLABLES}
_WORD = re.compile(r"[^\W\d_]+")
_VOWELS = re.compile("[aeiouyæœøıаеиоуыэюяіїєёαεηιουωաեէըիոօւაეიოუ]+")
_MUTE_E = re.compile("[^aeiouyæœøı]e$")
_DIGIT_SYLLABLES = 1.5
_ADDRESS, _SIGNS = re.compile(f"{MAIL}|{LINK}", re.IGNORECASE), re.compile(r"[^\w\s]+")
_MOST_SPELT = 3
"""Letters of the longest word without a vowel that is spelt out: tv, mph."""
_MARK = re.compile(r"[.,:](?![^\W_])|[!?;…–—、。，！？；：．।॥،؛؟۔։።፣།၊။។]")
_UNMARKED = re.compile(f"[{LETTERS['THAI']}{LETTERS['LAO']}]")
_OTHERWISE = ("en", "zh", "ja", "ru", "hi", "ar")
"""Languages for reading numbers if the bundle names none."""

FRAME_S, HOP_S = 0.032, 0.01
BAND_HZ = (300.0, 2_500.0)
"""Band of vowels, without the hiss of consonants."""
SMOOTHING = ((5, 2.0), (7, 2.0), (9, 2.0), (7, 1.5), (7, 3.0))
"""(frames of smoothing, dB of a dip) for each count. The estimate is their mean."""
BELOW_DB = 25.0
"""Level below the loudest frames, in dB, that counts as silence."""
PAUSE_FRAMES = 15


def count_warnings(
    transcript: str, samples: FloatArray, rate_hz: int, languages: Sequence[str] = ()
) -> tuple[str, ...]:
    """Warnings that words are too few or too many, as sentences.

    `samples` are trimmed, `languages` the bundle's.
    """
    power = _band_power(samples, rate_hz)
    speech_s, nuclei = _speech_s(power), _nuclei(power)
    text = spell_out(transcript, languages)
    written, letters_per_s = syllables_of(text), pace.weight(text) / speech_s
    ratio = nuclei / max(written, 1.0) * math.sqrt(USUAL_PACE / max(letters_per_s, 0.1))
    is_far = abs(nuclei - written) >= LEAST_DIFFERENCE and not BOUNDS[0] <= ratio <= BOUNDS[1]
    if not is_far and PACES[0] <= letters_per_s <= PACES[1]:
        return ()
    lacks = ratio > 1.0 if is_far else letters_per_s < USUAL_PACE
    fault, effect = ("lacks words", "slow") if lacks else ("has words too many", "fast")
    return (
        f"the transcript probably {fault}: about {written:.0f} syllables are written, {nuclei:.0f} heard "
        f"in {speech_s:.1f} s of speech; replies will be too {effect}",
    )


def mark_warnings(transcript: str, duration_s: float) -> tuple[str, ...]:
    """Warning about speech without punctuation, as sentences."""
    if duration_s <= UNMARKED_S or _MARK.search(transcript) or _UNMARKED.search(transcript):
        return ()
    return (
        "the transcript has no punctuation, and replies lose words: write the commas and full stops that "
        "are heard",
    )


def spell_out(transcript: str, languages: Sequence[str] = ()) -> str:
    """Transcript with the words for its numbers, and for the signs in its links."""
    transcript = _ADDRESS.sub(lambda link: _SIGNS.sub(" dot ", link[0]), transcript)
    listed = Languages([resolve(code) for code in languages or _OTHERWISE], ())
    changed, marks = Rewriting(PRIVATE.sub(" ", transcript)), Marks()
    rewrite(changed, TextConfig(), marks, listed, lambda character: True)
    return " ".join(marks.restored(part) for part, _ in marks.parts(changed.text))


def syllables_of(text: str) -> float:
    """Syllables of a text, estimated from its spelling, in any script."""
    text = unicodedata.normalize("NFC", text.lower())
    japanese = _KANA.search(text) is not None
    count = _DIGIT_SYLLABLES * sum(map(str.isdecimal, text))
    for script, each in _SYLLABLES.items():
        if letters := _COUNTED[script].findall(text):
            text = _COUNTED[script].sub(" ", text)
            if script == "CJK" and japanese:
                each = _JAPANESE_HAN
            count += each * sum(not _NO_SYLLABLE.match(letter) for letter in letters)
    for word in _WORD.findall(text):
        # Accents do not separate a vowel from its neighbours.
        bare = "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))
        groups = len(_VOWELS.findall(bare))
        if not groups and len(bare) <= _MOST_SPELT:
            count += len(bare)
        else:
            count += max(groups - bool(_MUTE_E.search(bare)), 1)
    return count


def _band_power(samples: FloatArray, rate_hz: int) -> NDArray[np.float64]:
    """(samples,) → (frames,) power in the band of vowels."""
    size = round(FRAME_S * rate_hz)
    padded = np.pad(samples, size // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[:: round(HOP_S * rate_hz)]
    power = np.abs(np.fft.rfft(frames * np.hanning(size), axis=1)) ** 2
    hz = np.fft.rfftfreq(size, 1.0 / rate_hz)
    band: NDArray[np.float64] = power[:, (hz >= BAND_HZ[0]) & (hz <= BAND_HZ[1])].sum(axis=1)
    return band


def _db(power: NDArray[np.float64]) -> NDArray[np.float64]:
    return 10.0 * np.log10(power + 1e-12)


def _speech_s(power: NDArray[np.float64]) -> float:
    """Seconds of speech without pauses."""
    level = _db(power)
    quiet = level < np.percentile(level, 95) - BELOW_DB
    runs = np.split(quiet, np.flatnonzero(np.diff(quiet)) + 1)
    pauses = sum(len(run) for run in runs if run[0] and len(run) >= PAUSE_FRAMES)
    return max((len(level) - pauses) * HOP_S, HOP_S)


def _nuclei(power: NDArray[np.float64]) -> float:
    """Number of syllable nuclei: peaks of the level with a dip on either side.

    The count follows de Jong and Wempe (2009, doi:10.3758/BRM.41.2.385), with the vowels' band in place of
    their test of voicing.
    """
    counts = []
    for frames, dip_db in SMOOTHING:
        window = np.hanning(frames + 2)
        level = _db(np.convolve(power, window / window.sum(), "same"))
        counts.append(_peaks(level, float(np.percentile(level, 99)) - BELOW_DB, dip_db))
    return float(np.mean(counts))


def _peaks(level: NDArray[np.float64], least: float, dip: float) -> int:
    """Number of peaks above `least` that rise by `dip` from the dip before, and fall by it to the next."""
    count = 0
    low = float(level[0])
    high = -math.inf
    rising = True
    for value in level.tolist():
        if rising:
            low = min(low, value)
            if value > least and value >= low + dip:
                rising, high = False, value
        else:
            high = max(high, value)
            if value <= high - dip:
                count = count + 1
                low = value
                rising = True
    return count + (not rising)

"""Word timings: estimated from the tokens' places or the spelling, then corrected by pauses in the audio."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from appliance.request import FloatArray, Segment

# The weights and lengths were fitted to chat lines of the demo voices. tests/measure/quality/test_words.py
# measures the timings on other lines.
LEAD_S, TAIL_S = 0.03, 0.18
"""Estimated seconds of silence before and after a segment's words."""
IDEOGRAPH, DIGIT = 4.0, 4.0
"""Weights of an ideograph and of a digit, in the estimate of a word's duration. A letter has weight 1, and a
group of vowels adds 1.
"""
FINAL = 2.0
"""Additional weight of a word before a pause."""
WINDOW_S = 0.01
QUIET_DB = 25.0
"""Level of pauses, in dB below the 95th percentile of a segment."""
PAUSE_S = 0.1
"""Shortest silence, in seconds, that counts as a pause. A shorter one may be the closure of a consonant."""
REACH_S = 0.6
"""Largest distance, in seconds, of a pause from the estimated time of its punctuation mark."""

_HAN = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_TOKENS = re.compile(rf"[{_HAN}]|[^\s{_HAN}]+")
_IDEOGRAPHS = re.compile(f"[{_HAN}]")
_VOWELS = re.compile("[aeiouyàáâäãåèéêëìíîïòóôöõùúûü]+")
_PAUSE = re.compile(r"[,.?!;:…，。？！；：、—]\W*$")


@dataclass(frozen=True)
class TimedWord:
    """Word with its times, in seconds of the reply."""

    text: str
    """Word with its punctuation, or one Chinese character."""
    start_s: float
    end_s: float
    segment: int

    def moved(self, seconds: float, segments: int) -> TimedWord:
        return TimedWord(self.text, self.start_s + seconds, self.end_s + seconds, self.segment + segments)


def planned(segments: Sequence[Segment]) -> list[TimedWord]:
    """Estimated words, in order and without overlap."""
    words: list[TimedWord] = []
    for segment, start_s in zip(segments, starts_s(segments), strict=True):
        sound_s, texts = segment.audio_s - segment.pause_s, split(segment.text)
        spoken = _spoken(segment, texts)
        lead_s, tail_s = min(LEAD_S, 0.1 * sound_s), min(TAIL_S, 0.2 * sound_s)
        begin_s, end_s = lead_s, sound_s - tail_s
        if texts and _is_placed(segment, texts):
            begin_s, end_s = spoken[0][0], min(spoken[-1][1], sound_s)  # it may fade into the next
        words += _spread(texts, spoken, start_s + begin_s, start_s + end_s, segment.index)
    return words


def starts_s(segments: Sequence[Segment]) -> list[float]:
    return list(itertools.accumulate((segment.audio_s for segment in segments), initial=0.0))[:-1]


def from_audio(segment: Segment, start_s: float, samples: FloatArray, rate_hz: int) -> list[TimedWord]:
    """Words with times from the segment's (samples,), which begin at `start_s` of the reply.

    Pauses are matched to the punctuation near them. The cross-fade at the segment's end is ignored.
    """
    sound_s = segment.audio_s - segment.pause_s
    texts = split(segment.text)
    sounds = _sounds(samples[: round(sound_s * rate_hz)], rate_hz) or [(0.0, sound_s)]
    begin_s, end_s = sounds[0][0], sounds[-1][1]
    pauses = [(left[1], right[0]) for left, right in itertools.pairwise(sounds)]
    spoken = _spoken(segment, texts)
    words: list[TimedWord] = []
    for number, text in enumerate(texts[:-1], 1):
        if not _PAUSE.search(text):
            continue
        clause, when = texts[len(words) : number], spoken[len(words) : number]
        share = (when[-1][1] - when[0][0]) / (spoken[-1][1] - when[0][0])
        expected_s = begin_s + share * (end_s - begin_s)
        pause = _nearest([pause for pause in pauses if pause[0] > begin_s], expected_s)
        if pause is not None:
            words += _spread(clause, when, start_s + begin_s, start_s + pause[0], segment.index)
            begin_s = pause[1]
    rest = slice(len(words), None)
    words += _spread(texts[rest], spoken[rest], start_s + begin_s, start_s + end_s, segment.index)
    return words


def split(text: str) -> list[str]:
    return [text[begin:end] for begin, end in spans(text)]


def spans(text: str) -> list[tuple[int, int]]:
    """(begin, end) of each word, including the punctuation next to it."""
    words: list[tuple[int, int]] = []
    for token in _TOKENS.finditer(text):
        # Punctuation alone is no word: a dash belongs to the word before it, or at the start to the next.
        if words and not (_is_word(token[0]) and _is_word(text[slice(*words[-1])])):
            words[-1] = words[-1][0], token.end()
        else:
            words.append(token.span())
    return words


def weight(word: str) -> float:
    """Relative duration of a word, in letters."""
    letters = sum(character.isalnum() for character in word)
    letters += len(_VOWELS.findall(word.lower()))
    ideographs, digits = len(_IDEOGRAPHS.findall(word)), sum(map(str.isdigit, word))
    long = (IDEOGRAPH - 1) * ideographs + (DIGIT - 1) * digits
    return max(letters + long, 1.0) + (FINAL if _PAUSE.search(word) else 0.0)


def _is_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def _is_placed(segment: Segment, texts: Sequence[str]) -> bool:
    """True if each word of the text has its seconds. "3D" is two words for a voice of phones."""
    return len(segment.words) == len(texts)


def _spoken(segment: Segment, texts: Sequence[str]) -> list[tuple[float, float]]:
    """(begin, end) of each word, in any unit: from the places of its tokens, or from its spelling."""
    if _is_placed(segment, texts):
        return list(segment.words)
    return list(itertools.pairwise(itertools.accumulate(map(weight, texts), initial=0.0)))


def _spread(
    texts: Sequence[str], spoken: Sequence[tuple[float, float]], begin_s: float, end_s: float, segment: int
) -> list[TimedWord]:
    """Words from `begin_s` to `end_s`, in proportion to the places in `spoken`."""
    if not texts:
        return []
    first, last = spoken[0][0], spoken[-1][1]

    def at(place: float) -> float:
        return min(begin_s + (end_s - begin_s) * (place - first) / (last - first), end_s)

    pairs = zip(texts, spoken, strict=True)
    return [TimedWord(text, at(begin), at(end), segment) for text, (begin, end) in pairs]


def _nearest(pauses: Sequence[tuple[float, float]], expected_s: float) -> tuple[float, float] | None:
    """The pause near `expected_s`. A longer pause is preferred to a nearer one."""
    distances = {pause: abs(sum(pause) / 2 - expected_s) for pause in pauses}
    near = [pause for pause, distance in distances.items() if distance < REACH_S]
    return max(near, key=lambda pause: pause[1] - pause[0] - 0.3 * distances[pause], default=None)


def _sounds(samples: FloatArray, rate_hz: int) -> list[tuple[float, float]]:
    """(begin, end) in seconds of the sounds between pauses."""
    window = round(WINDOW_S * rate_hz)
    count = len(samples) // window
    if not count:
        return []
    power = np.mean(np.square(samples[: count * window].reshape(count, window), dtype=np.float64), axis=1)
    level_db = 10 * np.log10(power + 1e-10)
    loud = np.flatnonzero(level_db > np.percentile(level_db, 95) - QUIET_DB)
    gaps = np.flatnonzero(np.diff(loud) > PAUSE_S / WINDOW_S)
    first, last = np.append(0, gaps + 1), np.append(gaps, len(loud) - 1)
    return [
        (float(loud[a]) * WINDOW_S, float(loud[b] + 1) * WINDOW_S) for a, b in zip(first, last, strict=True)
    ]

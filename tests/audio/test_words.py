"""Word timings: their order and bounds, against pauses that were put into a sound; their places in a text."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.audio import matching, words
from appliance.audio.captions import Changes, written_spans
from appliance.audio.words import TimedWord, split
from appliance.request import FloatArray, Segment
from appliance.text.normalise import normalise
from tests.harness.rows import rows
from tests.harness.segments import segment
from tests.text.test_chat import front

RATE_HZ = 24_000
TEXTS = st.text("ab éZ9.,!?-\"'( )你好。，🎉\n", max_size=40)


def piece(text: str, seconds: float, index: int = 0) -> Segment:
    return replace(segment(text, index=index), audio_s=seconds)


def sound(*stretches: tuple[float, float]) -> FloatArray:
    """Noise in stretches of (seconds, level)."""
    rng = np.random.default_rng(0)
    return np.concatenate([level * rng.standard_normal(round(s * RATE_HZ)) for s, level in stretches]).astype(
        np.float32
    )


@pytest.mark.parametrize(("text", "expected"), [
    ("Hello there, chat!", ["Hello", "there,", "chat!"]),
    ("well - no", ["well -", "no"]), ('He said "yes."', ["He", "said", '"yes."']),
    ("“你好，”她说", ["“你", "好，”", "她", "说"]), ("GG大家好 ok", ["GG", "大", "家", "好", "ok"]),
    ("...", ["..."]), ("… so", ["… so"]), ("", []),
])  # fmt: skip
def test_words(text: str, expected: list[str]) -> None:
    assert words.split(text) == expected


@given(TEXTS)
def test_words_hold_the_whole_text(text: str) -> None:
    found = words.split(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    position = 0
    for word in found:
        position = text.index(word, position) + len(word)


@given(st.lists(st.tuples(TEXTS, st.floats(0.05, 9.0)), max_size=4))
def test_planned_words_follow_each_other_within_their_segments(given: list[tuple[str, float]]) -> None:
    segments = [piece(text, seconds, index) for index, (text, seconds) in enumerate(given)]
    timed = words.planned(segments)
    assert [word.text for word in timed] == [word for text, _ in given for word in words.split(text)]
    ends = np.cumsum([0.0, *(seconds for _, seconds in given)])
    for word in timed:
        assert ends[word.segment] <= word.start_s < word.end_s <= ends[word.segment + 1]
    assert all(left.end_s <= right.start_s + 1e-9 for left, right in pairwise(timed))


@given(TEXTS, st.lists(st.tuples(st.floats(0.0, 1.0), st.sampled_from((0.0, 0.001, 0.3))), max_size=6))
def test_words_timed_by_the_audio_stay_within_it(text: str, stretches: list[tuple[float, float]]) -> None:
    samples = sound(*stretches) if stretches else np.zeros(0, np.float32)
    seconds = len(samples) / RATE_HZ
    timed = words.from_audio(piece(text, seconds), 5.0, samples, RATE_HZ)
    assert [word.text for word in timed] == words.split(text)
    assert all(5.0 <= word.start_s <= word.end_s <= 5.0 + seconds + 1e-9 for word in timed)
    assert all(left.end_s <= right.start_s + 1e-9 for left, right in pairwise(timed))


PLACED = ((0.1, 0.6), (0.7, 2.2), (2.6, 2.8), (2.8, 3.1))


def test_words_are_timed_by_the_places_of_their_tokens() -> None:
    """Pauses in the audio stretch the words. Without a place for each word, letters count."""
    text, seconds = "One eye, two now.", 3.3
    placed = replace(piece(text, seconds), words=PLACED)
    timed = words.planned([placed])
    assert [(word.start_s, word.end_s) for word in timed] == [pytest.approx(times) for times in PLACED]
    [*_, last] = words.planned([replace(placed, audio_s=3.0)])  # the segment fades into the next
    assert last.end_s == pytest.approx(3.0)
    heard = sound((0.2, 0.0), (2.1, 0.3), (0.6, 0.0), (0.4, 0.3))
    timed = words.from_audio(placed, 1.0, heard, RATE_HZ)
    wanted = [(1.2, 1.7), (1.8, 3.3), (3.9, 4.06), (4.06, 4.3)]
    for word, times in zip(timed, wanted, strict=True):
        assert (word.start_s, word.end_s) == pytest.approx(times, abs=0.03)
    other = replace(placed, words=PLACED[:3])
    assert words.planned([other]) == words.planned([piece(text, seconds)])


def test_words_end_before_the_next_segment_fades_in() -> None:
    samples = sound((2.0, 0.3))
    first, second = piece("one two", 1.85, 0), piece("three", 2.0, 1)
    starts = words.starts_s([first, second])
    parts = zip((first, second), starts, strict=True)
    timed = [word for one, start_s in parts for word in words.from_audio(one, start_s, samples, RATE_HZ)]
    assert [(word.text, round(word.end_s, 2)) for word in timed][1:] == [("two", 1.85), ("three", 3.85)]
    assert timed[1].end_s <= timed[2].start_s


def test_pauses_in_the_audio_are_those_at_the_punctuation() -> None:
    samples = sound((0.3, 0.0), (0.5, 0.3), (0.4, 0.001), (1.0, 0.3), (0.25, 0.0), (0.5, 0.3), (0.6, 0.0))
    timed = words.from_audio(piece("Well, that was unexpected, chat.", 3.55), 0.0, samples, RATE_HZ)
    times = {word.text: (round(word.start_s, 1), round(word.end_s, 1)) for word in timed}
    assert times["Well,"] == (0.3, 0.8)
    assert (times["that"][0], times["unexpected,"][1]) == (1.2, 2.2)
    assert times["chat."] == pytest.approx((2.45, 2.95), abs=0.06)


def test_a_long_word_takes_longer_and_so_does_one_before_a_pause() -> None:
    assert words.weight("strength") > words.weight("straw") > words.weight("so")
    assert words.weight("night.") > words.weight("night")
    assert words.weight("2024") > words.weight("abcd")
    assert words.weight("好") == words.weight("四")


def places(written: str, spoken: str, changes: Changes = ()) -> list[tuple[str, str]]:
    """(spoken word, its place in the written text) of each word."""
    words = split(spoken)
    spans = written_spans(written, [TimedWord(word, 0.0, 0.0, 0) for word in words], changes)
    assert all(0 <= begin <= end <= len(written) for begin, end in spans)
    assert all(a == b or a[1] <= b[0] for a, b in pairwise(spans))
    return [(word, written[begin:end]) for word, (begin, end) in zip(words, spans, strict=True)]


@pytest.mark.parametrize(("written", "spoken", "expected"), rows(__file__, "paired.jsonl"))
def test_places(written: str, spoken: str, expected: list[list[str]]) -> None:
    assert places(written, spoken) == [*map(tuple, expected)]


@pytest.mark.parametrize(("written", "marked"), rows(__file__, "shown.jsonl"))
def test_words_of_rewritten_text_have_the_place_of_the_text(written: str, marked: str) -> None:
    """Changes that the front end reports may repeat and adjoin."""
    spoken = front("en").speakable(written)
    changes = [(change.before, change.after) for change in spoken.changes]
    found = places(written, spoken.text, changes)
    assert " ".join(f"{word.rstrip(',')}={place}" for word, place in found) == marked


def test_an_unchanged_text_is_marked_word_by_word() -> None:
    text = normalise("a rose is a rose is a rose, is a rose. " * 40)
    assert all(spoken == written for spoken, written in places(text, text))


def test_a_long_text_is_matched_in_blocks_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(4)
    written = chance.integers(0, 300, 2_000).astype(str).tolist()
    said = [word for word in written for _ in range(chance.choice([0, 1, 1, 1, 2]))]
    pairs = matching.matched(written, said)
    monkeypatch.setattr(matching, "BLOCK", len(written))
    assert len(pairs) > 1_000 and pairs == matching.matched(written, said)


def test_the_words_after_a_rewritten_place_are_found_again() -> None:
    """Words are matched even if nearly all of the text is rewritten and words repeat."""
    written = " ".join(f"{n} times" for n in range(100, 160))
    spoken = " ".join(f"one hundred and {n} times" for n in range(100, 160))
    assert [place for word, place in places(written, spoken) if word == "times"] == ["times"] * 60

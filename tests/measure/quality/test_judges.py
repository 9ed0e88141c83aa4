"""The judges on recordings of people whose words are known, and on the same recordings spoiled."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.request import FloatArray
from export.heard import plain, wrong_words
from export.hearing import Errors, MetricError, recogniser, word_errors
from export.recogniser import RATE_HZ, resample
from tests.measure.quality.judges import Silence
from tests.measure.quality.mouth import read_sound
from tests.measure.quality.scoring import Panel, Reply, errors

pytestmark = [
    pytest.mark.torch,
    pytest.mark.judges,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SAID = {
    "town": (
        "f5_tts",
        "infer/examples/multi/town.flac",
        "The difference in the rainbow depends considerably upon the size of the drops, and the width of the "
        "colored band increases as the size of the drops increases.",
    ),
    "main": (
        "f5_tts",
        "infer/examples/multi/main.flac",
        "Six spoons of fresh snow peas, five thick slabs of blue cheese, and maybe a snack for her brother "
        "Bob.",
    ),
    "nature": ("f5_tts", "infer/examples/basic/basic_ref_en.wav",
        "Some call me nature, others call me mother nature."),
    "dickens": (
        "moonshine_voice",
        "assets/two_cities.wav",
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
        "foolishness, it was the epoch of belief",
    ),
}  # fmt: skip
"""Recording → the package and file it is in, and its words."""
DICKENS_S = 10.4
"""Where those words end in a longer recording."""


def recording(name: str) -> Reply:
    package, file, text = SAID[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed: its recordings are what the judges are tried on")
    samples, rate_hz = read_sound(Path(spec.submodule_search_locations[0]) / file)
    samples = resample(samples, rate_hz)
    return Reply(text, name, samples[: round(DICKENS_S * RATE_HZ)] if name == "dickens" else samples, RATE_HZ)


def spoiled(reply: Reply, how: Callable[[FloatArray], FloatArray]) -> Reply:
    return Reply(reply.text, reply.voice, how(np.asarray(reply.samples, np.float32)), reply.rate_hz)


def noisy(wave: FloatArray) -> FloatArray:
    """As loud a noise as the speech."""
    noise = np.random.default_rng(0).normal(0.0, float(wave.std()), len(wave))
    return (wave + noise).astype(np.float32)


def cut(wave: FloatArray) -> FloatArray:
    kept = wave.copy()
    kept[len(wave) // 3 : 2 * len(wave) // 3] = 0.0
    return kept


def backwards(wave: FloatArray) -> FloatArray:
    return np.ascontiguousarray(wave[::-1])


@pytest.mark.parametrize("name", SAID)
def test_people_are_understood(panel: Panel, name: str) -> None:
    assert errors(recording(name), panel).rate <= 0.15


def test_a_transcript_does_not_depend_on_what_was_transcribed_before() -> None:
    dickens = np.asarray(recording("dickens").samples, np.float32)
    clips = [dickens[start : start + 2 * RATE_HZ] for start in range(0, 6 * RATE_HZ, 2 * RATE_HZ)]
    used = recogniser()
    for clip in clips:
        alone = recogniser().transcribe(clip, RATE_HZ)
        used.transcribe(dickens, RATE_HZ)
        assert [used.transcribe(clip, RATE_HZ) for _ in range(2)] == [alone] * 2


@pytest.mark.parametrize("how", [cut, backwards], ids=lambda how: how.__name__)
@pytest.mark.parametrize("name", ["town", pytest.param("dickens", marks=pytest.mark.thorough)])
def test_missing_and_reversed_words_are_noticed(
    panel: Panel, name: str, how: Callable[[FloatArray], FloatArray]
) -> None:
    assert errors(spoiled(recording(name), how), panel).rate > errors(recording(name), panel).rate + 0.2


def test_a_voice_is_nearer_to_itself_than_to_others(panel: Panel) -> None:
    replies = {name: recording(name) for name in SAID}
    halves = {
        name: np.array_split(np.asarray(reply.samples, np.float32), 2) for name, reply in replies.items()
    }
    first = {name: panel.embed(parts[0], RATE_HZ) for name, parts in halves.items()}
    second = {name: panel.embed(parts[1], RATE_HZ) for name, parts in halves.items()}
    for name, vector in second.items():
        nearest = max(first, key=lambda other: float(vector @ first[other]))
        assert nearest == name


@pytest.mark.parametrize("name", [pytest.param("town", marks=pytest.mark.thorough), "nature"])
def test_noise_is_unnatural(panel: Panel, name: str) -> None:
    reply = recording(name)
    assert panel.naturalness(*reply.sound) > 3.6
    assert panel.naturalness(*spoiled(reply, noisy).sound) < panel.naturalness(*reply.sound) - 1.0


def test_nothing_at_all_is_all_wrong_and_all_silent(panel: Panel) -> None:
    nothing = Reply("three little words", "nobody", np.zeros(RATE_HZ, np.float32), RATE_HZ)
    assert errors(nothing, panel) == Errors(3, 3)
    assert panel.silence(*nothing.sound) == Silence(1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("one", "other"), [
    ("I've got 42 of them!", "i've got forty-two of them"),
    ("Twenty-five, thirty.", "25 30"),
    ("What's your favourite colour tonight?", "what's your favorite color to-night"),
    ("It was 1984.", "it was nineteen eighty-four"),
    ("One hundred and fifteen of 100 percent", "115 of one hundred per cent"),
    ("Ten thirty, fifty cents", "10:30 50 cents"),
    ("Mister Fox, OK?", "Mr. Fox okay"),
    ("the 3rd of 7", "The third of seven."),
])  # fmt: skip
def test_what_sounds_alike_is_alike(one: str, other: str) -> None:
    assert plain(one) == plain(other)


def test_the_nearest_spelling_counts_against_the_words_of_the_text() -> None:
    spellings = ("g g", "gigi")
    assert [word_errors("gg", heard, *spellings).wrong for heard in ("GG", "G.G.", "Gigi!", "Jake", "")] == [
        *(0, 0, 0),
        *(1, 1),
    ]
    assert word_errors("gg", "oh g g", *spellings) == Errors(1, 1)


def test_a_judge_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MetricError, match=r"moonshine-voice is not installed.*quality\.txt"):
        recogniser()


@given(*[st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=8)] * 2)
def test_wrong_words_are_those_of_another_counter(said: list[str], heard: list[str]) -> None:
    jiwer = pytest.importorskip("jiwer")
    found = jiwer.process_words(" ".join(said), " ".join(heard))
    wrong = found.substitutions + found.deletions + found.insertions
    assert wrong_words(" ".join(said), " ".join(heard)) == wrong

"""The judge of words: on recordings of people with known words, and against another counter."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.heard import plain, wrong_words
from export.hearing import Errors, MetricError, recogniser, word_errors
from export.recogniser import RATE_HZ, resample
from tests.harness.rows import rows
from tests.measure.quality.mouth import read_sound
from tests.measure.quality.scoring import Panel, Reply, errors

of_old_calls = pytest.mark.filterwarnings("ignore::DeprecationWarning")
pytestmark = [pytest.mark.torch, pytest.mark.judges, pytest.mark.slow, of_old_calls]

SAID = dict(rows(__file__, "said.jsonl"))
"""Recording → the package and file it is in, and its words."""
DICKENS_S = 10.4
"""End of the words within a longer recording."""


def recording(name: str) -> Reply:
    package, file, text = SAID[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed: its recordings are what the judges are tried on")
    samples, rate_hz = read_sound(Path(spec.submodule_search_locations[0]) / file)
    samples = resample(samples, rate_hz)
    return Reply(text, name, samples[: round(DICKENS_S * RATE_HZ)] if name == "dickens" else samples, RATE_HZ)


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


@pytest.mark.parametrize(("one", "other"), rows(__file__, "alike.jsonl"))
def test_spellings_of_one_sound_are_equal(one: str, other: str) -> None:
    assert plain(one) == plain(other)


def test_the_nearest_spelling_counts_against_the_words_of_the_text() -> None:
    spellings = ("g g", "gigi")
    readings = ("GG", "G.G.", "Gigi!", "Jake", "")
    assert [word_errors("gg", heard, *spellings).wrong for heard in readings] == [0, 0, 0, 1, 1]
    assert word_errors("gg", "oh g g", *spellings) == Errors(1, 1)


def test_a_judge_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MetricError, match=r"moonshine-voice is not installed.*quality\.txt"):
        recogniser()


@given(*[st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=8)] * 2)
def test_another_counter_finds_the_same_wrong_words(said: list[str], heard: list[str]) -> None:
    jiwer = pytest.importorskip("jiwer")
    found = jiwer.process_words(" ".join(said), " ".join(heard))
    wrong = found.substitutions + found.deletions + found.insertions
    assert wrong_words(" ".join(said), " ".join(heard)) == wrong

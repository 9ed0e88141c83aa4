"""Word timings of the shipped voices, against an independent aligner."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from appliance.audio import words
from appliance.audio.words import TimedWord
from appliance.request import Segmentation
from tests.harness.daemons import DEMO
from tests.measure.quality.judges import Aligner
from tests.measure.quality.mouth import Mouth, references_in

pytestmark = [pytest.mark.torch, pytest.mark.judges, pytest.mark.slow]

LINES = Path(__file__).with_name("lines.txt")
MAX_MEDIAN_S = 0.12
"""Largest median distance. The shipped voices have 0.06."""


def distances(timed: Sequence[TimedWord], said: Sequence[tuple[str, float, float]]) -> Iterator[float]:
    """Seconds between a word's beginning and the aligner's, and between their ends, word by word."""
    left = list(said)
    for word in timed:
        # "twenty-five" is one word of a caption and two words of the aligner.
        own = [left.pop(0) for _ in re.findall(r"[a-z']+", word.text.lower())]
        yield abs(word.start_s - own[0][1])
        yield abs(word.end_s - own[-1][2])
    assert not left, left


@pytest.mark.parametrize("how", Segmentation)
def test_timings_are_near_the_aligners(aligner: Aligner, tmp_path: Path, how: Segmentation) -> None:
    references = references_in(DEMO / "voices")
    planned, heard = list[float](), list[float]()
    with Mouth(DEMO / "bundle", references, tmp_path) as mouth:
        for seed, line in enumerate(LINES.read_text("utf-8").splitlines()[:10]):
            segments, parts, spoken = mouth.parts(line, list(references)[-1], seed=seed, segmentation=how)
            said = aligner.align(spoken, mouth.rate_hz, line)
            timed = [
                word
                for segment, start_s, samples in zip(segments, words.starts_s(segments), parts, strict=True)
                for word in words.from_audio(segment, start_s, samples, mouth.rate_hz)
            ]
            planned += distances(words.planned(segments), said)
            heard += distances(timed, said)
    assert len(heard) > 200
    assert np.median(planned) <= MAX_MEDIAN_S
    assert np.median(heard) <= MAX_MEDIAN_S

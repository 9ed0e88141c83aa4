"""How far the daemon's word timings are from an aligner's: a table, in milliseconds.

    python -m tests.quality.words [--bundle FOLDER] [--voices FOLDER] [--lines tests/quality/lines.txt]

Each line is spoken by every voice, whole and cut for low latency, and pocketsphinx finds where its words
begin and end. `planned` are the timings that the header carries, `heard` those of the end.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from appliance.audio import words
from appliance.audio.words import Word
from appliance.request import Segmentation
from export.hearing import MetricError
from tests.quality.judges import Aligner
from tests.quality.mouth import Mouth, references_in

BUNDLE = Path("appliance/demo/bundle")
LINES = Path(__file__).with_name("lines.txt")


@dataclass(frozen=True)
class Distances:
    planned: list[float]
    heard: list[float]

    def __add__(self, other: Distances) -> Distances:
        return Distances(self.planned + other.planned, self.heard + other.heard)


def measure(
    mouth: Mouth, lines: Sequence[str], voices: Iterable[str], how: Segmentation, aligner: Aligner
) -> Distances:
    """Speak each line with each voice and compare. Raises ValueError for words unknown to the aligner."""
    found = Distances([], [])
    for seed, line in enumerate(lines):
        for voice in voices:
            segments, parts, spoken = mouth.parts(line, voice, seed=seed, segmentation=how)
            said = aligner.align(spoken, mouth.rate_hz, line)
            starts = words.starts_s(segments)
            heard = [
                word
                for segment, start_s, samples in zip(segments, starts, parts, strict=True)
                for word in words.from_audio(segment, start_s, samples, mouth.rate_hz)
            ]
            found += Distances(list(_distances(words.planned(segments), said)), list(_distances(heard, said)))
    return found


def _distances(timed: Sequence[Word], said: Sequence[tuple[str, float, float]]) -> Iterator[float]:
    left = list(said)
    for word in timed:
        # "twenty-five" is one word to a caption and two to the aligner.
        own = [left.pop(0) for _ in re.findall(r"[a-z']+", word.text.lower())]
        yield abs(word.start_s - own[0][1])
        yield abs(word.end_s - own[-1][2])
    assert not left, left


def table(rows: dict[str, Distances]) -> str:
    """Median and 90th percentile of each row, in milliseconds."""
    told = ["cut           words  planned: median  p90  heard: median  p90"]
    for name, found in rows.items():
        figures = [
            f"{1e3 * value:5.0f}"
            for distances in (found.planned, found.heard)
            for value in np.percentile(distances, (50, 90))
        ]
        told.append(f"{name:12}  {len(found.heard) // 2:5}  " + "  ".join(figures))
    return "\n".join(told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--voices", type=Path, help="recordings NAME.wav with their words NAME.txt")
    parser.add_argument("--lines", type=Path, default=LINES)
    options = parser.parse_args()
    references = references_in(options.voices or options.bundle.parent / "voices")
    try:
        aligner = Aligner()
    except MetricError as error:
        print(error, file=sys.stderr)
        return 1
    lines = options.lines.read_text("utf-8").splitlines()
    with tempfile.TemporaryDirectory() as work, Mouth(options.bundle, references, Path(work)) as mouth:
        rows = {how.value: measure(mouth, lines, sorted(references), how, aligner) for how in Segmentation}
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

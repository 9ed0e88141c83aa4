"""Measure how well bundles speak: a table by set of texts and voice, kept in a record.

    python -m tests.measure.quality BUNDLE... [--sets lines,chat,general,short] [--draws 3] [--limit 10]

The sets are files in this folder; a path names another file. Every voice speaks each text. Only `general` is
shared: the voices take turns at its sentences, which the demo voice's training held out. A draw repeats the
set from other noise; the table shows the range of the draws' word error rates and the pooled rate.

The record keeps every finished row: an interrupted table continues.
"""

import argparse
import functools
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

from tqdm import tqdm

from appliance.contract.bundle import Sampling
from appliance.errors import ApplianceError
from appliance.request import FloatArray, Segmentation
from export.hearing import PACKAGES, MetricError
from export.recogniser import Sound
from tests.measure.quality.mouth import Mouth, read_sound, references_in
from tests.measure.quality.scoring import Judges, Panel, Reply, Scores, pooled, score

RECORD = Path("tests/records/demo-voice.json")
VOICES = Path("appliance/demo/voices")
GENERAL = "general"
SETS = {
    "lines": Path(__file__).with_name("lines.txt"),
    "chat": Path(__file__).with_name("chat-lines.txt"),
    "short": Path(__file__).with_name("short-lines.txt"),
    GENERAL: Path(__file__).with_name("general-lines.txt"),
}
SEEDS = 10_000
"""Difference of the seeds of two draws."""

Say = Callable[["Line", int], tuple[Sound, int]]
"""A line and a seed → (samples,) and their rate."""


@dataclass(frozen=True)
class Line:
    text: str
    voice: str
    number: int
    """Number of its text in the set; draw and number give the seed."""
    spellings: tuple[str, ...] = ()
    """Other ways to write the sound of the text."""


@dataclass(frozen=True)
class Model:
    """A bundle in a sampling that speaks lines."""

    name: str
    precision: str
    how: str
    """The sampling; empty for the daemon's."""
    fingerprint: str
    """Fingerprint of the bundle's files: another model is another row."""
    say: Say


@dataclass(frozen=True)
class Row:
    """A measurement: the conditions, the scores and the draws."""

    model: str
    precision: str
    how: str
    texts: str
    """Name of the set."""
    sentences: int
    voice: str
    fingerprint: str
    scores: Scores
    draws: list[list[int]]
    """Wrong words and words of each draw."""

    @property
    def key(self) -> tuple[object, ...]:
        """Key of a measurement: rows with equal keys repeat each other."""
        what = (self.model, self.precision, self.how, self.texts, self.sentences, self.voice)
        return (*what, len(self.draws), self.fingerprint)


class Record:
    def __init__(self, path: Path) -> None:
        """Read the file if it exists. Raises ValueError if it is no record."""
        self._path = path
        raw = json.loads(path.read_text("utf-8")) if path.exists() else {"rows": []}
        try:
            self.rows = [Row(**{**row, "scores": Scores(**row["scores"])}) for row in raw["rows"]]
        except TypeError as error:
            raise ValueError(f"{path}: not a record of this tests.measure.quality: {error}") from error

    def find(self, key: tuple[object, ...]) -> Row | None:
        return next((row for row in self.rows if row.key == key), None)

    def add(self, row: Row) -> None:
        """Store a row; it replaces its predecessor of another fingerprint."""
        self.rows = [old for old in self.rows if old.key[:-1] != row.key[:-1]] + [row]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"measured_with": _circumstances(), "rows": [*map(asdict, self.rows)]}, indent=1)
        partial = self._path.with_suffix(".partial")
        partial.write_text(text + "\n", "utf-8")
        partial.replace(self._path)


def table(rows: Sequence[Row]) -> str:
    """Rows of each voice, and of several voices together."""
    head = ("model", "how", "texts", "voice", "wrong", "words", "WER %", "draws %", "own voice %")
    lines: list[tuple[str, ...]] = [(*head, "similar", "other", "natural", "pause")]
    for row in rows:
        same = [other for other in rows if (other.model, other.how, other.texts) == _of(row)]
        lines.append(_cells(row.voice, [row]))
        if len(same) > 1 and row is same[-1]:
            lines.append(_cells("all", same))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines)


def _of(row: Row) -> tuple[str, str, str]:
    return row.model, row.how, row.texts


def _cells(voice: str, rows: Sequence[Row]) -> tuple[str, ...]:
    s = pooled([row.scores for row in rows])
    rates = [
        100 * sum(wrong for wrong, _ in draw) / sum(words for _, words in draw)
        for draw in zip(*(row.draws for row in rows), strict=True)
    ]
    return (
        *(rows[0].model, rows[0].how or "–", rows[0].texts, voice, str(s.wrong), str(s.words)),
        f"{100 * s.wer:.1f}",
        f"{min(rates):.1f}–{max(rates):.1f}" if len(rates) > 1 else "–",
        *(
            (f"{100 * s.own_voice:.1f}", f"{s.similarity:.2f}", f"{s.similarity_other:.2f}")
            if s.embedded
            else "–––"
        ),
        *(f"{s.naturalness:.2f}", f"{s.longest_pause:.2f}"),
    )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Judges, voices and record that all rows of a run share."""

    voices: Mapping[str, FloatArray]
    """Embeddings of the references."""
    judges: Judges
    record: Record
    draws: int

    def row(self, model: Model, texts: str, lines: Sequence[Line], voice: str) -> Row:
        """The row of a voice, from the record or measured now."""
        own = [line for line in lines if line.voice == voice]
        draws, count = self.draws, len(own)
        conditions = (model.name, model.precision, model.how, texts, count, voice)
        if (there := self.record.find((*conditions, draws, model.fingerprint))) is not None:
            return there
        label = " ".join(part for part in (model.name, model.how, texts, voice) if part)
        with tqdm(total=draws * count, desc=label, unit="reply") as shown:
            found = [
                score(self._replies(model, own, n, shown), self.voices, self.judges) for n in range(draws)
            ]
        each = [[one.wrong, one.words] for one in found]
        row = Row(*conditions, model.fingerprint, pooled(found), each)
        self.record.add(row)
        return row

    def _replies(self, model: Model, lines: Sequence[Line], draw: int, shown: Any) -> Iterator[Reply]:
        for line in lines:
            # A text has the same noise in every row, so that rows differ only in their conditions.
            samples, rate_hz = model.say(line, SEEDS * draw + line.number)
            yield Reply(line.text, line.voice, samples, rate_hz, spellings=line.spellings)
            shown.update()


def texts_of(name: str, voices: Iterable[str], limit: int | None = None) -> list[Line]:
    """Lines of the first `limit` texts of a set, or of a file by its path. Raises ValueError if there is
    neither."""
    path = SETS.get(name, Path(name))
    if not path.is_file():
        raise ValueError(f"{name}: neither a set ({', '.join(SETS)}) nor a file")
    written = [line.split(" | ") for line in path.read_text("utf-8").splitlines()][:limit]
    names = list(voices)
    if name == GENERAL:
        return [Line(one, voice, n) for n, ((one,), voice) in enumerate(zip(written, cycle(names)))]
    return [Line(one, voice, n, tuple(more)) for n, (one, *more) in enumerate(written) for voice in names]


def bundled(mouth: Mouth, name: str, sampling: Sampling | None = None) -> Model:
    """A bundle in the daemon's steps, and in its default sampling unless another is named."""

    def say(line: Line, seed: int) -> tuple[Sound, int]:
        whole = {"segmentation": Segmentation.UPSTREAM, "sampling": sampling}
        return mouth.speak(line.text, line.voice, seed=seed, **whole), mouth.rate_hz

    return Model(name, _precision(mouth), sampling or "", fingerprint(mouth), say)


def _precision(mouth: Mouth) -> str:
    precision = mouth.bundle.manifest.precision
    return precision if mouth.variant == "default" else f"{precision}, {mouth.variant}"


def fingerprint(mouth: Mouth) -> str:
    """Begin of a hash over the hashes of the bundle's files."""
    files = mouth.bundle.manifest.files
    return hashlib.sha256("".join(files[name].sha256 for name in sorted(files)).encode()).hexdigest()[:16]


def main(argv: Sequence[str] | None = None, judges: Callable[[], Judges] = Panel) -> int:
    options = _parser().parse_args(argv)
    try:
        rows = list(_rows(options, judges()))
    except (ApplianceError, MetricError, ValueError, OSError) as error:
        print(f"quality: {error}", file=sys.stderr)
        return 1
    print(table(rows))
    return 0


def _rows(options: argparse.Namespace, judges: Judges) -> Iterator[Row]:
    references = references_in(options.voices)
    if len(references) < 2:
        raise ValueError(f"{options.voices}: a voice with its words, and another to tell it from, are needed")
    sets = {name: texts_of(name, references, options.limit) for name in options.sets}
    embedded = {name: judges.embed(*read_sound(r.audio)) for name, r in references.items()}
    evaluation = Evaluation(embedded, judges, Record(options.record), options.draws)

    for folder in options.bundles:
        name = options.name or folder.resolve().name
        with tempfile.TemporaryDirectory() as work:
            speak = functools.partial(Mouth, folder, references, Path(work))
            with speak(threads=options.threads, variant=options.variant) as mouth:
                model = bundled(mouth, name, options.sampling)
                for texts, lines in sets.items():
                    yield from (evaluation.row(model, texts, lines, voice) for voice in references)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.measure.quality", description="How bundles speak.")
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--name", help="the model's name in the table; else the bundle's folder")
    parser.add_argument(
        "--sets",
        type=lambda names: names.split(","),
        default=["lines", "chat", "short"],
        help=f"of {', '.join(SETS)} and files, with commas (lines,chat,short)",
    )
    parser.add_argument("--draws", type=int, default=1, help="times that a set is spoken (%(default)s)")
    parser.add_argument("--limit", type=int, help="first texts of each set alone")
    parser.add_argument("--sampling", choices=get_args(Sampling), help="else the bundle's")
    parser.add_argument("--variant", help="of the graphs; else that of the daemon on a CPU")
    parser.add_argument("--voices", type=Path, default=VOICES, help="NAME.wav and NAME.txt (%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of synthesis; 0: one for each core")
    parser.add_argument("--record", type=Path, default=RECORD, help="where rows are kept (%(default)s)")
    return parser


def _circumstances() -> dict[str, Any]:
    judges = {package: version(package) for module, package in PACKAGES.items() if find_spec(module)}
    return {"judges": judges, "machine": f"{platform.machine()}, {os.cpu_count()} cores"}

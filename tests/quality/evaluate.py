"""How well bundles speak: a table per model, precision, NFE and kind of request, kept in tests/records.

    python -m tests.quality BUNDLE... --nfe 4 7 16 [--requests unary streamed] [--sentences 200]
                                      [--sampling exact short short-kv] [--lines tests/quality/lines.txt]

The sentences are those that a corpus on this machine holds out, spoken by the voices in turn; without a
corpus, or with --lines, those of a file, each spoken by every voice. Two rows are the ceiling: the demo's
teachers, where they are installed, and their mels through the bundle's vocoder. Every row is written when it
is done and not measured again, so that an interrupted table goes on where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from itertools import cycle, product
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from appliance.contract.bundle import Sampling
from appliance.errors import ApplianceError
from appliance.request import FloatArray, Segmentation
from export.demo.corpus import sentences, store
from export.demo.corpus.teachers import HEART, MICHAEL, SAMPLE_RATE_HZ, Teachers
from tests.quality.judges import PACKAGES, MetricError
from tests.quality.mouth import Mouth, Reference, read_sound, references_in
from tests.quality.scoring import Judges, Panel, Reply, Scores, score

RECORD = Path("tests/records/demo-voice.json")
REQUESTS = {"unary": Segmentation.UPSTREAM, "streamed": Segmentation.LOW_LATENCY}
TEACHER, VOCODED = "teacher", "teacher, vocoded"
TAUGHT = {"heart": HEART, "michael": MICHAEL}
"""The demo's voices and their teachers' names."""
VOICES = Path("appliance/demo/voices")
HELD_OUT = Path("out/demo/corpus/sentences.jsonl")
LINES = Path(__file__).with_name("lines.txt")
TEACHERS = Path("out/demo/teachers")
SENTENCES = 200
IN_TURN = "held-out"
"""Texts of a row: the held-out sentences, the voices in turn."""


@dataclass(frozen=True)
class Line:
    text: str
    voice: str


@dataclass(frozen=True)
class Row:
    """What was measured; all but the scores says under which conditions."""

    model: str
    precision: str
    nfe: int | None
    request: str
    sentences: int
    fingerprint: str
    """Of the bundle's files: another model is another row."""
    scores: Scores
    voices: str
    """Which speak."""
    sampling: str = "exact"
    texts: str = IN_TURN
    """Or the name of a file, each of whose lines every voice speaks."""

    @property
    def key(self) -> tuple[object, ...]:
        """Two rows with the same are the same measurement."""
        what = (self.model, self.precision, self.nfe, self.request, self.sentences, self.voices)
        return (*what, self.sampling, self.texts, self.fingerprint)


class Record:
    def __init__(self, path: Path) -> None:
        """Read what is there. Raises ValueError for what is no record."""
        self._path = path
        raw = json.loads(path.read_text("utf-8")) if path.exists() else {"rows": []}
        self.rows = [Row(**{**row, "scores": Scores(**row["scores"])}) for row in raw["rows"]]

    def find(self, key: tuple[object, ...]) -> Row | None:
        return next((row for row in self.rows if row.key == key), None)

    def add(self, row: Row) -> None:
        """Keep a row, in the place of its predecessor of another fingerprint."""
        self.rows = [old for old in self.rows if old.key[:-1] != row.key[:-1]] + [row]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {"measured_with": _circumstances(), "rows": [asdict(r) for r in self.rows]}, indent=1
        )
        partial = self._path.with_suffix(".partial")
        partial.write_text(text + "\n", "utf-8")
        partial.replace(self._path)


def table(rows: Iterable[Row]) -> str:
    head = ("model", "precision", "nfe", "request", "sampling", "WER %", "over teacher", "own voice %")
    lines = [(*head, "similar", "other", "natural", "pause", "RTF")]
    for row in rows:
        s = row.scores
        lines.append(
            (
                row.model,
                row.precision,
                str(row.nfe or "–"),
                row.request,
                row.sampling if row.nfe else "–",
                f"{100 * s.wer:.1f}",
                "–" if s.over_teacher is None else f"{100 * s.over_teacher:+.1f}",
                f"{100 * s.own_voice:.1f}",
                f"{s.similarity:.2f}",
                f"{s.similarity_other:.2f}",
                f"{s.naturalness:.2f}",
                f"{s.longest_pause:.2f}",
                "–" if s.rtf is None else f"{s.rtf:.3f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What every row of one run shares."""

    lines: Sequence[Line]
    references: Mapping[str, Reference]
    voices: Mapping[str, FloatArray]
    """Embeddings of the references."""
    judges: Judges
    record: Record
    texts: str = IN_TURN
    teachers: Teachers | None = None
    """None where they are not installed, or not those of the voices."""
    _taught: dict[Line, NDArray[np.int16]] = field(default_factory=dict)

    def teacher(self) -> Row:
        """The teachers: the ceiling."""
        return self._row(TEACHER, "–", None, "–", "", self._teacher_replies)

    def vocoded(self, mouth: Mouth, name: str) -> Row:
        """The teachers' mels through the bundle's vocoder."""
        precision, mark = _precision(mouth), fingerprint(mouth)
        return self._row(f"{VOCODED} ({name})", precision, None, "–", mark, lambda: self._vocoded(mouth))

    def bundle(self, mouth: Mouth, name: str, nfe: int, request: str, sampling: Sampling = "exact") -> Row:
        precision, mark = _precision(mouth), fingerprint(mouth)
        replies = lambda: self._spoken(mouth, nfe, REQUESTS[request], sampling)  # noqa: E731
        return self._row(name, precision, nfe, request, mark, replies, sampling)

    def _row(
        self,
        model: str,
        precision: str,
        nfe: int | None,
        request: str,
        mark: str,
        replies: Callable[[], Iterable[Reply]],
        sampling: Sampling = "exact",
    ) -> Row:
        speaking = " ".join(sorted(self.references))
        count = len(self.lines)
        key = (model, precision, nfe, request, count, speaking, sampling, self.texts, mark)
        if (there := self.record.find(key)) is not None:
            return there
        label = " ".join(
            part for part in (model, precision, f"NFE {nfe}" if nfe else "", request, sampling) if part != "–"
        )
        shown = tqdm(replies(), total=len(self.lines), desc=label, unit="reply")
        scores = score(shown, self.voices, self.judges)
        if model != TEACHER and self.teachers is not None:
            scores = scores.against(self.teacher().scores)
        row = Row(model, precision, nfe, request, count, mark, scores, speaking, sampling, self.texts)
        self.record.add(row)
        return row

    def _teacher_replies(self) -> Iterator[Reply]:
        for line in self.lines:
            yield Reply(line.text, line.voice, self._said(line), SAMPLE_RATE_HZ)

    def _vocoded(self, mouth: Mouth) -> Iterator[Reply]:
        for line in self.lines:
            samples = self._said(line).astype(np.float32) / store.FULL_SCALE
            yield Reply(line.text, line.voice, mouth.vocode(samples), mouth.rate_hz)

    def _said(self, line: Line) -> NDArray[np.int16]:
        """(samples,) of the line's teacher, asked once. Raises ValueError for what it cannot say."""
        if line not in self._taught:
            assert self.teachers is not None
            spoken = self.teachers.speak(TAUGHT[line.voice], line.text)
            if spoken is None:
                raise ValueError(f"the teacher of {line.voice} cannot say {line.text!r}")
            self._taught[line] = store.trimmed(spoken).samples
        return self._taught[line]

    def _spoken(
        self, mouth: Mouth, nfe: int, segmentation: Segmentation, sampling: Sampling
    ) -> Iterator[Reply]:
        # The same noise for a sentence in every row: rows differ in what they are about.
        seeds = {text: n for n, text in enumerate(dict.fromkeys(line.text for line in self.lines))}
        for line in self.lines:
            spoken = mouth.speak(
                line.text,
                line.voice,
                nfe=nfe,
                seed=seeds[line.text],
                segmentation=segmentation,
                sampling=sampling,
            )
            yield Reply(line.text, line.voice, spoken.samples, mouth.rate_hz, spoken.wall_s)


def prepare(
    voices: Path,
    judges: Judges,
    record: Record,
    lines: Path | None = None,
    held_out: Path = HELD_OUT,
    most: int = SENTENCES,
) -> Evaluation:
    """Lines of a file, otherwise the held-out sentences or, without any, LINES; references and judges.

    Raises ValueError without two voices, OSError.
    """
    references = references_in(voices)
    if len(references) < 2:
        raise ValueError(f"{voices}: a voice with its words, and another to tell it from, are needed")
    if lines is None and not held_out.is_file():
        lines = LINES
    chosen = spoken_by_each(lines, references) if lines else alternating(held_out, references)
    embedded = {name: judges.embed(*read_sound(r.audio)) for name, r in references.items()}
    return Evaluation(chosen[:most], references, embedded, judges, record, lines.name if lines else IN_TURN)


def alternating(held_out: Path, voices: Iterable[str]) -> list[Line]:
    """Each held-out sentence once, the voices in turn."""
    test = [sentence for sentence in sentences.read(held_out) if sentence.split == "test"]
    # By the hash in their names, so that our own lines and quotations mix: the first few are a fair sample.
    test.sort(key=lambda sentence: sentence.id.split("-")[1])
    return [Line(sentence.text, voice) for sentence, voice in zip(test, cycle(voices))]


def spoken_by_each(path: Path, voices: Iterable[str]) -> list[Line]:
    return [Line(*both) for both in product(path.read_text("utf-8").splitlines(), voices)]


def installed(voices: Iterable[str], folder: Path) -> Teachers | None:
    """The teachers of the voices, or None and on standard error why not."""
    if strangers := sorted(set(voices) - TAUGHT.keys()):
        print(f"quality: no rows of teachers, {', '.join(strangers)} have none", file=sys.stderr)
    elif not folder.is_dir():
        how = "python -m export.demo corpus fetches them"
        print(f"quality: no rows of teachers, no {folder}: {how}", file=sys.stderr)
    else:
        return Teachers(folder)
    return None


def _precision(mouth: Mouth) -> str:
    precision = mouth.bundle.manifest.precision
    return precision if mouth.variant == "default" else f"{precision}, {mouth.variant}"


def fingerprint(mouth: Mouth) -> str:
    """The beginning of a hash over the hashes of the bundle's files."""
    files = mouth.bundle.manifest.files
    return hashlib.sha256("".join(files[name].sha256 for name in sorted(files)).encode()).hexdigest()[:16]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        rows = list(_rows(options))
    except (ApplianceError, MetricError, ValueError, OSError) as error:
        print(f"quality: {error}", file=sys.stderr)
        return 1
    print(table(rows))
    return 0


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    record = Record(options.record)
    evaluation = prepare(options.voices, Panel(), record, options.lines, options.held_out, options.sentences)
    evaluation = replace(evaluation, teachers=installed(evaluation.references, options.teachers))
    if evaluation.teachers is not None:
        yield evaluation.teacher()
    for folder in options.bundles:
        name = options.name or folder.resolve().name
        with (
            tempfile.TemporaryDirectory() as work,
            Mouth(
                folder,
                evaluation.references,
                Path(work),
                threads=options.threads,
                variant=options.variant,
            ) as mouth,
        ):
            if evaluation.teachers is not None:
                yield evaluation.vocoded(mouth, name)
            for nfe, request, sampling in product(options.nfe, options.requests, options.sampling):
                yield evaluation.bundle(mouth, name, nfe, request, sampling)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.quality", description="How well bundles speak.")
    parser.add_argument("bundles", nargs="*", type=Path, help="none: the teachers' row alone")
    parser.add_argument("--name", help="the model's name in the table; else the bundle's folder")
    parser.add_argument("--nfe", nargs="+", type=int, default=[], help="steps; none: the ceiling rows alone")
    parser.add_argument("--requests", nargs="+", choices=tuple(REQUESTS), default=["unary"])
    parser.add_argument("--sampling", nargs="+", choices=get_args(Sampling), default=["exact"])
    parser.add_argument("--lines", type=Path, help="each by every voice; else what is held out, in turn")
    parser.add_argument(
        "--variant",
        default="default",
        help="of the graphs; ort-cpu: as the daemon runs them here (%(default)s)",
    )
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="at most (%(default)s)")
    parser.add_argument("--voices", type=Path, default=VOICES, help="NAME.wav and NAME.txt (%(default)s)")
    parser.add_argument("--held-out", type=Path, default=HELD_OUT, help="of a corpus (%(default)s)")
    parser.add_argument("--teachers", type=Path, default=TEACHERS, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of synthesis; 0: one for each core")
    parser.add_argument("--record", type=Path, default=RECORD, help="where rows are kept (%(default)s)")
    return parser


def _circumstances() -> dict[str, Any]:
    judges = {package: version(package) for module, package in PACKAGES.items() if find_spec(module)}
    return {"judges": judges, "machine": f"{platform.machine()}, {os.cpu_count()} cores"}

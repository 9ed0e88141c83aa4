"""How well bundles speak: a table per model, precision, NFE and kind of request, kept in tests/records.

    python -m tests.quality BUNDLE... --nfe 5 6 7 8 16 32 [--requests unary streamed] [--sentences 200]
                                      [--sampling exact short short-kv] [--lines tests/quality/lines.txt]

The sentences are the corpus' held-out ones, spoken by its voices in turn; with --lines those of a file, each
spoken by every voice. Two rows are the ceiling: the corpus' own engine, and its mels through the bundle's
vocoder. Every row is written when it is done and not measured again, so that an interrupted table goes on
where it stopped.
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
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import soundfile
from tqdm import tqdm

from appliance.contract.bundle import Sampling
from appliance.errors import ApplianceError
from appliance.request import FloatArray, Segmentation
from export.demo.corpus import FOLDER, Clip, CorpusError, audio, read_clips
from export.demo.engines import SAMPLE_RATE_HZ
from export.demo.speech_metrics import PACKAGES, MetricError
from tests.quality.mouth import Mouth, Reference, read_sound, references_in
from tests.quality.scoring import Judges, Panel, Reply, Scores, score

RECORD = Path("tests/records/demo-voice.json")
REQUESTS = {"unary": Segmentation.UPSTREAM, "streamed": Segmentation.LOW_LATENCY}
ENGINE, VOCODED = "engine", "engine, vocoded"
SENTENCES = 200
IN_TURN = "held-out"
"""Texts of a row: the held-out sentences, the voices in turn."""
REFERENCE_S = (4.0, 8.0)
"""Length of a reference taken from the corpus."""


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
    voices: str = "bdl slt"
    """Which of the corpus speak."""
    sampling: str = "exact"
    texts: str = IN_TURN
    """Or the name of a file, each of whose lines every voice speaks."""

    @property
    def key(self) -> tuple[object, ...]:
        """Two rows with the same are the same measurement."""
        what = (self.model, self.precision, self.nfe, self.request, self.sentences, self.voices)
        return (*what, self.sampling, self.texts, self.fingerprint)


class Record:
    """The rows on disk."""

    def __init__(self, path: Path) -> None:
        """Read what is there. Raises ValueError for what is no record."""
        self._path = path
        raw = json.loads(path.read_text("utf-8")) if path.exists() else {"rows": []}
        self.rows = [Row(**{**row, "scores": Scores(**row["scores"])}) for row in raw["rows"]]

    def find(self, key: tuple[object, ...]) -> Row | None:
        """The row with that key."""
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
    """One line a row; rates in percent, times in seconds."""
    head = ("model", "precision", "nfe", "request", "sampling", "WER %", "over engine", "own voice %")
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
                "–" if s.over_engine is None else f"{100 * s.over_engine:+.1f}",
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

    corpus: Path
    clips: Sequence[Clip]
    """The engine's own recordings of the held-out sentences, one voice for each sentence."""
    references: Mapping[str, Reference]
    """Of the voices that speak."""
    voices: Mapping[str, FloatArray]
    """Of these and of those that a reply could be mistaken for."""
    judges: Judges
    record: Record
    texts: str = IN_TURN

    def engine(self) -> Row:
        """The engine that made the corpus: the ceiling."""
        return self._row(ENGINE, "–", None, "–", "", self._engine_replies)

    def vocoded(self, mouth: Mouth, name: str) -> Row:
        """The engine's mels through the bundle's vocoder."""
        precision, mark = _precision(mouth), fingerprint(mouth)
        return self._row(f"{VOCODED} ({name})", precision, None, "–", mark, lambda: self._vocoded(mouth))

    def bundle(self, mouth: Mouth, name: str, nfe: int, request: str, sampling: Sampling = "exact") -> Row:
        """One bundle at one NFE."""
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
        count = len(self.clips)
        key = (model, precision, nfe, request, count, speaking, sampling, self.texts, mark)
        if (there := self.record.find(key)) is not None:
            return there
        label = " ".join(
            part for part in (model, precision, f"NFE {nfe}" if nfe else "", request, sampling) if part != "–"
        )
        shown = tqdm(replies(), total=len(self.clips), desc=label, unit="reply")
        scores = score(shown, self.voices, self.judges)
        if model != ENGINE:
            scores = scores.against(self.engine().scores)
        row = Row(model, precision, nfe, request, count, mark, scores, speaking, sampling, self.texts)
        self.record.add(row)
        return row

    def _engine_replies(self) -> Iterator[Reply]:
        for clip in self.clips:
            yield Reply(clip.text, clip.voice, audio(self.corpus, clip), SAMPLE_RATE_HZ)

    def _vocoded(self, mouth: Mouth) -> Iterator[Reply]:
        for clip in self.clips:
            samples = audio(self.corpus, clip).astype(np.float32) / 32_768.0
            yield Reply(clip.text, clip.voice, mouth.vocode(samples), mouth.rate_hz)

    def _spoken(
        self, mouth: Mouth, nfe: int, segmentation: Segmentation, sampling: Sampling
    ) -> Iterator[Reply]:
        # The same noise for a sentence in every row: rows differ in what they are about.
        seeds = {text: n for n, text in enumerate(dict.fromkeys(clip.text for clip in self.clips))}
        for clip in self.clips:
            spoken = mouth.speak(
                clip.text,
                clip.voice,
                nfe=nfe,
                seed=seeds[clip.text],
                segmentation=segmentation,
                sampling=sampling,
            )
            yield Reply(clip.text, clip.voice, spoken.samples, mouth.rate_hz, spoken.wall_s)


def prepare(
    corpus: Path,
    sentences: int,
    voices: Path | None,
    judges: Judges,
    record: Record,
    lines: Path | None = None,
) -> Evaluation:
    """Held-out clips, of `lines` alone where a file is given, references and judges.

    Raises CorpusError, OSError.
    """
    clips = read_clips(corpus)
    known = references_from(corpus, clips, corpus / "references")
    references = references_in(voices) if voices else known
    names = sorted(references)
    known = {**known, **references}
    if not names or len(known) < 2:
        raise CorpusError(f"{voices or corpus}: a voice, and another to tell it from, are needed")
    embedded = {name: judges.embed(*read_sound(r.audio)) for name, r in known.items()}
    chosen = list(spoken_by_each(clips, names, lines) if lines else alternating(clips, names))[:sentences]
    if not chosen:
        raise CorpusError(f"{corpus}: no held-out sentence is spoken by {' and '.join(names)}")
    texts = lines.name if lines else IN_TURN
    return Evaluation(corpus, chosen, references, embedded, judges, record, texts)


def alternating(clips: Sequence[Clip], voices: Sequence[str]) -> Iterator[Clip]:
    """Each held-out sentence once, the voices in turn."""
    sentences: dict[str, dict[str, Clip]] = {}
    for clip in clips:
        if clip.split == "test":
            sentences.setdefault(clip.text, {})[clip.voice] = clip
    # By the hash in their names, so that our own lines and quotations mix: the first few are a fair sample.
    for number, text in enumerate(
        sorted(sentences, key=lambda t: _hash_in(next(iter(sentences[t].values()))))
    ):
        if clip := sentences[text].get(voices[number % len(voices)]):
            yield clip


def spoken_by_each(clips: Sequence[Clip], voices: Sequence[str], lines: Path) -> Iterator[Clip]:
    """Each line of a file by every voice. Raises CorpusError for one that is not held out, OSError."""
    held_out = {(clip.text, clip.voice): clip for clip in clips if clip.split == "test"}
    for text in lines.read_text("utf-8").splitlines():
        for voice in voices:
            if (text, voice) not in held_out:
                raise CorpusError(f"{lines}: {text!r} is not held out with voice {voice}")
            yield held_out[text, voice]


def _hash_in(clip: Clip) -> str:
    return clip.id.split("-")[1]


def references_from(corpus: Path, clips: Sequence[Clip], folder: Path) -> dict[str, Reference]:
    """A validation clip of our own text for each voice, written as WAV and text."""
    folder.mkdir(parents=True, exist_ok=True)
    for clip in clips:
        path = folder / f"{clip.voice}.wav"
        ours = clip.split == "valid" and clip.id.startswith("live-")
        if ours and REFERENCE_S[0] <= clip.seconds <= REFERENCE_S[1] and not path.exists():
            soundfile.write(path, audio(corpus, clip), SAMPLE_RATE_HZ, subtype="PCM_16")
            path.with_suffix(".txt").write_text(clip.text + "\n", "utf-8")
    return references_in(folder)


def _precision(mouth: Mouth) -> str:
    """As the table names it."""
    precision = mouth.bundle.manifest.precision
    return precision if mouth.variant == "default" else f"{precision}, {mouth.variant}"


def fingerprint(mouth: Mouth) -> str:
    """The beginning of a hash over the hashes of the bundle's files."""
    files = mouth.bundle.manifest.files
    return hashlib.sha256("".join(files[name].sha256 for name in sorted(files)).encode()).hexdigest()[:16]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what has not been measured, and print the table."""
    options = _parser().parse_args(argv)
    try:
        rows = list(_rows(options))
    except (ApplianceError, CorpusError, MetricError, ValueError, OSError) as error:
        print(f"quality: {error}", file=sys.stderr)
        return 1
    print(table(rows))
    return 0


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    record = Record(options.record)
    evaluation = prepare(options.corpus, options.sentences, options.voices, Panel(), record, options.lines)
    yield evaluation.engine()
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
            yield evaluation.vocoded(mouth, name)
            for nfe, request, sampling in product(options.nfe, options.requests, options.sampling):
                yield evaluation.bundle(mouth, name, nfe, request, sampling)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.quality", description="How well bundles speak.")
    parser.add_argument("bundles", nargs="*", type=Path, help="none: the engine's row alone")
    parser.add_argument("--name", help="the model's name in the table; else the bundle's folder")
    parser.add_argument("--nfe", nargs="+", type=int, default=[], help="steps; none: the ceiling rows alone")
    parser.add_argument("--requests", nargs="+", choices=tuple(REQUESTS), default=["unary"])
    parser.add_argument("--sampling", nargs="+", choices=get_args(Sampling), default=["exact"])
    parser.add_argument("--lines", type=Path, help="held-out lines, each by every voice; else all, in turn")
    parser.add_argument(
        "--variant",
        default="default",
        help="of the graphs; ort-cpu: as the daemon runs them here (%(default)s)",
    )
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="at most (%(default)s)")
    parser.add_argument("--voices", type=Path, help="NAME.wav and NAME.txt; else clips of the corpus")
    parser.add_argument("--corpus", type=Path, default=FOLDER, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of synthesis; 0: one for each core")
    parser.add_argument("--record", type=Path, default=RECORD, help="where rows are kept (%(default)s)")
    return parser


def _circumstances() -> dict[str, Any]:
    judges = {package: version(package) for module, package in PACKAGES.items() if find_spec(module)}
    return {"judges": judges, "machine": f"{platform.machine()}, {os.cpu_count()} cores"}

"""Make the corpus: the teachers speak the sentences, in as many processes as there are cores."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from export.demo.corpus import store
from export.demo.corpus.sentences import Sentence
from export.demo.corpus.teachers import SAMPLE_RATE_HZ, Teachers

SHARD = 64
"""Sentences of a shard."""


def make(
    folder: Path,
    lines: Sequence[Sentence],
    voice: str,
    hours: float,
    workers: int,
    teachers: Path,
    *,
    pitch: bool,
) -> None:
    """Speak sentences in `voice`, in their order, until there are `hours` of it or all are spoken.

    Goes on where an earlier run ended.
    """
    batches = [lines[at : at + SHARD] for at in range(0, len(lines), SHARD)]
    tasks = ((folder / f"{voice}-{n:05d}", voice, batch, teachers, pitch) for n, batch in enumerate(batches))
    done = 0.0
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        spoken = pool.imap_unordered(_speak, tasks)
        for seconds in tqdm(spoken, f"{voice}, {hours} hours", len(batches), unit="shard"):
            done += seconds / 3600
            if done >= hours:
                break


_teachers: Teachers | None = None


def _speak(task: tuple[Path, str, Sequence[Sentence], Path, bool]) -> float:
    """Seconds of a shard, spoken now or before; from its path, voice, sentences, teachers' folder, pitch."""
    global _teachers
    path, voice, lines, folder, pitch = task
    if path.with_suffix(".json").exists():
        clips = json.loads(path.with_suffix(".json").read_text("utf-8"))
        return sum(clip["samples"] for clip in clips) / SAMPLE_RATE_HZ
    if _teachers is None:
        _teachers = Teachers(folder)
    said = (({**asdict(line), "voice": voice}, _teachers.speak(voice, line.text)) for line in lines)
    spoken = [(sentence, utterance) for sentence, utterance in said if utterance is not None]
    return store.write(path, spoken, pitch=pitch) if spoken else 0.0

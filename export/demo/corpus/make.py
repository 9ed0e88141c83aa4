"""Make the corpus: the teachers speak the sentences, in as many processes as there are cores."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from export.demo.corpus import store
from export.demo.corpus.sentences import Sentence
from export.demo.corpus.teachers import SAMPLE_RATE_HZ, Teachers

SHARD = 64
"""Sentences of a shard."""


@dataclass(frozen=True)
class Task:
    voice: str
    number: int
    lines: Sequence[Sentence]
    folder: Path
    teachers: Path


def make(
    folder: Path, lines: Sequence[Sentence], voice: str, hours: float, workers: int, teachers: Path
) -> None:
    """Speak sentences in `voice`, in their order, until there are `hours` of it or all are spoken.

    Goes on where an earlier run ended.
    """
    batches = [lines[at : at + SHARD] for at in range(0, len(lines), SHARD)]
    tasks = (Task(voice, n, batch, folder, teachers) for n, batch in enumerate(batches))
    done = 0.0
    with (
        multiprocessing.get_context("spawn").Pool(workers) as pool,
        tqdm(total=round(hours, 4), unit="h", desc=voice) as bar,
    ):
        for seconds in pool.imap_unordered(_speak, tasks):
            done += seconds / 3600
            bar.n = round(min(done, hours), 4)
            bar.refresh()
            if done >= hours:
                pool.terminate()
                break


_teachers: Teachers | None = None


def _speak(task: Task) -> float:
    """Seconds of the task's shard, spoken now or before."""
    global _teachers
    path = task.folder / f"{task.voice}-{task.number:05d}"
    if path.with_suffix(".json").exists():
        clips = json.loads(path.with_suffix(".json").read_text("utf-8"))
        return sum(clip["samples"] for clip in clips) / SAMPLE_RATE_HZ
    if _teachers is None:
        _teachers = Teachers(task.teachers)
    spoken = []
    for line in task.lines:
        utterance = _teachers.speak(task.voice, line.text)
        if utterance is not None:
            spoken.append(
                ({"id": line.id, "voice": task.voice, "text": line.text, "split": line.split}, utterance)
            )
    return store.write(path, spoken) if spoken else 0.0

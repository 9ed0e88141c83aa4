"""Prepare training data from a corpus: mels, the letter recogniser and its frame alignments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from export.demo import ctc, dataset
from export.demo.dataset import Store
from export.demo.folder_lock import folder_lock
from export.demo.train import RECOGNISER_FILE


def prepare(corpus: Path, folder: Path, workers: int, recogniser_clips: int, device: str) -> Store:
    """Create or update the store at `folder`, keeping its clips.

    A new voice in the corpus retrains the recogniser and replaces all alignments.
    Raises ValueError if another run has locked `folder`.
    """
    with folder_lock(folder):
        if (corpus / dataset.CLIPS).is_file():
            added = dataset.build(corpus, folder, workers)
            print(f"{folder}: {added} clips added")
        made = Store(folder)
        path = folder / RECOGNISER_FILE
        if path.is_file() and not ctc.covers_voices(path, made):
            print(f"{path}: not trained on all of {', '.join(ctc.voices(made))}; training it again")
            path.unlink()
            (folder / ctc.LABELS).unlink(missing_ok=True)
        if not path.is_file():
            model = ctc.train(made, path, clips=recogniser_clips, device=device)
            print(f"{path}: letter error rate {100 * _error_rate(model, made):.1f} % on held-out clips")
        ctc.write_labels(ctc.load(path).to(device), made, workers)
        return made


def _error_rate(model: ctc.LetterRecogniser, made: Store, clips: int = 50) -> float:
    chosen = [made.clips[number] for number in made.select("valid")[:clips]]
    read = [model.read(torch.from_numpy(made.mel(clip))) for clip in chosen]
    errors = [ctc.letter_errors(heard, clip.text) for heard, clip in zip(read, chosen, strict=True)]
    return float(np.mean(errors)) if errors else 1.0

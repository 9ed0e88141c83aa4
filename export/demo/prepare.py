"""Everything that training reads, made from a corpus: mels, the listener, the letters of every frame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from export.demo import listener, store
from export.demo.alone import alone
from export.demo.store import Store
from export.demo.train import LISTENER


def prepare(corpus: Path, folder: Path, workers: int, listener_clips: int, device: str) -> Store:
    """The store at `folder`, brought up to the corpus where there is one; what is there already is kept.

    A voice that the listener has never heard has it trained anew, and every letter placed anew.
    Raises ValueError: another run writes to `folder`.
    """
    with alone(folder):
        return _prepare(corpus, folder, workers, listener_clips, device)


def _prepare(corpus: Path, folder: Path, workers: int, listener_clips: int, device: str) -> Store:
    if (corpus / store.CLIPS).is_file():
        added = store.build(corpus, folder, workers)
        print(f"{folder}: {added} clips added")
    made = Store(folder)
    path = folder / LISTENER
    if path.is_file() and not listener.knows(path, made):
        print(f"{path}: has not heard all of {', '.join(listener.spoken(made))}; is trained anew")
        path.unlink()
        (folder / listener.LABELS).unlink(missing_ok=True)
    if not path.is_file():
        model = listener.train(made, path, clips=listener_clips, device=device)
        print(f"{path}: gets {100 * _errors(model, made):.1f} % of the letters of held-out clips wrong")
    listener.write_labels(listener.load(path).to(device), made, workers)
    return made


def _errors(model: listener.Listener, made: Store, clips: int = 50) -> float:
    chosen = [made.clips[number] for number in made.of("valid")[:clips]]
    read = [model.read(torch.from_numpy(made.mel(clip))) for clip in chosen]
    errors = [listener.letter_errors(heard, clip.text) for heard, clip in zip(read, chosen, strict=True)]
    return float(np.mean(errors)) if errors else 1.0

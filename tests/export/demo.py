"""A corpus of hums with random words, the store made of it, and a model small enough to train in a moment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from export.demo import alphabet, ctc, dataset
from export.demo.dataset import Store
from export.demo.train import Recipe

CLIPS = 24
VOICES = ("bdl", "slt")
RECIPE = Recipe(
    voices=VOICES,
    steps=6,
    cooldown=3,
    dim=32,
    depth=2,
    heads=1,
    text_dim=16,
    text_layers=1,
    batch_frames=500,
    longest=420,
    pairs=0.5,
    warmup=2,
    guided=1,
    guided_heads=1,
)


def write_corpus(folder: Path, seconds: float = 1.2) -> Path:
    """As `python -m export.demo corpus` lays it out; of eight clips one is for tests, one for validation."""
    rng = np.random.default_rng(4)
    lines = []
    for voice in VOICES:
        parts, at = [], 0
        for number in range(CLIPS):
            wave = hum(rng, int(24_000 * seconds * rng.uniform(0.7, 1.3)))
            split = {0: "test", 2: "valid"}.get(number % 8, "train")
            words = ["".join(rng.choice(list(alphabet.SMALL), 4)) for _ in range(int(len(wave) / 24_000 * 3))]
            text = " ".join(words).capitalize() + ".,?!'-"[number % 2]
            clip = {"id": f"live-{number}-{voice}", "voice": voice, "text": text, "split": split}
            lines.append(json.dumps({**clip, "shard": 0, "start": at, "samples": len(wave), "wer": None}))
            parts.append(wave)
            at += len(wave)
        (folder / "audio" / voice).mkdir(parents=True)
        np.save(folder / "audio" / voice / "00000.npy", np.concatenate(parts))
    (folder / dataset.CLIPS).write_text("\n".join(lines) + "\n")
    return folder


def write_store(corpus: Path, folder: Path) -> Store:
    """Mels of the corpus, and letters spread evenly over each clip in place of the listener's."""
    dataset.build(corpus, folder, workers=1)
    made = Store(folder)
    spread = [np.arange(clip.frames) * len(clip.text) // clip.frames for clip in made.clips]
    np.concatenate(spread).astype(np.int16).tofile(folder / ctc.LABELS)
    return made


def hum(rng: np.random.Generator, samples: int) -> np.ndarray:
    """(samples,) of a tone that rises and falls."""
    phase = 2 * np.pi * np.cumsum(rng.uniform(100, 200) + 30 * np.sin(np.arange(samples) / 3000)) / 24_000
    wave = np.sin(phase) + 0.3 * np.sin(5 * phase) + 0.05 * rng.standard_normal(samples)
    return (3000 * wave * (1.2 + np.sin(np.arange(samples) / 1500))).astype(np.int16)

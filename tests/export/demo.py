"""A corpus of hums with random phones, a model small enough to train in a moment, and commands of that size.

`python -m tests.export.demo -m export.demo COMMAND …` is the rehearsal of a command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

import numpy as np

from appliance.contract.bundle import Arch
from appliance.text.phones.alphabet import CONSONANTS, STRESSES, TOKENS, VOWELS, tokens
from export.demo import commands
from export.demo.corpus import make, store
from export.demo.corpus.store import Store
from export.demo.corpus.teachers import HEART, MICHAEL, PITCH_HOP, SAMPLE_RATE_HZ, Phone, Utterance
from export.demo.training import loop, train, vocoder
from export.demo.training.train import Recipe
from export.model.dit import DiT
from export.model.redraw import redraw
from export.model.vocos import VocosConfig

CLIPS = 24
"""Of each voice."""
VOICES = (HEART, MICHAEL)
RECIPE = Recipe(
    steps=6,
    cooldown=3,
    dim=32,
    depth=2,
    heads=1,
    text_dim=16,
    text_layers=1,
    batch_frames=500,
    longest=420,
    warmup=2,
    guided=1,
)


def write_store(folder: Path, seconds: float = 1.2) -> Store:
    """A shard of each voice; of eight clips one is to test."""
    rng = np.random.default_rng(4)
    for voice in VOICES:
        spoken = []
        for number in range(CLIPS):
            samples = int(SAMPLE_RATE_HZ * seconds * rng.uniform(0.7, 1.3))
            count = max(int(samples / SAMPLE_RATE_HZ * 3), 1)
            syllables = (
                rng.choice(list(part)) for _ in range(count) for part in (CONSONANTS, STRESSES, VOWELS)
            )
            text = "".join(syllables) + ".?"[number % 2]
            split = "train" if number % 8 else "test"
            sentence = {"id": f"live-{number}-{voice}", "voice": voice, "text": text, "split": split}
            spoken.append((sentence, hum(rng, samples, text)))
        store.write(folder / f"{voice}-00000", spoken)
    return Store(folder)


def hum(rng: np.random.Generator, samples: int, text: str = "hum") -> Utterance:
    """A tone that rises and falls, whose phones are the text's, all as long."""
    n = np.arange(samples)
    hz = rng.uniform(130, 200) + 30 * np.sin(n / 3000)
    phase = 2 * np.pi * np.cumsum(hz) / SAMPLE_RATE_HZ
    wave = np.sin(phase) + 0.3 * np.sin(5 * phase) + 0.05 * rng.standard_normal(samples)
    wave = (3000 * wave * (1.2 + np.sin(n / 1500))).astype(np.int16)
    return Utterance(wave, spread(text, samples), hz[::PITCH_HOP].astype(np.float32))


def spread(text: str, samples: int) -> list[Phone]:
    said = tokens(text)
    return [(token, n * samples // len(said), (n + 1) * samples // len(said)) for n, token in enumerate(said)]


class Hums:
    """In the place of the teachers: hums between silences, in its own time, and cannot say "x"."""

    asked: ClassVar[list[tuple[str, str, float]]] = []

    def __init__(self, folder: Path) -> None:
        self.hibari = SimpleNamespace(g2p=str)

    def speak(self, voice: str, text: str, speed: float = 1.0) -> Utterance | None:
        self.asked.append((voice, text, speed))
        spoken = hum(np.random.default_rng(len(text)), round(30_000 / speed), text)
        silence = np.zeros(4_800, np.int16)
        samples = np.concatenate([silence, spoken.samples, silence])
        return None if "x" in text else replace(spoken, samples=samples)


STAND_IN = "STAND-IN"
"""File in the place of the teachers' packages, where these are not fetched: hums are the corpus."""
PASSES = 3
SOURCE = VocosConfig(100, 32, 64, 2, n_fft=1024, hop=256, padding="center", head="SourceFilterHead")
SIZES = {
    "corpus": "",
    "train": "--dim 32 --depth 1 --heads 1 --text-dim 16 --text-layers 1 --batch-frames 500 --longest 420 "
    f"--guided 1 --passes {PASSES} --steps 4 --cooldown 2 --warmup 2",
    "vocoder": "--batch 2 --frames 16 --steps 3 --cooldown 2 --pitch-steps 1",
}


def rehearse(argv: Sequence[str]) -> int:
    """Run a command on small models, by threads; by hums if its teachers are a stand-in."""
    command, *rest = argv
    at = Path(rest[rest.index("--teachers") + 1]) if "--teachers" in rest else None
    hums = at is not None and (at / STAND_IN).exists()
    threads = SimpleNamespace(get_context=lambda _: SimpleNamespace(Pool=ThreadPool))
    with (
        mock.patch.object(make, "multiprocessing", threads),
        mock.patch.object(make, "Teachers", Hums if hums else make.Teachers),
        mock.patch.object(loop, "LOG_EVERY", 2),
        mock.patch.object(train, "initial_dit", redrawn),
        mock.patch.object(vocoder, "CONFIG", SOURCE),
    ):
        return commands.main([command, *rest, *SIZES[command].split()])


def redrawn(arch: Arch, _: Store) -> DiT:
    """In the place of `train.initial_dit`: weights under which every path matters without a long training."""
    dit = DiT(arch, len(TOKENS), store.SPEC.mels)
    redraw(dit, 5)
    return dit


if __name__ == "__main__":
    sys.exit(rehearse(sys.argv[3:]))

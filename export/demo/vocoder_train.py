"""Trainer of a small Vocos on the corpus' audio: first a mel loss, then discriminators.

All random draws are seeded by the step, so an interrupted run resumes exactly.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from appliance.contract.mel import FLOOR, MelSpec, filterbank
from export.checkpoint import load_vocos
from export.demo import dataset
from export.demo.autocast import autocast
from export.demo.averaging import MovingAverage
from export.demo.discriminators import Discriminators
from export.model.vocos import MAX_MAGNITUDE, Vocos, VocosConfig

CONFIG = VocosConfig(100, 256, 768, 6, n_fft=1024, hop=256, padding="center")
MEL_WEIGHT = 45.0
BETAS = (0.8, 0.9)
RESOLUTIONS = (512, 1024, 2048)
"""FFT sizes of the mel loss; a single one does not constrain phases between its frames."""
CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"


@dataclass(frozen=True)
class Recipe:
    """Training options; part of the checkpoint."""

    steps: int
    mel_steps: int
    """Number of first steps without discriminators."""
    batch: int = 8
    segment: int = 16_384
    """Length of a training excerpt in samples."""
    rate: float = 5e-4
    warmup: int = 200
    period_width: int = 256
    resolution_width: int = 16
    abreast: int = 1
    """Discriminators run in parallel threads."""
    seed: int = 0


class Trainer:
    def __init__(self, recipe: Recipe, corpus: Path, folder: Path, device: str = "cpu") -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.folder, self.device = recipe, folder, device
        self.clips = _Clips(corpus)
        self.vocos = Vocos(CONFIG).to(device)
        self.discriminators = Discriminators(recipe.period_width, recipe.resolution_width, recipe.abreast).to(
            device
        )
        self.average = MovingAverage(self.vocos)
        self.optimizer = torch.optim.AdamW(self.vocos.parameters(), recipe.rate, BETAS)
        self.discriminator_optimizer = torch.optim.AdamW(self.discriminators.parameters(), recipe.rate, BETAS)
        self.step = 0
        self.stopping = False
        """Set by a signal handler: end the run after the current step."""

    def run(self, minutes: float | None, save_minutes: float) -> None:
        """Train to the last step or for `minutes`; checkpoint every `save_minutes` and at the end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        started = saved = time.monotonic()
        bar = tqdm(total=self.recipe.steps, initial=self.step, desc="vocoder", unit="step", disable=None)
        while self.step < self.recipe.steps:
            found = self.train_step()
            bar.update()
            if self.step % 100 == 0:
                entry = {"step": self.step, "seconds": round(time.monotonic() - started, 1), **found}
                with (self.folder / LOG).open("a") as file:
                    file.write(json.dumps(entry) + "\n")
                bar.set_postfix({name: f"{value:.3f}" for name, value in found.items()})
            now = time.monotonic()
            if now - saved > 60 * save_minutes:
                self.save()
                saved = now
            if self.stopping or (minutes is not None and now - started > 60 * minutes):
                break
        self.save()

    def train_step(self) -> dict[str, float]:
        """Take one step of vocoder and discriminators; return the losses."""
        recipe = self.recipe
        rng = np.random.default_rng([recipe.seed, self.step])
        real = torch.from_numpy(self.clips.segments(rng, recipe.batch, recipe.segment)).to(self.device)
        for optimizer in (self.optimizer, self.discriminator_optimizer):
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * self._rate_factor()
        mel = log_mel(real)
        with autocast(self.device):
            made = synthesise(self.vocos, mel)
        real = real[:, : made.shape[1]]
        mels = mel_distance(made, real)
        found = {"mel": mels.item()}
        loss = MEL_WEIGHT * mels
        if self.step >= recipe.mel_steps:
            self.discriminator_optimizer.zero_grad()
            found["judges"] = self.discriminators.accumulate(real, made.detach())
            self.discriminator_optimizer.step()
            passing, matching, gradient = self.discriminators.generator_loss(real, made)
            # Backpropagates the discriminators' gradient into the vocoder.
            loss = loss + (made * gradient).sum()
            found |= {"passing": passing, "matching": matching}
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.vocos.parameters(), 10.0)
        self.optimizer.step()
        self.average.update(self.vocos, self.step)
        self.step += 1
        return found

    def save(self) -> None:
        """Write the checkpoint and the averaged vocoder in the official layout."""
        state = {
            "recipe": asdict(self.recipe),
            "step": self.step,
            "vocos": self.vocos.state_dict(),
            "judges": self.discriminators.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [self.optimizer.state_dict(), self.discriminator_optimizer.state_dict()],
        }
        partial = self.folder / f"{CHECKPOINT}.partial"
        torch.save(state, partial)
        partial.replace(self.folder / CHECKPOINT)
        write_official(self.average.state_dict(), self.folder / "vocos")

    def load(self) -> None:
        state: dict[str, Any] = torch.load(
            self.folder / CHECKPOINT, map_location=self.device, weights_only=True
        )
        self.vocos.load_state_dict(state["vocos"])
        self.discriminators.load_state_dict(state["judges"])
        self.average.load_state_dict(state["average"])
        for optimizer, was in zip(
            (self.optimizer, self.discriminator_optimizer), state["optimizers"], strict=True
        ):
            optimizer.load_state_dict(was)
        self.step = state["step"]

    def initialise_from(self, folder: Path) -> None:
        """Replace random weights by those of a trained Vocos.

        Raises CheckpointError, and ValueError if its sizes differ.
        """
        config, read = load_vocos(folder)
        if config != CONFIG:
            raise ValueError(f"{folder}: is {config}, and {CONFIG} is trained here")
        state = {name: read[name].float() for name in read}
        self.vocos.load_state_dict(state)
        self.average.load_state_dict(state)

    def _rate_factor(self) -> float:
        """Learning rate as a share of `rate`: linear warm-up, then half a cosine."""
        recipe = self.recipe
        rise = min((self.step + 1) / recipe.warmup, 1.0)
        return rise * max(0.5 * (1 + math.cos(math.pi * self.step / recipe.steps)), 0.02)


class _Clips:
    """Random excerpts of the training clips."""

    def __init__(self, corpus: Path) -> None:
        self.corpus = corpus
        self.raw = [clip for clip in dataset.read_corpus(corpus) if clip["split"] == "train"]
        if not self.raw:
            raise ValueError(f"{corpus}: has no training clips")

    def segments(self, rng: np.random.Generator, count: int, length: int) -> NDArray[np.float32]:
        """Excerpts (count, length) at random levels; short clips are zero-padded."""
        found = np.zeros((count, length), np.float32)
        for row, number in zip(found, rng.integers(len(self.raw), size=count), strict=True):
            wave = dataset.level(dataset.samples(self.corpus, self.raw[number]))
            begin = int(rng.integers(max(len(wave) - length, 0) + 1))
            piece = wave[begin : begin + length]
            # Replies differ in level from their reference.
            row[: len(piece)] = piece * np.float32(10 ** rng.uniform(-0.4, 0.15))
        return found


def synthesise(vocos: Vocos, mel: Tensor) -> Tensor:
    """Batched forward pass of the reference vocoder: (B, N, M) → (B, (N - 1)·hop)."""
    x = vocos.head.out(vocos.backbone(mel.mT)).float().mT
    log_magnitude, phase = x.chunk(2, dim=1)
    spectrum = torch.polar(log_magnitude.exp().clamp(max=MAX_MAGNITUDE), phase)
    config = vocos.config
    return torch.istft(spectrum, config.n_fft, config.hop, window=vocos.head.istft.window)


def log_mel(wave: Tensor, n_fft: int = CONFIG.n_fft) -> Tensor:
    """Log-mel equal to that of `appliance.contract.mel`: (B, samples) → (B, N, M)."""
    spec = MelSpec("vocos", n_fft=n_fft, win=n_fft, hop=n_fft // 4)
    window = torch.hann_window(n_fft, device=wave.device)
    magnitude = torch.stft(wave, n_fft, spec.hop, window=window, return_complex=True).abs()
    bank = torch.from_numpy(filterbank(spec).astype(np.float32)).to(wave.device)
    return (magnitude.mT @ bank).clamp_min(FLOOR).log()


def mel_distance(made: Tensor, real: Tensor) -> Tensor:
    """Mean L1 distance of log-mels over `RESOLUTIONS`."""
    return torch.stack([F.l1_loss(log_mel(made, n), log_mel(real, n)) for n in RESOLUTIONS]).mean()


def write_official(state: dict[str, Tensor], folder: Path) -> None:
    """Write `config.yaml` and `pytorch_model.bin` in the official layout."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({name: value.cpu() for name, value in state.items()}, folder / "pytorch_model.bin")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG.sections(), sort_keys=False), "utf-8")


def has_checkpoint(folder: Path) -> bool:
    """True if `folder` has a checkpoint to resume."""
    return (folder / CHECKPOINT).is_file()

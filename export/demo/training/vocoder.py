"""Trainer of the vocoder (`export.model.source`): losses on spectra, then discriminators.

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
from torch import Tensor, nn
from tqdm import tqdm

from appliance.contract.mel import FLOOR, MelSpec, filterbank
from export.demo.corpus.store import FULL_SCALE, Store
from export.demo.training.averaging import MovingAverage
from export.demo.training.discriminators import Discriminators
from export.model.source import NOISE_FRAMES, Pitch, Source, centres
from export.model.vocos import VocosConfig

CONFIG = VocosConfig(100, 256, 768, 6, n_fft=1024, hop=256, padding="center", head="SourceFilterHead")
MEL_WEIGHT, SPECTRUM_WEIGHT = 45.0, 5.0
BETAS = (0.8, 0.9)
RESOLUTIONS = (512, 1024, 2048)
"""FFT sizes of the losses; a single one does not constrain phases between its frames."""
QUIETEST = 1e-4
"""Magnitude below which spectra are not told apart."""
SPREAD = 0.025
"""Standard deviation of a pitch's target, in log Hz: about the distance of two pitches."""
CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"


@dataclass(frozen=True)
class Recipe:
    """Training options; part of the checkpoint."""

    steps: int
    pitch_steps: int
    """Number of first steps that train the pitch alone."""
    spectral_steps: int
    """Number of steps after them without discriminators."""
    batch: int = 8
    frames: int = 64
    """Length of a training excerpt."""
    rate: float = 5e-4
    warmup: int = 200
    period_width: int = 256
    resolution_width: int = 16
    seed: int = 0


class Trainer:
    def __init__(self, recipe: Recipe, store: Store, folder: Path, device: str = "cpu") -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.folder, self.device = recipe, folder, device
        self.excerpts = _Excerpts(store, device)
        self.vocoder = Source(CONFIG).to(device)
        self.discriminators = Discriminators(recipe.period_width, recipe.resolution_width).to(device)
        self.average = MovingAverage(self.vocoder)
        self.optimizer = torch.optim.AdamW(self.vocoder.parameters(), recipe.rate, BETAS)
        self.discriminator_optimizer = torch.optim.AdamW(self.discriminators.parameters(), recipe.rate, BETAS)
        self.step = 0
        self.planned_s: float | None = None
        self.started = time.monotonic()
        self.stopping = False
        """Set by a signal handler: end the run after the current step."""

    def run(self, minutes: float | None, save_minutes: float, planned_minutes: float | None = None) -> None:
        """Train to the last step or for `minutes`; checkpoint every `save_minutes` and at the end.

        With `planned_minutes` the learning rate falls over that time instead of over the steps.
        """
        self.planned_s, self.started = (
            None if planned_minutes is None else 60 * planned_minutes,
            time.monotonic(),
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        started = saved = time.monotonic()
        bar = tqdm(total=self.recipe.steps, initial=self.step, desc="vocoder", unit="step", disable=None)
        while self.step < self.recipe.steps:
            found = self.train_step()
            bar.update()
            if self.step % 100 == 0:
                values = {name: round(float(value), 4) for name, value in found.items()}
                entry = {"step": self.step, "seconds": round(time.monotonic() - started, 1), **values}
                with (self.folder / LOG).open("a") as file:
                    file.write(json.dumps(entry) + "\n")
                bar.set_postfix(values)
            now = time.monotonic()
            if now - saved > 60 * save_minutes:
                self.save()
                saved = now
            if self.stopping or (minutes is not None and now - started > 60 * minutes):
                break
        self.save()

    def train_step(self) -> dict[str, Tensor | float]:
        """Take one step of vocoder and discriminators; return the losses."""
        recipe = self.recipe
        rng = np.random.default_rng([recipe.seed, self.step])
        real, hz = self.excerpts.draw(rng, recipe.batch, recipe.frames)
        for optimizer in (self.optimizer, self.discriminator_optimizer):
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * self._rate_factor()
        mels = log_mel(real)
        found: dict[str, Any] = {"pitch": pitch_loss(self.vocoder.pitch, mels, hz)}
        loss = found["pitch"]
        if self.step >= recipe.pitch_steps:
            phase = torch.from_numpy(rng.random(recipe.batch, dtype=np.float32)).to(self.device)
            made = self.vocoder.synthesise(mels, phase, int(rng.integers(NOISE_FRAMES)))
            found |= {"mel": mel_distance(made, real), "spectrum": spectrum_distance(made, real)}
            loss = loss + MEL_WEIGHT * found["mel"] + SPECTRUM_WEIGHT * found["spectrum"]
        if self.step >= recipe.pitch_steps + recipe.spectral_steps:
            self.discriminator_optimizer.zero_grad()
            found["judges"] = self.discriminators.accumulate(real, made.detach())
            self.discriminator_optimizer.step()
            passing, matching, gradient = self.discriminators.generator_loss(real, made)
            # Backpropagates the discriminators' gradient into the vocoder.
            loss = loss + (made * gradient).sum()
            found |= {"passing": passing, "matching": matching}
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.vocoder.parameters(), 10.0)
        self.optimizer.step()
        self.average.update(self.vocoder, self.step)
        self.step += 1
        return {n: value.detach() if isinstance(value, Tensor) else value for n, value in found.items()}

    def save(self) -> None:
        """Write the checkpoint and the averaged vocoder."""
        state = {
            "recipe": asdict(self.recipe),
            "step": self.step,
            "vocoder": self.vocoder.state_dict(),
            "judges": self.discriminators.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [self.optimizer.state_dict(), self.discriminator_optimizer.state_dict()],
        }
        partial = self.folder / f"{CHECKPOINT}.partial"
        torch.save(state, partial)
        partial.replace(self.folder / CHECKPOINT)
        write_official(self.average.state_dict(), self.folder / "vocoder")

    def load(self) -> None:
        """Go on from the checkpoint of the folder."""
        state = torch.load(self.folder / CHECKPOINT, map_location=self.device, weights_only=True)
        self.vocoder.load_state_dict(state["vocoder"])
        self.discriminators.load_state_dict(state["judges"])
        self.average.load_state_dict(state["average"])
        optimizers = (self.optimizer, self.discriminator_optimizer)
        for optimizer, was in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(was)
        self.step = state["step"]

    def initialise_from(self, place: Path) -> None:
        """Begin with the weights of another run; parts that it lacks stay random."""
        state = torch.load(place, map_location=self.device, weights_only=True)
        self.vocoder.load_state_dict(state, strict=False)
        self.average.load_state_dict(state)

    def _rate_factor(self) -> float:
        """Learning rate as a share of `rate`: linear warm-up, then half a cosine."""
        recipe = self.recipe
        rise = min((self.step + 1) / recipe.warmup, 1.0)
        done = self.step / recipe.steps
        if self.planned_s is not None:
            done = min((time.monotonic() - self.started) / self.planned_s, 1.0)
        return rise * max(0.5 * (1 + math.cos(math.pi * done)), 0.02)


class _Excerpts:
    """Random excerpts of the training clips, at random levels."""

    def __init__(self, store: Store, device: str) -> None:
        self.clips = [store.clips[number] for number in store.select("train")]
        self.audio, self.pitch = (torch.from_numpy(array).to(device) for array in (store.audio, store.pitch))

    def draw(self, rng: np.random.Generator, count: int, frames: int) -> tuple[Tensor, Tensor]:
        """Samples (count, frames·hop) and pitch (count, frames + 1)."""
        long = [clip for clip in self.clips if clip.frames > frames + 1]
        chosen = [long[number] for number in rng.integers(len(long), size=count)]
        first = [int(rng.integers(clip.frames - frames - 1)) for clip in chosen]
        hop, device = CONFIG.hop, self.audio.device
        begin = torch.tensor([c.begin + hop * at for c, at in zip(chosen, first, strict=True)], device=device)
        start = torch.tensor([c.start + at for c, at in zip(chosen, first, strict=True)], device=device)
        wave = self.audio[begin[:, None] + torch.arange(frames * hop, device=device)].float() / FULL_SCALE
        # Replies differ in level from their reference.
        gains = torch.from_numpy((10 ** rng.uniform(-0.4, 0.15, count)).astype(np.float32)).to(device)
        return wave * gains[:, None], self.pitch[
            start[:, None] + torch.arange(frames + 1, device=device)
        ].float()


def log_mel(wave: Tensor, n_fft: int = CONFIG.n_fft) -> Tensor:
    """Log-mel equal to that of `appliance.contract.mel`: (B, samples) → (B, N, M)."""
    return (magnitude(wave, n_fft) @ _bank(n_fft, str(wave.device))).clamp_min(FLOOR).log()


def magnitude(wave: Tensor, n_fft: int) -> Tensor:
    """(B, samples) → (B, N, bins)."""
    window = torch.hann_window(n_fft, device=wave.device)
    return torch.stft(wave, n_fft, n_fft // 4, window=window, return_complex=True).abs().mT


_BANKS: dict[tuple[int, str], Tensor] = {}


def _bank(n_fft: int, device: str) -> Tensor:
    if (n_fft, device) not in _BANKS:
        spec = MelSpec("vocos", n_fft=n_fft, win=n_fft, hop=n_fft // 4)
        _BANKS[n_fft, device] = torch.from_numpy(filterbank(spec).astype(np.float32)).to(device)
    return _BANKS[n_fft, device]


def mel_distance(made: Tensor, real: Tensor) -> Tensor:
    """Mean L1 distance of log-mels over RESOLUTIONS."""
    return torch.stack([F.l1_loss(log_mel(made, n), log_mel(real, n)) for n in RESOLUTIONS]).mean()


def spectrum_distance(made: Tensor, real: Tensor) -> Tensor:
    """Spectral convergence and L1 of log-magnitudes over RESOLUTIONS (arXiv 1910.11480)."""
    found = []
    for n in RESOLUTIONS:
        a, b = magnitude(made, n), magnitude(real, n)
        apart = torch.linalg.norm((a - b).flatten(1), dim=1) / torch.linalg.norm(
            b.flatten(1), dim=1
        ).clamp_min(QUIETEST)
        found += [apart.mean(), F.l1_loss(a.clamp_min(QUIETEST).log(), b.clamp_min(QUIETEST).log())]
    return torch.stack(found).sum() / len(RESOLUTIONS)


def pitch_loss(pitch: Pitch, mels: Tensor, hz: Tensor) -> Tensor:
    """Cross-entropy of the pitch where voiced, its target spread over neighbours, and of voicing."""
    logits, voicing = pitch(mels)
    apart = (hz.clamp_min(1.0).log()[..., None] - centres(hz.device)) / SPREAD
    wanted = apart.square().mul(-0.5).softmax(dim=-1)
    voiced = hz > 0
    away = -(logits.log_softmax(dim=-1) * wanted).sum(dim=-1) * voiced
    return away.sum() / voiced.sum().clamp_min(1) + F.binary_cross_entropy_with_logits(
        voicing, voiced.float()
    )


def write_official(state: dict[str, Tensor], folder: Path) -> None:
    """Write `config.yaml` and `pytorch_model.bin` in Vocos' layout."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({name: value.cpu() for name, value in state.items()}, folder / "pytorch_model.bin")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG.sections(), sort_keys=False), "utf-8")

"""Trainer of the vocoder (`export.model.source`): losses on its pitch, on log-mels and on spectra."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from appliance.contract.mel import FLOOR, MelSpec, filterbank
from export.demo.corpus.store import FULL_SCALE, Store
from export.demo.training import loop
from export.demo.training.loop import Progress
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


@dataclass(frozen=True)
class Recipe(loop.Recipe):
    rate: float = 5e-4
    warmup: int = 200
    pitch_steps: int = 1500
    """Number of first steps that train the pitch alone."""
    batch: int = 8
    frames: int = 64
    """Length of a training excerpt."""


Batch = tuple[Tensor, Tensor, Tensor, int]
"""Samples (B, frames·hop), pitch in Hz (B, frames + 1), first phase of the pulses in cycles (B,), and the
frame at which the noise begins."""


class Trainer(loop.Trainer):
    recipe: Recipe
    max_norm = 10.0

    def __init__(self, recipe: Recipe, store: Store, folder: Path, device: str = "cpu") -> None:
        torch.manual_seed(recipe.seed)
        self.excerpts = _Excerpts(store, device)
        self.vocoder = Source(CONFIG).to(device)
        optimizer = torch.optim.AdamW(self.vocoder.parameters(), recipe.rate, BETAS)
        super().__init__(recipe, folder, device, {"vocoder": self.vocoder}, [optimizer])

    def batches(self) -> Iterator[tuple[Batch, Progress]]:
        recipe, progress = self.recipe, replace(self.progress)
        while True:
            rng = np.random.default_rng([recipe.seed, progress.step])
            wave, hz = self.excerpts.draw(rng, recipe.batch, recipe.frames)
            phase = torch.from_numpy(rng.random(recipe.batch, dtype=np.float32)).to(self.device)
            progress.step, progress.frames = progress.step + 1, progress.frames + hz.numel()
            yield (wave, hz, phase, int(rng.integers(NOISE_FRAMES))), replace(progress)

    def losses(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        wave, hz, phase, roll = batch
        mels = log_mel(wave)
        pitch = pitch_loss(self.vocoder.pitch, mels, hz)
        if self.progress.step < self.recipe.pitch_steps:
            return pitch, {"pitch": pitch}
        made = self.vocoder.synthesise(mels, phase, roll)
        mel, spectrum = mel_distance(made, wave), spectrum_distance(made, wave)
        total = pitch + MEL_WEIGHT * mel + SPECTRUM_WEIGHT * spectrum
        return total, {"pitch": pitch, "mel": mel, "spectrum": spectrum}

    def publish(self, out: Path | None) -> None:
        """Write the averaged vocoder in Vocos' layout to `out`, or beside the checkpoint."""
        write_official(self.average.module.state_dict(), out or self.folder / "vocoder")

    def initialise_from(self, path: Path) -> None:
        """Begin with the weights of another run; parts that it lacks stay random."""
        state = loop.read(path, self.device)
        self.vocoder.load_state_dict(state, strict=False)
        self.begin_average(state)


class _Excerpts:
    """Random excerpts of the training clips, at random levels."""

    def __init__(self, store: Store, device: str) -> None:
        self.clips = [clip for clip in store.clips if clip.split == "train"]
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
        hz = self.pitch[start[:, None] + torch.arange(frames + 1, device=device)].float()
        return wave * gains[:, None], hz


def log_mel(wave: Tensor, n_fft: int = CONFIG.n_fft) -> Tensor:
    """Log-mel equal to that of `appliance.contract.mel`: (B, samples) → (B, N, M)."""
    return (magnitude(wave, n_fft) @ _bank(n_fft, str(wave.device))).clamp_min(FLOOR).log()


def magnitude(wave: Tensor, n_fft: int) -> Tensor:
    """(B, samples) → (B, N, bins)."""
    window = torch.hann_window(n_fft, device=wave.device)
    return torch.stft(wave, n_fft, n_fft // 4, window=window, return_complex=True).abs().mT


@functools.cache
def _bank(n_fft: int, device: str) -> Tensor:
    spec = MelSpec("vocos", n_fft=n_fft, win=n_fft, hop=n_fft // 4)
    return torch.from_numpy(filterbank(spec).astype(np.float32)).to(device)


def mel_distance(made: Tensor, real: Tensor) -> Tensor:
    """Mean L1 distance of log-mels over RESOLUTIONS."""
    return torch.stack([F.l1_loss(log_mel(made, n), log_mel(real, n)) for n in RESOLUTIONS]).mean()


def spectrum_distance(made: Tensor, real: Tensor) -> Tensor:
    """Spectral convergence and L1 of log-magnitudes over RESOLUTIONS (arXiv 1910.11480)."""
    found = []
    for n in RESOLUTIONS:
        a, b = magnitude(made, n), magnitude(real, n)
        apart, size = ((x.flatten(1)).norm(dim=1) for x in (a - b, b))
        found += [
            (apart / size.clamp_min(QUIETEST)).mean(),
            F.l1_loss(a.clamp_min(QUIETEST).log(), b.clamp_min(QUIETEST).log()),
        ]
    return torch.stack(found).sum() / len(RESOLUTIONS)


def pitch_loss(pitch: Pitch, mels: Tensor, hz: Tensor) -> Tensor:
    """Cross-entropy of the pitch where voiced, its target spread over neighbours, and of voicing."""
    logits, voicing = pitch(mels)
    apart = (hz.clamp_min(1.0).log()[..., None] - centres(hz.device)) / SPREAD
    wanted = apart.square().mul(-0.5).softmax(dim=-1)
    voiced = hz > 0
    away = -(logits.log_softmax(dim=-1) * wanted).sum(dim=-1) * voiced
    told = F.binary_cross_entropy_with_logits(voicing, voiced.float())
    return away.sum() / voiced.sum().clamp_min(1) + told


def write_official(state: dict[str, Tensor], folder: Path) -> None:
    """Write `config.yaml` and `pytorch_model.bin` in Vocos' layout."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({name: value.cpu() for name, value in state.items()}, folder / "pytorch_model.bin")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG.sections(), sort_keys=False), "utf-8")

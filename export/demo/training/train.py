"""Trainer of the demo's DiT: recipe, loop, checkpoints, in two stages.

`learn` is upstream's flow matching with dropped conditions. `student` learns from its result: one step of it
covers, without guidance, what the guided teacher covers in several, between two times of a short grid.

All random draws are seeded by the step, so an interrupted run resumes exactly.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from appliance.contract.bundle import Arch
from appliance.contract.schedule import time_grid
from export.demo.corpus import alphabet
from export.demo.corpus.store import SPEC, Store
from export.demo.training import matching
from export.demo.training.autocast import autocast
from export.demo.training.averaging import MovingAverage
from export.demo.training.batches import Batch, Batches, Mels, Mixture
from export.demo.training.model import AttentionGuide, BatchedDiT, Prediction
from export.demo.training.muon import Muon
from export.model.dit import DiT, rotary_frequencies

CHECKPOINT, AVERAGE, LOG = "checkpoint.pt", "average-{}.pt", "log.jsonl"
AVERAGE_FILE_BYTES = 15 << 20
"""Largest size of one file of `write_average`."""
BETAS = (0.9, 0.98)
MAX_GRAD_NORM = 1.0
UNKNOWN = -1
LOG_EVERY = 50
COOLDOWN = 0.7
"""Share of a planned run with a falling learning rate."""
TEACHER_STEPS = 4
"""Steps of the teacher between two times of the student's grid."""


@dataclass(frozen=True)
class Recipe:
    """Model size and training options; part of the checkpoint."""

    steps: int
    cooldown: int
    """Number of last steps over which the learning rate falls along half a cosine."""
    stage: Literal["learn", "student"] = "learn"
    dim: int = 256
    depth: int = 6
    heads: int = 4
    text_dim: int = 256
    text_layers: int = 4
    batch_frames: int = 3000
    longest: int = 1000
    """Largest length in frames of a sentence or of a joined pair."""
    repeats: Mapping[str, int] = field(default_factory=dict)
    """See `Mixture.repeats`."""
    pairs: float = 0.5
    stretch: float = 0.06
    """See `Mixture.stretch`."""
    bare: float = 0.3
    """Share of sentences without their full stop."""
    rate: float = 2e-3
    warmup: int = 300
    weight_decay: float = 0.01
    decay: float = 0.999
    times: matching.Times = "early"
    drop_audio: float = 0.1
    drop_both: float = 0.1
    guided: int = 3
    """Block with guided attention, from 1; 0 for none."""
    guided_heads: int = 2
    aim_weight: float = 0.1
    letter_weight: float = 0.1
    passes: int = 4
    """Steps of the student's grid."""
    strength: float = 2.0
    """Guidance of the student's teacher."""
    seed: int = 0

    @property
    def arch(self) -> Arch:
        """Architecture in upstream's terms."""
        return Arch(
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            ff_mult=2,
            text_dim=self.text_dim,
            conv_layers=self.text_layers,
            text_embedding_average_upsampling=True,
        )


@dataclass
class Progress:
    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Next batch of the epoch."""
    frames: int = 0
    """Frames trained on so far, without padding."""
    seconds: float = 0.0
    """Training time over all runs."""


class Trainer:
    def __init__(self, recipe: Recipe, store: Store, folder: Path, device: str = "cpu") -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.folder, self.device, self.store = recipe, folder, device, store
        self.dit = initial_dit(recipe.arch, store).to(device)
        self.model = BatchedDiT(self.dit)
        self.letter_head = nn.Linear(recipe.dim, len(alphabet.TRAINED)).to(device)
        self.teacher: BatchedDiT | None = None
        grid = time_grid(recipe.passes, grid="uniform")
        self.grid = torch.tensor(grid, dtype=torch.float32, device=device)
        self.average = MovingAverage(self.dit, recipe.decay)
        self.trained = [*self.dit.parameters(), *self.letter_head.parameters()]
        self.optimizers = _optimizers(recipe, self.dit, self.letter_head)
        self.progress = Progress()
        self.planned_s: float | None = None
        self.stopping = False
        """Set by a signal handler: end the run after the current step."""
        self.mels = Mels(store, device)

    def run(
        self,
        minutes: float | None,
        save_minutes: float,
        out: Path | None = None,
        planned_minutes: float | None = None,
    ) -> None:
        """Train to the last step or for `minutes`.

        Writes the checkpoint, and the averaged weights to `out`, every `save_minutes` and at the end.
        With `planned_minutes` the run ends, and the learning rate falls, by time instead of by steps.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        started = saved = logged = time.monotonic()
        before, frames = self.progress.seconds, self.progress.frames
        self.planned_s = None if planned_minutes is None else 60 * planned_minutes
        bar = tqdm(
            total=self.recipe.steps, initial=self.progress.step, desc="train", unit="step", disable=None
        )
        means = _Means()
        for batch, progress in prefetch(self._batches()):
            means.add(self.train_step(batch))
            progress.seconds = before + time.monotonic() - started
            self.progress = progress
            bar.update()
            step, now = progress.step, time.monotonic()
            if step % LOG_EVERY == 0:
                found = means.take() | {
                    "frames_per_second": round((progress.frames - frames) / (now - logged))
                }
                logged, frames = now, progress.frames
                bar.set_postfix(found)
                self._log(found)
            late = minutes is not None and now - started > 60 * minutes
            late = late or (self.planned_s is not None and progress.seconds > self.planned_s)
            ended = step >= self.recipe.steps or late or self.stopping
            if ended or now - saved > 60 * save_minutes:
                self.save(out)
                saved = time.monotonic()
            if ended:
                break

    def train_step(self, batch: Batch) -> dict[str, Tensor]:
        """Take one optimiser step; return the losses."""
        losses = self._student_losses(batch) if self.recipe.stage == "student" else self._losses(batch)
        total = losses["loss"]
        if "aim" in losses:
            total = (
                total + self.recipe.aim_weight * losses["aim"] + self.recipe.letter_weight * losses["letters"]
            )
        for parameter in self.trained:
            parameter.grad = None
        total.backward()
        nn.utils.clip_grad_norm_(self.dit.parameters(), MAX_GRAD_NORM)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.recipe.rate * self._rate_factor()
            optimizer.step()
        self.average.update(self.dit, self.progress.step)
        return {name: value.detach() for name, value in losses.items()}

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        recipe = self.recipe
        draws = matching.draw(batch, self._generator(), recipe.times, recipe.drop_audio, recipe.drop_both)
        guide = AttentionGuide(recipe.guided, recipe.guided_heads, batch.alignment) if recipe.guided else None
        with autocast(self.device):
            seen = matching.predict(self.model, batch, draws, guide)
        losses = {"loss": matching.loss(seen.velocity, batch, draws)}
        return losses | (self._guide_losses(seen, batch, draws.drop_text) if guide is not None else {})

    def _student_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Distance to the mean velocity of the guided teacher over an interval of the grid."""
        assert self.teacher is not None
        recipe, generator = self.recipe, self._generator()
        noise = torch.randn(batch.mels.shape, generator=generator, device=self.device)
        place = torch.randint(recipe.passes, (len(noise),), generator=generator, device=self.device)
        begin, end = self.grid[place], self.grid[place + 1]
        t = begin[:, None, None]
        latents = ((1 - t) * noise + t * batch.mels) * batch.sentences.mask[..., None]
        with autocast(self.device):
            ended = matching.solve(self.teacher, batch, latents, begin, end, TEACHER_STEPS, recipe.strength)
            found = matching.guided(self.model, batch, latents, begin, 0.0)
        return {"loss": matching.distance(found, (ended - latents) / (end - begin)[:, None, None], batch)}

    def _generator(self) -> torch.Generator:
        sequence = np.random.SeedSequence([self.recipe.seed, self.progress.step])
        seed = int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
        return torch.Generator(self.device).manual_seed(seed)

    def _guide_losses(self, seen: Prediction, batch: Batch, drop_text: Tensor) -> dict[str, Tensor]:
        """Losses on guided attention and on letters classified from the block's output."""
        known = (batch.alignment >= 0) & batch.sentences.mask & ~drop_text[:, None]
        assert seen.log_attention is not None and seen.guided_output is not None
        said = batch.sentences.ids.gather(1, batch.alignment.clamp_min(0))
        with autocast(self.device):
            logits = self.letter_head(seen.guided_output)
        said = said.masked_fill(~known, UNKNOWN)
        wrong = F.cross_entropy(
            logits.float().flatten(0, 1), said.flatten(), ignore_index=UNKNOWN, reduction="sum"
        )
        count = known.sum().clamp_min(1)
        return {"aim": -(seen.log_attention * known).sum() / count, "letters": wrong / count}

    def _rate_factor(self) -> float:
        """Learning rate as a share of `rate`: linear warm-up, constant, half-cosine cooldown."""
        recipe, progress = self.recipe, self.progress
        rise = min((progress.step + 1) / recipe.warmup, 1.0)
        left = (recipe.steps - progress.step) / max(recipe.cooldown, 1)
        if self.planned_s is not None:
            left = max(1 - progress.seconds / self.planned_s, 0.0) / COOLDOWN
        return rise * (0.5 * (1 - math.cos(math.pi * left)) if left < 1 else 1.0)

    def _batches(self) -> Iterator[tuple[Batch, Progress]]:
        """Batches from the current progress on, each with the progress after it."""
        progress, recipe = replace(self.progress), self.recipe
        mixture = Mixture(
            *(recipe.batch_frames, recipe.longest, recipe.pairs, recipe.seed, recipe.stretch, recipe.bare),
            repeats=recipe.repeats,
        )
        batches = Batches(self.store, self.mels, "train", (), mixture)
        while True:
            for pieces in batches.epoch(progress.epoch)[progress.batch :]:
                rng = np.random.default_rng([recipe.seed, progress.step])
                progress.step, progress.batch = progress.step + 1, progress.batch + 1
                progress.frames += sum(piece.frames for piece in pieces)
                yield batches.make(pieces, rng), replace(progress)
            progress.epoch, progress.batch = progress.epoch + 1, 0

    def save(self, out: Path | None = None) -> None:
        """Write the checkpoint, and to `out` the averaged weights in half precision."""
        state = {
            "recipe": asdict(self.recipe),
            "place": asdict(self.progress),
            "dit": self.dit.state_dict(),
            "letters": self.letter_head.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        write(state, self.folder / CHECKPOINT)
        if out is not None:
            write_average(self.average.state_dict(), self.recipe, self.progress, out)

    def load(self) -> None:
        """Go on from the checkpoint of the folder."""
        state = read(self.folder / CHECKPOINT, self.device)
        self.progress = Progress(**state["place"])
        self.dit.load_state_dict(state["dit"])
        self.letter_head.load_state_dict(state["letters"])
        self.average.load_state_dict(state["average"])
        for optimizer, was in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(was)

    def initialise_from(self, average: dict[str, Tensor]) -> None:
        """Begin with the weights of another run, which also teaches a student."""
        self.dit.load_state_dict(average)
        self.average.load_state_dict(average)
        if self.recipe.stage == "student":
            teacher = DiT(self.recipe.arch, len(alphabet.TRAINED), SPEC.mels).to(self.device)
            teacher.load_state_dict(average)
            self.teacher = BatchedDiT(teacher.eval().requires_grad_(False))

    def _log(self, found: dict[str, Any]) -> None:
        progress = self.progress
        at = {"step": progress.step, "frames": progress.frames, "seconds": round(progress.seconds, 1)}
        with (self.folder / LOG).open("a") as file:
            file.write(json.dumps({**at, **found}) + "\n")


class _Means:
    """Mean losses since the last log entry; sums stay on the device."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, found: dict[str, Tensor]) -> None:
        self._count += 1
        self._sums = {name: self._sums.get(name, 0.0) + value for name, value in found.items()}

    def take(self) -> dict[str, float]:
        means = {name: round(float(value) / self._count, 4) for name, value in self._sums.items()}
        self._sums, self._count = {}, 0
        return means


Item = TypeVar("Item")


def prefetch(items: Iterator[Item], count: int = 2) -> Iterator[Item]:
    """Compute the next `count` items in a thread."""
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, items) for _ in range(count))
        try:
            while True:
                yield waiting.popleft().result()
                waiting.append(pool.submit(next, items))
        finally:
            for one in waiting:
                one.cancel()


def initial_dit(arch: Arch, store: Store) -> DiT:
    """Randomly initialised DiT: zero modulation and output weights as upstream, output bias the mean mel."""
    dit = DiT(arch, len(alphabet.TRAINED), SPEC.mels)
    for name, parameter in dit.named_parameters():
        if "attn_norm.linear" in name or "norm_out.linear" in name or name == "proj_out.weight":
            nn.init.zeros_(parameter)
    with torch.no_grad():
        some = np.linspace(0, len(store.mels) - 1, min(len(store.mels), 20_000)).astype(int)
        dit.proj_out.bias.copy_(torch.from_numpy(store.mels[some].astype(np.float32).mean(axis=0)))
    return dit


def write(state: dict[str, Any], path: Path) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    partial.replace(path)


def write_average(average: dict[str, Tensor], recipe: Recipe, progress: Progress, folder: Path) -> None:
    """Write averaged weights in half precision, in files of at most `AVERAGE_FILE_BYTES`."""
    parts: list[dict[str, Tensor]] = [{}]
    room = AVERAGE_FILE_BYTES
    for name, value in average.items():
        half = value.half().cpu()
        if half.nbytes > room and parts[-1]:
            parts.append({})
            room = AVERAGE_FILE_BYTES
        parts[-1][name] = half
        room -= half.nbytes
    about = {"recipe": asdict(recipe), "place": asdict(progress), "parts": len(parts)}
    for number, part in enumerate(parts):
        write({**about, "average": part}, folder / AVERAGE.format(number))


def read_average(path: Path) -> tuple[Recipe, dict[str, Tensor]]:
    """Recipe and averaged weights of a checkpoint file or of a folder of `write_average`.

    Raises ValueError if files are missing or were not written together.
    """
    if not path.is_dir():
        state = read(path)
        return Recipe(**state["recipe"]), state["average"]
    first = read(path / AVERAGE.format(0))
    parts = [read(path / AVERAGE.format(number)) for number in range(first["parts"])]
    if any(part["place"] != first["place"] for part in parts):
        raise ValueError(f"{path}: its parts were not written at one time; take them from one run")
    whole = {name: value.float() for part in parts for name, value in part["average"].items()}
    recipe = Recipe(**first["recipe"])
    whole["rotary_embed.inv_freq"] = rotary_frequencies(recipe.arch.dim_head)
    return recipe, whole


def read(path: Path, device: str = "cpu") -> dict[str, Any]:
    """Read a checkpoint or averaged weights. Raises ValueError if `path` does not exist."""
    if not path.is_file():
        raise ValueError(f"{path}: no checkpoint; `python -m export.demo train` makes one")
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def _optimizers(recipe: Recipe, dit: DiT, *extra: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for matrices of blocks and AdamW for the rest."""
    named = dict(dit.named_parameters())
    matrices = [p for n, p in named.items() if p.ndim == 2 and "blocks" in n and "attn_norm" not in n]
    chosen = {id(parameter) for parameter in matrices}
    every = (*named.values(), *(parameter for module in extra for parameter in module.parameters()))
    rest = [parameter for parameter in every if id(parameter) not in chosen]
    adam = torch.optim.AdamW(rest, recipe.rate, BETAS, weight_decay=recipe.weight_decay)
    return [adam, Muon(matrices, recipe.rate, recipe.weight_decay)]

"""Loop that DiT and vocoder are trained by: steps, schedule, log, checkpoints, moving average.

All random draws are seeded by the step, so an interrupted run resumes exactly.
"""

from __future__ import annotations

import json
import math
import signal
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from tqdm import tqdm

CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"
LOG_EVERY = 50
DECAY = 0.999


@dataclass(frozen=True)
class Recipe:
    """Training options; part of the checkpoint."""

    steps: int
    cooldown: int
    """Number of last steps over which the learning rate falls along half a cosine."""
    rate: float
    warmup: int
    seed: int = 0


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


class Team:
    """Processes that train together: each takes its own batches, and all the mean of their gradients."""

    def __init__(self) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)

    def average(self, modules: Iterable[nn.Module]) -> None:
        """Put the mean of all processes' gradients into each."""
        if self.size == 1:
            return
        some = [p for module in modules for p in module.parameters() if p.requires_grad]
        flat = torch.cat(
            [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in some]
        )
        dist.all_reduce(flat)
        for p, mean in zip(some, (flat / self.size).split([p.numel() for p in some]), strict=True):
            p.grad = mean.view_as(p)

    def agreed(self, *values: float) -> list[float]:
        """The values of the first process."""
        if self.size == 1:
            return list(values)
        told = torch.tensor(values, dtype=torch.float64)
        dist.broadcast(told, 0)
        return told.tolist()


class Trainer(ABC):
    """Trains `modules`; of the first of them it keeps a moving average, and clips the gradient."""

    max_norm: ClassVar[float]

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        device: str,
        modules: Mapping[str, nn.Module],
        optimizers: list[torch.optim.Optimizer],
    ) -> None:
        self.recipe, self.folder, self.device = recipe, folder, device
        self.modules, self.optimizers = modules, optimizers
        self.main = next(iter(modules.values()))
        self.average = AveragedModel(self.main, multi_avg_fn=self._lerp)
        self.progress = Progress()
        self.team = Team()
        self.planned_s: float | None = None
        self.stopping = False
        """End the run after the current step."""

    @abstractmethod
    def batches(self) -> Iterator[tuple[Any, Progress]]:
        """Batches from the current progress on, each with the progress after it."""

    @abstractmethod
    def losses(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum of a batch's weighted losses, and each of them."""

    @abstractmethod
    def publish(self, out: Path | None) -> None:
        """Write the averaged weights for other commands."""

    def run(self, save_minutes: float, out: Path | None = None, planned_minutes: float | None = None) -> None:
        """Train to the last step; write checkpoint and average every `save_minutes` and at the end.

        With `planned_minutes` the run ends, and the learning rate falls, by time instead of by steps.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        started = saved = logged = time.monotonic()
        before, frames, steps = self.progress.seconds, self.progress.frames, self.recipe.steps
        self.planned_s = None if planned_minutes is None else 60 * planned_minutes
        bar = tqdm(total=steps, initial=self.progress.step, desc=self.folder.name, unit="step", disable=None)
        recent: dict[str, list[Tensor]] = defaultdict(list)
        for batch, progress in prefetch(self.batches()):
            for name, value in self.train_step(batch).items():
                recent[name].append(value)
            now = time.monotonic()
            progress.seconds, stopping = self.team.agreed(before + now - started, self.stopping)
            self.progress = progress
            bar.update()
            if progress.step % LOG_EVERY == 0 and self.team.rank == 0:
                found = {name: round(float(torch.stack(some).mean()), 4) for name, some in recent.items()}
                found["frames_per_second"] = round((progress.frames - frames) / (now - logged))
                logged, frames = now, progress.frames
                recent.clear()
                bar.set_postfix(found)
                at = {"step": progress.step, "frames": frames, "seconds": round(progress.seconds, 1)}
                with (self.folder / LOG).open("a") as file:
                    file.write(json.dumps({**at, **found}) + "\n")
            late = self.planned_s is not None and progress.seconds > self.planned_s
            ended = progress.step >= steps or late or bool(stopping)
            if self.team.rank == 0 and (ended or now - saved > 60 * save_minutes):
                self.save(out)
                saved = time.monotonic()
            if ended:
                break

    def train_step(self, batch: Any) -> dict[str, Tensor]:
        """Take one optimiser step; return the losses."""
        total, losses = self.losses(batch)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        total.backward()
        self.team.average(self.modules.values())
        nn.utils.clip_grad_norm_(self.main.parameters(), self.max_norm)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.recipe.rate * self.rate_factor()
            optimizer.step()
        self.average.update_parameters(self.main)
        return {name: value.detach() for name, value in losses.items()}

    def stop(self, number: int, _: object) -> None:
        """Handle a signal: finish the step and write the checkpoint; a second one ends the run at once."""
        self.stopping = True
        signal.signal(number, signal.SIG_DFL)

    def rate_factor(self) -> float:
        """Learning rate as a share of `rate`: linear warm-up, constant, half-cosine cooldown."""
        recipe, progress = self.recipe, self.progress
        rise = min((progress.step + 1) / recipe.warmup, 1.0)
        done = progress.step / recipe.steps
        if self.planned_s is not None:
            done = min(progress.seconds / self.planned_s, 1.0)
        left = (1 - done) * recipe.steps / max(recipe.cooldown, 1)
        return rise * (0.5 * (1 - math.cos(math.pi * left)) if left < 1 else 1.0)

    def about(self) -> dict[str, Any]:
        """What files of weights say of their training."""
        return {"recipe": asdict(self.recipe), "place": asdict(self.progress)}

    def save(self, out: Path | None = None) -> None:
        """Write the checkpoint, and what `publish` does."""
        state = {
            **self.about(),
            **{name: module.state_dict() for name, module in self.modules.items()},
            "average": self.average.module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        write(state, self.folder / CHECKPOINT)
        self.publish(out)

    def load(self) -> None:
        """Go on from the checkpoint of the folder."""
        state = read(self.folder / CHECKPOINT, self.device)
        self.progress = Progress(**state["place"])
        for name, module in self.modules.items():
            module.load_state_dict(state[name])
        self.begin_average(state["average"])
        for optimizer, was in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(was)

    def begin_average(self, weights: Mapping[str, Tensor]) -> None:
        self.average.module.load_state_dict(weights)
        self.average.n_averaged.fill_(1)  # 0 would copy the model

    def _lerp(self, averaged: Any, now: Any, _: object) -> None:
        """Exponential moving average, whose low decay at first soon forgets the random initialisation."""
        step = self.progress.step
        torch._foreach_lerp_(averaged, now, 1 - min(DECAY, (1 + step) / (10 + step)))


def prefetch(items: Iterator[Any], count: int = 2) -> Iterator[Any]:
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


def write(state: dict[str, Any], path: Path) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    partial.replace(path)


def read(path: Path, device: str = "cpu") -> dict[str, Any]:
    """Read a file of weights. Raises ValueError if it does not exist."""
    if not path.is_file():
        raise ValueError(f"{path}: no weights; `python -m export.demo train` or `vocoder` makes them")
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def autocast(device: str) -> torch.autocast:
    """Autocast context of the forward pass; emulated bfloat16 halves the speed of a CPU."""
    has = torch.cpu.get_capabilities()
    native = device != "cpu" or any(has.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return torch.autocast(device, torch.bfloat16, enabled=native)

"""Trainer of the demo's DiT, in two stages.

`learn` is upstream's flow matching with dropped conditions. `student` learns from its result: one step of it
covers, without guidance, what the guided teacher covers in several, between two times of a short grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.bundle import Arch
from appliance.contract.placement import Placement, Table
from appliance.contract.schedule import time_grid
from appliance.text.phones.alphabet import TOKENS
from export.demo.corpus import durations
from export.demo.corpus.store import SPEC, Store
from export.demo.training import loop, matching
from export.demo.training.batches import Batch, Batches
from export.demo.training.loop import Progress, autocast
from export.demo.training.model import AttentionGuide, BatchedDiT, Prediction
from export.demo.training.muon import Muon
from export.model.dit import DiT, rotary_frequencies
from export.sources import checkpoint

AVERAGE, SHIPPED = "average-0.pt", "model.safetensors"
BETAS, WEIGHT_DECAY = (0.9, 0.98), 0.01
UNKNOWN = -1
TEACHER_STEPS = 2
"""Steps of the teacher between two times of the student's grid."""
GUIDED_HEADS = 2
AIM_WEIGHT = PHONE_WEIGHT = 0.1
"""Weights of the losses on guided attention and on phones."""


@dataclass(frozen=True)
class Recipe(loop.Recipe):
    """Model size and training options; part of the checkpoint."""

    rate: float = 2e-3
    warmup: int = 300
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
    """Times that each clip of a voice is in an epoch; 1 if not named. A student's voices reply alike."""
    guided: int = 3
    """Block with guided attention, from 1."""
    passes: int = 4
    """Steps of the student's grid."""
    strength: float = 3.0
    """Guidance of the student's teacher."""

    @property
    def arch(self) -> Arch:
        """Architecture in upstream's terms."""
        sizes = self.dim, self.depth, self.heads, 2, self.text_dim, self.text_layers
        return Arch(*sizes, text_embedding_average_upsampling=True)


class Trainer(loop.Trainer):
    recipe: Recipe
    max_norm = 1.0

    def __init__(self, recipe: Recipe, store: Store, folder: Path, device: str = "cpu") -> None:
        torch.manual_seed(recipe.seed)
        self.dit = initial_dit(recipe.arch, store).to(device)
        self.model = BatchedDiT(self.dit)
        self.phone_head = nn.Linear(recipe.dim, len(TOKENS)).to(device)
        modules = {"dit": self.dit, "phones": self.phone_head}
        optimizers = _optimizers(recipe.rate, self.dit, self.phone_head)
        super().__init__(recipe, folder, device, modules, optimizers)
        self.teacher: BatchedDiT | None = None
        grid = time_grid(recipe.passes, grid="uniform")
        self.grid = torch.tensor(grid, dtype=torch.float32, device=device)
        self.placement = Placement(durations.table(store))
        self.data = Batches(
            store,
            device,
            self.placement,
            recipe.batch_frames,
            recipe.longest,
            recipe.repeats,
            recipe.seed,
            replies=recipe.stage == "student",
        )

    def losses(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        guide = AttentionGuide(self.recipe.guided, GUIDED_HEADS, batch.alignment)
        if self.recipe.stage == "student":
            loss, seen = self._student_loss(batch, guide)
            untold = torch.zeros_like(batch.sentences.frames, dtype=torch.bool)
        else:
            draws = matching.draw(batch, self.generator())
            with autocast(self.device):
                seen = matching.predict(self.model, batch, draws, guide)
            loss = matching.distance(seen.velocity, batch.mels - draws.noise, batch)
            untold = draws.drop_text
        aim, phones = self._guide_losses(seen, batch, untold)
        total = loss + AIM_WEIGHT * aim + PHONE_WEIGHT * phones
        return total, {"loss": loss, "aim": aim, "phones": phones}

    def _student_loss(self, batch: Batch, guide: AttentionGuide) -> tuple[Tensor, Prediction]:
        """Distance to the mean velocity of the guided teacher over an interval of the grid.

        The interval begins where the student's own steps lead, as it will when it speaks; all take turns, and
        the first, which decides the words, two.

        Raises ValueError without a teacher.
        """
        if self.teacher is None:
            raise ValueError("a student has no teacher without --begin-with, when it goes on too")
        recipe = self.recipe
        place = max(self.progress.step % (recipe.passes + 1) - 1, 0)
        noise = torch.randn(batch.mels.shape, generator=self.generator(), device=self.device)
        latents, grid = noise * batch.sentences.mask[..., None], self.grid[:, None].expand(-1, len(noise))
        with autocast(self.device):
            for now, then in pairwise(grid[: place + 1]):
                latents = self._own_step(batch, noise, latents, now, then)
            begin, end = grid[place : place + 2]
            ended = matching.solve(self.teacher, batch, latents, begin, end, TEACHER_STEPS, recipe.strength)
            seen = matching.told(self.model, batch, latents, begin, guide)
        wanted = (ended - latents) / (end - begin)[:, None, None]
        return matching.distance(seen.velocity, wanted, batch), seen

    @torch.no_grad()
    def _own_step(self, batch: Batch, noise: Tensor, latents: Tensor, now: Tensor, then: Tensor) -> Tensor:
        """Take a step of the student, and put the reference on its known path, as `short` does."""
        velocity = matching.told(self.model, batch, latents, now).velocity.float()
        now, then = now[:, None, None], then[:, None, None]
        path = (1 - then) * noise + then * batch.mels
        latents = torch.where(batch.hidden[..., None], latents + (then - now) * velocity, path)
        return latents * batch.sentences.mask[..., None]

    def generator(self) -> torch.Generator:
        """Source of the step's draws."""
        seeds = np.random.SeedSequence([self.recipe.seed, self.progress.step, self.team.rank]).generate_state(
            2
        )
        return torch.Generator(self.device).manual_seed(int(seeds.view(np.int64)[0] >> 1))

    def _guide_losses(self, seen: Prediction, batch: Batch, drop_text: Tensor) -> tuple[Tensor, Tensor]:
        """Losses on guided attention and on phones classified from the block's output."""
        known = (batch.alignment >= 0) & batch.sentences.mask & ~drop_text[:, None]
        assert seen.guided is not None
        output, log_attention = seen.guided
        said = batch.sentences.ids.gather(1, batch.alignment.clamp_min(0))
        with autocast(self.device):
            logits = self.phone_head(output)
        said = said.masked_fill(~known, UNKNOWN)
        wrong = F.cross_entropy(
            logits.float().flatten(0, 1), said.flatten(), ignore_index=UNKNOWN, reduction="sum"
        )
        count = known.sum().clamp_min(1)
        return -(log_attention * known).sum() / count, wrong / count

    def batches(self) -> Iterator[tuple[Batch, Progress]]:
        progress, seed = replace(self.progress), self.recipe.seed
        while True:
            left = self.data.epoch(progress.epoch)[progress.batch :]
            for at in range(0, len(left) - self.team.size + 1, self.team.size):
                some = left[at : at + self.team.size]
                rng = np.random.default_rng([seed, progress.step, self.team.rank])
                progress.step, progress.batch = progress.step + 1, progress.batch + len(some)
                progress.frames += sum(piece.frames for pieces in some for piece in pieces)
                yield self.data.make(some[self.team.rank], rng), replace(progress)
            progress.epoch, progress.batch = progress.epoch + 1, 0

    def about(self) -> dict[str, Any]:
        return {**super().about(), "durations": dict(self.placement.table)}

    def publish(self, out: Path | None) -> None:
        """Write the averaged weights to the folder `out` in half precision."""
        if out is not None:
            half = {name: value.half().cpu() for name, value in self.average.module.state_dict().items()}
            loop.write({**self.about(), "parts": 1, "average": half}, out / AVERAGE)

    def initialise_from(self, path: Path) -> None:
        """Begin with the averaged weights of another run, which also teach a student, or with shipped ones.

        `path` is of `read_average`, or a folder of `rebuild`. Raises ValueError if the sizes are others.
        """
        if (shipped := path / SHIPPED).is_file():
            average = {**checkpoint.load_dit(shipped, self.recipe.arch, len(TOKENS))}
        else:
            _, average = read_average(path)
        self.dit.load_state_dict(average)
        self.begin_average(average)
        if self.recipe.stage == "student":
            teacher = DiT(self.recipe.arch, len(TOKENS), SPEC.mels).to(self.device)
            teacher.load_state_dict(average)
            self.teacher = BatchedDiT(teacher.eval().requires_grad_(False))


def _read(path: Path) -> dict[str, Any]:
    return loop.read(path / AVERAGE if path.is_dir() else path)


def read_average(path: Path) -> tuple[Recipe, dict[str, Tensor]]:
    """Recipe and averaged weights of a checkpoint, or of a folder that `publish` wrote. Raises ValueError.

    Options that recipes had before are left out.
    """
    state = _read(path)
    known = {option.name for option in fields(Recipe)}
    recipe = Recipe(**{name: value for name, value in state["recipe"].items() if name in known})
    average = {name: value.float() for name, value in state["average"].items()}
    average["rotary_embed.inv_freq"] = rotary_frequencies(recipe.arch.dim_head)
    return recipe, average


def read_durations(path: Path) -> Table:
    """Read how long each phone lasts from a path of `read_average`. Raises ValueError."""
    state = _read(path)
    if "durations" not in state:
        raise ValueError(f"{path}: was learnt from letters; `train` makes weights that speak phones")
    found: Table = state["durations"]
    return found


def initial_dit(arch: Arch, store: Store) -> DiT:
    """Randomly initialised DiT: zero modulation and output weights as upstream, output bias the mean mel."""
    dit = DiT(arch, len(TOKENS), SPEC.mels)
    for name, parameter in dit.named_parameters():
        if "attn_norm.linear" in name or "norm_out.linear" in name or name == "proj_out.weight":
            nn.init.zeros_(parameter)
    with torch.no_grad():
        some = np.linspace(0, len(store.mels) - 1, min(len(store.mels), 20_000)).astype(int)
        dit.proj_out.bias.copy_(torch.from_numpy(store.mels[some].astype(np.float32).mean(axis=0)))
    return dit


def _optimizers(rate: float, dit: DiT, head: nn.Module) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon for matrices of blocks."""
    named = dict(dit.named_parameters())
    matrices = [
        name for name, p in named.items() if p.ndim == 2 and "blocks" in name and "attn_norm" not in name
    ]
    rest = [*(parameter for name, parameter in named.items() if name not in matrices), *head.parameters()]
    adam = torch.optim.AdamW(rest, rate, BETAS, weight_decay=WEIGHT_DECAY)
    return [adam, Muon([named[name] for name in matrices], rate, WEIGHT_DECAY)]

"""Trainer of the demo's DiT: recipe, loop, held-out evaluation, checkpoints.

All random draws are seeded by the step, so an interrupted run resumes exactly.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from appliance.contract.bundle import Arch
from appliance.contract.schedule import time_grid
from export.demo import alphabet, ctc, matching, pronunciation
from export.demo.autocast import autocast
from export.demo.averaging import MovingAverage
from export.demo.batches import Batch, Batches, Mels, Mixture, Piece, collate
from export.demo.dataset import SPEC, Store
from export.demo.durations import DurationHead
from export.demo.model import AttentionGuide, BatchedDiT, Prediction
from export.demo.muon import Muon
from export.model.dit import DiT

CHECKPOINT, AVERAGE, LOG = "checkpoint.pt", "average-{}.pt", "log.jsonl"
AVERAGE_FILE_BYTES = 15 << 20
"""Largest size of one file of `write_average`."""
BETAS = (0.9, 0.98)
MAX_GRAD_NORM = 1.0
UNKNOWN = -1
PRETRAIN_RATE = 3e-3
LOG_EVERY = 50
PACE_S = 60.0
"""Seconds after which `planned_minutes` sets the last step from the measured speed."""
COOLDOWN = 0.7
"""Share of a planned run with a falling learning rate."""


@dataclass(frozen=True)
class Recipe:
    """Model size and training options; part of the checkpoint."""

    voices: tuple[str, ...]
    steps: int
    cooldown: int
    """Number of last steps over which the learning rate falls along half a cosine."""
    dim: int = 256
    depth: int = 8
    heads: int = 4
    text_dim: int = 256
    text_layers: int = 4
    batch_frames: int = 3000
    longest: int = 700
    """Largest length in frames of a sentence or of a joined pair."""
    shortest_first: int = 0
    """Number of frames at the start trained on sentences of at most half of `longest`."""
    pairs: float = 0.3
    stretch: float = 0.0
    """See `Mixture.stretch`."""
    bare: float = 0.0
    """Share of sentences without their full stop."""
    rate: float = 2e-3
    warmup: int = 300
    muon: bool = True
    weight_decay: float = 0.01
    decay: float = 0.999
    times: matching.Times = "early"
    drop_audio: float = 0.3
    drop_both: float = 0.1
    guided: int = 0
    """Block with guided attention, from 1; 0 for none."""
    guided_heads: int = 2
    aim_weight: float = 0.1
    letter_weight: float = 0.1
    timing_weight: float = 0.0
    """Weight of the auxiliary loss on letter durations and frame offsets."""
    lessons: float = 0.0
    """Passes over the pronunciation dictionary in text-encoder pretraining."""
    sound_weight: float = 0.0
    """Weight of the auxiliary loss on the pronunciation of words."""
    abreast: int = 1
    """Data-parallel parts of a batch, one thread each."""
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
    short: bool = False
    """True if this epoch is limited to half of `longest`."""
    seconds: float = 0.0
    """Training time over all runs."""


@dataclass(frozen=True)
class EvaluationOptions:
    sentences: int
    nfe: int
    guidance: float
    every: int
    """Training steps between evaluations."""


class Trainer:
    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        folder: Path,
        device: str = "cpu",
        *,
        lexicon: Path = Path(),
        compile_model: bool = False,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.folder, self.device, self.store = recipe, folder, device, store
        self.dit = initial_dit(recipe.arch, store).to(device)
        self.model: Any = BatchedDiT(self.dit)
        self.letter_head = nn.Linear(recipe.dim, len(alphabet.TRAINED)).to(device)
        self.phoneme_head = pronunciation.PhonemeHead(recipe.text_dim).to(device)
        self.duration_head = DurationHead(recipe.text_dim, recipe.dim).to(device)
        self.lexicon = pronunciation.lexicon(lexicon) if recipe.lessons or recipe.sound_weight else {}
        self.average = MovingAverage(self.dit, recipe.decay)
        heads = (self.letter_head, self.phoneme_head, self.duration_head)
        self.trained = [parameter for part in (self.dit, *heads) for parameter in part.parameters()]
        self.optimizers = _optimizers(recipe, self.dit, *heads)
        self.pool = ThreadPoolExecutor(recipe.abreast)
        self.progress = Progress()
        self.initialised = False
        """True if the weights come from another run."""
        self.stopping = False
        """Set by a signal handler: end the run after the current step."""
        self.labels = ctc.labels(store) if recipe.guided else None
        self.mels = Mels(store, device)
        if compile_model:
            self.model = torch.compile(self.model, dynamic=True)

    def run(
        self,
        minutes: float | None,
        save_minutes: float,
        evaluation: EvaluationOptions | None,
        out: Path | None = None,
        planned_minutes: float | None = None,
    ) -> None:
        """Train to the last step or for `minutes`.

        Writes the checkpoint, and the averaged weights to `out`, every `save_minutes` and at the end.
        `planned_minutes` sets the last step from the speed of the first minute.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        evaluator = None if evaluation is None else Evaluator(evaluation, self)
        started = saved = logged = time.monotonic()
        before, first_step, frames = self.progress.seconds, self.progress.step, self.progress.frames
        bar = tqdm(
            total=self.recipe.steps, initial=self.progress.step, desc="train", unit="step", disable=None
        )
        means = _Means()
        if self.recipe.lessons and not self.progress.step and not self.initialised:
            self._log({"words_read_right": self._pretrain_text()})
        for parts, progress in prefetch(self._batches()):
            means.add(self.train_step(parts))
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
            if evaluator is not None and step % evaluator.evaluation.every == 0:
                self._log(evaluator.evaluate())
            if planned_minutes is not None and now - started > PACE_S and step - first_step >= LOG_EVERY:
                self._plan(60 * planned_minutes, (now - started) / (step - first_step))
                bar.total, planned_minutes = self.recipe.steps, None
            late = minutes is not None and now - started > 60 * minutes
            ended = step >= self.recipe.steps or late or self.stopping
            if ended or now - saved > 60 * save_minutes:
                self.save(out)
                saved = time.monotonic()
            if ended:
                break

    def _plan(self, seconds: float, each: float) -> None:
        steps = self.progress.step + max(int((seconds - self.progress.seconds) / each), 1)
        self.recipe = replace(self.recipe, steps=steps, cooldown=int(COOLDOWN * steps))
        self._log({"planned_steps": steps, "seconds_per_step": round(each, 4)})

    def _pretrain_text(self) -> float:
        recipe, clips = self.recipe, self.store.clips
        texts = sorted({clips[number].text for number in self.store.select("train", recipe.voices)})
        right = pronunciation.pretrain(
            self.model, self.phoneme_head, texts, self.lexicon, recipe.lessons, recipe.seed, PRETRAIN_RATE
        )
        self.average.load_state_dict(self.dit.state_dict())
        return round(right, 4)

    def train_step(self, parts: Sequence[Batch]) -> dict[str, Tensor]:
        """Take one optimiser step on the data-parallel parts of a batch; return the losses."""
        spoken = [float((part.hidden & part.sentences.mask).sum()) for part in parts]
        shares = [own / sum(spoken) for own in spoken]
        found = list(self.pool.map(self._gradients, parts, range(len(parts))))
        for parameter, *grads in zip(self.trained, *(grads for _, grads in found), strict=True):
            there = [grad * share for grad, share in zip(grads, shares, strict=True) if grad is not None]
            parameter.grad = sum(there[1:], there[0]) if there else None
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.recipe.rate * rate_factor(self.recipe, self.progress.step)
        nn.utils.clip_grad_norm_(self.dit.parameters(), MAX_GRAD_NORM)
        list(self.pool.map(lambda optimizer: optimizer.step(), self.optimizers))
        self.average.update(self.dit, self.progress.step)
        names = found[0][0]
        weights = torch.tensor(shares, device=self.device)
        return {name: torch.stack([one[name] for one, _ in found]) @ weights for name in names}

    def _gradients(self, batch: Batch, part: int) -> tuple[dict[str, Tensor], Sequence[Tensor | None]]:
        recipe = self.recipe
        sequence = np.random.SeedSequence([recipe.seed, self.progress.step, part])
        seed = int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
        generator = torch.Generator(self.device).manual_seed(seed)
        draws = matching.draw(batch, generator, recipe.times, recipe.drop_audio, recipe.drop_both)
        guide = AttentionGuide(recipe.guided, recipe.guided_heads, batch.alignment) if recipe.guided else None
        with autocast(self.device):
            seen = matching.predict(self.model, batch, draws, guide)
        losses = {"loss": matching.loss(seen.velocity, batch, draws)}
        total = losses["loss"]
        if guide is not None:
            losses |= self._guide_losses(seen, batch, draws.drop_text)
            total = total + recipe.aim_weight * losses["aim"] + recipe.letter_weight * losses["letters"]
        if guide is not None and recipe.timing_weight:
            losses["timing"] = self._duration_loss(seen, batch, draws.drop_text)
            total = total + recipe.timing_weight * losses["timing"]
        if recipe.sound_weight:
            losses["sounds"] = self._phoneme_loss(seen, batch, draws.drop_text)
            total = total + recipe.sound_weight * losses["sounds"]
        grads = torch.autograd.grad(total, self.trained, allow_unused=True)
        return {name: value.detach() for name, value in losses.items()}, grads

    def _phoneme_loss(self, seen: Prediction, batch: Batch, drop_text: Tensor) -> Tensor:
        """CTC loss of known words' phonemes; dropped texts are left out."""
        shown = ["" if gone else text for text, gone in zip(batch.texts, drop_text.tolist(), strict=True)]
        said = pronunciation.words(shown, self.lexicon, batch.sentences.ids.shape[1])
        if said is None:
            return seen.velocity.new_zeros((), dtype=torch.float32)
        with autocast(self.device):
            return self.phoneme_head.loss(seen.encoded_text, said.to(self.device))

    def _duration_loss(self, seen: Prediction, batch: Batch, drop_text: Tensor) -> Tensor:
        """Loss on durations and offsets; dropped texts are left out."""
        assert seen.guided_input is not None
        alignment = batch.alignment.masked_fill(drop_text[:, None], UNKNOWN)
        with autocast(self.device):
            return self.duration_head.loss(seen.encoded_text, seen.guided_input, batch.sentences, alignment)

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

    def _batches(self) -> Iterator[tuple[list[Batch], Progress]]:
        """Batches from the current progress on, split into parts, each with the progress after it."""
        progress, recipe = replace(self.progress), self.recipe
        whole = Mixture(
            recipe.batch_frames, recipe.longest, recipe.pairs, recipe.seed, recipe.stretch, recipe.bare
        )
        short = replace(whole, longest=recipe.longest // 2, pairs=0.0)
        while True:
            if progress.batch == 0:
                progress.short = progress.frames < recipe.shortest_first
            mixture = short if progress.short else whole
            batches = Batches(self.store, self.mels, "train", recipe.voices, mixture, self.labels)
            for pieces in batches.epoch(progress.epoch)[progress.batch :]:
                rng = np.random.default_rng([recipe.seed, progress.step])
                progress.step, progress.batch = progress.step + 1, progress.batch + 1
                progress.frames += sum(piece.frames for piece in pieces)
                parts = [pieces[part :: recipe.abreast] for part in range(recipe.abreast)]
                yield [batches.make(part, rng) for part in parts if part], replace(progress)
            progress.epoch, progress.batch = progress.epoch + 1, 0

    def averaged(self) -> BatchedDiT:
        dit = DiT(self.recipe.arch, len(alphabet.TRAINED), SPEC.mels).to(self.device)
        dit.load_state_dict(self.average.state_dict())
        return BatchedDiT(dit.eval().requires_grad_(False))

    def save(self, out: Path | None = None) -> None:
        """Write the checkpoint, and to `out` the averaged weights in half precision."""
        state = {
            "recipe": asdict(self.recipe),
            "place": asdict(self.progress),
            "dit": self.dit.state_dict(),
            "letters": self.letter_head.state_dict(),
            "reader": self.phoneme_head.state_dict(),
            "timer": self.duration_head.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        write(state, self.folder / CHECKPOINT)
        if out is not None:
            write_average(self.average.state_dict(), self.recipe, self.progress, out)

    def load(self) -> None:
        state = read(self.folder / CHECKPOINT, self.device)
        self.progress = Progress(**state["place"])
        self.dit.load_state_dict(state["dit"])
        self.letter_head.load_state_dict(state["letters"])
        self.phoneme_head.load_state_dict(state["reader"])
        self.duration_head.load_state_dict(state["timer"])
        self.average.load_state_dict(state["average"])
        for optimizer, was in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(was)

    def initialise_from(self, average: dict[str, Tensor]) -> None:
        """Replace random weights by those of another run."""
        self.dit.load_state_dict(average)
        self.average.load_state_dict(average)
        self.initialised = True

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


class Evaluator:
    """Letter error rate of held-out sentences, sampled with the averaged weights."""

    def __init__(self, evaluation: EvaluationOptions, trainer: Trainer) -> None:
        self.evaluation, self.trainer = evaluation, trainer
        path = trainer.store.folder / RECOGNISER_FILE
        self.recogniser = ctc.load(path) if path.is_file() else None
        self.batch, self.texts = self._held_out_batch()
        generator = torch.Generator().manual_seed(0)
        self.noise = torch.randn(self.batch.mels.shape, generator=generator).to(trainer.device)

    def evaluate(self) -> dict[str, float | str]:
        """Log entry: `first` is the share of mel variance explained by one step from pure noise,
        `letter_errors` the letter error rate of whole samples."""
        model, batch = self.trainer.averaged(), self.batch
        with autocast(self.trainer.device):
            found: dict[str, float | str] = {"first": round(self._first_step_variance(model), 4)}
            if self.recogniser is None:
                return found
            times = time_grid(self.evaluation.nfe).tolist()
            mels = matching.sample(model, batch, self.noise, times, self.evaluation.guidance).float().cpu()
        hidden = batch.hidden.cpu()
        read = [self.recogniser.read(mel[mask]) for mel, mask in zip(mels, hidden, strict=True)]
        errors = [ctc.letter_errors(heard, said) for heard, said in zip(read, self.texts, strict=True)]
        return found | {
            "letter_errors": round(float(np.mean(errors)), 4),
            "said": self.texts[0],
            "heard": read[0],
        }

    def _held_out_batch(self) -> tuple[Batch, list[str]]:
        """Held-out clips as replies to another clip of the same voice, and their texts."""
        trainer, clips = self.trainer, self.trainer.store.clips
        mixture = Mixture(0, EVALUATION_FRAMES, 1.0, 0)
        batches = Batches(trainer.store, trainer.mels, "valid", trainer.recipe.voices, mixture, None)
        by_length = sorted(batches.numbers, key=lambda number: clips[number].frames)
        pieces = []
        for number in batches.numbers[:: max(len(batches.numbers) // self.evaluation.sentences, 1)]:
            own = [
                other for other in by_length if clips[other].voice == clips[number].voice and other != number
            ]
            reference = own[len(own) // 8]  # short ones, but not the very shortest
            frames = clips[number].frames
            pieces.append(Piece((reference, number), clips[reference].frames + frames, frames))
        pieces = pieces[: self.evaluation.sentences]
        rows, texts, alignment = zip(*(batches.joined(piece) for piece in pieces), strict=True)
        hidden = []
        for row, piece in zip(rows, pieces, strict=True):
            one = np.zeros(len(row), bool)
            one[-piece.last :] = True
            hidden.append(one)
        return collate(trainer.mels, rows, texts, alignment, hidden), [
            clips[p.clips[-1]].text for p in pieces
        ]

    def _first_step_variance(self, model: BatchedDiT) -> float:
        batch, count = self.batch, len(self.batch.mels)
        nothing = torch.zeros(count, dtype=torch.bool, device=self.trainer.device)
        draws = matching.Draws(self.noise, torch.zeros(count, device=self.trainer.device), nothing, nothing)
        with torch.inference_mode():
            guess = matching.predict(model, batch, draws).velocity.float() + self.noise
        truth, guess = batch.mels[batch.hidden], guess[batch.hidden]
        return float(1 - (guess - truth).square().sum() / (truth - truth.mean(dim=0)).square().sum())


RECOGNISER_FILE = "listener.pt"
"""File of the letter recogniser, beside the mels."""
EVALUATION_FRAMES = 800
"""Largest length of a held-out clip in frames."""


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


def rate_factor(recipe: Recipe, step: int) -> float:
    """Learning rate at a step as a share of `rate`: linear warm-up, constant, half-cosine cooldown."""
    rise = min((step + 1) / recipe.warmup, 1.0)
    left = (recipe.steps - step) / max(recipe.cooldown, 1)
    return rise * (0.5 * (1 - math.cos(math.pi * left)) if left < 1 else 1.0)


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
        return recipe_of(state), state["average"]
    first = read(path / AVERAGE.format(0))
    parts = [read(path / AVERAGE.format(number)) for number in range(first["parts"])]
    if any(part["place"] != first["place"] for part in parts):
        raise ValueError(f"{path}: its parts were not written at one time; take them from one run")
    whole = {name: value.float() for part in parts for name, value in part["average"].items()}
    return recipe_of(first), whole


def read(path: Path, device: str = "cpu") -> dict[str, Any]:
    """Read a checkpoint or averaged weights. Raises ValueError if `path` does not exist."""
    if not path.is_file():
        raise ValueError(f"{path}: no checkpoint; `python -m export.demo train` makes one")
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def recipe_of(state: dict[str, Any]) -> Recipe:
    return Recipe(**{**state["recipe"], "voices": tuple(state["recipe"]["voices"])})


def _optimizers(recipe: Recipe, dit: DiT, *extra: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for matrices of blocks, one instance per thread, and AdamW for the rest; or AdamW for all."""
    named = dict(dit.named_parameters())
    matrices = [
        parameter
        for name, parameter in named.items()
        if recipe.muon and parameter.ndim == 2 and "blocks" in name and "attn_norm" not in name
    ]
    chosen = {id(parameter) for parameter in matrices}
    every = (*named.values(), *(parameter for module in extra for parameter in module.parameters()))
    rest = [parameter for parameter in every if id(parameter) not in chosen]
    adam = torch.optim.AdamW(rest, recipe.rate, BETAS, weight_decay=recipe.weight_decay)
    if not matrices:
        return [adam]
    shares = [matrices[number :: recipe.abreast] for number in range(recipe.abreast)]
    return [adam, *(Muon(share, recipe.rate, recipe.weight_decay) for share in shares if share)]

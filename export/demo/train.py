"""Train the demo's DiT on a store of mels, from any point on, for so many steps or so many minutes.

Everything random is drawn from the step's number, so an interrupted run goes on as if nothing had been.
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
from export.demo import flow, letters, listener, sounds
from export.demo.averages import Average
from export.demo.batches import Batch, Batches, Mels, Mixture, Piece, collate
from export.demo.model import BatchedDiT, Guide, Seen
from export.demo.muon import Muon
from export.demo.precision import autocast
from export.demo.store import SPEC, Store
from export.demo.timing import Timer
from export.model.dit import DiT

CHECKPOINT, AVERAGE, LOG = "checkpoint.pt", "average-{}.pt", "log.jsonl"
CARRIED_BYTES = 15 << 20
"""Of weights in one file of those that `carry` writes."""
BETAS = (0.9, 0.98)
CLIP = 1.0
UNKNOWN = -1
LESSON_RATE = 3e-3
LOG_EVERY = 50
PACE_S = 60.0
"""After so long the pace of a run is known."""
COOLDOWN = 0.7
"""Share of a planned run over which the learning rate falls."""


@dataclass(frozen=True)
class Recipe:
    """How a voice is trained; part of the checkpoint."""

    voices: tuple[str, ...]
    steps: int
    cooldown: int
    """Steps at the end over which the learning rate falls along half a cosine."""
    dim: int = 256
    depth: int = 8
    heads: int = 4
    text_dim: int = 256
    text_layers: int = 4
    batch_frames: int = 3000
    longest: int = 700
    """Frames of a sentence, or of two that are joined."""
    shortest_first: int = 0
    """Frames trained on with sentences of half that length only."""
    pairs: float = 0.3
    stretch: float = 0.0
    """Of the durations of half of the sentences: `Mixture.stretch`."""
    bare: float = 0.0
    """Share of the sentences without their full stop."""
    rate: float = 2e-3
    warmup: int = 300
    muon: bool = True
    weight_decay: float = 0.01
    decay: float = 0.999
    """Of the moving average."""
    times: flow.Times = "early"
    drop_audio: float = 0.3
    drop_both: float = 0.1
    guided: int = 0
    """The block whose attention is guided; 0 for none."""
    guided_heads: int = 2
    aim_weight: float = 0.1
    letter_weight: float = 0.1
    timing_weight: float = 0.0
    """Of telling each letter's length, and the shift of each frame, ahead of the guided block."""
    lessons: float = 0.0
    """Passes through the pronouncing dictionary before the first sound."""
    sound_weight: float = 0.0
    """Of reading that dictionary's words, while training."""
    abreast: int = 1
    """Parts of a batch that are worked on at once, each in a thread."""
    seed: int = 0

    @property
    def arch(self) -> Arch:
        """In upstream's terms."""
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
class Place:
    """How far a run is."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Of the epoch."""
    frames: int = 0
    """Seen so far, without padding."""
    short: bool = False
    """Whether this epoch has the shorter half of the sentences only."""
    seconds: float = 0.0
    """Spent training, over all sittings."""


@dataclass(frozen=True)
class Exam:
    """What is looked at while training: so many sentences, spoken with so many steps."""

    sentences: int
    nfe: int
    guidance: float
    every: int
    """Steps."""


class Trainer:
    """Weights, their average, optimisers, and how far they are."""

    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        folder: Path,
        device: str = "cpu",
        *,
        lexicon: Path = Path(),
        build: bool = False,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.folder, self.device, self.store = recipe, folder, device, store
        self.dit = fresh(recipe.arch, store).to(device)
        self.model: Any = BatchedDiT(self.dit)
        self.letters = nn.Linear(recipe.dim, len(letters.TRAINED)).to(device)
        self.reader = sounds.Reader(recipe.text_dim).to(device)
        self.timer = Timer(recipe.text_dim, recipe.dim).to(device)
        self.lexicon = sounds.lexicon(lexicon) if recipe.lessons or recipe.sound_weight else {}
        self.average = Average(self.dit, recipe.decay)
        beside = (self.letters, self.reader, self.timer)
        self.trained = [parameter for part in (self.dit, *beside) for parameter in part.parameters()]
        self.optimizers = _optimizers(recipe, self.dit, *beside)
        self.pool = ThreadPoolExecutor(recipe.abreast)
        self.place = Place()
        self.begun = False
        """Whether the weights are those of another run."""
        self.stopping = False
        """Set from outside: the run ends after the step that is being made."""
        self.labels = listener.labels(store) if recipe.guided else None
        self.mels = Mels(store, device)
        if build:
            self.model = torch.compile(self.model, dynamic=True)

    def run(
        self,
        minutes: float | None,
        save_minutes: float,
        exam: Exam | None,
        out: Path | None = None,
        planned_minutes: float | None = None,
    ) -> None:
        """Train to the last step, or for so long.

        Every few minutes the checkpoint is written, and to `out` the averaged weights alone. With
        `planned_minutes` the last step is set from the pace of the first minute.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        examiner = None if exam is None else Examiner(exam, self)
        started = saved = logged = time.monotonic()
        before, first_step, frames = self.place.seconds, self.place.step, self.place.frames
        bar = tqdm(total=self.recipe.steps, initial=self.place.step, desc="train", unit="step", disable=None)
        means = _Means()
        if self.recipe.lessons and not self.place.step and not self.begun:
            self._log({"words_read_right": self._teach()})
        for parts, place in ahead(self._stream()):
            means.add(self.train_step(parts))
            place.seconds = before + time.monotonic() - started
            self.place = place
            bar.update()
            step, now = place.step, time.monotonic()
            if step % LOG_EVERY == 0:
                found = means.take() | {"frames_per_second": round((place.frames - frames) / (now - logged))}
                logged, frames = now, place.frames
                bar.set_postfix(found)
                self._log(found)
            if examiner is not None and step % examiner.exam.every == 0:
                self._log(examiner.examine())
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
        steps = self.place.step + max(int((seconds - self.place.seconds) / each), 1)
        self.recipe = replace(self.recipe, steps=steps, cooldown=int(COOLDOWN * steps))
        self._log({"planned_steps": steps, "seconds_per_step": round(each, 4)})

    def _teach(self) -> float:
        recipe, clips = self.recipe, self.store.clips
        texts = sorted({clips[number].text for number in self.store.of("train", recipe.voices)})
        right = sounds.teach(
            self.model, self.reader, texts, self.lexicon, recipe.lessons, recipe.seed, LESSON_RATE
        )
        self.average.load_state_dict(self.dit.state_dict())
        return round(right, 4)

    def train_step(self, parts: Sequence[Batch]) -> dict[str, Tensor]:
        """One step of the optimisers on a batch, or on its parts side by side; returns the losses."""
        spoken = [float((part.hidden & part.sentences.mask).sum()) for part in parts]
        shares = [own / sum(spoken) for own in spoken]
        found = list(self.pool.map(self._gradients, parts, range(len(parts))))
        for parameter, *grads in zip(self.trained, *(grads for _, grads in found), strict=True):
            there = [grad * share for grad, share in zip(grads, shares, strict=True) if grad is not None]
            parameter.grad = sum(there[1:], there[0]) if there else None
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.recipe.rate * pace(self.recipe, self.place.step)
        nn.utils.clip_grad_norm_(self.dit.parameters(), CLIP)
        list(self.pool.map(lambda optimizer: optimizer.step(), self.optimizers))
        self.average.update(self.dit, self.place.step)
        names = found[0][0]
        weights = torch.tensor(shares, device=self.device)
        return {name: torch.stack([one[name] for one, _ in found]) @ weights for name in names}

    def _gradients(self, batch: Batch, part: int) -> tuple[dict[str, Tensor], Sequence[Tensor | None]]:
        """Losses of one part of a batch, and their gradients."""
        recipe = self.recipe
        generator = torch.Generator(self.device).manual_seed(_seed(recipe.seed, self.place.step, part))
        draws = flow.draw(batch, generator, recipe.times, recipe.drop_audio, recipe.drop_both)
        guide = Guide(recipe.guided, recipe.guided_heads, batch.places) if recipe.guided else None
        with autocast(self.device):
            seen = flow.see(self.model, batch, draws, guide)
        losses = {"loss": flow.loss(seen.velocity, batch, draws)}
        total = losses["loss"]
        if guide is not None:
            losses |= self._side_losses(seen, batch, draws.drop_text)
            total = total + recipe.aim_weight * losses["aim"] + recipe.letter_weight * losses["letters"]
        if guide is not None and recipe.timing_weight:
            losses["timing"] = self._timing_loss(seen, batch, draws.drop_text)
            total = total + recipe.timing_weight * losses["timing"]
        if recipe.sound_weight:
            losses["sounds"] = self._sound_loss(seen, batch, draws.drop_text)
            total = total + recipe.sound_weight * losses["sounds"]
        grads = torch.autograd.grad(total, self.trained, allow_unused=True)
        return {name: value.detach() for name, value in losses.items()}, grads

    def _sound_loss(self, seen: Seen, batch: Batch, drop_text: Tensor) -> Tensor:
        """How badly the sounds of words are read off the encoded text, where text is shown."""
        shown = ["" if gone else text for text, gone in zip(batch.texts, drop_text.tolist(), strict=True)]
        said = sounds.words(shown, self.lexicon, batch.sentences.ids.shape[1])
        if said is None:
            return seen.velocity.new_zeros((), dtype=torch.float32)
        with autocast(self.device):
            return self.reader.loss(seen.text, said.to(self.device))

    def _timing_loss(self, seen: Seen, batch: Batch, drop_text: Tensor) -> Tensor:
        """How badly letters' lengths and frames' shifts are told, where text is shown."""
        assert seen.before is not None
        places = batch.places.masked_fill(drop_text[:, None], UNKNOWN)
        with autocast(self.device):
            return self.timer.loss(seen.text, seen.before, batch.sentences, places)

    def _side_losses(self, seen: Seen, batch: Batch, drop_text: Tensor) -> dict[str, Tensor]:
        """Where the guided heads look, and which letter their block's output tells; where text is shown."""
        known = (batch.places >= 0) & batch.sentences.mask & ~drop_text[:, None]
        assert seen.aim is not None and seen.middle is not None
        said = batch.sentences.ids.gather(1, batch.places.clamp_min(0))
        with autocast(self.device):
            heard = self.letters(seen.middle)
        said = said.masked_fill(~known, UNKNOWN)
        wrong = F.cross_entropy(
            heard.float().flatten(0, 1), said.flatten(), ignore_index=UNKNOWN, reduction="sum"
        )
        count = known.sum().clamp_min(1)
        return {"aim": -(seen.aim * known).sum() / count, "letters": wrong / count}

    def _stream(self) -> Iterator[tuple[list[Batch], Place]]:
        """Batches from the place on, in their parts, each with the place after it."""
        place, recipe = replace(self.place), self.recipe
        whole = Mixture(
            recipe.batch_frames, recipe.longest, recipe.pairs, recipe.seed, recipe.stretch, recipe.bare
        )
        short = replace(whole, longest=recipe.longest // 2, pairs=0.0)
        while True:
            if place.batch == 0:
                place.short = place.frames < recipe.shortest_first
            mixture = short if place.short else whole
            batches = Batches(self.store, self.mels, "train", recipe.voices, mixture, self.labels)
            for pieces in batches.epoch(place.epoch)[place.batch :]:
                rng = np.random.default_rng([recipe.seed, place.step])
                place.step, place.batch = place.step + 1, place.batch + 1
                place.frames += sum(piece.frames for piece in pieces)
                parts = [pieces[part :: recipe.abreast] for part in range(recipe.abreast)]
                yield [batches.make(part, rng) for part in parts if part], replace(place)
            place.epoch, place.batch = place.epoch + 1, 0

    def averaged(self) -> BatchedDiT:
        """A model on the averaged weights."""
        dit = DiT(self.recipe.arch, len(letters.TRAINED), SPEC.mels).to(self.device)
        dit.load_state_dict(self.average.state_dict())
        return BatchedDiT(dit.eval().requires_grad_(False))

    def save(self, out: Path | None = None) -> None:
        """Write the checkpoint; to `out` the averaged weights in half precision, for carrying."""
        state = {
            "recipe": asdict(self.recipe),
            "place": asdict(self.place),
            "dit": self.dit.state_dict(),
            "letters": self.letters.state_dict(),
            "reader": self.reader.state_dict(),
            "timer": self.timer.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        write(state, self.folder / CHECKPOINT)
        if out is not None:
            carry(self.average.state_dict(), self.recipe, self.place, out)

    def load(self) -> None:
        """Go on from the checkpoint."""
        state = read(self.folder / CHECKPOINT, self.device)
        self.place = Place(**state["place"])
        self.dit.load_state_dict(state["dit"])
        self.letters.load_state_dict(state["letters"])
        self.reader.load_state_dict(state["reader"])
        self.timer.load_state_dict(state["timer"])
        self.average.load_state_dict(state["average"])
        for optimizer, was in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(was)

    def begin_with(self, average: dict[str, Tensor]) -> None:
        """Start from weights of another run instead of chance."""
        self.dit.load_state_dict(average)
        self.average.load_state_dict(average)
        self.begun = True

    def _log(self, found: dict[str, Any]) -> None:
        place = self.place
        at = {"step": place.step, "frames": place.frames, "seconds": round(place.seconds, 1)}
        with (self.folder / LOG).open("a") as file:
            file.write(json.dumps({**at, **found}) + "\n")


class _Means:
    """Sums of losses since the last line of the log; they stay on the device until then."""

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


def ahead(items: Iterator[Item], count: int = 2) -> Iterator[Item]:
    """The items, of which the next few are made in a thread meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, items) for _ in range(count))
        try:
            while True:
                yield waiting.popleft().result()
                waiting.append(pool.submit(next, items))
        finally:
            for one in waiting:
                one.cancel()


class Examiner:
    """Speaks held-out sentences with the averaged weights, and has the listener read them."""

    def __init__(self, exam: Exam, trainer: Trainer) -> None:
        self.exam, self.trainer = exam, trainer
        path = trainer.store.folder / LISTENER
        self.listener = listener.load(path) if path.is_file() else None
        self.batch, self.texts = self._questions()
        generator = torch.Generator().manual_seed(0)
        self.noise = torch.randn(self.batch.mels.shape, generator=generator).to(trainer.device)

    def examine(self) -> dict[str, float | str]:
        """`first`: share of the mel's variance that the first step explains, from pure noise.
        `letter_errors`: of whole samples, as the listener reads them."""
        model, batch = self.trainer.averaged(), self.batch
        with autocast(self.trainer.device):
            found: dict[str, float | str] = {"first": round(self._first(model), 4)}
            if self.listener is None:
                return found
            times = time_grid(self.exam.nfe).tolist()
            mels = flow.sample(model, batch, self.noise, times, self.exam.guidance).float().cpu()
        read = [self._read(mels, row) for row in range(len(mels))]
        errors = [listener.letter_errors(heard, said) for heard, said in zip(read, self.texts, strict=True)]
        return found | {
            "letter_errors": round(float(np.mean(errors)), 4),
            "said": self.texts[0],
            "heard": read[0],
        }

    def _questions(self) -> tuple[Batch, list[str]]:
        """Replies of the held-out clips, each after another clip of its voice."""
        trainer, clips = self.trainer, self.trainer.store.clips
        mixture = Mixture(0, EXAM_FRAMES, 1.0, 0)
        batches = Batches(trainer.store, trainer.mels, "valid", trainer.recipe.voices, mixture, None)
        by_length = sorted(batches.numbers, key=lambda number: clips[number].frames)
        pieces = []
        for number in batches.numbers[:: max(len(batches.numbers) // self.exam.sentences, 1)]:
            own = [
                other for other in by_length if clips[other].voice == clips[number].voice and other != number
            ]
            reference = own[len(own) // 8]  # short ones, but not the very shortest
            frames = clips[number].frames
            pieces.append(Piece((reference, number), clips[reference].frames + frames, frames))
        pieces = pieces[: self.exam.sentences]
        rows, texts, places = zip(*(batches.joined(piece) for piece in pieces), strict=True)
        hidden = []
        for row, piece in zip(rows, pieces, strict=True):
            one = np.zeros(len(row), bool)
            one[-piece.last :] = True
            hidden.append(one)
        return collate(trainer.mels, rows, texts, places, hidden), [clips[p.clips[-1]].text for p in pieces]

    def _first(self, model: BatchedDiT) -> float:
        batch, count = self.batch, len(self.batch.mels)
        nothing = torch.zeros(count, dtype=torch.bool, device=self.trainer.device)
        draws = flow.Draws(self.noise, torch.zeros(count, device=self.trainer.device), nothing, nothing)
        with torch.inference_mode():
            guess = flow.see(model, batch, draws).velocity.float() + self.noise
        truth, guess = batch.mels[batch.hidden], guess[batch.hidden]
        return float(1 - (guess - truth).square().sum() / (truth - truth.mean(dim=0)).square().sum())

    def _read(self, mels: Tensor, row: int) -> str:
        assert self.listener is not None
        mel = mels[row][self.batch.hidden[row].cpu()]
        return self.listener.read(mel)


LISTENER = "listener.pt"
"""Beside the mels."""
EXAM_FRAMES = 800
"""Of a held-out clip, at most."""


def fresh(arch: Arch, store: Store) -> DiT:
    """A model as upstream initialises it, with zeros in modulation and output; its bias is the mean mel."""
    dit = DiT(arch, len(letters.TRAINED), SPEC.mels)
    for name, parameter in dit.named_parameters():
        if "attn_norm.linear" in name or "norm_out.linear" in name or name == "proj_out.weight":
            nn.init.zeros_(parameter)
    with torch.no_grad():
        some = np.linspace(0, len(store.mels) - 1, min(len(store.mels), 20_000)).astype(int)
        dit.proj_out.bias.copy_(torch.from_numpy(store.mels[some].astype(np.float32).mean(axis=0)))
    return dit


def pace(recipe: Recipe, step: int) -> float:
    """Share of the full learning rate: a rise, level, and a fall at the end."""
    rise = min((step + 1) / recipe.warmup, 1.0)
    left = (recipe.steps - step) / max(recipe.cooldown, 1)
    return rise * (0.5 * (1 - math.cos(math.pi * left)) if left < 1 else 1.0)


def write(state: dict[str, Any], path: Path) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    partial.replace(path)


def carry(average: dict[str, Tensor], recipe: Recipe, place: Place, folder: Path) -> None:
    """Write averaged weights in half precision, in files that are small enough to be brought back."""
    parts: list[dict[str, Tensor]] = [{}]
    room = CARRIED_BYTES
    for name, value in average.items():
        half = value.half().cpu()
        if half.nbytes > room and parts[-1]:
            parts.append({})
            room = CARRIED_BYTES
        parts[-1][name] = half
        room -= half.nbytes
    about = {"recipe": asdict(recipe), "place": asdict(place), "parts": len(parts)}
    for number, part in enumerate(parts):
        write({**about, "average": part}, folder / AVERAGE.format(number))


def weights(path: Path) -> tuple[Recipe, dict[str, Tensor]]:
    """Recipe and averaged weights of a checkpoint, or of a folder that `carry` wrote to.

    Raises ValueError when parts are missing or of different moments.
    """
    if not path.is_dir():
        state = read(path)
        return recipe_of(state), state["average"]
    first = read(path / AVERAGE.format(0))
    parts = [read(path / AVERAGE.format(number)) for number in range(first["parts"])]
    if any(part["place"] != first["place"] for part in parts):
        raise ValueError(f"{path}: its parts were not written at one time; take them from one sitting")
    whole = {name: value.float() for part in parts for name, value in part["average"].items()}
    return recipe_of(first), whole


def read(path: Path, device: str = "cpu") -> dict[str, Any]:
    """A checkpoint, or averaged weights. Raises ValueError when there is none."""
    if not path.is_file():
        raise ValueError(f"{path}: no checkpoint; `python -m export.demo train` makes one")
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def recipe_of(state: dict[str, Any]) -> Recipe:
    """The recipe that a checkpoint was made by."""
    return Recipe(**{**state["recipe"], "voices": tuple(state["recipe"]["voices"])})


def _optimizers(recipe: Recipe, dit: DiT, *extra: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside blocks, one for each thread, AdamW for the rest; or AdamW for all."""
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


def _seed(seed: int, step: int, part: int) -> int:
    return int(np.random.SeedSequence([seed, step, part]).generate_state(1, np.uint64)[0] >> np.uint64(1))

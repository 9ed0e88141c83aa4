"""Training the demo voice: the batched model, the flow, the data; and an interruption changes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import signal
from collections.abc import Iterable, Mapping
from itertools import pairwise, product
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from appliance.contract import bundle as contract
from appliance.contract.mel import log_mel
from appliance.contract.placement import SPACE, Placement
from appliance.contract.tokens import Vocabulary
from appliance.plan import Planner
from appliance.request import Features, Reference, Request, Segment, Segmentation
from appliance.text.phones.alphabet import TOKENS, tokens
from appliance.voices.rules import complete_transcript
from export.demo.commands import main
from export.demo.corpus import durations, store
from export.demo.corpus.store import Clip, Store
from export.demo.training import batches, loop, matching, train, vocoder
from export.demo.training.batches import Batch, Batches, Piece
from export.demo.training.loop import autocast
from export.demo.training.model import AttentionGuide, BatchedDiT, Sentences
from export.demo.training.muon import Muon, orthogonal
from export.demo.training.train import Trainer
from export.model.dit import DiT, upsample_index
from export.model.redraw import redraw
from export.sources.checkpoint import build_vocos, load_vocos
from tests import upstream
from tests.daemons import BUNDLE
from tests.export.demo import RECIPE, VOICES, write_store
from tests.export.small import upstream_dit

pytestmark = pytest.mark.torch

FRAMES, LONGEST = 900, 420
PLACEMENT = Placement({token: [4 + n % 5, 6 + n % 7, 9] for n, token in enumerate(TOKENS)})
STUDENT = dataclasses.replace(RECIPE, stage="student", passes=5)
VOCODER = vocoder.Recipe(steps=4, cooldown=3, pitch_steps=1, batch=2, frames=16)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def model() -> BatchedDiT:
    dit = DiT(dataclasses.replace(RECIPE, dim=64, heads=2).arch, len(TOKENS), store.SPEC.mels)
    redraw(dit, 3)
    return BatchedDiT(dit.requires_grad_(False))


@pytest.fixture
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)


def stream_of(made: Store, repeats: Mapping[str, int] = MappingProxyType({})) -> Batches:
    return Batches(made, "cpu", PLACEMENT, FRAMES, LONGEST, repeats, 0)


def make_batch(made: Store) -> Batch:
    stream = stream_of(made)
    return stream.make(stream.epoch(0)[0], np.random.default_rng(0))


def one_by_one(
    model: BatchedDiT, batch: Batch, row: int, latents: Tensor, t: float, drop: bool = False
) -> Tensor:
    """Velocity (frames, M) of the reference model for a sentence alone; dropped: without any condition."""
    frames = int(batch.sentences.frames[row])
    ids = batch.sentences.ids[row, : batch.sentences.tokens[row]]
    cond = batch.mels[row, :frames] * ~batch.hidden[row, :frames, None] * (not drop)
    embed = model.dit.text_embed
    with mock.patch.object(embed, "upsamples", False):
        text = embed(ids, frames, 2)[1:] if drop else embed(ids, frames, 1)
    text = text[:, batch.sentences.index[row, :frames]]
    found: Tensor = model.dit(latents, cond, text, torch.tensor(t))[0]
    return found


# The model


def test_each_sentence_of_a_batch_is_what_the_reference_model_gives_for_it_alone(
    made: Store, model: BatchedDiT
) -> None:
    batch = make_batch(made)
    count = len(batch.mels)
    assert len(set(batch.sentences.frames.tolist())) > 1
    dropped, t = torch.arange(count) % 2 == 1, torch.linspace(0.0, 0.9, count)
    draws = matching.Draws(torch.randn_like(batch.mels), t, dropped, dropped)
    found = matching.predict(model, batch, draws).velocity
    for row, frames in enumerate(batch.sentences.frames.tolist()):
        latents = (1 - t[row]) * draws.noise[row, :frames] + t[row] * batch.mels[row, :frames]
        wanted = one_by_one(model, batch, row, latents, float(t[row]), bool(dropped[row]))
        assert (found[row, :frames] - wanted).norm() < 2e-6 * wanted.norm()


def test_a_family_that_cannot_be_trained_here_is_refused() -> None:
    arch = dataclasses.replace(RECIPE.arch, text_embedding_average_upsampling=False)
    with pytest.raises(ValueError, match="text_embedding_average_upsampling"):
        BatchedDiT(DiT(arch, 5, 100))


def test_the_aim_is_the_guided_heads_attention_on_the_right_token(made: Store, model: BatchedDiT) -> None:
    batch = make_batch(made)
    count, mask = len(batch.mels), batch.sentences.mask
    draws = matching.Draws(torch.randn_like(batch.mels), torch.rand(count), *(torch.zeros(2, count).bool()))

    def aim(sentences: Sentences, token: int, heads: int) -> Tensor:
        guide = AttentionGuide(1, heads, torch.full_like(batch.alignment, token))
        guided = dataclasses.replace(batch, sentences=sentences)
        found = matching.predict(model, guided, draws, guide).guided
        assert found is not None
        return found[1][mask]

    one_token = dataclasses.replace(batch.sentences, index=torch.zeros_like(batch.sentences.index))
    assert aim(one_token, 0, heads=2).abs().max() < 1e-4
    shares = [aim(batch.sentences, n, heads=1).exp() for n in range(int(batch.sentences.tokens.max()))]
    torch.testing.assert_close(torch.stack(shares).sum(dim=0), torch.ones(int(mask.sum())))
    assert max(float(share.max()) for share in shares) < 0.9


# The flow


@pytest.mark.parametrize("dropped", ["nothing", "audio", "both"])
def test_the_loss_is_that_of_upstreams_forward(
    made: Store, model: BatchedDiT, dropped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(made)
    # Upstream's batches let a padded sentence hear its padding; ours do not.
    frames, said = int(batch.sentences.frames.min()), batch.sentences
    even = torch.stack([upsample_index(int(tokens), frames) for tokens in said.tokens])
    cut = Sentences(said.ids, said.tokens, torch.full_like(said.frames, frames), even)
    batch = Batch(batch.mels[:, :frames], cut, batch.hidden[:, :frames], batch.alignment[:, :frames])
    count = len(batch.mels)
    everyone, nobody = torch.ones(count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)
    drops = (nobody if dropped == "nothing" else everyone, everyone if dropped == "both" else nobody)
    draws = matching.Draws(torch.randn_like(batch.mels), torch.rand(count), *drops)
    theirs = upstream_dit(model.dit.arch, model.dit.vocab_size, model.dit.state_dict())
    cfm = upstream.cfm_class()(transformer=theirs)
    _fix_draws(monkeypatch, cfm, batch, draws, dropped)
    wanted, *_ = cfm.eval()(batch.mels, batch.sentences.ids, lens=batch.sentences.frames)
    velocity = matching.predict(model, batch, draws).velocity
    found = matching.distance(velocity, batch.mels - draws.noise, batch)
    assert found.item() == pytest.approx(wanted.item(), rel=2e-6)


def _fix_draws(
    monkeypatch: pytest.MonkeyPatch, cfm: Any, batch: Batch, draws: matching.Draws, dropped: str
) -> None:
    inside = type(cfm).forward.__globals__
    monkeypatch.setitem(inside, "mask_from_frac_lengths", lambda *_: batch.hidden.clone())
    # It draws twice: whether the audio is dropped, then whether both are.
    rolls = iter({"nothing": (0.99, 0.99), "audio": (0.0, 0.99), "both": (0.99, 0.0)}[dropped])
    assert inside["random"] is random.random
    monkeypatch.setitem(inside, "random", lambda: next(rolls))
    monkeypatch.setattr(torch, "randn_like", lambda *_: draws.noise)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: draws.t)


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize(("step", "interval"), [(6, 0), (7, 0), (10, 3)])
def test_a_student_aims_where_its_guided_teacher_arrives_from_where_itself_did(
    step: int, interval: int, made: Store, model: BatchedDiT, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(STUDENT, dim=64, heads=2, strength=1.5)
    state = {"recipe": dataclasses.asdict(recipe), "average": model.dit.state_dict()}
    loop.write(state, tmp_path / train.AVERAGE)
    trainer = Trainer(recipe, made, tmp_path)
    trainer.initialise_from(tmp_path)
    trainer.progress.step = step
    redraw(trainer.dit, 4)
    batch = make_batch(made)
    loss = trainer.losses(batch)[1]["loss"].item()

    noise = torch.randn(batch.mels.shape, generator=trainer.generator())
    # Upstream's uniform grid of 10 steps with its sway, of which each of the student's five has two.
    times = [1 - math.cos(math.pi / 2 * n / 10) for n in range(11)]
    place = 2 * interval
    squares, count = 0.0, 0
    for row, frames in enumerate(batch.sentences.frames.tolist()):
        latents = noise[row, :frames]
        for now, then in pairwise(times[: place + 1 : 2]):
            with torch.no_grad():
                latents = latents + (then - now) * one_by_one(trainer.model, batch, row, latents, now)
            given = ~batch.hidden[row, :frames]
            latents[given] = ((1 - then) * noise[row, :frames] + then * batch.mels[row, :frames])[given]
        begun, grid = latents, times[place : place + 3]
        for now, then in pairwise(grid):
            told, plain = (one_by_one(model, batch, row, latents, now, drop) for drop in (False, True))
            latents = latents + (then - now) * (told + 1.5 * (told - plain))
        wanted = (latents - begun) / (grid[-1] - grid[0])
        with torch.no_grad():
            found = one_by_one(trainer.model, batch, row, begun, grid[0])
        spoken = batch.hidden[row, :frames]
        squares += float((found - wanted)[spoken].square().sum())
        count += int(spoken.sum()) * store.SPEC.mels
    assert loss == pytest.approx(squares / count, rel=1e-4)


def test_draws_depend_on_the_generator_alone(made: Store) -> None:
    batch = make_batch(made)
    one, two = (matching.draw(batch, torch.Generator().manual_seed(7)) for _ in range(2))
    _same(vars(one), vars(two))
    many = [matching.draw(batch, torch.Generator().manual_seed(seed)) for seed in range(100)]
    names = ("t", "drop_audio", "drop_text")
    t, audio, text = (torch.cat([vars(draws)[name] for draws in many]) for name in names)
    assert ((t >= 0) & (t <= 1)).all()
    # Half of the squares of uniform times are below a quarter.
    assert t.median().item() == pytest.approx(0.25, abs=0.05)
    assert (audio | ~text).all(), "a sentence without text keeps no reference"
    assert text.float().mean().item() == pytest.approx(0.1, abs=0.04)
    assert audio.float().mean().item() == pytest.approx(1 - 0.9**2, abs=0.05)


# The data


def test_a_student_hears_every_text_in_any_voice_as_the_device_lays_it_out(made: Store) -> None:
    stream = Batches(made, "cpu", PLACEMENT, FRAMES, LONGEST, {}, 0, replies=True)
    epoch = stream.epoch(0)
    pieces = [piece for batch in epoch for piece in batch]
    pairs = [tuple(made.clips[number] for number in piece.clips) for piece in pieces]
    assert {(given.voice, said.voice) for given, said in pairs} == set(product(VOICES, VOICES))
    assert len({said.text for _, said in pairs}) == len(pairs) >= 0.8 * len(stream.numbers)
    more = []
    for piece, (given, said) in zip(pieces, pairs, strict=True):
        begun = given.frames + batches.SILENCE_FRAMES
        device = PLACEMENT.frames(begun, [*tokens(given.phones), SPACE], tokens(said.phones), 1.0)
        more.append(piece.last / (device - begun))
    assert np.exp(np.mean(np.log(more))) == pytest.approx(1.1, abs=0.05)
    made_of = stream.make(epoch[0], np.random.default_rng(0))
    for row, piece in enumerate(epoch[0]):
        hidden = made_of.hidden[row, : piece.frames]
        assert not hidden[: -piece.last].any() and hidden[-piece.last :].all()
    with pytest.raises(ValueError, match="no two clips together have up to 150 frames"):
        Batches(made, "cpu", PLACEMENT, FRAMES, 150, {}, 0, replies=True).epoch(0)


def test_an_epoch_has_every_sentence_once_and_keeps_to_its_frames(made: Store) -> None:
    stream = stream_of(made, {VOICES[1]: 2})
    epoch = stream.epoch(3)
    twice = [n for n in stream.numbers if made.clips[n].voice == VOICES[1]]
    assert sorted(piece.clips[-1] for batch in epoch for piece in batch) == sorted([*stream.numbers, *twice])
    assert any(len(piece.clips) == 2 for batch in epoch for piece in batch)
    for batch in epoch:
        assert len(batch) == 1 or len(batch) * max(piece.frames for piece in batch) <= FRAMES
        for piece in batch:
            assert piece.frames <= LONGEST
            assert len({made.clips[number].voice for number in piece.clips}) == 1
    assert stream.epoch(3) == epoch != stream.epoch(4)


def on_the_device(first: Clip, second: Clip, begun: int, last: int) -> Segment:
    """Plan of a reply of `last` frames to a reference of `begun`."""
    base = contract.read(BUNDLE, verify=False).manifest
    manifest = dataclasses.replace(
        base,
        arch=dataclasses.replace(base.arch, text_embedding_average_upsampling=True),
        text=contract.Text(("en",), "phones", duration="tokens", durations=dict(PLACEMENT.table)),
    )
    samples = np.zeros(begun * store.SPEC.hop, np.float32)
    features = Features(samples, np.zeros((begun + 1, store.SPEC.mels), np.float32), 0.1)
    reference = Reference(complete_transcript(first.text), features)
    planner = Planner(manifest, Vocabulary(TOKENS, "phones"), lambda *_: reference, tokens)
    pace = [PLACEMENT.weights(some).sum() for some in ([*tokens(first.phones), SPACE], tokens(second.phones))]
    rate = begun / pace[0] * pace[1] / (last - 0.5)
    request = Request(second.text, "", 4, 1, 0.0, Segmentation.UPSTREAM, speaking_rate=rate)
    [segment] = planner.plan(request)
    return segment


# The reference is a question, or none.
@pytest.mark.parametrize(("pair", "longer"), [((0, 1), 0), ((1, 0), 40)])
def test_a_reply_is_joined_as_on_the_device_and_stretched(
    made: Store, pair: tuple[int, int], longer: int
) -> None:
    stream = stream_of(made)
    numbers = tuple(stream.numbers[n] for n in pair)
    first, second = (made.clips[n] for n in numbers)
    last = second.frames + longer
    rows, ids, places, index = stream.joined(Piece(numbers, 0, last))
    before, after = [*tokens(first.phones), SPACE], tokens(second.phones)
    assert [TOKENS[n] for n in ids] == [*before, *after]
    begun = first.frames + batches.SILENCE_FRAMES
    assert len(rows) == len(places) == len(index) == begun + last
    device = on_the_device(first, second, begun, last)
    assert (device.reference_frames, device.frames) == (begun, begun + last)
    assert ids.tolist() == device.ids.tolist() and index.tolist() == device.upsample_index.tolist()
    mel = stream.frames_at(torch.from_numpy(rows)[None])[0].numpy()
    heard = made.mels.astype(np.float32)
    np.testing.assert_array_equal(mel[: first.frames], heard[first.start :][: first.frames])
    at, own = np.linspace(0, second.frames - 1, last), np.arange(second.frames)
    reply = heard[second.start :][: second.frames]
    for band in (0, 50, 99):
        np.testing.assert_allclose(mel[-last:, band], np.interp(at, own, reply[:, band]), atol=1e-4)
    assert [*places[begun - 1 : begun + 1]] == [len(before) - 1, len(before)] and (np.diff(places) >= 0).all()
    wanted = np.interp(at, own, made.spoken[second.start :][: second.frames]) + len(before)
    np.testing.assert_allclose(places[-last:], wanted, atol=1)


def test_clips_are_stretched_now_and_then(made: Store) -> None:
    stream = stream_of(made)
    pieces = [piece for number in range(3) for batch in stream.epoch(number) for piece in batch]
    ratios = np.array([piece.last / made.clips[piece.clips[-1]].frames for piece in pieces])
    assert 0.2 < (ratios != 1).mean() < 0.8 and ratios.min() < 0.95 and ratios.max() > 1.05


def test_a_phone_lasts_as_long_as_it_does_in_the_mean_where_it_stands(made: Store) -> None:
    found = durations.table(made)
    assert set(found) == {token for c in made.clips if c.split == "train" for token in tokens(c.phones)}
    assert all(len(lasting) == 3 and min(lasting) > 0 for lasting in found.values())
    ending = [c for c in made.clips if c.split == "train" and c.phones[-1] == "."]
    lasts = [(made.spoken[c.start :][: c.frames] == len(tokens(c.phones)) - 1).sum() for c in ending]
    assert found["."][2] == pytest.approx(np.mean(lasts), abs=0.01)


class Both(loop.Team):
    """Two processes in one: the gradients of the other's batch are made here."""

    def __init__(self, trainer: Trainer) -> None:
        self.rank, self.size, self.trainer = 0, 2, trainer

    def agreed(self, *values: float) -> list[float]:
        return list(values)

    def average(self, modules: Iterable[torch.nn.Module]) -> None:
        trainer, some = self.trainer, [p for module in modules for p in module.parameters()]
        mine, step = [p.grad for p in some], trainer.progress.step
        for p in some:
            p.grad = None
        self.rank = 1
        pieces = trainer.data.epoch(0)[2 * step + 1]
        rng = np.random.default_rng([trainer.recipe.seed, step, 1])
        trainer.losses(trainer.data.make(pieces, rng))[0].backward()
        self.rank = 0
        for p, own in zip(some, mine, strict=True):
            p.grad = None if own is None or p.grad is None else (own + p.grad) / 2


def test_processes_train_together_as_one_that_takes_the_batches_of_both(made: Store, tmp_path: Path) -> None:
    where = f"--corpus {made.folder} --folder {tmp_path / 'run'} --threads 1 --device cpu --processes 2"
    small = "--dim 32 --depth 1 --heads 1 --text-dim 16 --text-layers 1 --batch-frames 500 --longest 420"
    assert main(f"train {where} {small} --cooldown 1 --warmup 1 --steps 2 --guided 1".split()) == 0
    whole = loop.read(tmp_path / "run" / loop.CHECKPOINT)
    assert (whole["place"]["step"], whole["place"]["batch"]) == (2, 4)
    recipe, _ = train.read_average(tmp_path / "run" / loop.CHECKPOINT)
    torch.set_num_threads(1)
    alone = Trainer(recipe, made, tmp_path / "alone")
    alone.team = Both(alone)
    alone.run(60)
    assert alone.progress.frames == whole["place"]["frames"]
    for name, value in alone.dit.state_dict().items():
        torch.testing.assert_close(value, whole["dit"][name], rtol=1e-3, atol=1e-5)


# Training


@pytest.mark.parametrize("recipe", [RECIPE, STUDENT, VOCODER], ids=["learn", "student", "vocoder"])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(made: Store, tmp_path: Path, recipe: Any) -> None:
    kind: Any = vocoder.Trainer
    if recipe is not VOCODER:
        kind, recipe = Trainer, dataclasses.replace(recipe, longest=300)
        Trainer(recipe, made, tmp_path).publish(tmp_path / "teacher")

    def trainer(name: str) -> Any:
        begun = kind(recipe, made, tmp_path / name)
        if getattr(recipe, "stage", "") == "student":
            begun.initialise_from(tmp_path / "teacher")
        if (tmp_path / name / loop.CHECKPOINT).exists():
            begun.load()
        return begun

    whole = trainer("whole")
    whole.run(60)
    for _ in range(3):
        sitting = trainer("broken")
        sitting.stopping = True
        sitting.run(60)
    broken = trainer("broken")
    assert broken.progress.step == 3
    broken.run(60)
    assert dataclasses.replace(broken.progress, seconds=0) == dataclasses.replace(whole.progress, seconds=0)
    for name, module in whole.modules.items():
        _same(broken.modules[name].state_dict(), module.state_dict())
    _same(broken.average.module.state_dict(), whole.average.module.state_dict())
    if recipe is VOCODER:  # as the exporter reads it
        config, weights = load_vocos(tmp_path / "whole" / "vocoder")
        assert config == vocoder.CONFIG
        _same(build_vocos(config, weights).state_dict(), whole.average.module.state_dict())


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def test_training_lowers_the_loss(made: Store, tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, steps=60, cooldown=1)
    batch, losses = make_batch(made), []
    draws = matching.draw(batch, torch.Generator().manual_seed(1))
    trainer = Trainer(recipe, made, tmp_path)
    for _ in range(2):
        averaged = DiT(recipe.arch, len(TOKENS), store.SPEC.mels)
        averaged.load_state_dict(trainer.average.module.state_dict())
        with torch.no_grad():
            found = matching.predict(BatchedDiT(averaged), batch, draws).velocity
        losses.append(matching.distance(found, batch.mels - draws.noise, batch))
        trainer.run(60)
    assert losses[1] < 0.85 * losses[0]


def test_the_learning_rate_rises_stays_and_falls(made: Store, tmp_path: Path) -> None:
    trainer = Trainer(dataclasses.replace(RECIPE, steps=100, cooldown=40, warmup=10), made, tmp_path)
    rates = []
    for trainer.progress.step in range(100):
        rates.append(trainer.rate_factor())
    assert rates[0] == 0.1 and rates[10:60] == [1.0] * 50 and rates[-1] < 0.01
    assert all(a >= b for a, b in pairwise(rates[60:]))
    trainer.planned_s, trainer.progress.seconds = 100.0, 99.0
    assert trainer.rate_factor() < 0.01


def test_muon_steps_along_the_nearest_orthogonal_matrix() -> None:
    torch.manual_seed(0)
    for shape in ((12, 20), (20, 12)):
        matrix = torch.randn(3, *shape)
        for one, found in zip(matrix, orthogonal(matrix), strict=True):
            u, _, vh = torch.linalg.svd(one, full_matrices=False)
            inside = u.mT @ found @ vh.mT
            assert (inside.diagonal() > 0.6).all() and (inside.diagonal() < 1.3).all()
            torch.testing.assert_close(u @ inside.diagonal().diag() @ vh, found, rtol=0, atol=1e-4)
        weight = torch.nn.Parameter(matrix[0].clone())
        weight.grad = matrix[1].clone()
        Muon([weight], lr=0.1, weight_decay=0.5).step()
        # The first of a momentum from zero points where the gradient does.
        with autocast("cpu"):
            step = 0.2 * 20**0.5 * 0.1 * orthogonal(matrix[1:2])[0].float()
        torch.testing.assert_close(weight.detach(), matrix[0] * 0.95 - step, rtol=1e-4, atol=1e-5)


def test_the_average_is_that_of_its_formula(made: Store, tmp_path: Path) -> None:
    trainer = Trainer(RECIPE, made, tmp_path)
    name = "proj_out.weight"
    weight, average = trainer.dit.get_parameter(name), trainer.average.module.get_parameter(name)
    wanted = torch.zeros(())
    for trainer.progress.step in range(12):
        value = float(trainer.progress.step + 1)
        torch.nn.init.constant_(weight, value)
        trainer.average.update_parameters(trainer.dit)
        keep = min(loop.DECAY, (1 + trainer.progress.step) / (10 + trainer.progress.step))
        wanted = keep * wanted + (1 - keep) * value if value > 1 else torch.tensor(value)
    torch.testing.assert_close(average.detach(), wanted.expand_as(average))


def test_the_commands_train_and_go_on(
    made: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acts: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", lambda number, act: acts.setdefault(number, act))
    monkeypatch.setattr(loop, "LOG_EVERY", 2)
    small = "--cooldown 1 --dim 32 --depth 2 --heads 1 --text-dim 16 --text-layers 1 --batch-frames 500"
    small += " --guided 1"
    where = f"--corpus {made.folder} --folder {tmp_path / 'run'} --threads 1 --device cpu"
    for steps in (2, 4):
        command = f"train {where} {small} --steps {steps} --out {tmp_path / 'out'} --repeats {VOICES[0]}=2"
        assert main(command.split()) == 0
    assert set(acts) == {signal.SIGINT, signal.SIGTERM}
    log = [json.loads(line) for line in (tmp_path / "run" / loop.LOG).read_text().splitlines()]
    assert [line["step"] for line in log] == [2, 4]
    recipe, average = train.read_average(tmp_path / "out")
    assert recipe.repeats == {VOICES[0]: 2}
    student = f"train {where} {small} --steps 1 --stage student --begin-with {tmp_path / 'out'}"
    assert main(student.replace("/run ", "/student ").split()) == 0
    recipe, learnt = train.read_average(tmp_path / "student" / loop.CHECKPOINT)
    assert recipe.stage == "student" and learnt.keys() == average.keys()
    alone = f"train {where} {small} --steps 2 --stage student".replace("/run ", "/student ")
    assert main(alone.split()) == 1
    assert "no teacher without --begin-with" in capsys.readouterr().err


def test_weights_of_older_recipes_are_read(made: Store, tmp_path: Path) -> None:
    """A checkpoint and an average of before options were dropped, in the layout that they have since."""
    trainer = Trainer(RECIPE, made, tmp_path / "run")
    trainer.save(tmp_path / "out")
    for path in (tmp_path / "run" / loop.CHECKPOINT, tmp_path / "out" / train.AVERAGE):
        state = loop.read(path)
        assert state.keys() >= {"recipe", "place", "average"}
        state["recipe"] |= {"pairs": 0.5, "times": "early", "drop_audio": 0.1, "guided_heads": 2}
        loop.write(state, path)
    assert loop.read(tmp_path / "run" / loop.CHECKPOINT).keys() >= {"dit", "phones", "optimizers"}
    recipe, average = train.read_average(tmp_path / "out")
    assert recipe == RECIPE
    for name, value in train.read_average(tmp_path / "run" / loop.CHECKPOINT)[1].items():
        torch.testing.assert_close(average[name], value, rtol=1e-3, atol=1e-6)
    assert torch.equal(average["rotary_embed.inv_freq"], trainer.dit.rotary_embed.inv_freq)
    trainer.load()


# The vocoder


def test_the_vocoder_hears_the_same_mels_as_everyone(made: Store) -> None:
    wave = (made.audio[: made.clips[0].samples] / store.FULL_SCALE).astype(np.float32)
    found = vocoder.log_mel(torch.from_numpy(wave)[None])[0].numpy()
    np.testing.assert_allclose(found, log_mel(wave, store.SPEC), atol=2e-3)


def test_excerpts_have_the_pitch_of_their_frames() -> None:
    frames, hop = np.array([60, 9, 80]), vocoder.CONFIG.hop
    starts, begins = np.cumsum(frames) - frames, hop * (np.cumsum(frames - 1) - frames + 1)
    clips = [
        store.Clip("", "", "", "", "train", int(n), int(n - 1) * hop, int(start), int(begin))
        for n, start, begin in zip(frames, starts, begins, strict=True)
    ]
    marks = [100 * i + np.arange(n) for i, n in enumerate(frames, start=1)]
    audio = np.concatenate([np.repeat(mark[:-1], hop) for mark in marks]).astype(np.int16)
    pitch = np.concatenate(marks).astype(np.float16)
    whole = SimpleNamespace(clips=clips, audio=audio, pitch=pitch)
    wave, hz = vocoder._Excerpts(whole, "cpu").draw(np.random.default_rng(0), 50, 16)  # type: ignore[arg-type]
    assert wave.shape == (50, 16 * hop) and hz.shape == (50, 17)
    gains = wave[:, ::hop] * store.FULL_SCALE / hz[:, :-1]
    torch.testing.assert_close(gains, gains[:, :1].expand(-1, 16), rtol=1e-5, atol=0)
    assert gains.min() > 0.39 and gains.max() < 1.42 and gains[:, 0].std() > 0.1
    assert {int(first) // 100 for first in hz[:, 0]} == {1, 3}


def test_the_pitch_is_learned_from_what_is_voiced() -> None:
    torch.manual_seed(0)
    pitch = vocoder.Pitch(4, 32, 2)
    mels, hz = torch.randn(2, 30, 4), 80 * 2 ** (2 * torch.rand(2, 30)) * (torch.arange(30) > 9)
    optimizer = torch.optim.Adam(pitch.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        vocoder.pitch_loss(pitch, mels, hz).backward()
        optimizer.step()
    found = pitch.hz(mels).detach()
    assert torch.equal(found > 0, hz > 0)
    assert (found[hz > 0] / hz[hz > 0]).log().abs().median() < 0.02

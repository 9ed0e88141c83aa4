"""Training the demo voice: the batched model, the flow, the data; and an interruption changes nothing."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from appliance.contract.mel import log_mel
from appliance.contract.tokens import Vocabulary
from appliance.plan import spoken_transcript
from appliance.text.chinese import to_tokens
from appliance.voices.reference import complete_transcript
from export.checkpoint import build_vocos, load_vocos
from export.demo import (
    alphabet,
    batches,
    ctc,
    dataset,
    durations,
    matching,
    plot,
    preparation,
    train,
    vocoder_train,
)
from export.demo.batches import Batch, Batches, Mels, Mixture, Piece
from export.demo.commands import main
from export.demo.dataset import Store
from export.demo.discriminators import Discriminators
from export.demo.folder_lock import folder_lock
from export.demo.model import AttentionGuide, BatchedDiT, Sentences
from export.demo.train import Trainer, prefetch, rate_factor
from export.model.dit import DiT, sample, upsample_index
from export.model.redraw import redraw
from tests import upstream
from tests.export.demo import RECIPE, VOICES, write_corpus, write_store

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def made(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(corpus, tmp_path_factory.mktemp("mels"))


@pytest.fixture(scope="module")
def model() -> BatchedDiT:
    dit = DiT(dataclasses.replace(RECIPE, dim=64, heads=2).arch, len(alphabet.TRAINED), dataset.SPEC.mels)
    redraw(dit, 3)
    return BatchedDiT(dit.requires_grad_(False))


def make_batch(made: Store, mixture: Mixture | None = None, number: int = 0) -> Batch:
    mixture = mixture or Mixture(900, 420, 0.5, 0)
    labels = ctc.labels(made)
    stream = Batches(made, Mels(made, "cpu"), "train", VOICES, mixture, labels)
    return stream.make(stream.epoch(0)[number], np.random.default_rng(number))


# The model


def test_each_sentence_of_a_batch_is_what_the_reference_model_gives_for_it_alone(
    made: Store, model: BatchedDiT
) -> None:
    batch = make_batch(made)
    count = len(batch.mels)
    assert len(set(batch.sentences.frames.tolist())) > 1
    nothing, every_second = torch.zeros(count, dtype=torch.bool), torch.arange(count) % 2 == 1
    t = torch.linspace(0.0, 0.9, count)
    draws = matching.Draws(torch.randn_like(batch.mels), t, nothing, every_second)
    found = matching.predict(model, batch, draws).velocity
    for row in range(count):
        frames = int(batch.sentences.frames[row])
        ids = batch.sentences.ids[row, : batch.sentences.tokens[row]]
        mel, noise = batch.mels[row, :frames], draws.noise[row, :frames]
        cond = mel * ~batch.hidden[row, :frames, None]
        text = (
            model.dit.text_embed(ids, frames, 2)[1:]
            if every_second[row]
            else model.dit.text_embed(ids, frames, 1)
        )
        wanted = model.dit((1 - t[row]) * noise + t[row] * mel, cond, text, t[row])[0]
        assert (found[row, :frames] - wanted).norm() < 2e-6 * wanted.norm()


@hypothesis.given(st.integers(1, 40), st.integers(0, 200))
def test_frames_are_shared_among_tokens_as_upstream_shares_them(tokens: int, more: int) -> None:
    frames = tokens + more
    lengths = torch.tensor([frames, frames])
    said = Sentences(torch.zeros(2, tokens), torch.tensor([tokens, 1]), lengths, frames)
    assert torch.equal(said.upsample_index[0], upsample_index(tokens, frames))
    assert not said.upsample_index[1].any()


def test_a_family_that_cannot_be_trained_here_is_refused() -> None:
    arch = dataclasses.replace(RECIPE.arch, text_embedding_average_upsampling=False)
    with pytest.raises(ValueError, match="text_embedding_average_upsampling"):
        BatchedDiT(DiT(arch, 5, 100))


def test_the_aim_is_the_guided_heads_attention_on_the_right_token(made: Store, model: BatchedDiT) -> None:
    batch = make_batch(made)
    count = len(batch.mels)
    everything = torch.full_like(batch.alignment, 0).masked_fill(~batch.sentences.mask, -1)
    one_token = dataclasses.replace(batch.sentences, tokens=torch.ones(count, dtype=torch.int64))
    draws = matching.Draws(torch.randn_like(batch.mels), torch.rand(count), *(torch.zeros(2, count).bool()))
    # With a single token all frames are the right ones, so nothing of the attention is elsewhere.
    seen = matching.predict(
        model, dataclasses.replace(batch, sentences=one_token), draws, AttentionGuide(1, 2, everything)
    )
    assert seen.log_attention is not None
    assert seen.log_attention[batch.sentences.mask].abs().max() < 1e-4
    aimed = matching.predict(model, batch, draws, AttentionGuide(2, 1, batch.alignment)).log_attention
    assert aimed is not None
    assert (aimed[batch.sentences.mask] < 0).all()


def test_a_letter_lasts_as_many_frames_as_belong_to_it(made: Store) -> None:
    batch = make_batch(made)
    known = (batch.alignment >= 0) & batch.sentences.mask
    found = durations.lengths(batch.alignment, known, batch.sentences.ids.shape[1])
    for row, places in enumerate(batch.alignment):
        wanted = np.bincount(places[known[row]].numpy(), minlength=found.shape[1])
        np.testing.assert_array_equal(found[row], wanted)


def test_what_the_timer_learns_is_lengths_and_shifts_where_text_is_shown(made: Store) -> None:
    batch = make_batch(made)
    torch.manual_seed(0)
    timer = durations.DurationHead(8, 8)
    count = batch.sentences.ids.shape[1]
    lasting = durations.lengths(batch.alignment, (batch.alignment >= 0) & batch.sentences.mask, count)
    encoded = torch.randn(*lasting.shape, 8)
    before = torch.randn(*batch.alignment.shape, 8)
    shifted = batch.alignment - batch.sentences.upsample_index
    # Both answers are in the first of the numbers; its opposite keeps it through the norm.
    for given, answer in ((encoded, lasting.log1p()), (before, shifted.float())):
        given[..., 0], given[..., 1] = answer, -answer
    optimizer = torch.optim.Adam(timer.parameters(), 0.03)
    losses = []
    for _ in range(300):
        losses.append(timer.loss(encoded, before, batch.sentences, batch.alignment))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.2 * losses[0]
    hidden = batch.alignment.clone()
    hidden[1:] = -1
    one = Sentences(
        *(part[:1] for part in (batch.sentences.ids, batch.sentences.tokens, batch.sentences.frames)),
        batch.sentences.longest,
    )
    alone = timer.loss(encoded[:1], before[:1], one, batch.alignment[:1])
    torch.testing.assert_close(timer.loss(encoded, before, batch.sentences, hidden), alone)


def test_timing_reaches_the_text_and_the_blocks_before_the_guided_one(made: Store) -> None:
    batch = make_batch(made)
    dit = DiT(RECIPE.arch, len(alphabet.TRAINED), dataset.SPEC.mels)
    redraw(dit, 3)
    generator = torch.Generator().manual_seed(0)
    draws = matching.draw(batch, generator, "early", 0.0, 0.0)
    seen = matching.predict(BatchedDiT(dit), batch, draws, AttentionGuide(2, 1, batch.alignment))
    assert seen.guided_input is not None
    timer = durations.DurationHead(RECIPE.text_dim, RECIPE.dim)
    timer.loss(seen.encoded_text, seen.guided_input, batch.sentences, batch.alignment).backward()
    touched = {name for name, parameter in dit.named_parameters() if parameter.grad is not None}
    assert any(name.startswith("transformer_blocks.0.") for name in touched)
    assert any(name.startswith("text_embed.") for name in touched)
    assert not any(
        name.startswith("transformer_blocks.1.") or name.startswith("proj_out") for name in touched
    )


# The flow


@pytest.mark.parametrize("dropped", ["nothing", "audio", "both"])
def test_the_loss_is_that_of_upstreams_forward(
    made: Store, model: BatchedDiT, dropped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = _of_one_length(make_batch(made))
    count = len(batch.mels)
    everyone, nobody = torch.ones(count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)
    drops = (nobody if dropped == "nothing" else everyone, everyone if dropped == "both" else nobody)
    draws = matching.Draws(torch.randn_like(batch.mels), torch.rand(count), *drops)
    arch = {**dataclasses.asdict(model.dit.arch), "text_num_embeds": model.dit.vocab_size, "mel_dim": 100}
    theirs = upstream.dit_class()(**arch)
    theirs.load_state_dict(model.dit.state_dict())
    cfm = upstream.cfm_class()(transformer=theirs)
    _fix_draws(monkeypatch, cfm, batch, draws, dropped)
    wanted, *_ = cfm.eval()(batch.mels, batch.sentences.ids, lens=batch.sentences.frames)
    found = matching.loss(matching.predict(model, batch, draws).velocity, batch, draws)
    assert found.item() == pytest.approx(wanted.item(), rel=2e-6)


def _of_one_length(batch: Batch) -> Batch:
    """Upstream's batches let a padded sentence hear its padding; ours do not."""
    frames = int(batch.sentences.frames.min())
    said = batch.sentences
    cut = Sentences(said.ids, said.tokens, torch.full_like(said.frames, frames), frames)
    return Batch(
        batch.mels[:, :frames], cut, batch.hidden[:, :frames], batch.alignment[:, :frames], batch.texts
    )


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


def test_a_batch_is_sampled_as_the_reference_samples_each_sentence(made: Store, model: BatchedDiT) -> None:
    batch = make_batch(made, Mixture(1300, 420, 1.0, 0))
    hidden = torch.zeros_like(batch.hidden)
    given = 20
    for row, frames in enumerate(batch.sentences.frames):
        hidden[row, given:frames] = True
    batch = dataclasses.replace(batch, hidden=hidden)
    noise, times = torch.randn_like(batch.mels), [0.0, 0.1, 0.4, 1.0]
    found = matching.sample(model, batch, noise, times, 2.0)
    for row in range(len(noise)):
        frames = int(batch.sentences.frames[row])
        ids = batch.sentences.ids[row, : batch.sentences.tokens[row]]
        wanted = sample(model.dit, batch.mels[row, :given], ids, frames, noise[row, :frames], times)
        assert (found[row, :frames] - wanted).norm() < 5e-6 * wanted.norm()


@pytest.mark.parametrize("times", ["uniform", "early", "earliest", "logit-normal"])
def test_draws_depend_on_the_generator_alone(made: Store, times: matching.Times) -> None:
    batch = make_batch(made)
    one, two = (matching.draw(batch, torch.Generator().manual_seed(7), times, 0.3, 0.2) for _ in range(2))
    for field in dataclasses.fields(one):
        assert torch.equal(getattr(one, field.name), getattr(two, field.name))
    assert ((one.t >= 0) & (one.t <= 1)).all()
    assert (one.drop_audio | ~one.drop_text).all(), "a sentence without text keeps no reference"


# The data


def test_an_epoch_has_every_sentence_once_and_keeps_to_its_frames(made: Store) -> None:
    mixture = Mixture(900, 420, 0.5, 0)
    stream = Batches(made, Mels(made, "cpu"), "train", VOICES, mixture, None)
    epoch = stream.epoch(3)
    assert sorted(piece.clips[-1] for batch in epoch for piece in batch) == sorted(stream.numbers)
    assert any(len(piece.clips) == 2 for batch in epoch for piece in batch)
    for batch in epoch:
        assert len(batch) == 1 or len(batch) * max(piece.frames for piece in batch) <= mixture.frames
        assert all(piece.frames <= mixture.longest for piece in batch)
        for piece in batch:
            assert len({made.clips[number].voice for number in piece.clips}) == 1
    assert stream.epoch(3) == epoch
    assert stream.epoch(4) != epoch


def test_a_pair_is_joined_as_the_device_joins_reference_and_reply(made: Store) -> None:
    stream = Batches(made, Mels(made, "cpu"), "train", VOICES, Mixture(900, 420, 0.5, 0), ctc.labels(made))
    first, second = stream.numbers[:2]
    rows, text, places = stream.joined(Piece((first, second), 0, made.clips[second].frames))
    a, b = made.clips[first], made.clips[second]
    transcript = spoken_transcript(complete_transcript(a.text))
    assert text == transcript + b.text
    assert len(rows) == len(places) == a.frames + batches.silence_frames() + b.frames
    mel = stream.mels[torch.from_numpy(rows)[None]][0].numpy()
    np.testing.assert_array_equal(mel[: a.frames], made.mel(a))
    np.testing.assert_array_equal(mel[-b.frames :], made.mel(b))
    assert places[-1] < len(text)
    assert places[a.frames + batches.silence_frames()] == len(transcript)
    assert (np.diff(places) >= 0).all()


def test_a_stretched_reply_keeps_its_reference_its_order_and_its_text(made: Store) -> None:
    mixture = Mixture(900, 420, 0.5, 0, stretch=0.1)
    stream = Batches(made, Mels(made, "cpu"), "train", VOICES, mixture, ctc.labels(made))
    pieces = [piece for batch in stream.epoch(0) for piece in batch]
    own = np.array([made.clips[piece.clips[-1]].frames for piece in pieces])
    ratios = np.array([piece.last for piece in pieces]) / own
    assert 0.2 < (ratios != 1).mean() < 0.8 and ratios.min() < 0.95 and ratios.max() > 1.05
    piece = next(
        piece
        for piece in pieces
        if len(piece.clips) == 2 and piece.last != made.clips[piece.clips[-1]].frames
    )
    rows, text, places = stream.joined(piece)
    a, b = (made.clips[number] for number in piece.clips)
    assert len(rows) == len(places) == piece.frames == a.frames + batches.silence_frames() + piece.last
    mel = stream.mels[torch.from_numpy(rows)[None]][0].numpy()
    np.testing.assert_array_equal(mel[: a.frames], made.mel(a))
    at = np.linspace(0, b.frames - 1, piece.last)
    for band in (0, 50, 99):
        wanted = np.interp(at, np.arange(b.frames), made.mel(b)[:, band])
        np.testing.assert_allclose(mel[-piece.last :, band], wanted, atol=1e-4)
    assert (np.diff(places) >= 0).all() and text.endswith(b.text)
    unhurried = ctc.labels(made)[b.start : b.start + b.frames] + len(text) - len(b.text)
    np.testing.assert_allclose(places[-piece.last :], np.interp(at, np.arange(b.frames), unhurried), atol=1)


def test_a_reply_without_its_full_stop_sounds_as_with_it(made: Store) -> None:
    stream = Batches(
        made, Mels(made, "cpu"), "train", VOICES, Mixture(900, 420, 0.5, 0, bare=0.5), ctc.labels(made)
    )
    pieces = [piece for batch in stream.epoch(0) for piece in batch]
    assert 0.2 < np.mean([piece.bare for piece in pieces]) < 0.8
    for piece in pieces:
        said = made.clips[piece.clips[-1]].text
        told = dataclasses.replace(piece, bare=False), dataclasses.replace(piece, bare=True)
        (rows, text, places), (same_rows, bare, bare_places) = map(stream.joined, told)
        assert text.endswith(said)
        assert bare == text[:-1] if said.endswith(".") else bare == text
        np.testing.assert_array_equal(rows, same_rows)
        np.testing.assert_array_equal(bare_places, np.minimum(places, len(bare) - 1))


@pytest.mark.parametrize("text", ["Yes.", "What?", "Stop!", "and so"])
def test_a_reference_ends_as_on_the_device(text: str) -> None:
    assert batches.as_reference(text) == spoken_transcript(complete_transcript(text))


def test_the_store_goes_on_after_an_interruption(corpus: Path, made: Store, tmp_path: Path) -> None:
    again = write_store(corpus, tmp_path)
    clips, mels = tmp_path / dataset.CLIPS, tmp_path / dataset.MELS
    lines = clips.read_text().splitlines(keepends=True)
    clips.write_text("".join(lines[:9]) + lines[9][:20])
    with mels.open("r+b") as file:
        file.truncate(again.clips[9].start * 200 + 333)
    assert dataset.build(corpus, tmp_path, workers=1) == len(lines) - 9
    mended = Store(tmp_path)
    assert mended.clips == made.clips
    np.testing.assert_array_equal(mended.mels, made.mels)


def test_processes_give_what_one_process_gives() -> None:
    items = list(range(-60, 60))
    assert list(dataset.parallel_map(abs, items, 2)) == [abs(item) for item in items]


def test_what_the_judge_heard_wrongly_is_left_out(corpus: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (corpus / dataset.CLIPS).read_text().splitlines()]
    lines[0]["wer"], lines[1]["wer"] = 0.5, 0.1
    (tmp_path / "audio").symlink_to(corpus / "audio")
    (tmp_path / dataset.CLIPS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    dataset.build(tmp_path, tmp_path / "mels", workers=1, drop_above_wer=0.3)
    kept = {clip.id for clip in Store(tmp_path / "mels").clips}
    assert kept == {line["id"] for line in lines[1:]}


def test_every_clip_has_one_loudness(corpus: Path) -> None:
    clip = next(dataset.read_corpus(corpus))
    for gain in (0.3, 1.0):
        wave = dataset.level(gain * dataset.samples(corpus, clip))
        assert np.sqrt(np.mean(wave**2)) == pytest.approx(dataset.TARGET_RMS, rel=1e-4)


def test_training_and_device_read_a_text_alike() -> None:
    text = 'Thanks for the follow, "Mila": it\'s well-known, isn\'t it? Yes! And so on: "A" €'
    vocabulary = Vocabulary(tuple(alphabet.vocabulary()))
    on_device = vocabulary.ids(to_tokens(text))
    assert [alphabet.copies()[index] for index in on_device] == alphabet.ids(text).tolist()
    assert len(alphabet.copies()) == vocabulary.size


# The listener


def test_alignment_finds_the_frames_of_each_letter() -> None:
    said = alphabet.ids("abba")
    spans = [(0, 6), (6, 14), (16, 20), (20, 30)]  # heard frames, each STRIDE mel frames; a blank in between
    found = np.full((30, ctc.BLANK + 1), -9.0, np.float32)
    for letter, (begin, end) in zip(said, spans, strict=True):
        found[(begin + end) // 2, letter] = -0.1
    found[:, ctc.BLANK] = np.where((found > -1).any(axis=1), -9.0, -0.1)
    places = ctc.align(found, said, 60)
    assert (np.diff(places) >= 0).all() and places[0] == 0 and places[-1] == 3
    middles = [np.flatnonzero(places == place).mean() / 2 for place in range(4)]
    assert middles[1] == pytest.approx(10, abs=1.6) and middles[2] == pytest.approx(18, abs=1.6)


@hypothesis.given(st.text("abc .", max_size=12), st.text("abc .", max_size=12))
def test_letter_errors_are_edits_per_letter(heard: str, said: str) -> None:
    a, b = (text.replace(" ", "").replace(".", "") for text in (heard, said))
    assert ctc.letter_errors(heard, said) == pytest.approx(_edits(a, b) / max(len(b), 1))


def _edits(a: str, b: str) -> int:
    table = [[i + j if not i * j else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i, x in enumerate(a, start=1):
        for j, y in enumerate(b, start=1):
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (x != y))
    return table[-1][-1]


def test_labels_are_made_for_new_clips_only(corpus: Path, tmp_path: Path) -> None:
    made = preparation.prepare(corpus, tmp_path, workers=1, recogniser_clips=16, device="cpu")
    first = np.array(ctc.labels(made))
    for clip in made.clips:
        own = first[clip.start : clip.start + clip.frames]
        assert own[0] >= 0 and own[-1] < len(clip.text) and (np.diff(own) >= 0).all()
    with (tmp_path / ctc.LABELS).open("r+b") as file:
        file.truncate(2 * made.clips[5].start + 7)
    ctc.write_labels(ctc.load(tmp_path / "listener.pt"), made, workers=1)
    np.testing.assert_array_equal(ctc.labels(made), first)


def test_a_new_voice_has_the_listener_trained_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, mels = write_corpus(tmp_path / "corpus"), tmp_path / "mels"
    clips = corpus / dataset.CLIPS
    whole = clips.read_text().splitlines(keepends=True)
    clips.write_text("".join(line for line in whole if '"voice": "bdl"' in line))
    preparation.prepare(corpus, mels, workers=1, recogniser_clips=16, device="cpu")
    weights = (mels / "listener.pt").read_bytes()
    clips.write_text("".join(whole))
    for times in (1, 0):
        capsys.readouterr()
        made = preparation.prepare(corpus, mels, workers=1, recogniser_clips=16, device="cpu")
        assert capsys.readouterr().out.count("not trained on all of bdl, slt") == times
    assert (mels / "listener.pt").read_bytes() != weights
    assert len(ctc.labels(made)) == len(made.mels)


def test_a_listener_that_does_not_say_whom_it_heard_knows_nobody(made: Store, tmp_path: Path) -> None:
    model, path = ctc.LetterRecogniser(), tmp_path / "listener.pt"
    torch.save(model.state_dict(), path)
    assert not ctc.covers_voices(path, made)
    ctc.save(model, made, path)
    assert ctc.covers_voices(path, made)
    _same(ctc.load(path).state_dict(), model.state_dict())


# Training


def test_an_interrupted_run_ends_as_an_uninterrupted_one(made: Store, tmp_path: Path) -> None:
    recipe = dataclasses.replace(
        RECIPE, steps=8, shortest_first=2000, pairs=0.3, longest=300, timing_weight=0.1, stretch=0.1, bare=0.5
    )
    whole = Trainer(recipe, made, tmp_path / "whole")
    whole.run(None, 60, None)
    for _ in range(4):  # each sitting ends after its first step
        broken = Trainer(recipe, made, tmp_path / "broken")
        if (tmp_path / "broken" / "checkpoint.pt").exists():
            broken.load()
        broken.run(0.0, 60, None)
    broken = Trainer(recipe, made, tmp_path / "broken")
    broken.load()
    assert broken.progress.step == 4
    broken.run(None, 60, None)
    seconds = {"seconds": 0.0}
    assert dataclasses.replace(broken.progress, **seconds) == dataclasses.replace(whole.progress, **seconds)
    for part in ("dit", "letter_head", "duration_head", "average"):
        _same(getattr(broken, part).state_dict(), getattr(whole, part).state_dict())


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("muon", [True, False])
def test_training_lowers_the_loss(made: Store, tmp_path: Path, muon: bool) -> None:
    recipe = dataclasses.replace(RECIPE, steps=60, cooldown=1, muon=muon, drop_audio=0.0, drop_both=0.0)
    trainer = Trainer(recipe, made, tmp_path)
    trainer.run(None, 60, None)
    assert trainer.progress.step == 60
    batch = make_batch(made)
    generator = torch.Generator().manual_seed(1)
    draws = matching.draw(batch, generator, "uniform", 0.0, 0.0)
    with torch.no_grad():
        before = matching.loss(
            matching.predict(BatchedDiT(_untrained(trainer)), batch, draws).velocity, batch, draws
        )
        after = matching.loss(matching.predict(trainer.averaged(), batch, draws).velocity, batch, draws)
    assert after < 0.7 * before


def _untrained(trainer: Trainer) -> DiT:
    return Trainer(trainer.recipe, trainer.store, trainer.folder).dit


def test_the_learning_rate_rises_stays_and_falls() -> None:
    recipe = dataclasses.replace(RECIPE, steps=100, cooldown=40, warmup=10)
    rates = [rate_factor(recipe, step) for step in range(100)]
    assert rates[0] == 0.1 and rates[10:60] == [1.0] * 50 and rates[-1] < 0.01
    assert all(a >= b for a, b in pairwise(rates[60:]))


def test_a_batch_is_made_ahead_without_being_lost() -> None:
    stream = prefetch(iter(range(100)), 3)
    assert [next(stream) for _ in range(10)] == list(range(10))


def test_the_commands_train_examine_and_go_on(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: dict[int, Any] = {}
    mels, run = tmp_path / "mels", tmp_path / "run"
    ctc.save(ctc.LetterRecogniser(), write_store(corpus, mels), mels / "listener.pt")
    small = "--dim 32 --depth 2 --heads 1 --text-dim 16 --text-layers 1 --batch-frames 500 --guided 1"
    exam = "--exam-nfe 5 --exam-sentences 2 --exam-every 2"
    paths = f"--corpus {corpus} --mels {mels} --folder {run} --out {tmp_path / 'out'} --threads 1 --workers 1"
    command = f"train {paths} {small} {exam} --device cpu".split()
    monkeypatch.setattr(signal, "signal", lambda number, act: acts.setdefault(number, act))
    assert main([*command, "--steps", "2"]) == 0
    assert main([*command, "--steps", "4"]) == 0
    assert "goes on at step 2" in capsys.readouterr().out
    assert set(acts) == {signal.SIGINT, signal.SIGTERM}
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if "letter_errors" in line] == [2, 4]
    assert "first" in log[-1]
    ElementTree.parse(run / "loss.svg")


def test_a_stopped_run_ends_after_its_step_with_its_checkpoint(made: Store, tmp_path: Path) -> None:
    trainer = Trainer(RECIPE, made, tmp_path)
    trainer.stopping = True
    trainer.run(None, 60, None)
    again = Trainer(RECIPE, made, tmp_path)
    again.load()
    assert again.progress.step == trainer.progress.step == 1


def test_carried_weights_come_in_small_files(
    made: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "AVERAGE_FILE_BYTES", 20_000)
    trainer = Trainer(RECIPE, made, tmp_path / "run")
    trainer.save(tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) > 3 and all(file.suffix == ".pt" for file in files)
    recipe, average = train.read_average(tmp_path / "out")
    assert recipe == RECIPE
    for name, value in train.read_average(tmp_path / "run" / "checkpoint.pt")[1].items():
        torch.testing.assert_close(average[name], value, rtol=1e-3, atol=1e-6)
    other = Trainer(dataclasses.replace(RECIPE, seed=1), made, tmp_path / "other")
    other.initialise_from(average)
    _same(other.dit.state_dict(), average)
    trainer.progress.step = 1
    trainer.save(tmp_path / "later")
    (tmp_path / "later" / files[-1].name).replace(files[-1])
    with pytest.raises(ValueError, match="not written at one time"):
        train.read_average(tmp_path / "out")


def test_a_planned_run_sets_its_end_from_its_pace(
    made: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "PACE_S", 0.0)
    monkeypatch.setattr(train, "LOG_EVERY", 2)
    trainer = Trainer(dataclasses.replace(RECIPE, steps=10_000), made, tmp_path)
    trainer.run(None, 60, None, planned_minutes=0.02)
    assert 2 < trainer.progress.step < 10_000
    assert trainer.recipe.steps == trainer.progress.step
    assert trainer.recipe.cooldown == int(train.COOLDOWN * trainer.recipe.steps)


def test_a_missing_corpus_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "nothing"
    assert main(["train", "--corpus", str(missing), "--mels", str(missing), "--folder", str(missing)]) == 1
    assert capsys.readouterr().err.startswith(f"export.demo: {missing}: has no clips.jsonl")


@pytest.mark.parametrize(
    "command", ["corpus make --folder", "vocoder --folder", "train --mels", "train --folder"]
)
def test_a_second_run_is_kept_from_the_files_of_the_first(
    command: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held, mels = tmp_path / "held", tmp_path / "mels"
    others = {"train --folder": f"--corpus {corpus} --mels {mels} --workers 1"}
    ctc.save(ctc.LetterRecogniser(), write_store(corpus, mels), mels / "listener.pt")
    with folder_lock(held):
        assert main(f"{command} {held} {others.get(command, '')}".split()) == 1
    assert capsys.readouterr().err.startswith(f"export.demo: {held}: another run is writing there")
    assert not list(held.iterdir())
    with folder_lock(held):  # once the first is gone
        pass


def test_a_plot_of_nothing_is_a_plot(tmp_path: Path) -> None:
    plot.draw(tmp_path / "no.jsonl", tmp_path / "loss.svg")
    ElementTree.parse(tmp_path / "loss.svg")


# The vocoder

VOCODER = vocoder_train.Recipe(
    steps=6, mel_steps=2, batch=2, segment=4096, warmup=2, period_width=16, resolution_width=2, abreast=2
)


def test_the_vocoder_hears_the_same_mels_as_everyone(corpus: Path) -> None:
    wave = dataset.level(dataset.samples(corpus, next(dataset.read_corpus(corpus))))
    found = vocoder_train.log_mel(torch.from_numpy(wave)[None])[0].numpy()
    np.testing.assert_allclose(found, log_mel(wave, dataset.SPEC), atol=2e-3)


def test_an_interrupted_vocoder_ends_as_an_uninterrupted_one(corpus: Path, tmp_path: Path) -> None:
    whole = vocoder_train.Trainer(VOCODER, corpus, tmp_path / "whole")
    whole.run(None, 60)
    for _ in range(3):
        broken = vocoder_train.Trainer(VOCODER, corpus, tmp_path / "broken")
        if vocoder_train.has_checkpoint(broken.folder):
            broken.load()
        broken.run(0.0, 60)
    broken.run(None, 60)
    _same(broken.average.state_dict(), whole.average.state_dict())
    _same(broken.discriminators.state_dict(), whole.discriminators.state_dict())
    _speaks_as_published(whole, tmp_path / "whole" / "vocos")


def test_discriminators_abreast_are_those_of_the_papers_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # float32
    torch.manual_seed(0)
    discriminators = Discriminators(16, 2, workers=2)
    real, made = (torch.randn(2, 4096, generator=torch.Generator().manual_seed(n)) for n in range(2))
    learnt = discriminators.accumulate(real, made)
    found_loss = discriminators.generator_loss(real, made)
    found = [
        parameter.grad.clone() for parameter in discriminators.parameters() if parameter.grad is not None
    ]

    # As HiFi-GAN and Vocos write it: one sum, one backward pass.
    discriminators.zero_grad()
    weights = [(discriminator, 1 / 5) for discriminator in discriminators.periods]
    weights += [(discriminator, 0.1 / 3) for discriminator in discriminators.resolutions]
    hinge = sum(
        w * (F.relu(1 - discriminator(real)[0]).mean() + F.relu(1 + discriminator(made)[0]).mean())
        for discriminator, w in weights
    )
    assert isinstance(hinge, torch.Tensor)
    hinge.backward()
    assert learnt == pytest.approx(hinge.item(), rel=1e-5)
    wanted = [parameter.grad for parameter in discriminators.parameters() if parameter.grad is not None]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-7)

    tried, passing, matching = made.clone().requires_grad_(), torch.zeros(()), torch.zeros(())
    for discriminator, w in weights:
        (score, seen), (_, meant) = discriminator(tried), discriminator(real)
        passing = passing + w * F.relu(1 - score).mean()
        matching = matching + w * sum((a - b).abs().mean() for a, b in zip(seen, meant, strict=True))
    (gradient,) = torch.autograd.grad(passing + matching, tried)
    assert found_loss.adversarial == pytest.approx(passing.item(), rel=1e-5)
    assert found_loss.feature_matching == pytest.approx(matching.item(), rel=1e-5)
    torch.testing.assert_close(found_loss.gradient, gradient, rtol=1e-4, atol=1e-8)


def _speaks_as_published(trainer: vocoder_train.Trainer, folder: Path) -> None:
    config, weights = load_vocos(folder)
    published = build_vocos(config, weights)
    mel = torch.randn(2, 30, 100)
    trainer.vocos.load_state_dict(trainer.average.state_dict())
    with torch.no_grad():
        found = vocoder_train.synthesise(trainer.vocos, mel)
        wanted = torch.stack([published(one) for one in mel])
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)

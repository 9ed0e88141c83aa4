"""Muon against torch's own, words and their sounds, and a batch that is worked on in parts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.demo import alphabet, batches, dataset, matching, pronunciation
from export.demo.autocast import autocast
from export.demo.batches import Batches, Mels, Mixture
from export.demo.dataset import Store
from export.demo.model import BatchedDiT
from export.demo.muon import Muon, orthogonal
from export.demo.train import Trainer
from export.model.dit import DiT
from export.model.redraw import redraw
from tests.export.demo import RECIPE, write_corpus, write_store

pytestmark = pytest.mark.torch

LEXICON = """MNCL
("box" n (((b aa k s) 1)))
("cat" n (((k ae t) 1)))
("chat" n (((ch ae t) 1)))
("chats" n (((ch ae t s) 1)))
("follow" nil (((f aa) 1) ((l ow) 0)))
("a" dt (((ax) 0)))
("a" n (((ey) 1)))
("w" n (((d ah) 1) ((b ax) 0) ((l y uw) 0)))
"""


@pytest.fixture
def known(tmp_path: Path) -> pronunciation.Lexicon:
    (tmp_path / "lexicon").write_text(LEXICON)
    return pronunciation.lexicon(tmp_path / "lexicon")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Store:
    corpus = write_corpus(tmp_path_factory.mktemp("corpus"))
    return write_store(corpus, tmp_path_factory.mktemp("mels"))


def spelled(found: tuple[int, ...]) -> str:
    return " ".join(pronunciation.PHONEMES[index] for index in found)


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 48)])
def test_muon_moves_a_matrix_as_torchs_own_does(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(shape) / 9) for _ in range(2))
    own = Muon([ours], 1e-2, 0.1)
    other = torch.optim.Muon([theirs], 1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(6):
        before = ours.detach().clone()
        grad = torch.randn(shape)
        ours.grad, theirs.grad = grad, grad.clone()
        own.step()
        other.step()
        moved = (ours - before).detach().norm()
        assert (ours - theirs).detach().norm() < 0.1 * moved  # theirs is computed in bfloat16
        with torch.no_grad():
            theirs.copy_(ours)


def test_matrices_of_one_shape_are_made_orthogonal_together_as_each_alone() -> None:
    matrices = torch.randn(3, 20, 12, generator=torch.Generator().manual_seed(1))
    together = orthogonal(matrices)
    torch.testing.assert_close(together, torch.cat([orthogonal(one[None]) for one in matrices]))
    values = torch.linalg.svdvals(together)
    assert values.min() > 0.6 and values.max() < 1.3


def test_muon_leaves_alone_what_has_no_gradient() -> None:
    matrix = nn.Parameter(torch.ones(3, 3))
    Muon([matrix], 1.0, 0.5).step()
    assert torch.equal(matrix.detach(), torch.ones(3, 3))


def test_a_lexicon_keeps_the_first_entry_and_what_fits(known: pronunciation.Lexicon) -> None:
    assert {word: spelled(found) for word, found in known.items()} == {
        "box": "b aa k s",
        "cat": "k ae t",
        "chat": "ch ae t",
        "chats": "ch ae t s",
        "follow": "f aa l ow",
        "a": "ax",
    }


def test_a_file_without_entries_is_no_lexicon(tmp_path: Path) -> None:
    (tmp_path / "lexicon").write_text("MNCL\n")
    with pytest.raises(ValueError, match="no pronunciations"):
        pronunciation.lexicon(tmp_path / "lexicon")


def test_known_words_are_found_where_they_stand(known: pronunciation.Lexicon) -> None:
    texts = ["Chat, follow xyz.", "", "a box"]
    said = pronunciation.words(texts, known, 20)
    assert said is not None
    flat = "".join(text.ljust(20) for text in texts)
    found = ["".join(flat[i] for i in row[:n]) for row, n in zip(said.positions, said.lengths, strict=True)]
    assert found == ["Chat", "follow", "a", "box"]
    assert [spelled(tuple(part.tolist())) for part in said.phonemes.split(said.counts.tolist())] == [
        "ch ae t",
        "f aa l ow",
        "ax",
        "b aa k s",
    ]
    assert pronunciation.words(["xyz, it's"], known, 20) is None


def test_lessons_teach_to_read(known: pronunciation.Lexicon) -> None:
    torch.manual_seed(0)
    recipe = dataclasses.replace(RECIPE, text_dim=48, text_layers=2)
    dit = DiT(recipe.arch, len(alphabet.TRAINED), dataset.SPEC.mels)
    body = {name: value.clone() for name, value in dit.state_dict().items() if "text_embed" not in name}
    model, reader = BatchedDiT(dit), pronunciation.PhonemeHead(48)
    right = pronunciation.pretrain(
        model, reader, ["A cat follow chats.", "Box a chat."], known, 5000, 0, 3e-3
    )
    assert right > 0.9
    batch = pronunciation.sentences_of(["follow a box", "chats"], np.random.default_rng(0))
    said = pronunciation.words(["follow a box", "chats"], known, batch.ids.shape[1])
    assert said is not None
    encoded = model.text(batch, torch.zeros(2, dtype=torch.bool))
    assert [spelled(one) for one in reader.read(encoded, said)] == [
        "f aa l ow",
        "ax",
        "b aa k s",
        "ch ae t s",
    ]
    for name, value in body.items():  # nothing but the text encoder has been touched
        assert torch.equal(dit.state_dict()[name], value), name


def test_a_run_with_lessons_goes_on_as_if_uninterrupted(
    known: pronunciation.Lexicon, made: Store, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(RECIPE, steps=4, lessons=2.0, sound_weight=0.1, abreast=2)
    lexicon = tmp_path / "lexicon"
    whole = Trainer(recipe, made, tmp_path / "whole", lexicon=lexicon)
    whole.run(None, 60, None)
    for _ in range(2):
        broken = Trainer(recipe, made, tmp_path / "broken", lexicon=lexicon)
        if broken.folder.exists():
            broken.load()
        broken.run(0.0 if broken.progress.step == 0 else None, 60, None)
    for part in ("dit", "phoneme_head", "average"):
        for name, value in getattr(whole, part).state_dict().items():
            assert torch.equal(getattr(broken, part).state_dict()[name], value), name


def test_parts_of_a_batch_give_the_gradient_of_the_whole(
    made: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # float32: bfloat16 rounds by the batch's shape
    mixture = Mixture(1500, 420, 0.0, 0)
    source = Batches(made, Mels(made, "cpu"), "train", RECIPE.voices, mixture, None)
    pieces = next(pieces for pieces in source.epoch(0) if len(pieces) > 3)
    parts = [source.make(pieces[part::2], np.random.default_rng(part)) for part in range(2)]
    trainer = Trainer(dataclasses.replace(RECIPE, guided=0, abreast=2), made, tmp_path)
    redraw(trainer.dit, 5)

    def plainly(batch: batches.Batch, *_: object) -> matching.Draws:
        """Draws that depend on the sentence alone."""
        noise = batch.mels.flip(-1) * 0.5
        nothing = torch.zeros(len(noise), dtype=torch.bool)
        return matching.Draws(noise, torch.full((len(noise),), 0.3), nothing, nothing)

    monkeypatch.setattr(matching, "draw", plainly)
    found = trainer.train_step(parts)
    got: list[Tensor] = [p.grad.clone() for p in trainer.dit.parameters() if p.grad is not None]

    other = Trainer(trainer.recipe, made, tmp_path)
    redraw(other.dit, 5)
    hidden = [
        part.hidden[row, :frames].numpy()
        for part in parts
        for row, frames in enumerate(part.sentences.frames)
    ]
    joined = [source.joined(piece) for part in range(2) for piece in pieces[part::2]]
    whole = batches.collate(source.mels, *(list(column) for column in zip(*joined, strict=True)), hidden)
    expected = other.train_step([whole])
    wanted = [p.grad for p in other.dit.parameters() if p.grad is not None]
    assert found["loss"] == pytest.approx(float(expected["loss"]), rel=1e-3)
    for one, all_at_once in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, all_at_once, rtol=2e-2, atol=1e-4 * float(all_at_once.norm()) + 1e-6)


def test_half_precision_is_used_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda there=there: {"avx512_bf16": there})
        with autocast("cpu"):
            product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert product.dtype == (torch.bfloat16 if there else torch.float32)


def test_no_known_word_in_a_batch_is_no_error_in_half_precision(
    made: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    (tmp_path / "lexicon").write_text('MNCL\n("zyzzyva" n (((z ay) 1) ((z iy) 0)))\n')
    recipe = dataclasses.replace(RECIPE, guided=0, sound_weight=0.1)
    trainer = Trainer(recipe, made, tmp_path / "run", lexicon=tmp_path / "lexicon")
    source = Batches(made, trainer.mels, "train", recipe.voices, Mixture(500, 420, 0.5, 0), None)
    found = trainer.train_step([source.make(source.epoch(0)[0], np.random.default_rng(0))])
    assert float(found["sounds"]) == 0.0
    assert float(found["loss"]) > 0.0

"""How words are pronounced: told to the text encoder, in training only, from a dictionary.

English spelling is a large part of what a voice on letters has to learn, and a dictionary teaches it without
any audio. A linear layer must read a word's sounds off what the encoder makes of its letters, two places a
letter; which letter makes which sound is left open (connectionist temporal classification: Graves et al.,
2006). The layer is not shipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from export.demo import letters, model
from export.demo.model import BatchedDiT, Sentences
from export.demo.muon import Muon

_SOUNDS = """
    aa ae ah ao aw ax ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th uh uw v w y z zh
"""
SOUNDS = tuple(_SOUNDS.split())
"""Of the CMU dictionary as the Festival project keeps it, reduced vowels marked."""
PLACES = 2
"""Sounds that one letter can stand for: the x of "box"."""
BLANK = len(SOUNDS)
LONGEST_WORD = 20
FRAMES_PER_LETTER = (5, 8)
"""What the reading lessons pretend, to within one; the encoder's norm counts frames."""
LESSON_CHARACTERS = 2400
"""Of a batch."""

_ENTRY = re.compile(r'\("([a-z]+)" \S+ \((.*)\)\)')
_SYLLABLE = re.compile(r"\(\(([a-z ]+)\) \d\)")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")

Lexicon = dict[str, tuple[int, ...]]


def lexicon(path: Path) -> Lexicon:
    """Words and the indices of their sounds; of several entries of a word the first.

    Words with more sounds than places are left out. Raises ValueError where the file holds no entry.
    """
    number = {sound: index for index, sound in enumerate(SOUNDS)}
    found: Lexicon = {}
    for entry in map(_ENTRY.fullmatch, path.read_text("latin-1").splitlines()):
        if entry is None or len(entry[1]) > LONGEST_WORD:
            continue
        sounds = [number[sound] for part in _SYLLABLE.findall(entry[2]) for sound in part.split()]
        if _room_for(sounds) <= PLACES * len(entry[1]):
            found.setdefault(entry[1], tuple(sounds))
    if not found:
        raise ValueError(f"{path}: no pronunciations of words in it")
    return found


def _room_for(sounds: Sequence[int]) -> int:
    """Places that a path through the sounds needs: a blank between two that are alike."""
    return len(sounds) + sum(a == b for a, b in pairwise(sounds))


@dataclass(frozen=True)
class Words:
    """The words of a batch of texts that the lexicon knows: W of them."""

    places: Tensor
    """(W, L) index of each letter among the batch's B × T tokens; 0 where a word has ended."""
    lengths: Tensor
    """(W,) letters."""
    sounds: Tensor
    """All sounds, word after word."""
    counts: Tensor
    """(W,) sounds."""

    def to(self, device: str) -> Words:
        """On a device."""
        return Words(*(part.to(device) for part in (self.places, self.lengths, self.sounds, self.counts)))


def words(texts: Sequence[str], known: Lexicon, longest: int) -> Words | None:
    """Where the known words stand in texts whose tokens are padded to `longest`; None where there is none."""
    found = [
        (row * longest + word.start(), len(word[0]), known[word[0]])
        for row, text in enumerate(texts)
        for word in _WORD.finditer(text.lower())
        if word[0] in known
    ]
    if not found:
        return None
    width = max(length for _, length, _ in found)
    places = torch.zeros(len(found), width, dtype=torch.int64)
    for row, (start, length, _) in enumerate(found):
        places[row, :length] = torch.arange(start, start + length)
    return Words(
        places,
        torch.tensor([length for _, length, _ in found]),
        torch.tensor([sound for *_, sounds in found for sound in sounds]),
        torch.tensor([len(sounds) for *_, sounds in found]),
    )


class Reader(nn.Module):
    """Encoded letters (B, T, text_dim) → log-probabilities of sounds and the blank at each word's places."""

    def __init__(self, text_dim: int) -> None:
        super().__init__()
        self.leave = nn.Linear(text_dim, PLACES * (len(SOUNDS) + 1))

    def forward(self, encoded: Tensor, said: Words) -> Tensor:
        """(W, L · PLACES, sounds + 1)."""
        own = encoded.flatten(0, 1)[said.places]
        return self.leave(own).float().unflatten(-1, (PLACES, -1)).flatten(1, 2).log_softmax(dim=-1)

    def loss(self, encoded: Tensor, said: Words) -> Tensor:
        """Mean over the sounds of the negative log-likelihood."""
        found = self(encoded, said).transpose(0, 1)
        lengths = PLACES * said.lengths
        return F.ctc_loss(found, said.sounds, lengths, said.counts, BLANK, reduction="sum") / len(said.sounds)

    @torch.inference_mode()
    def read(self, encoded: Tensor, said: Words) -> list[tuple[int, ...]]:
        """The likeliest sounds of each word, place by place."""
        best = self(encoded, said).argmax(dim=-1)
        rows = (row[: PLACES * length] for row, length in zip(best, said.lengths.tolist(), strict=True))
        return [tuple(i for i in row.unique_consecutive().tolist() if i != BLANK) for row in rows]


def sentences_of(texts: Sequence[str], rng: np.random.Generator, device: str = "cpu") -> Sentences:
    """Texts as a batch, with as many frames as speech might have."""
    ids = [torch.from_numpy(letters.ids(text)) for text in texts]
    tokens = torch.tensor([len(row) for row in ids])
    frames = (tokens * float(rng.uniform(*FRAMES_PER_LETTER))).long() + model.TAIL
    padded = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1)
    return Sentences(padded.to(device), tokens.to(device), frames.to(device), int(frames.max()))


def teach(
    dit: BatchedDiT,
    reader: Reader,
    texts: Sequence[str],
    known: Lexicon,
    passes: float,
    seed: int,
    rate: float,
) -> float:
    """Reading lessons before the first sound: the text encoder alone, on dictionary and sentences in turn.

    Returns the share of words, among the last hundred batches, whose sounds were read right before they were
    learned from.
    """
    encoder = dit.dit.text_embed
    device = str(reader.leave.weight.device)
    matrices = [p for n, p in encoder.named_parameters() if p.ndim == 2 and "blocks" in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in (*encoder.parameters(), *reader.parameters()) if id(p) not in chosen]
    optimizers = (Muon(matrices, rate, 0.01), torch.optim.AdamW(rest, rate, (0.9, 0.98)))
    rng = np.random.default_rng([seed, 1])
    lessons = list(_lessons(texts, known, passes, rng))
    right: list[float] = []
    bar = tqdm(lessons, "reading lessons", unit="batch", disable=None)
    for number, lesson in enumerate(bar):
        batch = sentences_of(lesson, rng, device)
        said = words(lesson, known, batch.ids.shape[1])
        if said is None:
            continue
        said = said.to(device)
        encoded = dit.text(batch, torch.zeros(len(lesson), dtype=torch.bool, device=device))
        loss = reader.loss(encoded, said)
        for optimizer in optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = rate * min((number + 1) / 50, 1.0) * (1 - 0.9 * number / len(lessons))
        loss.backward()
        nn.utils.clip_grad_norm_((*encoder.parameters(), *reader.parameters()), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if number >= len(lessons) - 100 or number % 50 == 0:
            right.append(_right(reader.read(encoded.detach(), said), said))
            bar.set_postfix(loss=f"{loss.item():.3f}", right=f"{np.mean(right[-5:]):.3f}")
    return float(np.mean(right[-100:])) if right else 0.0


def _right(read: Sequence[tuple[int, ...]], said: Words) -> float:
    wanted = [tuple(part.tolist()) for part in said.sounds.split(said.counts.tolist())]
    return float(np.mean([a == b for a, b in zip(read, wanted, strict=True)]))


def _lessons(
    texts: Sequence[str], known: Lexicon, passes: float, rng: np.random.Generator
) -> Iterator[list[str]]:
    """Batches of texts: the dictionary's words in rows of eight, `passes` times, and as many sentences."""
    dictionary: NDArray[np.str_] = np.array(list(known))
    lines: list[str] = []
    for _ in range(int(np.ceil(passes))):
        mixed = dictionary[rng.permutation(len(dictionary))]
        rows = [" ".join(mixed[begin : begin + 8]) for begin in range(0, len(mixed), 8)]
        lines += rows + [str(text) for text in rng.choice(np.array(texts), len(rows))]
    lines = [lines[index] for index in rng.permutation(len(lines))][
        : int(len(lines) * passes / np.ceil(passes))
    ]
    each = max(LESSON_CHARACTERS // 64, 1)
    for begin in range(0, len(lines), 16 * each):
        window = sorted(lines[begin : begin + 16 * each], key=len)
        batches = [window[at : at + each] for at in range(0, len(window), each)]
        yield from (batches[index] for index in rng.permutation(len(batches)))

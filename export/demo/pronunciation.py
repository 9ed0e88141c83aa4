"""Auxiliary loss on pronunciation: phonemes of dictionary words, predicted from encoded letters; not shipped.

CTC (Graves et al., 2006) with two slots per letter. Trains English spelling without audio.
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

from export.demo import alphabet, model
from export.demo.model import BatchedDiT, Sentences
from export.demo.muon import Muon

_SOUNDS = """
    aa ae ah ao aw ax ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th uh uw v w y z zh
"""
PHONEMES = tuple(_SOUNDS.split())
"""Phonemes of Festival's CMU dictionary, with reduced vowels marked."""
SLOTS_PER_LETTER = 2
"""Most phonemes of one letter: the x of "box" has two."""
BLANK = len(PHONEMES)
LONGEST_WORD = 20
FRAMES_PER_LETTER = (5, 8)
"""Assumed range of frames per letter, on which the encoder's response norm depends."""
BATCH_CHARACTERS = 2400

_ENTRY = re.compile(r'\("([a-z]+)" \S+ \((.*)\)\)')
_SYLLABLE = re.compile(r"\(\(([a-z ]+)\) \d\)")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")

Lexicon = dict[str, tuple[int, ...]]


def lexicon(path: Path) -> Lexicon:
    """Read the dictionary: word → phoneme indices of its first entry.

    Words with more phonemes than slots are left out. Raises ValueError if no entry is found.
    """
    number = {sound: index for index, sound in enumerate(PHONEMES)}
    found: Lexicon = {}
    for entry in map(_ENTRY.fullmatch, path.read_text("latin-1").splitlines()):
        if entry is None or len(entry[1]) > LONGEST_WORD:
            continue
        sounds = [number[sound] for part in _SYLLABLE.findall(entry[2]) for sound in part.split()]
        needed = len(sounds) + sum(a == b for a, b in pairwise(sounds))  # a blank between equal phonemes
        if needed <= SLOTS_PER_LETTER * len(entry[1]):
            found.setdefault(entry[1], tuple(sounds))
    if not found:
        raise ValueError(f"{path}: no pronunciations of words in it")
    return found


@dataclass(frozen=True)
class Words:
    """The W words of a batch that are in the lexicon."""

    positions: Tensor
    """Indices (W, L) of letters among the batch's B·T tokens, padded with 0."""
    lengths: Tensor
    """Letters per word (W,)."""
    phonemes: Tensor
    """Phonemes of all words, concatenated."""
    counts: Tensor
    """Phonemes per word (W,)."""

    def to(self, device: str) -> Words:
        return Words(
            *(part.to(device) for part in (self.positions, self.lengths, self.phonemes, self.counts))
        )


def words(texts: Sequence[str], known: Lexicon, longest: int) -> Words | None:
    """Find words of the lexicon in texts padded to `longest` tokens; None if there are none."""
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


class PhonemeHead(nn.Module):
    """Linear layer: encoded letters (B, T, text_dim) → log-probabilities of phonemes and blank."""

    def __init__(self, text_dim: int) -> None:
        super().__init__()
        self.leave = nn.Linear(text_dim, SLOTS_PER_LETTER * (len(PHONEMES) + 1))

    def forward(self, encoded: Tensor, said: Words) -> Tensor:
        """Log-probabilities (W, L · SLOTS_PER_LETTER, phonemes + 1)."""
        own = encoded.flatten(0, 1)[said.positions]
        return self.leave(own).float().unflatten(-1, (SLOTS_PER_LETTER, -1)).flatten(1, 2).log_softmax(dim=-1)

    def loss(self, encoded: Tensor, said: Words) -> Tensor:
        """CTC loss per phoneme."""
        found = self(encoded, said).transpose(0, 1)
        lengths = SLOTS_PER_LETTER * said.lengths
        return F.ctc_loss(found, said.phonemes, lengths, said.counts, BLANK, reduction="sum") / len(
            said.phonemes
        )

    @torch.inference_mode()
    def read(self, encoded: Tensor, said: Words) -> list[tuple[int, ...]]:
        """Greedy CTC decoding: phoneme indices of each word."""
        best = self(encoded, said).argmax(dim=-1)
        rows = (
            row[: SLOTS_PER_LETTER * length] for row, length in zip(best, said.lengths.tolist(), strict=True)
        )
        return [tuple(i for i in row.unique_consecutive().tolist() if i != BLANK) for row in rows]


def sentences_of(texts: Sequence[str], rng: np.random.Generator, device: str = "cpu") -> Sentences:
    """Texts as a batch, with plausible random lengths in frames."""
    ids = [torch.from_numpy(alphabet.ids(text)) for text in texts]
    tokens = torch.tensor([len(row) for row in ids])
    frames = (tokens * float(rng.uniform(*FRAMES_PER_LETTER))).long() + model.TAIL
    padded = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1)
    return Sentences(padded.to(device), tokens.to(device), frames.to(device), int(frames.max()))


def pretrain(
    dit: BatchedDiT,
    reader: PhonemeHead,
    texts: Sequence[str],
    known: Lexicon,
    passes: float,
    seed: int,
    rate: float,
) -> float:
    """Pretrain the text encoder on the dictionary (`passes` times) and as many sentences.

    Returns the share of words of the last 100 batches decoded correctly before their update.
    """
    encoder = dit.dit.text_embed
    device = str(reader.leave.weight.device)
    matrices = [p for n, p in encoder.named_parameters() if p.ndim == 2 and "blocks" in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in (*encoder.parameters(), *reader.parameters()) if id(p) not in chosen]
    optimizers = (Muon(matrices, rate, 0.01), torch.optim.AdamW(rest, rate, (0.9, 0.98)))
    rng = np.random.default_rng([seed, 1])
    batches = list(_batches(texts, known, passes, rng))
    right: list[float] = []
    bar = tqdm(batches, "text pretraining", unit="batch", disable=None)
    for number, lines in enumerate(bar):
        batch = sentences_of(lines, rng, device)
        said = words(lines, known, batch.ids.shape[1])
        if said is None:
            continue
        said = said.to(device)
        encoded = dit.text(batch, torch.zeros(len(lines), dtype=torch.bool, device=device))
        loss = reader.loss(encoded, said)
        for optimizer in optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = rate * min((number + 1) / 50, 1.0) * (1 - 0.9 * number / len(batches))
        loss.backward()
        nn.utils.clip_grad_norm_((*encoder.parameters(), *reader.parameters()), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if number >= len(batches) - 100 or number % 50 == 0:
            wanted = [tuple(part.tolist()) for part in said.phonemes.split(said.counts.tolist())]
            found = reader.read(encoded.detach(), said)
            right.append(float(np.mean([a == b for a, b in zip(found, wanted, strict=True)])))
            bar.set_postfix(loss=f"{loss.item():.3f}", right=f"{np.mean(right[-5:]):.3f}")
    return float(np.mean(right[-100:])) if right else 0.0


def _batches(
    texts: Sequence[str], known: Lexicon, passes: float, rng: np.random.Generator
) -> Iterator[list[str]]:
    """Batches of texts: rows of eight dictionary words and as many sentences, shuffled."""
    dictionary: NDArray[np.str_] = np.array(list(known))
    lines: list[str] = []
    for _ in range(int(np.ceil(passes))):
        mixed = dictionary[rng.permutation(len(dictionary))]
        rows = [" ".join(mixed[begin : begin + 8]) for begin in range(0, len(mixed), 8)]
        lines += rows + [str(text) for text in rng.choice(np.array(texts), len(rows))]
    lines = [lines[index] for index in rng.permutation(len(lines))][
        : int(len(lines) * passes / np.ceil(passes))
    ]
    each = max(BATCH_CHARACTERS // 64, 1)
    for begin in range(0, len(lines), 16 * each):
        window = sorted(lines[begin : begin + 16 * each], key=len)
        batches = [window[at : at + each] for at in range(0, len(window), each)]
        yield from (batches[index] for index in rng.permutation(len(batches)))

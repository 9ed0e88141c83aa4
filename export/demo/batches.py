"""Clips → batches: which, in what order, joined how, with which parts hidden.

A batch follows from the seed, its place in the data and nothing else, so a run goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from appliance.contract.mel import FLOOR
from export.demo import letters, store
from export.demo.model import TAIL, Sentences
from export.demo.store import Store

HIDDEN = (0.7, 1.0)
"""Share of a sentence that is to be spoken, as upstream trains it."""
CLOSING_S = 0.05
"""Silence that the device appends to a reference."""
BUCKETS = 24
"""Batches' worth of clips that are sorted by length together."""


STRETCHED = 0.5
"""Share of the clips that are spoken faster or slower than they were, where any are."""
UTMOST_STRETCH = 2.5
"""Standard deviations."""

SILENCE, PADDING = -1, -2
"""In place of a row of the store: digital silence, and what stands beyond a sentence's end (zeros)."""
Rows = NDArray[np.float64]
"""Of the store's mels, counted in frames; between two of them where a clip is stretched."""
Places = NDArray[np.int64]


class Mels:
    """The store's log-mels by their rows, on the device that trains: mapped on a CPU, whole on a GPU."""

    def __init__(self, store: Store, device: str) -> None:
        self.device = device
        self._mels = torch.from_numpy(store.mels).to(device)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """(B, N) float64 → (B, N, M) float32, of two neighbours in proportion."""
        before = rows.clamp_min(0).floor()
        found = self._mels[before.long()].float()
        between = rows.clamp_min(0) - before
        if between.any():
            after = self._mels[(before + (between > 0)).long()].float()
            found.lerp_(after, between[..., None].float())
        found.masked_fill_((rows == SILENCE)[..., None], math.log(FLOOR))
        return found.masked_fill_((rows == PADDING)[..., None], 0.0)


@dataclass(frozen=True)
class Piece:
    """A sentence, or two of one voice: the first stands for the reference."""

    clips: tuple[int, ...]
    frames: int
    last: int
    """Frames of the last clip, stretched or not."""
    bare: bool = False
    """Whether the last text comes without its full stop."""


@dataclass(frozen=True)
class Batch:
    """Sentences of about one length, padded."""

    mels: Tensor
    """(B, N, M), zeros beyond a sentence's end."""
    sentences: Sentences
    hidden: Tensor
    """(B, N) frames to be spoken; the others are given."""
    places: Tensor
    """(B, N) int64: the place in its text that each frame truly belongs to; -1 where that is not known."""
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Mixture:
    """What batches are made of."""

    frames: int
    """Of a batch, padding included."""
    longest: int
    """Frames of a sentence; longer ones are left out."""
    pairs: float
    """Share of the sentences that come as the second after another."""
    seed: int
    stretch: float = 0.0
    """Standard deviation of the logarithm by which half of the clips' durations are changed.

    A reply's duration follows from its reference's pace and the number of its letters, so the device asks
    for speech that is some per cent faster or slower than the voice would speak it."""
    bare: float = 0.0
    """Share of the sentences whose full stop is not told: people who chat seldom write one."""


class Batches:
    """An endless stream of batches, from any place on."""

    def __init__(
        self,
        store: Store,
        mels: Mels,
        split: str,
        voices: Sequence[str],
        mixture: Mixture,
        labels: NDArray[np.int16] | None,
    ) -> None:
        self.store, self.mels, self.mixture, self.labels = store, mels, mixture, labels
        self.numbers = [n for n in store.of(split, voices) if fits(store, n, mixture.longest)]
        if not self.numbers:
            raise ValueError(
                f"{store.folder}: no {split} clips of {', '.join(voices)} up to {mixture.longest} frames"
            )

    def epoch(self, number: int) -> list[list[Piece]]:
        """All batches of one pass over the clips, in order."""
        rng = np.random.default_rng([self.mixture.seed, number])
        pieces = list(self._pieces(rng))
        batches: list[list[Piece]] = []
        window = max(BUCKETS * self.mixture.frames // max(piece.frames for piece in pieces), 1)
        for begin in range(0, len(pieces), window):
            batches += self._filled(sorted(pieces[begin : begin + window], key=lambda piece: piece.frames))
        order = rng.permutation(len(batches))
        return [batches[index] for index in order]

    def make(self, pieces: Sequence[Piece], rng: np.random.Generator) -> Batch:
        """The tensors of one batch."""
        rows, texts, places = zip(*(self.joined(piece) for piece in pieces), strict=True)
        hidden = [self._hide(piece, rng) for piece in pieces]
        return collate(self.mels, rows, texts, places, hidden)

    def joined(self, piece: Piece) -> tuple[Rows, str, Places]:
        """Rows of mels, text and places of one or two clips; two as the device joins reference and reply."""
        rows, texts, places, at = [], [], [], 0
        for number in piece.clips:
            clip = self.store.clips[number]
            last = number == piece.clips[-1]
            text = _as_reply(clip.text, piece.bare) if last else as_reference(clip.text)
            own = np.linspace(0, clip.frames - 1, piece.last if last else clip.frames)
            rows.append(clip.start + own)
            places.append(np.minimum(self._places(clip, own, at), at + len(text) - 1))
            if not last:
                rows.append(np.full(closing_frames(), float(SILENCE)))
                places.append(np.full(closing_frames(), at + len(text) - 1))
            texts.append(text)
            at += len(text)
        return np.concatenate(rows), "".join(texts), np.concatenate(places)

    def _places(self, clip: store.Clip, own: Rows, at: int) -> Places:
        """`own` are frames of the clip."""
        if self.labels is None:
            return np.full(len(own), -1)
        return self.labels[clip.start + own.round().astype(np.int64)].astype(np.int64) + at

    def _pieces(self, rng: np.random.Generator) -> Iterator[Piece]:
        longest = self.mixture.longest
        partners = {voice: self._short_first(voice) for voice in {self._voice(n) for n in self.numbers}}
        for number in rng.permutation(self.numbers):
            last = self._stretched(int(number), rng)
            bare = self.mixture.bare > 0 and rng.random() < self.mixture.bare
            if rng.random() < self.mixture.pairs:
                others = partners[self._voice(number)]
                other = int(others[rng.integers(len(others))])
                both = self.store.clips[other].frames + closing_frames() + last
                if both <= longest and other != number:
                    yield Piece((other, int(number)), both, last, bare)
                    continue
            yield Piece((int(number),), last, last, bare)

    def _stretched(self, number: int, rng: np.random.Generator) -> int:
        """Frames that a clip is to last."""
        clip, mixture = self.store.clips[number], self.mixture
        if not mixture.stretch or rng.random() >= STRETCHED:
            return clip.frames
        by = mixture.stretch * float(np.clip(rng.standard_normal(), -UTMOST_STRETCH, UTMOST_STRETCH))
        frames = round(clip.frames * math.exp(by))
        return min(max(frames, len(clip.text) + TAIL + 1), mixture.longest)

    def _voice(self, number: int) -> str:
        return self.store.clips[number].voice

    def _short_first(self, voice: str) -> list[int]:
        """Clips of a voice that leave room for another."""
        own = [n for n in self.numbers if self._voice(n) == voice]
        return [n for n in own if self.store.clips[n].frames <= self.mixture.longest // 2] or own

    def _filled(self, pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
        batch: list[Piece] = []
        for piece in pieces:
            if batch and piece.frames * (len(batch) + 1) > self.mixture.frames:
                yield batch
                batch = []
            batch.append(piece)
        if batch:
            yield batch

    def _hide(self, piece: Piece, rng: np.random.Generator) -> NDArray[np.bool_]:
        """(frames,): of every second pair the whole reply, else a span anywhere."""
        hidden = np.zeros(piece.frames, bool)
        if len(piece.clips) > 1 and rng.random() < 0.5:
            hidden[-piece.last :] = True
            return hidden
        length = int(rng.uniform(*HIDDEN) * piece.frames)
        begin = int(rng.random() * (piece.frames - length))
        hidden[begin : begin + length] = True
        return hidden


def collate(
    mels: Mels,
    rows: Sequence[Rows],
    texts: Sequence[str],
    places: Sequence[Places],
    hidden: Sequence[NDArray[np.bool_]],
) -> Batch:
    """Pad to the longest, and fetch the mels."""

    def padded(values: Sequence[NDArray], filler: float) -> Tensor:
        tensors = [torch.from_numpy(value) for value in values]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=filler).to(
            mels.device
        )

    ids = [letters.ids(text) for text in texts]
    frames = torch.tensor([len(row) for row in rows]).to(mels.device)
    tokens = torch.tensor([len(row) for row in ids]).to(mels.device)
    sentences = Sentences(padded(ids, -1), tokens, frames, max(len(row) for row in rows))
    return Batch(
        mels[padded(rows, PADDING)], sentences, padded(hidden, False), padded(places, -1), tuple(texts)
    )


def fits(store: Store, number: int, longest: int) -> bool:
    """Whether a clip is short enough, and its text shorter than it."""
    clip = store.clips[number]
    return len(clip.text) + TAIL < clip.frames <= longest


def as_reference(text: str) -> str:
    """A transcript as the device puts it before a reply."""
    return text + ("  " if text.endswith(".") else ".  ")


def _as_reply(text: str, bare: bool) -> str:
    return text.removesuffix(".") if bare else text


def closing_frames() -> int:
    """Frames of the silence after a reference."""
    return round(CLOSING_S * store.SPEC.frames_per_second)

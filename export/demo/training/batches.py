"""Training batches from clips: order, joined pairs, infilling masks.

A batch depends only on the seed and its position in the data, so an interrupted run resumes exactly.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from appliance.contract.mel import FLOOR
from appliance.contract.placement import SPACE, Placement
from appliance.text.phones.alphabet import tokens
from export.demo.corpus import alphabet
from export.demo.corpus.store import SPEC, Store
from export.demo.training.model import TAIL, Sentences

MASKED_SHARE = (0.7, 1.0)
"""Range of the masked share of a sentence, as upstream trains it."""
SILENCE_FRAMES = round(0.05 * SPEC.frames_per_second)
"""Silence that the device appends to a reference."""
BUCKETS = 24
"""Number of batches whose clips are sorted by length together."""

PAIRED_SHARE = 0.5
"""Share of sentences that follow another clip as its reply."""
STRETCHED_SHARE, STRETCH, MAX_STRETCH = 0.5, 0.06, 2.5
"""Share of clips with a changed duration; standard deviation of its logarithm, and most deviations: the
device's durations are some per cent off."""

REFERENCE_FRAMES = (150, 450)
SLOWER = 0.08
"""Range of a student's references, and how much more time than its reference's pace gives a reply has in the
mean, as a logarithm: references that are shipped speak slowly."""

MULTIPLE = 8
"""Of padded lengths; the fused attention of a GPU needs aligned masks."""
SILENCE, PADDING = -1, -2
"""Row indices of digital silence and of zero padding."""
Rows = NDArray[np.float64]
"""Indices into the store's frames; fractional (interpolated) in stretched clips."""
Alignment = NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """One clip, or a pair of one voice of which the first acts as the reference."""

    clips: tuple[int, ...]
    frames: int
    last: int
    """Frames of the last clip, after stretching."""


@dataclass(frozen=True)
class Batch:
    mels: Tensor
    """Log-mels (B, N, M), zero-padded."""
    sentences: Sentences
    hidden: Tensor
    """Frames to generate (B, N); the others are given."""
    alignment: Tensor
    """Token index of each frame (B, N) int64; -1 in padding."""


class Batches:
    """Reproducible batches of the training split."""

    def __init__(
        self,
        store: Store,
        device: str,
        placement: Placement,
        frames: int,
        longest: int,
        repeats: Mapping[str, int],
        seed: int,
        *,
        replies: bool = False,
    ) -> None:
        """`frames` of a batch at most, with padding; clips of more than `longest` are left out.

        A clip of a voice is `repeats` times in an epoch, once if not named. With `replies` each text follows
        a clip of any voice, all as often, and is hidden. Raises ValueError without clips.
        """
        self.store = store
        self.device = device
        self.mels = torch.from_numpy(store.mels).to(device)
        self.frames, self.longest, self.repeats, self.seed = frames, longest, repeats, seed
        self.replies, self.placement = replies, placement
        self.phones = [tokens(clip.phones) for clip in store.clips]
        self.numbers = [
            number
            for number, clip in enumerate(store.clips)
            if clip.split == "train" and len(self.phones[number]) + TAIL < clip.frames <= longest
        ]
        if not self.numbers:
            raise ValueError(f"{store.folder}: no clips to train on of up to {longest} frames")

    def epoch(self, number: int) -> list[list[Piece]]:
        """All batches of one epoch, shuffled. Raises ValueError if no pair is short enough."""
        rng = np.random.default_rng([self.seed, number])
        pieces = list(self._pieces(rng))
        if not pieces:
            raise ValueError(f"{self.store.folder}: no two clips together have up to {self.longest} frames")
        batches: list[list[Piece]] = []
        window = max(BUCKETS * self.frames // max(piece.frames for piece in pieces), 1)
        for begin in range(0, len(pieces), window):
            batches += self._packed(sorted(pieces[begin : begin + window], key=lambda piece: piece.frames))
        return [batches[index] for index in rng.permutation(len(batches))]

    def make(self, pieces: Sequence[Piece], rng: np.random.Generator) -> Batch:
        """Collate one batch with random infilling masks."""
        device = self.device
        rows, ids, alignment, index = zip(*(self.joined(piece) for piece in pieces), strict=True)
        hidden = _padded([self._mask(piece, rng) for piece in pieces], False, device)
        frames, counts = (torch.tensor([len(one) for one in many]).to(device) for many in (rows, ids))
        places = _padded(rows, PADDING, device)
        sentences = Sentences(_padded(ids, -1, device), counts, frames, _padded(index, 0, device))
        return Batch(self.frames_at(places), sentences, hidden, _padded(alignment, -1, device))

    def frames_at(self, rows: Tensor) -> Tensor:
        """Log-mels at `rows`, linearly interpolated: (B, N) float64 → (B, N, M) float32."""
        before = rows.clamp_min(0).floor()
        found = self.mels[before.long()].float()
        between = rows.clamp_min(0) - before
        if between.any():
            after = self.mels[(before + (between > 0)).long()].float()
            found.lerp_(after, between[..., None].float())
        found.masked_fill_((rows == SILENCE)[..., None], math.log(FLOOR))
        return found.masked_fill_((rows == PADDING)[..., None], 0.0)

    def joined(self, piece: Piece) -> tuple[Rows, Alignment, Alignment, Alignment]:
        """Frame rows, tokens, alignment and placement, joined as the device joins reference and reply."""
        number = piece.clips[-1]
        rows, spoken = self._clip(number, piece.last)
        after, before = self.phones[number], []
        begun = 0
        if len(piece.clips) > 1:
            other = piece.clips[0]
            before = as_reference(self.phones[other])
            first, heard = self._clip(other, self.store.clips[other].frames)
            begun = len(first) + SILENCE_FRAMES
            rows = np.concatenate((first, np.full(SILENCE_FRAMES, float(SILENCE)), rows))
            silence = np.full(SILENCE_FRAMES, len(before) - 1)
            spoken = np.concatenate((heard, silence, len(before) + spoken))
        index = self.placement.index(begun, before, after, len(rows)).astype(np.int64)
        return rows, alphabet.ids([*before, *after]), spoken, index

    def _clip(self, number: int, frames: int) -> tuple[Rows, Alignment]:
        """Rows of a clip made as long as `frames`, and its phone in each."""
        clip = self.store.clips[number]
        own = np.linspace(0, clip.frames - 1, frames, dtype=np.float64)
        return clip.start + own, self.store.spoken[clip.start + own.round().astype(np.int64)].astype(np.int64)

    def _pieces(self, rng: np.random.Generator) -> Iterator[Piece]:
        clips = self.store.clips
        voices: dict[str, list[int]] = defaultdict(list)
        for number in self.numbers:
            voices[clips[number].voice].append(number)
        if self.replies:
            yield from self._replies(list(voices.values()), rng)
            return
        counts = [self.repeats.get(clips[number].voice, 1) for number in self.numbers]
        for number in rng.permutation(np.repeat(self.numbers, counts)).tolist():
            last = self._stretched(number, rng)
            if rng.random() < PAIRED_SHARE:
                others = voices[clips[number].voice]
                other = others[rng.integers(len(others))]
                both = clips[other].frames + SILENCE_FRAMES + last
                if both <= self.longest and other != number:
                    yield Piece((other, number), both, last)
                    continue
            yield Piece((number,), last, last)

    def _replies(self, voices: Sequence[Sequence[int]], rng: np.random.Generator) -> Iterator[Piece]:
        """Each text after a clip of some voice, about as long as the device makes it by the clip's pace."""
        clips, (least, most) = self.store.clips, REFERENCE_FRAMES
        given = [
            [number for number in some if least <= clips[number].frames <= most] or some for some in voices
        ]
        for number in rng.permutation(self.numbers).tolist():
            others = given[int(rng.integers(len(given)))]
            other = others[int(rng.integers(len(others)))]
            begun = clips[other].frames + SILENCE_FRAMES
            speed = math.exp(-SLOWER - STRETCH * rng.standard_normal())
            both = as_reference(self.phones[other]), self.phones[number]
            last = self.placement.frames(begun, *both, speed) - begun
            if last > len(self.phones[number]) + TAIL and begun + last <= self.longest and other != number:
                yield Piece((other, number), begun + last, last)

    def _stretched(self, number: int, rng: np.random.Generator) -> int:
        """Duration of a clip in frames, randomly stretched."""
        clip = self.store.clips[number]
        if rng.random() >= STRETCHED_SHARE:
            return clip.frames
        by = STRETCH * float(np.clip(rng.standard_normal(), -MAX_STRETCH, MAX_STRETCH))
        frames = round(clip.frames * math.exp(by))
        return min(max(frames, len(self.phones[number]) + TAIL + 1), self.longest)

    def _packed(self, pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
        batch: list[Piece] = []
        for piece in pieces:
            if batch and piece.frames * (len(batch) + 1) > self.frames:
                yield batch
                batch = []
            batch.append(piece)
        if batch:
            yield batch

    def _mask(self, piece: Piece, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Infilling mask (frames,): the reply for half of the pairs, else a random span."""
        hidden = np.zeros(piece.frames, bool)
        if len(piece.clips) > 1 and (self.replies or rng.random() < 0.5):
            hidden[-piece.last :] = True
            return hidden
        length = int(rng.uniform(*MASKED_SHARE) * piece.frames)
        begin = int(rng.random() * (piece.frames - length))
        hidden[begin : begin + length] = True
        return hidden


def _padded(values: Sequence[NDArray[Any]], filler: float, device: str) -> Tensor:
    """Rows filled up to the longest, and to a multiple of MULTIPLE."""
    tensors = [torch.from_numpy(value) for value in values]
    found = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=filler)
    return F.pad(found, (0, -found.shape[1] % MULTIPLE), value=filler).to(device)


def as_reference(phones: list[str]) -> list[str]:
    """Phones of a transcript as the device has them before a reply's."""
    return [*phones, SPACE]

"""Replies that were spoken before, by all that they were made of; the least recently used are forgotten."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from appliance.job import Segment, SegmentAudio

Key = bytes


@dataclass(frozen=True, eq=False)
class Phrase:
    """A whole reply at the model's rate, before it is cross-faded, resampled and encoded."""

    made: tuple[SegmentAudio, ...]
    seed: int

    @classmethod
    def of(cls, made: Sequence[SegmentAudio], seed: int) -> Phrase:
        """A copy of what an engine made, whose samples may lie in a larger buffer."""
        return cls(tuple(replace(one, samples=one.samples.copy()) for one in made), seed)

    @property
    def size_bytes(self) -> int:
        """Bytes of its samples."""
        return sum(made.samples.nbytes for made in self.made)


class Phrases:
    """A bounded store of phrases. Any thread may use it."""

    def __init__(self, limit_bytes: int, *, drawn_seeds: bool = False) -> None:
        """Keep samples of at most `limit_bytes`; 0 keeps none.

        `drawn_seeds`: keep replies to requests without a seed too, and answer the same request with them.
        """
        self._limit_bytes, self._drawn_seeds = limit_bytes, drawn_seeds
        self._kept: OrderedDict[Key, Phrase] = OrderedDict()
        self._lock = threading.Lock()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def takes(self, *, seeded: bool) -> bool:
        """True if replies to requests with or without a seed are kept."""
        return self._limit_bytes > 0 and (seeded or self._drawn_seeds)

    def find(self, keys: Sequence[Key]) -> tuple[int, Phrase] | None:
        """The first of these keys that is kept, by its place, with its phrase; counted as one look."""
        with self._lock:
            for place, key in enumerate(keys):
                if (phrase := self._kept.get(key)) is not None:
                    self._kept.move_to_end(key)
                    self.hits += 1
                    return place, phrase
            self.misses += 1
            return None

    def keep(self, key: Key, phrase: Phrase) -> None:
        """Keep a phrase, and forget others for it; one over the limit is not kept."""
        with self._lock:
            if (before := self._kept.pop(key, None)) is not None:
                self.size_bytes -= before.size_bytes
            if phrase.size_bytes > self._limit_bytes:
                return
            self._kept[key] = phrase
            self.size_bytes += phrase.size_bytes
            while self.size_bytes > self._limit_bytes:
                _, oldest = self._kept.popitem(last=False)
                self.size_bytes -= oldest.size_bytes


def key_of(segments: Sequence[Segment], made_by: str, *, seeded: bool) -> Key:
    """A digest of all that decides the samples: every field of the segments, and what computes (`made_by`).

    The reference's own features are among the fields, so that a voice that was replaced has other keys.
    Without `seeded` the seed is left out.
    """
    digest = hashlib.sha256(made_by.encode())
    known: dict[int, bytes] = {}  # segments share their reference
    for segment in segments:
        for field in fields(segment):
            value = getattr(segment, field.name)
            if field.name == "seed" and not seeded:
                continue
            if isinstance(value, np.ndarray):
                if id(value) not in known:
                    own = hashlib.sha256(f"{value.dtype} {value.shape} ".encode())
                    own.update(np.ascontiguousarray(value).data)
                    known[id(value)] = own.digest()
                digest.update(known[id(value)])
            else:
                digest.update(f"{field.name}={value!r};".encode())
    return digest.digest()

"""Cache of finished replies, with all of their inputs as the key.

The least recently used are evicted first.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from appliance.request import Segment, SegmentAudio

Key = bytes


@dataclass(frozen=True, eq=False)
class Phrase:
    """A whole reply at the model's rate, before cross-fade, resampling and encoding."""

    segments: tuple[SegmentAudio, ...]
    seed: int

    @classmethod
    def of(cls, segments: Sequence[SegmentAudio], seed: int) -> Phrase:
        """Copy the audio, because its samples may lie in a larger buffer."""
        return cls(tuple(replace(one, samples=one.samples.copy()) for one in segments), seed)

    @property
    def size_bytes(self) -> int:
        return sum(segment.samples.nbytes for segment in self.segments)


class Phrases:
    """The cache. Thread-safe."""

    def __init__(self, limit_bytes: int, *, drawn_seeds: bool = False) -> None:
        """`drawn_seeds`: also store replies to requests that name no seed."""
        self._limit_bytes, self._drawn_seeds = limit_bytes, drawn_seeds
        self._phrases: OrderedDict[Key, Phrase] = OrderedDict()
        self._lock = threading.Lock()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def show(self, gauge: Callable[[str, str, Callable[[], float]], None]) -> None:
        """Register the metrics of the cache."""
        answered = "Requests that were answered from the cache of phrases."
        gauge("f5_phrases_hits", answered, lambda: self.hits)
        missed = "Requests that it could have answered, and did not have."
        gauge("f5_phrases_misses", missed, lambda: self.misses)
        gauge("f5_phrases_bytes", "Samples that it holds.", lambda: self.size_bytes)

    def keys(self, ways: Sequence[Sequence[Segment]], made_by: str, *, seeded: bool) -> Sequence[Key | None]:
        """A key for each way to serve a request. All are None if the reply may not be stored."""
        if self._limit_bytes > 0 and (seeded or self._drawn_seeds):
            return [key_of(segments, made_by, seeded=seeded) for segments in ways]
        return [None] * len(ways)

    def find(self, keys: Sequence[Key | None]) -> tuple[int, Phrase] | None:
        """(index, phrase) of the first key in the cache; None if there is none.

        Counts a hit or a miss if there are keys.
        """
        with self._lock:
            for index, key in enumerate(keys):
                if key is not None and (phrase := self._phrases.get(key)) is not None:
                    self._phrases.move_to_end(key)
                    self.hits += 1
                    return index, phrase
            self.misses += None not in keys
            return None

    def keep(self, key: Key, phrase: Phrase) -> None:
        """Store a phrase, unless it is larger than the limit."""
        with self._lock:
            if (before := self._phrases.pop(key, None)) is not None:
                self.size_bytes -= before.size_bytes
            if phrase.size_bytes > self._limit_bytes:
                return
            self._phrases[key] = phrase
            self.size_bytes += phrase.size_bytes
            while self.size_bytes > self._limit_bytes:
                _, oldest = self._phrases.popitem(last=False)
                self.size_bytes -= oldest.size_bytes


def key_of(segments: Sequence[Segment], made_by: str, *, seeded: bool) -> Key:
    """Digest of everything that determines the samples: all fields of the segments, and the engine
    (`made_by`).

    The fields include the reference's features. The seed counts only if `seeded`.
    """
    digest = hashlib.sha256(made_by.encode())
    digests: dict[int, bytes] = {}  # segments share their reference
    for segment in segments:
        for field in fields(segment):
            value = getattr(segment, field.name)
            if field.name == "seed" and not seeded:
                continue
            if isinstance(value, np.ndarray):
                if id(value) not in digests:
                    own = hashlib.sha256(f"{value.dtype} {value.shape} ".encode())
                    own.update(np.ascontiguousarray(value).data)
                    digests[id(value)] = own.digest()
                digest.update(digests[id(value)])
            else:
                digest.update(f"{field.name}={value!r};".encode())
    return digest.digest()

"""Audio of segments → the bytes of a reply: level, cross-fade, resampling, encoding.

None of it runs on the engine's thread.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from appliance.audio import compress, encode, join
from appliance.audio.loudness import levelled
from appliance.audio.marking import MARK
from appliance.contract.bundle import Manifest
from appliance.encodings import Encoding
from appliance.request import AS_MADE, FloatArray, ReplyLevel, SegmentAudio

SHORT_SAMPLES = 1 << 16
"""Samples up to which the event loop does the work itself: 2.7 s of audio take a millisecond, or four if
every peak is limited.
"""
THREADS = 2


class ReplyAudio:
    """Turns the segments of a reply into messages of encoded audio."""

    def __init__(
        self,
        manifest: Manifest,
        encoding: Encoding,
        rate_hz: int,
        message_s: float,
        level: ReplyLevel = AS_MADE,
        mark: str = MARK,
    ) -> None:
        """`message_s`: longest audio of one message, in seconds."""
        self._model_hz, self._rate_hz = manifest.mel.sample_rate_hz, rate_hz
        self._joiner = join.Joiner(join.overlap_samples(manifest.defaults.cross_fade_s, self._model_hz))
        self._resampler = encode.Resampler(self._model_hz, self._rate_hz)
        self._encoding, self._mark = encoding, mark
        self._encoder = encode.Encoder(encoding, self._rate_hz, mark)
        self._longest = round(message_s * self._rate_hz)
        self._level = level
        self._segments: list[FloatArray] = []
        self._waiting = 0
        """Samples pushed into the encoder since its last byte."""
        self.samples = 0
        """Output samples so far."""
        self.join_s = self.encode_s = 0.0
        """Seconds spent on level, cross-fade and resampling, and on encoding."""

    @property
    def audio_s(self) -> float:
        return self.samples / self._rate_hz

    @property
    def is_costly(self) -> bool:
        """True if encoding takes milliseconds per message."""
        return self._encoding in compress.FORMATS

    def messages(self, segment: SegmentAudio) -> Iterator[tuple[bytes, int]]:
        """Yield (bytes, number of samples) for each message of at most `message_s`.

        Level, joins and rate are computed at once, the encoding as the caller takes each message. Samples
        that a block encoder still holds count for the next message.
        """
        return self._encoded(self._join(segment), last=segment.last)

    def _encoded(self, samples: FloatArray, *, last: bool) -> Iterator[tuple[bytes, int]]:
        """Encode samples in messages of at most the longest size: (data, number of samples)."""
        # The last message ends the encoding, with or without samples.
        count = max(math.ceil(len(samples) / self._longest), last and self.samples > 0)
        pieces = np.array_split(samples, count) if count else []
        for number, piece in enumerate(pieces, 1):
            ends = last and number == len(pieces)
            begun = time.perf_counter()
            data = self._encoder.push(piece, last=ends)
            self.encode_s += time.perf_counter() - begun
            self._waiting += len(piece)
            if data or (ends and self._waiting):
                count, self._waiting = self._waiting, 0
                yield data, count

    def keep(self, segment: SegmentAudio) -> None:
        self._segments.append(self._join(segment))

    def whole(self) -> bytes:
        """The whole reply, of the segments passed to `keep`."""
        samples = np.concatenate([np.zeros(0, np.float32), *self._segments])
        self._segments = []
        begun = time.perf_counter()
        data = encode.encode(samples, self._encoding, self._rate_hz, self._mark)
        self.encode_s += time.perf_counter() - begun
        return data

    def _join(self, audio: SegmentAudio) -> FloatArray:
        """The samples of a segment after level, cross-fade and change of the sample rate."""
        begun = time.perf_counter()
        pause = round(audio.pause_s * self._model_hz)
        samples = levelled(audio.samples, self._model_hz, self._level)
        joined = self._joiner.push(samples, pause=pause, last=audio.last)
        samples = self._resampler.push(joined, last=audio.last)
        self.samples += len(samples)
        self.join_s += time.perf_counter() - begun
        return samples


class AudioWorkers:
    """Threads for audio longer than SHORT_SAMPLES."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="audio")

    async def run(self, samples: int, work: Callable[..., Any], *arguments: Any, costly: bool = False) -> Any:
        """Return work(*arguments); run it on a thread if the audio is long or the work `costly`."""
        if samples <= SHORT_SAMPLES and not costly:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

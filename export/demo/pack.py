"""Pack a corpus for another machine: the engine with the sentences (about 5 MiB), or 8-bit log-mels.

Mels, about 30 MiB an hour, are for machines on which the engine does not run.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from appliance.contract.mel import MelSpec, log_mel
from export.demo.corpus import Clip, CorpusError, audio, read_clips

FloatArray = NDArray[np.float32]

LEVELS = 255
SCALE_CLIPS = 200
CLIPS_PER_FILE = 256


@dataclass(frozen=True, eq=False)
class Scale:
    """Quantisation range (mels,) of each band; values outside are clipped."""

    low: FloatArray
    high: FloatArray

    def pack(self, mel: FloatArray) -> NDArray[np.uint8]:
        """Quantise (frames, mels) to 8 bits."""
        share = (mel - self.low) / (self.high - self.low)
        return np.rint(np.clip(share, 0.0, 1.0) * LEVELS).astype(np.uint8)

    def unpack(self, packed: NDArray[np.uint8]) -> FloatArray:
        """Dequantise (frames, mels), exact to half a step."""
        step = (self.high - self.low) / np.float32(LEVELS)
        return self.low + packed.astype(np.float32) * step


def pack_engine(engine: Path, corpus: Path, pronunciations: Path, out: Path) -> None:
    """Write an archive of engine, sentences and pronunciations, as `corpus make` and `train` read them."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:xz") as archive:
        archive.add(engine, "engine")
        archive.add(corpus / "sentences.jsonl", "corpus/sentences.jsonl")
        if pronunciations.is_file():
            archive.add(pronunciations, f"texts/{pronunciations.name}")


def pack_mels(corpus: Path, out: Path, limit_bytes: int) -> int:
    """Write 8-bit log-mels of as many clips as fit, alternating voices; return their number.

    Raises CorpusError without clips, FileExistsError if `out` exists.
    """
    clips = _interleave_voices(read_clips(corpus))
    if not clips:
        raise CorpusError(f"{corpus}: holds no clips")
    out.mkdir(parents=True)
    spec = MelSpec("vocos")
    some = np.concatenate([_mel(corpus, clip, spec) for clip in clips[:SCALE_CLIPS]])
    low, high = some.min(axis=0), some.max(axis=0)
    scale = Scale(low, np.maximum(high, low + np.float32(1e-3)))
    ranges = {"low": scale.low.tolist(), "high": scale.high.tolist()}
    (out / "scale.json").write_text(json.dumps({"mel": asdict(spec), **ranges}) + "\n", "utf-8")
    used, listed = 0, 0
    with (out / "clips.jsonl").open("w", encoding="utf-8") as listing:
        for first in tqdm(range(0, len(clips), CLIPS_PER_FILE), unit="file", desc="packing mels"):
            chosen = clips[first : first + CLIPS_PER_FILE]
            packed = [scale.pack(_mel(corpus, clip, spec)) for clip in chosen]
            size = sum(p.nbytes for p in packed)
            if used + size > limit_bytes:
                break
            np.save(out / f"{first // CLIPS_PER_FILE:05}.npy", np.concatenate(packed))
            for clip, mel in zip(chosen, packed, strict=True):
                listing.write(json.dumps({**asdict(clip), "frames": len(mel)}) + "\n")
            used, listed = used + size, listed + len(chosen)
    return listed


def read_mels(folder: Path) -> Iterator[tuple[Clip, FloatArray]]:
    """Read the clips of `pack_mels` with their log-mels (frames, mels). Raises CorpusError."""
    try:
        raw: dict[str, Any] = json.loads((folder / "scale.json").read_text("utf-8"))
        lines = [json.loads(line) for line in (folder / "clips.jsonl").read_text("utf-8").splitlines()]
    except OSError as error:
        raise CorpusError(f"{folder}: holds no packed mels: {error}") from error
    scale = Scale(np.array(raw["low"], np.float32), np.array(raw["high"], np.float32))
    for first in range(0, len(lines), CLIPS_PER_FILE):
        packed = np.load(folder / f"{first // CLIPS_PER_FILE:05}.npy", mmap_mode="r")
        start = 0
        for line in lines[first : first + CLIPS_PER_FILE]:
            frames = line.pop("frames")
            yield Clip(**line), scale.unpack(packed[start : start + frames])
            start += frames


def _interleave_voices(clips: Sequence[Clip]) -> list[Clip]:
    """Alternate voices, so that any prefix of the list is balanced."""
    turn: dict[str, int] = {}
    numbered = []
    for clip in clips:
        turn[clip.voice] = turn.get(clip.voice, 0) + 1
        numbered.append((turn[clip.voice], clip.voice, clip))
    return [clip for _, _, clip in sorted(numbered, key=lambda n: n[:2])]


def _mel(corpus: Path, clip: Clip, spec: MelSpec) -> FloatArray:
    return log_mel(audio(corpus, clip).astype(np.float32) / 32_768.0, spec)

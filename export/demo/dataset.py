"""Training data: levelled log-mels of the corpus in one memory-mapped file, texts in another."""

from __future__ import annotations

import functools
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from appliance.contract.bundle import Defaults
from appliance.contract.mel import MelSpec, log_mel

SPEC = MelSpec("vocos")
TARGET_RMS = Defaults.target_rms
"""Level of every clip; the device raises quiet references to the same."""
FULL_SCALE = 32768.0
MELS, CLIPS = "mels.bin", "clips.jsonl"
Input = TypeVar("Input")
Output = TypeVar("Output")


@dataclass(frozen=True)
class Clip:
    id: str
    voice: str
    text: str
    split: str
    start: int
    """First frame in the mel file."""
    frames: int


class Store:
    """Clips and their memory-mapped log-mels."""

    def __init__(self, folder: Path) -> None:
        """Open the store. Raises ValueError if `folder` has none."""
        if not (folder / CLIPS).is_file():
            raise ValueError(
                f"{folder}: has no {CLIPS}; `python -m export.demo train` makes it from a corpus"
            )
        self.folder = folder
        self.clips = [Clip(**json.loads(line)) for line in (folder / CLIPS).read_text("utf-8").splitlines()]
        frames = (folder / MELS).stat().st_size // (2 * SPEC.mels)
        self.mels: NDArray[np.float16] = np.memmap(folder / MELS, np.float16, "c", shape=(frames, SPEC.mels))

    def mel(self, clip: Clip) -> NDArray[np.float32]:
        """Log-mel (frames, mels) of a clip."""
        return self.mels[clip.start : clip.start + clip.frames].astype(np.float32)

    def select(self, split: str, voices: Sequence[str] = ()) -> list[int]:
        """Indices of the clips of a split, optionally of some voices only."""
        return [
            number
            for number, clip in enumerate(self.clips)
            if clip.split == split and (not voices or clip.voice in voices)
        ]


def build(corpus: Path, folder: Path, workers: int, drop_above_wer: float = 1.0) -> int:
    """Append log-mels of clips that `folder` lacks; return their number.

    Clips with a word error rate above `drop_above_wer` are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = _truncate_partial(folder)
    wanted = [
        clip
        for clip in read_corpus(corpus)
        if clip["id"] not in kept and (clip.get("wer") is None or clip["wer"] <= drop_above_wer)
    ]
    at = (folder / MELS).stat().st_size // (2 * SPEC.mels) if (folder / MELS).exists() else 0
    with (folder / MELS).open("ab") as mels, (folder / CLIPS).open("a", encoding="utf-8") as clips:
        found = parallel_map(functools.partial(_clip_mel, corpus), wanted, workers)
        for raw, mel in zip(wanted, tqdm(found, "mels", len(wanted), unit="clip", disable=None), strict=True):
            mels.write(mel.tobytes())
            mels.flush()
            clip = Clip(raw["id"], raw["voice"], raw["text"], raw["split"], at, len(mel))
            clips.write(json.dumps(asdict(clip)) + "\n")
            clips.flush()
            at += len(mel)
    return len(wanted)


def _clip_mel(corpus: Path, raw: dict[str, Any]) -> NDArray[np.float16]:
    return levelled_mel(samples(corpus, raw)).astype(np.float16)


def parallel_map(
    function: Callable[[Input], Output], items: Sequence[Input], workers: int, at_once: int = 16
) -> Iterator[Output]:
    """Ordered `map` over processes; runs in this process if there are few items."""
    if workers < 2 or len(items) < 4 * at_once:
        yield from map(function, items)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(function, items, at_once)


def read_corpus(corpus: Path) -> Iterator[dict[str, Any]]:
    """Entries of a corpus' `clips.jsonl`, up to an incomplete last line."""
    for line in (corpus / CLIPS).read_text("utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def samples(corpus: Path, clip: dict[str, Any]) -> NDArray[np.float32]:
    """Samples (samples,) of a clip within ±1."""
    shard = np.load(corpus / "audio" / clip["voice"] / f"{clip['shard']:05d}.npy", mmap_mode="r")
    return shard[clip["start"] : clip["start"] + clip["samples"]].astype(np.float32) / FULL_SCALE


def levelled_mel(wave: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-mel (frames, mels) of a wave at `TARGET_RMS`."""
    return log_mel(level(wave), SPEC)


def level(wave: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale a wave to `TARGET_RMS`."""
    rms = float(np.sqrt(np.mean(np.square(wave, dtype=np.float64))))
    return wave * np.float32(TARGET_RMS / max(rms, 1e-4))


def _truncate_partial(folder: Path) -> set[str]:
    """Drop incomplete data of an interrupted run; return the ids of complete clips."""
    path = folder / CLIPS
    if not path.exists():
        return set()
    whole = []
    for line in path.read_text("utf-8").splitlines():
        try:
            whole.append(Clip(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            break
    path.write_text("".join(json.dumps(asdict(clip)) + "\n" for clip in whole), "utf-8")
    frames = whole[-1].start + whole[-1].frames if whole else 0
    with (folder / MELS).open("r+b") as mels:
        mels.truncate(2 * SPEC.mels * frames)
    return {clip.id for clip in whole}

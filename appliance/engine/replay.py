"""Runs a case whose inputs are all in a file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from appliance.config import EngineConfig
from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.schedule import time_grid
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import load_for
from appliance.errors import InvalidRequest
from appliance.request import FloatArray, Segment

REQUIRED = ("cond", "ids", "n_frames", "noise")
OPTIONAL = ("guidance", "sway", "grid", "sampling", "upsample_index")


def replay_file(bundle: Bundle, case: Path, nfe: int, out: Path) -> None:
    """Run a case, and write the result. Raises ApplianceError, OSError."""
    engine = load_for(bundle, EngineConfig(lanes=1))
    try:
        write_result(out, *replay(engine, read_case(case, engine, nfe)))
    finally:
        engine.shutdown()


def replay(engine: Synthesizer, case: Segment) -> tuple[FloatArray, FloatArray]:
    """(n_frames, M) log-mel, including the reference, and its (samples,), without levels or cuts."""
    lane = engine.open(case)
    try:
        for _ in range(lane.steps_left):
            engine.step([lane.id])
        mel = engine.log_mel(lane.id)
    finally:
        engine.close(lane.id)
    return mel, engine.decode(mel)


def read_case(path: Path, engine: Synthesizer, nfe: int) -> Segment:
    """Segment with the arrays of a file.

    The arrays are `cond` (1, reference frames + 1, M), `ids` (1, T), `n_frames`, `noise` (n_frames, M) or, if
    steps re-noise, (nfe, n_frames, M), and OPTIONAL. Raises InvalidRequest naming the array that is missing
    or misshapen.
    """
    arrays = _arrays(path)
    if missing := [name for name in REQUIRED if name not in arrays]:
        raise InvalidRequest("case", f"{path} lacks {', '.join(missing)}; it must hold {', '.join(REQUIRED)}")
    if unknown := [name for name in arrays if name not in REQUIRED + OPTIONAL]:
        raise InvalidRequest(
            "case", f"{path}: unknown array {', '.join(unknown)}; optional: {', '.join(OPTIONAL)}"
        )
    defaults, mels = engine.manifest.defaults, engine.manifest.mel.mels
    cond = arrays["cond"]
    ids = arrays["ids"]
    index = arrays.get("upsample_index")
    if cond.ndim != 3 or cond.shape[0] != 1 or cond.shape[2] != mels:
        raise InvalidRequest("cond", f"must be (1, frames, {mels}), not {cond.shape}")
    if ids.ndim != 2 or ids.shape[0] != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise InvalidRequest("ids", f"must be (1, tokens) integers, not {ids.shape} {ids.dtype}")
    try:
        engine.manifest.sampler.check_steps(nfe)
        guidance = float(_scalar("guidance", arrays.get("guidance", defaults.guidance)))
        engine.manifest.sampler.check_strength(guidance)
        case = Segment(
            index=0,
            text="",
            ids=ids[0].astype(np.int32),
            frames=int(_scalar("n_frames", arrays["n_frames"])),
            reference_log_mel=cond[0].astype(np.float32),
            reference_frames=cond.shape[1] - 1,
            noise=arrays["noise"].astype(np.float32),
            times=time_grid(
                nfe,
                grid=str(arrays.get("grid", defaults.grid)),
                sway=float(_scalar("sway", arrays.get("sway", defaults.sway))),
                shift=defaults.shift,
            ),
            guidance=guidance,
            upsample_index=None if index is None else index.astype(np.int32),
            sampling=cast(Sampling, str(arrays.get("sampling", "exact"))),
        )
        engine.check(case)
    except ValueError as error:
        raise InvalidRequest("case", f"{path}: {error}") from error
    return case


def _arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """Arrays of an .npz file. Raises InvalidRequest."""
    try:
        with path.open("rb") as stream:  # numpy does not close a file that it cannot read
            stored = np.load(stream, allow_pickle=False)
            if not isinstance(stored, NpzFile):
                raise ValueError("it holds a single array")
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidRequest("case", f"{path} is not an .npz file: {error}") from error


def _scalar(name: str, value: object) -> Any:
    array = np.asarray(value)
    if array.size != 1 or not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all():
        raise ValueError(f"{name} must be one finite number")
    return array.item()


def write_result(path: Path, mel: FloatArray, wave: FloatArray) -> None:
    """Write an .npz with `mel` (n_frames, M) and `wave` (samples,)."""
    with path.open("wb") as stream:
        np.savez(stream, mel=mel, wave=wave)

"""Convert a bundle of format 1.0 or an older export of 1.1: trace its step graphs anew, copy the others.

Weights are recovered from the old step graph, bit-exactly in float16. INT8 bundles cannot be converted.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from appliance.contract import bundle as contract
from appliance.contract.yaml_text import parse_yaml
from appliance.durable import publish
from appliance.errors import BundleError
from appliance.fields import from_mapping
from export import parity
from export.bundle import BACKENDS, BundleFailed, Gate, Measure, StepWriter, check_absent
from export.recover import step_weights

OLD_FORMAT = "1.0"
FRAMES = 301
BOUND = 1e-5
"""Largest relative difference of the velocity between old and new step graph in float32."""


def convert(old: Path, out: Path, measure: Measure, gate: Gate | None = None) -> contract.Bundle:
    """Write the bundle `old` as `out` with today's step graphs.

    The report against the weights is kept under `converted`. Raises BundleError for an incomplete bundle,
    BundleFailed if it cannot be converted or the new graphs differ from the old.
    """
    check_absent(out)
    before = _read(old)
    manifest = before.manifest
    if manifest.precision in parity.LOSSY:
        raise BundleFailed(
            f"{old}: an {manifest.precision} bundle cannot be converted; export it again from its checkpoint"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        folder = Path(scratch) / "bundle"
        folder.mkdir()
        files = {name: manifest.variants["default"][name] for name in ("modulation", "condition", "vocoder")}
        for name in (contract.VOCAB, *files.values(), *(f"{file}.data" for file in files.values())):
            if (old / name).is_file():
                shutil.copy(old / name, folder / name)
        weights = step_weights(old / manifest.variants["default"]["step"], manifest.arch)
        writer = StepWriter(
            manifest.arch,
            manifest.mel.mels,
            lambda: weights,
            manifest.precision,
            folder,
            manifest.max_frames,
        )
        variants = writer.write_steps(files)
        after = dataclasses.replace(
            manifest, format=contract.FORMAT, variants=variants, backends=BACKENDS[manifest.precision]
        )
        trial = contract.Bundle(folder, after)
        report = measure(trial)
        report.rows[:0] = [_compare(before, trial, variant) for variant in parity.variants(trial)]
        passed = (gate or Gate()).judge(after, report)
        converted = manifest.parity.get("converted") or {"format": manifest.format, **manifest.parity}
        contract.write(folder, dataclasses.replace(passed, parity={**passed.parity, "converted": converted}))
        check_absent(out)
        publish(folder, out)
    return contract.read(out, verify=False)


def _read(folder: Path) -> contract.Bundle:
    """Read and verify a bundle of either format; manifests of 1.0 have today's keys. Raises BundleError."""
    path = folder / contract.MANIFEST
    try:
        raw = parse_yaml(path.read_bytes(), path, BundleError)
    except OSError as error:
        raise BundleError(f"{path}: unreadable: {error}") from error
    if not isinstance(raw, Mapping) or str(raw.get("format")) != OLD_FORMAT:
        return contract.read(folder)
    bundle = contract.Bundle(folder, from_mapping(contract.Manifest, raw, where=str(path), error=BundleError))
    contract.verify_files(bundle)
    return bundle


def _compare(before: contract.Bundle, after: contract.Bundle, variant: str) -> parity.Row:
    """Difference of the guided velocity between old and new step graphs."""
    wanted, found = _velocity(before, variant), _velocity(after, variant)
    # Only a CPU computes an fp16 bundle in float32.
    half = after.manifest.precision == "fp16" and variant == "default"
    bound = parity.BOUNDS["fp16"]["step"] if half else BOUND
    error, kind = parity.relative_error(found, wanted), f"format {before.manifest.format}"
    return parity.Row("step", variant, kind, len(found[0]), 1, error, bound)


def _velocity(bundle: contract.Bundle, variant: str) -> np.ndarray[Any, Any]:
    """Guided velocity (1, N, M) at fixed random inputs."""
    d = bundle.manifest.dimensions
    rng = np.random.default_rng(0)
    frames = min(FRAMES, bundle.manifest.max_frames)
    latents = rng.standard_normal((1, frames, d.mels), dtype=np.float32)
    condition = rng.standard_normal((2, frames, d.dim), dtype=np.float32).astype(d.compute)
    table = 0.3 * rng.standard_normal((1, d.rows, d.dim), dtype=np.float32)
    given: dict[str, Any] = {"latents": latents, "mod_table": table, "step_index": np.zeros(1, np.int32)}
    given["lengths"] = np.array([frames], np.int32)
    if bundle.manifest.format == OLD_FORMAT:
        # In the old format only the CPU variant had float32 arithmetic.
        kind = "ort-cpu" if variant == contract.FLOAT32 else variant
        old = bundle.graph("step", kind if kind in bundle.manifest.variants else "default")
        ones = {"dt": np.ones(1, np.float32), "combine": np.array([[3.0, -2.0]], np.float32)}
        return _run(old, {**given, **ones, "condition": condition[None]})[0] - latents
    given |= {"reference": latents[:, :0], "reference_condition": condition[:1, :0]}
    given["reference_lengths"] = np.zeros(1, np.int32)
    graph = bundle.graph("step_keys", variant)
    guided, unguided = (_run(graph, {**given, "condition": row[None]})[0] for row in condition)
    return 3.0 * guided - 2.0 * unguided


def _run(path: Path, feed: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray[Any, Any]] = session.run(None, feed)
    return outputs

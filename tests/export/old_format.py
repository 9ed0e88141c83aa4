"""Bundles of format 1.0 as the exporter of that format wrote them, and their Euler steps without the engine.

`golden-1.0/bundles.tar.xz` holds three models of random weights, for up to 256 frames: `fp16`, without its
vocoder, and the step graphs alone of `fp32` and `fp32-options`.
"""

from __future__ import annotations

import dataclasses
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import yaml
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from appliance.contract import bundle as contract
from appliance.contract.bundle import Arch
from appliance.durable import sha256
from appliance.engine.condition import padded_ids, padded_mel
from export.cases import Case

ARCHIVE = Path(__file__).parent / "golden-1.0" / "bundles.tar.xz"
PLAIN = Arch(dim=32, depth=2, heads=1, ff_mult=2, text_dim=16, conv_layers=1, dim_head=32)
OPTIONS = dataclasses.replace(
    PLAIN, heads=2, dim_head=16, qk_norm="rms_norm", long_skip_connection=True, pe_attn_head=1
)
MELS, HOP = 100, 256


def unpack(folder: Path) -> Path:
    """The folder in which the three lie."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def write(folder: Path, precision: str = "fp16") -> Path:
    """A whole bundle: the golden fp16 one with a small vocoder, whose manifest gives `precision`."""
    bundle = unpack(folder) / "fp16"
    _write_vocoder(bundle / "vocoder.onnx")
    manifest = yaml.safe_load((bundle / contract.MANIFEST).read_text("utf-8"))
    variants = {name: manifest["variants"][name] for name in ("default", "ort-cpu")}
    for members in variants.values():
        members["vocoder"] = "vocoder.onnx"
    paths = [path for path in sorted(bundle.iterdir()) if path.name != contract.MANIFEST]
    files = {p.name: {"sha256": sha256(p), "size_bytes": p.stat().st_size} for p in paths}
    manifest |= {"precision": precision, "variants": variants, "files": files}
    (bundle / contract.MANIFEST).write_text(yaml.safe_dump(manifest, sort_keys=False), "utf-8")
    return bundle


def _write_vocoder(path: Path) -> None:
    """Samples as a product of each frame but the first."""
    weight = np.random.default_rng(0).standard_normal((MELS, HOP)).astype(np.float32)
    constants = {"weight": weight, "flat": np.array([-1]), "hop": np.array([HOP]), "end": np.array([1 << 30])}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["log_mel", "weight"], ["frames"]),
            helper.make_node("Reshape", ["frames", "flat"], ["all"]),
            helper.make_node("Slice", ["all", "hop", "end"], ["samples"]),
        ],
        "vocoder",
        [helper.make_tensor_value_info("log_mel", TensorProto.FLOAT, ["N", MELS])],
        [helper.make_tensor_value_info("samples", TensorProto.FLOAT, ["L"])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def run(path: Path, feed: dict[str, Any]) -> list[NDArray[Any]]:
    """Every output of a graph."""
    outputs: list[NDArray[Any]] = onnxruntime.InferenceSession(str(path)).run(None, feed)
    return outputs


def euler(folder: Path, given: Case, times: NDArray[np.float64]) -> NDArray[np.float32]:
    """(N, M) latents after all steps of the CPU's graphs."""
    t = times[:-1].astype(np.float32)
    (table,) = run(folder / "modulation.onnx", {"t": t})
    inputs = {
        "ids": padded_ids(given.ids, given.frames),
        "log_mel": padded_mel(given.cond, given.frames),
    }
    (condition,) = run(folder / "condition_float32.onnx", inputs)
    latents = given.noise[None]
    for step, dt in enumerate(np.diff(times)):
        (latents,) = run(
            folder / "step_float32.onnx",
            {
                "latents": latents,
                "condition": condition[None],
                "mod_table": table,
                "step_index": np.array([step], np.int32),
                "dt": np.array([dt], np.float32),
                "combine": np.array([[1.0 + given.guidance, -given.guidance]], np.float32),
                "lengths": np.array([given.frames], np.int32),
            },
        )
    return latents[0].astype(np.float32)

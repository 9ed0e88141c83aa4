"""Watermark: the two graphs of a network that marks samples and detects its mark, in one folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import yaml

from appliance.contract.bundle import File, check_files
from appliance.contract.graphs import GraphSpec, TensorSpec
from appliance.contract.yaml_text import parse_yaml
from appliance.durable import sha256
from appliance.errors import BundleError, ConfigError
from appliance.fields import AtLeast, Between, Ranged, from_mapping, to_plain

MANIFEST = "watermark.yaml"
EMBED, DETECT = "embed.onnx", "detect.onnx"


@dataclass(frozen=True)
class WatermarkManifest(Ranged):
    """Content of a watermark's manifest."""

    sample_rate_hz: Annotated[int, AtLeast(1)]
    window: Annotated[int, AtLeast(2)]
    """Samples of a Hann window. A frame is the spectrum of one window."""
    hop: Annotated[int, AtLeast(1)]
    """Samples between two frames."""
    bands: Annotated[int, AtLeast(1)]
    """Number of the lowest bins of a frame, which carry the mark."""
    threshold: Annotated[float, Between(0.0, 1.0)]
    """Smallest confidence at which the mark counts as detected."""
    source: str
    licence: str
    files: dict[str, File] = field(default_factory=dict)

    @property
    def graphs(self) -> dict[str, GraphSpec]:
        """File → its graph. N counts frames; `gain` multiplies the lowest bins."""
        frames = (TensorSpec("magnitude", "float32", ("N", self.window // 2 + 1)),)
        gain = (TensorSpec("gain", "float32", ("N", self.bands)),)
        confidence = (TensorSpec("confidence", "float32", (1,)),)
        return {EMBED: GraphSpec("embed", frames, gain), DETECT: GraphSpec("detect", frames, confidence)}


def read(folder: Path) -> WatermarkManifest:
    """Read a folder's manifest, and check the hash of every file. Raises ConfigError with the fault."""
    path = folder / MANIFEST
    try:
        raw = parse_yaml(path.read_bytes(), path, BundleError)
        manifest = from_mapping(WatermarkManifest, raw, where=str(path), error=BundleError)
        if missing := manifest.graphs.keys() - manifest.files:
            raise BundleError(f"{path}: files: must have {', '.join(sorted(missing))}")
        check_files(folder, manifest.files, "watermark")
    except OSError as error:
        expected = "must be a folder of `python -m export watermark`, or null"
        raise ConfigError(f"audio.watermark: {expected}: {path}: {error.strerror}") from error
    except BundleError as error:
        raise ConfigError(f"audio.watermark: {error}") from error
    return manifest


def write(folder: Path, manifest: WatermarkManifest) -> None:
    """Hash the folder's files, and write the manifest."""
    files = {path.name: File(sha256(path), path.stat().st_size) for path in sorted(folder.glob("*.onnx*"))}
    text = yaml.safe_dump(to_plain(replace(manifest, files=files)), sort_keys=False, width=110)
    (folder / MANIFEST).write_text(text, "utf-8")

"""Perth's watermark (resemble-perth, MIT): converts the weights in the package's wheel to two ONNX graphs."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

from appliance.contract import watermark as contract
from appliance.durable import publish
from export.graphs import to_onnx
from export.sources.header import CheckpointError

WEIGHTS = "perth_net_250000.pth.tar"
HPARAMS = "hparams.yaml"
LEAST, FLOOR_DB, RANGE_DB = 1e-9, -180.0, 195.0
"""Magnitude that reads as 0, its level in decibels, and the decibels from there to 1."""
TRAINED = {
    "sample_rate": 32_000,
    "n_fft": 2_048,
    "window_size": 2_048,
    "hop_size": 320,
    "stft_magnitude_min": LEAST,
    "window_fn": "hann",
}
QUIET = 0.05
"""Share of the loudest frame below which frames have no mark."""
RATE_HZ, WINDOW, HOP = 24_000, 1_536, 240
"""Rate, window and hop of the graphs.

At three quarters of the network's rate, bins and frames have its own width.
"""
THRESHOLD = 0.5


def layers(subband: int, hidden: int, out: int) -> nn.Sequential:
    widths = (nn.Conv1d(hidden, hidden, 7, padding=3) for _ in range(5))
    inner = [part for conv in (nn.Conv1d(subband, hidden, 1), *widths) for part in (conv, nn.LeakyReLU())]
    return nn.Sequential(*inner, nn.Conv1d(hidden, out, 1))


def normalised(magnitude: Tensor) -> tuple[Tensor, Tensor]:
    """(N, bins) magnitudes → (1, bins, N) from 0 at the floor, and (1, 1, N): 1 if a frame is not quiet."""
    decibels = 20 * torch.log10((magnitude * (2_048 / WINDOW)).clamp(min=LEAST))
    level = ((decibels - FLOOR_DB) / RANGE_DB).T[None]
    sums = level.sum(1, keepdim=True)
    return level, (sums > QUIET * sums.amax(2, keepdim=True)).to(level.dtype)


class Embed(nn.Module):
    def __init__(self, subband: int, hidden: int) -> None:
        super().__init__()
        self.subband = subband
        self.layers = layers(subband, hidden, subband)

    def forward(self, magnitude: Tensor) -> Tensor:
        """(N, bins) → (N, subband) gains."""
        level, mask = normalised(magnitude)
        added = self.layers(level[:, : self.subband]) * mask
        return torch.pow(10.0, added[0].T * (RANGE_DB / 20))


class Detect(nn.Module):
    def __init__(self, subband: int, hidden: int) -> None:
        super().__init__()
        self.subband = subband
        self.slow_layers = layers(subband, hidden, 2)
        self.normal_layers = layers(subband, hidden, 2)
        self.fast_layers = layers(subband, hidden, 2)

    def forward(self, magnitude: Tensor) -> Tensor:
        """(N, bins) → (1) confidence, near 0 to 1: three paces, weighed by their own attention."""
        level, mask = normalised(magnitude)
        level = level[:, : self.subband]
        frames = level.shape[2]
        found = []
        for net, length in (
            (self.slow_layers, frames * 5 // 4),
            (self.normal_layers, frames),
            (self.fast_layers, frames * 3 // 4),
        ):
            paced, heard = _paced(level, length), _nearest(mask, length)
            found.append((net(paced) * heard).sum(2) / heard.sum(2))
        attention, marks = torch.stack(found, 2)[0]
        return (marks * F.softmax(attention, 0)).sum(0, keepdim=True)


def _paced(level: Tensor, length: int) -> Tensor:
    """(1, C, N) → (1, C, length), linearly, with the ends in place."""
    at, steps = _places(length)
    at = at * ((level[0, 0] * 0 + 1).sum() - 1) / (steps - 1).clamp(min=1)
    before = at.long()
    after = (before + 1).clamp(max=level.shape[2] - 1)
    return torch.lerp(level[:, :, before], level[:, :, after], at - before)


def _nearest(mask: Tensor, length: int) -> Tensor:
    at, steps = _places(length)
    # This computes in whole numbers, because a rounded quotient could be below the right frame.
    frames = (mask[0, 0] * 0 + 1).sum().long()
    return mask[:, :, at.long() * frames // steps.long()]


def _places(length: int) -> tuple[Tensor, Tensor]:
    """(length,) from 0 on, and the length as a tensor, because the tracer cannot multiply by a symbol."""
    ones = torch.ones(length)
    return ones.cumsum(0) - 1, ones.sum()


def read_wheel(path: Path) -> Mapping[str, Tensor]:
    """Weights of a wheel of resemble-perth. Raises CheckpointError."""
    try:
        with zipfile.ZipFile(path) as wheel:
            names = {Path(name).name: name for name in wheel.namelist()}
            hparams = yaml.safe_load(wheel.read(names[HPARAMS]))
            stored = io.BytesIO(wheel.read(names[WEIGHTS]))
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{path}: is no wheel of resemble-perth 1.0.1: {error}") from error
    if {name: hparams.get(name) for name in TRAINED} != TRAINED:
        raise CheckpointError(f"{path}: {HPARAMS}: other values than in resemble-perth 1.0.1")
    weights = torch.load(stored, "cpu", weights_only=True)["model"]
    return {name.replace(".conv.", "."): tensor for name, tensor in weights.items()}


def networks(weights: Mapping[str, Tensor]) -> tuple[Embed, Detect]:
    """The two networks with these weights. Raises RuntimeError for weights of another layout."""
    hidden, subband, _ = weights["encoder.layers.0.weight"].shape
    made = Embed(subband, hidden), Detect(subband, hidden)
    for prefix, net in zip(("encoder.", "decoder."), made, strict=True):
        own = {name.removeprefix(prefix): one for name, one in weights.items() if name.startswith(prefix)}
        net.load_state_dict({_place(name): tensor for name, tensor in own.items()})
    return made


def _place(name: str) -> str:
    """Name of a tensor in `layers`, in which activations count, too."""
    net, number, kind = name.split(".")
    return f"{net}.{2 * int(number)}.{kind}"


def export(embed: Embed, detect: Detect, out: Path, source: str) -> None:
    """Write the folder `out`. Raises ExportError, and OSError for a full folder."""
    out.parent.mkdir(parents=True, exist_ok=True)
    manifest = contract.WatermarkManifest(RATE_HZ, WINDOW, HOP, embed.subband, THRESHOLD, source, "MIT")
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        made = Path(scratch) / out.name
        made.mkdir()
        for (name, spec), net in zip(manifest.graphs.items(), (embed, detect), strict=True):
            to_onnx.export(net, spec, made / name)
        contract.write(made, manifest)
        publish(made, out)


def export_wheel(wheel: Path, out: Path) -> None:
    """Convert a wheel to the folder `out`. Raises CheckpointError, ExportError, OSError."""
    export(*networks(read_wheel(wheel)), out, "resemble-perth 1.0.1")
    print(f"{out}: written; on the device: audio.watermark: {out}")

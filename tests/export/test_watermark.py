"""The watermark's graphs against torch's transforms, and against the code in the wheel of its authors."""

import importlib
import os
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch
from torch.nn import functional as F

from appliance.engine.watermark import Watermark
from export import watermark as export
from export.cli import main
from export.sources.header import CheckpointError
from tests.harness import traces
from tests.harness.daemons import SPEECH
from tests.tiny.generate import watermark as write_tiny

WHEEL = os.environ.get("F5_PERTH_WHEEL", "")
"""resemble_perth-1.0.1-py3-none-any.whl, which `pip download --no-deps` brings."""
pytestmark = pytest.mark.slow


def speech() -> np.ndarray:
    return np.asarray(soundfile.read(SPEECH, dtype="float32")[0])


def level_of(samples: np.ndarray, size: int, hop: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(1, bins, N) normalised decibels of Perth's code at 32 kHz, and the spectrum."""
    window = torch.hann_window(size)
    spectrum = torch.stft(torch.from_numpy(samples), size, hop, window=window, return_complex=True)
    decibels = 20 * torch.log10((spectrum.abs() * 2_048 / size).clip(1e-9))
    return ((decibels + 180) / 195)[None], spectrum


def waved(level: torch.Tensor, spectrum: torch.Tensor, size: int, hop: int, count: int) -> np.ndarray:
    magnitude = 10 ** ((level[0] * 195 - 180) / 20) * size / 2_048
    marked = torch.polar(magnitude, spectrum.angle())
    return torch.istft(marked, size, hop, window=torch.hann_window(size), length=count).numpy()


@torch.no_grad()
def test_the_exported_graph_computes_as_torch(tmp_path: Path) -> None:
    made: list[torch.nn.Module] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            export.to_onnx,
            "export",
            lambda net, *rest: (made.append(net), traces.of(net, *rest)),  # type: ignore
        )
        write_tiny(tmp_path / "mark")
    embed, detect = made
    watermark = Watermark(tmp_path / "mark", 1)
    for count in (len(speech()), 24_000, 7_777):
        samples = speech()[:count]
        level, spectrum = level_of(samples, 1_536, 240)
        marked = level.clone()
        marked[:, :128] += embed.layers(level[:, :128])
        expected = waved(marked, spectrum, 1_536, 240, len(samples))
        got = watermark.embed(samples)
        # Fewer windows cover the last samples than torch's inverse counts.
        assert np.abs(got - expected).max() <= 2e-4 * np.abs(samples).max()
        assert np.abs(got - samples).max() > 0.01 * np.abs(samples).max()
        outputs = []
        for net, pace in ((detect.slow_layers, 1.25), (detect.normal_layers, 1), (detect.fast_layers, 0.75)):
            length = int(level.shape[2] * pace)
            paced = F.interpolate(level[:, :128], size=length, mode="linear", align_corners=True)
            outputs.append(net(paced).mean(2)[0])
        attention, marks = torch.stack(outputs, 1)
        wanted = float((marks * attention.softmax(0)).sum())
        assert 0 < wanted < 1
        assert watermark.confidence(samples, 24_000) == pytest.approx(wanted, abs=1e-4)


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.whl"
    for data in (b"no wheel", b""):
        path.write_bytes(data)
        assert main(["watermark", str(path), "--out", str(tmp_path / "out")]) == 1
        assert "other.whl: is no wheel of resemble-perth 1.0.1" in capsys.readouterr().err
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"perth/{export.HPARAMS}", "sample_rate: 16000")
        wheel.writestr(f"perth/{export.WEIGHTS}", b"")
    with pytest.raises(CheckpointError, match="other values"):
        export.read_wheel(path)
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
@pytest.mark.skipif(not WHEEL, reason="F5_PERTH_WHEEL names no wheel")
@torch.no_grad()
def test_trained_weights_mark_as_their_makers_code_does(tmp_path: Path) -> None:
    """Our mark at 24 kHz equals the mark of the wheel's networks at 32 kHz, the rate of their training."""
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("perth", "perth.perth_net"):  # their __init__ needs packages that are not installed
            package = types.ModuleType(name)
            package.__path__ = [str(tmp_path / name.replace(".", "/"))]
            patch.setitem(sys.modules, name, package)
        model = "perth.perth_net.perth_net_implicit.model"
        encoder, decoder = (importlib.import_module(f"{model}.{name}") for name in ("encoder", "decoder"))
    weights = torch.load(next(tmp_path.rglob(export.WEIGHTS)), "cpu", weights_only=True)["model"]
    nets = encoder.Encoder(256, 128).eval(), decoder.Decoder(256, 128).eval()
    for prefix, net in zip(("encoder.", "decoder."), nets, strict=True):
        net.load_state_dict({n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)})
    export.export_wheel(Path(WHEEL), tmp_path / "mark")
    watermark = Watermark(tmp_path / "mark", 1)
    samples = speech()
    theirs_in = soxr.resample(samples, 24_000, 32_000, "VHQ")
    level, spectrum = level_of(theirs_in, 2_048, 320)
    theirs = waved(nets[0](level)[0], spectrum, 2_048, 320, len(theirs_in))
    ours = watermark.embed(samples)
    mark = soxr.resample(theirs - theirs_in, 32_000, 24_000, "VHQ")[: len(samples)]
    inside = slice(2_000, -2_000)
    difference = (ours - samples)[inside] - mark[inside]
    assert np.linalg.norm(difference) <= 0.01 * np.linalg.norm(mark[inside])
    for sound in (samples, ours, theirs):
        rate_hz = 32_000 if sound is theirs else 24_000
        heard = sound if sound is theirs else soxr.resample(sound, 24_000, 32_000, "VHQ")
        expected = min(max(float(nets[1](level_of(heard, 2_048, 320)[0])), 0.0), 1.0)
        assert watermark.confidence(sound, rate_hz) == pytest.approx(expected, abs=0.03)

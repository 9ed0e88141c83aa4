"""The source-filter vocoder against a plain synthesis from its formula, and its graph against it."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from appliance.contract.bundle import Vocoder
from appliance.contract.graphs import Dimensions, vocoder
from appliance.contract.mel import MelSpec
from export.graphs import vocoders
from export.model import source
from export.model.source import BAND_HZ, NOISE_FRAMES, PULSE_BINS, Source
from export.model.vocos import VocosConfig
from tests.engine.lanes import relative
from tests.export.random_checkpoint import redraw
from tests.harness import traces
from tests.harness.small import MELS, run

pytestmark = pytest.mark.torch

N_FFT, HOP, RATE_HZ = 1024, 256, 24_000
CONFIG = VocosConfig(MELS, 32, 64, 2, N_FFT, HOP, "center", head="SourceFilterHead")
LENGTHS = [3, 64, NOISE_FRAMES + 40]

Wave = NDArray[np.float64]


@pytest.fixture(scope="module")
def model() -> Source:
    """A random model with a moving pitch that tells voiced frames from unvoiced."""
    made = Source(CONFIG).requires_grad_(False).eval()
    redraw(made, 5)
    made.pitch.out.weight.mul_(8)
    return made


def log_mel(frames: int) -> Tensor:
    """(frames, M) that changes slowly, so that the pitch glides."""
    drawn = torch.randn(1, MELS, frames // 4 + 2, generator=torch.Generator().manual_seed(frames))
    return 3 * torch.nn.functional.interpolate(drawn, size=frames, mode="linear")[0].T - 4


def plain_pulses(hz: Wave, first_cycle: float = 0.0) -> Wave:
    """((N + 3)·hop,): cosines of all harmonics below BAND_HZ, one by one, sample by sample."""
    hz = np.concatenate([hz[:1], hz[:1], hz, hz[-1:], hz[-1:]])
    parts, cycles = [], first_cycle
    for before, after in pairwise(hz):
        glide = np.linspace(before or after, after or before, HOP + 1)
        turned = cycles + np.concatenate([[0], np.cumsum((glide[1:] + glide[:-1]) / 2)]) / RATE_HZ
        harmonics = np.arange(1, int(BAND_HZ / max(glide.max(), source.LOWEST_HZ)) + 1)
        wave = np.cos(2 * np.pi * harmonics[:, None] * turned[:-1]).sum(axis=0)
        wave[: HOP // 2] *= before > 0
        wave[HOP // 2 :] *= after > 0
        parts.append(wave)
        cycles = turned[-1]
    return np.concatenate(parts)


def plain_synthesis(model: Source, mel: Tensor) -> Wave:
    """S = harmonics · E + noise · Z of each frame, then windowed inverse FFTs added up."""
    hz = model.pitch.hz(mel[None])[0].double().numpy()
    assert len(hz) < 10 or ((hz > 0).any() and (hz == 0).any())
    harmonics, loudness = (part[0].double().numpy() for part in model.head(model.backbone(mel.T[None])))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)
    pulses, bins = plain_pulses(hz), N_FFT // 2 + 1
    stored = model.head.noise.double().numpy()
    samples, weights = np.zeros((2, len(pulses)))
    for n in range(len(hz)):
        frame = slice(n * HOP, n * HOP + N_FFT)
        spectrum = np.zeros(bins, complex)
        excited = np.fft.rfft(pulses[frame] * window) * 4 / N_FFT
        spectrum[:PULSE_BINS] = excited[:PULSE_BINS] * harmonics[n]
        drawn = stored[n % NOISE_FRAMES]
        spectrum += (drawn[:bins] + 1j * drawn[bins:]) * loudness[n]
        samples[frame] += np.fft.irfft(spectrum) * window
        weights[frame] += window**2
    middle = slice(N_FFT // 2, -N_FFT // 2)
    return samples[middle] / weights[middle]


def test_pulses_are_a_sum_of_cosines() -> None:
    hz = np.array([0, 0, 110, 118, 300, 0, 0, 555, 540, 52, 52.0])
    found = source.pulses(torch.from_numpy(hz).float()[None], HOP, RATE_HZ, 2 * HOP, torch.tensor([0.3]))[0]
    assert relative(found.numpy(), plain_pulses(hz, 0.3)) < 1e-3


@pytest.mark.parametrize("frames", LENGTHS)
def test_samples_follow_the_formula(model: Source, frames: int) -> None:
    mel = log_mel(frames)
    found = model(mel).numpy()
    assert found.shape == ((frames - 1) * HOP,) and found.std() > 0.01
    assert relative(found, plain_synthesis(model, mel)) < 2e-3


def test_training_shifts_the_pulses_and_rolls_the_noise(model: Source) -> None:
    mel = torch.stack([log_mel(64)] * 2)
    alike, shifted = model.synthesise(mel, torch.tensor([0.0, 0.5]))
    rolled, whole = model.synthesise(mel, None, 3)[0], model.synthesise(mel, torch.ones(2), NOISE_FRAMES)[0]
    for other, same in ((model(mel[0]), True), (whole, True), (shifted, False), (rolled, False)):
        assert (relative(other.numpy(), alike.numpy()) < 1e-3) == same


@pytest.mark.parametrize("compute", [torch.float32, torch.float16])
def test_the_graph_gives_the_models_samples(model: Source, tmp_path: Path, compute: torch.dtype) -> None:
    record = Vocoder("source-filter", "center")
    module = vocoders.SourceFilter(model.state_dict(), MelSpec("vocos"), record, compute)
    path = tmp_path / "vocoder.onnx"
    traces.of(module, vocoder(Dimensions(dim=1, depth=1, mels=MELS, inner=1)), path)
    for frames in LENGTHS:
        mel = log_mel(frames)
        expected = model(mel).numpy()
        assert relative(module(mel).numpy(), expected) < 2e-3
        assert relative(run(path, {"log_mel": mel.numpy()})["samples"], expected) < 2e-3

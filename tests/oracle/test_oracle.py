"""The oracle: upstream's code runs, and the stand-ins for torchaudio compute what their formulas define."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from tests.oracle import upstream

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
redraw = pytest.importorskip("tests.export.random_checkpoint").redraw
SIZES = {"dim": 32, "depth": 1, "heads": 1, "dim_head": 32, "ff_mult": 2, "text_dim": 16, "conv_layers": 1}


def noise(samples: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(samples) * 0.1).astype(np.float32)


def test_versions_agree_with_the_parity_claims() -> None:
    from importlib.metadata import version

    upstream.require()
    named = {"f5-tts": "1.1.22", "vocos": "0.1.0", "x-transformers": "2.31.10", "torchdiffeq": "0.2.5"}
    assert {name: version(name) for name in named} == named


def test_no_stand_in_stays_behind() -> None:
    upstream.infer_utils()
    assert "matplotlib" not in sys.modules
    assert "encodec" not in sys.modules
    assert not any("third_party" in entry for entry in sys.path)


def test_log_mel_equals_a_numpy_one_frame_by_frame() -> None:
    wave = noise(6000)
    mel = upstream.vocos_mel(torch.from_numpy(wave)[None])[0].numpy()

    n_fft, hop, mels, rate = 1024, 256, 100, 24_000
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    padded = np.pad(wave.astype(np.float64), n_fft // 2, mode="reflect")
    frames = 6000 // hop + 1
    assert mel.shape == (mels, frames)
    hz = np.arange(n_fft // 2 + 1) * rate / n_fft
    edge_mels = np.linspace(0, 2595 * math.log10(1 + rate / 2 / 700), mels + 2)
    edges = 700 * (10 ** (edge_mels / 2595) - 1)
    for frame in range(frames):
        magnitude = np.abs(np.fft.rfft(padded[frame * hop : frame * hop + n_fft] * window))
        for band in range(mels):
            low, centre, high = edges[band : band + 3]
            rising, falling = (hz - low) / (centre - low), (high - hz) / (high - centre)
            triangle = np.maximum(0, np.minimum(rising, falling))
            expected = math.log(max(triangle @ magnitude, 1e-5))
            assert mel[band, frame] == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize(("rate", "new_rate"), [(44_100, 24_000), (16_000, 24_000), (48_000, 24_000)])
def test_resampler_equals_the_sum_it_is_defined_by(rate: int, new_rate: int) -> None:
    wave = noise(700)
    resampled = upstream.resample(torch.from_numpy(wave)[None], rate, new_rate)[0].numpy()
    assert len(resampled) == math.ceil(700 * new_rate / rate)

    cut = 0.99 * min(rate, new_rate)
    n = np.arange(700)
    for m in range(0, len(resampled), 7):
        crossings = (m / new_rate - n / rate) * cut
        kernel = np.where(np.abs(crossings) < 6, np.sinc(crossings) * np.cos(np.pi * crossings / 12) ** 2, 0)
        assert resampled[m] == pytest.approx(kernel @ wave * cut / rate, abs=2e-6)


def test_whole_pipeline_runs_from_wav_to_wave(tmp_path: Path) -> None:
    from vocos import Vocos
    from vocos.feature_extractors import MelSpectrogramFeatures
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone

    path = tmp_path / "reference.wav"
    soundfile.write(path, np.concatenate([np.zeros(12_000, np.float32), noise(24_000)]), 24_000)
    reference, rate, text = upstream.preprocess_reference(path, "two words.")
    assert (rate, text) == (24_000, "two words. ")
    # The leading silence is removed; pydub makes its 50 ms at 11,025 Hz and converts them: 1198 samples.
    assert reference.shape == (1, 24_000 + 1198)

    vocabulary = {token: i for i, token in enumerate(" abcdefghijklmnopqrstuvwxyz.,")}
    dit = upstream.dit_class()(**SIZES, text_num_embeds=len(vocabulary))
    redraw(dit, 0)
    model = upstream.cfm_class()(dit, vocab_char_map=vocabulary).eval()
    vocoder = Vocos(
        MelSpectrogramFeatures(), VocosBackbone(100, 16, 32, 1), ISTFTHead(16, 1024, 256, padding="center")
    ).eval()

    def speak() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        torch.manual_seed(3)
        audio = torch.from_numpy(reference)
        return upstream.infer_batch(
            (audio, rate), text, ["one more thing", "and one."], model, vocoder, nfe_step=5
        )

    wave, mel = speak()
    reference_frames = reference.shape[1] // 256
    # Upstream pads "two words. " to 12 bytes; it speaks a text below 10 bytes at 0.3 of the pace.
    frames = [int(reference_frames / 12 * 14 / 1), int(reference_frames / 12 * 8 / 0.3)]
    assert mel.shape == (100, sum(frames))
    assert wave.shape == (sum((n - 1) * 256 for n in frames) - 3600,)
    np.testing.assert_array_equal(wave, speak()[0])

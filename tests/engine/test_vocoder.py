"""The vocoder graph at true lengths."""

from __future__ import annotations

import numpy as np
import pytest

from appliance.contract.bundle import Bundle, Vocoder
from appliance.engine.vocoder import Decoder
from tests.engine.lanes import Watched, relative, segment


def decoder(tiny: Bundle) -> tuple[Decoder, Watched]:
    backend = Watched()
    manifest = tiny.manifest
    return Decoder(backend.load(tiny.graph("vocoder")), backend, manifest.vocoder, manifest.mel.hop), backend


@pytest.mark.parametrize(("frames", "samples"), [(2, 256), (3, 512), (40, 39 * 256)])
def test_a_centred_vocoder_gives_one_hop_less_than_frames(tiny: Bundle, frames: int, samples: int) -> None:
    decode, backend = decoder(tiny)
    wave = decode(segment(50).noise[:frames] - 4.0)
    assert wave.shape == (samples,) and wave.dtype == np.float32 and wave.any()
    assert backend.runs == [{"log_mel": (frames, 100)}]


@pytest.mark.parametrize("frames", [0, 1])
def test_too_few_frames_for_a_sample_give_none_and_run_nothing(tiny: Bundle, frames: int) -> None:
    decode, backend = decoder(tiny)
    assert decode(np.zeros((frames, 100), np.float32)).shape == (0,)
    assert backend.runs == []


def test_far_frames_do_not_reach_a_sample(tiny: Bundle) -> None:
    """Seven-tap convolutions of three layers and four overlapping windows: eleven frames."""
    decode, _ = decoder(tiny)
    mel = segment(60).noise - 4.0
    other = mel.copy()
    other[40:] += 1.0
    one, two = decode(mel), decode(other)
    assert relative(one[: 28 * 256], two[: 28 * 256]) <= 1e-6
    assert relative(one[28 * 256 :], two[28 * 256 :]) > 1e-2


@pytest.mark.parametrize("frames", [0, 1, 2, 77])
def test_lengths_follow_the_padding(frames: int) -> None:
    assert Vocoder("vocos", "center").samples(frames, 256) == max(frames - 1, 0) * 256
    assert Vocoder("vocos", "same").samples(frames, 256) == frames * 256
    assert Vocoder("bigvgan", "same").samples(frames, 256) == frames * 256

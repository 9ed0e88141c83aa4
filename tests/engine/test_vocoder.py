"""The vocoder graph at true lengths, from memory that segments share."""

from __future__ import annotations

import numpy as np
import pytest

from appliance.contract.bundle import Bundle, Vocoder
from appliance.contract.graphs import signatures
from appliance.engine.vocoder import Decoder
from appliance.request import FloatArray
from tests.engine.lanes import Watched, relative, segment

pytestmark = pytest.mark.once

LONGEST = 80


class Bench:
    def __init__(self, tiny: Bundle) -> None:
        self.backend, manifest = Watched(), tiny.manifest
        spec = signatures(manifest.dimensions)["vocoder"]
        graph = self.backend.load("vocoder", tiny.graph("vocoder"), spec, {})
        mel = manifest.mel
        self.decoder = Decoder(graph, self.backend, manifest.vocoder, mel.hop, mel.mels, LONGEST)

    def __call__(self, mel: FloatArray) -> FloatArray:
        self.backend.upload(mel, self.decoder.frames(len(mel)))
        return self.decoder.run(len(mel))


@pytest.fixture
def decode(tiny: Bundle) -> Bench:
    return Bench(tiny)


def spoken(frames: int, seed: int = 0) -> FloatArray:
    return segment(LONGEST, seed=seed).noise[:frames] - np.float32(4.0)


@pytest.mark.parametrize(("frames", "samples"), [(2, 256), (3, 512), (40, 39 * 256), (LONGEST, 79 * 256)])
def test_a_centred_vocoder_gives_one_hop_less_than_frames(decode: Bench, frames: int, samples: int) -> None:
    wave = decode(spoken(frames))
    assert wave.shape == (samples,) and wave.dtype == np.float32 and wave.any()
    (run,) = decode.backend.runs
    assert run.shapes == {"log_mel": (frames, 100), "samples": (samples,)}


@pytest.mark.parametrize("frames", [0, 1])
def test_too_few_frames_for_a_sample_give_none_and_run_nothing(decode: Bench, frames: int) -> None:
    assert decode(np.zeros((frames, 100), np.float32)).shape == (0,)
    assert decode.backend.runs == []


def test_a_short_segment_after_a_long_one_equals_a_fresh_decoders(tiny: Bundle, decode: Bench) -> None:
    long = decode(spoken(LONGEST, seed=1))
    kept = long.copy()
    assert np.array_equal(decode(spoken(23)), Bench(tiny)(spoken(23)))
    assert np.array_equal(long, kept)  # what was given away is the caller's
    decode.backend.watch()
    decode(spoken(31))
    assert decode.backend.allocated == []


def test_far_frames_do_not_reach_a_sample(decode: Bench) -> None:
    """Seven-tap convolutions of three layers and four overlapping windows: eleven frames."""
    mel = spoken(60)
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

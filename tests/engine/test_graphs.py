"""The condition and the vocoder graph: inputs, true lengths, memory that segments share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from appliance.contract.bundle import Bundle, Vocoder
from appliance.contract.graphs import Upsampling, signatures
from appliance.engine.backend import Tensor
from appliance.engine.condition import Conditioner, counts, padded_ids, padded_mel, upsample_index
from appliance.engine.vocoder import Decoder
from appliance.request import FloatArray
from tests.engine.lanes import Watched, relative, segment

pytestmark = pytest.mark.once

LONGEST = 90


class Condition:
    def __init__(self, tiny: Bundle) -> None:
        self.backend, d = Watched(), tiny.manifest.dimensions
        graph = self.backend.load("condition", tiny.graph("condition"), signatures(d)["condition"], {})
        self.conditioner = Conditioner(graph, self.backend, d, LONGEST)

    def __call__(self, frames: int, **changes: object) -> FloatArray:
        found: FloatArray = np.array(self.conditioner(dataclasses.replace(segment(frames), **changes)))
        return found


class Decode:
    def __init__(self, tiny: Bundle) -> None:
        self.backend, manifest = Watched(), tiny.manifest
        spec = signatures(manifest.dimensions)["vocoder"]
        graph = self.backend.load("vocoder", tiny.graph("vocoder"), spec, {})
        mel = manifest.mel
        self.decoder = Decoder(graph, self.backend, manifest.vocoder, mel.hop, mel.mels, LONGEST)

    def __call__(self, frames: int, seed: int = 0) -> FloatArray:
        return self.of(segment(LONGEST, seed=seed).noise[:frames] - np.float32(4.0))

    def of(self, mel: FloatArray) -> FloatArray:
        self.backend.upload(mel, self.decoder.frames(len(mel)))
        return self.decoder.run(len(mel))


@pytest.mark.parametrize("make", [Condition, Decode])
def test_a_short_segment_after_a_long_one_equals_a_fresh_ones(
    tiny: Bundle, make: Callable[[Bundle], Condition | Decode]
) -> None:
    graph = make(tiny)
    long = graph(LONGEST)
    kept = long.copy()
    graph.backend.watch()
    for frames in (20, 41):
        assert np.array_equal(graph(frames), make(tiny)(frames))
    assert graph.backend.allocated == [] and graph.backend.strangers == []
    assert np.array_equal(long, kept), "what was given away is the caller's"


def test_inputs_of_the_condition_are_padded() -> None:
    ids = np.array([0, 4, 2], np.int32)
    for frames, wanted in ((5, [1, 5, 3, 0, 0]), (2, [1, 5])):
        found = padded_ids(ids, frames)
        assert found.tolist() == wanted and found.dtype == np.int32
    assert padded_mel(np.ones((2, 3), np.float32), 4).tolist() == [[1] * 3, [1] * 3, [0] * 3, [0] * 3]


@pytest.mark.parametrize("tokens", [1, 2, 7, 19, 40])
@pytest.mark.parametrize("frames", [1, 2, 7, 20, 41, 200])
def test_tokens_are_spread_evenly_and_the_last_take_the_rest(tokens: int, frames: int) -> None:
    index = upsample_index(tokens, frames)
    assert index.shape == (frames,) and index.dtype == np.int32
    counts = np.bincount(index).tolist()
    assert len(counts) == min(tokens, frames)
    assert index.tolist() == sorted(index.tolist())
    assert counts == sorted(counts) and counts[-1] - counts[0] <= 1


@pytest.mark.parametrize(("tokens", "frames", "wanted"), [
    (2, 9, [1, 1, 1, 1, 1, 4]), (2, 6, [1, 1, 1, 1, 1, 1]), (2, 4, [1, 1, 1, 1, 0, 0]),
    (1, 1, [1, 0, 0, 0, 0]),
])  # fmt: skip
def test_tokens_and_fillers_stand_for_all_positions(tokens: int, frames: int, wanted: list[int]) -> None:
    assert counts(tokens, frames).tolist() == wanted and sum(wanted) == frames


@pytest.mark.parametrize(("upsampling", "positions"), [
    ("spread", {"ids": 50}), ("tokens", {"ids": 11, "counts": 11}),
])  # fmt: skip
def test_the_index_is_fed_where_the_family_upsamples_text(
    tiny: Bundle, upsampling: Upsampling, positions: dict[str, int]
) -> None:
    class Noted:
        def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Noted:
            self.inputs = inputs
            return self

        def run(self, *, release: bool = False) -> None: ...

    graph = Noted()
    d = dataclasses.replace(tiny.manifest.dimensions, upsampling=upsampling, compute="float16")
    conditioner, given = Conditioner(graph, Watched(), d, LONGEST), segment(50)
    out = conditioner(given)
    assert out.dtype == np.float16
    assert list(graph.inputs) == [t.name for t in signatures(d)["condition"].inputs]
    assert {name: len(np.asarray(graph.inputs[name])) for name in positions} == positions
    assert np.asarray(graph.inputs["upsample_index"]).tolist() == upsample_index(7, 50).tolist()
    placed = np.sort(np.arange(50, dtype=np.int32) ** 2 % 7)
    conditioner(dataclasses.replace(given, upsample_index=placed))
    assert np.asarray(graph.inputs["upsample_index"]).tolist() == placed.tolist()


@pytest.mark.parametrize("frames", [0, 1, 2, 3, 40, LONGEST])
def test_a_centred_vocoder_gives_one_hop_less_than_frames(tiny: Bundle, frames: int) -> None:
    """If the frames are too few for a sample, the vocoder returns none and runs nothing."""
    decode, samples = Decode(tiny), max(frames - 1, 0) * 256
    wave = decode(frames)
    assert wave.shape == (samples,) and wave.dtype == np.float32 and wave.any() == (samples > 0)
    shapes = [run.shapes for run in decode.backend.runs]
    assert shapes == ([{"log_mel": (frames, 100), "samples": (samples,)}] if samples else [])
    for vocoder in (Vocoder("vocos", "same"), Vocoder("bigvgan", "same")):
        assert vocoder.samples(frames, 256) == frames * 256


def test_far_frames_do_not_reach_a_sample(tiny: Bundle) -> None:
    """Three layers of seven-tap convolutions and four overlapping windows reach eleven frames."""
    decode, mel = Decode(tiny), segment(LONGEST).noise[:60] - np.float32(4.0)
    other = mel.copy()
    other[40:] += 1.0
    one, two = decode.of(mel), decode.of(other)
    assert relative(one[: 28 * 256], two[: 28 * 256]) <= 1e-6
    assert relative(one[28 * 256 :], two[28 * 256 :]) > 1e-2

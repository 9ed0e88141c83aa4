"""The streaming joiner against upstream's cross-fade of the whole list."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.audio.join import Joiner, overlap_samples
from tests.oracle import upstream

pytestmark = pytest.mark.once

LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=8)


def waves(lengths: list[int]) -> list[np.ndarray]:
    draw = np.random.default_rng(len(lengths))
    return [draw.standard_normal(length).astype(np.float32) for length in lengths]


def join(pieces: list[np.ndarray], overlap: int) -> tuple[np.ndarray, list[int]]:
    joiner = Joiner(overlap)
    out = [joiner.push(piece, last=place == len(pieces) - 1) for place, piece in enumerate(pieces)]
    return np.concatenate(out), [len(part) for part in out]


def whole_list(pieces: list[np.ndarray], overlap: int) -> np.ndarray:
    """A second, independent cross-fade of the whole list: each piece is laid over the end of all pieces
    before it."""
    total = pieces[0].astype(np.float64)
    for piece in pieces[1:]:
        k = min(overlap, len(total), len(piece))
        weights = np.linspace(0, 1, k)
        mixed = np.append(total, np.zeros(len(piece) - k))
        mixed[len(total) - k : len(total)] = (
            total[len(total) - k :] * np.linspace(1, 0, k) + piece[:k] * weights
        )
        mixed[len(total) :] = piece[k:]
        total = mixed
    return total


@given(LENGTHS, st.integers(0, 40))
def test_equals_the_fade_of_the_whole_list(lengths, overlap):
    pieces = waves(lengths)
    got, _ = join(pieces, overlap)
    assert got.dtype == np.float32
    assert np.array_equal(got, whole_list(pieces, overlap).astype(np.float32))


@given(LENGTHS, st.integers(0, 40))
def test_gives_out_all_but_the_overlap_at_once(lengths, overlap):
    pieces = waves(lengths)
    _, given_out = join(pieces, overlap)
    for place in range(len(pieces) - 1):
        final = max(len(whole_list(pieces[: place + 1], overlap)) - overlap, 0)
        assert sum(given_out[: place + 1]) >= final


@pytest.mark.torch
@pytest.mark.parametrize("cross_fade_s", [0.15, 0.0, 0.6])
def test_equals_upstream(cross_fade_s):
    """Upstream's `infer_batch_process` with a model that returns the given waves."""
    import torch

    frames = [40, 3, 1, 90, 2, 5]
    pieces = waves([256 * n for n in frames])
    queue = list(pieces)

    class Model:
        def sample(self, **_):
            return torch.zeros(1, 500, 100), None

    class Vocoder:
        def decode(self, _):
            return torch.from_numpy(queue.pop(0))[None]

    loud = torch.full((1, 24_000), 0.5)
    wave, _ = upstream.infer_batch(
        (loud, 24_000), "Hello. ", ["x"] * len(pieces), Model(), Vocoder(), cross_fade_duration=cross_fade_s
    )
    got, _ = join(pieces, overlap_samples(cross_fade_s, 24_000))
    assert np.array_equal(got, wave.astype(np.float32))


def test_flush_returns_the_held_samples():
    joiner = Joiner(10)
    first = joiner.push(np.arange(30, dtype=np.float32))
    assert np.array_equal(np.append(first, joiner.flush()), np.arange(30))
    assert len(joiner.flush()) == 0


def test_a_lone_segment_is_untouched():
    (piece,) = waves([50])
    assert np.array_equal(join([piece], 20)[0], piece)


def test_overlaps_are_rounded_down():
    assert overlap_samples(0.15, 24_000) == 3_600
    assert overlap_samples(0.00011, 24_000) == 2
    with pytest.raises(ValueError, match="at least 0, not -1"):
        Joiner(-1)

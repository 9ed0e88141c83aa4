"""What is fed to the condition graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from appliance.contract.bundle import Bundle
from appliance.contract.graphs import signatures
from appliance.engine.backend import Tensor
from appliance.engine.condition import Conditioner, padded_ids, padded_mel, upsample_index
from tests.engine.lanes import Watched, segment

pytestmark = pytest.mark.once


def test_ids_are_shifted_cut_and_filled_with_the_filler() -> None:
    ids = np.array([0, 4, 2], np.int32)
    assert padded_ids(ids, 5).tolist() == [1, 5, 3, 0, 0]
    assert padded_ids(ids, 2).tolist() == [1, 5]
    assert padded_ids(ids, 3).dtype == np.int32


def test_the_reference_stands_first_and_zeros_follow() -> None:
    mel = np.ones((2, 3), np.float32)
    padded = padded_mel(mel, 4)
    assert padded.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("tokens", [1, 2, 7, 19, 40])
@pytest.mark.parametrize("frames", [1, 2, 7, 20, 41, 200])
def test_tokens_are_spread_evenly_and_the_last_take_the_rest(tokens: int, frames: int) -> None:
    index = upsample_index(tokens, frames)
    assert index.shape == (frames,) and index.dtype == np.int32
    counts = np.bincount(index).tolist()
    assert len(counts) == min(tokens, frames)
    assert index.tolist() == sorted(index.tolist())
    assert counts == sorted(counts) and counts[-1] - counts[0] <= 1


LONGEST = 90


def conditioner(tiny: Bundle, backend: Watched) -> Conditioner:
    d = tiny.manifest.dimensions
    graph = backend.load("condition", tiny.graph("condition"), signatures(d)["condition"], {})
    return Conditioner(graph, backend, d, LONGEST)


def test_the_graph_runs_at_the_segments_true_length(tiny: Bundle) -> None:
    backend, d = Watched(), tiny.manifest.dimensions
    out = conditioner(tiny, backend)(segment(53))
    assert out.shape == (2, 53, d.dim) and out.dtype == np.float32
    (run,) = backend.runs
    assert run.shapes == {"ids": (53,), "log_mel": (53, d.mels), "condition": (2, 53, d.dim)}
    rows = np.asarray(out)
    assert np.isfinite(rows).all() and not np.allclose(rows[0], rows[1])


def test_a_short_segment_after_a_long_one_equals_a_fresh_conditioners(tiny: Bundle) -> None:
    backend = Watched()
    condition = conditioner(tiny, backend)
    condition(segment(LONGEST, reference=70, seed=1))
    backend.watch()
    for frames in (20, 41):
        found = np.asarray(condition(segment(frames)))
        assert np.array_equal(found, conditioner(tiny, Watched())(segment(frames)))
    assert backend.allocated == [] and backend.strangers == []


def test_the_row_without_text_knows_the_texts_length_but_not_its_words(tiny: Bundle) -> None:
    """v1 masks by the real text in both rows."""
    condition = conditioner(tiny, Watched())
    given = segment(60)
    other = dataclasses.replace(
        given, ids=(given.ids + 5) % 100, reference_log_mel=given.reference_log_mel + np.float32(1.0)
    )
    longer = dataclasses.replace(given, ids=np.resize(given.ids, 2 * len(given.ids)))
    base, words, length = (np.array(condition(s)) for s in (given, other, longer))
    assert np.array_equal(base[1], words[1]) and not np.allclose(base[0], words[0])
    assert not np.allclose(base[1], length[1])


def test_the_index_is_fed_where_the_family_upsamples_text(tiny: Bundle) -> None:
    class Noted:
        """A graph that notes what it is bound to."""

        def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Noted:
            self.inputs = inputs
            return self

        def run(self, *, release: bool = False) -> None:
            pass

    graph = Noted()
    d = dataclasses.replace(tiny.manifest.dimensions, upsampling="spread", compute="float16")
    out = Conditioner(graph, Watched(), d, LONGEST)(segment(50))
    assert out.dtype == np.float16
    assert list(graph.inputs) == ["ids", "log_mel", "upsample_index"]
    assert np.asarray(graph.inputs["upsample_index"]).tolist() == upsample_index(7, 50).tolist()

"""The signatures of the graphs, written out."""

import dataclasses
import json

import pytest

from appliance.contract import graphs
from tests.harness.rows import rows

pytestmark = pytest.mark.once

V1_BASE = graphs.Dimensions(dim=1024, depth=22, mels=100, inner=1024)
TWO_BLOCKS = graphs.Dimensions(dim=64, depth=2, mels=100, inner=48)
KEPT = ("keys_0", "values_0", "keys_1", "values_1")


def table(d: graphs.Dimensions) -> dict[str, list[tuple[str, str, tuple[int | str, ...]]]]:
    """Graph → (name, dtype, axes) of its inputs, then of its outputs."""
    return {
        name: [(t.name, t.dtype, t.axes) for t in (*spec.inputs, *spec.outputs)]
        for name, spec in graphs.signatures(d).items()
    }


def test_the_signatures_of_two_blocks() -> None:
    assert json.loads(json.dumps(table(TWO_BLOCKS))) == dict(rows(__file__, "signatures.jsonl"))


def test_graphs_come_in_the_segments_order_and_all_but_the_masked_one_are_required() -> None:
    specs = graphs.signatures(V1_BASE)
    assert tuple(specs) == graphs.GRAPHS
    written = specs["step_keys"].outputs[1:]
    assert len(written) == 2 * 22 and specs["step_reply"].inputs[-len(written) :] == written
    assert all(spec.name == name for name, spec in specs.items())
    assert set(graphs.GRAPHS) - set(graphs.REQUIRED) == {"step"}


def test_float16_changes_conditions_keys_and_values_alone() -> None:
    half = table(dataclasses.replace(TWO_BLOCKS, compute="float16"))
    whole = table(TWO_BLOCKS)
    changed = {
        (graph, now[0])
        for graph in whole
        for now, was in zip(half[graph], whole[graph], strict=True)
        if now != was
    }
    kept = {(graph, name) for graph in ("step_keys", "step_reply") for name in KEPT}
    assert changed == kept | {
        ("condition", "condition"),
        ("step", "condition"),
        ("step_keys", "condition"),
        ("step_keys", "reference_condition"),
        ("step_reply", "condition"),
        ("step_reply", "context_condition"),
    }


def test_upsampling_adds_an_index_before_the_output() -> None:
    tensors = table(dataclasses.replace(V1_BASE, upsampling="spread"))["condition"]
    assert [name for name, _, _ in tensors] == ["ids", "log_mel", "upsample_index", "condition"]
    assert tensors[2] == ("upsample_index", "int32", ("N",))


def test_no_input_is_a_scalar_and_every_letter_is_known() -> None:
    for spec in graphs.signatures(dataclasses.replace(V1_BASE, upsampling="spread")).values():
        for tensor in (*spec.inputs, *spec.outputs):
            assert tensor.axes
            assert {axis for axis in tensor.axes if not isinstance(axis, int)} <= set("RNPCSKL")


def test_a_time_has_six_rows_for_each_block_and_two_for_the_end() -> None:
    rows = {depth: dataclasses.replace(V1_BASE, depth=depth).rows for depth in (1, 2, 18, 22)}
    assert rows == {1: 8, 2: 14, 18: 110, 22: 134}

"""The signatures of the four graphs, as the design's table has them."""

from __future__ import annotations

import dataclasses

import pytest

from appliance.contract import graphs

V1_BASE = graphs.Dimensions(dim=1024, depth=22, mels=100)


def table(d: graphs.Dimensions) -> dict[str, list[tuple[str, str, tuple[int | str, ...]]]]:
    """Graph → (name, dtype, axes) of its inputs, then of its outputs."""
    return {
        name: [(t.name, t.dtype, t.axes) for t in (*spec.inputs, *spec.outputs)]
        for name, spec in graphs.signatures(d).items()
    }


def test_the_signatures_of_v1_base() -> None:
    assert table(V1_BASE) == {
        "modulation": [("t", "float32", ("K",)), ("rows", "float32", ("K", 134, 1024))],
        "condition": [
            ("ids", "int32", ("N",)),
            ("log_mel", "float32", ("N", 100)),
            ("condition", "float32", (2, "N", 1024)),
        ],
        "step": [
            ("latents", "float32", ("B", "N", 100)),
            ("condition", "float32", ("B", "G", "N", 1024)),
            ("mod_table", "float32", ("S", 134, 1024)),
            ("step_index", "int32", ("B",)),
            ("dt", "float32", ("B",)),
            ("combine", "float32", ("B", "G")),
            ("lengths", "int32", ("B",)),
            ("latents_out", "float32", ("B", "N", 100)),
        ],
        "vocoder": [("log_mel", "float32", ("N", 100)), ("samples", "float32", ("L",))],
    }


def test_each_graph_has_one_output_and_comes_in_the_segments_order() -> None:
    specs = graphs.signatures(V1_BASE)
    assert tuple(specs) == graphs.GRAPHS
    assert all(spec.name == name and len(spec.outputs) == 1 for name, spec in specs.items())


def test_float16_changes_nothing_but_the_condition() -> None:
    half = table(dataclasses.replace(V1_BASE, compute="float16"))
    whole = table(V1_BASE)
    changed = {
        (graph, now[0])
        for graph in whole
        for now, was in zip(half[graph], whole[graph], strict=True)
        if now != was
    }
    assert changed == {("condition", "condition"), ("step", "condition")}


def test_upsampling_adds_an_index_before_the_output() -> None:
    rows = table(dataclasses.replace(V1_BASE, upsamples_text=True))["condition"]
    assert [name for name, _, _ in rows] == ["ids", "log_mel", "upsample_index", "condition"]
    assert rows[2] == ("upsample_index", "int32", ("N",))


def test_no_input_is_a_scalar_and_every_letter_is_known() -> None:
    for spec in graphs.signatures(dataclasses.replace(V1_BASE, upsamples_text=True)).values():
        for tensor in (*spec.inputs, *spec.outputs):
            assert tensor.axes
            assert {axis for axis in tensor.axes if not isinstance(axis, int)} <= set("BGNSKL")


@pytest.mark.parametrize(("depth", "rows"), [(1, 8), (2, 14), (18, 110), (22, 134)])
def test_a_time_has_six_rows_for_each_block_and_two_for_the_end(depth: int, rows: int) -> None:
    assert dataclasses.replace(V1_BASE, depth=depth).rows == rows

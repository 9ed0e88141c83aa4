"""Step graphs with ONNX Runtime's `MultiHeadAttention`, for its CUDA provider.

The mask (3·R + 2) int32 selects the memory-efficient kernel, which skips padding at both ends of a row: keys
per row; start of each row's queries in the flattened batch, and their end; start of its keys, and their end.
Source: `MASK_1D_KEY_SEQ_LEN_START` in ONNX Runtime from 1.20 on; README.md lists the kernels and files.

Other kernels misread this mask, so `engine/ort_cuda.py` requests the kernel by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import helper

DOMAIN = "com.microsoft"
MASKS = """
mask () => ()
<int64[1] mask_start = {{0}}, int64[1] mask_one = {{1}}, int32[1] mask_next = {{1}},
 int32[1] mask_none = {{0}}, int64[3] mask_flat = {{0, 0, -1}}>
{{
  mask_rows = Shape (lengths)
  mask_ends = Add (mask_rows, mask_one)
  mask_each = Slice (frame, mask_start, mask_ends)
  mask_frames = Shape <start: int = 1, end: int = 2> (latents)
  mask_last_query = Sub (mask_frames, mask_one)
  mask_query = Slice (frame, mask_last_query, mask_frames)
  mask_queries = Add (mask_query, mask_next)
  {}
}}
"""
"""Sizes are slices of frame numbers on the device, because a copy from the host would end a capture."""
ALONE = """
  mask_begins = Mul (mask_each, mask_queries)
  mask_all = Concat <axis: int = 0> (lengths, mask_begins, mask_begins)
"""
AFTER_A_REFERENCE = """
  mask_before = Shape <start: int = 1, end: int = 2> ({before})
  mask_length = Add (mask_frames, mask_before)
  mask_last_key = Sub (mask_length, mask_one)
  mask_key = Slice (frame, mask_last_key, mask_length)
  mask_keys = Add (mask_key, mask_next)
  mask_many = Add (lengths, reference_lengths)
  mask_held = Sub (mask_keys, mask_queries)
  mask_padding = Sub (mask_held, reference_lengths)
  mask_firsts = Concat <axis: int = 0> (mask_padding, mask_none)
  mask_rows_begin = Mul (mask_each, mask_keys)
  mask_keys_begin = Add (mask_rows_begin, mask_firsts)
  mask_replies_begin = Mul (mask_each, mask_queries)
  mask_all = Concat <axis: int = 0> (mask_many, mask_rows_begin, mask_keys_begin)
  mask_replies = Concat <axis: int = 0> (mask_many, mask_replies_begin, mask_keys_begin)
"""
"""`mask_replies` is for queries of the reply only, `mask_all` for reference and reply."""


def fuse(source: Path, out: Path, heads: int) -> None:
    """Write the step graph `source` with fused attention, sharing its weight file."""
    model = onnx.load(source, load_external_data=False)
    graph = model.graph
    inputs = {value.name for value in graph.input}
    before = next((name for name in ("reference", "keys_0") if name in inputs), None)
    body = AFTER_A_REFERENCE.format(before=before) if before else ALONE
    masks = onnx.parser.parse_graph(MASKS.format(body))
    makers = {output: node for node in graph.node for output in node.output}
    users = {given: node for node in graph.node for given in node.input}
    nodes = [*masks.node, *graph.node]
    for softmax in [node for node in graph.node if node.op_type == "Softmax"]:
        q, k, v, merged = _around(softmax, makers, users)
        replies = before == "keys_0" or makers[q].op_type == "Slice"
        place = nodes.index(merged)
        nodes[place : place + 1] = _attention(
            (q, k, v), "mask_replies" if replies else "mask_all", merged.output[0], heads
        )
    wanted, used = {output.name for output in graph.output}, []
    for node in reversed(nodes):
        if wanted & {*node.output}:
            used.append(node)
            wanted |= {*node.input}
    nodes = used[::-1]
    named = {name for node in nodes for name in node.input}
    stored = [one for one in (*masks.initializer, *graph.initializer) if one.name in named]
    for field, kept in ((graph.node, nodes), (graph.initializer, stored), (graph.value_info, [])):
        del field[:]
        field.extend(kept)  # type: ignore[arg-type]
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    onnx.save(model, out)


def _around(
    softmax: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], users: Mapping[str, onnx.NodeProto]
) -> tuple[str, str, str, onnx.NodeProto]:
    """Names of q, k and v (R, N, heads, 64) around a softmax, and the node that merges the heads."""
    masked, shared = makers[softmax.input[0]], users[softmax.output[0]]
    if masked.op_type == "Cast":  # float16 scores
        masked, shared = makers[masked.input[0]], users[shared.output[0]]
    scores = makers[masked.input[0]]
    q, k, v = (makers[name].input[0] for name in (*scores.input, shared.input[1]))
    return q, k, v, users[users[shared.output[0]].output[0]]


def _attention(given: tuple[str, str, str], mask: str, out: str, heads: int) -> list[onnx.NodeProto]:
    """Nodes of the fused operator; the scale is already in the weights."""
    flat = [f"{out}_{name}" for name in "qkv"]
    reshaped = [
        helper.make_node("Reshape", [name, "mask_flat"], [to]) for name, to in zip(given, flat, strict=True)
    ]
    fused = helper.make_node(
        "MultiHeadAttention", [*flat, "", mask], [out], domain=DOMAIN, num_heads=heads, scale=1.0
    )
    return [*reshaped, fused]

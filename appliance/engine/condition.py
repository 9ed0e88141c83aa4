"""Text and reference → condition: the part of the input projection that does not change from step to step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.contract.graphs import TAIL, Dimensions, Upsampling, signatures
from appliance.engine.backend import Backend, Graph, Tensor
from appliance.engine.flow import RELEASE_FRAMES
from appliance.request import FloatArray, Segment


class Conditioner:
    """Computes the condition of a segment from its text and reference."""

    def __init__(self, graph: Graph, backend: Backend, dimensions: Dimensions, max_frames: int) -> None:
        self._graph, self._backend, self._dimensions = graph, backend, dimensions
        spec = signatures(dimensions)["condition"]
        sizes = {"N": max_frames, "T": max_frames + TAIL}
        self._tensors: dict[str, Tensor] = {
            t.name: backend.empty(t.shape(sizes), t.dtype) for t in (*spec.inputs, *spec.outputs)
        }

    def __call__(self, segment: Segment) -> Tensor:
        """(G, N, D): the guided row, then any unguided ones. The next call overwrites the tensor."""
        host = condition_inputs(
            segment.ids,
            segment.reference_log_mel,
            segment.frames,
            self._dimensions.upsampling,
            segment.upsample_index,
        )
        inputs = {name: self._backend.view(self._tensors[name], a.shape) for name, a in host.items()}
        for name, array in host.items():
            self._backend.upload(array, inputs[name])
        shape = (self._dimensions.conditions, segment.frames, self._dimensions.dim)
        condition = self._backend.view(self._tensors["condition"], shape)
        bound = self._graph.bind(inputs, {"condition": condition})
        bound.run(release=segment.frames >= RELEASE_FRAMES)
        return condition


def condition_inputs(
    ids: NDArray[np.int32],
    log_mel: FloatArray,
    frames: int,
    upsampling: Upsampling,
    index: NDArray[np.int32] | None = None,
) -> dict[str, NDArray[np.int32] | FloatArray]:
    """Inputs of the graph from (T,) indices and (reference frames, M). `index` (N,) places the tokens."""
    tokens = len(ids) if upsampling == "floor" else min(len(ids), frames)
    length = {"tokens": tokens + TAIL, "floor": tokens + 1}.get(upsampling, frames)
    host: dict[str, NDArray[np.int32] | FloatArray] = {
        "ids": padded_ids(ids[:tokens], length),
        "log_mel": padded_mel(log_mel, frames),
    }
    if upsampling != "none":
        spread = floor_index if upsampling == "floor" else upsample_index
        host["upsample_index"] = spread(tokens, frames) if index is None else index
    if upsampling == "tokens":
        host["counts"] = counts(tokens, frames)
    return host


def counts(tokens: int, frames: int) -> FloatArray:
    """(T,) positions, in a text padded to all frames, that each token and each of TAIL fillers stands for."""
    out = np.ones(tokens + TAIL, np.float32)
    fillers = frames - tokens
    out[tokens:] = np.arange(TAIL) < fillers
    out[-1] = max(fillers - TAIL + 1, 0)
    return out


def floor_index(tokens: int, frames: int) -> NDArray[np.int32]:
    """(N,) index of each frame's token: equal lengths, then `tokens`, the index of the padding."""
    each = frames // tokens
    index = np.arange(frames, dtype=np.int32) // each if each else np.full(frames, tokens, np.int32)
    return np.minimum(index, tokens, dtype=np.int32)


def padded_ids(ids: NDArray[np.int32], frames: int) -> NDArray[np.int32]:
    """(T,) indices → (N,): shifted by one, cut, padded with 0, the filler."""
    out = np.zeros(frames, np.int32)
    cut = ids[:frames]
    out[: len(cut)] = cut + 1
    return out


def padded_mel(log_mel: FloatArray, frames: int) -> FloatArray:
    """(reference frames, M) → (N, M), padded with zeros."""
    out = np.zeros((frames, log_mel.shape[1]), np.float32)
    out[: len(log_mel)] = log_mel
    return out


def upsample_index(tokens: int, frames: int) -> NDArray[np.int32]:
    """(N,) index of each frame's token: equal lengths, the last tokens one frame longer."""
    tokens = min(tokens, frames)
    repeat, remainder = divmod(frames, tokens)
    repeats = np.full(tokens, repeat)
    repeats[tokens - remainder :] += 1
    return np.repeat(np.arange(tokens, dtype=np.int32), repeats)

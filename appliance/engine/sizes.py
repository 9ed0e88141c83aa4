"""The sizes at which a bundle's graphs run on a backend; TensorRT's profiles are made from them."""

from __future__ import annotations

from appliance.contract.bundle import Manifest
from appliance.contract.graphs import CONTEXT, STEPS
from appliance.contract.schedule import MAX_NFE
from appliance.engine.backend import Backend, Shapes
from appliance.engine.modulation import CAPACITY
from appliance.job import MAX_REFERENCE_S


def buckets(backend: Backend, longest: int) -> tuple[int, ...]:
    """Frames to which rows are padded, ending with `longest`; empty with exact shapes."""
    if backend.exact_shapes:
        return ()
    return (*(b for b in backend.buckets if b < longest), longest)


def longest_reference(manifest: Manifest) -> int:
    """Frames of the longest reference."""
    spec = manifest.mel
    return min(MAX_REFERENCE_S * spec.sample_rate_hz // spec.hop + 1, manifest.max_frames - 1)


def sizes(graph: str, manifest: Manifest, backend: Backend) -> Shapes:
    """Sizes of each symbolic axis of a graph, ascending; only step graphs have buckets."""
    longest = manifest.max_frames
    frames = (buckets(backend, longest) if graph in STEPS else ()) or (1, longest)
    return {
        "R": (1, backend.max_batch),
        "N": frames,
        "P": frames,
        "C": (CONTEXT,),
        "S": (CAPACITY,),
        "K": (1, MAX_NFE),
        "L": (1, longest * manifest.mel.hop),
    }

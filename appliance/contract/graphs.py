"""The four graphs of a bundle: named inputs and outputs, element types, axes, shape ranges.

Axis legend: B lanes · G guidance rows (1: conditional; 2: conditional, unconditional) · N frames, reference
and generated · T tokens · M mels · D model width · S rows of the modulation table · K time values · R rows
per time value (6 per block, 2 final) · L samples. An integer axis is fixed, a letter is symbolic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DType = Literal["float32", "float16", "int32"]
Axis = int | str

GRAPHS = ("modulation", "condition", "step", "vocoder")
MAX_OPSET = 20
MAX_IR_VERSION = 10
ROWS_PER_BLOCK = 6  # shift, scale, gate of attention, then of the feed-forward
FINAL_ROWS = (
    2  # shift, scale of the last norm (upstream's linear gives scale first; rows here are shift first)
)


@dataclass(frozen=True)
class TensorSpec:
    """One named input or output of a graph."""

    name: str
    dtype: DType
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class GraphSpec:
    """What a graph takes and gives, in order."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Dimensions:
    """The fixed sizes that the signatures depend on."""

    dim: int
    depth: int
    mels: int
    upsamples_text: bool = False
    compute: Literal["float32", "float16"] = "float32"
    """Element type of the condition that the step graph reads."""

    @property
    def rows(self) -> int:
        """R: modulation rows of one time value."""
        return ROWS_PER_BLOCK * self.depth + FINAL_ROWS


def modulation(d: Dimensions) -> GraphSpec:
    """Every AdaLN shift, scale and gate of K time values: all weights that see only t."""
    return GraphSpec(
        "modulation",
        (TensorSpec("t", "float32", ("K",)),),
        (TensorSpec("rows", "float32", ("K", d.rows, d.dim)),),
    )


def condition(d: Dimensions) -> GraphSpec:
    """The step-invariant part of the input projection of one segment, at its true length.

    `ids` are shifted by one and padded with 0 (the filler) to N; `log_mel` is the reference padded with
    zeros to N; `upsample_index` picks, for each frame, the token whose embedding it carries.
    """
    inputs = [TensorSpec("ids", "int32", ("N",)), TensorSpec("log_mel", "float32", ("N", d.mels))]
    if d.upsamples_text:
        inputs.append(TensorSpec("upsample_index", "int32", ("N",)))
    return GraphSpec("condition", tuple(inputs), (TensorSpec("condition", d.compute, (2, "N", d.dim)),))


def step(d: Dimensions) -> GraphSpec:
    """One Euler step of B lanes: latents + dt · Σ_g combine_g · v_g. Unused lanes have length 1 and dt 0."""
    return GraphSpec(
        "step",
        (
            TensorSpec("latents", "float32", ("B", "N", d.mels)),
            TensorSpec("condition", d.compute, ("B", "G", "N", d.dim)),
            TensorSpec("mod_table", "float32", ("S", d.rows, d.dim)),
            TensorSpec("step_index", "int32", ("B",)),
            TensorSpec("dt", "float32", ("B",)),
            TensorSpec("combine", "float32", ("B", "G")),
            TensorSpec("lengths", "int32", ("B",)),
        ),
        (TensorSpec("latents_out", "float32", ("B", "N", d.mels)),),
    )


def vocoder(d: Dimensions) -> GraphSpec:
    """Log-mel frames to samples. N counts generated frames here: the reference is cut off before."""
    return GraphSpec(
        "vocoder",
        (TensorSpec("log_mel", "float32", ("N", d.mels)),),
        (TensorSpec("samples", "float32", ("L",)),),
    )


def signatures(d: Dimensions) -> dict[str, GraphSpec]:
    """The signature of each graph, by name, in the order in which a segment meets them."""
    return {make.__name__: make(d) for make in (modulation, condition, step, vocoder)}

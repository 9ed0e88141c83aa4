"""The graphs of a bundle: inputs, outputs, types, axes.

Axes: R rows (latents with a condition, computed together) · N frames · P frames of the reference · C frames
of convolution context · T tokens, padding included · M mels · D model width · A attention width (heads ·
dim_head) · S rows of the modulation table · K time values · L samples · G conditions of a lane. An integer
axis is fixed. P/2 is every second frame of P.

A lane with two-row guidance has a conditional and an unconditional row; other lanes have the first alone
(`sampler.py`). The step graphs compute each row's velocity; `update` combines the velocities and takes the
step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DType = Literal["float32", "float16", "int32"]
Axis = int | str
Upsampling = Literal["none", "spread", "tokens", "floor"]
"""Ways from tokens to frames.

`spread`: over all frames, the last tokens one frame longer; the text is encoded padded to N. `tokens`: the
same, encoded with TAIL fillers. `floor`: ⌊N/T⌋ frames each, and the padding token for the rest.
"""
TAIL = 4
"""Fillers that `tokens` encodes after a text.

The text convolutions reach 3 fillers, and fillers are masked between convolutions, so the last one equals all
later ones.
"""

GRAPHS = ("modulation", "condition", "step", "step_keys", "step_reply", "update", "vocoder")
REQUIRED = tuple(name for name in GRAPHS if name != "step")
"""Graphs of a DiT.

`step` is for padded rows; a CPU runs `step_keys` with an empty reference. Other architectures have `step` in
its single form, without a reference.
"""
STEPS = ("step", "step_keys", "step_reply")
KEYED = ("step_keys", "step_reply")
"""Step graphs of architectures with keys and values that a later step may reuse."""
MAX_OPSET = 20
MAX_IR_VERSION = 10
ROWS_PER_BLOCK = 6  # shift, scale, gate of attention, then of the feed-forward
FINAL_ROWS = 2  # shift, scale of the last norm (upstream: scale, shift)
CONTEXT = 30
"""C: one-sided receptive field of the convolutional position embedding (two kernels of 31)."""
FRAME_MULTIPLE = 64
"""A GPU's number of frames in a row is a multiple of this, because tiles of products have 64 rows or more."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, type and axes of a graph's input or output."""

    name: str
    dtype: DType
    axes: tuple[Axis, ...]

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(_size(axis, sizes) for axis in self.axes)


def rate_of(axis: Axis) -> tuple[Axis, int]:
    """An axis and its divisor: "P/2" → "P", 2."""
    if isinstance(axis, int):
        return axis, 1
    whole, _, rate = axis.partition("/")
    return whole, int(rate or 1)


def _size(axis: Axis, sizes: Mapping[str, int]) -> int:
    whole, rate = rate_of(axis)
    return sizes[whole] // rate if isinstance(whole, str) else whole


@dataclass(frozen=True)
class GraphSpec:
    """Inputs and outputs of a graph."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class KeptSizes:
    """Sizes of a reference's states in the layers of a Zipformer, each layer at its own rate.

    The states are keys, the gated values of the non-linear attention, and two each of values and of the last
    frames before a convolution.
    """

    keys: int
    """Width of the keys of all heads."""
    gated: int
    values: int
    rates: tuple[int, ...]
    """Input frames for one frame of the layer, by layer."""
    reaches: tuple[int, ...]
    """Frames that a convolution sees on each side, by layer."""

    def __post_init__(self) -> None:
        if not self.rates or len(self.rates) != len(self.reaches):
            raise ValueError("rates, reaches: must be one of each layer")
        if min(self.keys, self.gated, self.values, *self.rates) < 1 or min(self.reaches) < 0:
            raise ValueError("keys, gated, values, rates: must be at least 1; reaches: at least 0")

    @property
    def stride(self) -> int:
        """Smallest number of frames that is whole at every rate."""
        return math.lcm(*self.rates)


@dataclass(frozen=True)
class Dimensions:
    """Sizes that decide the inputs and outputs of all graphs."""

    dim: int
    depth: int
    mels: int
    inner: int
    """A: heads · dim_head."""
    upsampling: Upsampling = "none"
    compute: Literal["float32", "float16"] = "float32"
    """Element type of condition, keys and values."""
    conditions: int = 2
    """G: 1 if no lane has an unguided row."""
    embeds_guidance: bool = False
    time_rows: int = 0
    """Rows of one time value; 0 means the AdaLN rows of `depth` blocks."""
    keeps_keys: bool = True
    """True if steps can have a reference on a known path (`step_keys`, `step_reply`), with keys and values.
    """
    kept: KeptSizes | None = None
    """Sizes of the states of layers that are no DiT blocks.

    In such models the unguided row has the reference, too.
    """

    @property
    def stride(self) -> int:
        """Divisor of P."""
        return self.kept.stride if self.kept else 1

    @property
    def rows(self) -> int:
        """Rows of one time value."""
        return self.time_rows or ROWS_PER_BLOCK * self.depth + FINAL_ROWS

    @property
    def required(self) -> tuple[str, ...]:
        """Graphs that every bundle has."""
        if not self.keeps_keys:
            return tuple(n for n in GRAPHS if n not in KEYED)
        return GRAPHS if self.kept else REQUIRED


def modulation(d: Dimensions) -> GraphSpec:
    """Rows that steps add or multiply, for K time values and, if guidance is embedded, its strengths.

    The rows are AdaLN shifts, scales and gates, or a vector for each stack.
    """
    names = ("t", "strength") if d.embeds_guidance else ("t",)
    return GraphSpec(
        "modulation",
        tuple(TensorSpec(name, "float32", ("K",)) for name in names),
        (TensorSpec("rows", "float32", ("K", d.rows, d.dim)),),
    )


def condition(d: Dimensions) -> GraphSpec:
    """The part of the input projection that does not change from step to step, in the order of
    `Sampler.conditions`.

    `ids` are shifted by one and padded with 0, the filler, or followed by one 0. `log_mel` is the reference
    padded with zeros. `upsample_index` is each frame's token. `counts` says how many positions of a text
    padded to N each of the T stands for.
    """
    tokens = "T" if d.upsampling in ("tokens", "floor") else "N"
    inputs = [TensorSpec("ids", "int32", (tokens,)), TensorSpec("log_mel", "float32", ("N", d.mels))]
    if d.upsampling != "none":
        inputs.append(TensorSpec("upsample_index", "int32", ("N",)))
    if d.upsampling == "tokens":
        inputs.append(TensorSpec("counts", "float32", ("T",)))
    return GraphSpec(
        "condition", tuple(inputs), (TensorSpec("condition", d.compute, (d.conditions, "N", d.dim)),)
    )


def step(d: Dimensions) -> GraphSpec:
    """Velocity of R rows. Frames from `lengths` on are masked; their velocity is undefined."""
    return GraphSpec("step", _row_inputs(d), (_velocity(d),))


def step_keys(d: Dimensions) -> GraphSpec:
    """Velocity after a reference on a known path, and the reference's keys and values.

    A reference shorter than P fills the end of its P frames. The last block computes only keys and values for
    the reference. With `Dimensions.kept`, P has no padding.
    """
    return GraphSpec(
        "step_keys", _row_inputs(d) + _reference_inputs(d, "reference", "P"), (_velocity(d), *kept(d))
    )


def step_reply(d: Dimensions) -> GraphSpec:
    """Velocity as in `step_keys`, with the reference's keys and values from an earlier step.

    `context` is the end of the reference, which the position convolution sees; it is aligned as in
    `step_keys`.
    """
    context = () if d.kept else _reference_inputs(d, "context", "C")
    return GraphSpec("step_reply", _row_inputs(d) + context + kept(d), (_velocity(d),))


def kept(d: Dimensions) -> tuple[TensorSpec, ...]:
    """States of the reference that later steps reuse."""
    if d.kept is None:
        names = (f"{what}_{block}" for block in range(d.depth) for what in ("keys", "values"))
        return tuple(TensorSpec(name, d.compute, ("R", "P", d.inner)) for name in names)
    found = []
    for layer, (rate, reach) in enumerate(zip(d.kept.rates, d.kept.reaches, strict=True)):
        frames = "P" if rate == 1 else f"P/{rate}"
        last: tuple[Axis, ...] = ("R", reach, d.dim)
        values: tuple[Axis, ...] = ("R", frames, d.kept.values)
        axes: dict[str, tuple[Axis, ...]] = {
            "keys": ("R", frames, d.kept.keys),
            "gated": ("R", frames, d.kept.gated),
            "values1": values,
            "last1": last,
            "values2": values,
            "last2": last,
        }
        found += [TensorSpec(f"{name}_{layer}", d.compute, shape) for name, shape in axes.items()]
    return tuple(found)


def update(d: Dimensions) -> GraphSpec:
    """latents + w₀·guided + w₁·unguided: a lane's Euler step, with weights dt·(1 + w) and −dt·w.

    Without guidance w₁ is 0, and `unguided` any finite tensor. A re-noising step binds a share of noise, the
    latents and the velocity in their places (`Sampler.weights`).
    """
    frames = ("N", d.mels)
    return GraphSpec(
        "update",
        (
            *(TensorSpec(name, "float32", frames) for name in ("latents", "guided", "unguided")),
            TensorSpec("weights", "float32", (2,)),
        ),
        (TensorSpec("latents_out", "float32", frames),),
    )


def _row_inputs(d: Dimensions) -> tuple[TensorSpec, ...]:
    """Inputs that all step graphs share."""
    return (
        TensorSpec("latents", "float32", ("R", "N", d.mels)),
        TensorSpec("condition", d.compute, ("R", "N", d.dim)),
        TensorSpec("mod_table", "float32", ("S", d.rows, d.dim)),
        TensorSpec("step_index", "int32", ("R",)),
        TensorSpec("lengths", "int32", ("R",)),
    )


def _reference_inputs(d: Dimensions, name: str, axis: str) -> tuple[TensorSpec, ...]:
    given = (
        TensorSpec(name, "float32", ("R", axis, d.mels)),
        TensorSpec(f"{name}_condition", d.compute, ("R", axis, d.dim)),
    )
    return given if d.kept else (*given, TensorSpec("reference_lengths", "int32", ("R",)))


def _velocity(d: Dimensions) -> TensorSpec:
    return TensorSpec("velocity", "float32", ("R", "N", d.mels))


def vocoder(d: Dimensions) -> GraphSpec:
    """Log-mel to samples. N counts generated frames."""
    return GraphSpec(
        "vocoder",
        (TensorSpec("log_mel", "float32", ("N", d.mels)),),
        (TensorSpec("samples", "float32", ("L",)),),
    )


def signatures(d: Dimensions) -> dict[str, GraphSpec]:
    graphs = (modulation, condition, step, step_keys, step_reply, update, vocoder)
    return {make.__name__: make(d) for make in graphs if d.keeps_keys or make.__name__ not in KEYED}

"""The declaration of a family, which a file of this folder has as its DECLARATION."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from appliance.contract.bundle import Conditioning, Defaults, Duration, Precision, Sampling, Shapes
from appliance.contract.limits import MAX_GUIDANCE, MAX_NFE
from appliance.contract.mel import Kind, MelSpec
from appliance.contract.sampler import Guidance, Sampler, Update
from appliance.contract.tokens import Tokenizer, Vocabulary, read_vocabulary
from appliance.fields import Between, Ranged
from export.graphs.parts import Form
from export.parity.oracles import Case, Oracle, Peak, Trajectory
from export.precision.rewrites import DIT, Roles
from export.sources.checkpoint import Weights, WeightsKind
from export.sources.weights import Known

VOCOS_MEL = MelSpec("vocos")
MELS: dict[Kind, MelSpec] = {"vocos": VOCOS_MEL, "bigvgan": MelSpec("bigvgan")}
"""Mels of the published vocoders."""


class FamilyError(ValueError):
    """An architecture is unknown, contradictory or unsupported."""


@dataclass(frozen=True)
class Family:
    """An architecture, and the settings that its weights were trained with."""

    name: str
    arch: Any
    """Instance of the class `Declaration.arch`."""
    mel: MelSpec = VOCOS_MEL
    tokenizer: Tokenizer = "pinyin"
    duration: Duration | None = None
    """Measure of lengths; None: the declaration's."""
    durations: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    """See `Text.durations`."""
    known: Known | None = None
    """Row of `weights.KNOWN`, if one was named."""
    sampler: Sampler = field(default_factory=Sampler)
    defaults: Defaults = field(default_factory=Defaults)


GRIDS: Mapping[str, tuple[Literal["epss", "uniform"], float]] = {
    "epss": ("epss", -1.0),
    "sway": ("uniform", -1.0),
    "uniform": ("uniform", 0.0),
}
"""Name → (grid, sway): upstream's pruned times, its times for any number of steps, equal steps."""


@dataclass(frozen=True)
class Sampled(Ranged):
    """Section `sampler` of a family's file."""

    update: Update | None = None
    guidance: Guidance | None = None
    strength: Annotated[float | None, Between(0, MAX_GUIDANCE)] = None
    """Usual strength. With guidance none: the strength that the weights contain."""
    strengths: tuple[float, ...] | None = None
    """Smallest and largest strength that weights with embedded guidance were trained with."""
    steps: tuple[int, ...] | None = None
    grid: Literal["epss", "sway", "uniform"] | None = None

    def of(self, family: Family, named: Sequence[Family]) -> Family:
        """Apply this section to `family`. Raises ValueError.

        Missing keys come from `family`, or from the first of `named` with the section's guidance.
        """
        guidance = self.guidance or family.sampler.guidance
        like = next((one for one in (family, *named) if one.sampler.guidance == guidance), None)
        if wrong := [n for n in self.steps or () if not 1 <= n <= MAX_NFE]:
            raise ValueError(f"steps: must be 1 to {MAX_NFE}, not {wrong[0]}")
        if guidance == "embedded" and like is None and (self.strength is None or not self.strengths):
            raise ValueError("guidance: embedded needs the usual strength: W, and strengths: [LEAST, MOST]")
        if guidance != "embedded" and self.strengths:
            raise ValueError(f"strengths: only with guidance: embedded, not {guidance}")
        strength = (like or family).defaults.guidance if self.strength is None else self.strength
        changes: dict[str, Any] = {"update": self.update, "steps": self.steps, "strengths": self.strengths}
        if guidance == "none":
            changes["strengths"], strength = (self.strength,) if self.strength is not None else None, 0.0
        sampler = replace(
            Sampler(guidance=guidance) if like is None else like.sampler,
            **{key: value for key, value in changes.items() if value is not None},
        )
        try:
            sampler.check_strength(strength)
        except ValueError as error:
            raise ValueError(f"strength: {error}") from error
        grid, sway = GRIDS[self.grid] if self.grid else (family.defaults.grid, family.defaults.sway)
        defaults = replace(family.defaults, guidance=strength, grid=grid, sway=sway)
        return replace(family, sampler=sampler, defaults=defaults)


@dataclass(frozen=True)
class Given:
    """Files of one model, and how to read them."""

    checkpoint: Path
    vocab: Path
    vocabulary: Vocabulary
    arch: Any
    mel: MelSpec
    weights: WeightsKind
    sampler: Sampler
    adapter: Path | None = None
    """Folder of an adapter to merge."""


class GraphMaker(Protocol):
    """Makes the torch module of a graph that runs once."""

    def __call__(
        self, weights: Weights, given: Given, max_frames: int, stored: torch.dtype, compute: torch.dtype
    ) -> nn.Module:
        """`stored` is the element type of weights that compute in float32."""
        ...


class StepGraph(Protocol):
    """Makes the torch module of a step graph."""

    def __call__(
        self, weights: Weights, arch: Any, mels: int, max_frames: int, compute: torch.dtype, form: Form
    ) -> nn.Module: ...


@dataclass(frozen=True)
class Point:
    """Inputs of one evaluation of a flow's velocity."""

    latents: Tensor
    """(N, M) at time t."""
    cond: Tensor
    """Reference (N, M), zero in unknown frames."""
    ids: Tensor
    """(T,)"""
    t: float
    w: float
    """Strength of the guidance."""
    drops_text: bool
    """True for the row without text."""
    index: Tensor | None
    """(N,) token of each frame; None: all tokens last equally long."""


@dataclass(frozen=True)
class Declaration:
    """Everything that the exporter must know about a family of models."""

    name: str
    arch: type[Any]
    """Dataclass of the configuration."""
    named: tuple[Family, ...]
    mark: str
    """Name of a tensor that only this family's checkpoints have."""

    find: Callable[[str, Mapping[str, Any]], Family | None]
    """Reads a family from a name, or from a path or text with its content.

    Returns None for other families' files. Raises FamilyError.
    """
    load: Callable[[Given], Weights]
    """Loads the weights; checks names and shapes. Raises CheckpointError."""
    build: Callable[[Mapping[str, Tensor], Given], nn.Module]
    """Builds the torch model of the architecture in `Given`."""
    shapes: Callable[[Any], Shapes] | None
    """Sizes that the engine needs of an architecture. None if a manifest's `arch` has them."""

    modulation: GraphMaker
    condition: GraphMaker
    steps: Mapping[str, StepGraph]
    single: tuple[str, ...]
    """Step graphs that a CPU runs for one row."""
    samplings: tuple[Sampling, ...]
    """Samplings other than `exact`, cheapest first.

    The exporter chooses one of them by the measured distance. If there are none, only a listening test can
    justify another; the exporter measures it if it is named.
    """
    precisions: tuple[Precision, ...]
    bounds: Mapping[Precision, Mapping[str, float]]
    """Tolerances; see `parity.BOUNDS`."""

    oracles: Callable[[Callable[[], Weights], Given], Sequence[Callable[[], Oracle]]]
    """Makers of independent computations of samples, the torch model's first.

    Raise ImportError when called.
    """
    velocity: Callable[[Any, Point], Tensor]
    """Velocity (N, M) of a model's row, with text and reference or with neither.

    The loss that is the weights' evidence needs it.
    """
    """For the loss that is the weights' evidence."""

    others: Callable[[Any], Sequence[Any]] = lambda arch: ()
    """Architectures that the same weights could have been trained as."""
    flags: Callable[[Any], str] = str
    """Flags by which these architectures differ, as text."""
    is_known: Callable[[Any], bool] = lambda arch: True
    """True for flags that published weights have."""
    peaks: Callable[[Any, nn.Module, Sequence[Trajectory], Case], Sequence[Peak]] | None = None
    """Largest magnitudes of values that are computed in float16, if a precision has any."""
    mel: Callable[[MelSpec, Path], MelSpec] = lambda mel, checkpoint: mel
    """Mels of a checkpoint, which may state a scale."""
    vocabulary: Callable[[Path, Tokenizer, str], Vocabulary] = read_vocabulary
    weights: WeightsKind = "ema"
    """Kind of weights that its makers' inference reads from a training's checkpoint."""
    roles: Roles = DIT
    """Roles of products. Dynamic INT8 leaves some of them in float."""
    upstream_int8: bool = False
    """True if upstream offers its own dynamic INT8. An export's may be as far from float as upstream's."""
    fused: bool = False
    """True if step graphs also have a form with ONNX Runtime's fused attention."""
    duration: Duration = "script"
    """See `Text.duration`."""
    reference: Conditioning = "f5"
    """Rule for preparing references."""

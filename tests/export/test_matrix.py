"""Every kind of bundle in every form that the engine runs: the properties of each, with their tolerances.

Answers equal upstream's, at every NFE and from a reference on its path. All forms and samplings agree with
the masked float32 form. A batch agrees with its segments alone. Nothing overflows. A property of a single row
has a separate file, such as `test_precision`, `test_samplers` and `test_zipvoice`.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from appliance.contract.bundle import Precision, Sampling
from appliance.contract.schedule import time_grid
from appliance.engine.engine import Synthesizer
from appliance.engine.replay import replay
from appliance.request import FloatArray
from tests.engine import lanes
from tests.harness import small
from tests.harness.small import BuiltBundle, Workshop

pytestmark = pytest.mark.torch


class Bounds(NamedTuple):
    """Largest ‖a − b‖ / ‖b‖: parts and results against upstream, results against float32, a batch against its
    segments."""

    vocoder: float
    step: float
    sample: float
    wave: float
    follows: float
    batch: float
    least: float = 0.0
    """Smallest error: a smaller one means that another bundle was measured."""
    edge: float = 1.0
    """Factor of a step's bound for a single reference or reply frame, lengths that calibration lacks."""


BOUNDS: dict[Precision, Bounds] = {
    "fp32": Bounds(1e-5, 5e-6, 5e-5, 5e-4, 1e-5, lanes.BATCHED),
    "fp16": Bounds(1e-2, 5e-3, 1e-2, 1e-1, 1e-2, 1e-3, 1e-5),
    "int8": Bounds(1e-2, 5e-2, 5e-2, 5e-1, 5e-2, 0.0, 1e-4),
    "int8-qdq": Bounds(1e-2, 5e-2, 5e-2, 5e-1, 3e-2, 1e-2, 1e-4, edge=4.5),
}
FORMS: dict[str, Callable[[BuiltBundle, int], Synthesizer]] = {
    "masked": lambda made, lanes: made.engine(lanes, "default"),
    "padded": lambda made, lanes: made.padded(lanes),
    "cpu": lambda made, lanes: made.engine(lanes, "ort-cpu"),
}
"""`step_keys` with an empty reference at true length, `step` padded, one row without masks."""
HAS = dict.fromkeys(("fp32", "fp16", "int8-qdq"), ("masked", "padded", "cpu")) | {"int8": ("masked",)}
Model = tuple[str, str, Precision]
FLOAT32: list[Model] = [(arch, "vocos", "fp32") for arch in small.TRACED]
PRECISIONS: list[Model] = [("v1", "vocos", precision) for precision in ("fp16", "int8", "int8-qdq")]
MODELS: list[Model] = [*FLOAT32, ("v1", "bigvgan", "fp32"), *PRECISIONS]
Form = tuple[Model, str]


def forms(models: list[Model], *only: str) -> list[Any]:
    """Rows of models and forms, as parameters."""
    rows = [(model, form) for model in models for form in HAS[model[2]] if not only or form in only]
    return [pytest.param((model, form), id="-".join((*model, form))) for model, form in rows]


class Row(NamedTuple):
    made: BuiltBundle
    bounds: Bounds
    engine: Callable[[int], Synthesizer]
    """The engine of a number of lanes, opened once."""
    alone: Callable[[], Synthesizer]
    """The engine of the default variant."""

    @property
    def mels(self) -> int:
        return self.made.bundle.manifest.mel.mels


@pytest.fixture(scope="module")
def row(request: pytest.FixtureRequest, workshop: Workshop) -> Row:
    model, form = request.param
    made = workshop.make(*model)
    default = cache(partial(made.engine, variant="default"))
    return Row(made, BOUNDS[model[2]], cache(partial(FORMS[form], made)), default)


@pytest.fixture(scope="module")
def flow(row: Row) -> Any:
    return small.upstream_flow(row.made.files, row.made.arch)


# Upstream's answers

CASES = {
    "60": {"frames": 60},
    "weakly guided": {"frames": 271, "guidance": 0.7},
    "a reference of a frame": {"frames": 9, "tokens": 9, "reference": 1},
    "more tokens than frames": {"frames": 40, "tokens": 77, "reference": 38},  # one frame to generate
    "unguided": {"frames": 97, "guidance": 0.0},
}


@pytest.mark.parametrize("row", forms(MODELS), indirect=True)
@pytest.mark.parametrize("given", CASES)
def test_a_step_is_upstreams(given: str, row: Row, flow: Any) -> None:
    case = small.case(**CASES[given], mels=row.mels)  # type: ignore[arg-type]
    engine, start = row.engine(1), len(case.cond)
    for time in (0.0, 0.0012, 0.61):
        mel, _ = replay(engine, case.segment(np.array([time, time + 1.0])))
        expected = small.upstream_velocity(flow, case, time)
        error = lanes.relative((mel - case.noise)[start:], expected[start:])
        assert error <= row.bounds.step * (row.bounds.edge if case.frames < 60 else 1.0)
    if case.guidance == 0.0:  # guidance affects this case
        guided = small.upstream_velocity(flow, small.case(97, mels=row.mels), 0.61)
        assert lanes.relative(guided[start:], expected[start:]) > 1e-2


@pytest.mark.parametrize("row", forms(MODELS), indirect=True)
def test_a_sample_is_upstreams(row: Row, flow: Any) -> None:
    """An architecture runs at every NFE of the published grids, the others at seven."""
    case, made = small.case(113, mels=row.mels), row.made
    engine, start = row.engine(1), len(case.cond)
    for nfe in (5, 7, 8, 16, 32) if made.arch == small.V1 and made.files.vocoder == "vocos" else (7,):
        mel, wave = replay(engine, case.segment(time_grid(nfe)))
        expected = small.upstream_sample(flow, case, nfe)
        assert np.array_equal(mel[:start], case.cond)
        way = (expected - case.noise)[start:]  # without the noise, which is equal in both
        assert np.abs(way).mean() > 0.05
        assert row.bounds.least <= lanes.relative((mel - case.noise)[start:], way) <= row.bounds.sample
        own, theirs = (small.upstream_wave(made.files, heard) for heard in (mel, expected))
        assert lanes.relative(wave, own) <= row.bounds.vocoder
        assert lanes.relative(wave, theirs) <= row.bounds.wave
        assert 1e-4 < np.abs(theirs).mean() < 0.9  # neither silent nor clamped


@pytest.mark.parametrize("row", forms(FLOAT32), indirect=True)
@pytest.mark.parametrize("reference", [1, 10, 38])
def test_a_reference_on_its_path_is_seen_as_upstream_would(reference: int, row: Row, flow: Any) -> None:
    """Sampling `short` without guidance equals upstream's model whose first frames are moved to their
    path."""
    given = small.case(70, reference=reference, guidance=0.0)
    times = time_grid(7)
    mel, _ = replay(row.engine(1), given.segment(times, "short"))
    expected = upstream_on_path(flow, given, times)[reference:]
    assert lanes.relative(mel[reference:], expected) <= row.bounds.sample
    exact = small.upstream_sample(flow, given, 7)[reference:]
    assert lanes.relative(exact, expected) > 10 * row.bounds.sample  # a different sampling


@torch.inference_mode()
def upstream_on_path(flow: Any, given: small.Case, times: NDArray[np.float64]) -> FloatArray:
    cond = torch.zeros(1, given.frames, small.MELS)
    known = len(given.cond)
    cond[0, :known] = torch.from_numpy(given.cond)
    ids = torch.from_numpy(given.ids).long()[None]
    noise = torch.from_numpy(given.noise)[None]
    y = noise.clone()
    for now, then in pairwise(times.tolist()):
        y[:, :known] = (1.0 - now) * noise[:, :known] + now * cond[:, :known]
        y = y + (then - now) * flow.transformer(x=y, cond=cond, text=ids, time=torch.tensor(now))
    return y[0].numpy()  # type: ignore[no-any-return]


# Forms, samplings and batches


@pytest.mark.parametrize("row", forms([*FLOAT32, *PRECISIONS]), indirect=True)
@pytest.mark.parametrize("sampling", lanes.SAMPLINGS)
@pytest.mark.parametrize("reference", [1, 10, 38])
def test_every_row_follows_float32(reference: int, sampling: Sampling, row: Row, workshop: Workshop) -> None:
    [arch] = [name for name, one in small.ARCHS.items() if one == row.made.arch]
    actual, expected = moved(row.engine(1), reference, sampling), usual(workshop, arch, reference, sampling)
    assert np.abs(expected).mean() > 0.05
    if row.bounds.least:  # lossy precisions are compared by their mels: the steps have upstream's bound above
        noise = small.case(70, reference=reference).noise[reference:]
        actual, expected = actual + noise, expected + noise
    assert row.bounds.least <= lanes.relative(actual, expected) <= row.bounds.follows


@cache
def usual(workshop: Workshop, arch: str, reference: int, sampling: Sampling) -> FloatArray:
    return moved(masked(workshop, arch), reference, sampling)


@cache
def masked(workshop: Workshop, arch: str) -> Synthesizer:
    return FORMS["masked"](workshop.make(arch), 1)


def moved(engine: Synthesizer, reference: int, sampling: Sampling) -> FloatArray:
    """(reply, M): distance of a reply from its noise after seven steps; all replies share the noise."""
    given = small.case(70, reference=reference)
    mel, _ = replay(engine, given.segment(time_grid(7), sampling))
    return (mel - given.noise)[reference:]


@pytest.mark.parametrize("row", forms([*FLOAT32, *PRECISIONS], "padded"), indirect=True)
@pytest.mark.parametrize("lengths", [(60, 333, 1300), (60, 143, 47, 300)])
@pytest.mark.parametrize("sampling", lanes.SAMPLINGS)
def test_a_padded_batch_is_its_segments_alone(sampling: Sampling, lengths: tuple[int, ...], row: Row) -> None:
    """A masked score in float16 is finite, so that a softmax over padding alone is no NaN.

    Rounding to INT8 amplifies float16's last bit more than float16 does.
    """
    lanes.check_a_padded_batch(row.engine(len(lengths)), lengths, row.alone(), sampling, row.bounds.batch)


@pytest.mark.parametrize("row", forms([("v1", "vocos", "fp16")]), indirect=True)
@pytest.mark.parametrize("sampling", lanes.SAMPLINGS)
@pytest.mark.parametrize("frames", [4, 37, 500, 2000])
def test_float16_stays_finite_at_every_length(frames: int, sampling: Sampling, row: Row) -> None:
    mel, wave = replay(row.engine(1), small.case(frames, reference=1).segment(time_grid(2), sampling))
    assert np.isfinite(mel).all() and np.isfinite(wave).all()

"""Our DiT, plain and as the modules that are traced, against upstream's, for every architecture option."""

import dataclasses
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from appliance.contract import bundle as contract
from appliance.contract.bundle import Arch
from appliance.contract.sampler import UPSTREAM
from appliance.contract.schedule import time_grid
from appliance.engine.condition import condition_inputs, padded_mel
from appliance.engine.condition import upsample_index as upsample_index_on_the_device
from export.graphs import parts
from export.graphs.condition import Condition
from export.graphs.modulation import ModulationGraph
from export.graphs.step import Step
from export.model.dit import DiT, states, upsample_index
from export.parity.oracles import TorchOracle
from export.sources.checkpoint import Weights, build_dit, load_dit
from tests.engine.lanes import relative
from tests.harness import small

pytestmark = pytest.mark.torch

V1 = small.V1
UPSAMPLING = {"text_embedding_average_upsampling": True}
EVERYTHING = dataclasses.replace(
    V1, qk_norm="rms_norm", long_skip_connection=True, pe_attn_head=1, **UPSAMPLING
)
ARCHS: dict[str, Arch] = {
    **small.ARCHS,
    "no_convs_upsampling": dataclasses.replace(V1, conv_layers=0, **UPSAMPLING),
    "wide_heads": dataclasses.replace(V1, heads=3, dim_head=64, ff_mult=4, pe_attn_head=2),
    "everything": EVERYTHING,
}
CASES = [(1, 1, 7), (23, 11, 60), (40, 64, 113)]  # reference frames, tokens, frames in all
FRAMES = 67
TIMES = (0.0, 0.0012, 0.31, 0.98)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Upstream's model and the weights that it was filled with, as the exporter reads them."""

    arch: Arch
    flow: Any
    weights: Weights

    @property
    def theirs(self) -> Any:
        return self.flow.transformer

    @cached_property
    def model(self) -> DiT:
        return build_dit(self.weights, self.arch, len(small.VOCABULARY))


@pytest.fixture(scope="module", params=ARCHS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    arch = ARCHS[request.param]
    files = small.write_files(tmp_path_factory.mktemp(request.param), arch)
    weights = load_dit(files.checkpoint, arch, len(small.VOCABULARY))
    return Pair(arch, small.upstream_flow(files, arch), weights)


def case(shape: tuple[int, int, int], guidance: float = 2.0) -> tuple[small.Case, Tensor, Tensor, Tensor]:
    """A case, with its reference (R, M), ids (T,) and noise (N, M) as tensors."""
    reference, tokens, frames = shape
    given = small.case(frames, tokens=tokens, reference=reference, guidance=guidance)
    cond, ids, noise = map(torch.from_numpy, (given.cond, given.ids, given.noise))
    return given, cond, ids.long(), noise


def condition(pair: Pair, given: small.Case) -> Tensor:
    module = Condition(pair.weights, pair.arch, small.MELS, small.MAX_FRAMES, torch.float32)
    d = contract.dimensions(pair.arch, small.MELS, "fp32", encodes=pair.arch.encodes)
    inputs = condition_inputs(given.ids, given.cond, given.frames, d.upsampling)
    out: Tensor = module(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    return out


def step(pair: Pair, given: small.Case) -> list[Tensor]:
    """(2, N, M) at each of TIMES, by the modules that are traced."""
    module = Step(pair.weights, pair.arch, small.MELS, small.MAX_FRAMES, torch.float32)
    seen, rows = condition(pair, given), ModulationGraph(pair.weights, pair.arch)(torch.tensor(TIMES))
    noise = torch.from_numpy(given.noise)[None].expand(2, -1, -1)
    lengths = torch.full((2,), given.frames, dtype=torch.int32)
    places = (torch.full((2,), place, dtype=torch.int32) for place in range(len(TIMES)))
    return [module(noise, seen, rows, place, lengths) for place in places]


@torch.inference_mode()
def test_parts_are_upstreams(pair: Pair) -> None:
    """Shifts, scales and gates one by one, and the part of the input projection that latents do not
    affect."""
    rows = ModulationGraph(pair.weights, pair.arch)(torch.tensor(TIMES))
    assert rows.shape == (len(TIMES), 6 * pair.arch.depth + 2, pair.arch.dim)
    expected = small.upstream_rows(pair.flow, np.array(TIMES, np.float32))
    for row in range(rows.shape[1]):
        assert relative(rows[:, row].numpy(), expected[:, row]) <= 2e-6
    for tokens in (1, 20, FRAMES - 2, FRAMES + 9):
        given = small.case(FRAMES, tokens=tokens)
        for actual, row in zip(
            condition(pair, given), small.upstream_condition(pair.flow, given), strict=True
        ):
            assert relative(actual.numpy(), row) <= 2e-6


@torch.inference_mode()
@pytest.mark.parametrize("shape", CASES)
def test_both_rows_of_a_step_are_upstreams(pair: Pair, shape: tuple[int, int, int]) -> None:
    given, _, ids, noise = case(shape)
    cond = torch.from_numpy(padded_mel(given.cond, given.frames))
    for time, traced in zip(map(torch.tensor, TIMES), step(pair, given), strict=True):
        expected = pair.theirs(x=noise[None], cond=cond[None], text=ids[None], time=time, cfg_infer=True)
        pair.theirs.clear_cache()
        plain, alone = (
            pair.model(noise, cond, pair.model.text_embed(ids, given.frames, rows), time) for rows in (2, 1)
        )
        assert plain.shape == traced.shape == (2, given.frames, small.MELS)
        for actual in (plain, traced, alone):
            for row, velocity in enumerate(actual):
                assert relative(velocity, expected[row]) <= 5e-6
        assert relative(plain[0], expected[1]) > 1e-3  # the rows differ, so that the comparison can fail


def test_a_sample_is_upstreams(pair: Pair) -> None:
    """Some architectures run at every NFE of the published grids and with other guidance."""
    runs = [(shape, 7, 2.0) for shape in CASES[:2]]
    if pair.arch in (V1, ARCHS["v0"], EVERYTHING):
        others = (*((nfe, 2.0) for nfe in (5, 7, 8, 16, 32)), (6, 0.0), (6, 0.7))
        runs += [((23, 31, 97), nfe, guidance) for nfe, guidance in others]
    for shape, nfe, guidance in runs:
        given, cond, _, noise = case(shape, guidance)
        expected = torch.from_numpy(small.upstream_sample(pair.flow, given, nfe))[len(cond) :]
        actual = torch.from_numpy(TorchOracle(pair.model).sample(given, time_grid(nfe)))
        assert torch.equal(actual[: len(cond)], cond)
        assert relative(expected, noise[len(cond) :]) > 0.05  # the velocity moved the noise
        assert relative(actual[len(cond) :], expected) <= 5e-5


@torch.inference_mode()
@pytest.mark.parametrize("pair", ["v0", "upsampling"], indirect=True)
def test_an_option_read_as_v1s_gives_another_velocity(pair: Pair) -> None:
    """The tensors are the same, so that only a comparison of results can show the difference."""
    given = small.case(FRAMES)
    own, other = (step(dataclasses.replace(pair, arch=arch), given)[2] for arch in (pair.arch, V1))
    assert relative(3.0 * own[0] - 2.0 * own[1], 3.0 * other[0] - 2.0 * other[1]) > 1e-3


@torch.inference_mode()
@pytest.mark.parametrize("pair", ["v1"], indirect=True)
def test_a_mask_from_the_text_reaches_the_row_without_text(pair: Pair) -> None:
    short, long = (pair.model.text_embed(torch.arange(tokens), 40)[1] for tokens in (5, 20))
    assert relative(short, long) > 1e-2


@pytest.mark.parametrize(("tokens", "frames"), [(1, 9), (4, 10), (5, 5), (9, 4), (7, 100)])
def test_upsampling_is_the_devices(tokens: int, frames: int) -> None:
    """Another test proves the device's upsampling."""
    assert upsample_index(tokens, frames).tolist() == upsample_index_on_the_device(tokens, frames).tolist()


def test_lengths_that_do_not_fit_are_refused() -> None:
    model = DiT(V1, len(small.VOCABULARY), small.MELS)
    _, cond, ids, noise = case((23, 31, 97))

    def start(frames: int, noise: torch.Tensor) -> None:
        next(states(model, cond, ids, frames, noise, time_grid(5).tolist(), 2.0, UPSTREAM))

    with pytest.raises(ValueError, match="frames must be above 23 reference frames and 31 tokens"):
        start(31, noise[:31])
    with pytest.raises(ValueError, match="at most 8192"):
        start(8193, noise)
    with pytest.raises(ValueError, match=r"noise must be \(96, 100\)"):
        start(96, noise)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_mish_equals_torchs_for_all_numbers(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-30, 30, 6001), torch.tensor([-6e4, -100.0, 0.0, 100.0, 6e4])]).to(dtype)
    actual, expected = parts.mish(x), F.mish(x.double())
    assert actual.dtype == torch.float32
    assert bool(actual.isfinite().all())
    assert float((actual - expected).abs().max() / 6e4) <= 1e-7
    assert relative(actual[:6001], expected[:6001]) <= 2e-7

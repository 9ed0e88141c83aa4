"""The modules that are traced, against upstream's layers; and what the traced step graph holds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from appliance.contract import bundle as contract
from appliance.contract.graphs import TAIL
from appliance.contract.mel import MelSpec
from appliance.engine.condition import condition_inputs, padded_mel
from export.graphs import fourier, parts, vocoders
from export.graphs.attention import Attention, Positions
from export.graphs.condition import Condition, angles, rates
from export.graphs.modulation import TIME_FREQUENCIES, Modulation
from export.graphs.step import Step
from export.model.bigvgan import BigVGAN, BigVGANConfig
from export.model.vocos import VocosConfig
from export.sources.checkpoint import Weights, load_dit
from tests import upstream
from tests.export import small
from tests.export.small import Workshop
from tests.export.test_model_bigvgan import CONFIGS
from tests.export.test_model_bigvgan import theirs as upstream_bigvgan

pytestmark = pytest.mark.torch

FRAMES = 67
TIMES = (0.0, 0.0012, 0.31, 0.98)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Upstream's model and the weights that it was filled with, as the exporter reads them."""

    arch: contract.Arch
    flow: Any
    weights: Weights

    @property
    def theirs(self) -> Any:
        return self.flow.transformer


@pytest.fixture(scope="module", params=small.ARCHS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    arch = small.ARCHS[request.param]
    files = small.write_files(tmp_path_factory.mktemp(request.param), arch)
    weights = load_dit(files.checkpoint, arch, len(small.VOCABULARY))
    return Pair(arch, small.upstream_flow(files, arch), weights)


def relative(found: Tensor, wanted: Tensor) -> float:
    return small.relative(found.numpy(), wanted.numpy())


def condition(pair: Pair, given: small.Case) -> Tensor:
    module = Condition(pair.weights, pair.arch, small.MELS, small.MAX_FRAMES, torch.float32)
    d = contract.dimensions(pair.arch, small.MELS, "fp32", encodes=pair.arch.encodes)
    inputs = condition_inputs(given.ids, given.cond, given.frames, d.upsampling)
    out: Tensor = module(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    return out


def modulation(pair: Pair, times: tuple[float, ...]) -> Tensor:
    rows: Tensor = Modulation(pair.weights, pair.arch)(torch.tensor(times))
    return rows


@torch.inference_mode()
def test_modulation_rows_are_upstreams_shifts_scales_and_gates(pair: Pair) -> None:
    rows = modulation(pair, TIMES)
    assert rows.shape == (len(TIMES), 6 * pair.arch.depth + 2, pair.arch.dim)
    wanted = small.upstream_rows(pair.flow, np.array(TIMES, np.float32))
    for row in range(rows.shape[1]):
        assert small.relative(rows[:, row].numpy(), wanted[:, row]) <= 2e-6


@torch.inference_mode()
@pytest.mark.parametrize("tokens", [1, 20, FRAMES - 2, FRAMES + 9])
def test_condition_is_the_part_of_upstreams_projection_that_latents_do_not_reach(
    pair: Pair, tokens: int
) -> None:
    given = small.case(FRAMES, tokens=tokens)
    found, wanted = condition(pair, given).numpy(), small.upstream_condition(pair.flow, given)
    for row in (0, 1):
        assert small.relative(found[row], wanted[row]) <= 2e-6


@torch.inference_mode()
def test_the_rows_of_a_step_are_upstreams_velocities(pair: Pair) -> None:
    given = small.case(FRAMES)
    step = Step(pair.weights, pair.arch, small.MELS, small.MAX_FRAMES, torch.float32)
    noise = torch.from_numpy(given.noise)[None]
    cond = torch.from_numpy(padded_mel(given.cond, FRAMES))[None]
    ids = torch.from_numpy(given.ids).long()[None]
    seen, rows = condition(pair, given), modulation(pair, TIMES)
    for i, time in enumerate(TIMES):
        found = step(noise.expand(2, -1, -1), seen, rows, whole(i, i), whole(FRAMES, FRAMES))
        wanted = pair.theirs(x=noise, cond=cond, text=ids, time=torch.tensor(time), cfg_infer=True)
        pair.theirs.clear_cache()
        for row in (0, 1):
            assert relative(found[row], wanted[row]) <= 5e-6


def whole(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@torch.inference_mode()
def test_one_product_of_q_k_and_v_turned_as_one_tensor_is_upstreams_attention(pair: Pair) -> None:
    x = torch.randn(2, FRAMES, pair.arch.dim, generator=torch.Generator().manual_seed(1))
    last = pair.arch.depth - 1
    theirs = pair.theirs.transformer_blocks[last].attn
    wanted = theirs(x=x, rope=pair.theirs.rotary_embed.forward_from_seq_len(FRAMES))
    ours = Attention(pair.weights, f"transformer_blocks.{last}.attn", pair.arch, torch.float32)
    angle = angles(FRAMES, rates(pair.arch.dim_head))
    found, _, values = ours(x, Positions(angle.cos(), angle.sin()), None)
    assert relative(found, wanted) <= 2e-6
    assert relative(values, theirs.to_v(x)) <= 2e-6


@pytest.mark.parametrize("pair", ["v0", "upsampling"], indirect=True)
def test_an_option_read_as_v1s_gives_another_velocity(pair: Pair) -> None:
    """The tensors are the same, so only a comparison of results can tell; it does."""
    given = small.case(FRAMES)
    found = [velocity(dataclasses.replace(pair, arch=arch), given) for arch in (pair.arch, small.V1)]
    assert relative(*found) > 1e-3


@torch.inference_mode()
def velocity(pair: Pair, given: small.Case) -> Tensor:
    step = Step(pair.weights, pair.arch, small.MELS, small.MAX_FRAMES, torch.float32)
    seen, rows = condition(pair, given), modulation(pair, TIMES)
    noise = torch.from_numpy(given.noise)[None].expand(2, -1, -1)
    guided, plain = step(noise, seen, rows, whole(2, 2), whole(FRAMES, FRAMES))
    return 3.0 * guided - 2.0 * plain  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_mish_equals_torchs_wherever_it_is_asked(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-30, 30, 6001), torch.tensor([-6e4, -100.0, 0.0, 100.0, 6e4])]).to(dtype)
    found, wanted = parts.mish(x), F.mish(x.double())
    assert found.dtype == torch.float32
    assert bool(found.isfinite().all())
    assert float((found - wanted).abs().max() / 6e4) <= 1e-7
    assert relative(found[:6001], wanted[:6001]) <= 2e-7


# Vocoders


@torch.inference_mode()
@pytest.mark.parametrize("frames", [2, 3, 4, 5, 50])
@pytest.mark.parametrize("padding", ["center", "same"])
def test_vocos_without_a_complex_number_equals_its_package(padding: str, frames: int, tmp_path: Any) -> None:
    config = dataclasses.replace(small.VOCOS, padding=padding)  # type: ignore[arg-type]
    theirs, weights = upstream_vocos(config, tmp_path)
    vocoder = contract.Vocoder("vocos", config.padding)
    module = vocoders.Vocos(weights, MelSpec("vocos"), vocoder, torch.float32)
    log_mel = torch.from_numpy(small.case(frames + 3).noise[:frames]) - 4.0
    found, wanted = module(log_mel), theirs.decode(log_mel.T[None])[0]
    assert found.shape == (vocoder.samples(frames, 256),)
    assert relative(found, wanted) <= 1e-5


def upstream_vocos(config: VocosConfig, folder: Any) -> tuple[Any, dict[str, Tensor]]:
    small.write_random_vocos(folder, config, 3)
    model = upstream.vocos_module().Vocos.from_hparams(str(folder / "config.yaml"))
    weights = torch.load(folder / "pytorch_model.bin")
    model.load_state_dict(weights)
    return model.eval(), weights


@torch.inference_mode()
@pytest.mark.parametrize("hop", [256, 300, 7])
def test_dfts_in_two_factors_equal_torchs(hop: int) -> None:
    n_fft, window = 4 * hop, torch.hann_window(4 * hop, dtype=torch.float64)
    generator = torch.Generator().manual_seed(hop)
    spectrum = torch.randn(9, 2 * (n_fft // 2 + 1), generator=generator)
    module = fourier.InverseSTFT(MelSpec("vocos", hop=hop, n_fft=n_fft, win=n_fft), contract.Vocoder("vocos"))
    real, imaginary = spectrum.double().chunk(2, dim=1)
    imaginary[:, [0, -1]] = 0  # in the lowest and the highest bin they are no signal
    wanted = torch.istft(torch.complex(real, imaginary).T, n_fft, hop, window=window)
    assert relative(module(spectrum), wanted) <= 5e-7

    frames, bins = torch.randn(9, n_fft, generator=generator), n_fft // 5
    wanted = torch.fft.rfft(frames * window * (4 / n_fft))[:, :bins]
    assert relative(torch.stack(fourier.LowBins(n_fft, bins)(frames), -1), torch.view_as_real(wanted)) <= 5e-7


def test_vocos_of_another_hop_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs win = n_fft = 4·hop, not 1024, 1024, 300"):
        fourier.InverseSTFT(MelSpec("vocos", hop=300), contract.Vocoder("vocos"))


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("frames", [1, 2, 31])
def test_bigvgan_without_strides_equals_its_package(name: str, frames: int) -> None:
    theirs = upstream_bigvgan(CONFIGS[name])
    reference = BigVGAN(BigVGANConfig.parse(CONFIGS[name])).eval()
    reference.load_state_dict(small.folded(theirs.state_dict()), strict=True)
    module = vocoders.BigVGAN(reference, torch.float32)
    log_mel = torch.randn(frames, 12, generator=torch.Generator().manual_seed(frames))
    assert relative(module(log_mel), theirs(log_mel.T[None])[0, 0]) <= 1e-5


# Where the weights are


def initialisers(bundle: contract.Bundle, name: str, variant: str = "default") -> dict[str, tuple[int, ...]]:
    """Shapes of the graph's weights and tables; what the tracer made up for itself is left out."""
    graph = onnx.load(bundle.graph(name, variant), load_external_data=False).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    made_up = ("val_", "scalar_tensor", "view", "_unsafe_view")
    return {name: shape for name, shape in shapes.items() if not name.startswith(made_up)}


def elements(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes.values())


@pytest.mark.parametrize("name", small.TRACED)
def test_every_parameter_is_in_exactly_one_kind_of_graph(name: str, workshop: Workshop) -> None:
    made = workshop.make(name)
    arch = made.arch
    weights = load_dit(made.files.checkpoint, arch, len(small.VOCABULARY))
    sizes = {name: int(np.prod(weights.entry(name).shape)) for name in weights}
    of_time = [n for n in sizes if ".attn_norm." in n or n.startswith(("norm_out.", "time_embed."))]
    of_text = [n for n in sizes if n.startswith("text_embed.")]
    proj = arch.dim * (small.MELS + arch.text_dim) + arch.dim  # its columns for reference and text, its bias
    norms = 2 * arch.depth * (arch.heads - 1) * arch.dim_head if arch.qk_norm else 0  # repeated by head
    longest = 2 * small.MAX_FRAMES  # a reference and a reply, each padded
    steps = longest * arch.dim_head + norms  # cosines, sines
    tables = {
        "modulation": TIME_FREQUENCIES,
        "condition": (small.MAX_FRAMES + TAIL * (arch.encodes == "tokens"))
        * arch.text_dim
        * (arch.conv_layers > 0),
        **dict.fromkeys(("step", "step_keys", "step_reply"), steps + longest),  # and frame numbers
        "update": 0,
    }
    held = {name: elements(initialisers(made.bundle, name)) - extra for name, extra in tables.items()}
    own = {name: elements(initialisers(made.bundle, name, "ort-cpu")) for name in ("step_keys", "step_reply")}
    assert held["modulation"] == sum(sizes[n] for n in of_time)
    assert held["condition"] == sum(sizes[n] for n in of_text) + proj
    step = sum(sizes.values()) - sizes["rotary_embed.inv_freq"] - held["modulation"] - held["condition"]
    assert held["step"] == held["step_keys"] == held["step_reply"] == step
    assert own == dict.fromkeys(own, step + steps)
    assert held["update"] == 0


@pytest.mark.parametrize("name", small.TRACED)
@pytest.mark.parametrize("variant", ["default", "ort-cpu"])
def test_what_the_tracer_made_up_is_no_matrix(name: str, variant: str, workshop: Workshop) -> None:
    bundle = workshop.make(name).bundle
    for graph in ("modulation", "condition", "step", "step_keys", "step_reply", "update"):
        named = initialisers(bundle, graph, variant)
        tensors = onnx.load(bundle.graph(graph, variant), load_external_data=False).graph.initializer
        for tensor in tensors:
            if tensor.name not in named:
                assert len(tensor.dims) <= 1 and sum(tensor.dims) <= bundle.manifest.arch.dim, tensor.name

"""Our Vocos and BigVGAN, plain and as the modules that are traced, against vocos 0.1.0 and bigvgan 2.4."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from appliance.contract import bundle as contract
from appliance.contract.mel import MelSpec
from export.graphs import fourier, vocoders
from export.model.bigvgan import BigVGAN, BigVGANConfig
from export.model.vocos import VocosConfig
from export.sources.checkpoint import build_vocoder, load_vocos
from tests.engine.lanes import relative
from tests.export.random_checkpoint import redraw, write_random_vocos
from tests.harness import small
from tests.oracle import upstream

pytestmark = pytest.mark.torch


def log_mel(frames: int, mels: int) -> Tensor:
    drawn = torch.randn(frames, mels, generator=torch.Generator().manual_seed(frames))
    return 2 * drawn - 4 if mels == small.MELS else drawn


# Vocos


@pytest.fixture(params=["center", "same"])
def vocos(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[VocosConfig, Path]:
    config = dataclasses.replace(small.VOCOS, padding=request.param)
    return config, write_random_vocos(tmp_path, config, 3)


@torch.inference_mode()
@pytest.mark.parametrize("loud", [False, True])
def test_vocos_samples_are_its_packages(vocos: tuple[VocosConfig, Path], loud: bool) -> None:
    """Loud input has magnitudes around e⁶, far above the limit of 100 to which upstream clamps them."""
    config, folder = vocos
    weights = torch.load(folder / "pytorch_model.bin")
    weights["head.out.bias"][:513] += 6.0 * loud
    torch.save(weights, folder / "pytorch_model.bin")
    theirs = upstream.vocos_module().Vocos.from_hparams(str(folder / "config.yaml")).eval()
    theirs.load_state_dict(weights, strict=True)
    plain, record = build_vocoder(*load_vocos(folder)), contract.Vocoder("vocos", config.padding)
    traced = vocoders.VocosGraph(weights, MelSpec("vocos"), record, torch.float32)
    for frames in (2, 3, 4, 5, 50, 151):
        given = log_mel(frames, small.MELS)
        expected = theirs.decode(given.T[None])[0]
        assert expected.shape == (record.samples(frames, 256),) and float(expected.std()) > 1e-3
        for model in (plain, traced):
            assert relative(model(given), expected) <= 1e-5


@torch.inference_mode()
@pytest.mark.parametrize("hop", [256, 300, 7])
def test_dfts_in_two_factors_equal_torchs(hop: int) -> None:
    n_fft, window = 4 * hop, torch.hann_window(4 * hop, dtype=torch.float64)
    generator = torch.Generator().manual_seed(hop)
    spectrum = torch.randn(9, 2 * (n_fft // 2 + 1), generator=generator)
    module = fourier.InverseSTFTGraph(
        MelSpec("vocos", hop=hop, n_fft=n_fft, win=n_fft), contract.Vocoder("vocos")
    )
    real, imaginary = spectrum.double().chunk(2, dim=1)
    imaginary[:, [0, -1]] = 0  # the lowest and the highest bin carry no imaginary signal
    expected = torch.istft(torch.complex(real, imaginary).T, n_fft, hop, window=window)
    assert relative(module(spectrum), expected) <= 5e-7

    frames, bins = torch.randn(9, n_fft, generator=generator), n_fft // 5
    low = torch.fft.rfft(frames * window * (4 / n_fft))[:, :bins]
    assert relative(torch.stack(fourier.LowBins(n_fft, bins)(frames), -1), torch.view_as_real(low)) <= 5e-7


def test_vocos_of_another_hop_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs win = n_fft = 4·hop, not 1024, 1024, 300"):
        fourier.InverseSTFTGraph(MelSpec("vocos", hop=300), contract.Vocoder("vocos"))


def changed(section: str, **values: Any) -> dict[str, Any]:
    """A change of a section of small.VOCOS's `config.yaml`."""
    whole = small.VOCOS.sections()[section]
    return {section: {**whole, "init_args": {**whole["init_args"], **values}}}


# BigVGAN

V2: dict[str, Any] = json.loads(Path(__file__).with_name("bigvgan_v2.json").read_text("utf-8"))
CONFIGS: dict[str, dict[str, Any]] = {
    "v2": V2,
    "linear_scale": {**V2, "snake_logscale": False},
    "snake": {**V2, "activation": "snake"},
    "single_block": {**V2, "resblock": "2", "resblock_dilation_sizes": [[1, 3], [1, 3]]},
    "v1": {key: value for key, value in V2.items() if not key.startswith("use_")},
}


def upstream_bigvgan(raw: dict[str, Any], seed: int = 2) -> Any:
    """Upstream's generator with random parameters, including both halves of the weight norm; its samples stay
    within ±1."""
    model = upstream.make_bigvgan(dict(raw))
    redraw(model, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight_g"):
                parameter.abs_().add_(0.5)
        model.conv_post.weight_g.mul_(0.05 if raw["resblock"] == "2" else 0.002)
    return model


@torch.inference_mode()
@pytest.mark.parametrize(("name", "gain"), [*((name, 1.0) for name in CONFIGS), ("v2", 400.0), ("v1", 400.0)])
def test_bigvgan_samples_are_its_packages(name: str, gain: float) -> None:
    """Samples are neither silent nor clamped; loud ones reach the bound of a clamp or a tanh."""
    theirs, config = upstream_bigvgan(CONFIGS[name]), BigVGANConfig.parse(CONFIGS[name])
    theirs.conv_post.weight_g.mul_(gain)
    plain = BigVGAN(config).eval()
    plain.load_state_dict(small.folded(theirs.state_dict()), strict=True)
    traced = vocoders.BigVGANGraph(plain, torch.float32)
    assert config.hop == 16
    for frames in (1, 2, 7, 40):
        given = log_mel(frames, 12)
        expected = theirs(given.T[None])[0, 0]
        assert expected.shape == (16 * frames,)
        for model in (plain, traced):
            assert relative(model(given), expected) <= 1e-5
    assert float(expected.abs().max()) > 0.99 if gain > 1 else 1e-4 < float(expected.abs().mean()) < 0.5


def test_the_filters_equal_upstreams_without_loading_them() -> None:
    oracle = upstream_bigvgan(V2).state_dict()
    own = BigVGAN(BigVGANConfig.parse(V2)).state_dict()
    filters = [name for name in own if name.endswith("filter")]
    assert len(filters) == 2 * (3 * 2 * 6 + 1)
    for name in filters:
        assert torch.equal(own[name], oracle[name])


def test_folding_knows_both_ways_of_naming_the_halves() -> None:
    torch.manual_seed(0)
    plain = nn.ConvTranspose1d(4, 6, 8, 4)
    new = nn.utils.parametrizations.weight_norm(plain)
    state = {f"ups.0.0.{name}": value for name, value in new.state_dict().items()}
    with torch.no_grad():
        state["ups.0.0.parametrizations.weight.original0"].mul_(3.0)  # shared with `new`
    old = {
        "ups.0.0.bias": state["ups.0.0.bias"],
        "ups.0.0.weight_g": state["ups.0.0.parametrizations.weight.original0"],
        "ups.0.0.weight_v": state["ups.0.0.parametrizations.weight.original1"],
    }
    for found in (small.folded(state), small.folded(old)):
        assert set(found) == {"ups.0.0.weight", "ups.0.0.bias"}
        assert relative(found["ups.0.0.weight"], new.weight.detach()) <= 1e-6


# Configurations

REFUSED: list[tuple[Any, Any, str]] = [
    (VocosConfig, {"backbone": None}, "missing section backbone"),
    (VocosConfig, {"head": {"class_path": "vocos.heads.IMDCTSymExpHead"}}, "must be ISTFTHead"),
    (VocosConfig, changed("backbone", adanorm_num_embeddings=4), "adanorm"),
    (VocosConfig, changed("head", padding="valid"), "padding: must be one of center, same, not 'valid'"),
    (VocosConfig, changed("backbone", input_channels=80), "is 80, feature_extractor.n_mels 100"),
    (VocosConfig, {"head": {"class_path": "a.ISTFTHead", "init_args": {"dim": 48}}}, "missing key n_fft"),
    (VocosConfig, changed("backbone", dim=None), "backbone.init_args: dim: must be int, not NoneType"),
    (VocosConfig, changed("backbone", num_layers=0), "num_layers: must be .*, not 0"),
    (VocosConfig, changed("feature_extractor", n_fft=2048), "n_fft is 1024, feature_extractor.n_fft 2048"),
    (VocosConfig, changed("feature_extractor", hop_length=512), "hop_length is 256, .*hop_length 512"),
    (VocosConfig, ["backbone"], "missing section"),
    (BigVGANConfig, {"activation": "relu"}, "activation: must be one of snake, snakebeta, not 'relu'"),
    (BigVGANConfig, {"resblock": "3"}, "resblock: must be one of 1, 2, not '3'"),
    (BigVGANConfig, {"n_fft": 0}, "n_fft: must be at least 1, not 0"),
    (BigVGANConfig, {"upsample_rates": None}, "upsample_rates: must be tuple, not NoneType"),
    (BigVGANConfig, {"upsample_rates": [4, 0, 2]}, "must hold numbers from 1"),
    (BigVGANConfig, {"hop_size": 32}, "hop_size: is 32, upsample_rates multiply to 16"),
    (BigVGANConfig, {"upsample_rates": [4, 2]}, "differ in length"),
    (BigVGANConfig, {"resblock_kernel_sizes": [3]}, "differ in length"),
    (BigVGANConfig, {"upsample_kernel_sizes": [8, 5, 4]}, "5 does not centre on a rate of 2"),
    (BigVGANConfig, {"snake_logscale": ...}, "missing key snake_logscale"),
    (BigVGANConfig, [1], "must be a mapping"),
]
"""A configuration's class, the changes of a valid configuration (`...`: removed), and the refusal."""


@pytest.mark.parametrize(("kind", "change", "message"), REFUSED)
def test_a_config_that_is_not_for_us_is_refused(kind: Any, change: Any, message: str) -> None:
    if isinstance(change, dict):
        read = {VocosConfig: small.VOCOS.sections(), BigVGANConfig: V2}[kind]
        change = {key: value for key, value in (read | change).items() if value is not ...}
    with pytest.raises(ValueError, match=message):
        kind.parse(change)

"""Our BigVGAN against bigvgan 2.4, on random weights, for every option of its config."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.model.bigvgan import BigVGAN, BigVGANConfig
from export.model.redraw import redraw
from tests import upstream
from tests.export import small

pytestmark = pytest.mark.torch

V2: dict[str, Any] = {
    "resblock": "1",
    "num_mels": 12,
    "upsample_rates": [4, 2, 2],
    "upsample_kernel_sizes": [8, 4, 4],
    "upsample_initial_channel": 32,
    "resblock_kernel_sizes": [3, 7],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]],
    "activation": "snakebeta",
    "snake_logscale": True,
    "use_tanh_at_final": False,
    "use_bias_at_final": False,
    "sampling_rate": 24000,
    "batch_size": 4,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "v2": V2,
    "linear_scale": {**V2, "snake_logscale": False},
    "snake": {**V2, "activation": "snake"},
    "single_block": {**V2, "resblock": "2", "resblock_dilation_sizes": [[1, 3], [1, 3]]},
    "v1": {key: value for key, value in V2.items() if not key.startswith("use_")},
}


def theirs(raw: dict[str, Any], seed: int = 2) -> Any:
    """Upstream's generator, redrawn: the weight norm's two halves too; its loudness fits within ±1."""
    model = upstream.make_bigvgan(dict(raw))
    redraw(model, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight_g"):
                parameter.abs_().add_(0.5)
        model.conv_post.weight_g.mul_(0.05 if raw["resblock"] == "2" else 0.002)
    return model


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("frames", [1, 7, 40])
def test_samples_equal_upstreams(name: str, frames: int) -> None:
    oracle = theirs(CONFIGS[name])
    config = BigVGANConfig.parse(CONFIGS[name])
    model = BigVGAN(config).eval()
    model.load_state_dict(small.folded(oracle.state_dict()), strict=True)
    log_mel = torch.randn(frames, 12, generator=torch.Generator().manual_seed(frames))
    with torch.inference_mode():
        wanted = oracle(log_mel.T[None])[0, 0]
        found = model(log_mel)
    assert config.hop == 16
    assert found.shape == wanted.shape == (16 * frames,)
    assert 1e-4 < float(wanted.abs().mean()) < 0.5  # neither silent nor clamped
    assert relative(found, wanted) <= 1e-5


@pytest.mark.parametrize("name", ["v2", "v1"])
def test_loud_samples_are_bounded_as_upstreams(name: str) -> None:
    oracle = theirs(CONFIGS[name])
    with torch.no_grad():
        oracle.conv_post.weight_g.mul_(40.0)
    model = BigVGAN(BigVGANConfig.parse(CONFIGS[name])).eval()
    model.load_state_dict(small.folded(oracle.state_dict()))
    log_mel = torch.randn(30, 12, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = oracle(log_mel.T[None])[0, 0]
        assert relative(model(log_mel), wanted) <= 1e-5
    assert float(wanted.abs().max()) > 0.99  # the bound was reached


def test_the_filters_equal_upstreams_without_loading_them() -> None:
    oracle = theirs(V2).state_dict()
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "relu"}, "activation: must be one of snake, snakebeta, not 'relu'"),
        ({"resblock": "3"}, "resblock: must be one of 1, 2, not '3'"),
        ({"num_mels": None}, "num_mels: must be int, not NoneType"),
        ({"sampling_rate": "24k"}, "sampling_rate: must be int, not str"),
        ({"n_fft": 0}, "n_fft: must be at least 1, not 0"),
        ({"upsample_rates": None}, "upsample_rates: must be tuple, not NoneType"),
        ({"upsample_rates": [4, None, 2]}, "upsample_rates: must be int, not NoneType"),
        ({"upsample_rates": [4, 0, 2]}, "must hold numbers from 1"),
        ({"resblock_dilation_sizes": [[1, "3"], [1, 3, 5]]}, "resblock_dilation_sizes: must be int, not str"),
        ({"hop_size": 32}, "hop_size: is 32, upsample_rates multiply to 16"),
        ({"upsample_rates": [4, 2]}, "differ in length"),
        ({"resblock_kernel_sizes": [3]}, "differ in length"),
        ({"upsample_kernel_sizes": [8, 5, 4]}, "5 does not centre on a rate of 2"),
    ],
)
def test_a_config_that_is_not_for_us_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BigVGANConfig.parse({**V2, **change})


def test_a_config_without_a_key_names_it() -> None:
    raw = {key: value for key, value in V2.items() if key != "snake_logscale"}
    with pytest.raises(ValueError, match="missing key snake_logscale"):
        BigVGANConfig.parse(raw)
    with pytest.raises(ValueError, match="must be a mapping"):
        BigVGANConfig.parse([1])

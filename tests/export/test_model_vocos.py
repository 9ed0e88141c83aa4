"""Our Vocos against vocos 0.1.0, on random weights, with both paddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from export.model.redraw import redraw
from export.model.vocos import Vocos, VocosConfig
from tests import upstream

pytestmark = pytest.mark.torch


def config(padding: str, **backbone: Any) -> dict[str, Any]:
    """A parsed `config.yaml`."""
    return {
        "feature_extractor": {
            "class_path": "vocos.feature_extractors.MelSpectrogramFeatures",
            "init_args": {"sample_rate": 24000, "n_fft": 1024, "hop_length": 256, "n_mels": 100},
        },
        "backbone": {
            "class_path": "vocos.models.VocosBackbone",
            "init_args": {
                "input_channels": 100,
                "dim": 48,
                "intermediate_dim": 96,
                "num_layers": 3,
                **backbone,
            },
        },
        "head": {
            "class_path": "vocos.heads.ISTFTHead",
            "init_args": {"dim": 48, "n_fft": 1024, "hop_length": 256, "padding": padding},
        },
    }


def features(**changes: Any) -> dict[str, Any]:
    """The section `feature_extractor`."""
    section = config("same")["feature_extractor"]
    return {**section, "init_args": {**section["init_args"], **changes}}


def theirs(padding: str, seed: int = 5) -> tuple[Any, Any]:
    """Upstream's backbone and head, redrawn, under one module."""
    upstream.vocos_module()
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone

    raw = config(padding)
    model = torch.nn.ModuleDict(
        {
            "backbone": VocosBackbone(**raw["backbone"]["init_args"]),
            "head": ISTFTHead(**raw["head"]["init_args"]),
        }
    ).eval()
    redraw(model, seed)
    return model, raw


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("frames", [2, 3, 5, 64, 151])
@pytest.mark.parametrize("padding", ["center", "same"])
def test_samples_equal_upstreams(padding: str, frames: int) -> None:
    oracle, raw = theirs(padding)
    model = Vocos(VocosConfig.parse(raw)).eval()
    model.load_state_dict(oracle.state_dict(), strict=True)
    log_mel = 2 * torch.randn(frames, 100, generator=torch.Generator().manual_seed(frames)) - 4
    with torch.inference_mode():
        wanted = oracle["head"](oracle["backbone"](log_mel.T[None]))[0]
        found = model(log_mel)
    assert found.shape == wanted.shape == ((frames - (padding == "center")) * 256,)
    assert float(wanted.std()) > 1e-3
    assert relative(found, wanted) <= 1e-5


def test_loud_bins_are_clamped_as_upstream_does() -> None:
    oracle, raw = theirs("center")
    with torch.no_grad():
        oracle["head"].out.bias[:513] += 6.0  # magnitudes around e⁶, far above the limit of 100
    model = Vocos(VocosConfig.parse(raw)).eval()
    model.load_state_dict(oracle.state_dict())
    log_mel = torch.randn(20, 100)
    with torch.inference_mode():
        wanted = oracle["head"](oracle["backbone"](log_mel.T[None]))[0]
        assert relative(model(log_mel), wanted) <= 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backbone": None}, "missing section backbone"),
        ({"head": {"class_path": "vocos.heads.IMDCTSymExpHead"}}, "must be ISTFTHead"),
        ({"backbone": config("same", adanorm_num_embeddings=4)["backbone"]}, "adanorm"),
        ({"head": config("valid")["head"]}, "padding: must be one of center, same, not 'valid'"),
        ({"backbone": config("same", input_channels=80)["backbone"]}, "is 80, feature_extractor.n_mels 100"),
        ({"head": {"class_path": "a.ISTFTHead", "init_args": {"dim": 48}}}, "missing key n_fft"),
        (
            {"backbone": config("same", dim=None)["backbone"]},
            "backbone.init_args: dim: must be int, not NoneType",
        ),
        ({"backbone": config("same", num_layers="a few")["backbone"]}, "num_layers: must be int, not str"),
        ({"backbone": config("same", num_layers=0)["backbone"]}, "num_layers: must be .*, not 0"),
        (
            {"feature_extractor": features(sample_rate=None)},
            "feature_extractor.init_args: sample_rate: must be int, not NoneType",
        ),
        ({"feature_extractor": features(n_fft=2048)}, "head.n_fft is 1024, feature_extractor.n_fft 2048"),
        ({"feature_extractor": features(hop_length=512)}, "hop_length is 256, .*hop_length 512"),
    ],
)
def test_a_config_that_is_not_for_us_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VocosConfig.parse({**config("same"), **change})


def test_a_config_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="missing section"):
        VocosConfig.parse(["backbone"])

"""Our HiFi-GAN against one written from its paper, and a bundle of 16 kHz and 80 mels."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from appliance.contract.bundle import Vocoder
from appliance.contract.mel import MelSpec
from appliance.contract.schedule import time_grid
from appliance.contract.tokens import Vocabulary
from appliance.engine.cases import FEMALE, samples
from appliance.engine.replay import replay
from appliance.plan import Planner
from appliance.request import Reference, Request, Segmentation
from appliance.voices.reference import prepare
from export.graphs import vocoders
from export.model.hifigan import HiFiGANConfig
from export.sources.checkpoint import CheckpointError, build_hifigan, load_hifigan
from tests.engine.lanes import relative
from tests.export import small
from tests.export.random_checkpoint import write_random_hifigan
from tests.export.small import Workshop
from tests.sounds import to_file

pytestmark = pytest.mark.torch

PUBLISHED: dict[str, Any] = {
    "num_mels": 80,
    "upsample_rates": [8, 8, 2, 2],
    "upsample_kernel_sizes": [16, 16, 4, 4],
    "upsample_initial_channel": 64,
    "resblock": "1",
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "V1": PUBLISHED,
    "V3": {
        **PUBLISHED,
        "resblock": "2",
        "upsample_rates": [8, 8, 4],
        "upsample_kernel_sizes": [16, 16, 8],
        "resblock_kernel_sizes": [3, 5, 7],
        "resblock_dilation_sizes": [[1, 3], [1, 3], [1, 3]],
    },
    "without a last bias": {**PUBLISHED, "conv_post_bias": False, "upsample_initial_channel": 32},
}


def paper(state: Mapping[str, Tensor], config: HiFiGANConfig, log_mel: Tensor) -> Tensor:
    """Samples of (N, M) by the weights as they are stored: magnitudes, directions, SpeechBrain's names."""

    def weights(name: str) -> tuple[Tensor, Tensor | None]:
        direction, magnitude = state[f"{name}.conv.weight_v"], state[f"{name}.conv.weight_g"]
        return direction / direction.norm(dim=(1, 2), keepdim=True) * magnitude, state.get(
            f"{name}.conv.bias"
        )

    def conv(name: str, x: Tensor, dilation: int = 1) -> Tensor:
        weight, bias = weights(name)
        edge = (weight.shape[2] - 1) * dilation // 2
        return F.conv1d(F.pad(x, (edge, edge)), weight, bias, dilation=dilation)

    def leaky(x: Tensor, slope: float = 0.1) -> Tensor:
        return torch.where(x > 0, x, slope * x)

    def block(name: str, x: Tensor, dilations: tuple[int, ...]) -> Tensor:
        for i, dilation in enumerate(dilations):
            if config.resblock == "1":
                h = conv(f"{name}.convs1.{i}", leaky(x), dilation)
                x = x + conv(f"{name}.convs2.{i}", leaky(h))
            else:
                x = x + conv(f"{name}.convs.{i}", leaky(x), dilation)
        return x

    x = conv("conv_pre", log_mel.T[None])
    kinds = config.resblock_dilation_sizes
    for stage, rate in enumerate(config.upsample_rates):
        weight, bias = weights(f"ups.{stage}")
        x = F.conv_transpose1d(leaky(x), weight, bias, rate, (weight.shape[2] - rate) // 2)
        x = sum(block(f"resblocks.{stage * len(kinds) + i}", x, d) for i, d in enumerate(kinds)) / len(kinds)
    return conv("conv_post", leaky(x, 0.01)).tanh()[0, 0]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("frames", [1, 7, 40])
def test_samples_equal_the_papers(name: str, frames: int, tmp_path: Path) -> None:
    config = HiFiGANConfig.parse(CONFIGS[name])
    folder = write_random_hifigan(tmp_path, config, seed=3)
    log_mel = torch.randn(frames, 80, generator=torch.Generator().manual_seed(frames)) - 4
    read, weights = load_hifigan(folder)
    assert read == config  # from the tensors' shapes alone
    with torch.inference_mode():
        wanted = paper(torch.load(folder / "generator.ckpt"), config, log_mel)
        found = build_hifigan(read, weights)(log_mel)
    assert found.shape == wanted.shape == (256 * frames,)
    assert 1e-3 < float(wanted.abs().mean()) < 0.9  # neither silent nor saturated
    assert relative(found.numpy(), wanted.numpy()) <= 1e-5


def test_both_makers_configurations_are_read(tmp_path: Path) -> None:
    training = {"resblock_dilation_sizes": [[1, 2, 4]] * 3, "sampling_rate": 16000, "batch_size": 16}
    config = HiFiGANConfig.parse({**PUBLISHED, **training})
    folder = write_random_hifigan(tmp_path, config)
    assert load_hifigan(folder)[0] != config  # the dilations are in no tensor
    (folder / "hyperparams.yaml").write_text(
        "in_channels: 80\nsample_rate: 16000\nupsample_factors: [8, 8, 2, 2]\n"
        "upsample_kernel_sizes: [16, 16, 4, 4]\nupsample_initial_channel: 64\nresblock_type: '1'\n"
        "resblock_kernel_sizes: [3, 7, 11]\nresblock_dilation_sizes: [[1, 2, 4], [1, 2, 4], [1, 2, 4]]\n"
        "generator: !new:speechbrain.lobes.models.HifiGAN.HifiganGenerator\n"
        "    in_channels: !ref <in_channels>\n"
    )
    assert load_hifigan(folder)[0] == config
    (folder / "config.json").write_text(json.dumps({**dataclasses.asdict(config), "segment_size": 8192}))
    assert load_hifigan(folder)[0] == config


def test_what_is_no_generator_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no generator\.ckpt"):
        load_hifigan(tmp_path)
    torch.save({"linear.weight": torch.zeros(2)}, tmp_path / "generator.ckpt")
    with pytest.raises(CheckpointError, match=r"generator\.ckpt: no HiFi-GAN or BigVGAN .* it has linear"):
        load_hifigan(tmp_path)


def test_half_the_bits_are_nearly_the_same(tmp_path: Path) -> None:
    folder = write_random_hifigan(tmp_path, small.HIFIGAN, seed=3)
    log_mel = torch.randn(60, 80, generator=torch.Generator().manual_seed(1)) - 4
    state = torch.load(folder / "generator.ckpt")
    module = vocoders.HiFiGAN(build_hifigan(*load_hifigan(folder)), torch.float16)
    with torch.inference_mode():
        found, wanted = module(log_mel), paper(state, small.HIFIGAN, log_mel)
    assert found.dtype == torch.float32
    assert 1e-6 < relative(found.numpy(), wanted.numpy()) <= 1e-2


def test_a_bundle_of_16_khz_and_80_mels_speaks_as_the_paper(workshop: Workshop) -> None:
    made = workshop.make("one_block", "hifigan")
    manifest = made.bundle.manifest
    assert manifest.mel == MelSpec("hifigan", 16_000, 80)
    assert manifest.vocoder == Vocoder("hifigan", "same")
    mel, spoken = replay(made.engine(), small.case(97, mels=80).segment(time_grid(5)))
    state = torch.load(made.files.vocoder_path / "generator.ckpt")
    heard = paper(state, small.HIFIGAN, torch.from_numpy(mel)).numpy()
    assert spoken.shape == heard.shape == (97 * 256,)
    assert relative(spoken, heard) <= 5e-5


def test_a_voice_at_16_khz_is_planned_and_spoken_to_the_sample(workshop: Workshop) -> None:
    """Its log-mel is three frames shorter than the reference; the output starts where upstream's does."""
    made = workshop.make("one_block", "hifigan")
    manifest = made.bundle.manifest
    features = prepare(to_file(samples(FEMALE, 24_000)[:, None]), manifest.mel, 0.1)
    reference = Reference("hello there. ", features)
    planner = Planner(manifest, Vocabulary(tuple(small.VOCABULARY)), lambda *_: reference, list)
    request = Request("a voice at another rate.", FEMALE, 4, 1, 2.0, Segmentation.UPSTREAM)
    (segment,) = planner.plan(request)
    r = len(features.samples) // 256
    assert (segment.reference_frames, len(segment.reference_log_mel)) == (r, r - 3)
    engine = made.engine()
    lane = engine.open(segment)
    for _ in range(lane.steps_left):
        engine.step([lane.id])
    spoken = engine.finish(lane.id)
    assert len(spoken) == (segment.frames - r) * 256 == round(segment.audio_s * 16_000)
    assert relative(spoken, engine.decode(engine.log_mel(lane.id)[r:])) <= 1e-6
    engine.close(lane.id)

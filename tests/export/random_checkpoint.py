"""Random checkpoints in the official layouts, for tests and benchmarks."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor, nn

from appliance.contract.bundle import Arch
from appliance.contract.mel import MelSpec, filterbank
from export.model.arch import ZipVoiceArch
from export.model.bigvgan import BigVGAN, BigVGANConfig
from export.model.dit import DiT, rotary_frequencies
from export.model.vocos import Vocos, VocosConfig
from export.model.zipformer import ZipVoice
from export.sources.header import VOCODER_FILES
from tests.harness.weightless import spread

VOCOS_MEL_24KHZ = VocosConfig(100, 512, 1536, 8, n_fft=1024, hop=256, padding="center")
"""Configuration of charactr/vocos-mel-24khz."""
BIGVGAN_V2_24KHZ = BigVGANConfig(
    num_mels=100,
    upsample_rates=(4, 4, 2, 2, 2, 2),
    upsample_kernel_sizes=(8, 8, 4, 4, 4, 4),
    upsample_initial_channel=1536,
    resblock="1",
    resblock_kernel_sizes=(3, 7, 11),
    resblock_dilation_sizes=((1, 3, 5), (1, 3, 5), (1, 3, 5)),
    activation="snakebeta",
    snake_logscale=True,
    use_tanh_at_final=False,
    use_bias_at_final=False,
)
"""Configuration of nvidia/bigvgan_v2_24khz_100band_256x."""


@torch.no_grad()
def redraw(model: nn.Module, seed: int) -> None:
    """Redraw every parameter of `model`; buffers are unchanged."""
    for name, parameter in model.named_parameters():
        parameter.copy_(draw(name, parameter.shape, seed))


def draw(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Draw the float32 tensor of a name, shape and seed, independent of earlier draws."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    scale, shift = spread(name, shape)
    return torch.empty(tuple(shape)).normal_(generator=generator).mul_(scale).add_(torch.as_tensor(shift))


def write_random(
    folder: Path,
    arch: Arch,
    vocab: Sequence[str],
    seed: int = 0,
    mels: int = 100,
    dtype: torch.dtype = torch.float32,
    *,
    embeds_guidance: bool = False,
) -> tuple[Path, Path]:
    """Write `model.safetensors` and `vocab.txt`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        model = DiT(arch, len(vocab), mels, embeds_guidance=embeds_guidance)
    prefix = "ema_model.transformer."

    def tensor(name: str, shape: torch.Size) -> Tensor:
        if name == "rotary_embed.inv_freq":
            return rotary_frequencies(arch.dim_head).to(dtype)
        return draw(name, shape, seed).to(dtype)

    state = {prefix + name: tensor(name, value.shape) for name, value in model.state_dict().items()}
    checkpoint, vocabulary = folder / "model.safetensors", folder / "vocab.txt"
    counters = {"initted": torch.tensor(True), "step": torch.tensor(seed)}
    save_file(state | counters, checkpoint)
    vocabulary.write_text("".join(f"{entry}\n" for entry in vocab), "utf-8")
    return checkpoint, vocabulary


def write_random_vocos(folder: Path, config: VocosConfig = VOCOS_MEL_24KHZ, seed: int = 0) -> Path:
    """Write `config.yaml` and `pytorch_model.bin` with feature extractor; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model = Vocos(config)
    redraw(model, seed)
    spec = MelSpec("vocos", config.sample_rate, config.mels, config.hop, config.n_fft, config.n_fft)
    features = {
        "feature_extractor.mel_spec.spectrogram.window": torch.hann_window(config.n_fft),
        "feature_extractor.mel_spec.mel_scale.fb": torch.from_numpy(filterbank(spec).copy()).float(),
    }
    torch.save({**features, **model.state_dict()}, folder / "pytorch_model.bin")
    (folder / "config.yaml").write_text(yaml.safe_dump(config.sections(), sort_keys=False), "utf-8")
    return folder


def write_random_bigvgan(folder: Path, config: BigVGANConfig = BIGVGAN_V2_24KHZ, seed: int = 0) -> Path:
    """Write `config.json` and `bigvgan_generator.pt` with weight norm; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model = BigVGAN(config)
    redraw(model, seed)
    with torch.no_grad():  # samples stay within ±1
        model.conv_post.weight.mul_(0.01)
    torch.save({"generator": _with_weight_norm(model)}, folder / VOCODER_FILES["bigvgan"][0])
    (folder / "config.json").write_text(json.dumps(asdict(config), indent=2), "utf-8")
    return folder


def _with_weight_norm(model: nn.Module) -> Mapping[str, Tensor]:
    """State dict with convolution weights as magnitude and direction, in torch's older naming."""
    kinds = (nn.Conv1d, nn.ConvTranspose1d)
    convs = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, kinds)}
    state = {}
    for name, value in model.state_dict().items():
        if name in convs:
            state[f"{name}_g"] = value.flatten(1).norm(dim=1).view(-1, 1, 1)
            state[f"{name}_v"] = value
        else:
            state[name] = value
    return state


def write_random_zipvoice(
    folder: Path, arch: ZipVoiceArch, tokens: Sequence[str], seed: int = 0, *, embeds_guidance: bool = False
) -> Path:
    """Write `model.pt`, `model.json` and `tokens.txt`, the padding first, as published; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model = ZipVoice(arch, len(tokens), embeds_guidance=embeds_guidance)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(draw_zipvoice(name, tuple(value.shape), seed))
    torch.save({"model": dict(model.state_dict())}, folder / "model.pt")
    section = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(arch).items()}
    (folder / "model.json").write_text(json.dumps({"model": section, "feature": {"type": "vocos"}}))
    lines = (f"{token}\t{number}\n" for number, token in enumerate(["_", *tokens]))
    (folder / "tokens.txt").write_text("".join(lines), "utf-8")
    return folder


def draw_zipvoice(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Values that make every part of a layer change the output."""
    numbers = np.random.default_rng([seed, *name.encode()])
    drawn = numbers.standard_normal(shape, dtype=np.float32)
    if len(shape) > 1:
        drawn /= np.sqrt(np.prod(shape[1:], dtype=np.float32))
    elif name.endswith("bypass_scale"):
        drawn = numbers.random(shape, dtype=np.float32)
    else:
        drawn *= np.float32(0.2)
    return torch.from_numpy(np.asarray(drawn, np.float32))

"""The oracle: upstream's own packages, imported without the many that their inference never calls.

f5-tts 1.1.22, vocos 0.1.0 and bigvgan 2.4.1 come from PyPI and run unchanged. They import torchaudio,
matplotlib, transformers and encodec at module level, none of which this environment installs:

- torchaudio: `MelSpectrogram`, `Resample` and `load` are written here a second time, from their formulas,
  on torch.stft, librosa's filterbank and soundfile. They are real oracles: nothing of `appliance` or
  `export` is used, and tests/test_upstream_oracle.py checks them against plain numpy.
- matplotlib, transformers, encodec: empty modules; a call into one raises.

The stand-ins are in `sys.modules` only while upstream is imported. Every function skips the calling test,
with the reason, where torch or a package is missing; with F5_REQUIRE_UPSTREAM=1 it fails it instead.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import io
import math
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

PACKAGES = (
    "torch",
    "f5_tts",
    "vocos",
    "bigvgan",
    "x_transformers",
    "torchdiffeq",
    "librosa",
    "pydub",
    "rjieba",
    "pypinyin",
)


def missing() -> list[str]:
    """Names of the packages that the oracle needs and that are not installed here."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def require() -> None:
    """Skip the calling test where the oracle is not installed (fail it with F5_REQUIRE_UPSTREAM=1)."""
    absent = missing()
    if not absent:
        return
    reason = f"upstream oracle not installed: {', '.join(absent)} (scripts/test installs it)"
    if os.environ.get("F5_REQUIRE_UPSTREAM") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


# What the tests use


def dit_class() -> type[Any]:
    """`f5_tts.model.backbones.dit.DiT`. A fresh one outputs zeros: call `redraw` before comparing."""
    return _modules()["f5_tts.model.backbones.dit"].DiT  # type: ignore[no-any-return]


def cfm_class() -> type[Any]:
    """`f5_tts.model.cfm.CFM`."""
    return _modules()["f5_tts.model.cfm"].CFM  # type: ignore[no-any-return]


def f5_modules() -> types.ModuleType:
    """`f5_tts.model.modules`: the mel functions, GRN, attention, embeddings."""
    return _modules()["f5_tts.model.modules"]


def f5_utils() -> types.ModuleType:
    """`f5_tts.model.utils`: get_tokenizer, list_str_to_idx, get_epss_timesteps, convert_char_to_pinyin."""
    return _modules()["f5_tts.model.utils"]


def infer_utils() -> types.ModuleType:
    """`f5_tts.infer.utils_infer`: chunk_text, infer_batch_process, load_checkpoint and the rest."""
    return _modules()["f5_tts.infer.utils_infer"]


def vocos_module() -> types.ModuleType:
    """`vocos`, with `vocos.models.VocosBackbone`, `vocos.heads.ISTFTHead` and `vocos.Vocos`."""
    return _modules()["vocos"]


def bigvgan_module() -> types.ModuleType:
    """`bigvgan.bigvgan`: BigVGAN, AttrDict; `make_bigvgan` builds one without its deprecation warnings."""
    return _modules()["bigvgan.bigvgan"]


def torchaudio_stand_in() -> dict[str, types.ModuleType]:
    """Modules that take the place of torchaudio's in `sys.modules`."""
    require()
    return _torchaudio()


def make_bigvgan(config: dict[str, Any]) -> Any:
    """A BigVGAN generator of `config` (the keys of its config.json), weight norm in place, eval mode."""
    module = bigvgan_module()
    with warnings.catch_warnings():  # it still uses torch's first weight_norm, as its checkpoints do
        warnings.simplefilter("ignore", FutureWarning)
        return module.BigVGAN(module.AttrDict(config), use_cuda_kernel=False).eval()


def vocos_mel(wave: Any) -> Any:
    """Upstream's log-mel for Vocos: (batch, samples) float32 tensor → (batch, 100, frames)."""
    return f5_modules().get_vocos_mel_spectrogram(wave)


def bigvgan_mel(wave: Any) -> Any:
    """Upstream's log-mel for BigVGAN: (batch, samples) float32 tensor → (batch, 100, frames)."""
    return f5_modules().get_bigvgan_mel_spectrogram(wave)


def resample(wave: Any, rate: int, new_rate: int) -> Any:
    """torchaudio's `Resample(rate, new_rate)` with its defaults, along the last axis of a float32 tensor."""
    require()
    return _torchaudio()["torchaudio.transforms"].Resample(rate, new_rate)(wave)


def convert_char_to_pinyin(lines: list[str]) -> list[list[str]]:
    """Upstream's tokens of each line; real rjieba and pypinyin."""
    return f5_utils().convert_char_to_pinyin(lines)  # type: ignore[no-any-return]


def chunk_text(text: str, max_chars: int) -> list[str]:
    """Upstream's chunks of `text`, `max_chars` being bytes of UTF-8."""
    return infer_utils().chunk_text(text, max_chars=max_chars)  # type: ignore[no-any-return]


def preprocess_reference(path: Path, text: str) -> tuple[NDArray[np.float32], int, str]:
    """Upstream's clipped and trimmed reference: ((channels, samples), rate, completed text). WAV input."""
    import soundfile

    utils = infer_utils()
    utils._ref_audio_cache.clear()
    with _temporary_files() as folder, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", ResourceWarning)  # pydub leaves closing its files to the collector
        trimmed, completed = utils.preprocess_ref_audio_text(str(path), text, show_info=lambda _: None)
        assert Path(trimmed).parent == folder
        samples, rate = soundfile.read(trimmed, dtype="float32", always_2d=True)
    utils._ref_audio_cache.clear()
    return np.ascontiguousarray(samples.T), rate, completed


def infer_batch(
    reference: tuple[Any, int], text: str, chunks: list[str], model: Any, vocoder: Any, **options: Any
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Upstream's `infer_batch_process` run to its end: (samples, (100, frames) mel of all chunks).

    `reference` is ((channels, samples) float32 tensor, rate). The chunks' threads are made one, since they
    draw their noise from one generator.
    """
    utils = infer_utils()
    options = {"device": "cpu", "progress": None, **options}
    with contextlib.redirect_stdout(io.StringIO()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "ThreadPoolExecutor", partial(ThreadPoolExecutor, max_workers=1))
        wave, _, mel = next(utils.infer_batch_process(reference, text, chunks, model, vocoder, **options))
    return wave, mel


def redraw(model: Any, seed: int = 0) -> Any:
    """Draw anew, in place, the layers that upstream initialises to zero, so that every path matters.

    AdaLN and output projections N(0, 0.02) with gates centred on 0.3, GRN N(0, 0.1).
    """
    import torch

    generator = torch.Generator().manual_seed(seed)

    def draw(parameter: Any, deviation: float) -> None:
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)

    for name, parameter in model.named_parameters():
        if "attn_norm.linear" in name or "norm_out.linear" in name or "proj_out" in name:
            draw(parameter, 0.02)
        elif name.endswith(("grn.gamma", "grn.beta")):
            draw(parameter, 0.1)
        if name.endswith("attn_norm.linear.bias"):
            dim = parameter.shape[0] // 6
            with torch.no_grad():
                parameter.view(6, dim)[[2, 5]] += 0.3
    return model


# Importing upstream


@cache
def _modules() -> dict[str, types.ModuleType]:
    require()
    with _stand_ins(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = _bare_package("f5_tts.model")
        names = (
            "f5_tts.model.modules",
            "f5_tts.model.utils",
            "f5_tts.model.backbones.dit",
            "f5_tts.model.cfm",
        )
        modules = {name: importlib.import_module(name) for name in names}
        model.CFM = modules["f5_tts.model.cfm"].CFM  # type: ignore[attr-defined]
        for name in (
            "f5_tts.infer.utils_infer",
            "vocos",
            "vocos.models",
            "vocos.heads",
            "bigvgan.bigvgan",
        ):
            modules[name] = importlib.import_module(name)
    return modules


def _bare_package(name: str) -> types.ModuleType:
    """A package whose `__init__` is not run: that of f5_tts.model imports the trainer and all it needs."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations is not None
    package = types.ModuleType(name)
    package.__spec__ = spec
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = package
    return package


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Stand-in modules in `sys.modules`; those, the path and the environment are put back at the end."""
    modules = {
        **_torchaudio(),
        **_named("matplotlib", {"use": lambda _: None}),
        **_named("matplotlib.pylab", {}),
        **_named("transformers", {"pipeline": _absent("transformers.pipeline")}),
        **_named("encodec", {"EncodecModel": _absent("encodec.EncodecModel")}),
    }
    before = {name: sys.modules.get(name) for name in modules}
    path, environment = list(sys.path), os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK")
    sys.modules.update(modules)
    try:
        yield
    finally:
        sys.path[:] = path
        if environment is None:
            os.environ.pop("PYTORCH_ENABLE_MPS_FALLBACK", None)
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _named(name: str, attributes: dict[str, Any]) -> dict[str, types.ModuleType]:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []
    for key, value in attributes.items():
        setattr(module, key, value)
    return {name: module}


def _absent(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{name} is not part of the oracle")

    return refuse


@contextlib.contextmanager
def _temporary_files() -> Iterator[Path]:
    """A folder for upstream's temporary files, which it never deletes; the oracle does."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before


# torchaudio, what upstream's inference uses of it


@cache
def _torchaudio() -> dict[str, types.ModuleType]:
    import librosa.filters
    import soundfile
    import torch
    from torch import Tensor, nn

    class Spectrogram(nn.Module):
        """|STFT| with a periodic Hann window: (..., samples) → (..., n_fft / 2 + 1, frames)."""

        window: Tensor

        def __init__(self, n_fft: int, win_length: int, hop_length: int, center: bool) -> None:
            super().__init__()
            self.n_fft, self.win_length, self.hop_length, self.center = n_fft, win_length, hop_length, center
            self.register_buffer("window", torch.hann_window(win_length))

        def forward(self, wave: Tensor) -> Tensor:
            spectrum = torch.stft(
                wave.reshape(-1, wave.shape[-1]),
                self.n_fft,
                self.hop_length,
                self.win_length,
                window=self.window,
                center=self.center,
                pad_mode="reflect",
                return_complex=True,
            )
            return spectrum.abs().reshape(*wave.shape[:-1], *spectrum.shape[-2:])

    class MelScale(nn.Module):
        """HTK triangles from 0 to the Nyquist frequency, not normalised; buffer `fb` (bins, mels)."""

        fb: Tensor

        def __init__(self, sample_rate: int, n_fft: int, n_mels: int) -> None:
            super().__init__()
            triangles = librosa.filters.mel(
                sr=sample_rate, n_fft=n_fft, n_mels=n_mels, fmin=0.0, htk=True, norm=None, dtype=np.float64
            )
            self.register_buffer("fb", torch.from_numpy(triangles.T.astype(np.float32)))

        def forward(self, magnitude: Tensor) -> Tensor:
            return (magnitude.transpose(-1, -2) @ self.fb).transpose(-1, -2)

    class MelSpectrogram(nn.Module):
        """Magnitude mel-spectrogram: (..., samples) → (..., mels, frames). Keys as torchaudio names them."""

        def __init__(
            self,
            sample_rate: int = 16000,
            n_fft: int = 400,
            win_length: int | None = None,
            hop_length: int | None = None,
            n_mels: int = 128,
            power: float = 2.0,
            center: bool = True,
            normalized: bool = False,
            norm: str | None = None,
        ) -> None:
            super().__init__()
            if power != 1 or normalized or norm is not None:
                raise ValueError("upstream uses power 1 without normalisation; nothing else is written here")
            self.win_length = win_length or n_fft
            self.hop_length = hop_length or self.win_length // 2
            self.spectrogram = Spectrogram(n_fft, self.win_length, self.hop_length, center)
            self.mel_scale = MelScale(sample_rate, n_fft, n_mels)

        def forward(self, wave: Tensor) -> Tensor:
            return self.mel_scale(self.spectrogram(wave))  # type: ignore[no-any-return]

    class Resample(nn.Module):
        """Hann-windowed sinc interpolation, 6 zero crossings a side, roll-off 0.99, polyphase.

        Output m is the sum over inputs n of x[n]·k(m/new − n/old), with k(t) = c·sinc(2·f·t)·cos²(π·f·t/6)
        inside |2·f·t| < 6, f = 0.99·min(old, new)/2 and c = 0.99·min(old, new)/old.
        """

        ZERO_CROSSINGS = 6
        ROLLOFF = 0.99
        kernels: Tensor

        def __init__(self, orig_freq: int = 16000, new_freq: int = 16000) -> None:
            super().__init__()
            divisor = math.gcd(int(orig_freq), int(new_freq))
            self.old, self.new = int(orig_freq) // divisor, int(new_freq) // divisor
            band = min(self.old, self.new) * self.ROLLOFF
            self.reach = math.ceil(self.ZERO_CROSSINGS * self.old / band)
            taps = np.arange(-self.reach, self.reach + self.old) / self.old
            phases = np.arange(self.new) / self.new
            t = np.clip((taps - phases[:, None]) * band, -self.ZERO_CROSSINGS, self.ZERO_CROSSINGS)
            kernels = np.sinc(t) * np.cos(t * np.pi / self.ZERO_CROSSINGS / 2) ** 2 * band / self.old
            self.register_buffer("kernels", torch.from_numpy(kernels[:, None, :].astype(np.float32)))

        def forward(self, wave: Tensor) -> Tensor:
            if self.old == self.new:
                return wave
            rows = wave.reshape(-1, 1, wave.shape[-1])
            padded = nn.functional.pad(rows, (self.reach, self.reach + self.old))
            phases = nn.functional.conv1d(padded, self.kernels, stride=self.old)
            length = math.ceil(self.new * wave.shape[-1] / self.old)
            mixed = phases.transpose(1, 2).reshape(len(rows), -1)[:, :length]
            return mixed.reshape(*wave.shape[:-1], length)

    def load(path: str) -> tuple[Tensor, int]:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        return torch.from_numpy(np.ascontiguousarray(samples.T)), rate

    def hz_to_mel(hz: float, mel_scale: str = "htk") -> float:
        return 2595.0 * math.log10(1.0 + hz / 700.0)

    def mel_to_hz(mels: Tensor, mel_scale: str = "htk") -> Tensor:
        return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)

    transforms = _named("torchaudio.transforms", {"MelSpectrogram": MelSpectrogram, "Resample": Resample})
    inner = _named("torchaudio.functional.functional", {"_hz_to_mel": hz_to_mel, "_mel_to_hz": mel_to_hz})
    functional = _named("torchaudio.functional", {"functional": inner["torchaudio.functional.functional"]})
    attributes = {
        "load": load,
        "transforms": transforms["torchaudio.transforms"],
        "functional": functional["torchaudio.functional"],
    }
    return {**_named("torchaudio", attributes), **transforms, **functional, **inner}

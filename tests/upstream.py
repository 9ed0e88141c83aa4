"""The oracle: upstream's own packages, imported without the many that their inference never calls.

f5-tts 1.1.22, vocos 0.1.0 and bigvgan 2.4.1 come from PyPI and run unchanged. They import torchaudio,
matplotlib, transformers and encodec at module level, none of which this environment installs:

- torchaudio: `MelSpectrogram`, `Resample` and `load` are written in torchaudio_parts.py, from their formulas,
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


@cache
def _modules() -> dict[str, types.ModuleType]:
    require()
    with _stand_ins(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = _bare_package("f5_tts.model")
        names = [f"f5_tts.model.{part}" for part in ("modules", "utils", "backbones.dit", "cfm")]
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


@cache
def _torchaudio() -> dict[str, types.ModuleType]:
    from tests import torchaudio_parts as parts

    transforms = _named(
        "torchaudio.transforms", {"MelSpectrogram": parts.MelSpectrogram, "Resample": parts.Resample}
    )
    inner = _named(
        "torchaudio.functional.functional", {"_hz_to_mel": parts.hz_to_mel, "_mel_to_hz": parts.mel_to_hz}
    )
    functional = _named("torchaudio.functional", {"functional": inner["torchaudio.functional.functional"]})
    attributes = {
        "load": parts.load,
        "transforms": transforms["torchaudio.transforms"],
        "functional": functional["torchaudio.functional"],
    }
    return {**_named("torchaudio", attributes), **transforms, **functional, **inner}

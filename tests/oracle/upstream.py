"""The oracle: upstream's own packages, imported without the many that their inference never calls.

f5-tts 1.1.22, vocos 0.1.0 and bigvgan 2.4.1 come from PyPI and run unchanged. They import torchaudio,
matplotlib, transformers and encodec at module level, which this environment does not install:

- torchaudio: `MelSpectrogram`, `Resample` and `load` are written in torchaudio_parts.py, from their formulas,
on torch.stft, librosa's filterbank and soundfile. They are real oracles: nothing of `appliance` or `export`
is used, and tests/oracle/test_oracle.py checks them against plain numpy. - matplotlib, transformers, encodec:
empty modules; a call into one raises.

The stand-ins are in `sys.modules` only while upstream is imported. Every function skips the calling test,
with the reason, if torch or a package is missing; with F5_REQUIRE_UPSTREAM=1 it fails the test instead.
"""

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

NEEDED = "torch f5_tts vocos bigvgan x_transformers torchdiffeq librosa pydub rjieba pypinyin"


def require(needed: str = NEEDED) -> None:
    """Skip the calling test if an oracle is not installed (fail it with F5_REQUIRE_UPSTREAM=1)."""
    absent = [name for name in needed.split() if importlib.util.find_spec(name) is None]
    if not absent:
        return
    reason = f"oracle not installed: {', '.join(absent)} (scripts/test installs it)"
    if os.environ.get("F5_REQUIRE_UPSTREAM") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


# Functions for the tests


def dit_class() -> type[Any]:
    """`f5_tts.model.backbones.dit.DiT`. A fresh one outputs zeros: call `redraw` before comparing."""
    return _modules()["f5_tts.model.backbones.dit"].DiT  # type: ignore[no-any-return]


def cfm_class() -> type[Any]:
    """`f5_tts.model.cfm.CFM`."""
    return _modules()["f5_tts.model.cfm"].CFM  # type: ignore[no-any-return]


def f5_utils() -> types.ModuleType:
    """`f5_tts.model.utils`: get_tokenizer, list_str_to_idx, get_epss_timesteps, convert_char_to_pinyin."""
    return _modules()["f5_tts.model.utils"]


def infer_utils() -> types.ModuleType:
    """`f5_tts.infer.utils_infer`: chunk_text, infer_batch_process, load_checkpoint and the rest."""
    return _modules()["f5_tts.infer.utils_infer"]


def vocos_module() -> types.ModuleType:
    """`vocos`, with `vocos.models.VocosBackbone`, `vocos.heads.ISTFTHead` and `vocos.Vocos`."""
    return _modules()["vocos"]


@cache
def torchaudio_stand_in() -> dict[str, types.ModuleType]:
    """Modules that replace torchaudio in `sys.modules`: the parts that upstream's inference uses."""
    require()
    from tests.oracle import torchaudio_parts as parts

    spectra, turns = (parts.MelSpectrogram, parts.Resample), (parts.hz_to_mel, parts.mel_to_hz)
    transforms = _named("torchaudio.transforms", **{part.__name__: part for part in spectra})
    inner = _named("torchaudio.functional.functional", **{f"_{turn.__name__}": turn for turn in turns})
    functional = _named("torchaudio.functional", functional=inner)
    whole = _named("torchaudio", load=parts.load, transforms=transforms, functional=functional)
    return {module.__name__: module for module in (whole, transforms, functional, inner)}


def make_bigvgan(config: dict[str, Any]) -> Any:
    """A BigVGAN generator of `config` (the keys of its config.json), weight norm in place, eval mode."""
    module = _modules()["bigvgan.bigvgan"]
    with warnings.catch_warnings():  # the generator uses torch's first weight_norm, like its checkpoints
        warnings.simplefilter("ignore", FutureWarning)
        return module.BigVGAN(module.AttrDict(config), use_cuda_kernel=False).eval()


def vocos_mel(wave: Any) -> Any:
    """Upstream's log-mel for Vocos: (batch, samples) float32 tensor → (batch, 100, frames)."""
    return _modules()["f5_tts.model.modules"].get_vocos_mel_spectrogram(wave)


def bigvgan_mel(wave: Any) -> Any:
    """Upstream's log-mel for BigVGAN: (batch, samples) float32 tensor → (batch, 100, frames)."""
    return _modules()["f5_tts.model.modules"].get_bigvgan_mel_spectrogram(wave)


def resample(wave: Any, rate: int, new_rate: int) -> Any:
    """torchaudio's `Resample(rate, new_rate)` with its defaults, along the last axis of a float32 tensor."""
    return torchaudio_stand_in()["torchaudio.transforms"].Resample(rate, new_rate)(wave)


def convert_char_to_pinyin(lines: list[str]) -> list[list[str]]:
    """Upstream's tokens of each line; real rjieba and pypinyin."""
    return f5_utils().convert_char_to_pinyin(lines)  # type: ignore[no-any-return]


def chunk_text(text: str, max_chars: int) -> list[str]:
    """Upstream's chunks of `text`; `max_chars` counts bytes of UTF-8."""
    return infer_utils().chunk_text(text, max_chars=max_chars)  # type: ignore[no-any-return]


def preprocess_reference(path: Path, text: str) -> tuple[NDArray[np.float32], int, str]:
    """Upstream's clipped and trimmed reference: ((channels, samples), rate, completed text). WAV input."""
    import soundfile

    utils = infer_utils()
    utils._ref_audio_cache.clear()
    with _temporary_files() as folder, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", ResourceWarning)  # pydub lets the garbage collector close its files
        trimmed, completed = utils.preprocess_ref_audio_text(str(path), text, show_info=lambda _: None)
        assert Path(trimmed).parent == folder
        samples, rate = soundfile.read(trimmed, dtype="float32", always_2d=True)
    utils._ref_audio_cache.clear()
    return np.ascontiguousarray(samples.T), rate, completed


def infer_batch(
    reference: tuple[Any, int], text: str, chunks: list[str], model: Any, vocoder: Any, **options: Any
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Run upstream's `infer_batch_process` to its end: (samples, (100, frames) mel of all chunks).

    `reference` is ((channels, samples) float32 tensor, rate). The chunks run in one thread because they draw
    their noise from one generator.
    """
    utils = infer_utils()
    options = {"device": "cpu", "progress": None, **options}
    with contextlib.redirect_stdout(io.StringIO()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "ThreadPoolExecutor", partial(ThreadPoolExecutor, max_workers=1))
        wave, _, mel = next(utils.infer_batch_process(reference, text, chunks, model, vocoder, **options))
    return wave, mel


# Importing upstream


@cache
def _modules() -> dict[str, types.ModuleType]:
    require()
    with _stand_ins(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = _bare_package("f5_tts.model")
        inner = ("modules", "utils", "backbones.dit", "cfm")
        modules = {f"f5_tts.model.{name}": importlib.import_module(f"f5_tts.model.{name}") for name in inner}
        model.CFM = modules["f5_tts.model.cfm"].CFM  # type: ignore[attr-defined]
        others = ("f5_tts.infer.utils_infer", "vocos", "vocos.models", "vocos.heads", "bigvgan.bigvgan")
        modules |= {name: importlib.import_module(name) for name in others}
    return modules


def _bare_package(name: str) -> types.ModuleType:
    """A package whose `__init__` does not run: the `__init__` of f5_tts.model imports the trainer and its
    needs."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations is not None
    package = types.ModuleType(name)
    package.__spec__ = spec
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = package
    return package


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Put stand-in modules into `sys.modules`; restore the modules, the path and the environment at the
    end."""
    modules = torchaudio_stand_in() | {
        "matplotlib": _named("matplotlib", use=lambda _: None),
        "matplotlib.pylab": _named("matplotlib.pylab"),
        "transformers": _named("transformers", pipeline=_absent("transformers.pipeline")),
        "encodec": _named("encodec", EncodecModel=_absent("encodec.EncodecModel")),
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


def _named(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []
    vars(module).update(attributes)
    return module


def _absent(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{name} is not part of the oracle")

    return refuse


@contextlib.contextmanager
def _temporary_files() -> Iterator[Path]:
    """A folder for upstream's temporary files, which upstream never deletes; the oracle deletes it."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before

"""Official weights in, a bundle out: trace the graphs, measure them, and only then name the folder."""

from __future__ import annotations

import dataclasses
import gc
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from tqdm import tqdm

from appliance.contract import bundle as contract
from appliance.contract import graphs as signatures
from appliance.contract.mel import MelSpec
from appliance.contract.tokens import Vocabulary, read_vocabulary
from export import checkpoint, graphs, parity, precision, to_onnx
from export.families import Family, with_mels_for
from export.licence import licence
from export.model.bigvgan import BigVGANConfig
from export.model.dit import DiT
from export.model.vocos import VocosConfig

MAX_FRAMES = 4096
"""43.7 s, reference included; the models were trained on at most 30 s."""
Variants = dict[str, dict[str, str]]
BACKENDS: dict[contract.Precision, tuple[str, ...]] = {
    "fp32": ("ort-cpu", "tensorrt"),
    "fp16": ("ort-cpu", "tensorrt"),
    "int8": ("ort-cpu",),
}


class BundleFailed(RuntimeError):
    """The bundle was not written; the message says which bound it broke or what stood in the way."""


@dataclass(frozen=True)
class Sources:
    """What a bundle is made of."""

    family: Family
    checkpoint: Path
    vocab: Path
    vocoder: Literal["vocos", "bigvgan"]
    vocoder_path: Path
    weights_licence: str | None = None


@dataclass(frozen=True)
class Loaded:
    """Sources, checked."""

    sources: Sources
    vocabulary: Vocabulary
    vocoder_config: VocosConfig | BigVGANConfig
    vocoder: checkpoint.Weights

    @property
    def mel(self) -> MelSpec:
        """What the DiT makes and the vocoder reads."""
        return self.sources.family.mel

    def dit(self) -> checkpoint.Weights:
        """The DiT's weights, mapped anew: what is no longer used gives its pages back."""
        sources = self.sources
        return checkpoint.load_dit(
            sources.checkpoint, sources.family.arch, self.vocabulary.size, sources.family.mel.mels
        )

    @property
    def record(self) -> contract.Vocoder:
        """The vocoder as the manifest has it; BigVGAN makes a whole hop of each frame."""
        padding = self.vocoder_config.padding if isinstance(self.vocoder_config, VocosConfig) else "same"
        return contract.Vocoder(self.sources.vocoder, padding)

    def reference_dit(self) -> DiT:
        """The plain torch model on the mapped weights."""
        arch = self.sources.family.arch
        return checkpoint.build_dit(self.dit(), arch, self.vocabulary.size, self.mel.mels)

    def reference_vocoder(self) -> nn.Module:
        """The plain torch vocoder on the mapped weights."""
        if isinstance(self.vocoder_config, VocosConfig):
            return checkpoint.build_vocos(self.vocoder_config, self.vocoder)
        return checkpoint.build_bigvgan(self.vocoder_config, self.vocoder)


def load(sources: Sources) -> Loaded:
    """Open and check every source. Raises CheckpointError, FamilyError or BundleFailed, naming the file."""
    sources = dataclasses.replace(sources, family=with_mels_for(sources.family, sources.vocoder))
    vocabulary = read_vocabulary(sources.vocab)
    if sources.vocoder == "vocos":
        loaded = Loaded(sources, vocabulary, *checkpoint.load_vocos(sources.vocoder_path))
    else:
        loaded = Loaded(sources, vocabulary, *checkpoint.load_bigvgan(sources.vocoder_path))
    _check_vocoder(loaded)
    loaded.dit()  # a checkpoint that does not fit is said now, not after minutes
    return loaded


def _check_vocoder(loaded: Loaded) -> None:
    config, spec = loaded.vocoder_config, loaded.mel
    mels = config.mels if isinstance(config, VocosConfig) else config.num_mels
    if (mels, config.hop) != (spec.mels, spec.hop):
        raise BundleFailed(
            f"{loaded.sources.vocoder_path}: this vocoder reads {mels} mels every {config.hop} samples, "
            f"{loaded.sources.family.name} makes {spec.mels} every {spec.hop}"
        )


Measure = Callable[[contract.Bundle], parity.Report]


def build(
    loaded: Loaded,
    name: contract.Precision,
    out: Path,
    measure: Measure,
    *,
    max_frames: int = MAX_FRAMES,
    created_by: str = "",
) -> contract.Bundle:
    """Write the bundle `out`. It appears under its name only when it has passed its bounds.

    Raises BundleFailed when it has not, or when `out` exists.
    """
    if out.exists():
        raise BundleFailed(f"{out} exists; name a new folder")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        writer = Writer(loaded, name, partial, max_frames)
        candidates = writer.write_graphs()
        also = writer.for_backends(next(iter(candidates.values())))
        manifest = _gated(partial, candidates, lambda v: writer.manifest(v | also, created_by), measure)
        contract.write(partial, manifest)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return contract.read(out, verify=False)


def _gated(
    folder: Path,
    candidates: Variants,
    manifest: Callable[[Variants], contract.Manifest],
    measure: Measure,
) -> contract.Manifest:
    """The manifest whose `default` is the first candidate within its bounds, with that one's report."""
    failures = []
    for name, files in candidates.items():
        named = candidates if len(candidates) > 1 else {}
        trial = manifest({"default": files, **named})
        report = measure(contract.Bundle(folder, trial))
        if not report.failed:
            return dataclasses.replace(trial, parity=report.record())
        failures.append(f"{name}: {'; '.join(report.failed)}")
    raise BundleFailed(f"no bundle was written, the parity bounds are broken. {' | '.join(failures)}")


@dataclass
class Writer:
    """Traces the graphs of one bundle, one at a time, so that one graph's weights are in memory at once."""

    loaded: Loaded
    precision: contract.Precision
    folder: Path
    max_frames: int

    @property
    def compute(self) -> torch.dtype:
        """Element type of the matrix products; INT8 starts from float32."""
        return torch.float16 if self.precision == "fp16" else torch.float32

    @property
    def dimensions(self) -> signatures.Dimensions:
        """What the graph signatures depend on."""
        arch = self.loaded.sources.family.arch
        return signatures.Dimensions(
            arch.dim,
            arch.depth,
            self.loaded.mel.mels,
            arch.text_embedding_average_upsampling,
            "float16" if self.precision == "fp16" else "float32",
        )

    def write_graphs(self) -> Variants:
        """All graphs and the vocabulary; returns the candidates for `default`, best first."""
        makers: dict[str, Callable[[], nn.Module]] = {
            "modulation": self._modulation,
            "condition": self._condition,
            "step": self._step,
            "vocoder": self._vocoder,
        }
        specs = signatures.signatures(self.dimensions)
        for name, make in (bar := tqdm(makers.items(), desc="graphs", unit="graph")):
            bar.set_description(f"tracing {name}")
            with torch.no_grad():
                to_onnx.export(make(), specs[name], self.folder / f"{name}.onnx")
            gc.collect()
        text = "".join(f"{token}\n" for token in self.loaded.vocabulary.tokens)
        (self.folder / contract.VOCAB).write_bytes(text.encode())
        return self._candidates({name: f"{name}.onnx" for name in makers})

    def _candidates(self, files: dict[str, str]) -> Variants:
        step = self.folder / files["step"]
        if self.precision == "fp16":
            precision.softmax_in_float32(step, self.folder / "step_softmax_fp32.onnx")
            return {"softmax_fp16": files, "softmax_fp32": {**files, "step": "step_softmax_fp32.onnx"}}
        if self.precision == "int8":
            precision.quantise(step, self.folder / "step_int8.onnx")
            step.unlink()
            step.with_name(f"{step.name}.data").unlink()
            return {"default": {**files, "step": "step_int8.onnx"}}
        return {"default": files}

    def for_backends(self, files: dict[str, str]) -> Variants:
        """Variants for one backend alone, under its name: float16 graphs are wide on a CPU.

        They are not measured for the gate: their arithmetic is that of the candidates, less rounding.
        """
        if self.precision != "fp16":
            return {}
        wide = {name: f"{name}_float32.onnx" for name in ("condition", "step", "vocoder")}
        for name, file in wide.items():
            precision.widen(self.folder / files[name], self.folder / file)
        return {"ort-cpu": {**files, **wide}}

    def manifest(self, variants: Variants, created_by: str) -> contract.Manifest:
        """Everything but hashes and parity."""
        sources = self.loaded.sources
        return contract.Manifest(
            format=contract.FORMAT,
            family=sources.family.name,
            arch=sources.family.arch,
            mel=self.loaded.mel,
            vocoder=self.loaded.record,
            precision=self.precision,
            variants=variants,
            backends=BACKENDS[self.precision],
            batch_invariant=self.precision != "int8",
            max_frames=self.max_frames,
            vocab_size=self.loaded.vocabulary.size,
            licence=licence(sources.checkpoint, sources.vocoder_path, weights=sources.weights_licence),
            files={},
            created_by=created_by,
        )

    def _modulation(self) -> nn.Module:
        stored = torch.float32 if self.precision == "fp32" else torch.float16
        return graphs.Modulation(self.loaded.dit(), self.loaded.sources.family.arch, stored)

    def _condition(self) -> nn.Module:
        arch, mels = self.loaded.sources.family.arch, self.loaded.mel.mels
        return graphs.Condition(self.loaded.dit(), arch, mels, self.max_frames, self.compute)

    def _step(self) -> nn.Module:
        arch, mels = self.loaded.sources.family.arch, self.loaded.mel.mels
        return graphs.Step(self.loaded.dit(), arch, mels, self.max_frames, self.compute)

    def _vocoder(self) -> nn.Module:
        if isinstance(self.loaded.vocoder_config, VocosConfig):
            return graphs.Vocos(self.loaded.vocoder, self.loaded.mel, self.loaded.record, self.compute)
        reference = checkpoint.build_bigvgan(self.loaded.vocoder_config, self.loaded.vocoder)
        return graphs.BigVGAN(reference, self.compute)


def expectations(loaded: Loaded) -> parity.Expectations:
    """What the torch reference, and upstream's package where it is installed, say of the parity cases."""
    arch, vocab_size = loaded.sources.family.arch, loaded.vocabulary.size
    return parity.expect(
        [
            lambda: parity.TorchOracle(loaded.reference_dit()),
            lambda: parity.UpstreamOracle(loaded.dit(), arch, vocab_size, loaded.mel.mels),
        ],
        loaded.reference_vocoder,
        loaded.mel,
        vocab_size,
    )

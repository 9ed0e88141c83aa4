"""Converts weights to a bundle, and measures it."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import nn

from appliance.contract import bundle as contract
from appliance.contract import graphs as signatures
from appliance.contract.mel import Kind, MelSpec
from appliance.contract.sampler import Sampler
from appliance.contract.tokens import Tokenizer, Vocabulary
from appliance.durable import publish
from export import progress, traces
from export.families import DECLARATIONS, Declaration, Family, of, with_mels_for
from export.families.declaration import Given, GraphMaker, StepGraph
from export.graphs import fourier, parts, to_onnx, vocoders
from export.graphs.step import Update
from export.model.bigvgan import BigVGANConfig
from export.model.vocos import VocosConfig
from export.parity import comparison, oracles
from export.precision import calibration, qdq, rewrites
from export.sources import checkpoint, wholeness
from export.sources.checkpoint import WeightsKind
from export.sources.licence import licence, recognised
from export.sources.reading import framing, text_of

MAX_FRAMES = 4096
"""Default limit of a segment, in frames: 43.7 s of reference and reply together. The models were trained on
at most 30 s.
"""
SHORTEST = 24
"""Length in frames of the shortest case whose peaks are measured."""
SMALL_GRAPH = 0.25
"""Time to trace a graph that is not a step graph, as a share of a step graph's time."""
Variants = dict[str, dict[str, str]]
BACKENDS: dict[contract.Precision, tuple[str, ...]] = {
    "fp32": ("ort-cpu", "ort-cuda", "tensorrt"),
    "fp16": ("ort-cpu", "ort-cuda", "tensorrt"),
    "int8": ("ort-cpu",),
    "int8-qdq": ("tensorrt", "ort-cpu"),
}


class BundleFailed(RuntimeError):
    """No bundle was written. The message gives the reason."""


@dataclass(frozen=True)
class Sources:
    family: Family
    checkpoint: Path
    vocab: Path
    vocoder: Kind
    vocoder_path: Path
    """Folder, or a file with a model and its vocoder."""
    weights_licence: str | None = None
    vocoder_licence: str | None = None
    weights: WeightsKind = "ema"
    tokenizer: Tokenizer | None = None
    """Default: the family's tokenizer."""
    languages: tuple[str, ...] | None = None
    """Languages; None: the known weights' languages, or a guess."""
    sampler: Sampler = field(default_factory=Sampler)
    defaults: contract.Defaults = field(default_factory=contract.Defaults)
    voice: str = ""
    """Language of the tokenizer `espeak`."""
    around: tuple[str, str] | None = None
    """Signs before and after a text; None: the known weights' signs."""
    dialect: str = ""
    """Dialect of known weights, by their makers' name; "" for the usual one."""
    vocoder_weights: WeightsKind = "ema"
    adapter: Path | None = None
    """Folder of an adapter to merge."""


@dataclass(frozen=True)
class Loaded:
    """Sources that were opened and checked."""

    sources: Sources
    vocabulary: Vocabulary
    vocoder_config: VocosConfig | BigVGANConfig
    vocoder: checkpoint.Weights
    text: contract.Text = field(default_factory=contract.Text)

    @property
    def mel(self) -> MelSpec:
        return self.sources.family.mel

    @property
    def declaration(self) -> Declaration:
        return of(self.sources.family.arch)

    @property
    def given(self) -> Given:
        s = self.sources
        arch, mel = s.family.arch, self.mel
        return Given(s.checkpoint, s.vocab, self.vocabulary, arch, mel, s.weights, s.sampler, s.adapter)

    def weights(self) -> checkpoint.Weights:
        """The model's weights. They are mapped again at each call, so that pages are released after use."""
        return self.declaration.load(self.given)

    @property
    def record(self) -> contract.Vocoder:
        config = self.vocoder_config
        if not isinstance(config, VocosConfig):
            return contract.Vocoder(self.sources.vocoder, "same")
        return contract.Vocoder("vocos" if config.head == "ISTFTHead" else "source-filter", config.padding)

    def cases(self, max_frames: int) -> oracles.CaseSet:
        s, d = self.sources.sampler, self.sources.defaults
        return oracles.CaseSet(self.mel, self.vocabulary, max_frames, d.guidance, s, d.times)

    def reference(self) -> nn.Module:
        return self.declaration.build(self.weights(), self.given)

    def reference_vocoder(self) -> nn.Module:
        decode = checkpoint.build_vocoder(self.vocoder_config, self.vocoder)
        return vocoders.scaled(decode, self.mel.scale)


LOADERS: dict[Kind, Callable[[Path, WeightsKind], Any]] = {
    "vocos": checkpoint.load_vocos,
    "bigvgan": checkpoint.load_bigvgan,
}


def load(sources: Sources) -> Loaded:
    """Open and check all sources. Raises CheckpointError, FamilyError, BundleFailed."""
    family = with_mels_for(sources.family, sources.vocoder)
    declared = of(family.arch)
    _check_mark(sources.checkpoint, declared)
    family = dataclasses.replace(family, mel=declared.mel(family.mel, sources.checkpoint))
    sources = dataclasses.replace(sources, family=family)
    tokenizer = sources.tokenizer or family.tokenizer
    vocabulary = declared.vocabulary(sources.vocab, tokenizer, sources.voice)
    config, vocoder = LOADERS[sources.vocoder](sources.vocoder_path, sources.vocoder_weights)
    loaded = Loaded(sources, vocabulary, config, vocoder)
    spec = loaded.mel
    if isinstance(config, VocosConfig):
        sizes = {"mels": config.mels, "sample_rate_hz": config.sample_rate}
        sizes |= {"hop": config.hop, "n_fft": config.n_fft, "win": config.n_fft}
    else:
        sizes = {"mels": config.num_mels, "sample_rate_hz": config.sampling_rate, "win": config.win_size}
        sizes |= {"hop": config.hop, "n_fft": config.n_fft}
    wrong = [f"{k} must be {getattr(spec, k)}, not {v}" for k, v in sizes.items() if v != getattr(spec, k)]
    if wrong:
        raise BundleFailed(
            f"{loaded.sources.vocoder_path}: this vocoder cannot read what {loaded.sources.family.name} "
            f"makes: {'; '.join(wrong)}"
        )
    if isinstance(config, VocosConfig) and config.n_fft != (
        need := fourier.InverseSTFTGraph.OVERLAP * config.hop
    ):
        raise BundleFailed(f"{sources.vocoder_path}: n_fft must be 4 hops, {need}, not {config.n_fft}")
    try:
        weights = loaded.weights()  # a failure comes here instead of after minutes of work
    except checkpoint.OtherVocabulary as error:
        raise checkpoint.OtherVocabulary(f"{error}{_repeated(vocabulary)}") from error
    wholeness.check(sources.checkpoint, weights, vocabulary.tokens[: vocabulary.size])
    wholeness.check(sources.vocoder_path, loaded.vocoder)
    for line in weights.notes:
        print(line, file=sys.stderr)
    row = sources.family.known or recognised(sources.checkpoint)
    if vocabulary.repeated:
        lost = ", ".join(map(repr, vocabulary.tokens[vocabulary.size :]))
        print(f"{sources.vocab}{_repeated(vocabulary)}; as upstream, {lost} has no sound", file=sys.stderr)
    text, notes = text_of(vocabulary, vocabulary.tokenizer, row, sources.languages)
    for line in notes:
        print(line, file=sys.stderr)
    if strangers := vocabulary.lacks(family.durations):
        raise BundleFailed(f"{family.name}: model.durations: {strangers} is not in {sources.vocab}")
    text = dataclasses.replace(
        text,
        duration=family.duration or declared.duration,
        durations=dict(family.durations),
        **framing(row, sources.around, sources.dialect),
    )
    if strangers := vocabulary.lacks(text.framed("")):
        raise BundleFailed(f"{sources.vocab}: lacks {strangers}, which every text needs around it")
    return dataclasses.replace(loaded, text=text)


def _check_mark(path: Path, declared: Declaration) -> None:
    """Raise CheckpointError for a file of another family."""
    names = checkpoint.read(path)
    marked = [one for one in DECLARATIONS if any(f".{name}".endswith(f".{one.mark}") for name in names)]
    if marked and declared not in marked:
        others = ", ".join(family.name for one in marked for family in one.named)
        raise checkpoint.CheckpointError(
            f"{path}: is a checkpoint of {marked[0].name}, not of {declared.name}: --family {others}"
        )


def _repeated(vocabulary: Vocabulary) -> str:
    places = {
        token: [str(line) for line, other in enumerate(vocabulary.tokens, 1) if other == token]
        for token in vocabulary.repeated
    }
    same = "; ".join(f"{token!r} is on lines {', '.join(lines)}" for token, lines in places.items())
    return f": {same}" if same else ""


Measure = Callable[[contract.Bundle], comparison.Report]
PEER_STEP = "step_upstream_int8.onnx"
NAMED_FAILURES = 6
"""Most failures that an error message lists."""
ACCEPT = "--accept REASON writes this bundle, so that you can listen to it"
REMEDIES: dict[contract.Precision, str] = {
    "fp32": f"--precision fp16 has wider bounds; {ACCEPT}",
    "fp16": f"--precision fp32 rounds less; {ACCEPT}",
    "int8": f"--precision fp32 rounds less; {ACCEPT}",
    "int8-qdq": f"--keep-float and --precision fp16 round less; {ACCEPT}",
}


@dataclass(frozen=True)
class Gate:
    """Conditions for writing a bundle, and the choice of its sampling."""

    sampling: contract.Sampling | Literal["auto"] = "auto"
    """"auto" chooses the cheapest sampling within its bound."""
    accept: str = ""
    """Reason to write a bundle despite broken bounds. Results that are not finite are never accepted."""

    def judge(self, manifest: contract.Manifest, report: comparison.Report) -> contract.Manifest:
        """Add report and sampling to the manifest. Raises BundleFailed for broken bounds."""
        sampling = report.sampling if self.sampling == "auto" else self.sampling
        failed = [*report.failed, *(line for line in report.beyond(sampling) if line not in report.failed)]
        if failed and (report.broken or not self.accept):
            named = failed[:NAMED_FAILURES]
            rest = f"; and {len(failed) - len(named)} more" if len(failed) > len(named) else ""
            remedy = "" if report.broken else f"; {REMEDIES[manifest.precision]}"
            raise BundleFailed(
                f"no bundle was written, because parity bounds are broken: {'; '.join(named)}{rest}{remedy}"
            )
        accepted = {"accepted_by": self.accept, "failed": failed} if failed else {}
        defaults = dataclasses.replace(manifest.defaults, sampling=sampling)
        return dataclasses.replace(manifest, defaults=defaults, parity=report.record() | accepted)


@dataclass(frozen=True)
class BuildOptions:
    """Options for writing a bundle."""

    precision: contract.Precision = "fp32"
    max_frames: int = MAX_FRAMES
    int8_beside: bool = False
    """True if an fp16 bundle gets the variant INT8, provided that it is within its bounds."""
    keep_float: Collection[str] = qdq.KEEPS_FLOAT
    """Roles of products that int8-qdq leaves in float16."""
    created_by: str = ""
    traces: Path | None = None
    """Folder that keeps traced graphs for further exports."""

    @property
    def lossy(self) -> bool:
        return self.int8_beside or self.precision in comparison.LOSSY


def build(
    loaded: Loaded,
    options: BuildOptions,
    out: Path,
    measure: Measure,
    *,
    gate: Gate = Gate(),
    evidence: Mapping[str, Any] = MappingProxyType({}),
    alone: Sequence[oracles.ExpectedGraph] = (),
) -> contract.Bundle:
    """Write a bundle, and publish it as `out` if it passes the gate. Raises BundleFailed.

    The graphs that run once must give the results in `alone` before the others are traced.
    """
    check_absent(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        partial = Path(scratch) / "bundle"  # has the usual mode, unlike the scratch folder
        partial.mkdir()
        writer = BundleWriter(loaded, options, partial)

        def check(files: dict[str, str]) -> None:
            traced = contract.Bundle(partial, writer.manifest({"default": files}))
            bounds = loaded.declaration.bounds[options.precision]
            rows = list(comparison.single(comparison.Graphs(traced, "default", bounds), alone, set()))
            report = comparison.Report(options.precision, rows)
            comparison.give_back()
            if not report.broken:  # otherwise the peaks, which come later, show the place
                gate.judge(traced.manifest, report)

        variants = writer.write(check)
        manifest = dataclasses.replace(writer.manifest(variants), evidence=dict(evidence))
        report = measure(contract.Bundle(partial, manifest))
        if comparison.PEER in manifest.variants:
            manifest = _without(partial, manifest, comparison.PEER)
        if beyond := report.drop(contract.INT8):
            progress.say(f"the bundle has no int8 graph for CPUs: {'; '.join(beyond)}")
            manifest = _without(partial, manifest, contract.INT8)
        progress.begin("writing")
        contract.write(partial, gate.judge(manifest, report))
        check_absent(out)
        publish(partial, out)
    return contract.read(out, verify=False)


def _without(folder: Path, manifest: contract.Manifest, variant: str) -> contract.Manifest:
    """Remove a variant, and the files that no other variant has."""
    variants = {name: files for name, files in manifest.variants.items() if name != variant}
    used = {file for files in variants.values() for file in files.values()}
    for file in set(manifest.variants[variant].values()) - used:
        for path in (folder / file, folder / f"{file}.data"):
            path.unlink(missing_ok=True)
    return dataclasses.replace(manifest, variants=variants)


def check_absent(out: Path) -> None:
    """Raise BundleFailed if `out` exists. A rename would replace an empty folder."""
    if os.path.lexists(out):
        raise BundleFailed(f"{out} exists; name a new folder")


class BundleWriter:
    """Writes the files of a bundle, with one graph's weights in memory at a time."""

    def __init__(self, loaded: Loaded, options: BuildOptions, folder: Path) -> None:
        self.loaded, self.options, self.folder = loaded, options, folder
        self.precision, self.max_frames = options.precision, options.max_frames
        precision = options.precision
        self.arch, self.mels, self.declaration = loaded.given.arch, loaded.mel.mels, loaded.declaration
        self.shapes = self.declaration.shapes and self.declaration.shapes(self.arch)
        shape = self.shapes or self.arch
        self.encodes: contract.Encoded = "frames" if self.shapes else self.arch.encodes
        sampler = loaded.sources.sampler
        self.dimensions = contract.dimensions(shape, self.mels, precision, sampler, self.encodes)
        # Type of matrix products before quantisation.
        self.compute = torch.float16 if self.dimensions.compute == "float16" else torch.float32
        self.fuses = self.declaration.fused and contract.FUSED in BACKENDS[precision]
        forms = (precision != "int8") + self.fuses  # the last is the form of one row
        self.work = 4 * SMALL_GRAPH + len(self.declaration.single) + forms * len(self.declaration.steps)

    def write(self, check: Callable[[dict[str, str]], None]) -> Variants:
        """Write all graphs. `check` gets the graphs that run once before the others are traced."""
        text = "".join(f"{token}\n" for token in self.loaded.vocabulary.tokens)
        (self.folder / contract.VOCAB).write_bytes(text.encode())
        stored = torch.float32 if self.precision == "fp32" else torch.float16

        def of_family(make: GraphMaker) -> Callable[[], nn.Module]:
            given = self.loaded.given
            return lambda: make(self.loaded.weights(), given, self.max_frames, stored, self.compute)

        default: dict[str, Callable[[], nn.Module]] = {
            "modulation": of_family(self.declaration.modulation),
            "condition": of_family(self.declaration.condition),
            "vocoder": lambda: vocoders.scaled(self._vocoder(), self.loaded.mel.scale),
        }
        files = {name: self._trace(name, make) for name, make in default.items()}
        check(files)
        variants = self._write_steps(files)
        if self.precision == "int8-qdq":
            half = contract.Bundle(self.folder, self.manifest(variants))
            floats, roles = qdq.floats_of(half.graph("step"))
            chosen = qdq.choices(floats, calibration.observe(half))
            qdq.quantise_steps(half, qdq.scheme(floats, chosen, roles, self.options.keep_float))
        return variants

    def manifest(self, variants: Variants) -> contract.Manifest:
        """Manifest without hashes and parity."""
        sources = self.loaded.sources
        return contract.Manifest(
            format=contract.FORMAT,
            family=sources.family.name,
            arch=None if self.shapes else self.arch,
            mel=self.loaded.mel,
            vocoder=self.loaded.record,
            precision=self.precision,
            variants=variants,
            backends=BACKENDS[self.precision],
            batch_invariant=self.precision != "int8",
            max_frames=self.max_frames,
            vocab_size=self.loaded.vocabulary.size,
            licence=licence(
                sources.checkpoint,
                sources.vocoder_path,
                weights=sources.weights_licence,
                vocoder_terms=sources.vocoder_licence,
            ),
            files={},
            defaults=sources.defaults,
            text=self.loaded.text,
            sampler=sources.sampler,
            shapes=self.shapes,
            model=dataclasses.asdict(self.arch) if self.shapes else {},
            reference=self.declaration.reference,
            encodes=self.encodes,
            weights="average" if self.loaded.weights().averaged else "raw",
            created_by=self.options.created_by,
        )

    def _vocoder(self) -> nn.Module:
        config, weights = self.loaded.vocoder_config, self.loaded.vocoder
        if isinstance(config, VocosConfig):
            kind = vocoders.VocosGraph if config.head == "ISTFTHead" else vocoders.SourceFilter
            return kind(weights, self.loaded.mel, self.loaded.record, self.compute)
        return vocoders.BigVGANGraph(checkpoint.build_vocoder(config, weights), self.compute)

    def _write_steps(self, files: dict[str, str]) -> Variants:
        files = {**files, "update": self._trace("update", Update)}
        if self.precision == "int8":

            def quantise(traced: Path, out: Path) -> None:
                rewrites.quantise(traced, out, roles=self.declaration.roles)
                if out.stem == "step_int8":
                    self._write_peer(traced)

            cpu = self._cpu_steps(quantise, "int8")
            self._share(cpu)
            vocoder = self.folder / files["vocoder"]
            rewrites.quantise_vocoder(vocoder, vocoder)
            return self._with_peer({"default": files | cpu}, "default")
        steps = self.declaration.steps
        for name, kind in steps.items():
            files[name] = self._trace_step(name, kind, files.get("step"))
        variants = {"default": files}
        if self.fuses:
            variants[contract.FUSED] = {
                name: self._trace_step(name, kind, files["step"], "cuda", "_fused")
                for name, kind in steps.items()
            }
        if self.precision == "fp32":
            return variants | {"ort-cpu": self._cpu_steps(os.replace, "cpu", files["step"])}
        wide = {name: f"{name}_float32.onnx" for name in ("condition", "vocoder")}
        rows = {name: f"{name}_rows_float32.onnx" for name in steps}
        for name, file in {**wide, **rows}.items():
            rewrites.widen(self.folder / files[name], self.folder / file)
        if self.precision == "fp16":  # INT8 products are summed exactly
            variants[contract.FLOAT32_SUMS] = sums = {n: f"{n}_float32_sums.onnx" for n in steps}
            for name, file in sums.items():
                rewrites.sum_in_float32(self.folder / files[name], self.folder / file)
        cpu = self._cpu_steps(rewrites.widen, "float32", files["step"])
        if self.options.int8_beside:
            quick = {name: f"{name}_int8.onnx" for name in cpu}
            for name, file in quick.items():
                rewrites.quantise_widened(self.folder / cpu[name], self.folder / file, self.declaration.roles)
            self._share(quick)
            quick |= self._quick_vocoder(wide["vocoder"], files["vocoder"])
            if "step" in cpu:
                self._write_peer(self.folder / cpu["step"])
            variants[contract.INT8] = wide | quick
            variants = self._with_peer(variants, contract.INT8)
        return variants | {"ort-cpu": cpu | wide, contract.FLOAT32: wide | rows}

    def _quick_vocoder(self, source: str, weights: str) -> dict[str, str]:
        """Write the vocoder `source` in INT8 on the weight file of `weights`. Returns its file, if any."""
        vocoder = self.folder / "vocoder_int8.onnx"
        if not rewrites.quantise_vocoder(self.folder / source, vocoder):
            return {}
        to_onnx.share_weights(vocoder, self.folder / weights)
        return {"vocoder": vocoder.name}

    def _write_peer(self, step: Path) -> None:
        """Write the whole step as upstream quantises it to INT8, if the family has such a form."""
        if self.declaration.upstream_int8:
            rewrites.quantise_as_upstream(step, self.folder / PEER_STEP)

    def _with_peer(self, variants: Variants, like: str) -> Variants:
        """Add the variant that the parity check compares with `like`. No published bundle contains it."""
        if not self.declaration.upstream_int8:
            return variants
        return {**variants, comparison.PEER: variants[like] | {"step": PEER_STEP}}

    def _share(self, steps: Mapping[str, str]) -> None:
        """Let all step graphs use the weight file of the first step graph."""
        first, *others = steps.values()
        for other in others:
            to_onnx.share_weights(self.folder / other, self.folder / first)

    def _cpu_steps(
        self, rewrite: Callable[[Path, Path], None], suffix: str, weights: str | None = None
    ) -> dict[str, str]:
        """Write the step graphs of one row, with the weights of the graph `weights`."""
        files: dict[str, str] = {}
        for name in self.declaration.single:
            kind = self.declaration.steps[name]
            traced = self.folder / self._trace_step(name, kind, weights, "single", "_traced")
            files[name] = f"{name}_{suffix}.onnx"
            rewrite(traced, self.folder / files[name])
            for path in (traced, traced.with_name(f"{traced.name}.data")):
                path.unlink(missing_ok=True)
        return files

    def _trace(self, name: str, make: Callable[[], nn.Module], suffix: str = "") -> str:
        """Write one graph, return freed memory to the system, and return the graph's file name."""
        path = self.folder / f"{name}{suffix}.onnx"
        progress.begin("graphs", f"tracing {path.stem}")
        with torch.no_grad():
            traces.export(make(), signatures.signatures(self.dimensions)[name], path, self.options.traces)
        comparison.give_back()
        progress.part((1.0 if name in self.declaration.steps else SMALL_GRAPH) / self.work)
        return path.name

    def _trace_step(
        self, name: str, kind: StepGraph, weights: str | None, form: parts.Form = "standard", suffix: str = ""
    ) -> str:

        def make() -> nn.Module:
            return kind(self.loaded.weights(), self.arch, self.mels, self.max_frames, self.compute, form)

        file = self._trace(name, make, suffix)
        if weights is not None:
            to_onnx.share_weights(self.folder / file, self.folder / weights)
        return file


def graphs_alone(loaded: Loaded, max_frames: int = MAX_FRAMES) -> list[oracles.ExpectedGraph]:
    """Expected output of the graphs that run once. This takes seconds; `expectations` takes minutes."""
    progress.begin("graphs alone")
    oracle = loaded.declaration.oracles(loaded.weights, loaded.given)[0]()
    assert isinstance(oracle, oracles.TorchOracle)
    return oracles.alone(oracle, loaded.reference_vocoder(), loaded.cases(max_frames).short_and_long())


def expectations(
    loaded: Loaded, options: BuildOptions, graphs: Sequence[oracles.ExpectedGraph] | None = None
) -> oracles.Expectations:
    """Results of the parity cases by torch and, if installed, by upstream's package; see `oracles.expect`."""
    declared, cases = loaded.declaration, loaded.cases(options.max_frames)
    results = oracles.expect(
        declared.oracles(loaded.weights, loaded.given),
        loaded.reference_vocoder,
        cases,
        lossy=options.lossy,
        graphs=graphs,
    )
    results = dataclasses.replace(results, bounds=declared.bounds[options.precision])
    if options.precision in ("fp32", "int8") or declared.peaks is None:
        return results
    progress.begin("peaks")
    short = cases.drawn(SHORTEST)
    reached = declared.peaks(loaded.reference(), loaded.reference_vocoder(), results.trajectories, short)
    return dataclasses.replace(results, peaks=tuple(reached))

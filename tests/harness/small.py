"""Small models in the official layouts, their bundles, and upstream's packages on the same files."""

import dataclasses
import fcntl
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn

from appliance.contract import bundle as contract
from appliance.contract.bundle import Arch, Bundle, Precision
from appliance.contract.sampler import Guidance, Sampler
from appliance.durable import sha256
from appliance.engine.cases import FEMALE, MALE
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.request import FloatArray, Segment
from export import assemble, evidence
from export.cli import main
from export.families import family
from export.model.bigvgan import fold, weight_norm_pairs
from export.model.vocos import VocosConfig
from export.parity import comparison, oracles
from export.parity.oracles import Case
from tests.engine.lanes import Padded, spoken
from tests.export.random_checkpoint import (
    BIGVGAN_V2_24KHZ,
    write_random,
    write_random_bigvgan,
    write_random_vocos,
)
from tests.harness import traces
from tests.harness.kept import kept
from tests.oracle import upstream

MELS = 100
MAX_FRAMES = 2304
VOCABULARY = [" ", *"abcdefghijklmnopqrstuvwxyz", *"，。！？", "ni3", "hao3"]
VOCOS = VocosConfig(mels=MELS, dim=32, intermediate_dim=64, layers=2, n_fft=1024, hop=256, padding="center")
BIGVGAN = dataclasses.replace(
    BIGVGAN_V2_24KHZ,
    num_mels=80,
    upsample_rates=(8, 8, 4),
    upsample_kernel_sizes=(16, 16, 8),
    upsample_initial_channel=32,
    resblock_kernel_sizes=(3,),
    resblock_dilation_sizes=((1, 3),),
)
WRITERS = {"vocos": (write_random_vocos, VOCOS), "bigvgan": (write_random_bigvgan, BIGVGAN)}
MELS_OF = {"vocos": MELS, "bigvgan": BIGVGAN.num_mels}

V1 = Arch(dim=64, depth=2, heads=2, ff_mult=2, text_dim=48, conv_layers=1, dim_head=32)
ARCHS: dict[str, Arch] = {
    "v1": V1,
    "v0": dataclasses.replace(V1, text_mask_padding=False, pe_attn_head=1),
    "qk_norm": dataclasses.replace(V1, qk_norm="rms_norm"),
    "long_skip": dataclasses.replace(V1, long_skip_connection=True),
    "upsampling": dataclasses.replace(V1, text_embedding_average_upsampling=True),
    "one_block": dataclasses.replace(V1, depth=1),
    "no_convs": dataclasses.replace(V1, conv_layers=0),
    "text_dim_of_mels": dataclasses.replace(V1, text_dim=MELS),
    "qk_norm_long_skip_text_dim_of_mels": dataclasses.replace(
        V1, depth=1, qk_norm="rms_norm", long_skip_connection=True, text_dim=MELS
    ),
}
"""Architectures with each option alone, and with options that act in different graphs together, for fewer
traces."""
TRACED = ("v1", "v0", "upsampling", "no_convs", "qk_norm_long_skip_text_dim_of_mels")
"""Architectures that the default tests trace: every option, in five models, of which three differ in their
step graphs."""
ACCEPTED: dict[Precision, str] = {"int8-qdq": "random weights: 32 steps change little that 7 did not"}
"""Precision → reason to accept bundles that exceed its bounds."""
MEASURED = (
    ("v0", "vocos", "fp32"),
    *(("v1", "vocos", precision) for precision in ("fp16", "int8", "int8-qdq")),
    # No other test compares float16 of these with upstream's packages.
    (TRACED[-1], "bigvgan", "fp16"),
)
"""Bundles that pass the gate: a bundle of each precision. `test_matrix` compares the float32 graphs of the
others with upstream's packages, form by form."""
BRIEFLY = MEASURED[2], MEASURED[4]
"""Bundles of MEASURED whose gate has shorter readings."""


@dataclass(frozen=True)
class Files:
    """A model in its publisher's layout."""

    family: Path
    checkpoint: Path
    vocab: Path
    vocoder: str
    vocoder_path: Path

    def arguments(self) -> list[str]:
        """The command line's `--family` to `--vocoder-path`."""
        model = ["--family", self.family, "--checkpoint", self.checkpoint, "--vocab", self.vocab]
        return [*map(str, model), "--vocoder", self.vocoder, "--vocoder-path", str(self.vocoder_path)]


def write_files(
    folder: Path, arch: Arch, vocoder: str = "vocos", seed: int = 11, *, embeds_guidance: bool = False
) -> Files:
    """The model's files under `folder`; the same seed gives the same weights."""
    mels = MELS_OF[vocoder]
    write_random(folder, arch, VOCABULARY, seed, mels, embeds_guidance=embeds_guidance)
    files = files_in(folder, vocoder)
    write_vocoder(files.vocoder_path, vocoder, seed)
    options = {**dataclasses.asdict(arch), "text_dim": None if arch.text_dim == mels else arch.text_dim}
    mel_spec = {"mel_spec_type": vocoder, "n_mel_channels": mels}
    model = {"name": "small", "arch": options, "mel_spec": mel_spec}
    files.family.write_text(yaml.safe_dump({"model": model}))
    return files


def write_vocoder(folder: Path, kind: str, seed: int = 0, **changes: Any) -> Path:
    """A vocoder in its publisher's layout, with changes of its configuration."""
    write, config = WRITERS[kind]
    return write(folder, dataclasses.replace(config, **changes), seed)


def files_in(folder: Path, vocoder: str) -> Files:
    """The model's files that `write_files` wrote under `folder`."""
    return Files(
        folder / "family.yaml", folder / "model.safetensors", folder / "vocab.txt", vocoder, folder / vocoder
    )


def sources(files: Files) -> assemble.Sources:
    vocoder: Any = files.vocoder
    given = (family(str(files.family)), files.checkpoint, files.vocab, vocoder, files.vocoder_path)
    return assemble.Sources(*given, weights_licence="Apache-2.0", languages=("en", "zh"))


def load(files: Files) -> assemble.Loaded:
    """Load the files as the exporter's sources."""
    return assemble.load(sources(files))


@dataclass(frozen=True)
class BuiltBundle:
    """A model's files and its exported bundle."""

    arch: Arch
    files: Files
    bundle: Bundle

    def engine(self, lanes: int = 1, variant: str | None = None) -> Synthesizer:
        """Engine on the CPU, at true lengths; `variant` None is the CPU's variant."""
        return Synthesizer(self.bundle, OrtBackend(1), lanes=lanes, variant=variant)

    def padded(self, lanes: int = 1) -> Synthesizer:
        """Engine with the default variant in padded batches, as on a GPU."""
        return Synthesizer(self.bundle, Padded(), lanes=lanes)


OPTIONS = assemble.BuildOptions(max_frames=MAX_FRAMES)


def unmeasured(
    loaded: assemble.Loaded, out: Path, precision: Precision = "fp32", max_frames: int = MAX_FRAMES
) -> Bundle:
    """Build the bundle `out` without the gate."""
    options = assemble.BuildOptions(precision, max_frames)
    return assemble.build(loaded, options, out, lambda _: comparison.Report(precision))


class Workshop:
    """Makes each small bundle once, for all processes and runs on one source."""

    def __init__(self) -> None:
        upstream.dit_class()  # makes the gate measure against upstream's package too
        versions = sys.version_info[:2], torch.__version__, onnx.__version__
        builders = "tests.harness.small", "tests.export.zipvoice"
        self._root = kept("workshop", builders, lambda folder, _: folder.mkdir(), versions, unused_s=7_200)
        self._read: dict[str, Bundle] = {}

    def bundle(self, name: str, write: Callable[[Path], object]) -> Bundle:
        """The bundle that `write(folder)` made as `folder/bundle`, now or earlier."""
        if name not in self._read:
            folder = self._root / name
            with _locked(folder), traces.reusing(), of_random_weights():
                if not (folder / "bundle").exists():
                    write(folder)
            self._read[name] = contract.read(folder / "bundle")
        return self._read[name]

    def make(self, name: str, vocoder: str = "vocos", precision: Precision = "fp32") -> BuiltBundle:
        """The bundle of `ARCHS[name]`; bundles in `MEASURED` come from the command line with its gate."""
        key, arch = (name, vocoder, precision), ARCHS[name]

        def write(folder: Path) -> None:
            files, out = write_files(folder, arch, vocoder), folder / "bundle"
            if key not in MEASURED:
                unmeasured(load(files), out, precision)
                return
            accepted = ["--accept", ACCEPTED[precision]] if precision in ACCEPTED else []
            with brief_gate() if key in BRIEFLY else nullcontext():
                assert main([*bundle_command(files, out, precision), *accepted]) == 0

        made = self.bundle("-".join(key), write)
        return BuiltBundle(arch, files_in(made.folder.parent, vocoder), made)

    def sampled(self, guidance: Guidance) -> BuiltBundle:
        """The bundle of `ARCHS["v1"]` with one row per step; its weights read the strength if it is
        embedded."""

        def write(folder: Path) -> None:
            embeds = guidance == "embedded"
            given = dataclasses.replace(
                sources(write_files(folder, V1, embeds_guidance=embeds)),
                sampler=Sampler(guidance=guidance),
                defaults=contract.Defaults(guidance=2.0 * embeds),
            )
            unmeasured(assemble.load(given), folder / "bundle")

        made = self.bundle(f"v1-vocos-{guidance}", write)
        return BuiltBundle(V1, files_in(made.folder.parent, "vocos"), made)


_expected: dict[object, oracles.Expectations] = {}


@contextmanager
def brief_gate() -> Iterator[None]:
    """The whole gate on shorter readings, whose expected results are computed once for the same weights."""
    readings = ((FEMALE, 330), (MALE, 330))
    compute = assemble.expectations

    def once(loaded: assemble.Loaded, options: assemble.BuildOptions, *graphs: Any) -> oracles.Expectations:
        of_weights = loaded.sources, sha256(loaded.sources.checkpoint)
        key = *of_weights, options.precision, options.max_frames, options.int8_beside
        if key not in _expected:
            _expected[key] = compute(loaded, options, *graphs)
        return _expected[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "expectations", once)
        patch.setattr(oracles, "READINGS", readings)
        yield


def of_random_weights() -> AbstractContextManager[object]:
    """Let the exporter write weights that produce no speech."""
    return mock.patch.object(evidence, "settle")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock `path`.lock, which other processes wait for."""
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def bundle_command(files: Files, out: Path, precision: Precision = "fp32") -> list[str]:
    """Arguments of `python -m export` that make `out`."""
    options = ["--precision", precision, "--max-frames", str(MAX_FRAMES), "--licence", "Apache-2.0"]
    return ["bundle", *files.arguments(), *options, "--out", str(out)]


def opened_by(arguments: Sequence[str]) -> assemble.Loaded:
    """Checked inputs of `python -m export` at the moment when the export would begin."""
    opened: list[assemble.Loaded] = []

    def stop(loaded: assemble.Loaded, *_: object, **__: object) -> None:
        opened.append(loaded)
        raise assemble.BundleFailed("far enough")

    with mock.patch.object(evidence, "weigh", stop):
        assert main(arguments) == 1
    [loaded] = opened
    return loaded


# Upstream's packages on the same files


def upstream_dit(arch: Arch, size: int, weights: Mapping[str, Tensor] | None = None, mels: int = MELS) -> Any:
    """Upstream's DiT for a vocabulary of `size`, with those weights."""
    options = dataclasses.asdict(arch) | ({"text_dim": None} if arch.text_dim == mels else {})
    model = upstream.dit_class()(**options, mel_dim=mels, text_num_embeds=size)
    if weights is not None:
        model.load_state_dict(dict(weights))
    return model.eval()


def upstream_flow(files: Files, arch: Arch) -> Any:
    """Upstream's CFM over its DiT, filled by upstream's own loader."""
    mels = MELS_OF[files.vocoder]
    size = len(files.vocab.read_text("utf-8").splitlines())
    flow = upstream.cfm_class()(
        transformer=upstream_dit(arch, size, mels=mels),
        mel_spec_kwargs={"mel_spec_type": files.vocoder, "n_mel_channels": mels},
    )
    return upstream.infer_utils().load_checkpoint(flow, str(files.checkpoint), "cpu").eval()


@torch.inference_mode()
def upstream_rows(flow: Any, times: FloatArray) -> FloatArray:
    """(K, 6·depth + 2, D): outputs of upstream's linear layers for each time; the final shift comes first."""
    model = flow.transformer
    seen = nn.functional.silu(model.time_embed(torch.from_numpy(times)))
    blocks = [row for b in model.transformer_blocks for row in b.attn_norm.linear(seen).chunk(6, dim=1)]
    scale, shift = model.norm_out.linear(seen).chunk(2, dim=1)
    return torch.stack([*blocks, shift, scale], dim=1).numpy()


@torch.inference_mode()
def upstream_condition(flow: Any, given: Case) -> FloatArray:
    """(2, N, D): upstream's input projection of latents that are zero, guided and unguided."""
    model, ids = flow.transformer, torch.from_numpy(given.ids).long()[None]
    nothing = torch.zeros(1, *given.noise.shape)
    cond = nothing.clone()
    cond[0, : len(given.cond)] = torch.from_numpy(given.cond)
    rows = [
        model.input_embed.proj(torch.cat([nothing, mel, model.text_embed(ids, given.frames, drop)], dim=-1))
        for mel, drop in ((cond, False), (nothing, True))
    ]
    return torch.cat(rows).numpy()


@torch.inference_mode()
def upstream_velocity(flow: Any, given: Case, time: float) -> FloatArray:
    """(N, M) guided velocity of the case's noise at `time`: c + (c − u)·guidance."""
    cond = torch.zeros(1, *given.noise.shape)
    cond[0, : len(given.cond)] = torch.from_numpy(given.cond)
    x, text = torch.from_numpy(given.noise)[None], torch.from_numpy(given.ids).long()[None]
    guided, plain = flow.transformer(x=x, cond=cond, text=text, time=torch.tensor(time), cfg_infer=True)
    flow.transformer.clear_cache()
    return (guided + (guided - plain) * given.guidance).numpy()  # type: ignore[no-any-return]


def upstream_sample(flow: Any, given: Case, nfe: int) -> FloatArray:
    """(N, M) `CFM.sample` of the case, with its noise instead of random numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", lambda *_, **__: torch.from_numpy(given.noise.copy()))
        mel, _ = flow.sample(
            cond=torch.from_numpy(given.cond)[None],
            text=torch.from_numpy(given.ids).long()[None],
            duration=given.frames,
            steps=nfe,
            cfg_strength=given.guidance,
            sway_sampling_coef=-1.0,
        )
    return mel[0].numpy()  # type: ignore[no-any-return]


@torch.inference_mode()
def upstream_wave(files: Files, log_mel: FloatArray) -> FloatArray:
    """(samples,) of the vocoder's own package for (N, M)."""
    mel = torch.from_numpy(log_mel).T[None]
    model = _upstream_vocoder(files.vocoder_path)
    wave: Tensor = model.decode(mel)[0] if files.vocoder == "vocos" else model(mel)[0, 0]
    return wave.numpy()


@cache
def _upstream_vocoder(folder: Path) -> Any:
    if (folder / "config.yaml").exists():
        model = upstream.vocos_module().Vocos.from_hparams(str(folder / "config.yaml"))
        model.load_state_dict(torch.load(folder / "pytorch_model.bin"))
    else:
        model = upstream.make_bigvgan(json.loads((folder / "config.json").read_text()))
        model.load_state_dict(torch.load(folder / "bigvgan_generator.pt")["generator"])
    return model.eval()


def folded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict in which each pair of magnitude and direction is replaced by its weight."""
    pairs = weight_norm_pairs(state)
    halves = {half for pair in pairs.values() for half in pair}
    plain = {name: value for name, value in state.items() if name not in halves}
    return plain | {name: fold(state[g], state[v]) for name, (g, v) in pairs.items()}


# Graphs, cases and errors


def run(path: Path, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Outputs of an ONNX file on the CPU."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feed)), strict=True))


def case(
    frames: int,
    *,
    tokens: int = 0,
    reference: int = 0,
    guidance: float = 2.0,
    seed: int = 5,
    mels: int = MELS,
) -> Case:
    """A case; by default a third of it is reference, and it has a seventh as many tokens as frames."""
    rng = np.random.default_rng([seed, frames])
    reference = reference or frames // 3
    return Case(
        cond=rng.normal(-4.0, 2.0, (reference, mels)).clip(-11.5, 3.0).astype(np.float32),
        ids=rng.integers(0, len(VOCABULARY), tokens or max(frames // 7, 2), dtype=np.int32),
        frames=frames,
        noise=rng.standard_normal((frames, mels), dtype=np.float32),
        guidance=guidance,
    )


def reply(engine: Synthesizer, given: Segment) -> FloatArray:
    """(reply, M) log-mel of a segment that never shares a batch."""
    mel, _ = spoken(engine, given)
    return mel[len(given.reference_log_mel) :]

"""Write the committed voice from trained weights (layout, bundle, references), and rebuild the weights."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import yaml
from onnx import numpy_helper
from torch import Tensor

from appliance.contract import bundle as contract
from appliance.contract.bundle import Arch, Bundle
from export import assemble, evidence, parity
from export.checkpoint import load_dit, save_official
from export.demo import alphabet, dataset
from export.demo.corpus import trim
from export.demo.engines import RHVoice
from export.demo.recover import step_weights
from export.families import Family
from export.model.dit import rotary_frequencies
from export.model.vocos import VocosConfig

NAME = "demo"
MAX_FRAMES = 2304
"""24.6 s with the reference; the planner makes segments of at most 22 s."""
LARGEST_BYTES = 36 << 20
"""Size limit of bundle and references together."""
REFERENCE_S = (2.0, 3.0)
"""Range of reference lengths at the engine's pace; every segment recomputes its reference."""
REFERENCE_RATE = 0.9
"""Speaking rate of references. Replies copy it, and at the engine's own rate they lose short words."""
OWN = "live-"
"""Id prefix of our own sentences, which may be published."""
CHECKPOINT, VOCAB, FAMILY, VOCODER = "model.safetensors", "vocab.txt", "family.yaml", "vocos"
PROJECTION = "input_embed.proj.weight"
EMBEDDING = "text_embed.text_embed.weight"


def write_official(average: Mapping[str, Tensor], arch: Arch, vocoder: Path, out: Path) -> Family:
    """Write checkpoint, vocabulary, family and vocoder in upstream's layout.

    Adds the embeddings of capitals and untrained punctuation.
    """
    out.mkdir(parents=True, exist_ok=True)
    state = {name: value.float().cpu() for name, value in average.items()}
    filler, trained = state[EMBEDDING][:1], state[EMBEDDING][1:]
    state[EMBEDDING] = torch.cat((filler, trained[alphabet.copies()]))
    save_official(state, out / CHECKPOINT)
    (out / VOCAB).write_text("".join(f"{entry}\n" for entry in alphabet.vocabulary()), "utf-8")
    _write_family(arch, out / FAMILY)
    if vocoder.resolve() != (out / VOCODER).resolve():
        shutil.copytree(vocoder, out / VOCODER, dirs_exist_ok=True)
    return Family(NAME, arch, tokenizer="char")


def make_bundle(
    official: Path, family: Family, precision: contract.Precision, licence: str, out: Path
) -> Bundle:
    """Export the folder of `write_official` as a bundle, with the usual parity gate."""
    sources = assemble.Sources(
        family,
        official / CHECKPOINT,
        official / VOCAB,
        "vocos",
        official / VOCODER,
        licence,
        languages=("en",),
    )
    loaded = assemble.load(sources)
    expected = assemble.expectations(loaded, precision, MAX_FRAMES)
    measure = functools.partial(parity.measure, expected=expected)
    return assemble.build(
        loaded,
        precision,
        out,
        measure,
        max_frames=MAX_FRAMES,
        created_by="python -m export.demo ship",
        evidence=evidence.weigh(loaded).record(),
    )


def ship(
    average: Mapping[str, Tensor],
    arch: Arch,
    vocoder: Path,
    corpus: Path,
    engine: Path,
    licence: str,
    out: Path,
    voices: Sequence[str] = (),
) -> dict[str, int]:
    """Write the FP16 bundle and the reference voices under `out`; return the size of each in bytes.

    `engine` synthesises the references; empty `voices` means all of the corpus. Raises ValueError if `out`
    has a bundle or the result exceeds LARGEST_BYTES, EngineError without `engine`.
    """
    if (out / "bundle").exists():
        raise ValueError(f"{out / 'bundle'} exists; remove it to ship another")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch)
        write_voices(corpus, engine, made / "voices", voices)
        family = write_official(average, arch, vocoder, made / "official")
        make_bundle(made / "official", family, "fp16", licence, made / "bundle")
        sizes = {
            part: sum(path.stat().st_size for path in (made / part).rglob("*") if path.is_file())
            for part in ("bundle", "voices")
        }
        if sum(sizes.values()) > LARGEST_BYTES:
            raise ValueError(
                f"{sizes} bytes, at most {LARGEST_BYTES} may be committed: train a smaller model"
            )
        for part in sizes:
            shutil.copytree(made / part, out / part, dirs_exist_ok=True)
    return sizes


def write_voices(corpus: Path, engine: Path, folder: Path, voices: Sequence[str] = ()) -> list[Path]:
    """Write `VOICE.wav` and `VOICE.txt` for each voice and return the paths of the audio.

    Picks, of our own validation statements, the one nearest to the voice's median pace, and synthesises it at
    `REFERENCE_RATE`. Raises ValueError if none has a length in `REFERENCE_S`.
    """
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    low, high = (seconds * dataset.SPEC.sample_rate_hz for seconds in REFERENCE_S)
    written = []
    clips = [clip for clip in dataset.read_corpus(corpus) if clip["split"] == "valid"]
    for voice in sorted(voices or {clip["voice"] for clip in clips}):
        spoken = [clip for clip in clips if clip["voice"] == voice]
        own = [clip for clip in spoken if clip["id"].startswith(OWN) and clip["text"].endswith(".")]
        fit = [clip for clip in own if low <= clip["samples"] <= high]
        if not fit:
            raise ValueError(
                f"{corpus}: no validation sentence of {voice} lasts {REFERENCE_S[0]} to {REFERENCE_S[1]} s"
            )
        usual = statistics.median(map(_samples_per_letter, spoken))
        chosen = min(fit, key=lambda clip: abs(_samples_per_letter(clip) - usual))
        calm = trim(RHVoice(engine, voice, REFERENCE_RATE).speak(chosen["text"]))
        wave = dataset.level(calm.samples.astype(np.float32) / dataset.FULL_SCALE)
        path = folder / f"{voice}.wav"
        soundfile.write(path, np.clip(wave, -1.0, 1.0), dataset.SPEC.sample_rate_hz, subtype="PCM_16")
        path.with_suffix(".txt").write_text(chosen["text"] + "\n", "utf-8")
        written.append(path)
    return written


def _samples_per_letter(clip: Mapping[str, Any]) -> float:
    return float(clip["samples"] / len(clip["text"]))


def rebuild(made: Bundle, out: Path) -> Family:
    """Write the files of `write_official` from a float bundle with Vocos.

    Weights have the bundle's precision. Folded layer scales stay folded and become ones. Raises ValueError
    for other bundles.
    """
    manifest = made.manifest
    if manifest.precision in parity.LOSSY or manifest.vocoder.name != "vocos":
        raise ValueError(f"{made.folder}: only a float bundle with Vocos can be taken apart")
    out.mkdir(parents=True, exist_ok=True)
    graphs = {name: _weights(made.graph(name)) for name in ("modulation", "condition", "vocoder")}
    arch = manifest.arch
    state = {
        **_modulation(graphs["modulation"], arch),
        **_condition(graphs["condition"], arch),
        **step_weights(made.graph("step"), arch),
        "rotary_embed.inv_freq": rotary_frequencies(arch.dim_head),
    }
    rest = [graphs["condition"][f"{name}.weight"].T for name in ("from_mel", "from_text")]
    state[PROJECTION] = torch.cat([part.float() for part in (state[PROJECTION], *rest)], dim=1)
    save_official({name: value.float() for name, value in state.items()}, out / CHECKPOINT)
    shutil.copy(made.vocab, out / VOCAB)
    _write_family(arch, out / FAMILY, manifest.family)
    _write_vocos(graphs["vocoder"], manifest, out / VOCODER)
    return Family(manifest.family, arch, manifest.mel, tokenizer="char")


def read_trained_dit(official: Path, arch: Arch) -> dict[str, Tensor]:
    """Read a DiT of `write_official` with the trained vocabulary only.

    Raises CheckpointError for another architecture or vocabulary.
    """
    read = load_dit(official / CHECKPOINT, arch, len(alphabet.vocabulary()))
    state = {name: read[name].float() for name in read}
    state[EMBEDDING] = state[EMBEDDING][: 1 + len(alphabet.TRAINED)]
    return state


Graph = Mapping[str, Tensor]


def _weights(path: Path) -> Graph:
    graph = onnx.load(path).graph
    named = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer
    }
    # Constant folding stores small widened matrices as float32 under a tracer's name.
    widened = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast"}
    for node in graph.node:
        if node.op_type == "Gemm":
            _, matrix, bias = node.input
            named[bias.removesuffix("bias") + "weight"] = named[widened.get(matrix, matrix)]
    return named


def _modulation(graph: Graph, arch: Arch) -> dict[str, Tensor]:
    names = {
        "hidden": "time_embed.time_mlp.0",
        "out": "time_embed.time_mlp.2",
        f"heads.{arch.depth}": "norm_out.linear",
    }
    names |= {f"heads.{i}": f"transformer_blocks.{i}.attn_norm.linear" for i in range(arch.depth)}
    return {
        f"{to}.{kind}": graph[f"{name}.{kind}"] for name, to in names.items() for kind in ("weight", "bias")
    }


def _condition(graph: Graph, arch: Arch) -> dict[str, Tensor]:
    state = {EMBEDDING: graph["embedding"], "input_embed.proj.bias": graph["from_mel.bias"]}
    for i in range(arch.conv_layers):
        ours, theirs = f"blocks.{i}", f"text_embed.text_blocks.{i}"
        state |= _convnext(graph, ours, theirs)
        state |= {f"{theirs}.grn.{kind}": graph[f"{ours}.{kind}"] for kind in ("gamma", "beta")}
    return state


def _convnext(graph: Graph, ours: str, theirs: str) -> dict[str, Tensor]:
    state = {
        f"{theirs}.dwconv.weight": graph[f"{ours}.conv"],
        f"{theirs}.dwconv.bias": graph[f"{ours}.conv_bias"],
        f"{theirs}.norm.weight": graph[f"{ours}.norm_weight"],
        f"{theirs}.norm.bias": graph[f"{ours}.norm_bias"],
    }
    return (
        state
        | _matrix(graph, f"{ours}.up", f"{theirs}.pwconv1")
        | _matrix(graph, f"{ours}.down", f"{theirs}.pwconv2")
    )


def _matrix(graph: Graph, ours: str, theirs: str) -> dict[str, Tensor]:
    return {f"{theirs}.weight": graph[f"{ours}.weight"].T, f"{theirs}.bias": graph[f"{ours}.bias"]}


def _write_vocos(graph: Graph, manifest: contract.Manifest, folder: Path) -> None:
    layers = sum(name.endswith(".up.weight") for name in graph)
    state = {
        "backbone.embed.weight": graph["embed"],
        "backbone.embed.bias": graph["embed_bias"],
        **{
            f"backbone.{n}.{k}": graph[f"norms.{n}_{k}"]
            for n in ("norm", "final_layer_norm")
            for k in ("weight", "bias")
        },
        **_matrix(graph, "head", "head.out"),
        "head.istft.window": torch.hann_window(manifest.mel.n_fft),
    }
    for i in range(layers):
        theirs = f"backbone.convnext.{i}"
        state |= _convnext(graph, f"blocks.{i}", theirs)
        state[f"{theirs}.gamma"] = torch.ones(len(graph["embed_bias"]))
    config = VocosConfig(
        mels=manifest.mel.mels,
        dim=len(graph["embed_bias"]),
        intermediate_dim=graph["blocks.0.up.weight"].shape[1],
        layers=layers,
        n_fft=manifest.mel.n_fft,
        hop=manifest.mel.hop,
        padding=manifest.vocoder.padding,
        sample_rate=manifest.mel.sample_rate_hz,
    )
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(
        {name: value.float().contiguous() for name, value in state.items()}, folder / "pytorch_model.bin"
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(config.sections(), sort_keys=False), "utf-8")


def _write_family(arch: Arch, path: Path, name: str = NAME) -> None:
    options: dict[str, Any] = dataclasses.asdict(arch)
    if arch.text_dim == dataset.SPEC.mels:
        options["text_dim"] = None
    model = {
        "name": name,
        "tokenizer": "char",
        "backbone": "DiT",
        "arch": options,
        "mel_spec": {"mel_spec_type": "vocos"},
    }
    path.write_text(yaml.safe_dump({"model": model}, sort_keys=False), "utf-8")

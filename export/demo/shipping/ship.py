"""Write the committed voice from trained weights (layout, bundle, references), and rebuild the weights."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import yaml
from onnx import numpy_helper
from torch import Tensor

from appliance.contract import bundle as contract
from appliance.contract.bundle import Arch, Bundle, Defaults
from appliance.contract.sampler import Sampler
from export import assemble, evidence, parity
from export.checkpoint import save_official
from export.demo.corpus import alphabet, store
from export.demo.corpus.teachers import HEART, MICHAEL, Teachers
from export.demo.shipping.recover import step_weights
from export.families import Family
from export.model.dit import rotary_frequencies
from export.model.vocos import Head, VocosConfig

NAME = "demo"
MAX_FRAMES = 2304
"""24.6 s with the reference; the planner makes segments of at most 22 s."""
LARGEST_BYTES = 36 << 20
"""Size limit of bundle and references together."""
REFERENCES = {
    "heart": (HEART, "We are live every Monday at seven, so come and say hello."),
    "michael": (MICHAEL, "We are live every Monday at seven, so come and say hello."),
}
"""Voice → teacher's name and transcript, of our own, which no training sentence shares six words with."""
REFERENCE_RATE = 0.9
"""Speaking rate of references. Replies copy it, and at the teacher's own rate they lose short words."""
CHECKPOINT, VOCAB, FAMILY, VOCODER = "model.safetensors", "vocab.txt", "family.yaml", "vocos"
HEADS: dict[str, Head] = {"vocos": "ISTFTHead", "source-filter": "SourceFilterHead"}
PROJECTION = "input_embed.proj.weight"
ROTARY = "rotary_embed.inv_freq"
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
    official: Path, family: Family, precision: contract.Precision, licence: str, passes: int, out: Path
) -> Bundle:
    """Export the folder of `write_official` as a bundle, with the usual parity gate.

    With `passes` the weights are a student's: one row a step, that number of steps alone.
    """
    student = passes > 0
    sources = assemble.Sources(
        family,
        official / CHECKPOINT,
        official / VOCAB,
        "vocos",
        official / VOCODER,
        licence,
        licence,
        languages=("en",),
        sampler=Sampler(guidance="none", steps=(passes,)) if student else Sampler(),
        defaults=Defaults(guidance=0.0, grid="uniform") if student else Defaults(),
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
    teachers: Path,
    licence: str,
    passes: int,
    out: Path,
) -> dict[str, int]:
    """Write the FP16 bundle and the reference voices under `out`; return the size of each in bytes.

    Raises ValueError if `out` has a bundle or the result exceeds LARGEST_BYTES.
    """
    if (out / "bundle").exists():
        raise ValueError(f"{out / 'bundle'} exists; remove it to ship another")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch)
        write_voices(Teachers(teachers), made / "voices")
        family = write_official(average, arch, vocoder, made / "official")
        make_bundle(made / "official", family, "fp16", licence, passes, made / "bundle")
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


def write_voices(teachers: Teachers, folder: Path) -> None:
    """Write `VOICE.wav`, levelled, and `VOICE.txt` for each of REFERENCES."""
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    for voice, (name, text) in REFERENCES.items():
        spoken = teachers.speak(name, text, REFERENCE_RATE)
        if spoken is None:
            raise ValueError(f"{name} does not speak {text!r}")
        wave = store.level(store.trimmed(spoken).samples / np.float32(store.FULL_SCALE))
        path = folder / f"{voice}.wav"
        soundfile.write(path, wave.clip(-1.0, 1.0), store.SPEC.sample_rate_hz, subtype="PCM_16")
        path.with_suffix(".txt").write_text(text + "\n", "utf-8")


def rebuild(made: Bundle, out: Path) -> Family:
    """Write the files of `write_official` from a float bundle with Vocos' backbone.

    Weights have the bundle's precision. Folded layer scales stay folded and become ones. Raises ValueError
    for other bundles.
    """
    manifest = made.manifest
    if manifest.precision in parity.LOSSY or manifest.vocoder.name not in HEADS:
        raise ValueError(f"{made.folder}: only a float bundle with Vocos' backbone can be taken apart")
    out.mkdir(parents=True, exist_ok=True)
    graphs = {name: _weights(made.graph(name)) for name in ("modulation", "condition", "vocoder")}
    arch = manifest.arch
    state = {
        **_modulation(graphs["modulation"], arch),
        **_condition(graphs["condition"], arch),
        **step_weights(made.graph("step"), arch),
        ROTARY: rotary_frequencies(arch.dim_head),
    }
    rest = [graphs["condition"][f"{name}.weight"].T for name in ("from_mel", "from_text")]
    state[PROJECTION] = torch.cat([part.float() for part in (state[PROJECTION], *rest)], dim=1)
    save_official({name: value.float() for name, value in state.items()}, out / CHECKPOINT)
    shutil.copy(made.vocab, out / VOCAB)
    _write_family(arch, out / FAMILY, manifest.family)
    _write_vocos(graphs["vocoder"], manifest, out / VOCODER)
    return Family(manifest.family, arch, manifest.mel, tokenizer="char")


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
    }
    if manifest.vocoder.name == "vocos":
        state["head.istft.window"] = torch.hann_window(manifest.mel.n_fft)
    else:
        state |= {name: value for name, value in graph.items() if name.startswith("pitch.convs.")}
        state |= _matrix(graph, "pitch.out", "pitch.out")
        state["head.noise"] = graph["noise"]
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
        head=HEADS[manifest.vocoder.name],
    )
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(
        {name: value.float().contiguous() for name, value in state.items()}, folder / "pytorch_model.bin"
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(config.sections(), sort_keys=False), "utf-8")


def _write_family(arch: Arch, path: Path, name: str = NAME) -> None:
    options: dict[str, Any] = dataclasses.asdict(arch)
    if arch.text_dim == store.SPEC.mels:
        options["text_dim"] = None
    model = {
        "name": name,
        "tokenizer": "char",
        "backbone": "DiT",
        "arch": options,
        "mel_spec": {"mel_spec_type": "vocos"},
    }
    path.write_text(yaml.safe_dump({"model": model}, sort_keys=False), "utf-8")

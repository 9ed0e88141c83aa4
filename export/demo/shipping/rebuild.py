"""Rebuild weights in upstream's layout from a float bundle.

Each value of a graph is one weight times a constant. The exporter's own modules tell which and by what: they
are made of weights that are numbered instead of trained.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import onnx
import torch
import yaml
from onnx import numpy_helper
from torch import Tensor, nn

from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle
from appliance.fields import to_plain
from export.demo.shipping.ship import CHECKPOINT, FAMILY, VOCAB, VOCODER, write_family
from export.graphs import vocoders
from export.graphs.condition import Condition
from export.graphs.modulation import Modulation
from export.graphs.step import Step
from export.model.dit import DiT
from export.model.source import Source
from export.model.vocos import Head, Vocos, VocosConfig
from export.proof import parity
from export.sources.checkpoint import save_official

HEADS: dict[str, Head] = {"vocos": "ISTFTHead", "source-filter": "SourceFilterHead"}
Weights = dict[str, Tensor]


def rebuild(made: Bundle, out: Path) -> None:
    """Write the files of `ship.write_official`, with weights of the bundle's precision.

    Folded layer scales stay folded and become ones. Raises ValueError for other bundles.
    """
    manifest, arch, mel = made.manifest, made.manifest.arch, made.manifest.mel
    if arch is None or manifest.precision in parity.LOSSY or manifest.vocoder.name not in HEADS:
        raise ValueError(
            f"{made.folder}: only a float bundle of a DiT with Vocos' backbone can be taken apart"
        )
    # float64 has the scales of half precision, unrounded.
    compute = torch.float32 if manifest.precision == "fp32" else torch.float64
    graphs = {name: _stored(made.graph(name)) for name in ("modulation", "condition", "step", "vocoder")}
    config = _vocoder_config(graphs["vocoder"], manifest)
    is_vocos = config.head == "ISTFTHead"
    dit, vocoder = DiT(arch, manifest.vocab_size, mel.mels), Vocos(config) if is_vocos else Source(config)
    kind = vocoders.Vocos if is_vocos else vocoders.SourceFilter
    state, voice = dit.state_dict(), vocoder.state_dict()
    voice |= {name: torch.ones_like(voice[name]) for name in voice if name.endswith(".gamma")}
    free = [name for name, _ in dit.named_parameters()]
    for name, make in {
        "modulation": lambda w: Modulation(w, arch, compute),
        "condition": lambda w: Condition(w, arch, mel.mels, 1, compute),
        "step": lambda w: Step(w, arch, mel.mels, 1, compute),
    }.items():
        recover(make, state, free, graphs[name])
    free = [name for name, _ in vocoder.named_parameters() if not name.endswith(".gamma")]
    recover(lambda w: kind(w, mel, manifest.vocoder, compute), voice, free, graphs["vocoder"])
    (out / VOCODER).mkdir(parents=True, exist_ok=True)
    save_official(state, out / CHECKPOINT)
    shutil.copy(made.vocab, out / VOCAB)
    text = {name: to_plain(getattr(manifest.text, name)) for name in ("tokenizer", "duration", "durations")}
    write_family(arch, text, out / FAMILY, manifest.family)
    torch.save(voice, out / VOCODER / "pytorch_model.bin")
    (out / VOCODER / "config.yaml").write_text(yaml.safe_dump(config.sections(), sort_keys=False), "utf-8")


def recover(
    make: Callable[[Weights], nn.Module], weights: Weights, free: Collection[str], graph: Mapping[str, Tensor]
) -> None:
    """Set the values of the `free` ones of `weights` that `graph`, of the module of `make`, holds."""
    numbers = {name: number for number, name in enumerate(free)}

    def made(value: Callable[[str, Tensor], Tensor]) -> Weights:
        given = {name: value(name, w).double() if name in numbers else w for name, w in weights.items()}
        return make(given).state_dict()

    rest = made(lambda _, weight: torch.zeros_like(weight))
    scales = made(lambda _, weight: torch.ones_like(weight))
    owners = made(lambda name, weight: torch.full(weight.shape, numbers[name]))
    places = made(lambda _, weight: torch.arange(weight.numel()).view(weight.shape))
    for name, scale in scales.items():
        held = (scale != 0) & (rest[name] == 0)
        if not held.any():
            continue
        value, owner, place = (part[name][held] / scale[held].double() for part in (graph, owners, places))
        for number in owner.round().unique().tolist():
            own = owner.round() == number
            weight = weights[list(numbers)[int(number)]]
            weight.view(-1)[place[own].round().long()] = value[own].to(weight.dtype)


def _stored(path: Path) -> Weights:
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


def _vocoder_config(graph: Weights, manifest: contract.Manifest) -> VocosConfig:
    mel, vocoder = manifest.mel, manifest.vocoder
    dim, inner = len(graph["embed_bias"]), graph["blocks.0.up.weight"].shape[1]
    layers = sum(name.endswith(".up.weight") for name in graph)
    stft = mel.n_fft, mel.hop, vocoder.padding, mel.sample_rate_hz
    return VocosConfig(mel.mels, dim, inner, layers, *stft, HEADS[vocoder.name])

"""Rebuilds weights in upstream's layout from the demo's bundle.

Each value of a graph is one weight times a constant. To find both, this program builds the exporter's modules
from numbered weights in place of trained weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import onnx
import torch
import yaml
from onnx import numpy_helper
from safetensors.torch import save_file
from torch import Tensor, nn

from appliance.contract.bundle import Bundle
from export.families import family
from export.graphs.condition import Condition
from export.graphs.modulation import ModulationGraph
from export.graphs.step import Step
from export.graphs.vocoders import SourceFilter
from export.model.dit import DiT
from export.model.source import Source
from export.model.vocos import VocosConfig

BUNDLE = Path("appliance/demo/bundle")
FAMILY = Path(__file__).with_name("family.yaml")
VOCODER = VocosConfig(100, 256, 768, 6, n_fft=1024, hop=256, padding="center", head="SourceFilterHead")
COMPUTE = torch.float64
"""Element type with the scales of half precision, but without its rounding."""
Weights = dict[str, Tensor]


def rebuild(demo: Bundle, out: Path) -> None:
    """Write checkpoint, vocabulary, family and vocoder in upstream's layout, in the bundle's half precision.

    Folded layer scales stay folded and become ones. Raises ValueError if the bundle is not the demo's.
    """
    manifest, named = demo.manifest, family(str(FAMILY))
    arch, mel, record = named.arch, named.mel, manifest.vocoder
    if (manifest.arch, manifest.precision, record.name) != (arch, "fp16", "source-filter"):
        raise ValueError(f"{demo.folder}: is not a demo's: fp16, source-filter, of {FAMILY.name}")
    graphs = {name: _stored(demo.graph(name)) for name in ("modulation", "condition", "step", "vocoder")}
    dit, vocoder = DiT(arch, manifest.vocab_size, mel.mels), Source(VOCODER)
    state, voice = dit.state_dict(), vocoder.state_dict()
    voice |= {name: torch.ones_like(voice[name]) for name in voice if name.endswith(".gamma")}
    free = [name for name, _ in dit.named_parameters()]
    for name, make in {
        "modulation": lambda w: ModulationGraph(w, arch, COMPUTE),
        "condition": lambda w: Condition(w, arch, mel.mels, 1, COMPUTE),
        "step": lambda w: Step(w, arch, mel.mels, 1, COMPUTE),
    }.items():
        recover(make, state, free, graphs[name])
    free = [name for name, _ in vocoder.named_parameters() if not name.endswith(".gamma")]
    recover(lambda w: SourceFilter(w, mel, record, COMPUTE), voice, free, graphs["vocoder"])
    (out / "vocos").mkdir(parents=True, exist_ok=True)
    averaged = {f"ema_model.transformer.{name}": value for name, value in state.items()}
    save_file(averaged, out / "model.safetensors")
    shutil.copy(demo.vocab, out / "vocab.txt")
    shutil.copy(FAMILY, out)
    torch.save(voice, out / "vocos/pytorch_model.bin")
    (out / "vocos/config.yaml").write_text(yaml.safe_dump(VOCODER.sections(), sort_keys=False), "utf-8")


def recover(
    make: Callable[[Weights], nn.Module], weights: Weights, free: Collection[str], graph: Mapping[str, Tensor]
) -> None:
    """Copy the values of `graph`, whose module `make` builds, into the weights named by `free`."""
    numbers = {name: number for number, name in enumerate(free)}

    def state_of(value: Callable[[str, Tensor], Tensor]) -> Weights:
        replaced = {name: value(name, w).double() if name in numbers else w for name, w in weights.items()}
        return make(replaced).state_dict()

    rest = state_of(lambda _, weight: torch.zeros_like(weight))
    scales = state_of(lambda _, weight: torch.ones_like(weight))
    owners = state_of(lambda name, weight: torch.full(weight.shape, numbers[name]))
    places = state_of(lambda _, weight: torch.arange(weight.numel()).view(weight.shape))
    for name, scale in scales.items():
        mask = (scale != 0) & (rest[name] == 0)
        if not mask.any():
            continue
        value, owner, place = (part[name][mask] / scale[mask].double() for part in (graph, owners, places))
        for number in owner.round().unique().tolist():
            own = owner.round() == number
            weight = weights[list(numbers)[int(number)]]
            weight.view(-1)[place[own].round().long()] = value[own].to(weight.dtype)


def _stored(path: Path) -> Weights:
    graph = onnx.load(path).graph
    named = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer
    }
    # Constant folding stores small widened matrices as float32, under a tracer's name.
    widened = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast"}
    for node in graph.node:
        if node.op_type == "Gemm":
            _, matrix, bias = node.input
            named[bias.removesuffix("bias") + "weight"] = named[widened.get(matrix, matrix)]
    return named

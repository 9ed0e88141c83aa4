"""A bundle as wide as v1_Base, written in the workshop: `python -m tests.cuda.base FOLDER BLOCKS`.

All weights are the same number because nothing computes with them. The exporter traces few of the 22 equal
blocks: a step graph of two blocks takes four CPU seconds, whatever its width, if no kept graph replaces it.
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from appliance.contract import bundle as contract
from appliance.contract.bundle import FUSED, Bundle, Licence, Manifest, Vocoder
from appliance.contract.graphs import STEPS, signatures
from export.families import NAMED
from export.graphs import to_onnx, vocoders
from export.graphs.condition import Condition
from export.graphs.modulation import ModulationGraph
from export.graphs.step import Step, StepKeys, StepReply, Update
from export.model.dit import DiT
from export.model.vocos import Vocos
from tests.export.random_checkpoint import VOCOS_MEL_24KHZ
from tests.harness import traces

FAMILY = NAMED["F5TTS_v1_Base"]
VOCABULARY = [" ", *(f"t{n}" for n in range(1, 2545))]
MAX_FRAMES = 4096
WEIGHT = 0.01
"""A weight that is neither 0 nor 1: a runtime may drop additions of 0 and products with 1."""


def write(folder: Path, blocks: int) -> Bundle:
    """Write the graphs that `ort-cuda` runs, in float16; the default variant has fused step graphs too."""
    folder.mkdir(parents=True)
    arch, mel = dataclasses.replace(FAMILY.arch, depth=blocks), FAMILY.mel
    vocoder = Vocoder("vocos", "center")
    with torch.device("meta"):
        models = DiT(arch, len(VOCABULARY), mel.mels), Vocos(VOCOS_MEL_24KHZ)
    dit, vocos = map(_constant, models)
    sizes = (dit, arch, mel.mels, MAX_FRAMES, torch.float16)
    others: dict[str, Callable[[], nn.Module]] = {
        "modulation": lambda: ModulationGraph(dit, arch, torch.float16),
        "condition": lambda: Condition(*sizes),
        "update": Update,
        "vocoder": lambda: vocoders.VocosGraph(vocos, mel, vocoder, torch.float16),
    }
    specs = signatures(contract.dimensions(arch, mel.mels, "fp16"))
    for name, make in others.items():
        traces.of(make(), specs[name], folder / f"{name}.onnx")
    fused = {name: f"{name}_fused.onnx" for name in STEPS}
    for kind, (name, file) in zip((Step, StepKeys, StepReply), fused.items(), strict=True):
        traces.of(kind(*sizes, "cuda"), specs[name], folder / file)
        if name != "step":
            to_onnx.share_weights(folder / file, folder / fused["step"])
    (folder / contract.VOCAB).write_text("".join(f"{token}\n" for token in VOCABULARY), "utf-8")
    manifest = Manifest(
        format=contract.FORMAT,
        family=FAMILY.name,
        arch=arch,
        mel=mel,
        vocoder=vocoder,
        precision="fp16",
        variants={"default": {name: f"{name}.onnx" for name in others} | fused, FUSED: fused},
        backends=(FUSED,),
        batch_invariant=True,
        max_frames=MAX_FRAMES,
        vocab_size=len(VOCABULARY),
        licence=Licence("none", "one number"),
        files={},
    )
    return contract.write(folder, manifest)


def _constant(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.full((), WEIGHT).expand(tensor.shape) for name, tensor in model.state_dict().items()}


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))

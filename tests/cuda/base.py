"""A bundle as wide as v1_Base, written in the workshop: `python -m tests.cuda.base FOLDER [BLOCKS]`.

Its weights are one number, since nothing computes with them, and few of the 22 equal blocks are traced: that
costs half a minute, all of them two.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from appliance.contract import bundle as contract
from appliance.contract.bundle import FUSED, Bundle, Licence, Manifest, Vocoder
from appliance.contract.graphs import STEPS, signatures
from export import modules, to_onnx
from export.families import NAMED
from export.model.dit import DiT
from export.model.vocos import Vocos
from tests.export.random_checkpoint import VOCOS_MEL_24KHZ

FAMILY = NAMED["F5TTS_v1_Base"]
VOCABULARY = [" ", *(f"t{n}" for n in range(1, 2545))]
MAX_FRAMES = 4096
WEIGHT = 0.01
"""Neither 0 nor 1, by which a runtime would leave out additions and products."""


def write(folder: Path, blocks: int) -> Bundle:
    """Write the graphs that `ort-cuda` runs, in float16."""
    folder.mkdir(parents=True)
    arch, mel = dataclasses.replace(FAMILY.arch, depth=blocks), FAMILY.mel
    vocoder = Vocoder("vocos", "center")
    with torch.device("meta"):
        models = DiT(arch, len(VOCABULARY), mel.mels), Vocos(VOCOS_MEL_24KHZ)
    dit, vocos = map(_constant, models)
    sizes = (dit, arch, mel.mels, MAX_FRAMES, torch.float16)
    others: dict[str, Callable[[], nn.Module]] = {
        "modulation": lambda: modules.Modulation(dit, arch, torch.float16),
        "condition": lambda: modules.Condition(*sizes),
        "update": modules.Update,
        "vocoder": lambda: modules.Vocos(vocos, mel, vocoder, torch.float16),
    }
    specs = signatures(contract.dimensions(arch, mel.mels, "fp16"))
    for name, make in others.items():
        to_onnx.export(make(), specs[name], folder / f"{name}.onnx")
    kinds = dict(zip(STEPS, (modules.Step, modules.StepKeys, modules.StepReply), strict=True))
    for form, suffix in (("standard", ""), ("cuda", "_fused")):
        for name, kind in kinds.items():
            path = folder / f"{name}{suffix}.onnx"
            to_onnx.export(kind(*sizes, form), specs[name], path)
            if path.name != "step.onnx":
                to_onnx.share_weights(path, folder / "step.onnx")
    (folder / contract.VOCAB).write_text("".join(f"{token}\n" for token in VOCABULARY), "utf-8")
    manifest = Manifest(
        format=contract.FORMAT,
        family=FAMILY.name,
        arch=arch,
        mel=mel,
        vocoder=vocoder,
        precision="fp16",
        variants={
            "default": {name: f"{name}.onnx" for name in (*others, *STEPS)},
            FUSED: {name: f"{name}_fused.onnx" for name in STEPS},
        },
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
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2)

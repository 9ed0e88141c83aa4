"""Losses of `export.evidence` on models whose flags are known, because they are trained here for minutes.

    python -m tests.benchmarks.evidence [--minutes 6] [--seeds 2] [--flags v0]

The demo voice speaks the corpus; small models of each seed learn to fill its frames in, and are weighed as a
checkpoint is at export. Recorded in export/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from appliance.contract.bundle import Arch
from appliance.contract.mel import MelSpec, log_mel
from appliance.engine.cases import FEMALE, MALE
from export import assemble, evidence
from export.families import Family
from export.model.dit import DiT
from export.model.redraw import redraw
from tests.daemons import ROOT
from tests.export.random_checkpoint import write_random_vocos
from tests.tiny.generate import VOCOS

SPEC = MelSpec("vocos")
V1 = Arch(dim=128, depth=4, heads=2, ff_mult=2, text_dim=64, conv_layers=2)
FLAGS = {"v0": {"text_mask_padding": False, "pe_attn_head": 1}, "v1": {}}
WORDS = (
    "The ferry leaves the harbour at noon. Bring a warm coat. Nobody checks the tickets on the way back. "
    "Thanks for the follow and welcome to the stream. That was a close game. Let us try it once more. "
    "Water the plants before you go. She painted the door green. We will be right back after a short break. "
    "He forgot his keys again. The cat sleeps on the keyboard. Good luck to all of you. I like your new hat."
)
VOCABULARY = " abcdefghijklmnopqrstuvwxyz.,"


def corpus(speak, seeds: int = 3) -> list[tuple[Tensor, list[int]]]:
    """(log-mel (N, M), token ids) of each sentence by each voice and seed."""
    sentences = [f"{one.strip().lower()}." for one in WORDS.split(".") if one.strip()]
    clips = []
    for voice, seed, text in itertools.product((FEMALE, MALE), range(seeds), sentences):
        mel = torch.from_numpy(log_mel(speak(text, voice, seed), SPEC))
        clips.append((mel, [VOCABULARY.index(c) for c in text]))
    return clips


def train(arch: Arch, clips: Sequence[tuple[Tensor, list[int]]], seconds: float, seed: int) -> DiT:
    """Train to fill in frames, as upstream's CFM does: text and reference are dropped at times."""
    torch.manual_seed(seed)
    model = DiT(arch, len(VOCABULARY), SPEC.mels)
    redraw(model, seed)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99))
    rng, end, steps = np.random.default_rng(seed), time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * min(1.0, (steps + 1) / 100) * max(left / seconds, 0.05)
        total = torch.zeros(())
        for clip in rng.choice(len(clips), 4, replace=False):
            mel, ids = clips[clip]
            hidden = int(len(mel) * rng.uniform(0.3, 1.0))
            begin = int(rng.integers(0, len(mel) - hidden + 1))
            cond = mel.clone()
            cond[begin : begin + hidden] = 0.0
            drop = rng.random()
            text = model.text_embed(torch.tensor(ids), len(mel))
            text = text[1:] if drop < 0.2 else text[:1]
            cond = torch.zeros_like(cond) if drop < 0.1 else cond
            noise, t = torch.randn(mel.shape), torch.tensor(float(rng.random()))
            velocity = model((1 - t) * noise + t * mel, cond, text, t)[0]
            total = total + (velocity - (mel - noise))[begin : begin + hidden].square().mean()
        optimiser.zero_grad()
        (total / 4).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        steps += 1
    print(f"seed {seed}: {steps} steps of 4 clips, last loss {float(total) / 4:.2f}")
    return model.eval()


def weigh(model: DiT, given: Arch, folder: Path) -> evidence.Evidence:
    """Evidence of a model, exported as `given`."""
    state = {
        f"ema_model.transformer.{name}": value.contiguous() for name, value in model.state_dict().items()
    }
    save_file(state, folder / "model.safetensors")
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY), "utf-8")
    vocoder = write_random_vocos(folder / "vocos", VOCOS, 1)
    family = Family("small", given, tokenizer="char")
    sources = assemble.Sources(
        family, folder / "model.safetensors", folder / "vocab.txt", "vocos", vocoder, languages=("en",)
    )
    spoken = [dataclasses.replace(one, words=one.words.lower()) for one in evidence.DEMO]
    return evidence.weigh(assemble.load(sources), spoken, accept="measured")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--flags", choices=FLAGS, default="v0")
    options = parser.parse_args()
    from appliance.request import Segmentation
    from tests.quality.mouth import Mouth, Reference

    voices = ROOT / "appliance/demo/voices"
    references = {
        name: Reference(voices / f"{name}.wav", (voices / f"{name}.txt").read_text("utf-8").strip())
        for name in (FEMALE, MALE)
    }
    with tempfile.TemporaryDirectory() as scratch:
        mouth = Mouth(ROOT / "appliance/demo/bundle", references, Path(scratch) / "voices")

        def speak(text: str, voice: str, seed: int) -> np.ndarray:
            return mouth.speak(text, voice, seed=seed, segmentation=Segmentation.UPSTREAM)

        clips = corpus(speak)
        print(f"{len(clips)} clips, {sum(len(mel) for mel, _ in clips) / SPEC.frames_per_second:.0f} s")
        right = dataclasses.replace(V1, **FLAGS[options.flags])
        wrong = dataclasses.replace(V1, **FLAGS["v1" if options.flags == "v0" else "v0"])
        for seed in range(options.seeds):
            model = train(right, clips, 60 * options.minutes, seed)
            for name, given in (("right", right), ("wrong", wrong)):
                folder = Path(scratch) / f"{seed}-{name}"
                folder.mkdir()
                found = weigh(model, given, folder)
                print(seed, name, found.verdict.value, found.record()["losses"], *found.advice, sep="\n    ")


if __name__ == "__main__":
    main()

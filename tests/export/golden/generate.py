"""Regenerate `zipvoice.npz`: the outputs of upstream's torch code for small random models.

Run from the repository root with a checkout of k2-fsa/ZipVoice at 2f7326f: `PYTHONPATH=CHECKOUT python -m
tests.export.golden.generate`.
"""

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.export.zipvoice import ARCH, FRAMES, KEPT, STEPS, TOKENS, drawn, inputs

OUT = Path(__file__).with_name("zipvoice.npz")


def upstream(*, distilled: bool) -> Any:
    """The published model, with the weights of `drawn`."""
    board: Any = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = None  # its module imports the logger for training
    sys.modules.setdefault(board.__name__, board)
    from zipvoice.models.zipvoice import ZipVoice
    from zipvoice.models.zipvoice_distill import ZipVoiceDistill

    sizes = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(ARCH).items()}
    model = (ZipVoiceDistill if distilled else ZipVoice)(**sizes, vocab_size=len(TOKENS) + 1, pad_id=0)
    model.load_state_dict(drawn(distilled=distilled).state_dict(), strict=True)
    return model.eval()


@torch.inference_mode()
def answers() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for kind in ("base", "distill"):
        distilled = kind == "distill"
        model = upstream(distilled=distilled)
        w = {"guidance_scale": torch.tensor(2.2)} if distilled else {}
        for frames in FRAMES:
            given = inputs(frames)
            embed, lengths = model.forward_text_embed([given.ids.tolist()])
            text, mask = model.forward_text_condition(embed, lengths, torch.tensor([frames]))
            x, speech = given.noise[None], given.speech[None]
            v = model.forward_fm_decoder(torch.tensor(0.3), x, text, speech, mask, **w)
            made[f"{kind} text {frames}"] = text[0].numpy()[::-KEPT]
            made[f"{kind} velocity {frames}"] = v[0].numpy()[::-KEPT]
        given = inputs(FRAMES[1])
        embed, lengths = model.forward_text_embed([given.ids.tolist()])
        text, mask = model.forward_text_condition(embed, lengths, torch.tensor([FRAMES[1]]))
        for strength in (3.0,) if distilled else (0.0, 1.0):
            made[f"{kind} sample {strength:g}"] = model.solver.sample(
                x=given.noise[None],
                text_condition=text,
                speech_condition=given.speech[None],
                padding_mask=mask,
                num_step=STEPS,
                guidance_scale=strength,
                t_shift=0.7,
            )[0].numpy()
    return made


if __name__ == "__main__":
    np.savez_compressed(OUT, **answers())

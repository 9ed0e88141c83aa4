"""Makes the golden files of this folder with upstream's code: `python -m tests.oracle.golden.generate`.

The device's tests read the files and so prove the same without torch. A test that has torch makes them again
and compares.
"""

import contextlib
import io
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from tests.oracle import upstream

FOLDER = Path(__file__).parent
LINES = FOLDER / "lines.txt"
GOLDEN_LINES = FOLDER / "lines.json"
GOLDEN_MELS = FOLDER / "mel.npz"

RATE_HZ = 24_000
CHUNK_BYTES = (1, 40, 135, 300)
REFERENCES = (
    {"transcript": "Some call me nature, others call me mother nature. ", "samples": 131_071, "speed": 1.0},
    {"transcript": "对，这就是我，万人敬仰的太乙真人。", "samples": 103_217, "speed": 0.8},
    {"transcript": "Good morning 大家 ok. ", "samples": 28_000, "speed": 1.3},
)
"""Voices of the frame counts; their samples are `reference_wave`."""


def lines() -> list[str]:
    """The mixed Chinese and English lines, white space and all."""
    return LINES.read_text("utf-8").removesuffix("\n").split("\n")


def reference_wave(samples: int) -> NDArray[np.int16]:
    """Noise of RMS 0.15, which is loud enough that upstream does not raise it."""
    draw = np.random.default_rng(samples).standard_normal(samples)
    return np.clip(np.rint(draw * 0.15 * 32768), -32768, 32767).astype(np.int16)


def vocabulary(tokens: list[list[str]]) -> list[str]:
    """The space, and the tokens of the lines except every ninth, which stays unknown."""
    used = sorted({token for line in tokens for token in line} - {" "})
    return [" ", *(token for place, token in enumerate(used) if place % 9)]


def make_lines() -> dict[str, Any]:
    """Upstream's results for every line: tokens, chunks, and with each reference ids and frame counts."""
    texts = lines()
    tokens = upstream.convert_char_to_pinyin(texts)
    known = vocabulary(tokens)
    return {
        "vocabulary": known,
        "references": REFERENCES,
        "lines": [
            {
                "line": text,
                "tokens": line_tokens,
                "chunks": {str(size): upstream.chunk_text(text, size) for size in CHUNK_BYTES},
            }
            for text, line_tokens in zip(texts, tokens, strict=True)
        ],
        "plans": [[_plan(text, reference, known) for text in texts] for reference in REFERENCES],
    }


def _plan(text: str, reference: dict[str, Any], known: list[str]) -> list[dict[str, Any]]:
    """Run upstream's `infer_process` on a transformer that only records its inputs."""
    import torch

    seen: list[dict[str, Any]] = []

    class Recorder(torch.nn.Module):
        dim = 1

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Any, cond: Any, text: Any, **_: Any) -> Any:
            told = int((cond[0].abs().sum(-1) > 0).sum())
            seen.append({"frames": x.shape[1], "condition_frames": told, "ids": text[0].tolist()})
            return torch.zeros_like(x)

        def clear_cache(self) -> None:
            pass

    class Silence:
        def decode(self, mel: Any) -> Any:
            return torch.zeros(1, (mel.shape[-1] - 1) * 256)

    utils = upstream.infer_utils()
    index = {token: line for line, token in enumerate(known)}
    model = upstream.cfm_class()(transformer=Recorder(), vocab_char_map=index)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(utils, "ThreadPoolExecutor", partial(ThreadPoolExecutor, max_workers=1))
        path = Path(folder) / "reference.wav"
        soundfile.write(path, reference_wave(reference["samples"]), RATE_HZ, subtype="PCM_16")
        utils.infer_process(
            str(path),
            reference["transcript"],
            text,
            model,
            Silence(),
            progress=None,
            show_info=lambda _: None,
            nfe_step=1,
            cfg_strength=0.0,
            speed=reference["speed"],
            device="cpu",
        )
    return seen


def waves() -> dict[str, NDArray[np.int16]]:
    """Signals for the log-mels: noise with pauses, a voiced sweep, a quiet click; of odd lengths."""
    draw = np.random.default_rng(7)
    seconds = np.arange(13_001) / RATE_HZ
    voiced = sum(np.sin(2 * np.pi * k * (110 * seconds + 40 * seconds**2)) / k for k in range(1, 40))
    noise = draw.standard_normal(9_999) * np.repeat([0.2, 0.0, 0.02], 3_333)
    click = draw.standard_normal(2_048) * 1e-3
    click[1_000] = 0.9
    signals = {
        "voiced": 0.1 * voiced + 1e-3 * draw.standard_normal(len(seconds)),
        "noise": noise,
        "click": click,
    }
    return {name: np.rint(np.clip(wave, -1, 1) * 32767).astype(np.int16) for name, wave in signals.items()}


def make_mels() -> dict[str, NDArray[Any]]:
    """Each wave, and upstream's (frames, mels) of it for both vocoders."""
    import torch

    made: dict[str, NDArray[Any]] = {}
    for name, wave in waves().items():
        tensor = torch.from_numpy(wave.astype(np.float32) / 32768)[None]
        made[f"{name}.wave"] = wave
        made[f"{name}.vocos"] = upstream.vocos_mel(tensor)[0].T.numpy()
        made[f"{name}.bigvgan"] = upstream.bigvgan_mel(tensor)[0].T.numpy()
    return made


def dump(golden: dict[str, Any]) -> str:
    """JSON with a line of text on a line of the file."""
    rows = {
        key: "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in value) + "\n]"
        for key, value in golden.items()
    }
    return "{\n" + ",\n".join(f'"{key}": {rows[key]}' for key in rows) + "\n}\n"


if __name__ == "__main__":
    GOLDEN_LINES.write_text(dump(make_lines()), "utf-8")
    np.savez_compressed(GOLDEN_MELS, **make_mels())

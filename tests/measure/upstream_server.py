"""f5-tts 1.1.22 as a server, its modules unmodified. Runs in `.venvs/upstream`.

    python -m tests.measure.upstream_server socket NFE ARGUMENTS…   f5_tts/socket_server.py
    python -m tests.measure.upstream_server file NFE MODEL VOICE    infer_process, over stdin

Two things differ from upstream's command line, for both: torchaudio, whose PyPI builds load CUDA's
libraries, is the stand-in of tests/oracle/upstream.py; and the steps of `infer_batch_process`, for which
socket_server has no argument, are NFE instead of 32.
"""

import contextlib
import functools
import importlib
import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from appliance.contract.schedule import noise
from tests.oracle import upstream


def serve_files(utils: Any, nfe: int, model_folder: Path, voice: Path) -> None:
    """Answer requests {text, seed, out} with {wall_s, audio_s}; the work is the calls of
    f5_tts/infer/infer_cli.py.

    With a seed the noise is the appliance's, so that a test can compare both; `out` gets the samples.
    """
    import torch
    from f5_tts.model import DiT
    from omegaconf import OmegaConf

    arch = OmegaConf.load(model_folder / "family.yaml").model.arch
    checkpoint, vocabulary = (str(model_folder / name) for name in ("model.safetensors", "vocab.txt"))
    model = utils.load_model(DiT, arch, checkpoint, vocab_file=vocabulary, device="cpu")
    vocoder = utils.load_vocoder(is_local=True, local_path=str(model_folder / "vocos"), device="cpu")
    transcript, drawn = voice.with_suffix(".txt").read_text("utf-8").strip(), torch.randn
    sys.__stdout__.write("ready\n")
    sys.__stdout__.flush()
    for line in sys.stdin:
        request = json.loads(line)
        if request["seed"] is not None:
            torch.randn = functools.partial(_same_noise, request["seed"])
        begun = time.perf_counter()
        reference, spoken = utils.preprocess_ref_audio_text(str(voice), transcript)
        samples, rate, _ = utils.infer_process(
            reference, spoken, request["text"], model, vocoder, nfe_step=nfe, device="cpu"
        )
        reply = {"wall_s": time.perf_counter() - begun, "audio_s": len(samples) / rate}
        torch.randn = drawn
        if request["out"]:
            np.save(request["out"], samples)
        sys.__stdout__.write(json.dumps(reply) + "\n")
        sys.__stdout__.flush()


def _same_noise(seed: int, frames: Any, mels: int, **_: Any) -> Any:
    """(frames, mels) of the appliance's noise for a text of one segment."""
    import torch

    return torch.from_numpy(noise(seed, 0, int(frames), mels))


def main() -> None:
    kind, nfe, *arguments = sys.argv[1:]
    sys.modules.update(upstream.torchaudio_stand_in())
    utils = importlib.import_module("f5_tts.infer.utils_infer")
    if kind == "file":
        with contextlib.redirect_stdout(sys.stderr):
            serve_files(utils, int(nfe), *map(Path, arguments))
        return
    utils.infer_batch_process = functools.partial(utils.infer_batch_process, nfe_step=int(nfe))  # type: ignore[attr-defined]
    sys.argv = ["socket_server.py", *arguments]
    runpy.run_module("f5_tts.socket_server", run_name="__main__")


if __name__ == "__main__":
    main()

"""vox-tts as a server over stdin, its package unmodified. Runs in `.venvs/vox`.

    python -m tests.measure.vox_server NFE THREADS MODEL VOICE

It converts upstream's files in the folder MODEL, and answers requests {text, seed} with
{wall_s, first_audio_s, audio_s}. The conversion runs in another process, so that the start and the memory are
the server's. vox-tts has no average upsampling of text, so its sound differs: only its cost
is comparable.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def main() -> None:
    import vox

    nfe, threads, model, voice = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    out = model / "f5.tmod"
    command = [sys.executable, *f"-m vox.build_f5 --tokenizer char --dtype f32 --out {out}".split()]
    for option, name in (
        ("--ckpt", "model.safetensors"),
        ("--vocab", "vocab.txt"),
        ("--vocos", "vocos/vocos.safetensors"),
    ):
        command += [option, str(model / name)]
    subprocess.run(command, stdout=sys.stderr, check=True)
    engine = vox.Engine(str(out), device="cpu", threads=threads)
    reference = engine.clone_voice(str(voice), voice.with_suffix(".txt").read_text("utf-8").strip())
    print("ready", flush=True)
    for line in sys.stdin:
        request, begun, first_s, samples = json.loads(line), time.perf_counter(), 0.0, 0
        for piece in engine.stream(request["text"], reference, seed=request["seed"] or 0, nfe_step=nfe):
            first_s = first_s or time.perf_counter() - begun
            samples += len(np.asarray(piece))
        reply = {
            "wall_s": time.perf_counter() - begun,
            "first_audio_s": first_s,
            "audio_s": samples / engine.sample_rate,
        }
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()

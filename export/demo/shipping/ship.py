"""Write the committed voice from trained weights: upstream's layout, bundle, reference voices."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import soundfile
import yaml
from torch import Tensor

from appliance.contract.bundle import Arch
from appliance.contract.placement import Table
from appliance.text.phones.alphabet import TOKENS
from export import cli
from export.demo.corpus import store
from export.demo.corpus.teachers import HEART, MICHAEL, Teachers
from export.demo.training import train
from export.sources.checkpoint import save_official

NAME = "demo"
MAX_FRAMES = 2304
"""24.6 s with the reference; the planner makes segments of at most 22 s."""
LARGEST_BYTES = 36 << 20
"""Size limit of bundle and references together."""
REFERENCES = {
    "heart": (HEART, "We are live every Monday at seven, so say hello."),
    "michael": (MICHAEL, "We are live every Monday at seven, so say hello."),
}
"""Voice → teacher's name and transcript, of our own, which no training sentence shares six words with."""
SAMPLING = "short-once"
"""Sampling of a student; what it costs in words is in the demo's card."""
REFERENCE_RATE = 0.9
"""Speaking rate of references. Replies copy it, and at the teacher's own rate they lose short words."""
CHECKPOINT, VOCAB, FAMILY, VOCODER = train.SHIPPED, "vocab.txt", "family.yaml", "vocos"


def write_official(
    average: Mapping[str, Tensor], arch: Arch, durations: Table, vocoder: Path, out: Path
) -> None:
    """Write checkpoint, vocabulary, family and vocoder in upstream's layout."""
    out.mkdir(parents=True, exist_ok=True)
    save_official({name: value.float().cpu() for name, value in average.items()}, out / CHECKPOINT)
    (out / VOCAB).write_text("".join(f"{token}\n" for token in TOKENS), "utf-8")
    table = {token: list(some) for token, some in durations.items()}
    write_family(arch, {"tokenizer": "phones", "duration": "tokens", "durations": table}, out / FAMILY)
    shutil.copytree(vocoder, out / VOCODER, dirs_exist_ok=True)


def make_bundle(official: Path, licence: str, passes: int, out: Path, precision: str = cli.AUTO) -> None:
    """Export the folder of `write_official`, as `python -m export bundle` does.

    With `passes`, a student's weights: one row a step, and that number of steps alone. Raises ValueError.
    """
    options = {
        "--family": official / FAMILY,
        "--checkpoint": official / CHECKPOINT,
        "--vocab": official / VOCAB,
        "--vocoder-path": official / VOCODER,
        "--precision": precision,
        "--language": "en",
        "--licence": licence,
        "--vocoder-licence": licence,
        "--max-frames": MAX_FRAMES,
        "--out": out,
    }
    if passes:
        options |= {"--guidance": "none", "--steps": passes, "--grid": "sway", "--sampling": SAMPLING}
    if cli.main(["bundle", *(str(word) for option in options.items() for word in option)]) != 0:
        raise ValueError(f"{official}: no bundle could be made of it, see above")


def ship(weights: Path, vocoder: Path, teachers: Path, licence: str, out: Path) -> int:
    """Write the FP16 bundle and the reference voices under `out`; return their size in bytes.

    `weights` are of `train.read_average`. Raises ValueError if `out` has a bundle or they exceed
    LARGEST_BYTES.
    """
    if (out / "bundle").exists():
        raise ValueError(f"{out / 'bundle'} exists; remove it to ship another")
    recipe, average = train.read_average(weights)
    with tempfile.TemporaryDirectory() as scratch:
        official, voice = Path(scratch) / "official", Path(scratch) / "voice"
        write_voices(Teachers(teachers), voice / "voices")
        write_official(average, recipe.arch, train.read_durations(weights), vocoder, official)
        make_bundle(official, licence, recipe.passes if recipe.stage == "student" else 0, voice / "bundle")
        size = sum(path.stat().st_size for path in voice.rglob("*") if path.is_file())
        if size > LARGEST_BYTES:
            raise ValueError(f"{size} bytes, at most {LARGEST_BYTES} may be committed: train a smaller model")
        shutil.copytree(voice, out, dirs_exist_ok=True)
    return size


def write_voices(teachers: Teachers, folder: Path) -> None:
    """Write `VOICE.wav`, levelled, and `VOICE.txt` for each of REFERENCES."""
    folder.mkdir(parents=True, exist_ok=True)
    for voice, (name, text) in REFERENCES.items():
        spoken = teachers.speak(name, text, REFERENCE_RATE)
        if spoken is None:
            raise ValueError(f"{name} does not speak {text!r}")
        wave = store.level(store.trimmed(spoken).samples / np.float32(store.FULL_SCALE))
        path = folder / f"{voice}.wav"
        soundfile.write(path, wave.clip(-1.0, 1.0), store.SPEC.sample_rate_hz, subtype="PCM_16")
        path.with_suffix(".txt").write_text(text + "\n", "utf-8")


def write_family(arch: Arch, text: Mapping[str, object], path: Path, name: str = NAME) -> None:
    """Write a family file; `text` has its tokenizer and how it measures texts."""
    model = {"name": name, **text, "backbone": "DiT", "arch": dataclasses.asdict(arch)}
    model["mel_spec"] = {"mel_spec_type": store.SPEC.kind}
    path.write_text(yaml.safe_dump({"model": model}, sort_keys=False, allow_unicode=True), "utf-8")

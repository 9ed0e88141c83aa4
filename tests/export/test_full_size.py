"""v1_Base at its width, from files in the official format to numbers equal to upstream's; what it costs.

Two of its 22 blocks, which are alike; F5_DEPTH=22 for all of them (ten minutes of one core).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import yaml

from appliance.contract import bundle as contract
from appliance.contract.schedule import time_grid
from appliance.engine.condition import padded_mel
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.engine.replay import replay
from appliance.request import FloatArray
from export.families import NAMED
from export.model.dit import DiT
from export.sources.checkpoint import build_dit, load_dit
from tests.engine.lanes import Padded, relative
from tests.export.random_checkpoint import write_random, write_random_vocos
from tests.harness import small

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.thorough]

VOCABULARY = [" ", *(f"t{n}" for n in range(1, 2545))]
ARCH = dataclasses.replace(NAMED["F5TTS_v1_Base"].arch, depth=int(os.environ.get("F5_DEPTH", "2")))
EMPTY_BYTES, BYTES_PER_WEIGHT = 0.4e9, 8
"""Memory of an export beside its libraries', and for each weight of four bytes (of all blocks: five)."""
LIBRARIES = """
import resource, onnx, onnxruntime, torch
print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
"""torch with CUDA has twice the memory of torch without."""
PATIENCE_S = 1_200
UNMEASURED = """
import sys
from export import assemble, cli
from export.proof import parity
assemble.expectations = lambda *given: None
parity.measure = lambda *given: parity.Report("fp32")
sys.exit(cli.main(sys.argv[1:]))
"""
"""The command without its gate, which takes minutes at this size; upstream is asked below."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The checkpoint, its family, and a Vocos of the official size."""
    folder = tmp_path_factory.mktemp("full")
    write_random(folder, ARCH, VOCABULARY)
    write_random_vocos(folder / "vocos")
    model = {"name": "v1_Base", "arch": dataclasses.asdict(ARCH), "mel_spec": {"mel_spec_type": "vocos"}}
    (folder / "family.yaml").write_text(yaml.safe_dump({"model": model}))
    yield folder
    shutil.rmtree(folder)


def peak_bytes(process: subprocess.Popen[bytes]) -> int:
    """The largest resident memory of a process and its children, until it ends."""
    root, peak, end = psutil.Process(process.pid), 0, time.monotonic() + PATIENCE_S
    while process.poll() is None:
        assert time.monotonic() < end
        try:
            tree = [root, *root.children(recursive=True)]
            peak = max(peak, sum(member.memory_info().rss for member in tree))
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.05)
    return peak


def test_v1_base_from_checkpoint_to_samples_in_little_memory(
    weights: Path, tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, log = tmp_path / "bundle", tmp_path / "log"
    options = {
        "--family": weights / "family.yaml",
        "--checkpoint": weights / "model.safetensors",
        "--vocab": weights / "vocab.txt",
        "--vocoder-path": weights / "vocos",
        "--out": out,
    }
    command = ["bundle", *(str(word) for pair in options.items() for word in pair)]
    begun = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", UNMEASURED, *command],
            cwd=root,
            stdout=stream,
            stderr=stream,
            env=os.environ,
        )
        peak = peak_bytes(process)
    assert process.returncode == 0, log.read_text("utf-8")
    made = contract.read(out)
    size = sum(file.size_bytes for file in made.manifest.files.values())
    with capsys.disabled():
        print(f"\nbundle: {time.monotonic() - begun:.0f} s, peak {peak / 1e9:.2f} GB, {size / 1e6:.0f} MB")
    libraries = int(
        subprocess.run([sys.executable, "-c", LIBRARIES], stdout=subprocess.PIPE, check=True).stdout
    )
    assert (
        peak
        <= libraries + EMPTY_BYTES + BYTES_PER_WEIGHT * (weights / "model.safetensors").stat().st_size / 4
    )
    check_against_upstream(made, weights, capsys)
    shutil.rmtree(out)


def check_against_upstream(made: contract.Bundle, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One step at each length in every form, and one sample, on the device's engine."""
    files = small.Files(
        weights, weights / "model.safetensors", weights / "vocab.txt", "vocos", weights / "vocos"
    )
    flow = small.upstream_flow(files, made.manifest.arch)
    given = {frames: small.case(frames) for frames in (113, 271)}
    wanted = {frames: small.upstream_velocity(flow, case, 0.3) for frames, case in given.items()}
    sample = small.case(128)
    finished = small.upstream_sample(flow, sample, 5)
    del flow
    errors, plain = {}, build_dit(load_dit(files.checkpoint, ARCH, len(VOCABULARY)), ARCH, len(VOCABULARY))
    for frames, case in given.items():
        found = plain_velocity(plain, case, 0.3)
        errors[f"step, plain, {frames} frames"] = relative(found, wanted[frames])
    for form, engine in forms(made):
        for frames, case in given.items():
            mel, _ = replay(engine, case.segment(np.array([0.3, 1.3])))
            start = len(case.cond)
            errors[f"step, {form}, {frames} frames"] = relative(
                (mel - case.noise)[start:], wanted[frames][start:]
            )
        mel, wave = replay(engine, sample.segment(time_grid(5)))
        start = len(sample.cond)
        errors[f"sample, {form}, NFE 5"] = relative(mel[start:], finished[start:])
        errors[f"vocoder, {form}"] = relative(wave, small.upstream_wave(files, mel))
        engine.shutdown()
    with capsys.disabled():
        for what, error in errors.items():
            print(f"\n{what:26s} {error:.1e}", end="")
    bounds = {"step": 5e-6, "sample": 5e-5, "vocoder": 1e-5}
    for what, error in errors.items():
        assert error <= bounds[what.split(",")[0]], what


@torch.inference_mode()
def plain_velocity(model: DiT, given: small.Case, time: float) -> FloatArray:
    """(N, M) guided velocity of the case's noise, by the model that the graphs are made of."""
    cond = torch.from_numpy(padded_mel(given.cond, given.frames))
    text = model.text_embed(torch.from_numpy(given.ids).long(), given.frames)
    guided, plain = model(torch.from_numpy(given.noise), cond, text, torch.tensor(time))
    return (guided + (guided - plain) * given.guidance).numpy()  # type: ignore[no-any-return]


def forms(made: contract.Bundle) -> Iterator[tuple[str, Synthesizer]]:
    """One engine after the other: each holds the weights."""
    yield "masked", Synthesizer(made, OrtBackend(), lanes=1, variant="default")
    yield "fused", Synthesizer(made, OrtBackend(), lanes=1)
    yield "padded", Synthesizer(made, Padded(0), lanes=1)

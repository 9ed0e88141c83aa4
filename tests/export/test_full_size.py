"""v1_Base at its width, from files in the official format to numbers equal to upstream's; its cost.

The test builds two of the 22 blocks, which are alike; F5_DEPTH=22 builds all (ten minutes of one core).
"""

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from appliance.contract import bundle as contract
from appliance.contract.schedule import time_grid
from appliance.engine.replay import replay
from export.families import NAMED
from tests.conftest import ROOT
from tests.engine.lanes import relative
from tests.export.random_checkpoint import write_random, write_random_vocos
from tests.harness import small

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.thorough]

VOCABULARY = [" ", *(f"t{n}" for n in range(1, 2545))]
ARCH = dataclasses.replace(NAMED["F5TTS_v1_Base"].arch, depth=int(os.environ.get("F5_DEPTH", "2")))
EMPTY_BYTES, BYTES_PER_WEIGHT = 0.55e9, 8
"""Memory of an export without its libraries, and memory for each weight of four bytes (five for all
blocks)."""
LIBRARIES = "import onnx, onnxruntime, torch"
"""Imports of an export. torch with CUDA takes twice the memory of torch without."""
UNMEASURED = """
import sys
from export import assemble, cli
from export.parity import comparison
assemble.expectations = lambda *given: None
comparison.measure = lambda *given: comparison.Report("fp32")
assert cli.main(sys.argv[1:]) == 0
"""
"""The command without its gate, which takes minutes at this size; the test compares with upstream below."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[small.Files]:
    """The checkpoint, its family, and a Vocos of the official size."""
    folder = tmp_path_factory.mktemp("full")
    write_random(folder, ARCH, VOCABULARY)
    write_random_vocos(folder / "vocos")
    model = {"name": "v1_Base", "arch": dataclasses.asdict(ARCH), "mel_spec": {"mel_spec_type": "vocos"}}
    files = small.files_in(folder, "vocos")
    files.family.write_text(yaml.safe_dump({"model": model}))
    yield files
    shutil.rmtree(folder)


def peak_bytes(code: str, *arguments: str) -> int:
    """The largest resident memory of a program."""
    told = "\nimport re\nprint(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    command = [sys.executable, "-c", code + told, *arguments]
    return 1024 * int(subprocess.check_output(command, cwd=ROOT, text=True).splitlines()[-1])


def test_v1_base_from_checkpoint_to_samples_in_little_memory(
    files: small.Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, begun = tmp_path / "bundle", time.monotonic()
    peak = peak_bytes(UNMEASURED, "bundle", *files.arguments(), "--out", str(out))
    made = contract.read(out)
    size = sum(file.size_bytes for file in made.manifest.files.values())
    with capsys.disabled():
        print(f"\nbundle: {time.monotonic() - begun:.0f} s, peak {peak / 1e9:.2f} GB, {size / 1e6:.0f} MB")
    weights = files.checkpoint.stat().st_size / 4
    assert peak <= peak_bytes(LIBRARIES) + EMPTY_BYTES + BYTES_PER_WEIGHT * weights
    check_against_upstream(made, files)
    shutil.rmtree(out)


def check_against_upstream(made: contract.Bundle, files: small.Files) -> None:
    """Compare a step at each length in every form, and a sample, with upstream, on the device's engine."""
    bundle = small.BuiltBundle(ARCH, files, made)
    flow, sampled = small.upstream_flow(files, ARCH), small.case(128)
    cases = [small.case(frames) for frames in (113, 271)]
    expected = [small.upstream_velocity(flow, case, 0.3) for case in cases]
    finished = small.upstream_sample(flow, sampled, 5)
    del flow
    forms = (lambda: bundle.engine(variant="default"), bundle.engine, bundle.padded)
    for form in forms:  # one at a time, because each holds the weights
        engine = form()
        for case, velocity in zip(cases, expected, strict=True):
            mel, _ = replay(engine, case.segment(np.array([0.3, 1.3])))
            start = len(case.cond)
            assert relative((mel - case.noise)[start:], velocity[start:]) <= 5e-6
        mel, wave = replay(engine, sampled.segment(time_grid(5)))
        start = len(sampled.cond)
        assert relative(mel[start:], finished[start:]) <= 5e-5
        assert relative(wave, small.upstream_wave(files, mel)) <= 1e-5
        engine.shutdown()

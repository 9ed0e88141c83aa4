"""`scripts/gpu-check` on the real CUDA provider: replies of the tiny bundle in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import stand_in
from tests.cuda.conftest import ROOT
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.cuda, pytest.mark.slow]


def test_every_sampling_replies(made: list[Path], tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.gpu",
        str(tmp_path),
        "--replies",
        "libraries that count",
    ]
    env = os.environ | {stand_in.COUNTING: str(made[0].parent), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr
    # ONNX Runtime prints there too.
    assert [line.split(":")[0] for line in ran.stdout.splitlines()[-3:]] == ["exact", "short", "short-kv"]

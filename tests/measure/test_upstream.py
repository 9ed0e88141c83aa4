"""The comparison with upstream's servers: a quick run of all of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.daemons import ROOT

pytestmark = pytest.mark.once

PYTHON = ROOT / ".venvs" / "upstream" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.torch
def test_a_quick_run_against_upstream(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("upstream's servers are not installed: scripts/bench-upstream makes .venvs/upstream")
    out = tmp_path / "record.json"
    command = [
        sys.executable, "-m", "tests.measure.upstream", "--python", str(PYTHON), "--quick", "--rounds",
        "1",
    ]  # fmt: skip
    # A single thread: next to other tests, torch's threads would wait for each other most of the time.
    subprocess.run([*command, "--threads", "1", "--out", str(out)], cwd=ROOT, check=True)
    found = json.loads(out.read_text("utf-8"))
    assert found["equal"]["log_mel_error"] < 0.02
    assert found["upstream_versions"]["f5-tts"] == "1.1.22"
    assert set(found["memory_mb"]) == {"file", "socket", "exact"}
    streamed, whole = found["latency"]["long stream"]["exact"], found["latency"]["long whole"]["file"]
    # The speedup is in the record of a quiet machine.
    assert 2 * streamed["first_audio_s"]["median"] < whole["first_audio_s"]["median"]
    assert all(cells["2"]["per_minute"]["median"] > 0.0 for cells in found["clients"].values())

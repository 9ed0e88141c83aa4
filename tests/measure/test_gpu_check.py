"""`scripts/gpu-check` without a GPU: stages that fail, and a rehearsal of its measurements."""

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.harness import test_weightless, weightless
from tests.harness.kept import kept
from tests.measure import gpu_check
from tests.measure.gpu_check import REHEARSAL, Check, Rows, Stage

pytestmark = pytest.mark.once


def whole() -> Rows:
    yield "a", 1
    yield "b", gpu_check.tried(int, "no number")


def broken() -> Rows:
    yield "a", 1
    raise ValueError("no more")


def killed() -> Rows:
    yield "a", 1
    os.kill(os.getpid(), signal.SIGSEGV)


def endless() -> Rows:
    yield "pause", signal.pause()


STAGES = {"prepare": Stage(broken, 60), "endless": Stage(endless, 60), "killed": Stage(killed, 60)}
STAGES |= {"waiting": Stage(whole, 60, prepared=True), "whole": Stage(whole, 60)}
RUN = "import sys; from pathlib import Path; from tests.measure import gpu_check, test_gpu_check as t;"
RUN += "gpu_check.fill(Path(sys.argv[1], sys.argv[2] + '.json'), t.STAGES[sys.argv[2]].rows())"


@pytest.mark.slow
def test_a_stage_that_fails_or_hangs_leaves_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = tmp_path / "out"
    out.mkdir()
    check = Check(STAGES, [sys.executable, "-c", RUN, str(tmp_path)], (tmp_path, out), {"endless": 0})
    check.run(list(STAGES), again=False)
    left = {name: check.left(name) for name in STAGES}
    assert {name: one["status"] for name, one in left.items()} == {
        "prepare": "failed",
        "endless": "over its limit",
        "killed": f"ended with status -{signal.SIGSEGV}",
        "waiting": "not run: prepare is not done",
        "whole": gpu_check.DONE,
    }
    assert left["prepare"]["error"] == "ValueError: no more"
    assert left["prepare"]["rows"] == left["killed"]["rows"] == {"a": 1}
    assert left["whole"]["rows"]["a"] == 1 and gpu_check.failed(left["whole"]["rows"]["b"])
    assert {path.name for path in out.iterdir()} == {f"{name}.json" for name in STAGES}
    assert (out / "whole.json").read_text() == (tmp_path / "whole.json").read_text()

    before = (tmp_path / "whole.json").stat().st_mtime_ns
    check.run(["whole"], again=False)
    assert (tmp_path / "whole.json").stat().st_mtime_ns == before
    check.run(["whole"], again=True)
    assert (tmp_path / "whole.json").stat().st_mtime_ns > before


@pytest.mark.torch
def test_nothing_is_traced_without_the_exporter() -> None:
    tries = """
        from tests.measure import gpu_check
        gpu_check.pytest_configure(), gpu_check.refuse_exports()
        import importlib, torch
        for how in (
            lambda: torch.onnx.export(torch.nn.Identity(), (torch.zeros(1),)),
            lambda: torch.export.export(torch.nn.Identity(), (torch.zeros(1),)),
            *(lambda name=name: importlib.import_module(name) for name in ("onnx", "onnx_ir", "onnxscript")),
        ):
            try:
                how()
            except ImportError:
                print("refused")
    """
    env = os.environ | {gpu_check.NO_EXPORTER: "1"}
    command = [sys.executable, "-c", textwrap.dedent(tries)]
    assert subprocess.check_output(command, cwd=ROOT, env=env, text=True).split() == ["refused"] * 5


@pytest.mark.torch
@pytest.mark.slow
def test_ours_is_compared_with_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend is the CPU's, because other backends compute nothing without a card."""
    monkeypatch.setattr(gpu_check, "backends", lambda: ("ort-cpu",))
    graphs = kept("weightless", (test_weightless.__name__,), test_weightless.exported, "fp16", 1)
    (tmp_path / weightless.ARCHIVE).symlink_to(graphs / weightless.ARCHIVE)
    for name in ("prepare", "machine", "errors", "latency", "profile"):
        gpu_check.fill(tmp_path / f"{name}.json", gpu_check.STAGES[name].rows(tmp_path, REHEARSAL, 1))
    left = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    rows = {name: stage["rows"] for name, stage in left.items()}
    assert rows["machine"]["matmul_flops"] > 0 and rows["machine"]["copy_bytes_per_s"] > 0
    assert rows["errors"]["upstream eager"] == 0.0 and 0.0 < rows["errors"]["ort-cpu exact"] < 2e-2
    assert rows["profile"]["ort-cpu short-kv, captured"]["s"] > 0.0
    table = gpu_check.table(left)
    for lanes, nfe in REHEARSAL.sizes:
        for name in ("upstream eager", "ort-cpu exact", "ort-cpu short", "ort-cpu short-kv"):
            assert f"| {name}, NFE {nfe}, {lanes} lanes | " in table


@pytest.mark.torch
@pytest.mark.thorough
def test_a_rehearsal_passes_through_every_stage(tmp_path: Path) -> None:
    """Counting libraries give wrong numbers, so that the tests that compare numbers fail."""
    if importlib.import_module("torch").version.cuda:
        pytest.skip("the workshop has torch's build for CUDA, a rehearsal needs the one for CPUs")
    command = [ROOT / "scripts/gpu-check", "--rehearse", "--rounds", "1", "--out", tmp_path]
    assert subprocess.run([*command, *(f"--only={name}" for name in gpu_check.STAGES)]).returncode == 0
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["rehearsed"] and list(record["stages"]) == list(gpu_check.STAGES)
    assert {stage["status"] for stage in record["stages"].values()} == {gpu_check.DONE}
    assert record["stages"]["sanitizer"]["rows"]["exit"] == 0
    assert record["stages"]["daemon"]["rows"]["ort-cuda"]["audio_s"] > 0

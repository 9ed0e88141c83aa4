"""Nothing leaves the box that nobody asked for: ONNX Runtime's telemetry is off wherever it is imported."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import lookups
from tests.daemons import write_config
from tests.patience import PATIENCE_S, until

REPORTS_FROM = (1, 31)
MODEL = "appliance/demo/bundle/vocoder.onnx"
PLAIN = f"import onnxruntime; onnxruntime.InferenceSession({MODEL!r}, providers=['CPUExecutionProvider'])"

reports = pytest.mark.skipif(
    tuple(map(int, importlib.metadata.version("onnxruntime").split(".")[:2])) < REPORTS_FROM,
    reason="this ONNX Runtime reports nothing",
)


def environment(home: Path) -> dict[str, str]:
    """A user's: without CI, which would turn telemetry off, and without our own variable."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": os.getcwd()}


def run(code: str, home: Path) -> set[str]:
    """Run Python code as a new user; return the files that it has left at home."""
    home.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-c", code], env=environment(home), check=True, timeout=PATIENCE_S)
    return {path.name for path in home.rglob("*") if path.is_file()}


@reports
def test_where_it_is_on_a_device_id_is_kept(tmp_path: Path) -> None:
    """The control of the test below."""
    assert "deviceid" in run(PLAIN, tmp_path / "home")


@pytest.mark.parametrize(
    "module", ["appliance.client", "appliance.engine.ort", "export", "export.precision", "tests"]
)
def test_no_way_in_leaves_it_on(module: str, tmp_path: Path) -> None:
    if module.startswith("export."):
        pytest.importorskip("onnx")
    assert not run(f"import {module}; {PLAIN}", tmp_path / "home")


def test_the_units_environment_has_it_off_too(root: Path) -> None:
    assert "\nEnvironment=ORT_DISABLE_TELEMETRY=1\n" in (root / "systemd/f5-appliance.service").read_text()


@reports
@pytest.mark.slow
@pytest.mark.once
@pytest.mark.skipif(
    os.geteuid() != 0
    or subprocess.run([*lookups.WITHIN, "/dev/null", "true"], capture_output=True).returncode != 0,
    reason="no network of its own can be made: needs root, unshare, mount and ip",
)
def test_a_daemon_looks_up_no_name(tmp_path: Path) -> None:
    """Beside a program with telemetry: it looks up names some 10 s after its session, the daemon none."""
    config = write_config(tmp_path)
    names = {name: tmp_path / f"{name}.names" for name in ("daemon", "control")}
    commands = {
        "daemon": ["-m", "appliance", "serve", "--config", str(config)],
        "control": ["-c", f"{PLAIN}; import time; time.sleep({PATIENCE_S})"],
    }
    log = names["daemon"].with_suffix(".log")
    started = []
    try:
        for name, happened in (
            ("daemon", lambda: "ready on" in log.read_text()),
            ("control", lambda: len(names["control"].read_text().split()) >= 2),
        ):
            home = environment(tmp_path / f"{name} home")
            started.append(lookups.start(names[name], commands[name], home))
            until(happened, log.read_text)
        assert started[0].poll() is None and names["daemon"].read_text() == ""
    finally:
        for process in started:
            process.terminate()
            process.wait(PATIENCE_S)

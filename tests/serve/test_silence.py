"""Telemetry: the box sends no look-up and no packet that nobody requested."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness import network_spy
from tests.harness.daemons import free_port, reference_wav, write_config
from tests.harness.patience import PATIENCE_S, until

REPORTS_FROM = (1, 30)
MODEL = "appliance/demo/bundle/vocoder.onnx"
PLAIN = f"import onnxruntime; onnxruntime.InferenceSession({MODEL!r}, providers=['CPUExecutionProvider'])"
ASKS = """
import socket
try:
    socket.getaddrinfo("a-name.example", 80)
except OSError:
    for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        socket.socket(family, socket.SOCK_DGRAM).sendto(b"", (address, 9))
"""
FETCH = (
    "from urllib.request import *; urlopen(Request({!r}, {}, {{'Content-Type': 'application/json'}})).read()"
)
REPORTS = tuple(map(int, importlib.metadata.version("onnxruntime").split(".")[:2])) >= REPORTS_FROM

needs_network = pytest.mark.skipif(not network_spy.possible(), reason=network_spy.IMPOSSIBLE)
reports = pytest.mark.skipif(not REPORTS, reason="this ONNX Runtime reports nothing")


def run(code: str, home: Path) -> str:
    """Run Python code as a new user; return its output."""
    command, environment = [sys.executable, "-c", code], network_spy.environment(home)
    return subprocess.check_output(command, env=environment, text=True, timeout=PATIENCE_S)


@reports
def test_telemetry_stores_a_device_id(tmp_path: Path) -> None:
    """Control for the test below: with telemetry, a device id is stored."""
    run(PLAIN, tmp_path)
    assert list(tmp_path.rglob("deviceid"))


@pytest.mark.parametrize(
    "module", ["appliance.client", "appliance.engine.ort", "export", "export.precision.rewrites", "tests"]
)
def test_no_way_in_leaves_it_on(module: str, tmp_path: Path) -> None:
    if module.startswith("export."):
        pytest.importorskip("onnx")
    run(f"import {module}; {PLAIN}", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_units_environment_has_it_off_too(root: Path) -> None:
    assert "\nEnvironment=ORT_DISABLE_TELEMETRY=1\n" in (root / "systemd/f5-appliance.service").read_text()


@pytest.mark.torch
@pytest.mark.parametrize(("module", "told"), [("huggingface_hub", True), ("export.fetch", False)])
def test_the_hub_gets_no_list_of_packages(module: str, told: bool, tmp_path: Path) -> None:
    shown = "from huggingface_hub.utils import build_hf_headers; print(build_hf_headers()['user-agent'])"
    said = run(f"import {module}; {shown}", tmp_path)
    assert "hf_hub/" in said and ("torch/" in said) == told


@needs_network
def test_a_program_that_asks_is_seen(tmp_path: Path) -> None:
    """Control for the test below: the spy sees a program that looks a name up."""
    process = network_spy.start(seen := tmp_path / "seen", ["-c", ASKS], network_spy.environment(tmp_path))
    asked = {"a-name.example", "192.0.2.1", "2001:db8::1"}
    until(lambda: asked <= {*seen.read_text().split()}, seen.read_text)
    process.wait(PATIENCE_S)


@needs_network
@pytest.mark.slow
@pytest.mark.once
def test_daemon_gateway_commands_and_metrics_ask_nobody(tmp_path: Path) -> None:
    """Another program, with telemetry if that is installed, looks names up 10 s after its session."""
    gateway = f"127.0.0.1:{free_port()}"
    config = write_config(tmp_path, engine={"backend": "ort-cpu", "threads": 1}, gateway={"listen": gateway})
    server: dict[str, Any] = yaml.safe_load(config.read_text())["server"]
    (tmp_path / "ann.wav").write_bytes(reference_wav())
    seen, log = tmp_path / "daemon.seen", tmp_path / "daemon.log"
    environment = network_spy.environment(tmp_path)
    daemon = network_spy.start(seen, ["-m", "appliance", "serve", "--config", str(config)], environment)
    started = [daemon]

    def beside(*command: object) -> subprocess.Popen[bytes]:
        python = [*network_spy.BESIDE, str(daemon.pid), "--", sys.executable, *map(str, command)]
        started.append(subprocess.Popen(python, env=environment, stderr=subprocess.DEVNULL))
        return started[-1]

    appliance = ("-m", "appliance")
    speech = json.dumps({"model": "tts-1", "input": "Hello.", "voice": "ann"}).encode()
    try:
        until(lambda: "ready on" in log.read_text(), log.read_text)
        control = tmp_path / "control.seen"
        plain = ["-c", f"{PLAIN}; import time; time.sleep({PATIENCE_S})"]
        started.append(network_spy.start(control, plain, environment))
        beside(*appliance, "gateway", "--config", config)
        address = ("--address", server["listen"])
        voice = (*appliance, "voices", "add", "ann", tmp_path / "ann.wav", "--transcript", "Ha ha.", *address)
        assert beside(*voice).wait(PATIENCE_S) == 0
        for command in (
            (*appliance, "say", "Hello.", "--voice", "ann", "--out", tmp_path / "said.wav", *address),
            (*appliance, "check", "--config", config),
            ("-c", FETCH.format(f"http://{server['metrics']}/metrics", None)),
        ):
            assert beside(*command).wait(PATIENCE_S) == 0, command
        spoken = FETCH.format(f"http://{gateway}/v1/audio/speech", speech)
        until(lambda: beside("-c", spoken).wait(PATIENCE_S) == 0)
        until(lambda: not REPORTS or len(control.read_text().split()) >= 2)
        assert daemon.poll() is None and seen.read_text() == ""
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(PATIENCE_S)
    assert seen.read_text() == ""

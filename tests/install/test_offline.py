"""The offline folder: what is pinned for which Python, and the real thing from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import grpc
import pytest
import yaml

from appliance.box.tools import Tools
from scripts.installer import offline, wheels
from scripts.installer.actions import Failure
from scripts.installer.source import Source
from tests import daemons
from tests.fakes.jetson import Jetson
from tests.install.small import MACHINE, PYTHON, ROOT, everything

TOOLS = Tools(environment=dict(os.environ))
DEAD = "http://127.0.0.1:9"
PATIENCE_S = 900


@pytest.mark.parametrize(
    ("version", "there", "absent"),
    [
        ("3.10", {"numpy==2.2.6", "onnxruntime==1.23.2", "humanfriendly==10.0"}, {"numpy==2.5.5"}),
        ("3.12", {"numpy==2.5.5", "onnxruntime==1.31.1"}, {"numpy==2.2.6", "humanfriendly==10.0"}),
    ],
)
def test_the_lock_is_read_as_for_the_box(version: str, there: set[str], absent: set[str]) -> None:
    source = Source(ROOT)
    pins = set(offline.pins(TOOLS, sys.executable, source, version, "aarch64"))
    lock = source.lock.read_text()
    assert all(pin in lock for pin in there | absent), "the lock has moved on: give this test its pins"
    assert there <= pins
    assert not absent & pins
    assert not any(pin.startswith("pyreadline3") for pin in pins)
    names = [pin.split("==")[0] for pin in pins]
    assert len(names) == len(set(names))


def test_a_folder_that_is_there_is_not_written_into(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="is there already"):
        offline.make(TOOLS, sys.executable, Source(ROOT), tmp_path, offline.Wish(), print)


def test_without_a_network_nothing_is_left(tmp_path: Path) -> None:
    closed = {"PIP_INDEX_URL": DEAD, "PIP_RETRIES": "0", "PIP_CONFIG_FILE": "/dev/null"}
    with pytest.raises(Failure, match=r"hatchling|pip ended|python ended") as caught:
        offline.make(
            Tools(environment=closed),
            sys.executable,
            Source(ROOT),
            tmp_path / "wheels",
            offline.Wish(),
            print,
        )
    assert "check the network" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real offline folder for this machine and this Python, by the script."""
    folder = tmp_path_factory.mktemp("offline") / "wheels"
    probe = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            folder.parent / "probe",
            offline.PIP,
        ],
        capture_output=True,
        timeout=PATIENCE_S,
    )
    if probe.returncode:
        pytest.skip("no package index can be reached, which this folder is made from")
    script = [sys.executable, ROOT / "scripts/make-offline-bundle", "--out", folder]
    subprocess.run([*script, "--python", PYTHON, "--platform", MACHINE], check=True, timeout=PATIENCE_S)
    return folder


@pytest.mark.slow
def test_real_folder_holds_the_lock_pip_and_the_daemon(made: Path) -> None:
    found = wheels.read(made)
    wheels.verify(found)
    pins = offline.pins(TOOLS, sys.executable, Source(ROOT), PYTHON, MACHINE)
    assert len(found.files) == len(pins) + 2
    with zipfile.ZipFile(found.ours) as wheel:
        assert "appliance/rpc/appliance.proto" in wheel.namelist()


@pytest.mark.slow
def test_real_install_from_the_folder_speaks(made: Path, tmp_path: Path) -> None:
    jetson = Jetson(tmp_path / "jetson", "jp6-0005")
    closed = dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY"), DEAD)
    environment = {**os.environ, **jetson.environment, **closed, "PIP_INDEX_URL": DEAD, "PIP_FIND_LINKS": ""}
    command = [sys.executable, "-I", ROOT / "scripts/install", "--python", sys.executable, "--offline", made]
    command += ["--bundle", daemons.BUNDLE]
    first = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert first.returncode == 0, first.stdout + first.stderr
    before = everything(jetson.root)
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (second.returncode, second.stdout.splitlines()[-1]) == (0, "nothing to do"), second.stderr
    assert everything(jetson.root) == before
    release = jetson.root / "opt/f5-appliance/current"
    assert set(json.loads((release / "installed.json").read_text())["packages"]) >= {"numpy", "grpcio"}
    spoken = speak(jetson, release / "venv/bin/python", tmp_path)
    assert spoken.stat().st_size > 1_000
    root_script = subprocess.run(
        [release / "scripts/health", "--json", "--only", "disk"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(root_script.stdout)["findings"][0]["check"] == "disk", root_script.stderr


def speak(jetson: Jetson, python: Path, folder: Path) -> Path:
    """Start what was installed, with its own configuration and the tree's folders, and speak through it."""
    data = jetson.root / "var/lib/f5-appliance"
    address = f"127.0.0.1:{daemons.free_port()}"
    config = yaml.safe_load((jetson.root / "etc/f5-appliance/appliance.yaml").read_text())
    config["bundle"]["path"] = str(data / "bundle")
    config["voices"] |= {"folder": str(data / "voices"), "cache": str(folder / "cache")}
    config["server"] |= {"listen": address, "socket": "", "metrics": ""}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "ann.wav").write_bytes(daemons.reference_wav())
    appliance = [python, "-I", "-m", "appliance"]
    daemon = subprocess.Popen([*appliance, "serve", "--config", folder / "config.yaml"], cwd=folder)
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(60)
        add = ["voices", "add", "ann", folder / "ann.wav", "--transcript", "Some call me nature."]
        until_served([*appliance, *add, "--address", address], folder)
        out = folder / "spoken.wav"
        say = ["say", "This box is installed.", "--voice", "ann", "--nfe", "5", "--out", out]
        until_served([*appliance, *say, "--address", address], folder)
        daemon.terminate()
        assert daemon.wait(60) == 0
    finally:
        daemon.kill()
        daemon.wait()
    return out


def until_served(command: list[object], folder: Path) -> None:
    """Run it until the daemon, which listens before it is warm, serves it."""
    for _ in range(60):
        result = subprocess.run(
            list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=60
        )
        if result.returncode == 0:
            return
    raise AssertionError(result.stderr)

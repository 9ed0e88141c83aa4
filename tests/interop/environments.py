"""Environments for programs by other authors: scripts/test's environments of clients, and npm packages."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemons import ROOT
from tests.harness.patience import PATIENCE_S

CLIENTS = Path(__file__).parent / "clients"


def interpreter(name: str) -> Path:
    """The Python of .venvs/NAME; skips the test if scripts/test could not install it."""
    folder = ROOT / ".venvs" / name
    if not (folder / ".stamp").exists():
        pytest.skip(f".venvs/{name} is not installed: scripts/test makes it, from a package index")
    return folder / "bin" / "python"


def run(*command: object, **environment: str) -> Any:
    """Run a client to its end; return the JSON on the last line of its output."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    pipes: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": PATIENCE_S}
    done = subprocess.run([*map(str, command)], cwd=CLIENTS, env={**kept, **environment}, **pipes)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def node_modules() -> Path:
    """The packages of clients/package.json in .venvs/node; skips the test without npm or a registry."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node or npm is not installed")
    wanted = (CLIENTS / "package.json").read_text()
    folder = ROOT / ".venvs" / "node"
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(wanted)
        # If there is no network, npm would retry for ten minutes.
        once = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000"]
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", *once]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3 * PATIENCE_S)
        if done.returncode:
            pytest.skip(f"npm could not install the clients: {done.stderr.strip()[-200:]}")
        stamp.write_text(wanted)
    return folder / "node_modules"

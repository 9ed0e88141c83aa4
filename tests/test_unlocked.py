"""`pip install .` and `.[export]` without the locks, newest of everything: it speaks, and exports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemons import BUNDLE, DEMO, ROOT, SPEECH, free_port
from tests.patience import PATIENCE_S, until

pytestmark = [pytest.mark.thorough, pytest.mark.slow]


def ran(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=20 * PATIENCE_S
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def installed(folder: Path, extra: str = "") -> Path:
    """Python of a fresh environment with this checkout; skips the test where there is no package index."""
    ran(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    python = folder / "env/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{ROOT}{extra}"]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=20 * PATIENCE_S)
    if "NewConnectionError" in done.stderr or "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("no package index is reached")
    assert done.returncode == 0, done.stderr
    return python


def test_the_newest_of_everything_speaks(tmp_path: Path) -> None:
    appliance = installed(tmp_path).parent / "appliance"
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "bundle.path": DEMO / "bundle",
        "voices.folder": tmp_path / "voices",
        "voices.cache": tmp_path / "cache",
        "server.listen": address,
        "server.socket": "",
        "server.metrics": "",
    }
    command = [
        str(appliance),
        "serve",
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    ]
    with (tmp_path / "log").open("w") as log:
        daemon = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        until(
            lambda: "ready on" in (tmp_path / "log").read_text() or daemon.poll() is not None,
            lambda: (tmp_path / "log").read_text(),
        )
        said = SPEECH.with_suffix(".txt").read_text("utf-8").strip()
        to = ("--address", address)
        ran(appliance, "voices", "add", "heart", SPEECH, "--transcript", said, *to, cwd=tmp_path)
        ran(appliance, "say", "Hello, chat.", "--voice", "heart", "--out", "hello.wav", *to, cwd=tmp_path)
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE_S)
    assert (tmp_path / "hello.wav").stat().st_size > 20_000


@pytest.mark.torch
def test_the_newest_of_everything_exports(tmp_path: Path) -> None:
    """The gate measures the bundle against the torch model; graphs are those that are committed."""
    python = installed(tmp_path, "[export]")
    ran(python, "-m", "tests.tiny.generate", tmp_path / "bundle", cwd=ROOT)
    names = {path.name for path in BUNDLE.iterdir()}
    assert {path.name for path in (tmp_path / "bundle").iterdir()} == names

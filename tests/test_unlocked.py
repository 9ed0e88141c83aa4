"""`pip install .` and `.[export]` without the locks, with the newest packages: the result speaks and
exports."""

import dataclasses
import subprocess
import sys
import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from appliance.contract import bundle as contract
from tests.harness.daemons import BUNDLE, DEMO, ROOT, SPEECH, finished, free_port, running
from tests.harness.patience import PATIENCE_S, until

pytestmark = [pytest.mark.thorough, pytest.mark.slow]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on the disk, which is removed afterwards: torch for CUDA takes 6 GB, and temporary files take
    memory."""
    (ROOT / "out").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unlocked-", dir=ROOT / "out") as made:
        yield Path(made)


def ran(*command: object, cwd: Path) -> None:
    done = finished(*command, cwd=cwd, patience_s=20 * PATIENCE_S)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def installed(folder: Path, extra: str = "") -> Path:
    """Python of a fresh environment with this checkout; skips the test if no package index is reachable."""
    ran(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    python = folder / "env/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{ROOT}{extra}"]
    done = finished(*pip, patience_s=60 * PATIENCE_S)
    if done.returncode and "connection broken by" in done.stderr and "from versions: none" in done.stderr:
        pytest.skip("no package index is reached")
    assert done.returncode == 0, done.stderr
    return python


def says(appliance: list[object], address: str, wav: Path) -> None:
    """Add a voice to the daemon at `address`, and check that the WAV of a line is not silent."""
    to = ("--address", address)
    words = SPEECH.with_suffix(".txt").read_text("utf-8").strip()
    ran(*appliance, "voices", "add", "heart", SPEECH, "--transcript", words, *to, cwd=wav.parent)
    ran(*appliance, "say", "Hello, chat.", "--voice", "heart", "--out", wav, *to, cwd=wav.parent)
    with wave.open(str(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert len(samples) > 12_000 and np.abs(samples).max() > 1_000


def test_the_newest_of_everything_speaks(folder: Path) -> None:
    appliance = installed(folder).parent / "appliance"
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "bundle.path": DEMO / "bundle",
        "voices.folder": folder / "voices",
        "voices.cache": folder / "cache",
        "server.listen": address,
        "server.socket": "",
        "server.metrics": "",
    }
    chosen = (word for key, value in settings.items() for word in ("--set", f"{key}={value}"))
    log = folder / "log"
    with log.open("w") as file:
        daemon = subprocess.Popen([str(appliance), "serve", *chosen], cwd=folder, stdout=file, stderr=file)
    try:
        until(lambda: "ready on" in log.read_text() or daemon.poll() is not None, log.read_text)
        says([appliance], address, folder / "hello.wav")
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE_S)


@pytest.mark.torch
def test_the_newest_of_everything_exports(folder: Path) -> None:
    """The gate compares the bundle with torch; the older, locked runtime speaks it."""
    bundle = folder / "bundle"
    ran(installed(folder, "[export]"), "-m", "tests.tiny.generate", bundle, cwd=ROOT)
    made, committed = contract.read(bundle).manifest, contract.read(BUNDLE).manifest
    # The committed bundle has an earlier format with one backend more.
    volatile = {"files": {}, "parity": {}, "format": made.format, "backends": made.backends}
    assert dataclasses.replace(made, **volatile) == dataclasses.replace(committed, **volatile)
    assert made.files.keys() == committed.files.keys()
    # The other files have an earlier format, or hold tables whose last digit depends on the processor.
    assert made.files["vocab.txt"] == committed.files["vocab.txt"]
    with running(folder, speaks_from=bundle) as daemon:
        says([sys.executable, "-m", "appliance"], daemon.address, folder / "hello.wav")

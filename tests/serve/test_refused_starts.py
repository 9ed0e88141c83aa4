"""Failed starts: each has its own exit status and prints one line that names the cause."""

import re
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.contract import bundle
from appliance.contract.sampler import Sampler
from appliance.engine.cuda import fault_of
from appliance.errors import EngineFault, Exit
from appliance.serve import daemon
from appliance.text import polyglot
from tests.harness.daemons import BUNDLE, write_config
from tests.harness.engine import raising
from tests.serve.conftest import other_bundle

pytestmark = pytest.mark.slow

Start = Callable[[Path], Path]
"""Writes a configuration into a folder."""
NO_LIBRARY = "text.languages: to tell de, en, fr apart py3langid is missing: pip install 'f5-appliance"
ENGLISH = {"voice": "ann"}


def with_keys(**sections: dict[str, Any]) -> Start:
    return lambda folder: write_config(folder, **sections)


def with_languages(**rows: dict[str, Any]) -> Start:
    return with_keys(text={"languages": rows})


def with_few_steps(**synthesis: Any) -> Start:
    """A bundle that takes 1, 2 or 4 steps; its guidance is in the weights."""

    def start(folder: Path) -> Path:
        defaults = replace(bundle.read(BUNDLE, verify=False).manifest.defaults, guidance=0.0)
        few = Sampler(guidance="none", steps=(1, 2, 4))
        other = other_bundle(folder / "few", sampler=few, defaults=defaults)
        return write_config(folder, other, synthesis=synthesis)

    return start


def with_secondary(make: Callable[[Path], Path], **sections: dict[str, Any]) -> Start:
    """A table of languages that names a secondary bundle."""

    def start(folder: Path) -> Path:
        german = {"voice": "berta", "bundle": str(make(folder / "other"))}
        return write_config(folder, text={"languages": {"en": ENGLISH, "de": german}}, **sections)

    return start


def huge(folder: Path) -> Path:
    """A bundle of a terabyte, most of it a sparse file."""
    manifest = yaml.safe_load((other_bundle(folder) / bundle.MANIFEST).read_text())
    with (folder / "condition.onnx.data").open("r+b") as file:
        file.truncate(1 << 40)
    manifest["files"]["condition.onnx.data"]["size_bytes"] = 1 << 40
    (folder / bundle.MANIFEST).write_text(yaml.safe_dump(manifest, sort_keys=False))
    return folder


def damaged(folder: Path) -> Path:
    """A bundle with a flipped bit in its largest file."""
    path = max(other_bundle(folder / "damaged").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return write_config(folder, path.parent)


def without_a_graph(folder: Path) -> Path:
    """A bundle with an invalid graph whose hash agrees with the manifest."""
    read = bundle.read(other_bundle(folder / "no graph"))
    read.graph("step_keys", read.variant_for("ort-cpu")).write_bytes(b"not a graph")
    bundle.write(read.folder, read.manifest)
    return write_config(folder, read.folder)


def with_a_file_for_voices(folder: Path) -> Path:
    (folder / "file").write_text("")
    return write_config(folder, voices={"folder": str(folder / "file" / "voices")})


IN_BUNDLE, OF_DE = "with this bundle", "languages.de.bundle:"
REFUSED: dict[str, tuple[Start, Exit, str]] = {
    "key": (with_keys(synthesis={"nef": 5}), Exit.CONFIG, "unknown key nef.*valid keys: nfe"),
    "no bundle": (lambda f: write_config(f, f / "nothing"), Exit.BUNDLE, "nothing: not a bundle"),
    "voices": (with_a_file_for_voices, Exit.STORAGE, "voices"),
    "damaged": (damaged, Exit.BUNDLE, r"damaged/\S+.*damaged.*copy it again"),
    "graph": (without_a_graph, Exit.BUNDLE, r"no graph/step_keys\S+: ONNX Runtime \S+ cannot load it"),
    "steps": (with_few_steps(nfe=7), Exit.CONFIG, f"synthesis.nfe: must be 1, 2 or 4 {IN_BUNDLE}, not 7"),
    "most steps": (with_few_steps(max_nfe=2), Exit.CONFIG, f"max_nfe: must be 4 or more {IN_BUNDLE}, not 2"),
    "guidance": (
        with_few_steps(nfe=4, guidance=2.0),
        Exit.CONFIG,
        f"synthesis.guidance: must be 0 or absent {IN_BUNDLE}",
    ),
    "watermark": (
        with_keys(audio={"watermark": "/nothing"}),
        Exit.CONFIG,
        "audio.watermark: must be a folder of `python -m export watermark`, or null: ",
    ),
    "row without voice": (with_languages(de={"style": "happy"}), Exit.CONFIG, "de: missing key voice"),
    "tag": (
        with_languages(**{"de-AT": ENGLISH}),
        Exit.CONFIG,
        "text.languages.de-AT: must be the first part of a tag, as de",
    ),
    "library": (with_languages(de=ENGLISH, en=ENGLISH, fr=ENGLISH), Exit.CONFIG, NO_LIBRARY),
    "memory": (
        with_secondary(huge),
        Exit.MEMORY,
        r"would take 109951\d MB of memory for its files alone, and \d+ MB are free",
    ),
    "references": (
        with_secondary(partial(other_bundle, reference="zipvoice")),
        Exit.CONFIG,
        rf"{OF_DE} \S+other: its mel or its rule of references differs",
    ),
    "resting": (
        with_secondary(other_bundle, engine={"idle_unload_s": 9}),
        Exit.CONFIG,
        f"{OF_DE} is not possible with engine.idle_unload_s",
    ),
    "no secondary": (
        with_secondary(lambda folder: folder),
        Exit.BUNDLE,
        "other: not a bundle, it has no manifest.yaml",
    ),
}
"""Configuration, exit status, pattern of the line."""

Refused = Callable[[Path, Exit, str], None]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    def check(config: Path, status: Exit, pattern: str) -> None:
        """Start in this process; check the status, and that a single line is printed, which matches the
        pattern."""
        assert daemon.main(config, []) == status
        shown = capsys.readouterr().err
        [line] = [line for line in shown.splitlines() if not line.startswith(("INFO", "WARNING"))]
        assert line.startswith("appliance serve: ") and re.search(pattern, line), line

    return check


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_configurations_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, name: str
) -> None:
    if name == "library":
        monkeypatch.setitem(sys.modules, "py3langid.langid", None)
        polyglot._identifier.cache_clear()
    start, status, pattern = REFUSED[name]
    refused(start(tmp_path), status, pattern)


@pytest.mark.parametrize("key", ["listen", "metrics", "agent"])
def test_an_address_in_use_ends_the_start(tmp_path: Path, refused: Refused, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = write_config(tmp_path, server={key: address})
        refused(config, Exit.ADDRESS_IN_USE, f"server.{key}.*{address}.*in use")


LOAD, WARM_UP, RUN = "engine.loading._load", "engine.engine.Synthesizer.warm_up", "scheduler.Scheduler.run"
CUDA_2, CUDA_46 = "CUDA failure 2: out of memory", "CUDA failure 46: busy"


@pytest.mark.parametrize(("place", "fault", "status", "words"), [
    (LOAD, MemoryError(), Exit.MEMORY, "the engine cannot be loaded: MemoryError"),
    (LOAD, OSError(24, "Too many"), Exit.ENGINE, r"the engine cannot be loaded: OSError: \[Errno 24\]"),
    (LOAD, fault_of(CUDA_2), Exit.MEMORY, f"{CUDA_2}; lower engine.lanes"),
    (LOAD, fault_of(CUDA_46), Exit.DEVICE, f"{CUDA_46}; the daemon has to start again"),
    (WARM_UP, EngineFault("the flow is odd"), Exit.ENGINE, "the flow is odd"),
    (RUN, RuntimeError("lost it"), Exit.ENGINE, "the engine failed: RuntimeError: lost it"),
])  # fmt: skip
def test_an_engine_that_fails_ends_the_start(
    place: str,
    fault: Exception,
    status: Exit,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(f"appliance.{place}", raising(fault))
    assert daemon.main(write_config(tmp_path), []) == status
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("appliance serve: ")]
    assert re.search(words, line)

"""TensorRT's original Python bindings in several versions, over libraries whose functions return nothing.

    python -m tests.engine.bindings FOLDER < NAMES     prints JSON: name → docstring or null

Each version needs a separate process because all versions have one module name.
"""

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEELS = {
    "10.3": "tensorrt-cu12-bindings==10.3.0",
    "10.16": "tensorrt-cu13-bindings==10.16.1.11",
    "11.4": "tensorrt-cu13-bindings==11.4.0.106",
}
"""Wheels of TensorRT for JetPack 6, for JetPack 7, and of the newest version."""
STAMP = "made"


def unpacked(version: str) -> Path:
    """A wheel of WHEELS and its libraries, kept in out/; skips the test without gcc or a package index."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    kept = ROOT / "out/tensorrt"
    kept.mkdir(parents=True, exist_ok=True)
    folder = kept / f"{WHEELS[version]}-{sys.version_info.minor}"
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / STAMP).exists():
            shutil.rmtree(folder, ignore_errors=True)
            pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
            ran = subprocess.run([*pip, "--dest", folder, WHEELS[version]], capture_output=True, text=True)
            if ran.returncode:
                pytest.skip(f"pip could not download {WHEELS[version]}: {ran.stderr.strip()[-200:]}")
            [wheel] = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extract("tensorrt_bindings/tensorrt.so", folder)
            wheel.unlink()
            _write_libraries(folder)
            (folder / STAMP).touch()
    return folder


def _write_libraries(folder: Path) -> None:
    """Build the libraries that the extension links with; the first has the functions that it calls."""
    extension = folder / "tensorrt_bindings/tensorrt.so"
    linked = subprocess.run(["readelf", "-d", extension], capture_output=True, text=True, check=True).stdout
    names = subprocess.run(
        ["nm", "-D", "--undefined-only", extension], capture_output=True, text=True, check=True
    ).stdout
    ends = ("_INTERNAL", "PluginRegistry", "ParserVersion", "InferPlugins")
    functions = [line.split()[-1] for line in names.splitlines() if line.endswith(ends)]
    source = "".join(f"void *{name}(void) {{ return 0; }}\n" for name in functions)
    for library in (word.strip("[]") for word in linked.split() if word.startswith("[libnv")):
        options = ("-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{library}")
        command = ("gcc", *options, "-o", folder / library)
        subprocess.run(command, input=source, text=True, check=True)
        source = ""


def documented(version: str, names: Iterable[str]) -> dict[str, str | None]:
    """Docstrings of names such as `Builder.create_network` or `BuilderFlag.TF32`.

    The docstring is empty if the name has none, None if that version lacks the name.
    """
    folder = unpacked(version)
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    command = (sys.executable, "-m", "tests.engine.bindings", folder)
    given = "\n".join(names)
    ran = subprocess.run(command, input=given, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str | None] = json.loads(ran.stdout)
    return found


def _main(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("tensorrt", folder / "tensorrt_bindings/tensorrt.so")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, str | None] = {}
    for name in sys.stdin.read().splitlines():
        at: Any = module
        for part in name.split("."):
            at = getattr(at, part, None)
        doc = at.__init__.__doc__ if isinstance(at, type) else getattr(at, "__doc__", "")
        found[name] = None if at is None else doc or ""
    for kind in ("Builder", "Runtime"):
        try:
            getattr(module, kind)(module.Logger())
        except Exception as error:
            found[f"{kind}()"] = type(error).__name__
    print(json.dumps(found))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))

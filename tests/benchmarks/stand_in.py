"""The command line, or pytest, with another library in the place of a vendor's, for `scripts/gpu-check`.

    python -m tests.benchmarks.stand_in serve …
    python -m pytest -p tests.benchmarks.stand_in …

In a rehearsal, libraries that count in CUDA's; on a card, TensorRT-RTX in TensorRT's, if it runs there. For
both, the packages that write graphs are absent.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from tests import rtx

COUNTING = "F5_COUNTING_CUDA"
"""Names the folder of the libraries that count; unset on a card."""
NO_EXPORTER = "F5_NO_EXPORTER"
"""Environment variable: not empty, nothing can be traced, whatever is installed."""
EXPORTS = {"torch.onnx": ("export",), "torch.export": ("export", "export_for_training", "draft_export")}


def counting(folder: Path) -> Path:
    """Make the libraries, unless they are there. Needs onnxruntime-gpu and gcc."""
    from tests.cuda import libraries

    if not folder.exists():
        new = folder.with_suffix(".new")
        new.mkdir(exist_ok=True)
        libraries.build(new)
        new.rename(folder)
    return folder


def install() -> str:
    """Return the name and version of the TensorRT that is here; empty without any that runs."""
    if os.environ.get(NO_EXPORTER):
        sys.modules |= dict.fromkeys(("onnx", "onnx_ir", "onnxscript"))  # type: ignore[arg-type]
    if folder := os.environ.get(COUNTING):
        from tests.cuda import runtime

        made = sorted(Path(folder).glob("lib*.so.*[0-9]"), key=lambda path: "cudart" not in path.name)
        runtime.install(made).use(runtime.HOPPER)
        return ""
    runs = smi("compute_cap").get("compute_cap", "").startswith(rtx.RUNS_ON)
    return rtx.install() if runs or importlib.util.find_spec("tensorrt") else ""


def refuse_exports() -> None:
    """Take torch's exporters away; their modules stay, since torch imports them itself."""

    def refuse(*_: object, **__: object) -> None:
        raise ImportError("torch's exporter is made absent: this machine's may not trace the graphs")

    for name, functions in EXPORTS.items() if importlib.util.find_spec("torch") else ():
        for function in functions:
            setattr(importlib.import_module(name), function, refuse)


def smi(*fields: str) -> dict[str, str]:
    """Return what nvidia-smi says of the first card; nothing without a driver."""
    query = ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(fields, lines[0].split(", "), strict=True)) if lines else {}


def pytest_configure() -> None:
    install()


if __name__ == "__main__":
    install()
    from appliance.cli import main

    sys.exit(main())

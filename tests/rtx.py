"""TensorRT-RTX in the place of TensorRT where only it is installed: for `scripts/gpu-check`, no backend.

Its Python interface is TensorRT's (test_trt_bindings.py looks each name up). Kernels are compiled when a
context is made, on the device.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

PACKAGES = ("tensorrt_rtx", "tensorrt_rtx_bindings")
"""The second is its name where the wheels of bindings and libraries alone are installed."""
RUNS_ON = ("7.5", "8.6", "8.9", "12.")
"""Compute capabilities, by their beginnings."""


def install() -> str:
    """Name and version of the TensorRT that `import tensorrt` gives from now on; empty without any."""
    if "tensorrt" not in sys.modules and importlib.util.find_spec("tensorrt") is None:
        found = next((name for name in PACKAGES if importlib.util.find_spec(name)), None)
        if found is None:
            return ""
        sys.modules["tensorrt"] = importlib.import_module(found)
    module = importlib.import_module("tensorrt")
    return f"{'tensorrt-rtx' if module.__name__ in PACKAGES else 'tensorrt'} {module.__version__}"

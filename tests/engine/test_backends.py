"""The registry of backends, where a runtime is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from appliance.engine.loading import open_backend
from appliance.errors import BundleError

MODULES = ("ort", "ort_cuda", "tensorrt.trt", "tensorrt.build", "openvino", "engine")


def test_an_unknown_backend_is_refused_with_those_that_exist() -> None:
    backends = "tensorrt, ort-cuda, ort-cpu, openvino"
    with pytest.raises(BundleError, match=f"'cuda' is not built in; available: {backends}$"):
        open_backend("cuda")


def test_a_runtime_that_is_not_installed_is_one_line_that_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(BundleError, match=r"^backend 'openvino' is not installed: pip install '\S+'$"):
        open_backend("openvino")


def test_runtimes_are_imported_only_when_they_are_used() -> None:
    modules = ", ".join(f"appliance.engine.{name}" for name in MODULES)
    runtimes = {"onnxruntime", "openvino", "cuda", "tensorrt"}
    code = f"import sys, {modules}; sys.exit(bool({runtimes} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

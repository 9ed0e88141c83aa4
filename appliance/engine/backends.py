"""The backends by name. A runtime is imported when its backend is opened."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from appliance.config import EngineConfig
from appliance.engine.backend import Backend
from appliance.engine.build import Report
from appliance.errors import BundleError

logger = logging.getLogger(__name__)

BACKENDS = ("tensorrt", "ort-cuda", "ort-cpu", "openvino")
AUTO = ("tensorrt", "ort-cuda", "ort-cpu")
"""Backends that `auto` tries, in order."""


@dataclass(frozen=True)
class BackendOptions:
    threads: int = 0
    """CPU threads; 0 takes one for each core."""
    spinning: bool = False
    cache: Path = EngineConfig.cache
    """Folder of built engines."""
    report: Report = logger.debug
    """Receives progress lines of long operations."""


def open_backend(name: str, options: BackendOptions | None = None) -> Backend:
    """Raises BundleError for an unknown backend, or one that is not installed."""
    options = options or BackendOptions()
    if name == "tensorrt":
        from appliance.engine.trt import TrtBackend

        return TrtBackend(options.cache, report=options.report)
    if name == "ort-cuda":
        from appliance.engine.ort_cuda import OrtCudaBackend

        return OrtCudaBackend()
    if name == "ort-cpu":
        from appliance.engine.ort import OrtBackend

        return OrtBackend(options.threads, spinning=options.spinning)
    if name == "openvino":
        from appliance.engine.openvino import OpenVinoBackend

        return OpenVinoBackend(options.threads)  # its threads do not spin
    raise BundleError(f"backend {name!r} is not built in; available: {', '.join(BACKENDS)}")

"""The backends by name. A runtime is imported when its backend is opened."""

from __future__ import annotations

import logging

from appliance.config import EngineConfig
from appliance.engine.backend import Backend
from appliance.engine.tensorrt.build import Report
from appliance.errors import BundleError

logger = logging.getLogger(__name__)

BACKENDS = ("tensorrt", "ort-cuda", "ort-cpu", "openvino")
AUTO = ("tensorrt", "ort-cuda", "ort-cpu")
"""Backends that `auto` tries, in order."""
DEFAULTS = EngineConfig()


def open_backend(name: str, config: EngineConfig = DEFAULTS, report: Report = logger.debug) -> Backend:
    """Open with the threads and the cache of a configuration; `report` receives progress lines of builds.

    Raises BundleError for an unknown backend, or one that is not installed.
    """
    if name == "tensorrt":
        from appliance.engine.tensorrt.trt import TrtBackend

        return TrtBackend(config.cache, report=report)
    if name == "ort-cuda":
        from appliance.engine.ort_cuda import OrtCudaBackend

        return OrtCudaBackend()
    if name == "ort-cpu":
        from appliance.engine.ort import OrtBackend

        return OrtBackend(config.threads, spinning=config.spinning)
    if name == "openvino":
        from appliance.engine.openvino import OpenVinoBackend

        return OpenVinoBackend(config.threads)  # its threads do not spin
    raise BundleError(f"backend {name!r} is not built in; available: {', '.join(BACKENDS)}")

"""The backends by name. A runtime is imported when its backend is opened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.config import EngineConfig
from appliance.engine.backend import Backend
from appliance.engine.build import Report
from appliance.errors import BundleError

logger = logging.getLogger(__name__)

AUTO = ("tensorrt", "ort-cuda", "ort-cpu")
"""Backends that `auto` tries, the quickest first."""


@dataclass(frozen=True)
class Options:
    """Options that backends are opened with; each reads those that concern it."""

    threads: int = 0
    """CPU threads; 0 takes one for each core."""
    spinning: bool = False
    cache: Path = EngineConfig.cache
    """Folder of what is built for this device."""
    report: Report = logger.debug
    """Given lines about what takes minutes."""


def _ort_cpu(options: Options) -> Backend:
    from appliance.engine.ort import OrtBackend

    return OrtBackend(options.threads, spinning=options.spinning)


def _openvino(options: Options) -> Backend:
    from appliance.engine.openvino import OpenVinoBackend

    return OpenVinoBackend(options.threads)  # its threads do not spin


def _ort_cuda(options: Options) -> Backend:
    from appliance.engine.ort_cuda import OrtCudaBackend

    return OrtCudaBackend()


def _tensorrt(options: Options) -> Backend:
    from appliance.engine.trt import TrtBackend

    return TrtBackend(options.cache, report=options.report)


REGISTRY: dict[str, Callable[[Options], Backend]] = {
    "tensorrt": _tensorrt,
    "ort-cuda": _ort_cuda,
    "ort-cpu": _ort_cpu,
    "openvino": _openvino,
}


def open_backend(name: str, options: Options | None = None) -> Backend:
    """The backend called `name`. Raises BundleError for an unknown one, or one that is not installed."""
    if name not in REGISTRY:
        raise BundleError(f"backend {name!r} is not built in; available: {', '.join(REGISTRY)}")
    return REGISTRY[name](options or Options())

"""The backends by name. A runtime is imported when its backend is opened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path

from appliance.config import EngineConfig
from appliance.engine.backend import Backend
from appliance.errors import BundleError

logger = logging.getLogger(__name__)

AUTO = ("ort-cuda", "ort-cpu")
"""Backends that `auto` tries, the quickest first.

Without tensorrt, whose engines have been silently wrong at single shapes of this very model (TensorRT issue
4450) and which nothing here compares with the CPU's numbers yet.
"""


def _ort_cpu(threads: int, spinning: bool, cache: Path) -> Backend:
    from appliance.engine.ort import OrtBackend

    return OrtBackend(threads, spinning=spinning)


def _openvino(threads: int, spinning: bool, cache: Path) -> Backend:
    from appliance.engine.openvino import OpenVinoBackend

    return OpenVinoBackend(threads)  # its threads do not spin


def _ort_cuda(threads: int, spinning: bool, cache: Path) -> Backend:
    from appliance.engine.ort_cuda import OrtCudaBackend

    return OrtCudaBackend()


def _tensorrt(threads: int, spinning: bool, cache: Path) -> Backend:
    from appliance.engine.trt import TrtBackend

    return TrtBackend(cache)


REGISTRY: dict[str, Callable[[int, bool, Path], Backend]] = {
    "tensorrt": _tensorrt,
    "ort-cuda": _ort_cuda,
    "ort-cpu": _ort_cpu,
    "openvino": _openvino,
}


def open_backend(
    name: str, *, threads: int = 0, spinning: bool = False, cache: Path = EngineConfig.cache
) -> Backend:
    """The backend called `name`; in the folder `cache` it keeps what it builds for this device.

    Raises BundleError for an unknown one, or one that is not installed.
    """
    if name not in REGISTRY:
        raise BundleError(f"backend {name!r} is not built in; available: {', '.join(REGISTRY)}")
    return REGISTRY[name](threads, spinning, cache)


def open_first(
    backends: Collection[str],
    *,
    threads: int = 0,
    spinning: bool = False,
    cache: Path = EngineConfig.cache,
) -> Backend:
    """The first of AUTO that a bundle is for (`backends`) and that this machine has. Raises BundleError."""
    missing: list[str] = []
    for name in AUTO:
        if name in backends:
            try:
                return open_backend(name, threads=threads, spinning=spinning, cache=cache)
            except BundleError as error:
                logger.info("engine.backend auto: %s", error)
                missing.append(str(error))
    raise BundleError(
        "; ".join(missing) or f"the bundle is for {', '.join(backends)}: none of {', '.join(AUTO)}"
    )

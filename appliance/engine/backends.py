"""The backends by name. A runtime is imported when its backend is opened."""

from __future__ import annotations

from collections.abc import Callable

from appliance.engine.backend import Backend
from appliance.errors import BundleError


def _ort_cpu(threads: int, spinning: bool) -> Backend:
    from appliance.engine.ort import OrtBackend

    return OrtBackend(threads, spinning=spinning)


def _openvino(threads: int, spinning: bool) -> Backend:
    from appliance.engine.openvino import OpenVinoBackend

    return OpenVinoBackend(threads)  # its threads do not spin


REGISTRY: dict[str, Callable[[int, bool], Backend]] = {"ort-cpu": _ort_cpu, "openvino": _openvino}


def open_backend(name: str, *, threads: int = 0, spinning: bool = False) -> Backend:
    """The backend called `name`. Raises BundleError for an unknown one, or one that is not installed."""
    if name not in REGISTRY:
        raise BundleError(f"backend {name!r} is not built in; available: {', '.join(REGISTRY)}")
    return REGISTRY[name](threads, spinning)

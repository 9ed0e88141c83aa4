"""Machine and versions of a record that a stranger sends: what computes, and nothing about its owner."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import torch

from appliance.bench.machine import processor
from appliance.box.support.redact import replacing

PACKAGES = (
    *("torch", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "numpy"),
    *("safetensors", "huggingface-hub", "grpcio", "soundfile", "soxr", "pypinyin", "rjieba"),
    *("f5-tts", "vocos", "moonshine-voice", "jiwer"),
)
FLAGS = {
    *("f16c", "fma", "avx", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "fphp", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme"),
}
"""Features in /proc/cpuinfo by which products of matrices are chosen."""
THREADS = "OMP_NUM_THREADS"
ROOT = Path(__file__).resolve().parents[1]
COMMON_NAMES = frozenset(("root", "user", "ubuntu", "debian", "localhost", "audio", "voice", "demo"))
"""Names of users and hosts that name nobody, or are words of a record."""
ESPEAK_S = 30.0


def versions() -> dict[str, str]:
    # An editable installation keeps the version that it was made from.
    ours = re.search(r'(?m)^version = "(.+)"', _text(ROOT / "pyproject.toml"))
    found = {"f5-appliance": ours[1] if ours else "", "python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def espeak_version() -> str:
    """Version of libespeak-ng, or why there is none."""
    command = [sys.executable, "-m", "appliance.text.tokens.emilia.espeak"]
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ESPEAK_S
        )
        answer: dict[str, str] = json.loads(ran.stdout.partition("\n")[0])
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"not known: {error}"
    return answer.get("version") or f"none: {answer.get('missing')}"


def machine() -> dict[str, Any]:
    cpuinfo = _text(Path("/proc/cpuinfo"))
    words = {
        word
        for line in cpuinfo.splitlines()
        if line.startswith(("flags", "Features"))
        for word in line.split()
    }
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        distribution = ""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "distribution": distribution,
        "libc": " ".join(platform.libc_ver()),
        "architecture": platform.machine(),
        "processor": processor(cpuinfo),
        "flags": sorted(FLAGS & words),
        "cores": os.cpu_count(),
        "threads_of_torch": torch.get_num_threads(),
        "threads": os.environ.get(THREADS, ""),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


@dataclass
class Used:
    """Time from construction on."""

    begun: float = field(default_factory=time.monotonic)
    cpu_s: float = field(default_factory=lambda: cpu_s())

    def record(self) -> dict[str, float]:
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        return {
            "wall_s": round(time.monotonic() - self.begun, 2),
            "cpu_s": round(cpu_s() - self.cpu_s, 2),
            "peak_mb": round(peak_mb),
        }


def cpu_s() -> float:
    """CPU seconds of this process and of all that it started, ended or not."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # its own and those of children that have ended
    return total


def impersonal(places: Mapping[Path, str]) -> Callable[[Any], Any]:
    """Function that takes paths, names and addresses of this machine out of the texts in a JSON value.

    `places` are folders with the words that stand for them.
    """
    known = {
        ROOT: "CHECKOUT",
        Path(sys.prefix): "PYTHON",
        Path(tempfile.gettempdir()): "TMP",
        Path.home(): "~",
    }
    labels = {str(path): word for path, word in known.items()}
    labels |= {str(one): word for path, word in places.items() for one in (path.absolute(), path.resolve())}
    labels.pop("/", None)
    longest = sorted(labels, key=len, reverse=True)
    names = {name for name in _names() if len(name) > 2 and name not in COMMON_NAMES}
    scrub = replacing(names)

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            for path in longest:
                value = value.replace(path, labels[path])
            return scrub(value)
        if isinstance(value, Mapping):
            return {str(key): clean(item) for key, item in value.items()}
        return [clean(item) for item in value] if isinstance(value, (list, tuple)) else value

    return clean


def _names() -> Iterator[str]:
    with contextlib.suppress(KeyError, OSError, ImportError):
        yield getpass.getuser()
    yield Path.home().name
    host = socket.gethostname()
    yield from (host, host.partition(".")[0])
    yield urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc

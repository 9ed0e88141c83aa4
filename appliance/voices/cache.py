"""Cache of prepared references, in memory and on disk.

    FOLDER/SHA256-KIND.ref   SHA-256 of the rest of the file (32 bytes), then a NumPy .npz

SHA256 is the recording's. KIND is a hash of mel specification, level, trim version and any rule but F5's. A
reference has the same bytes whether it comes from memory, from disk or from a new preparation.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import logging
import re
import threading
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np

from appliance.contract.mel import MelSpec
from appliance.durable import locked, replace_file, sweep
from appliance.request import Features
from appliance.voices.reference import TRIM_VERSION
from appliance.voices.rules import F5, ConditioningRule

logger = logging.getLogger(__name__)

LEFTOVER_RULE = re.compile(r"\.[0-9a-f]{64}-[0-9a-f]{16}\.ref\.[0-9a-f]{8}")


class ReferenceCache:
    """References by the hash of their recording; the `entries` most recent are in memory. Thread-safe."""

    def __init__(
        self, folder: Path, spec: MelSpec, level: float, entries: int, rule: ConditioningRule = F5
    ) -> None:
        """`level`: smallest RMS of the samples."""
        self._folder = folder
        self._entries = entries
        kind = f"{spec.fingerprint}/{level}/{TRIM_VERSION}" + (f"/{rule.name}" if rule is not F5 else "")
        self._kind = hashlib.sha256(kind.encode()).hexdigest()[:16]
        self._recent: OrderedDict[str, Features] = OrderedDict()
        self._lock = threading.Lock()

    def in_memory(self, sha256: str) -> bool:
        """True if `get` needs no disk."""
        with self._lock:
            return sha256 in self._recent

    def get(self, sha256: str) -> Features | None:
        """Prepared reference; None if there is none, or its file is damaged."""
        with self._lock:
            if sha256 in self._recent:
                self._recent.move_to_end(sha256)
                return self._recent[sha256]
        features = _read(self._path(sha256))
        if features is not None:
            self._put_in_memory(sha256, features)
        return features

    def put(self, sha256: str, features: Features) -> None:
        """Store in memory and on disk. A failure to write the disk is logged."""
        self._put_in_memory(sha256, features)
        path = self._path(sha256)
        try:
            with locked(self._folder, fcntl.LOCK_SH):
                replace_file(path, _pack(features))
        except OSError as error:
            # A missing file only makes the first request after a restart slower.
            logger.warning("%s: prepared reference not kept: %s", path, error)

    def forget(self, sha256: str) -> None:
        """Remove a recording's references of every kind. Raises OSError."""
        with self._lock:
            self._recent.pop(sha256, None)
        for path in self._folder.glob(f"{sha256}-*.ref"):
            path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove the leftovers of an interrupted `put`. Raises StorageError."""
        sweep(self._folder, LEFTOVER_RULE)

    def _path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}-{self._kind}.ref"

    def _put_in_memory(self, sha256: str, features: Features) -> None:
        # Requests share the arrays.
        features.samples.flags.writeable = False
        features.log_mel.flags.writeable = False
        with self._lock:
            self._recent[sha256] = features
            self._recent.move_to_end(sha256)
            while len(self._recent) > self._entries:
                self._recent.popitem(last=False)


def _pack(features: Features) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, samples=features.samples, log_mel=features.log_mel, rms=np.float64(features.rms))
    body = buffer.getvalue()
    return hashlib.sha256(body).digest() + body


def _read(path: Path) -> Features | None:
    """Read prepared features. None if the file is missing or damaged, so that they are prepared again."""
    try:
        packed = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s: unreadable: %s", path, error)
        return None
    size = hashlib.sha256().digest_size
    if hashlib.sha256(packed[size:]).digest() != packed[:size]:
        logger.warning("%s: damaged; prepared again", path)
        return None
    try:
        with np.load(io.BytesIO(packed[size:]), allow_pickle=False) as arrays:
            return Features(arrays["samples"], arrays["log_mel"], float(arrays["rms"]))
    except (KeyError, ValueError, zipfile.BadZipFile):
        logger.warning("%s: not a prepared reference; prepared again", path)
        return None

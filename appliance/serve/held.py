"""File of moderators' decisions and held requests, for the next process."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

from appliance.durable import replace_file
from appliance.errors import StorageError
from appliance.fields import from_mapping
from appliance.scheduler.queue import Queue
from appliance.scheduler.workload import QueueState

logger = logging.getLogger(__name__)

NAME = ".held.json"
RESENT_S = 3_600.0
"""Age of a decision, in seconds, after which no client sends its request again: the longest queue_timeout."""
NOT_STORED = "in force until the daemon ends, but not stored"


class HeldFile:
    """Stores the state of a queue for the next process. Thread-safe."""

    def __init__(self, folder: Path, queue: Queue) -> None:
        """Restore the state that the previous process stored."""
        self._path, self._queue, self._lock = folder / NAME, queue, threading.Lock()
        self.damage = ""
        """Message about a file that cannot be read, else "".

        While it is set, every named channel is moderated.
        """
        self._stored = self._read()
        queue.restore(self._stored)

    def _read(self) -> QueueState:
        """Read the file. If it is damaged, every channel counts as moderated."""
        try:
            raw = json.loads(self._path.read_bytes())
            state = from_mapping(QueueState, raw, where=NAME, error=ValueError, ignore_unknown=True)
        except FileNotFoundError:
            return QueueState()
        except (OSError, ValueError, RecursionError) as error:
            self.damage = (
                f"{self._path} is damaged: the paused and moderated channels are lost, so each is "
                "moderated until you remove the file and restart the daemon"
            )
            logger.error("%s (%s)", self.damage, error)
            return QueueState(is_lost=True)
        oldest = time.time() - RESENT_S
        recent = {name: one for name, one in state.decisions.items() if one.wall > oldest}
        return replace(state, decisions=recent)

    def save(self) -> None:
        """Store the state if it has changed. Raises StorageError.

        A damaged file is not overwritten: it may have entries that the state lacks.
        """
        with self._lock:
            if (state := self._queue.keep()) == self._stored or self.damage:
                return
            try:
                replace_file(self._path, json.dumps(asdict(state)).encode(), 0o600)
            except OSError as error:
                raise StorageError(f"{NOT_STORED}: {error.strerror}") from error
            self._stored = state

"""Listener of the scheduler's takes: a recogniser in a process of its own, at idle priority."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from appliance.audio.recogniser import HEAD
from appliance.config import SchedulerConfig
from appliance.errors import ConfigError
from appliance.request import FloatArray
from appliance.text.heard import plain, wrong_words

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "appliance.audio.recogniser")
PATIENCE_S = 120.0
"""Silence of the process after which it is killed; on a busy machine idle time comes late."""


def check_recogniser(config: SchedulerConfig) -> None:
    """Raises ConfigError where proofs are asked for without a recogniser."""
    if config.proof == "idle" and importlib.util.find_spec("moonshine_voice") is None:
        raise ConfigError(
            "scheduler.proof: idle needs a speech recogniser: pip install moonshine-voice==0.1.0 "
            "(the extra `proof`), or set it to off"
        )


class Proofreader:
    """Starts the process when there is something to hear; after its death it hears nothing more."""

    def __init__(self, rate_hz: int, command: tuple[str, ...] = COMMAND) -> None:
        self._rate_hz, self._command = rate_hz, command
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="proof")
        self._process: subprocess.Popen[bytes] | None = None
        self._is_deaf = False

    def hear(self, text: str, samples: FloatArray, heard: Callable[[int | None], None]) -> None:
        """See `takes.Listener`."""
        with contextlib.suppress(RuntimeError):  # it is closed
            self._thread.submit(lambda: heard(self._wrong(text, samples)))

    def close(self) -> None:
        self._is_deaf = True
        if self._process is not None:
            self._process.kill()
        self._thread.shutdown(cancel_futures=True)
        if self._process is not None:
            self._process.communicate()

    def _wrong(self, text: str, samples: FloatArray) -> int | None:
        """Words wrong; None: it was not heard."""
        if not plain(text):
            return 0
        if self._is_deaf:
            return None
        try:
            return wrong_words(text, self._transcript(samples))
        except (OSError, EOFError) as error:
            if not self._is_deaf:
                logger.error("the recogniser died, and no reply is proven until a restart: %s", error)
            self._is_deaf = True
            return None

    def _transcript(self, samples: FloatArray) -> str:
        """Raises OSError, EOFError."""
        if self._process is None:
            # Its own session: what interrupts the daemon in a terminal leaves it alone.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        alarm = threading.Timer(PATIENCE_S, process.kill)
        alarm.start()
        try:
            process.stdin.write(HEAD.pack(self._rate_hz, len(samples)) + samples.tobytes())
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            alarm.cancel()
        if not line:
            raise EOFError(f"exit status {process.wait()}")
        return line.decode()

"""Playback on this machine while a reply arrives."""

from __future__ import annotations

import queue
import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from appliance.audio.wav import SAMPLE_BYTES
from appliance.cli.options import Failure

AHEAD_S = 1.0
"""Seconds of audio that are still unplayed when the next line is requested."""
NOTHING_PLAYS = "nothing here plays sound: install aplay (Debian: alsa-utils)"


class Player:
    """Plays mono PCM16 in a thread, so that a reply is received as fast as the daemon sends it."""

    def __init__(self) -> None:
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._waiting = self._rate_hz = 0
        self._thread: threading.Thread | None = None
        self._failure: Failure | None = None

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        self._pieces.put(None)
        if kind is None:
            self._thread.join()
            self._check()

    def play(self, pcm: bytes, rate_hz: int) -> None:
        """Play audio after the audio that waits. Raises Failure if it cannot be played."""
        if self._thread is None:
            self._rate_hz, write = rate_hz, _aplay(rate_hz)
            self._thread = threading.Thread(target=self._run, args=(write,), daemon=True)
            self._thread.start()
        with self._changed:
            self._waiting += len(pcm)
        self._pieces.put(pcm)
        self._check()

    def wait(self) -> None:
        """Wait until at most AHEAD_S are unplayed. Raises Failure."""
        ahead = AHEAD_S * SAMPLE_BYTES * self._rate_hz
        with self._changed:
            self._changed.wait_for(lambda: self._waiting <= ahead or self._failure is not None)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self, write: Callable[[bytes | None], None]) -> None:
        try:
            while (pcm := self._pieces.get()) is not None:
                write(pcm)
                with self._changed:
                    self._waiting -= len(pcm)
                    self._changed.notify_all()
            write(None)
        except Failure as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()


def _aplay(rate_hz: int) -> Callable[[bytes | None], None]:
    """Return a function that plays bytes; with None it waits for the end of the sound. Both raise Failure."""
    path = shutil.which("aplay")
    if path is None:
        raise Failure(NOTHING_PLAYS)
    command = [path, "--quiet", "--file-type=raw", "--format=S16_LE", "--channels=1", f"--rate={rate_hz}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None
    into, errors = process.stdin, process.stderr

    def write(pcm: bytes | None) -> None:
        with suppress(BrokenPipeError):  # the program has ended
            if pcm is not None:
                into.write(pcm)
                into.flush()
                return
        with suppress(BrokenPipeError):
            into.close()
        with errors:
            lines = errors.read().decode(errors="replace").strip().splitlines()
        if process.wait() or pcm is not None:
            raise Failure(lines[-1] if lines else f"aplay ended with {process.returncode}")

    return write

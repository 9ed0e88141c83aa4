"""Text → phones of a voice of espeak, one by one, by a process that lives as long as this one."""

from __future__ import annotations

import atexit
import contextlib
import difflib
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from appliance.errors import InvalidRequest, PhonesMissing
from appliance.text.tokens.emilia.espeak import VOICE
from appliance.text.tokens.emilia.marks import joined, single

logger = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("espeak.py")
REMEDY = "with the internet: sudo apt install libespeak-ng1"
PATIENCE_S = 5.0
"""Longest wait for an answer, in seconds. 10,000 characters take 0.05 s."""
START_S = 20.0
RETRY_S = 30.0
"""Seconds until a missing library is searched for again."""
LARGEST_ANSWER = 64 << 20
NAMED_LANGUAGES = 8
"""Most languages that a message names."""
USUAL_LANGUAGES = ("de", "en-gb", "es", "fr-fr", "hi", "pt-br", "ru", "tr")
REPLACED = {"pt-br": {"c": "k"}}
"""Voice → espeak's phone → the phone that piper_phonemize writes in its place."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Espeak:
    """The espeak process.

    It starts at its first use, and again if it has died. Thread-safe; one text at a time.
    """

    def __init__(
        self, command: tuple[str, ...] = (sys.executable, "-I", str(PROGRAM)), patience_s: float = PATIENCE_S
    ) -> None:
        self._command, self._patience_s = command, patience_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._received = b""
        self._missing, self._missing_until = "", 0.0
        self._version = ""

    @property
    def version(self) -> str:
        """Version of the library. Raises PhonesMissing."""
        with self._lock:
            self._started()
            return self._version

    def phones(self, text: str, voice: str = VOICE) -> tuple[str, ...]:
        """Phones of a text. Raises PhonesMissing, also for a voice that the library lacks.

        Raises InvalidRequest for a text on which the library fails.
        """
        with self._lock:
            answer = self._answer(voice, single(_CONTROL.sub(" ", text)))
        if isinstance(answer, dict):
            raise PhonesMissing(self._unknown(voice, answer["languages"]))
        replaced = REPLACED.get(voice, {})
        return tuple(replaced.get(phone, phone) for phone in joined(answer))

    def close(self) -> None:
        with self._lock:
            self._end()

    def _unknown(self, voice: str, languages: Sequence[Sequence[str]]) -> str:
        own = {names[0] for names in languages}
        near = [
            names[0] for names in languages if voice.partition("-")[0] in (n.partition("-")[0] for n in names)
        ]
        near += difflib.get_close_matches(voice, own, NAMED_LANGUAGES)
        suggestions = list(dict.fromkeys([*near, *(name for name in USUAL_LANGUAGES if name in own)]))
        return (
            f"espeak-ng {self._version} has no language {voice!r}; of its {len(own)} there are "
            f"{', '.join(suggestions[:NAMED_LANGUAGES])}: `espeak-ng --voices` lists all"
        )

    def _answer(self, voice: str, text: str) -> Any:
        # The process may have died before this text, which is then not at fault.
        for _ in range(2):
            channel = self._started()
            try:
                return self._exchange(channel, json.dumps([voice, text]).encode() + b"\n", self._patience_s)
            except (OSError, ValueError) as error:
                logger.warning("espeak restarts after %d characters: %s", len(text), error)
                self._end()
                if isinstance(error, TimeoutError):
                    break
        raise InvalidRequest("text", "cannot be turned into phones: espeak fails on it; rephrase it")

    def _started(self) -> socket.socket:
        """Start espeak's process if it is not running.

        Raises PhonesMissing; tries again only after RETRY_S.
        """
        if self._channel is not None:
            return self._channel
        if time.monotonic() < self._missing_until:
            raise self._refusal()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self._channel, self._received = ours, b""
            answer = self._exchange(ours, b"", START_S)
        except (OSError, ValueError) as error:
            answer = {"missing": f"its process does not start: {error}"}
        if "version" not in answer:
            self._end()
            ours.close()
            self._missing, self._missing_until = answer["missing"], time.monotonic() + RETRY_S
            raise self._refusal()
        self._version = answer["version"]
        return ours

    def _refusal(self) -> PhonesMissing:
        return PhonesMissing(f"this bundle reads text through espeak-ng: {self._missing}; {REMEDY}")

    def _exchange(self, channel: socket.socket, line: bytes, patience_s: float) -> Any:
        """Send a line and read the answer.

        Raises OSError, also if the process has ended or is too slow, and ValueError.
        """
        end = time.monotonic() + patience_s
        channel.settimeout(patience_s)
        if line:  # sending fails, even of no bytes, if the process reported a missing library and ended
            channel.sendall(line)
        while b"\n" not in self._received:
            channel.settimeout(max(end - time.monotonic(), 1e-3))
            part = channel.recv(1 << 16)
            if not part or len(self._received) > LARGEST_ANSWER:
                raise ConnectionError("it closed its output" if not part else "its answer has no end")
            self._received += part
        answer, _, self._received = self._received.partition(b"\n")
        return json.loads(answer)

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._patience_s)
        self._channel = self._process = None


SHARED = Espeak()
"""The process that all parts of this process share."""
atexit.register(SHARED.close)

"""Telling systemd how the daemon is: the datagrams of sd_notify(3), sent without its library.

Without $NOTIFY_SOCKET, as on a terminal, nothing is sent and nothing is wrong. Any thread may call.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)

SEND_S = 1.0
"""How long a supervisor may take to make room for a message; systemd's own library waits for ever."""
MAX_STATUS_CHARACTERS = 500
"""systemd drops a datagram over 4096 bytes whole; no character has more than 4."""


class Notifier:
    """One supervisor's socket, or none."""

    def __init__(self, address: str = "", *, watchdog_s: float = 0.0) -> None:
        """`address` is a path, or `@name` for an abstract socket; empty: nobody is told."""
        self.watchdog_s = watchdog_s
        """How often the supervisor wants a sign of life, at least; 0 when it wants none."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._failed = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Notifier:
        """What systemd has put into the environment of this process."""
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog_s=_watchdog_s(environment))

    def ready(self) -> None:
        """Start-up is complete."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={' '.join(text.split())[:MAX_STATUS_CHARACTERS]}")

    def watchdog(self) -> None:
        """A sign of life."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Shutting down has begun."""
        self._send("STOPPING=1")

    def extend(self, seconds: float) -> None:
        """Starting or stopping takes so much longer, counted from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_S)
                sender.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            # Once: without a supervisor that listens this would be said every few seconds.
            if not self._failed:
                logger.warning("$NOTIFY_SOCKET cannot be told %s: %s", message.partition("=")[0], error)
            self._failed = True


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """0 when there is no watchdog, or it watches another process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    period = environment.get("WATCHDOG_USEC", "")
    return int(period) / 1e6 if period.isdecimal() else 0.0

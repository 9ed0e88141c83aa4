"""Datagrams of sd_notify(3). Any thread may send them.

If $NOTIFY_SOCKET is not set, as on a terminal, nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)

SEND_S = 1.0
"""Timeout for a supervisor whose queue is full. systemd's own library waits forever."""
MAX_STATUS_CHARACTERS = 500
"""Longest status: systemd drops a datagram over 4096 bytes, and a character has up to 4."""


class Notifier:
    """Sends the state of this process to systemd."""

    def __init__(self, address: str = "", *, watchdog_s: float = 0.0) -> None:
        """`address` is a path, or `@name` for an abstract socket; "" sends nothing."""
        self.watchdog_s = watchdog_s
        """Longest interval between two calls of `watchdog`; 0 if there is no watchdog."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._failed = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Notifier:
        """Read $NOTIFY_SOCKET, $WATCHDOG_USEC and $WATCHDOG_PID."""
        period = environment.get("WATCHDOG_USEC", "")
        # The watchdog may belong to another process, from which this one inherited the environment.
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_s = int(period) / 1e6 if is_ours and period.isdecimal() else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog_s=watchdog_s)

    def ready(self) -> None:
        self._send("READY=1")

    def status(self, text: str) -> None:
        self._send(f"STATUS={' '.join(text.split())[:MAX_STATUS_CHARACTERS]}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def extend(self, seconds: float) -> None:
        """Extend systemd's timeout for starting or stopping to `seconds` from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def _send(self, message: str) -> None:
        """Send a message to systemd. A failure is logged once."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_S)
                sender.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            # The failure is logged once: without a listening supervisor it would come every few seconds.
            if not self._failed:
                logger.warning("cannot send %s to $NOTIFY_SOCKET: %s", message.partition("=")[0], error)
            self._failed = True

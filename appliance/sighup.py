"""SIGHUP during the start of a program, whose imports alone take half a second.

By default the signal ends the program, and systemd does not start it again.
"""

from __future__ import annotations

import signal


def expect(command: str) -> None:
    """Hold the signal until `answer` in `serve`; ignore it in programs that read the configuration once."""
    if command == "serve":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    elif command in ("gateway", "wyoming"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def answer() -> None:
    """Pass the held signal, and all later ones, to the handler."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

"""SIGHUP while a program starts, whose imports alone take half a second.

Its default is to end the program, and systemd takes that end for a wish.
"""

from __future__ import annotations

import signal


def expect(command: str) -> None:
    """Call it first: `serve` keeps a hangup until it can `answer`; the others have nothing to read again."""
    if command == "serve":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    elif command in ("gateway", "wyoming"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def answer() -> None:
    """Let the handler have the hangup that was kept, and all that come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

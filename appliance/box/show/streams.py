"""Text for terminals: without control characters, in any encoding."""

from __future__ import annotations

import contextlib
import io
import sys


def open_streams() -> None:
    """Let stdout and stderr show a question mark for what their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(line: str) -> None:
    """Print a line at once. A terminal that was closed ends no setup and no rollback."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


def plain(text: str) -> str:
    """Output of other programs must not control root's terminal."""
    return "".join(character if character.isprintable() else " " for character in text)

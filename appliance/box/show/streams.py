"""Text for terminals: without control characters, in any encoding."""

from __future__ import annotations

import contextlib
import io
import sys


def open_streams() -> None:
    """Let stdout and stderr print a question mark for characters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(line: str) -> None:
    """Print a line at once. A closed terminal must not end a setup or a rollback."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


def plain(text: str) -> str:
    """Text without control characters: the output of other programs must not control root's terminal."""
    return "".join(character if character.isprintable() else " " for character in text)

"""Text for terminals: without control characters, and with marks for letters that an encoding lacks."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys

STAND_INS = {"·": "|", "×": "x", "…": "...", "–": "-", "→": "->", "●": "*"}
"""Stand-ins for our marks; any other letter becomes a question mark."""


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(STAND_INS.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("stand-in", _stand_in)


def open_streams(errors: str = "replace") -> None:
    """Let stdout and stderr show a mark for what their encoding lacks; with "stand-in" STAND_INS, too."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def say(line: str) -> None:
    """Print a line at once. A terminal that was closed ends no setup and no rollback."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


def plain(text: str) -> str:
    """Output of other programs must not control root's terminal."""
    return "".join(character if character.isprintable() else " " for character in text)

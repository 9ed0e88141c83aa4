"""Rewriting of a text by patterns, with a list of the changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from appliance.job import Change

MOST_CHANGES = 32
MOST_CHARACTERS = 60


@dataclass
class Rewriting:
    """A text being rewritten, with the first MOST_CHANGES changes."""

    text: str
    changes: list[Change] = field(default_factory=list)

    def sub(self, kind: str, pattern: str, to: str | Callable[[re.Match[str]], str | None]) -> None:
        """Replace each match, ignoring case; None from a callable leaves it unchanged."""

        def replaced(match: re.Match[str]) -> str:
            new = match.expand(to) if isinstance(to, str) else to(match)
            if new is None or new == match[0]:
                return match[0]
            self.note(kind, match[0], new)
            return new

        self.text = _compiled(pattern).sub(replaced, self.text)

    def note(self, kind: str, before: str, after: str) -> None:
        if len(self.changes) < MOST_CHANGES:
            before, after = (shortened(text.strip()) for text in (before, after))
            self.changes.append(Change(kind, before, after))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def shortened(text: str) -> str:
    """Cut a text to at most MOST_CHARACTERS."""
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"

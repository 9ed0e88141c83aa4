"""A text that is being rewritten, and its changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.request import Change

MOST_CHANGES = 4_096
"""Most changes in the list: as many as the longest text can have."""
MOST_CHARACTERS = 60


@dataclass
class Rewriting:
    """A text, its first MOST_CHANGES changes, and later ones if they are the first of their kind."""

    text: str
    changes: list[Change] = field(default_factory=list)
    _kinds: set[str] = field(default_factory=set)

    def sub(self, kind: str, pattern: re.Pattern[str], to: Callable[[re.Match[str]], str]) -> None:
        """Replace matches, and note each change."""

        def replaced(match: re.Match[str]) -> str:
            new = to(match)
            if new != match[0]:
                self.note(kind, match[0], new)
            return new

        self.text = pattern.sub(replaced, self.text)

    def note(self, kind: str, before: str, after: str) -> None:
        if len(self.changes) < MOST_CHANGES or kind not in self._kinds:
            self._kinds.add(kind)
            before, after = (shortened(text.strip()) for text in (before, after))
            self.changes.append(Change(kind, before, after))


def shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"

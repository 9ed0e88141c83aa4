"""Hindi: its numbers, with lakh and crore, and times of day, with quarters."""

from __future__ import annotations

import re

from appliance.text.languages.grammar import BaseGrammar
from appliance.text.spans import Kind, Table

_PARTS = ((4, "रात"), (12, "सुबह"), (16, "दोपहर"), (20, "शाम"), (24, "रात"))
"""The hour that each part of the day ends with, and its word."""


class Grammar(BaseGrammar):
    def decimals(self, whole: str, part: str) -> str:
        if part == "5" and whole != "0":
            return self.numerals.say("half", int(whole))
        return f"{self.cardinal(int(whole))} दशमलव {self.digits(part)}"

    def clock(self, hour: int, minute: int, marked: bool) -> str:
        """Words of a time of day, with the words for quarters."""
        if not minute:
            return f"{self.cardinal(hour)} बजे"
        if not 1 <= hour <= 12 or minute not in (15, 30, 45):
            return f"{self.cardinal(hour)} बजकर {self.cardinal(minute)} मिनट"
        if minute == 30:
            return f"{self.half(hour)} बजे"
        return f"सवा {self.cardinal(hour)} बजे" if minute == 15 else f"पौने {self.cardinal(hour % 12 + 1)} बजे"

    def digit_rules(self) -> Table:
        return ((Kind.TIME, r"(?i)(\d{1,2})(?:[:.](\d\d))?\s?([ap])\.?m\b\.?", self._half_day),)

    def _half_day(self, match: re.Match[str]) -> str | None:
        hour, minute = int(match[1]), int(match[2] or 0)
        if not (1 <= hour <= 12 and minute < 60):
            return None
        time = self.clock(hour, minute, True)
        if re.search(r"(?:सुबह|दोपहर|शाम|रात|आज|कल)\s(?:को\s)?$", match.string[: match.start()]):
            return time
        full = hour % 12 + (12 if match[3] in "pP" else 0)
        return f"{next(part for end, part in _PARTS if full < end)} {time}"

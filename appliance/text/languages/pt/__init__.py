"""Portuguese, as in Brazil: its numbers and ordinals, with gender."""

from __future__ import annotations

import re

from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Table


class Grammar(Speech):
    def digit_rules(self) -> Table:
        metres = r"([12])\s?m\s?(\d\d)(?!\w)"
        return (
            (Kind.NUMBER, r"(\d{1,4})\s?([ºª])(?!\w)", self._ordinal),
            (Kind.NUMBER, r"(\d{1,3})°(?=\s[^\W\d_])", self.numbered),
            (Kind.UNIT, metres, lambda m: f"{self.in_unit(m[1], 'm')} e {self.cardinal(int(m[2]))}"),
        )

    def _ordinal(self, match: re.Match[str]) -> str:
        if match[2] == "º" and self.is_weather(match):
            return self.in_unit(match[1], "°")
        return self.ordinal(int(match[1]), "f" if match[2] == "ª" else "")

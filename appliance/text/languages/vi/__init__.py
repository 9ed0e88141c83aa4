"""Vietnamese: its numbers, with mốt, lăm and linh, and the halves and tenths of millions: 1tr5."""

from __future__ import annotations

import re

from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Table


class Grammar(Speech):
    def digit_rules(self) -> Table:
        return (
            (Kind.MONEY, r"(\d+)\s?(tr|tỷ|triệu)\s?(\d)(?!\w)", self._tenths),
            (
                Kind.UNIT,
                r"(\d)m(\d{1,2})(?!\w)",
                lambda m: f"{self.in_unit(m[1], 'm')} {self.cardinal(int(m[2]))}",
            ),
        )

    def _tenths(self, match: re.Match[str]) -> str:
        """1tr5, 2tr3"""
        scale = "triệu" if match[2] == "tr" else match[2]
        part = "rưỡi" if match[3] == "5" else self.cardinal(int(match[3]))
        return f"{self.cardinal(int(match[1]))} {scale} {part}"

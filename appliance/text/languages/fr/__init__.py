"""French: its numbers, with soixante-dix and quatre-vingts."""

from __future__ import annotations

import re

from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Table, before


class Grammar(Speech):
    def ordinal(self, number: int, ending: str = "") -> str:
        if number == 1:
            return "première" if ending == "f" else "premier"
        words = re.sub("(?<=cent|ingt|lion)s$", "", self.cardinal(number))
        words = re.sub("(?<=cin)q$", "qu", re.sub("neuf$", "neuv", words))
        return f"{words.removesuffix('e')}ième"

    def form(self, number: str) -> int:
        return int(float(number) >= 2)

    def digit_rules(self) -> Table:
        return (
            (Kind.TIME, r"(\d{1,2})\s?h\s?1/2(?!\w)", lambda m: f"{self.in_unit(m[1], 'h')} et demie"),
            (Kind.NUMBER, r"(\d{1,3})°(?=\s[^\W\d_])", self.numbered),
            (Kind.YEAR, r"([1-9]0)['’]?s(?!\w)", self._decade),
            (Kind.FRACTION, r"(16(?=/9)|21(?=/9)|4(?=/3))/(9|3)(?![\w/])", self._ratio),
            (
                Kind.UNIT,
                r"([12])\s?m\s?(\d\d)(?!\w)",
                lambda m: f"{self.in_unit(m[1], 'm')} {self.spoken(m[2])}",
            ),
            (Kind.TIME, r"(?i)(\d|1\d|2[0-4])\s?h(?!\w|\s\d)", lambda m: self.clock(int(m[1]), 0, True)),
        )

    def _decade(self, match: re.Match[str]) -> str | None:
        """les 90's"""
        is_decade = re.search(r"(?i)(?<!\w)(?:les|années|des) $", before(match))
        return self.cardinal(int(match[1])) if is_decade else None

    def _ratio(self, match: re.Match[str]) -> str | None:
        """A screen in 16/9; not le 16/9, or 16/9 à 20h."""
        is_date = re.search(r"(?i)(?<!\w)(?:le|du|au) $", before(match)) or re.match(
            r"\s(?:à|vers)\s\d{1,2}\s?[h:]", match.string[match.end() :]
        )
        return (
            None
            if is_date
            else f"{self.cardinal(int(match[1]))} {'tiers' if match[2] == '3' else 'neuvièmes'}"
        )

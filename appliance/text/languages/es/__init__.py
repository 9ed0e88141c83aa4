"""Spanish: its numbers and ordinals, with gender."""

from __future__ import annotations

import re

from appliance.text.languages.facets import Noun
from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Table, before

_FEMININE_ENDINGS = ("ª", "ra", "da", "ta", "ma", "va", "na", "a")


class Grammar(Speech):
    def digit_rules(self) -> Table:
        endings = "º|ª|ero|er|ro|ra|do|da|to|ta|mo|ma|vo|va|no|na|o|a"
        return (
            (Kind.NUMBER, rf"(?i)(\d{{1,2}})\.?({endings})(?![\w])", self._ordinal),
            (Kind.YEAR, r"([1-9]0)['’]?s(?!\w)", self._decade),
            (Kind.NUMBER, r"(\d{1,2})°(?=\s[^\W\d_])", self.numbered),
            (Kind.TIME, r"1(?![\w:/-]|[.,]\d)", self._one_o_clock),
        )

    def letter_rules(self) -> Table:
        return ((Kind.MONEY, r"S/\.?\s?(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d\d))?(?![\w]|[.,]\d)", self._soles),)

    def _ordinal(self, match: re.Match[str]) -> str:
        ending = match[2].lower()
        if ending == "º" and self.is_weather(match):
            return self.in_unit(match[1], "°")
        is_short = ending == "er" or (ending != "ero" and self.followed(match))
        return self.ordinal(int(match[1]), "f" if ending in _FEMININE_ENDINGS else "m" if is_short else "")

    def _decade(self, match: re.Match[str]) -> str | None:
        """los 90s"""
        is_decade = re.search(r"(?i)(?<!\w)(?:los|años|de) $", before(match))
        return self.cardinal(int(match[1])) if is_decade or match[0][-2] in "'’" else None

    def _one_o_clock(self, match: re.Match[str]) -> str | None:
        return "una" if re.search(r"(?i)(?<!\w)(?:a|de|desde|hasta|sobre|es) la $", before(match)) else None

    def _soles(self, match: re.Match[str]) -> str:
        """S/ 20"""
        soles = self.counted(match[1].replace(",", ""), Noun(("sol", "soles"), "m"))
        return soles + (f" con {self.cardinal(int(match[2]))}" if match[2] and int(match[2]) else "")

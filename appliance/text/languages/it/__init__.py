"""Italian: its numbers and ordinals, with gender."""

from __future__ import annotations

import re

from appliance.text.languages.facets import Noun
from appliance.text.languages.quantity import roman
from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Table, before


class Grammar(Speech):
    def cardinal(self, number: int, gender: str = "") -> str:
        return super().cardinal(number, gender).replace("trémila", "tremila")

    def ordinal(self, number: int, ending: str = "") -> str:
        if 0 < number <= 10:
            words = self.lists["ordinals"][number]
        else:
            words = self.cardinal(number).replace("tré", "tre")
            words = (words if words.endswith(("tre", "sei")) else words[:-1]) + "esimo"
        return re.sub("o$", "a", words) if ending == "f" else words

    def regnal(self, number: int, gender: str) -> str:
        return self.ordinal(number, gender)

    def counted(self, number: str, noun: Noun) -> str:
        return re.sub(r"^una (?=[aeiou])", "un'", super().counted(number, noun))

    def digit_rules(self) -> Table:
        dotted = r"([01]?\d|2[0-3])\.([0-5]\d)(?![\w%€°]|[.,:/]\d|\s?€)"
        return (
            (Kind.NUMBER, r"(\d{1,3})[°'’](?!\w)", self._placed),
            (Kind.NUMBER, r"(\d{1,4})\s?([ºª])(?!\w)", self._ordinal),
            (Kind.NUMBER, r"(\d{1,3})°(?=\s[^\W\d_])", self.numbered),
            (Kind.TIME, dotted, self._dotted),
        )

    def letter_rules(self) -> Table:
        century = r"([IVX]{1,6})(?=\s(?:secolo(?!\w)|sec\.))|(?:(?<=secolo\s)|(?<=sec\. ))([IVX]{1,6})(?!\w)"
        return ((Kind.ROMAN, century, lambda m: self.ordinal(roman(m[1] or m[2]))),)

    def _ordinal(self, match: re.Match[str]) -> str:
        if match[2] == "º" and self.is_weather(match):
            return self.in_unit(match[1], "°")
        return self.ordinal(int(match[1]), "f" if match[2] == "ª" else "")

    def _placed(self, match: re.Match[str]) -> str | None:
        """il 5°, al 90'"""
        is_placed = re.search(r"(?i)(?<!\w)(?:il|al|del|dal|nel|sul) $", before(match))
        return self.ordinal(int(match[1])) if is_placed and not self.is_weather(match) else None

    def _dotted(self, match: re.Match[str]) -> str | None:
        """alle 20.30"""
        is_told = re.search(r"(?i)(?<!\w)(?:d?alle|ore|h\.?|verso le) $", before(match))
        return self.clock(int(match[1]), int(match[2]), False) if is_told else None

"""Portuguese, as in Brazil: its numbers and ordinals, with gender."""

from __future__ import annotations

import re

from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Table

_SCALES = ((10**9, "um bilhão", "bilhões"), (10**6, "um milhão", "milhões"), (1_000, "mil", "mil"))


class Grammar(Speech):
    def cardinal(self, number: int, gender: str = "") -> str:
        """Uma, duas and duzentas before a feminine noun."""
        for size, one, many in _SCALES:
            if number >= size:
                count, rest = divmod(number, size)
                kind = gender if size == 1_000 else ""
                words = one if count == 1 else f"{self.cardinal(count, kind)} {many}"
                if not rest:
                    return words
                # The last two digits, or round hundreds, are joined by "e".
                joint = " e " if rest < 100 or (rest < 1_000 and rest % 100 == 0) else " "
                return words + joint + self.cardinal(rest, gender)
        if number == 100:
            return "cem"
        if number >= 100:
            count, rest = divmod(number, 100)
            hundred = self.lists["hundreds"][count]
            hundred = re.sub("os$", "as", hundred) if gender == "f" else hundred
            return hundred + (f" e {self.cardinal(rest, gender)}" if rest else "")
        if number >= 20:
            tens, ones = divmod(number, 10)
            return self.lists["tens"][tens] + (f" e {self.cardinal(ones, gender)}" if ones else "")
        if gender == "f" and number in (1, 2):
            return "uma" if number == 1 else "duas"
        return self.lists["small"][number]

    def ordinal(self, number: int, ending: str = "") -> str:
        """Up to 99."""
        if not 0 < number < 100:
            return self.cardinal(number, ending)
        tens, ones = divmod(number, 10)
        ten = self.lists["ordinal tens"][tens] if tens else ""
        words = f"{ten} {self.lists['ordinals'][ones] if ones else ''}".strip()
        return re.sub(r"o\b", "a", words) if ending == "f" else words

    def regnal(self, number: int, gender: str) -> str:
        return self.ordinal(number, gender) if number < 11 else self.cardinal(number)

    def half(self, whole: int) -> str:
        return f"{self.cardinal(whole)} e meio"

    def clock(self, hour: int, minute: int, marked: bool) -> str:
        words = self.cardinal(hour, "f")
        return f"{words} e {self.cardinal(minute)}" if minute else f"{words} hora{'s' * (hour != 1)}"

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

"""Spanish: its numbers and ordinals, with gender."""

from __future__ import annotations

import re

from appliance.text.languages.facets import Noun
from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Table, before

_FEMININE_ENDINGS = ("ª", "ra", "da", "ta", "ma", "va", "na", "a")


class Grammar(Speech):
    def cardinal(self, number: int, gender: str = "") -> str:
        """Un before a masculine noun, una and doscientas before a feminine one."""
        for size, one, many in ((10**6, "un millón", "millones"), (1_000, "mil", "mil")):
            if number >= size:
                count, rest = divmod(number, size)
                kind = gender if size == 1_000 and gender else "m"
                words = one if count == 1 else f"{self.cardinal(count, kind)} {many}"
                return words + (f" {self.cardinal(rest, gender)}" if rest else "")
        if number >= 100:
            count, rest = divmod(number, 100)
            if number == 100:
                return "cien"
            hundred = self.lists["hundreds"][count]
            hundred = re.sub("os$", "as", hundred) if gender == "f" else hundred
            return hundred + (f" {self.cardinal(rest, gender)}" if rest else "")
        tens, ones = divmod(number, 10)
        small = self.lists["small"]
        words = (
            small[number] if number < 30 else self.lists["tens"][tens] + (f" y {small[ones]}" if ones else "")
        )
        if gender == "m":
            return re.sub("uno$", "ún" if number == 21 else "un", words)
        return re.sub("uno$", "una", words) if gender == "f" else words

    def ordinal(self, number: int, ending: str = "") -> str:
        """Up to 99; "m" before a noun."""
        if not 0 < number < 100:
            return self.cardinal(number, ending)
        tens, ones = divmod(number, 10)
        names = self.lists["ordinals"]
        words = (
            names[number] if number < 13 else f"{self.lists['ordinal tens'][tens]} {names[ones] * bool(ones)}"
        )
        if ending == "m":
            return re.sub("(?<=er)o$", "", words.strip())
        return re.sub(r"o\b", "a", words.strip()) if ending == "f" else words.strip()

    def regnal(self, number: int, gender: str) -> str:
        return self.ordinal(number, gender.strip("m")) if number < 11 else self.cardinal(number)

    def half(self, whole: int) -> str:
        return f"{self.cardinal(whole)} y medio"

    def clock(self, hour: int, minute: int, marked: bool) -> str:
        words = self.cardinal(hour, "f")
        if not minute:
            return f"{words} hora{'s' * (hour != 1)}" if marked or hour > 12 or not hour else words
        if 0 < hour <= 12:
            return f"{words} y {self.cardinal(minute)}"
        return f"{words} {'cero ' if minute < 10 else ''}{self.cardinal(minute)}"

    def digit_rules(self) -> Table:
        endings = "º|ª|ero|er|ro|ra|do|da|to|ta|mo|ma|vo|va|no|na|o|a"
        return (
            (Kind.NUMBER, rf"(?i)(\d{{1,2}})\.?({endings})(?![\w])", self._ordinal),
            (Kind.YEAR, r"([1-9]0)['’]?s(?!\w)", self._decade),
            (Kind.NUMBER, r"(\d{1,2})°(?=\s[^\W\d_])", self.numbered),
            (Kind.TIME, r"1(?![\w:/-]|[.,]\d|\s(?!y\s|en punto|pero|o\s)[^\W\d_])", self._one_o_clock),
        )

    def letter_rules(self) -> Table:
        return ((Kind.MONEY, r"S/\.?\s?(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d\d))?(?![\w]|[.,]\d)", self._soles),)

    def _ordinal(self, match: re.Match[str]) -> str:
        ending = match[2].lower()
        if ending == "º" and self.is_weather(match):
            return self.in_unit(match[1], "°")
        gender = "f" if ending in _FEMININE_ENDINGS else "m" if ending == "er" else ""
        return self.ordinal(int(match[1]), gender or ("m" if self.followed(match) else ""))

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

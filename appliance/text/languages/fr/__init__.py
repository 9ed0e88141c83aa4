"""French: its numbers, with soixante-dix and quatre-vingts."""

from __future__ import annotations

import re

from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Table, before


class Grammar(Speech):
    def cardinal(self, number: int, gender: str = "") -> str:
        """Une before a feminine noun."""
        for size, one, many in ((10**9, "un milliard", "milliards"), (10**6, "un million", "millions")):
            if number >= size:
                count, rest = divmod(number, size)
                words = one if count == 1 else f"{self.cardinal(count)} {many}"
                return words + (f" {self.cardinal(rest, gender)}" if rest else "")
        if number >= 1_000:
            count, rest = divmod(number, 1_000)
            # Before mille, cent and vingt take no s.
            thousands = re.sub("(?<=cent|ingt)s$", "", self.cardinal(count))
            words = "mille" if count == 1 else f"{thousands} mille"
            return words + (f" {self.cardinal(rest, gender)}" if rest else "")
        if number >= 100:
            count, rest = divmod(number, 100)
            words = "cent" if count == 1 else f"{self.lists['small'][count]} cent"
            return f"{words} {self.cardinal(rest, gender)}" if rest else words + "s" * (count > 1)
        words = self._below_hundred(number)
        return f"{words}e" if gender == "f" and re.search(r"\bun$", words) else words

    def _below_hundred(self, number: int) -> str:
        small = self.lists["small"]
        if number < 20:
            return small[number]
        tens, ones = divmod(number, 10)
        ten = self.lists["tens"][tens]
        if tens in (7, 9):
            ones += 10
        if not ones:
            return ten + "s" * (tens == 8)
        return f"{ten}{' et ' if ones in (1, 11) and tens < 8 else '-'}{small[ones]}"

    def ordinal(self, number: int, ending: str = "") -> str:
        if number == 1:
            return "première" if ending == "f" else "premier"
        words = re.sub("(?<=cent|ingt|lion)s$", "", self.cardinal(number))
        words = re.sub("(?<=cin)q$", "qu", re.sub("neuf$", "neuv", words))
        return f"{words.removesuffix('e')}ième"

    def form(self, number: str) -> int:
        return int(float(number) >= 2)

    def half(self, whole: int) -> str:
        return f"{self.cardinal(whole)} et demi"

    def clock(self, hour: int, minute: int, marked: bool) -> str:
        words = f"{self.cardinal(hour, 'f')} heure{'s' * (hour > 1)}"
        return f"{words} {self.cardinal(minute)}" if minute else words

    def grouped(self, text: str) -> str:
        """Pairs of digits are numbers: zéro six, douze."""
        groups = re.findall(r"\d{2}(?=(?:\d\d)*(?!\d))|\d+", text)
        return self.comma.join(self.spoken(each) if len(each) == 2 else self.digits(each) for each in groups)

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

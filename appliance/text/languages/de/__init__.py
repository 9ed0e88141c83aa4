"""German: its numbers, its ordinals by article and case, and dates."""

from __future__ import annotations

import re

from appliance.text.languages.grammar import BaseGrammar
from appliance.text.spans import Kind, Table, before

_IRREGULAR = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}
_NEUTER = (
    "Mal|Spiel|Level|Video|Match|Jahr|Game|Leben|Team|Kapitel|Tor|Ziel|Geschenk|Abo|Kind|Buch|Set|Quartal"
    "|Viertel|Drittel|Semester"
)
_COUNTED = (
    rf"{_NEUTER}|Platz|Runde|Teil|Staffel|Folge|Stelle|Versuch|Tag|Stream|Liga|Etage|Stock|Klasse|Stufe|Reihe|Sub"
    "|Boss|Mensch|Advent|Geburtstag|Woche|Stunde|Minute|Halbzeit|Bundesliga|Welt"
    r"|Rang|Preis|Akt|Weltkrieg|Schritt|OG|UG|Kl\b|Sept\b"
)
"""Nouns, besides months, that make "1." an ordinal instead of the end of a sentence."""


class Grammar(BaseGrammar):
    def ordinal(self, number: int, ending: str = "e") -> str:
        rest = number % 100
        if rest in _IRREGULAR:
            head = self.cardinal(number - rest) if number > rest else ""
            return f"{head}{_IRREGULAR[rest]}{ending or 'e'}"
        return f"{self.cardinal(number)}{'t' if 0 < rest < 20 else 'st'}{ending or 'e'}"

    def regnal(self, number: int, gender: str) -> str:
        return f"{'die' if gender == 'f' else 'der'} {self.ordinal(number).capitalize()}"

    def day(self, number: int, match: re.Match[str]) -> str:
        return self.ordinal(number, self._ending(match, "er"))

    def digit_rules(self) -> Table:
        months = "|".join(month[:3] for month in self.months)
        self._counted = re.compile(rf"{_COUNTED}|{'|'.join(self.months)}|(?:{months})\b")
        two = r"(\d{1,4})\.\s?(und|oder|bis|[-–/])\s?(?=\d{1,4}\.(?:\s?([A-ZÄÖÜ]\w+)|\d{1,2}\.))"
        return (
            (Kind.DATE, r"(\d{1,2})\.(\d{1,2})\.(?![\d\w])", self._month),
            (Kind.NUMBER, two, self._first_of_two),
            (Kind.NUMBER, r"(\d{1,3})\.(?=\s*(?:$|[^\w\s.]))", self._alone),
            (Kind.NUMBER, r"(\d{1,4})\.(?=\s?([A-ZÄÖÜ]\w+))", self._ordinal),
            (Kind.DATE, r"(\d{1,3})\.(?=\s[a-zäöü])", self._alone),
            (Kind.NUMBER, r"(\d{1,4})(?:st|t)(er?|en|es|em)(?!\w)", lambda m: self.ordinal(int(m[1]), m[2])),
        )

    def _strong(self, noun: str) -> str:
        """Ending of an ordinal before a noun that has no article."""
        if re.fullmatch(_NEUTER, noun):
            return "es"
        return {"f": "e", "n": "es"}.get(self.gender_of(noun), "er")

    def _ordinal(self, match: re.Match[str]) -> str | None:
        """Read 1. Platz. None at the end of a sentence."""
        noun = match[2]
        if not (self._counted.match(noun) or self.is_after("before ordinal", match)):
            return None
        return self.ordinal(int(match[1]), self._ending(match, self._strong(noun)))

    def _first_of_two(self, match: re.Match[str]) -> str:
        """Read 1. und 2. Level, 3.-5. Platz, 15.-20.12."""
        word = {"-": "bis ", "–": "bis ", "/": ""}.get(match[2], f"{match[2]} ")
        return f"{self.ordinal(int(match[1]), self._ending(match, self._strong(match[3] or '')))} {word}"

    def _month(self, match: re.Match[str]) -> str | None:
        """Read 24.12. None for Ubuntu 24.04."""
        day, month = int(match[1]), int(match[2])
        is_date = 1 <= day <= 31 and 1 <= month <= 12
        is_version = re.search(rf"(?i)\b(?:{self.chat.versions})\s$", before(match))
        return f"{self.day(day, match)} {self.months[month - 1]}" if is_date and not is_version else None

    def _alone(self, match: re.Match[str]) -> str | None:
        """Read am 14., in der 90., der 5. wird."""
        goes_on = re.match(r"\s*[\w,!?)\"“]", match.string[match.end() :])
        if not self.is_after("before ordinal", match):
            return None
        return f"{self.ordinal(int(match[1]), self._ending(match, 'en'))}{'' if goes_on else '.'}"

    def _ending(self, match: re.Match[str], strong: str) -> str:
        """Ending of an ordinal after the words before it.

        Both ordinals of a pair, 1. und 2., have the same.
        """
        earlier, patterns = (
            re.sub(r"\d+\.(?:\d+\.)?\s?(?:und|oder|bis|[-–/])\s?$", "", before(match)),
            self.words.patterns,
        )
        return (
            "en"
            if patterns["weak"].search(earlier)
            else "e"
            if patterns["article"].search(earlier)
            else strong
        )

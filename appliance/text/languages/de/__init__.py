"""German: its numbers, ordinals by article and case, and dates."""

from __future__ import annotations

import re

from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Table, before

_SCALES = ((10**9, "Milliarde", "Milliarden"), (10**6, "Million", "Millionen"))
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
"""Nouns that tell "1." from the end of a sentence, besides the months."""
_ARTICLE = re.compile(r"(?i)\b(?:die|der|das|eine?) $")
_WEAK = re.compile(
    r"(?i)\b(?:(?:in|an|auf|aus|mit|bei|von|vor|nach|seit|zu|ab|hinter|neben|über|unter|während|wegen) der"
    r"|am|im|zum|zur|vom|beim|dem|den|des|bis|ab|seit|m?einen|m?einem|deinen|unseren|jeden|dritten) $"
)
_BEFORE_ORDINAL = re.compile(
    r"(?i)\b(?:der|die|das|dem|den|des|[ai]m|zum|zur|vom|beim|ins"
    r"|(?:mein|dein|sein|unser|euer|ihr|jed)(?:e[nmrs]?)?) $"
)
_YEAR_BEFORE = re.compile(
    r"\b(?:(?i:geboren|jahre?n?|seit|von|bis|in|ab|vor|nach|um|anno|sommer|winter|wm|em)|[A-Z][a-zä]+r) $"
)


class Grammar(Speech):
    def cardinal(self, number: int, gender: str = "") -> str:
        """Only one itself has a gender: ein Euro, eine Stunde."""
        if number == 1 and gender:
            return "eine" if gender == "f" else "ein"
        for size, one, many in _SCALES:
            if number >= size:
                count, rest = divmod(number, size)
                words = f"eine {one}" if count == 1 else f"{self.cardinal(count)} {many}"
                return words + (f" {self.cardinal(rest)}" if rest else "")
        for size, name in ((1_000, "tausend"), (100, "hundert")):
            if number >= size:
                count, rest = divmod(number, size)
                hundreds = re.sub("eins$", "ein", self.cardinal(count))
                return hundreds + name + (self.cardinal(rest) if rest else "")
        if number < 20:
            return self.lists["small"][number]
        tens, ones = divmod(number, 10)
        one = "ein" if ones == 1 else self.lists["small"][ones]
        return (f"{one}und" if ones else "") + self.lists["tens"][tens]

    def ordinal(self, number: int, ending: str = "e") -> str:
        rest = number % 100
        if rest in _IRREGULAR:
            head = self.cardinal(number - rest) if number > rest else ""
            return f"{head}{_IRREGULAR[rest]}{ending or 'e'}"
        return f"{self.cardinal(number)}{'t' if 0 < rest < 20 else 'st'}{ending or 'e'}"

    def regnal(self, number: int, gender: str) -> str:
        return f"{'die' if gender == 'f' else 'der'} {self.ordinal(number).capitalize()}"

    def half(self, whole: int) -> str:
        return f"{self.cardinal(whole, 'm')}einhalb"

    def year(self, number: int) -> str:
        century, rest = divmod(number, 100)
        if 11 <= century <= 19:
            return f"{self.cardinal(century)}hundert{self.cardinal(rest) if rest else ''}"
        return self.cardinal(number)

    def day(self, number: int, match: re.Match[str]) -> str:
        return self.ordinal(number, _ending(before(match), "er"))

    def clock(self, hour: int, minute: int, marked: bool) -> str:
        words = f"{self.cardinal(hour, 'm')} Uhr"
        return f"{words} {self.cardinal(minute)}" if minute else words

    def digit_rules(self) -> Table:
        months = "|".join(month[:3] for month in self.months)
        self._counted = re.compile(rf"{_COUNTED}|{'|'.join(self.months)}|(?:{months})\b")
        two = r"(\d{1,4})\.\s?(und|oder|bis|[-–/])\s?(?=\d{1,4}\.(?:\s?([A-ZÄÖÜ]\w+)|\d{1,2}\.))"
        return (
            (
                Kind.TIME,
                r"(?i)([01]?\d|2[0-4])\.([0-5]\d)\s?uhr\b",
                lambda m: self.clock(int(m[1]), int(m[2]), True),
            ),
            (Kind.TIME, r"(\d{1,2})\s?h(?!\w|\s?\d)", self._hour),
            (Kind.MONEY, r"(\d{1,3}(?:\.\d{3})+|\d+),[-–]{1,2}\s?(€|EUR|Euro|CHF|Fr\.|)(?!\w)", self._price),
            (Kind.DATE, r"(\d{1,2})\.(\d{1,2})\.(?![\d\w])", self._month),
            (Kind.NUMBER, two, self._first_of_two),
            (Kind.NUMBER, r"(\d{1,3})\.(?=\s*(?:$|[^\w\s.]))", self._alone),
            (Kind.YEAR, r"(1[1-9]\d0|20\d0)er(n?)(?!\w)", lambda m: f"{self.year(int(m[1]))}er{m[2]}"),
            (Kind.YEAR, r"1[1-9]\d\d(?![\w%°]|[.,:/]\d|\s?[€$])", self._year),
            (Kind.NUMBER, r"(\d{1,4})\.(?=\s?([A-ZÄÖÜ]\w+))", self._ordinal),
            (
                Kind.DATE,
                r"(\d{1,3})\.(?=\s[a-zäöü])",
                self._alone,
            ),
            (Kind.NUMBER, r"(\d{1,4})(?:st|t)(er?|en|es|em)(?!\w)", lambda m: self.ordinal(int(m[1]), m[2])),
        )

    def letter_rules(self) -> Table:
        days = {short: name for short, (name, _) in self.dates.weekdays.items()}
        pattern = "|".join(days)

        def weekday(match: re.Match[str]) -> str | None:
            """Fr. um 8; So and Do begin a sentence, too."""
            return None if match[0] in ("So", "Do") else days[match[1]]

        return (
            (Kind.DATE, rf"({pattern})\.?(?=\s(?:um\s|ab\s|\d))", weekday),
            (Kind.DATE, rf"({pattern})\.(?=,)", lambda m: days[m[1]]),
        )

    def _strong(self, noun: str) -> str:
        """Ending of an ordinal before a noun without an article."""
        if re.fullmatch(_NEUTER, noun):
            return "es"
        return {"f": "e", "n": "es"}.get(self.gender_of(noun), "er")

    def _ordinal(self, match: re.Match[str]) -> str | None:
        """1. Platz, but not the end of a sentence."""
        noun, earlier = match[2], before(match)
        if not (self._counted.match(noun) or _BEFORE_ORDINAL.search(earlier)):
            return None
        return self.ordinal(int(match[1]), _ending(earlier, self._strong(noun)))

    def _first_of_two(self, match: re.Match[str]) -> str:
        """1. und 2. Level, 3.-5. Platz, 15.-20.12."""
        word = {"-": "bis ", "–": "bis ", "/": ""}.get(match[2], f"{match[2]} ")
        return f"{self.ordinal(int(match[1]), _ending(before(match), self._strong(match[3] or '')))} {word}"

    def _price(self, match: re.Match[str]) -> str:
        """5,-, 5,-€, 1.200,- CHF"""
        currency = "Franken" if match[2] in ("CHF", "Fr.") else "Euro"
        return f"{self.cardinal(int(match[1].replace('.', '')), 'm')} {currency}"

    def _hour(self, match: re.Match[str]) -> str | None:
        """ab 18h"""
        is_told = re.search(r"(?i)\b(?:um|ab|bis|gegen) $", before(match))
        return self.clock(int(match[1]), 0, True) if is_told and int(match[1]) < 25 else None

    def _month(self, match: re.Match[str]) -> str | None:
        """24.12."""
        day, month = int(match[1]), int(match[2])
        is_date = 1 <= day <= 31 and 1 <= month <= 12
        return f"{self.day(day, match)} {self.months[month - 1]}" if is_date else None

    def _year(self, match: re.Match[str]) -> str | None:
        return self.year(int(match[0])) if _YEAR_BEFORE.search(before(match)) else None

    def _alone(self, match: re.Match[str]) -> str | None:
        """am 14., in der 90., der 5. wird"""
        earlier, goes_on = before(match), re.match(r"\s*[\w,!?)\"“]", match.string[match.end() :])
        if not _BEFORE_ORDINAL.search(earlier):
            return None
        return f"{self.ordinal(int(match[1]), _ending(earlier, 'en'))}{'' if goes_on else '.'}"


def _ending(earlier: str, strong: str) -> str:
    """Ending of an ordinal after earlier words; in a pair, 1. und 2., both have the same."""
    earlier = re.sub(r"\d+\.(?:\d+\.)?\s?(?:und|oder|bis|[-–/])\s?$", "", earlier)
    return "en" if _WEAK.search(earlier) else "e" if _ARTICLE.search(earlier) else strong

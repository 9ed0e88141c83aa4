"""Hindi: its numbers, in lakh and crore, and times of day with quarters."""

from __future__ import annotations

import re

from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Say, Table, before

_WRITTEN_ENDINGS = {
    "ा": r"ला|रा|था|ठा|वा[ँं]?|\sवा[ँं]",
    "ी": r"ली|री|थी|ठी|वी[ँं]?|\sवी[ँं]",
    "े": r"ले|रे|थे|ठे|वे[ँं]?|\sवे[ँं]",
}
_PARTS = ((4, "रात"), (12, "सुबह"), (16, "दोपहर"), (20, "शाम"), (24, "रात"))
"""Parts of the day, and the hour that each ends with."""
_END = r"(?![\w%°]|[.,:/]\d)"
_WORD_END = r"(?![\w\u0900-\u0903\u093a-\u094f])"
_LIMIT = r"(?<![\w)<>])([<>])(\d+(?:,\d+)*(?:\.\d+)?)(\s?%|\s[\u0900-\u097f]+)?(?!\w)"


class Grammar(Speech):
    def decimals(self, whole: str, part: str) -> str:
        if part == "5" and whole != "0":
            return self.numerals.say("half", int(whole))
        return f"{self.cardinal(int(whole))} दशमलव {self.digits(part)}"

    def clock(self, hour: int, minute: int, marked: bool) -> str:
        """Time of day, with the words for quarters."""
        if not minute:
            return f"{self.cardinal(hour)} बजे"
        if not 1 <= hour <= 12 or minute not in (15, 30, 45):
            return f"{self.cardinal(hour)} बजकर {self.cardinal(minute)} मिनट"
        if minute == 30:
            return f"{self.half(hour)} बजे"
        return f"सवा {self.cardinal(hour)} बजे" if minute == 15 else f"पौने {self.cardinal(hour % 12 + 1)} बजे"

    def digit_rules(self) -> Table:
        return (
            (Kind.TIME, r"(?i)(\d{1,2})(?:[:.](\d\d))?\s?([ap])\.?m\b\.?", self._half_day),
            *(
                (Kind.NUMBER, rf"(\d{{1,4}})(?:{endings}){_WORD_END}", self._ordinal(vowel))
                for vowel, endings in _WRITTEN_ENDINGS.items()
            ),
            (Kind.FRACTION, rf"(\d{{1,3}}(?:\.\d+)?)/(5|10|20|100){_END}", self._out_of),
            (Kind.YEAR, rf"1[1-9]\d\d{_END}", self._year),
        )

    def sign_rules(self) -> Table:
        return ((Kind.UNIT, _LIMIT, self._limit),)

    def _half_day(self, match: re.Match[str]) -> str | None:
        hour, minute = int(match[1]), int(match[2] or 0)
        if not (1 <= hour <= 12 and minute < 60):
            return None
        time = self.clock(hour, minute, True)
        if re.search(r"(?:सुबह|दोपहर|शाम|रात|आज|कल)\s(?:को\s)?$", match.string[: match.start()]):
            return time
        full = hour % 12 + (12 if match[3] in "pP" else 0)
        return f"{next(part for end, part in _PARTS if full < end)} {time}"

    def _ordinal(self, vowel: str) -> Say:
        return lambda match: self.ordinal(int(match[1]), vowel)

    def _out_of(self, match: re.Match[str]) -> str:
        return f"{self.cardinal(int(match[2]))} में से {self.spoken(self.plain(match[1]))}"

    def _year(self, match: re.Match[str]) -> str | None:
        """15 अगस्त 1947, 1999 में"""
        is_dated = re.search(rf"(?:{'|'.join(self.months)}|सन्?),?\s$", before(match))
        is_told = re.match(rf"\s(?:में|से|तक|का|की|के){_WORD_END}", match.string[match.end() :])
        return self.year(int(match[0])) if is_dated or is_told else None

    def _limit(self, match: re.Match[str]) -> str:
        """<5 मिनट"""
        unit = " प्रतिशत" if match[3] in ("%", " %") else match[3] or ""
        return f"{self.spoken(self.plain(match[2]))}{unit} से {'कम' if match[1] == '<' else 'ज़्यादा'}"

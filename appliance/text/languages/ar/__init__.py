"""Arabic: its numbers in Modern Standard Arabic, in pausal forms, without case endings.

A number without a noun is read as in counting, خمسة, which is also the form before a masculine noun. A number
before a noun agrees with the noun's gender. Twos and tens after a preposition are oblique, عشرين. Both can be
heard.
"""

from __future__ import annotations

import re

from appliance.text.languages.facets import Noun
from appliance.text.languages.grammar import BaseGrammar
from appliance.text.languages.readers import digit_table
from appliance.text.spans import Kind, Say, Table, before

_QUARTERS = {15: "والربع", 20: "والثلث", 30: "والنصف"}
_MINUTE = ("دقيقة", "دقيقتان", "دقائق")
_HALVES = {"a": " صباحا", "ص": " صباحا", "p": " مساء", "م": " مساء"}
_LARGE_TWO = "ألف|مئت|مليون|مليار"
_WITH_DUAL = "يوم|شهر|أسبوع|شخص|لاعب|متابع|مشترك|مشاهد|صديق|هدف|كوب|عام"
"""Masculine nouns whose dual stands for two of them: 2 يوم."""
_ENDS = r"(?![\w%٪°]|[.,:/]\d)"
_MOMENT = rf"(?P<h>\d{{1,2}})(?::(?P<m>\d\d))?(?:\s?(?P<half>[صم]|[apAP]\.?[mM]))?{_ENDS}"
_YEAR = r"(?P<year>1[3-9]\d\d|20\d\d|١[٣-٩]\d\d|٢٠\d\d)\s?(?P<era>م|هـ?)(?!\w)"
_SIMPLE = r"(?!\d+[/:]\d|\d+(?:[ -]\d+){2,}|\d+(?:\.\d+){2,})"
"""Excludes dates, fractions and telephone numbers."""


class Grammar(BaseGrammar):
    def ordinal(self, number: int, ending: str = "") -> str:
        """The ordinal, which is definite. From 100 on, the number itself with the article."""
        tens, ones = divmod(number, 10)
        if number < 1 or number > 99 or (ones == 0 and tens > 1):
            return f"ال{self.cardinal(number)}"
        name = self.lists["ordinals"][10 if number == 10 else 11 if ones == 1 and tens else ones]
        if ending == "f":
            name = "الأولى" if number == 1 else name.replace("الحادي", "الحادية") if ones == 1 else f"{name}ة"
        if number <= 10:
            return name
        if tens == 1:
            return f"{name} {'عشرة' if ending == 'f' else 'عشر'}"
        return f"{name} وال{self.lists['tens'][tens]}"

    def form(self, number: str) -> int:
        """Index of the noun's form: ريال 0, ريالان 1, ريالات 2."""
        if number in ("1", "2") or "." in number:
            return int(number == "2")
        return 2 * (3 <= int(number) % 100 <= 10)

    def year(self, number: int) -> str:
        return oblique(self.cardinal(number))

    def clock(self, hour: int, minute: int, marked: bool) -> str:
        words = "الواحدة" if hour == 1 else self.ordinal(hour or 12, "f")
        if not minute or minute in _QUARTERS:
            return f"{words} {_QUARTERS.get(minute, '')}".strip()
        name = _MINUTE[self.form(str(minute))]
        minutes = name if minute < 3 else f"{self.cardinal(minute, 'f')} {name}"
        return f"{words} و{minutes}"

    def counted(self, number: str, noun: Noun) -> str:
        """Words of a number with its noun.

        The word for one follows its noun; two is the noun's dual; 102 is a hundred nouns and two nouns.
        """
        if len(noun.forms) == 1:
            return f"{self.spoken(number)} {noun.forms[0]}"
        name, _, tail = noun.forms[self.form(number)].partition(" ")
        rest = int(number) % 100 if number.isdigit() else 0
        if rest in (1, 2) and number != str(rest):
            hundreds = self.spoken(str(int(number) - rest), noun.gender)
            return f"{hundreds} {name} و{noun.forms[rest - 1]}"
        if number == "1":
            name += " واحدة" if noun.gender == "f" else " واحد"
        elif number != "2":
            name = f"{self.spoken(number, '' if '.' in number else noun.gender)} {name}"
        return f"{name} {tail}".strip()

    def between(self, first: str, word: str, second: str) -> str:
        return super().between(first, word, oblique(second) if word == self.signs.to else second)

    def in_case(self, table: Table) -> Table:
        return [(kind, pattern, self._in_case(say)) for kind, pattern, say in table]

    def digit_rules(self) -> Table:
        return (
            (Kind.NUMBER, r"([12١٢])\s([\u0621-\u064a]{3,})", self._one),
            *self.in_case(
                (
                    (Kind.TIME, _MOMENT, self._moment),
                    (Kind.YEAR, _YEAR, self._year),
                    (Kind.SIGN, rf"(\d+)\s?x\s?(\d+){_ENDS}", self._by),
                )
            ),
        )

    def letter_rules(self) -> Table:
        prefix = r"(?P<prefix>[وفبلك])ـ?\s?"
        return (
            (Kind.NUMBER, r"الـ?\s?(\d+)(?![\w%٪]|[.,:/]\d)", self._definite),
            *self.in_case(
                ((Kind.TIME, prefix + _MOMENT, self._moment), (Kind.YEAR, prefix + _YEAR, self._year))
            ),
            *(
                (kind, f"{prefix}{_SIMPLE}(?:{pattern})", say)
                for kind, pattern, say in self.in_case(digit_table(self))
                if "(?P<number" in pattern
            ),
            (Kind.WORD, r"[وفبلك]ـ?(?=\d)", lambda m: m[0][0]),
        )

    def _in_case(self, say: Say) -> Say:
        """Put words into the oblique case after a preposition, which may be the number's prefix: بـ5."""

        def read(match: re.Match[str]) -> str | tuple[Kind, str] | None:
            words, prefix = say(match), match.groupdict().get("prefix") or ""
            if words is None or not (prefix or self.is_after("preposition", match)):
                return words
            kind, text = words if isinstance(words, tuple) else (None, words)
            text = prefix + (text if prefix in ("و", "ف") else oblique(text))
            return (kind, text) if kind else text

        return read

    def _moment(self, match: re.Match[str]) -> str | None:
        """Read 19:30, 7:05 م and 7 pm. Reads an hour alone after the word for hour."""
        hour, minute, half = int(match["h"]), int(match["m"] or 0), (match["half"] or "")[:1].lower()
        is_named = re.search(r"الساع[ةه] $", before(match))
        is_told = bool(is_named or self.is_before("day parts", match))
        if half == "م" and 0 < hour < 13:
            is_told |= bool(
                self.words.patterns["of day"].search(match.string)
                or re.search(r"من \d+ [إا]لى $", before(match))
            )
        if not hour and re.search(rf"(?:{self.times.lasting}) $", before(match)):
            return None
        if hour > 24 or minute > 59 or not (match["m"] or half in ("a", "p", "ص") or is_told):
            return None
        words = self.clock(hour, minute, False) + _HALVES.get(half, "")
        is_plain = not (is_named or match.groupdict().get("prefix") or self.is_after("preposition", match))
        return f"الساعة {words}" if is_plain else words

    def _year(self, match: re.Match[str]) -> str | None:
        """Read 1445هـ, عام 2026م."""
        if match["era"] == "م" and not re.search(r"(?:عام|سنة|/) ?$", before(match)):
            return None
        return f"{self.year(int(match['year']))} {'ميلادي' if match['era'] == 'م' else 'هجري'}"

    def _one(self, match: re.Match[str]) -> str | None:
        """Read 1 دقيقة, 2 دقيقة: the word for one follows its noun, two is its dual."""
        noun, is_one = match[2], int(match[1]) == 1
        is_label = re.search(rf"(?<!\w)(?:{self.numbers.labels}) $", before(match))
        if (
            noun in self.units.nouns
            or noun in self.months
            or is_label
            or re.fullmatch(self.numbers.no_noun, noun)
        ):
            return None
        if is_one:
            return f"{noun} {'واحدة' if self.gender_of(noun) == 'f' else 'واحد'}"
        if noun[-1] != "ة" and not re.fullmatch(_WITH_DUAL, noun):
            return None
        ending = "ين" if self.is_after("preposition", match) else "ان"
        return f"{noun[:-1]}ت{ending}" if noun[-1] == "ة" else f"{noun}{ending}"

    def _definite(self, match: re.Match[str]) -> str:
        """Read الـ3, an ordinal after a definite noun."""
        number, noun = int(match[1]), re.search(r"(?<!\w)[وفبل]?ا?ل\w+ $", before(match))
        if noun and number < 100:
            return self.ordinal(number, "f" if noun[0].endswith("ة ") else "")
        return f"ال{self.cardinal(number, self.followed(match))}"

    def _by(self, match: re.Match[str]) -> str:
        return f"{self.spoken(self.plain(match[1]))} في {oblique(self.spoken(self.plain(match[2])))}"


def oblique(words: str) -> str:
    """Put the twos and tens into the oblique case, as after a preposition."""
    words = re.sub(rf"\b(و?(?:{_LARGE_TWO}|اثنت?))ا\b", r"\1ي", words)
    words = re.sub(r"(?<=\w\w)(?<!ثم)(?<!ثو)ان\b", "ين", words)  # but not ثمان and ثوان
    return re.sub(r"(عشر|ثلاث|أربع|خمس|ست|سبع|ثمان|تسع)ون\b", r"\1ين", words)

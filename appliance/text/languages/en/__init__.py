"""English: its numbers and dates, and the meaning of letters after a number."""

from __future__ import annotations

import re

from appliance.text.languages.en.capitals import SPELT, capitals, is_spelt
from appliance.text.languages.en.numbers import english, english_ordinal, english_year
from appliance.text.languages.grammar import Amount, BaseGrammar
from appliance.text.languages.quantity import END, is_rating
from appliance.text.spans import Kind, Table, before


class Grammar(BaseGrammar):
    def capitals(self, match: re.Match[str], shouted: bool) -> tuple[Kind, str] | None:
        return capitals(match, shouted)

    def group(self, text: str, form: str) -> str:
        """Words of a group as in `BaseGrammar.group`; {1:pairs} reads digits in pairs."""
        if form == "pairs":
            return english(int(text)) if text.endswith("000") else _pairs(text)
        return super().group(text, form)

    def measured(self, amount: Amount, match: re.Match[str]) -> Amount | None:
        """Tell which unit a letter is.

        m is minutes, metres or millions; W and L can be won and lost; 2D is not a time; 5kg-10 is not a
        range.
        """
        scale, sign, groups = amount.scale, amount.sign, match.groupdict()
        if scale in ("k", "K") and re.match(r"(?i)\s(?:run|race)\b", match.string[match.end() :]):
            return None
        if scale in ("b", "m", "T") and not self.words.patterns["money"].search(match[0]):
            if scale in ("b", "T"):
                return None
            is_time = (groups.get("scale_a") or "m") == "m"  # 1k-2m
            if is_time and not self.is_before("many after", match):
                scale, sign = "", "m"
        if sign and _is_open(match):
            return None
        if sign in (*"dwyDY",) and not self._is_timed(match):
            return None
        if sign in (*"WVAL",) and self.words.patterns["record"].search(match.string):
            return None
        return Amount(amount.number, scale, "min" if sign == "m" and not self._is_length(match) else sign)

    def bare(self, match: re.Match[str]) -> str | tuple[Kind, str]:
        """Words of a number without a unit.

        A code is read digit by digit, a year in two halves, and .45 without a zero, except in a list: 10,.45.
        """
        digits = "" if match["sign"] else match["number"]
        if re.fullmatch(r"\.\d{2,3}", digits) and before(match, 1) != ",":
            return f"point {self.digits(digits)}"
        if len(digits) < 4 or not digits.isdigit():
            return super().bare(match)
        if self.is_after("code before", match):
            return Kind.CODE, self.digits(digits)
        is_year = re.fullmatch(self.dates.years, digits) and self.is_after("year before", match)
        is_old = re.fullmatch(r"1[0-8]\d\d", digits) and self.is_after("old year before", match)
        if is_year or (is_old and not re.match(r"\s(?!lol|ok)\w", match.string[match.end() :])):
            return Kind.YEAR, english_year(int(digits))
        return super().bare(match)

    def in_code(self, digits: str, code: str) -> str:
        """Words of digits in a code. Up to two digits, or any before a unit (500W), are a number."""
        is_alone = len(digits) <= 2 and re.fullmatch(r"[^\d_]*\d+[^\d_]*", code)
        is_number = digits[0] != "0" and (is_alone or re.fullmatch(r"\d+[A-Z]{1,2}", code))
        return self.spoken(digits) if is_number else self.digits(digits)

    def letters(self, letters: str) -> str:
        return " ".join(letters) if letters.isupper() and (letters in SPELT or is_spelt(letters)) else letters

    def digit_rules(self) -> Table:
        month = self.words.patterns["month"].pattern
        day_month = rf"(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({month})\b(,? (?:19|20)\d\d(?!\d))?"
        stamp = r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::\d\d(?:\.\d+)?)?(Z?)(?![\w:])"
        return (
            (
                Kind.DATE,
                rf"(\d{{1,2}})([/.])(\d{{1,2}})\2((?:19|20)\d\d|(?<=/)\d{{4}}|(?<=/)\d\d){END}",
                self._numeric,
            ),
            (Kind.DATE, stamp, self._timestamp),
            (Kind.DATE, day_month, self._day_month),
            (Kind.PHONE, rf"(\d{{3}})-(\d{{4}}){END}(?!-\d)", self._short_phone),
            (Kind.FRACTION, rf"(\d+(?:\.\d+)?)(?:/| / )(\d+){END}", self._slash),
        )

    def letter_rules(self) -> Table:
        month = self.words.patterns["month"].pattern
        month_day = rf"(?i)({month})\.? (\d{{1,2}})(st|nd|rd|th)?\b(?![.:]?\d)(,? (?:19|20)\d\d(?!\d))?"
        return ((Kind.DATE, month_day, self._month_day),)

    def _date(self, year: str, month: str, day: str) -> str | None:
        if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
            return None
        date = f"{self.months[int(month) - 1]} {english_ordinal(int(day))}"
        return f"{date}, {english_year(int(year))}" if year else date

    def _numeric(self, match: re.Match[str]) -> str | None:
        """11/29/2026, as in the United States, 29.11.2026 as elsewhere, or the other if that is no date."""
        first, mark, second, year = match.groups()
        near = before(match) + match.string[match.end() : match.end() + 24]
        if len(year) == 2 and re.search(r"kda|\bwent\b|score|deaths", near, re.I):
            return None
        year = f"{19 if int(year) > 50 else 20}{year}" if len(year) == 2 else year
        month, day = (first, second) if mark == "/" else (second, first)
        return self._date(year, month, day) or self._date(year, day, month)

    def _timestamp(self, match: re.Match[str]) -> str | None:
        """Read 2026-11-29T20:00Z."""
        date, hour, minute = self._date(*match.groups()[:3]), int(match[4]), int(match[5])
        if date is None or hour > 24 or minute > 59:
            return None
        return f"{date} at {self.clock(hour, minute, False)}{' U T C' * bool(match[6])}"

    def _month_day(self, match: re.Match[str]) -> str | None:
        if match[1] == "may" and not match[3]:
            return None
        return self._date((match[4] or "")[-4:], str(self._month(match[1])), match[2])

    def _month(self, name: str) -> int:
        return [month[:3].lower() for month in self.months].index(name[:3].lower()) + 1

    def _day_month(self, match: re.Match[str]) -> str | None:
        if not 1 <= int(match[1]) <= 31:
            return None
        year = f", {english_year(int(match[3][-4:]))}" if match[3] else ""
        the = "" if re.search(r"\bthe $", before(match), re.I) else "the "
        return f"{the}{english_ordinal(int(match[1]))} of {self.months[self._month(match[2]) - 1]}{year}"

    def _short_phone(self, match: re.Match[str]) -> str | None:
        first, second = match[1], match[2]
        is_round = first[-1] == "0" and second[-1] == "0" and first != "0" and int(first) < int(second)
        is_phone = not is_round or second[0] == "0" or self.is_after("phone before", match)
        return f"{self.digits(first)}, {self.digits(second)}" if is_phone else None

    def _slash(self, match: re.Match[str]) -> str | None:
        """Read 3/4, 8/10, 50/50, 11/29 and others: a fraction, rating, share, date, or "slash"."""
        a, b = match[1], match[2]
        if f"{a}/{b}" in self.signs.fractions and not self.is_after("weekday before", match):
            return self.signs.fractions[f"{a}/{b}"]
        if is_rating(a, b) and (float(a) <= int(b) or not self.is_after("date before", match)):
            return f"{self.spoken(a)} out of {self.spoken(b)}"
        if "." not in a and int(a) + int(b) == 100:
            return f"{self.spoken(a)} {self.spoken(b)}"
        after = match.string[match.end() : match.end() + 5]
        is_date = 12 < int(b) <= 31 or (
            int(b) <= 12 and (self.is_after("date before", match) or after[:4] == " is ")
        )
        if "." not in a and 1 <= int(a) <= 12 and is_date and int(b):
            return self._date("", a, b)
        return f"{self.spoken(a)} slash {self.spoken(b)}"

    def _is_length(self, match: re.Match[str]) -> bool:
        return self.is_before("length after", match) or self.is_after("length before", match)

    def _is_timed(self, match: re.Match[str]) -> bool:
        return self.is_after("time before", match) or self.is_before("time after", match)


def _is_open(match: re.Match[str]) -> bool:
    """True if only the first of two amounts has a unit: 5kg-10 or 5% - 10."""
    groups = match.groupdict()
    has_others = any(map(groups.get, ("before_a", "before_b", "unit_b"))) or groups.get("scale_b") == "m"
    return "unit_a" in groups and not has_others and bool(re.search(r"[\w\s][-–—~～]", match[0]))


def _pairs(digits: str) -> str:
    head, tail = digits[:-2], digits[-2:]
    return f"{english(int(head))} {'hundred' if tail == '00' else english(int(tail))}"

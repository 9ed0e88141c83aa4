"""Dates, years, months and weekdays."""

from __future__ import annotations

import re
from collections.abc import Sequence

from appliance.text.languages.grammar import BaseGrammar
from appliance.text.languages.plain import SMALL
from appliance.text.languages.quantity import NOTHING, one_of
from appliance.text.languages.readers.reader import BaseReader
from appliance.text.spans import Kind, Say, Table, before


class DateReader(BaseReader):
    def __init__(self, grammar: BaseGrammar) -> None:
        super().__init__(grammar)
        self._dates = grammar.dates
        is_shortened = grammar.words.writing.scripts in ("LATIN", "CYRILLIC")
        self._short = short_months(grammar.months, grammar.dates.unshortened.split()) if is_shortened else {}
        self._weekdays = {short.lower(): names for short, names in grammar.dates.weekdays.items()}

    def digit_rules(self) -> Table:
        dates, end = self._dates, self.end
        short = r"(?<=\d\d[-/.]\d\d[-/.])\d\d"  # 24.12.26, but not 1.2.10
        months = "|".join([*self.grammar.months, *self._short])
        whole = rf"(?P<d>\d{{1,2}})({dates.day_first})(?P<m>\d{{1,2}})\2(?P<y>\d{{4}}|{short}){end}"
        day = rf"(?i)(?P<d>\d{{1,2}})(?={dates.of_month}(?:{months})(?!\w))"
        rules: list[tuple[bool, Kind, str, Say]] = [
            (True, Kind.DATE, rf"(?P<y>\d{{4}})[-/.](?P<m>\d{{1,2}})[-/.](?P<d>\d{{1,2}}){end}", self._date),
            (dates.day_first != NOTHING, Kind.DATE, whole, self._date),
            (dates.seasons, Kind.YEAR, rf"((?:19|20)\d\d)[-–/](\d\d){end}(?!-)", self._season),
            (True, Kind.DATE, rf"(?P<d>\d{{1,2}})/(?P<m>\d{{1,2}}){end}", self._short_date),
            (
                self.grammar.numbers.decimal == ",",
                Kind.DATE,
                rf"(?P<d>\d{{1,2}})\.(?P<m>0[1-9]|1[0-2]){end}",
                self._dotted_date,
            ),
            (dates.of_month != NOTHING, Kind.DATE, day, self._day),
        ]
        return [(kind, pattern, say) for is_wanted, kind, pattern, say in rules if is_wanted]

    def letter_rules(self) -> Table:
        days, short = one_of(map(re.escape, self._weekdays)), one_of(self._short)
        month = rf"((?i:{short})){self.word_end}(?:\.(?=\s?[{SMALL}\d,]))?"
        days = rf"(?i)({days})\.?\s?[-–]\s?({days})\.?{self.word_end}"
        rules: Table = ((Kind.DATE, days, self._weekday_range), (Kind.DATE, month, self._short_month))
        return [rule for rule, words in zip(rules, (self._weekdays, self._short), strict=True) if words]

    def _date(self, match: re.Match[str]) -> str | None:
        g, day, month = self.grammar, int(match["d"]), int(match["m"])
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return None
        year = match.groupdict().get("y")
        names = {"day": g.day(day, match), "month": g.months[month - 1]}
        if not year:
            return self._dates.date.format(**names)
        century = 0 if len(year) > 2 else 1_900 if int(year) > 50 else 2_000
        return self._dates.dated.format(**names, year=g.year(int(year) + century))

    def _short_date(self, match: re.Match[str]) -> str | None:
        if match[0] in self.grammar.signs.fractions:
            return None
        is_date = int(match["d"]) > 12 or self.grammar.after(match, self._dates.before)
        return self._date(match) if is_date else None

    def _dotted_date(self, match: re.Match[str]) -> str | None:
        return self._date(match) if self.grammar.after(match, self._dates.before) else None

    def _day(self, match: re.Match[str]) -> str | None:
        return self.grammar.day(int(match["d"]), match) if 1 <= int(match["d"]) <= 31 else None

    def _short_month(self, match: re.Match[str]) -> str | None:
        """Read 14 juil."""
        earlier = before(match)
        if not re.search(rf"(?i)(?<!\d)[0-3]?\d(?:[^\W\d_]{{1,2}}|º)?{self._dates.of_month}$", earlier):
            return None
        joint = self._dates.date.removeprefix("{day}").removesuffix("{month}")
        return f"{joint}{self._short[match[1].lower()]}".removeprefix(earlier[-len(joint) :])

    def _season(self, match: re.Match[str]) -> str | None:
        """Read 2025/26."""
        g, first, last = self.grammar, int(match[1]), int(match[2])
        if last != (first + 1) % 100 or not last:
            return None
        return f"{g.year(first)} {g.cardinal(last)}"

    def _weekday_range(self, match: re.Match[str]) -> str | None:
        if match[1] == match[2]:
            return None  # so-so
        first, last = (self._weekdays[match[group].lower()] for group in (1, 2))
        return self._dates.weekday_range.format(first[0], last[1])


def short_months(names: Sequence[str], unshortened: Sequence[str]) -> dict[str, str]:
    """Short names of months → name: "juil", "oct"."""
    shorts = [(name[:size].lower(), name) for size in (4, 3) for name in names if size < len(name)]
    return {
        short: name
        for short, name in shorts
        if sum(other.lower().startswith(short) for other in names) == 1 and short not in unshortened
    }

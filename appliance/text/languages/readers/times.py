"""Times of day and durations."""

from __future__ import annotations

import re

from appliance.text.languages.readers.reader import BaseReader
from appliance.text.spans import Kind, Table, before


class TimeReader(BaseReader):
    def digit_rules(self) -> Table:
        times, end = self.grammar.times, self.end
        h_m_s = r"(?P<h>\d{1,2}):(?P<min>[0-5]\d):(?P<s>[0-5]\d)"
        return (
            (Kind.TIME, r"(?i)(\d{1,2})(?:[:.](\d\d))?\s?([ap])\.?\s?m\b\.?", self._half_day),
            (Kind.TIME, rf"(?i){h_m_s}(?P<mark>{times.hour})?{end}", self._clock_with_seconds),
            (Kind.TIME, rf"{h_m_s}{end}", self._lasting),
            (Kind.TIME, rf"(\d{{1,2}}):([0-5]\d)[.,](\d{{1,3}}){end}", self._lap),
            (
                Kind.TIME,
                rf"(?i)(?P<h>\d{{1,2}})(?::|{times.hour_minute})(?P<m>\d\d)(?P<mark>{times.hour})?{end}",
                self._clock,
            ),
            (
                Kind.TIME,
                rf"(?:(?P<d>\d+)\s?d\s?)?(?:(?P<h>\d+)\s?h\s?)(?:(?P<min>\d+)(?:\s?m(?:in)?\s?|(?<=h\d\d)))?"
                rf"(?:(?P<s>\d+)\s?s)?{end}",
                self._lasting,
            ),
            (Kind.TIME, rf"(?P<min>\d+)\s?m(?:in)?\s?(?P<s>\d+)\s?s{end}", self._lasting),
            (Kind.TIME, r"(?P<min>\d{1,2})['’′](?P<s>[0-5]\d)(?:''|[\"″”])", self._lasting),
            (Kind.TIME, r"(\d{1,3})['’′](?![\w'’])", self._minutes),
        )

    def sign_rules(self) -> Table:
        to = self.grammar.signs.to
        marks = self.grammar.times.marks.split()
        after_hour = "|".join(rf"(?<=\d{mark} )|(?<=\d {mark} )" for mark in marks)
        hour = "|".join(rf"{mark}(?!\w)" for mark in marks)
        return (
            (Kind.RANGE, r"(?<=[\dhH])\s?[-–—]\s?(?=\d{1,2}(?::\d\d|\s?[hH]))", lambda m: f" {to} "),
            (
                Kind.RANGE,
                rf"(?:(?<=:\d\d )|{after_hour}|(?<=[ap]m ))[-–—]\s?"
                rf"(?=\d{{1,2}}(?::\d\d|\s?(?:{hour}|[ap]m)))",
                lambda m: to,
            ),
        )

    def _clock_with_seconds(self, match: re.Match[str]) -> str | None:
        g, hour = self.grammar, int(match["h"])
        if hour > 24 or not (match["mark"] or g.after(match, g.times.before)):
            return None
        words, seconds = g.clock(hour, int(match["min"]), False), str(int(match["s"]))
        if seconds == "0":
            return words
        return g.times.with_seconds.format(clock=words, seconds=g.in_unit(seconds, "s"))

    def _half_day(self, match: re.Match[str]) -> str | None:
        hour, minute = int(match[1]), int(match[2] or 0)
        if not (1 <= hour <= 12 and minute < 60):
            return None
        g, is_own = self.grammar, self.grammar.numerals.has("clock half")
        words = (
            g.numerals.say("clock", 100 * hour + minute, "half") if is_own else g.clock(hour, minute, False)
        )
        return f"{words} {match[3].lower()} m"

    def _clock(self, match: re.Match[str]) -> str | None:
        hour, minute = int(match["h"]), int(match["m"])
        if hour > 24 or minute > 59:
            return None
        if self._is_lasting(match) and (":" not in match[0] or not hour):
            hours, minutes = ("min", "s") if ":" in match[0] else ("h", "min")
            return self.named({hours: match["h"], minutes: match["m"]})
        return self.grammar.clock(hour, minute, ":" not in match[0] or bool(match["mark"]))

    def _is_lasting(self, match: re.Match[str]) -> bool:
        """True for a duration, not a time of day: quedan 00:45."""
        words = self.grammar.times.lasting
        return self.grammar.after(match, words) or bool(
            re.match(rf"(?i)\s?(?:{words})(?!\w)", match.string[match.end() :])
        )

    def _lasting(self, match: re.Match[str]) -> str | None:
        parts = {unit: value for unit, value in match.groupdict().items() if value}
        is_clock = parts.keys() == {"h", "min"} and "m" not in match[0] and int(parts["h"]) < 25
        if is_clock and self.grammar.after(match, self.grammar.times.before):
            return self.grammar.clock(int(parts["h"]), int(parts["min"]), True)
        return self.named(parts) if len(parts) > 1 else None

    def _lap(self, match: re.Match[str]) -> str | None:
        """Read 1:02.35."""
        g, minutes, seconds = self.grammar, str(int(match[1])), f"{int(match[2])}.{match[3]}"
        if not {"min", "s"} <= g.units.nouns.keys():
            return None
        amounts = [("min", minutes)] * (minutes != "0") + [("s", seconds)]
        return g.joint.join(g.in_unit(number, unit) for unit, number in amounts)

    def _minutes(self, match: re.Match[str]) -> str | None:
        """Read 90'. None at the end of a quotation."""
        is_quoted = re.search(r"['’](?!\w)|(?<!\w)['’](?!\d\d(?!\d))", before(match, 200))
        if is_quoted or "min" not in self.grammar.units.nouns:
            return None
        return self.grammar.in_unit(match[1], "min")

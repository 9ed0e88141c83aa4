"""Whole numbers in words.

A row of a language's file has the words from its number up to the next row's number.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

NAMES = ("count", "rest", "cardinal", "ordinal")
"""Names in the braces of a row. A name with / between its forms is a noun that follows the count."""
MOST_CACHED = 4_096
"""Size of the cache of numbers' words."""
_OPTIONAL = re.compile(r"\[([^|\]]*)\|?([^\]]*)\]")
"""Matches a choice in brackets: words if the division leaves a rest, then |, then words if it leaves no rest.
"""
_PART = re.compile(r"\{([^:{}]*):?([^{}]*)\}")


class Numeral(NamedTuple):
    size: int
    """Divides a number into a count and a rest: 100 → hundreds and the rest."""
    pattern: str


class Numerals:
    """Tables of number words: "cardinal", "ordinal" and so on. "cardinal f" has the rows of a form."""

    def __init__(
        self, tables: Mapping[str, Mapping[int, Numeral]], noun: Callable[[str], int] = lambda count: 0
    ) -> None:
        """`noun` returns the index of the form of a noun that follows a count."""
        self._noun = noun
        self._tables = {
            name: sorted({**tables.get(name.partition(" ")[0], {}), **rows}.items())
            for name, rows in tables.items()
        }
        self.say = lru_cache(maxsize=MOST_CACHED)(self._say)

    def has(self, table: str) -> bool:
        return table in self._tables

    def _say(self, table: str, number: int, form: str = "") -> str:
        """Words from the table in this form, else from "part" in this form, else from the table itself."""
        names = (f"{table} {form}", f"part {form}", table)
        rows = next(self._tables[name] for name in names if name in self._tables)
        _, (size, pattern) = rows[bisect_right(rows, number, key=lambda row: row[0]) - 1]
        count, rest = divmod(number, size)

        def part(match: re.Match[str]) -> str:
            name, own = match[1], form if match[2] == "=" else match[2]
            if name == "count":
                return self.say("cardinal", count, own)
            if name == "rest":
                return self.say("ordinal" if table == "ordinal" else "cardinal", rest, own)
            return self.say(name, number, own) if name in NAMES else name.split("/")[self._noun(str(count))]

        return _PART.sub(part, _OPTIONAL.sub(lambda m: m[1] if rest else m[2], pattern))

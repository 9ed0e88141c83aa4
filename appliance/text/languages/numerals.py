"""Whole numbers in words: each row of a language's file says its number and those up to the next row."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

NAMES = ("count", "rest", "cardinal", "ordinal")
"""Names in the braces of a row; a name with / between its forms is a noun after a count."""
KEPT = 4_096
"""Numbers whose words are remembered."""
_OPTIONAL = re.compile(r"\[([^|\]]*)\|?([^\]]*)\]")
"""Words if a rest remains, and after | the words without a rest."""
_PART = re.compile(r"\{([^:{}]*):?([^{}]*)\}")


class Numeral(NamedTuple):
    size: int
    """The size divides a number into its count and its rest."""
    pattern: str


class Numerals:
    """Tables of words: "cardinal", "ordinal" and others, and "cardinal f" for rows that differ in a form."""

    def __init__(
        self, tables: Mapping[str, Mapping[int, Numeral]], noun: Callable[[str], int] = lambda count: 0
    ) -> None:
        """`noun` is the index of a noun's form after a count."""
        self._noun = noun
        self._tables = {
            name: sorted({**tables.get(name.partition(" ")[0], {}), **rows}.items())
            for name, rows in tables.items()
        }
        self.say = lru_cache(maxsize=KEPT)(self._say)

    def has(self, table: str) -> bool:
        return table in self._tables

    def _say(self, table: str, number: int, form: str = "") -> str:
        """Words by a table in a form, else by the part of that name, else by the table itself."""
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

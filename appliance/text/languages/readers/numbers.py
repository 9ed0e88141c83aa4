"""Plain numbers, lists of numbers, and codes of letters and digits."""

from __future__ import annotations

import re

from appliance.text.languages.readers.reader import BaseReader
from appliance.text.spans import Kind, Table


class NumberReader(BaseReader):
    def digit_rules(self) -> Table:
        g, letter, marks = self.grammar, self.letter, self.marks
        return (
            (Kind.NUMBER, rf"\d+(?:,\d{{1,2}}){{2,}}{self.end}", self._list),
            (
                Kind.NUMBER,
                rf"{self.sign}(?P<number>{self.number})(?:(?!{letter}|[\d_]|[{marks}]\d)|(?={g.units.glued}))",
                g.bare,
            ),
            (Kind.CODE, rf"(?:\d|_|{letter})+(?:[{marks}]\d(?:\d|_|{letter})*)*", self._code),
        )

    def letter_rules(self) -> Table:
        letter = self.letter
        pattern = rf"(?={letter}*[\d_]){letter}(?:\d|_|{letter})*(?:\.\d(?:\d|_|{letter})*)*"
        return ((Kind.CODE, pattern, self._code),)

    def _list(self, match: re.Match[str]) -> str:
        return self.grammar.comma.join(self.grammar.spoken(part) for part in match[0].split(","))

    def _code(self, match: re.Match[str]) -> str:
        """Words of a code: its letters, numbers and versions are read separately."""
        g, words = self.grammar, []
        for part in re.findall(r"[^\W\d_]+|\d+(?:\.\d+)+|\d+,\d+|\d+|_+", match[0]):
            is_decimal = g.numbers.decimal == "." and part.count(".") == 1 and match[0][0].isdigit()
            if "," in part or is_decimal:
                words.append(g.spoken(g.plain(part)))
            elif "." in part:
                words.append(g.points(part))
            elif part[0].isdigit():
                words.append(g.in_code(g.plain(part), match[0]))
            elif part[0] != "_":
                words.append(g.letters(part))
            elif not g.joint:
                words.append(" ")
        return g.joint.join(words)

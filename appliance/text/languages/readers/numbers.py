"""Plain numbers, lists of numbers, and codes of letters and digits."""

from __future__ import annotations

import re

from appliance.text.languages.readers.reader import Reader
from appliance.text.spans import Kind, Table


class NumberReader(Reader):
    def digit_rules(self) -> Table:
        s, letter, marks = self.speech, self.letter, self.marks
        return (
            (Kind.NUMBER, rf"\d+(?:,\d{{1,2}}){{2,}}{self.end}", self._list),
            (
                Kind.NUMBER,
                rf"{self.sign}(?P<number>{self.number})(?:(?!{letter}|[\d_]|[{marks}]\d)|(?={s.units.glued}))",
                s.bare,
            ),
            (Kind.CODE, rf"(?:\d|_|{letter})+(?:[{marks}]\d(?:\d|_|{letter})*)*", self._code),
        )

    def letter_rules(self) -> Table:
        letter = self.letter
        pattern = rf"(?={letter}*[\d_]){letter}(?:\d|_|{letter})*(?:\.\d(?:\d|_|{letter})*)*"
        return ((Kind.CODE, pattern, self._code),)

    def _list(self, match: re.Match[str]) -> str:
        return self.speech.comma.join(self.speech.spoken(part) for part in match[0].split(","))

    def _code(self, match: re.Match[str]) -> str:
        """Words of a code: its letters, numbers and versions are read separately."""
        s, words = self.speech, []
        for part in re.findall(r"[^\W\d_]+|\d+(?:\.\d+)+|\d+,\d+|\d+|_+", match[0]):
            is_decimal = s.numbers.decimal == "." and part.count(".") == 1 and match[0][0].isdigit()
            if "," in part or is_decimal:
                words.append(s.spoken(s.plain(part)))
            elif "." in part:
                words.append(s.points(part))
            elif part[0].isdigit():
                words.append(s.in_code(s.plain(part), match[0]))
            elif part[0] != "_":
                words.append(s.letters(part))
            elif not s.joint:
                words.append(" ")
        return s.joint.join(words)

"""Vietnamese: its numbers, with mốt, lăm and linh, and the halves and tenths of millions: 1tr5."""

from __future__ import annotations

import re

from appliance.text.languages.speech import Speech
from appliance.text.spans import Kind, Table

_SCALES = ((10**9, "tỷ"), (10**6, "triệu"), (1_000, "nghìn"))


class Grammar(Speech):
    def cardinal(self, number: int, gender: str = "") -> str:
        words: list[str] = []
        for size, name in _SCALES:
            count, number = divmod(number, size)
            if count:
                words.append(f"{self._below_thousand(count, bool(words))} {name}")
        if number or not words:
            words.append(self._below_thousand(number, bool(words)))
        return " ".join(words)

    def _below_thousand(self, number: int, is_after: bool) -> str:
        """`is_after` larger groups, zero hundreds are said: không trăm linh năm."""
        small = self.lists["small"]
        hundreds, rest = divmod(number, 100)
        tens, ones = divmod(rest, 10)
        words = [f"{small[hundreds]} trăm"] if hundreds or (is_after and rest) else []
        if rest < 10:
            last = [small[rest]] if rest or not words else []
            return " ".join([*words, *["linh"] * bool(words and rest), *last])
        words.append("mười" if tens == 1 else f"{small[tens]} mươi")
        if ones:
            words.append({1: "một" if tens == 1 else "mốt", 5: "lăm"}.get(ones, small[ones]))
        return " ".join(words)

    def ordinal(self, number: int, ending: str = "") -> str:
        return f"thứ {({1: 'nhất', 4: 'tư'}).get(number) or self.cardinal(number)}"

    def clock(self, hour: int, minute: int, marked: bool) -> str:
        words = f"{self.cardinal(hour)} giờ"
        return f"{words} {self.cardinal(minute)} phút" if minute else words

    def digit_rules(self) -> Table:
        return (
            (Kind.MONEY, r"(\d+)\s?(tr|tỷ|triệu)\s?(\d)(?!\w)", self._tenths),
            (
                Kind.UNIT,
                r"(\d)m(\d{1,2})(?!\w)",
                lambda m: f"{self.in_unit(m[1], 'm')} {self.cardinal(int(m[2]))}",
            ),
        )

    def _tenths(self, match: re.Match[str]) -> str:
        """1tr5, 2tr3"""
        scale = "triệu" if match[2] == "tr" else match[2]
        part = "rưỡi" if match[3] == "5" else self.cardinal(int(match[3]))
        return f"{self.cardinal(int(match[1]))} {scale} {part}"

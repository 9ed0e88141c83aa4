"""French: its numbers, with soixante-dix and quatre-vingts."""

from __future__ import annotations

import re

from appliance.text.languages.grammar import BaseGrammar


class Grammar(BaseGrammar):
    def ordinal(self, number: int, ending: str = "") -> str:
        if number == 1:
            return "première" if ending == "f" else "premier"
        words = re.sub("(?<=cent|ingt|lion)s$", "", self.cardinal(number))
        words = re.sub("(?<=cin)q$", "qu", re.sub("neuf$", "neuv", words))
        return f"{words.removesuffix('e')}ième"

    def form(self, number: str) -> int:
        return int(float(number) >= 2)

    def grouped(self, text: str) -> str:
        """Words of a telephone number. Each pair of digits is a number: zéro six, douze."""
        groups = re.findall(r"\d{2}(?=(?:\d\d)*(?!\d))|\d+", text)
        return self.comma.join(self.spoken(each) if len(each) == 2 else self.digits(each) for each in groups)

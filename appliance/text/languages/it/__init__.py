"""Italian: its numbers and ordinals, with gender."""

from __future__ import annotations

import re

from appliance.text.languages.facets import Noun
from appliance.text.languages.grammar import BaseGrammar


class Grammar(BaseGrammar):
    def cardinal(self, number: int, gender: str = "") -> str:
        return super().cardinal(number, gender).replace("trémila", "tremila")

    def ordinal(self, number: int, ending: str = "") -> str:
        if 0 < number <= 10:
            words = self.lists["ordinals"][number]
        else:
            words = self.cardinal(number).replace("tré", "tre")
            words = (words if words.endswith(("tre", "sei")) else words[:-1]) + "esimo"
        return re.sub("o$", "a", words) if ending == "f" else words

    def regnal(self, number: int, gender: str) -> str:
        return self.ordinal(number, gender)

    def counted(self, number: str, noun: Noun) -> str:
        return re.sub(r"^una (?=[aeiou])", "un'", super().counted(number, noun))

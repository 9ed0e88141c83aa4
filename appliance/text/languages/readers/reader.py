"""The base of all readers, with their common patterns, and the rules of a language's file of words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from appliance.text.languages.facets import Noun
from appliance.text.languages.grammar import BaseGrammar
from appliance.text.languages.quantity import NUMBER
from appliance.text.languages.words import Rule
from appliance.text.spans import Kind, Say


class BaseReader:
    def __init__(self, grammar: BaseGrammar) -> None:
        self.grammar, numbers = grammar, grammar.numbers
        self.letter = numbers.letter
        self.end = rf"(?!{self.letter}|[\d_%°]|[.,:]\d|(?<=\d)/\d)"
        """Ensures that the number or word ends here."""
        self.word_end = rf"(?!{self.letter}|[\d_])"
        self.sign = rf"(?P<sign>(?<![{numbers.unsigned}\ue000])[-−+])?"
        group, point = ("." if numbers.decimal == "," else ","), re.escape(numbers.decimal)
        first = r"(?![0٠०])\d{1,3}"
        self.number = (
            NUMBER
            if numbers.mixed
            else rf"(?:{first}(?:[{group}٬]\d{{2,3}})*[{group}٬]\d{{3}}(?:[{point}٫]\d+)?(?!\d)"
            rf"|{first}(?: \d{{3}})+(?:{point}\d+)?(?!\d)|{first}(?:['’]\d{{3}})+(?:[.,]\d+)?(?!\d)"
            rf"|{first}(?:{point}\d{{3}})+[{group}]\d+|{first}(?:{point}\d{{3}}){{2,}}(?!\d)|\d+[.,٫]\d+|\d+|(?<!\w)[.,]\d+)"
        )
        self.marks = "." if numbers.mixed else ".,"

    def pair(self, word: str) -> Say:
        """Read two numbers with a word between them."""
        g = self.grammar
        return lambda m: g.between(g.spoken(g.plain(m[1])), word, g.spoken(g.plain(m[2])))

    def named(self, parts: Mapping[str, str]) -> str | None:
        """Words of numbers with their units' nouns, without zeros. None if a noun is missing."""
        numbers = {unit: str(int(value)) for unit, value in parts.items()}
        counts = {unit: number for unit, number in numbers.items() if number != "0"} or {"s": "0"}
        nouns: Mapping[str, Noun] = self.grammar.units.nouns
        if not counts.keys() <= nouns.keys():
            return None
        return self.grammar.joint.join(
            self.grammar.counted(number, nouns[unit]) for unit, number in counts.items()
        )


def always(grammar: BaseGrammar, words: str) -> str:
    """Words of a sign, with spaces around them if the language has spaces."""
    return f"{grammar.joint}{words}{grammar.joint}"


def undotted(words: Mapping[str, str]) -> dict[str, str]:
    """Abbreviations without full stop → words: "z. B." gives "z. b" and "z.b", and "Dr." gives "dr"."""
    rows = {}
    for short, spoken in words.items():
        key = short.lower().removesuffix(".")
        rows[key] = rows[key.replace(". ", ".")] = spoken
    return rows


class _Group:
    """A group of a rule's pattern. Formatting it gives its words."""

    def __init__(self, grammar: BaseGrammar, text: str | None) -> None:
        self._grammar, self._text = grammar, text or ""

    def __format__(self, form: str) -> str:
        return self._grammar.group(self._text, form)


def written_rules(grammar: BaseGrammar, place: str) -> Iterator[tuple[Kind, str, Say]]:
    """Rules of the file of words that begin at `place`."""
    for rule in grammar.words.rules[place]:
        yield rule.kind, rule.pattern, _formatted(grammar, rule)


def _formatted(grammar: BaseGrammar, rule: Rule) -> Say:
    def read(match: re.Match[str]) -> str | None:
        if rule.earlier and grammar.after(match, rule.earlier) is rule.is_without:
            return None
        return rule.spoken.format(*(_Group(grammar, match[group]) for group in range(match.re.groups + 1)))

    return read

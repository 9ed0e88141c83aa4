"""The base of all readers, with their common patterns, and the rules of a language's file of words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from appliance.text.languages.facets import Noun
from appliance.text.languages.quantity import NUMBER
from appliance.text.languages.speech import Speech
from appliance.text.languages.words import Rule
from appliance.text.spans import Kind, Say


class Reader:
    def __init__(self, speech: Speech) -> None:
        self.speech, numbers = speech, speech.numbers
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
        s = self.speech
        return lambda m: s.between(s.spoken(s.plain(m[1])), word, s.spoken(s.plain(m[2])))

    def named(self, parts: Mapping[str, str]) -> str | None:
        """Words of numbers with their units' nouns, without zeros. None if a noun is missing."""
        numbers = {unit: str(int(value)) for unit, value in parts.items()}
        named = {unit: number for unit, number in numbers.items() if number != "0"} or {"s": "0"}
        nouns: Mapping[str, Noun] = self.speech.units.nouns
        if not named.keys() <= nouns.keys():
            return None
        return self.speech.joint.join(
            self.speech.counted(number, nouns[unit]) for unit, number in named.items()
        )


def always(speech: Speech, words: str) -> str:
    """Words of a sign, with spaces around them if the language has spaces."""
    return f"{speech.joint}{words}{speech.joint}"


def unstopped(words: Mapping[str, str]) -> dict[str, str]:
    """Abbreviations without full stop → words: "z. B." gives "z. b" and "z.b", and "Dr." gives "dr"."""
    rows = {}
    for short, spoken in words.items():
        key = short.lower().removesuffix(".")
        rows[key] = rows[key.replace(". ", ".")] = spoken
    return rows


class _Group:
    """A group of a rule's pattern. Formatting it gives its words."""

    def __init__(self, speech: Speech, text: str | None) -> None:
        self._speech, self._text = speech, text or ""

    def __format__(self, form: str) -> str:
        return self._speech.group(self._text, form)


def written_rules(speech: Speech, place: str) -> Iterator[tuple[Kind, str, Say]]:
    """Rules of the file of words that begin at `place`."""
    for rule in speech.words.rules[place]:
        yield rule.kind, rule.pattern, _formatted(speech, rule)


def _formatted(speech: Speech, rule: Rule) -> Say:
    def read(match: re.Match[str]) -> str | None:
        if rule.earlier and speech.after(match, rule.earlier) is rule.is_without:
            return None
        return rule.spoken.format(*(_Group(speech, match[group]) for group in range(match.re.groups + 1)))

    return read

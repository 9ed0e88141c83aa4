"""Signs between numbers and words: scores, fractions, comparisons."""

from __future__ import annotations

import re

from appliance.text.languages.quantity import is_rating, units_pattern
from appliance.text.languages.readers.reader import BaseReader, always
from appliance.text.spans import Kind, Say, Table, before

SIGNS = {
    "&": r"&+",
    "+": r"\+(?=\s?\d)|(?<=\S)\+(?=[^\w+]|$)|(?<=\s)\+(?=\s)|(?<=\w)\+(?=\w)",
    "=": r"(?<![=!<>])={1,2}(?![=>])",
    "%": r"(?<=\w)\s?[%％](?!\w)",
    "×": r"×(?=\s?\d)|(?<=[\d)])\s?\*\s?(?=[\d(])",
    "÷": r"÷",
    "-": r"(?:(?<=[\d)])|(?<=[\d)] ))[-−](?=\s?\d+(?:[.,]\d+)?\s?=)",
    "±": r"±",
    "≤": r"<=|≤",
    "≥": r">=|≥",
    "<": r"(?<=[\w)])<(?=[\w(-])|(?<=[\w)]\s)<(?=\s[\w(-])|(?<!<)<(?=[.,]?\d)",
    ">": r"(?<=[\w)])>(?=[\w(-])|(?<=[\w)]\s)>(?=\s[\w(-])|(?<!>)>(?=[.,]?\d)",
    "≠": r"!=|≠",
    "≈": r"≈|~(?=\s?\w)",
    "√": r"√",
    "→": r"[-=]>|→",
    "²": r"(?<=\w)\^2(?!\d)",
    "^": r"(?<=[\d)])\^(?=[-−(]?\d)",
}


class SignReader(BaseReader):
    def digit_rules(self) -> Table:
        g, end, number = self.grammar, self.end, self.number
        units = units_pattern(sign.lower() for sign in g.units.nouns)
        return (
            (Kind.NUMBER, rf"(?i)(\d{{1,4}})\.?({g.numbers.ordinal_endings})(?!\w)", self._ordinal),
            (Kind.NUMBER, r"(\d{1,3})°(?=\s[^\W\d_])", g.numbered),
            (Kind.SCORE, rf"[0٠०]*(\d{{1,10}}):[0٠०]*(\d{{1,10}}){end}", self.pair(g.signs.score)),
            (Kind.SCORE, rf"(\d{{1,2}})(?:\s(?=[vV][sS]?\s))?([vV][sS]?)\s?(\d{{1,2}}){end}", self._versus),
            (Kind.SCORE, rf"\d{{1,3}}(?:[-–]\d{{1,3}}){{2,4}}{end}(?!\s?=)", self._score),
            (Kind.FRACTION, rf"(\d{{1,3}}) 1/2(?:\s?((?i:{units})))?{end}", self._half),
            (Kind.FRACTION, rf"({number})/(\d{{1,3}}[.,]\d00){end}", self.pair(g.signs.out_of)),
            (Kind.FRACTION, rf"(\d+(?:[.,]\d+)?)/(\d+(?:/\d+)*){end}", self._slash),
            (Kind.SIGN, rf"({number})\s?[x×]\s?(?={number}\s?(?i:{units}){end})", self._times),
            (Kind.SIGN, rf"({number})\s?[x×*]\s?({number}){end}", self.pair(g.signs.words["×"])),
        )

    def letter_rules(self) -> Table:
        g, times = self.grammar, f"{self.grammar.signs.words['×']}{self.grammar.joint}"
        return (
            (Kind.SIGN, rf"(?i)vs\.?{self.word_end}", lambda m: g.signs.versus or None),
            (Kind.SIGN, rf"[xX](?=\s{self.number})", self._by),
            (Kind.SIGN, rf"[xX](\d+){self.end}", lambda m: times + g.spoken(g.plain(m[1]))),
        )

    def sign_rules(self) -> Table:
        g, letter = self.grammar, self.letter
        number = f"{g.signs.number}{g.joint}"
        limit = rf"(?<!{letter})(?<![\d_)<>])"
        return (
            (Kind.NUMBER, rf"#(\d+){self.end}", lambda m: number + g.spoken(g.plain(m[1]))),
            (Kind.SIGN, r"#+|={3,}", lambda m: " "),
            (Kind.SIGN, r"(?<!\w)['’](?=\d\d(?!\d))", lambda m: ""),  # anni '90
            *(
                (Kind.SIGN, rf"{limit}{sign}(?=[.,]?\d)", self._always(words))
                for sign, words in g.signs.limits.items()
            ),
            *((Kind.SIGN, pattern, self._always(g.signs.words[sign])) for sign, pattern in SIGNS.items()),
        )

    def _always(self, words: str) -> Say:
        spaced = always(self.grammar, words)
        return lambda match: spaced

    def _ordinal(self, match: re.Match[str]) -> str:
        """Read 3º, 3er, 3ª."""
        g, ending = self.grammar, match[2].lower()
        if g.is_weather(match):
            return g.in_unit(match[1], "°")
        is_short = ending == "er" or (ending != "ero" and g.followed(match))
        return g.ordinal(int(match[1]), "f" if ending[-1] in "aª" else "m" if is_short else "")

    def _times(self, match: re.Match[str]) -> str:
        """Read the first number of 120x60cm, and the x. The second is read with its unit."""
        g = self.grammar
        return f"{g.spoken(g.plain(match[1]))}{g.joint}{g.signs.words['×']}{g.joint}"

    def _by(self, match: re.Match[str]) -> str | None:
        """Read 1,20 m x 60 cm."""
        is_measured = re.search(r"\d\s?(?:[cmk]?m|in|ft|kg)\s$", before(match))
        return self.grammar.signs.words["×"] if is_measured else None

    def _versus(self, match: re.Match[str]) -> str:
        """Read 1v1."""
        g = self.grammar
        return g.between(g.spoken(g.plain(match[1])), g.signs.versus or match[2], g.spoken(g.plain(match[3])))

    def _score(self, match: re.Match[str]) -> str:
        """Read 7-2-11, 4-2-3-1."""
        g = self.grammar
        return (g.joint or g.comma).join(g.spoken(g.plain(part)) for part in re.findall(r"\d+", match[0]))

    def _half(self, match: re.Match[str]) -> str | None:
        """Read 2 1/2, 2½ h."""
        g, unit = self.grammar, re.sub(r"[\s^]", "", (match[2] or "").lower())
        return g.counted(f"{match[1]}.5", g.units.nouns[unit]) if unit else g.half(int(match[1]))

    def _slash(self, match: re.Match[str]) -> str | tuple[Kind, str]:
        g, a, b = self.grammar, self.grammar.plain(match[1]), self.grammar.plain(match[2])
        if fraction := g.signs.fractions.get(f"{a}/{b}"):
            return fraction
        if is_rating(a, b):
            return g.joint.join((g.spoken(a), g.signs.out_of, g.spoken(b)))
        words = (g.joint or g.comma).join(g.spoken(g.plain(part)) for part in (a, *b.split("/")))
        return (Kind.SCORE, words) if "/" in b else words

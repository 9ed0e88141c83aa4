"""Short words, abbreviations, Roman numerals, and numbers that are names: telephones, versions, models."""

from __future__ import annotations

import re

from appliance.text.languages.grammar import BaseGrammar
from appliance.text.languages.quantity import NOTHING, NUMERAL, ONLY_ROMAN, ROMAN, is_address, one_of, roman
from appliance.text.languages.readers.reader import BaseReader, undotted
from appliance.text.spans import Kind, Table, before

_LAST_WORD = re.compile(r"([^\W\d_][\w'’-]*)[ :]?$")
_NEXT_LETTERS = re.compile(r"\s([^\W\d_]{2})")
_TITLES = "GTA|gta|FF|WW|DQ|MGS|DMC|TES|SF|MW"
"""Initials of titles that a Roman numeral may follow."""
_VARIANTS = "[Xx]3[Dd]|XTX|XT|HX|KS|KF|[KkXFHUGT]|T[iI]|ti"
"""Letters after the number of a processor or graphics card."""
_ONLY_VARIANTS = frozenset(str.split("X3D XTX XT KS KF Ti TI"))
_PROCESSOR = re.compile(
    r"(?:\b[iIrR][3579]|\b(?:RTX|GTX|RX|GT|Ryzen|Core|Ultra|Intel|AMD|Threadripper)(?: [3579])?)[- ]$"
)


class ChatReader(BaseReader):
    def __init__(self, grammar: BaseGrammar) -> None:
        super().__init__(grammar)
        self._chat = grammar.chat
        self._short, self._abbreviations = undotted(grammar.chat.short), undotted(grammar.chat.abbreviations)

    def digit_rules(self) -> Table:
        g, end = self.grammar, self.end
        return (
            (Kind.CODE, rf"(\d{{1,3}}(?:\.\d{{1,3}}){{3}})(?::(\d{{1,5}})|/(\d\d?))?{end}", self._address),
            (Kind.PHONE, rf"(?:{g.numbers.phone}){end}", self._phone),
            (Kind.VERSION, rf"(?!{self.number}{end})(\d+(?:\.\d+){{2,}}){end}", lambda m: g.points(m[1])),
            (Kind.VERSION, rf"(\d+\.\d+){end}", self._short_version),
            (Kind.CODE, rf"(\d{{3,5}})({_VARIANTS})(?!{self.letter}|[\d_])", self._model),
        )

    def letter_rules(self) -> Table:
        chat, no_letter = self._chat, rf"(?!{self.letter}|[\d_'’])"
        short, labels = one_of(map(re.escape, self._short)), map(_stopped, chat.labels)
        spoken = one_of(re.escape(each) for each, words in self._abbreviations.items() if words)
        king = rf"([IVX]{{1,6}})({chat.regnal_stop}){no_letter}"
        version = rf"[vV]\.?\s?(\d+(?:\.\d+)*)(?:(?:(?<=\.\d)|(?<=\.\d\d))([a-z]))?{self.end}"
        label = rf"(?i)(?<!\w\.)({one_of(labels)})\s?(?=\d|(?-i:{ROMAN})(?!\w))"
        rules: list[tuple[object, Table]] = [
            (self._short, [(Kind.ACRONYM, rf"(?i)(?:{short})(?![^\W\d]|')", self._short_word)]),
            (chat.labels, [(Kind.WORD, label, self._label)]),
            (
                spoken != NOTHING,
                [(Kind.WORD, rf"(?i)({spoken})\.(?!\w*\.\w)(?P<last>\s*$)?", self._abbreviation)],
            ),
            (chat.kings != NOTHING, [(Kind.ROMAN, king, self._king)]),
            (True, [(Kind.ROMAN, rf"({_TITLES})\s?((?i:{ROMAN}|[VX])){no_letter}", self._title)]),
            (chat.roman, [(Kind.ROMAN, rf"({ROMAN})({chat.roman_ending})?{no_letter}", self._roman)]),
            (True, [(Kind.VERSION, version, self._version)]),
            (True, [(Kind.CODE, r"(CVE)-\d{4}-\d{4,7}(?!\w)", self._named_groups)]),
            (True, [(Kind.TIME, rf"(GMT|UTC)\s?[-−]\s?(\d{{1,2}}){self.end}", self._zone)]),
        ]
        return [rule for is_wanted, table in rules if is_wanted for rule in table]

    def _short_word(self, match: re.Match[str]) -> str:
        return self._short[match[0].lower()]

    def _label(self, match: re.Match[str]) -> str:
        labels, short = self._chat.labels, match[1].lower()
        return f"{labels.get(short) or labels[short.removesuffix('.')]} "

    def _abbreviation(self, match: re.Match[str]) -> str:
        """Words of an abbreviation. At the end of the text, its full stop also ends the sentence."""
        return self._abbreviations[match[1].lower()] + ("" if match["last"] is None else ".")

    def _address(self, match: re.Match[str]) -> str | None:
        if not is_address(match):
            return None
        port = f"{self.grammar.comma}{self.grammar.digits(match[2])}" if match[2] else ""
        port += f"{self.grammar.comma}{self.grammar.spoken(match[3])}" if match[3] else ""
        return self.grammar.points(match[1]) + port

    def _phone(self, match: re.Match[str]) -> str | None:
        g = self.grammar
        if sum(map(str.isdigit, match[0])) < 7:
            return None
        plus = f"{g.signs.words['+']}{g.joint}" if match[0][0] == "+" else ""
        return plus + g.grouped(match[0])

    def _short_version(self, match: re.Match[str]) -> str | None:
        return self.grammar.points(match[1]) if self.grammar.after(match, self._chat.versions) else None

    def _version(self, match: re.Match[str]) -> str:
        g = self.grammar
        is_named = before(match).rstrip().lower().endswith(g.signs.version.lower())
        words = g.joint.join(filter(None, (g.points(match[1]), match[2])))
        return words if is_named else f"{g.signs.version}{g.joint}{words}"

    def _named_groups(self, match: re.Match[str]) -> str:
        """Read CVE-2026-48710."""
        return self.grammar.comma.join((self.grammar.letters(match[1]), self.grammar.grouped(match[0])))

    def _zone(self, match: re.Match[str]) -> str:
        """Read GMT-3."""
        g = self.grammar
        return g.joint.join((g.letters(match[1]), g.signs.minus, g.spoken(match[2])))

    def _model(self, match: re.Match[str]) -> str | None:
        """Read 9800X3D, i7-13700K."""
        g, letters = self.grammar, match[2].upper() if "3" in match[2] else match[2]
        if letters not in _ONLY_VARIANTS and not _PROCESSOR.search(before(match)):
            return None
        parts = re.findall(r"[A-Za-z]+|\d", letters)
        words = (g.spoken(part) if part.isdigit() else g.letters(part) for part in parts)
        return g.joint.join((g.spoken(match[1]), *words))

    def _title(self, match: re.Match[str]) -> str:
        """Read GTA VI, FFX."""
        g = self.grammar
        return g.joint.join((g.letters(match[1].upper()), g.cardinal(roman(match[2].upper()))))

    def _king(self, match: re.Match[str]) -> str | None:
        """Read Felipe II. None for Juan V., an initial."""
        chat, after = self._chat, match.string[match.end() :]
        title = re.search(rf"(?<!\w)(?:(?P<m>{chat.kings})|(?P<f>{chat.queens}))\s$", before(match, 40))
        is_initial = len(match[1]) == 1 and re.match(r"\.\s*\w", after)
        if not title or not re.fullmatch(NUMERAL, match[1]) or is_initial:
            return None
        words = self.grammar.regnal(roman(match[1]), "f" if title["f"] else "m")
        return words and words + "." * bool(match[2] and not after.strip())

    def _roman(self, match: re.Match[str]) -> str | None:
        """Read Louis XIV, XVe siècle. None for letters that may be a word: IO VI AMO."""
        g, numeral = self.grammar, match[1]
        if match[2]:
            is_feminine = re.fullmatch(self._chat.roman_feminine, match[2])
            return g.ordinal(roman(numeral), "f" if is_feminine else "")
        century = rf"(?i)(?<!\w)(?:{g.dates.short_century})\s?$"
        is_number = numeral in ONLY_ROMAN or re.search(century, before(match)) or self._is_numbered(match)
        return g.cardinal(roman(numeral)) if is_number else None

    def _is_numbered(self, match: re.Match[str]) -> bool:
        """True after a name, or a noun that may have a number, unless the next word is in capitals."""
        last, after = _LAST_WORD.search(before(match)), _NEXT_LETTERS.match(match.string, match.end())
        if not last or (after and after[1].isupper()):
            return False
        word = last[1]
        is_name = not word[0].islower() and not (len(word) > 1 and word.isupper())
        return is_name or bool(
            re.fullmatch(rf"(?i){self.grammar.dates.century}|{self.grammar.numbers.labels}", word)
        )


def _stopped(label: str) -> str:
    """Pattern of a short noun. Its full stop is optional, unless the row has it."""
    return re.escape(label) if label.endswith(".") else rf"{re.escape(label)}\.?"

"""Amounts with units, ranges of amounts, and rates."""

from __future__ import annotations

import re

from appliance.text.languages.facets import Noun
from appliance.text.languages.grammar import Amount, BaseGrammar
from appliance.text.languages.plain import SMALL
from appliance.text.languages.quantity import CURRENCY, DASH, RATED, one_of, units_pattern
from appliance.text.languages.readers.money import MoneyReader
from appliance.text.languages.readers.reader import always
from appliance.text.scripts import HAN
from appliance.text.spans import Kind, Table, before

_IN_QUOTES = re.compile(r"(?<![\w.])[\"“](?![^\"”]*[\"”])")
"""Matches a quotation's opening mark that has no closing mark."""


class UnitReader(MoneyReader):
    def __init__(self, grammar: BaseGrammar) -> None:
        super().__init__(grammar)
        self._units = grammar.units
        self._names = {sign.lower(): noun for sign, noun in grammar.units.nouns.items()}
        self._rates = units_pattern(grammar.units.per)

    def _quantity(self, suffix: str = "") -> str:
        """Pattern of an amount: currency, number, scale and unit, as groups whose names end with `suffix`."""
        units, money, letter = self._units, self._money, self.letter
        codes = units_pattern(sign for sign in money.currencies if not re.fullmatch(CURRENCY, sign))
        names = units_pattern(self._names, units.cased, units.unspaced)
        scales, whole = self.scales, money.unstopped.split()
        stopped = one_of(
            rf"(?<={re.escape(sign)})\." for sign in money.scales if 3 <= len(sign) <= 4 and sign not in whole
        )
        number = self.number
        if self.grammar.numbers.mixed:
            number = rf"\d+,\d{{1,2}}(?=\s?(?:{CURRENCY}|{scales}|(?i:{codes}|{names}))(?!{letter}))|{number}"
        return (
            rf"(?P<before{suffix}>{CURRENCY}\s?)?(?P<number{suffix}>{number})"
            rf"(?:(?=\s?[^\s\d.,!?;)])(?:\s?(?P<scale{suffix}>{scales})(?:{stopped})?(?:(?<=[{HAN}])|(?!{letter}|[A-Za-z^])))?"
            rf"(?:\s?(?P<unit{suffix}>{CURRENCY}|(?i:{codes})|(?(before{suffix})(?<!\s))(?i:{names}))"
            r"(?:(?<![A-Za-z])|(?![A-Za-z])))?)?"
        )

    def digit_rules(self) -> Table:
        g, end, times = self.grammar, self.end, self.grammar.times
        stops = "|".join(rf"(?<={unit})" for unit in times.stopped.split())
        time_end = rf"(?:(?i:{stops})\.(?=\s[\d{SMALL}]))?"  # 1 Std. 30 Min. ends no sentence
        return (
            (
                Kind.RANGE,
                rf"(?=.[^-–—~～]{{0,40}}[-–—~～]){self.sign}{self._quantity('_a')}{DASH}(?P<minus>[-−])?"
                rf"{self._quantity('_b')}{end}(?!\s?=|-\d){time_end}",
                self._range,
            ),
            (
                Kind.UNIT,
                rf"{self.sign}{self._quantity()}(?:{end}|(?={g.units.glued})){time_end}",
                self._amount,
            ),
            (Kind.UNIT, r"(\d+(?:[.,]\d+)?)(?:[\"″”]|'')(?=[^\w\"]|$)", self._inches),
            (
                Kind.UNIT,
                rf"(?<![{g.numbers.unsigned}])(?P<sign>[-−])(\d{{1,3}})\s?([CF]){end}",
                lambda m: g.signed(m, g.joint.join((g.spoken(m[2]), g.letters(m[3])))),
            ),
        )

    def letter_rules(self) -> Table:
        measured = "|".join(unit for unit in self._units.measured.split() if unit in self._names) or "(?!)"
        return ((Kind.UNIT, rf"(?i)({measured})/({self._rates}){self.word_end}", self._bare_rate),)

    def sign_rules(self) -> Table:
        g = self.grammar
        per = always(g, g.units.per_word.format("").strip())
        return (
            (Kind.UNIT, rf"\s?/\s?((?i:{self._rates}){self.word_end}|{self.letter}+(?![\w/]))", self._rate),
            (Kind.UNIT, rf"\s?/\s?(?=100\s?(?:{self._rates})(?!\w))", lambda m: per),
            (Kind.SIGN, r"(?<=\w)/(?=\w)", lambda m: g.signs.slash or " "),
        )

    def _inches(self, match: re.Match[str]) -> str | None:
        """Read 27" monitor. None at the end of a quotation."""
        noun, is_quoted = self._names.get("″"), _IN_QUOTES.search(before(match, 100))
        return None if is_quoted or not noun else self.grammar.counted(self.grammar.plain(match[1]), noun)

    def _rate(self, match: re.Match[str]) -> str | None:
        """Read what follows the number of a rate: a unit such as /s, or after money any word."""
        g, earlier, word = self.grammar, before(match), match[1]
        if re.search(RATED, earlier) and (words := self._per(word)):
            return g.joint + words
        is_price = re.search(rf"{CURRENCY}\s?[\d.,]+\w{{0,2}}$|\d\s?{CURRENCY}$", earlier)
        return g.joint + g.units.per_word.format(word) if is_price and len(word) > 2 else None

    def _per(self, sign: str) -> str:
        return self._units.per.get(re.sub(r"[\s^]", "", sign.lower()), "")

    def _bare_rate(self, match: re.Match[str]) -> str:
        """Read a rate without a number: km/h."""
        noun = self._names[self._bits(match[1], match.end(1), match.string).lower()]
        return f"{noun.forms[-1]}{self.grammar.joint}{self._per(match[2])}"

    def _bits(self, unit: str, end: int, text: str) -> str:
        """The unit, as bits in Mb/s and as bytes in MB/s."""
        is_rate = re.match(r"\s?/\s?(?:s|sec|min|h|hr)(?![A-Za-z])", text[end:])
        is_bits = unit in ("Kb", "Mb", "Gb", "Tb") and is_rate and f"{unit.lower()}it" in self._names
        return f"{unit}it" if is_bits else unit

    def _amount(self, match: re.Match[str]) -> tuple[Kind, str] | None:
        amount = self._read(match) if match["before"] or match["scale"] or match["unit"] else None
        if amount is None or not (amount.scale or amount.sign):
            return None
        words = self.grammar.signed(match, self._words(amount, self.grammar.followed(match)))
        if amount.sign in ("%", "％", "٪"):
            return Kind.PERCENT, words
        if not amount.sign:
            return Kind.NUMBER, words
        return Kind.UNIT if self._noun(amount.sign) and not self.noun_of(amount.sign) else Kind.MONEY, words

    def _range(self, match: re.Match[str]) -> str | None:
        """Read a range. Two bare numbers that fall are a score."""
        g, a, b = self.grammar, self._read(match, "_a"), self._read(match, "_b")
        if a is None or b is None or (a.sign and b.sign not in ("", a.sign)):
            return None
        is_rising = float(a.number) < float(b.number)
        is_close = not re.search(r"\s[-–—~～]\s", match[0])
        is_common = is_close and is_rising and float(b.number) < 1_000  # 5k-10, but not 1万-2 and 1k-2米
        scale = b.scale or (a.scale if is_common and not re.search(f"[{HAN}]", a.scale + b.sign) else "")
        both, is_score = Amount(b.number, scale, b.sign or a.sign), False
        if not (a.scale or both.scale or both.sign) and (a.number + b.number).isdigit():
            if all(re.fullmatch(g.dates.years, n) for n in (a.number, b.number)):
                return g.joint.join((g.year(int(a.number)), g.signs.to, g.year(int(b.number))))
            is_score = not is_rising or a.number == "0"
        noun = self._noun(both.sign)
        gender = noun.gender if noun else "" if is_score else g.followed(match)
        first = self._words(Amount(a.number, a.scale, a.sign if a.sign in g.units.repeated else ""), gender)
        second = self._words(both, gender)
        if match["minus"]:
            second = f"{g.negative(match)}{g.joint}{second}"
        return g.between(g.signed(match, first), g.signs.score if is_score else g.signs.to, second)

    def _read(self, match: re.Match[str], suffix: str = "") -> Amount | None:
        """Amount of a match; None if its letter is no unit: 5G, 4K."""
        groups, cased = match.groupdict(), self._units.cased
        unit = groups[f"unit{suffix}"] or ""
        written, scale = groups[f"number{suffix}"], groups[f"scale{suffix}"] or ""
        # English writes the sign before the number, and groups by commas: $1,500.
        is_grouped = groups[f"before{suffix}"] and re.fullmatch(r"[1-9]\d{0,2},\d{3}", written)
        value = written.replace(",", "") if is_grouped else self.grammar.plain(written)
        sign = (unit if unit.upper() in self.codes else groups[f"before{suffix}"] or unit).strip()
        if (len(unit) == 1 and unit.isupper() and unit not in cased) or (
            scale == "K" and value in ("2", "4", "8") and not sign
        ):
            return None
        end = match.end(f"scale{suffix}")
        if re.fullmatch(r"\s[A-Z]-\d", match.string[end - 2 : end + 2]):
            return None  # F-150 B-52
        if unit and re.match(r"\.[^\W\d_](?![^\W\d_])", match.string[match.end() :]):
            return None  # 500 d.C.
        seats = rf"(?<!\w)(?:{self.grammar.numbers.labels}|{self._units.seats})\.?\s$"
        if (unit in cased or len(scale) == 1) and re.search(seats, before(match), re.I):
            return None
        return self.grammar.measured(Amount(value, scale, self._bits(sign, match.end(), match.string)), match)

    def _noun(self, sign: str) -> Noun | None:
        """Noun of a currency or unit."""
        if money := self.noun_of(sign):
            return money[0]
        return self._units.cased.get(sign) or self._names.get(re.sub(r"[\s^]", "", sign.lower()))

    def _words(self, amount: Amount, gender: str = "") -> str:
        return self.amount(amount, self._noun(amount.sign), gender)

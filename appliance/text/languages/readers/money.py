"""Amounts of money, and scales such as thousands and millions."""

from __future__ import annotations

import re
from decimal import Decimal

from appliance.text.languages.facets import Noun
from appliance.text.languages.grammar import Amount, BaseGrammar
from appliance.text.languages.quantity import NOTHING, one_of
from appliance.text.languages.readers.reader import BaseReader
from appliance.text.spans import Kind, Table


class MoneyReader(BaseReader):
    def __init__(self, grammar: BaseGrammar) -> None:
        super().__init__(grammar)
        self._money = grammar.money
        self.codes = [sign for sign in self._money.currencies if re.fullmatch("[A-Z]{3}", sign)]
        """Currencies that may precede the number: EUR 5."""
        self._before = one_of(
            [*self.codes, *(rf"{re.escape(sign)}\.?" for sign in grammar.money.before.split())]
        )
        self.scales = one_of(map(re.escape, self._money.scales))

    def digit_rules(self) -> Table:
        return (
            (Kind.MONEY, rf"(\d+)\s?€(\d\d){self.end}", lambda m: self._price(f"{m[1]}.{m[2]}", "", "€")),
        )

    def letter_rules(self) -> Table:
        scale = rf"(?:\s?(?P<scale>{self.scales}))?"
        if self._before == NOTHING:
            return ()
        return (
            (
                Kind.MONEY,
                rf"(?P<code>{self._before})\s?(?P<number>{self.number}){scale}{self.end}",
                lambda m: self._price(self.grammar.plain(m["number"]), m["scale"] or "", m["code"]),
            ),
        )

    def _price(self, number: str, scale: str, sign: str) -> str | None:
        noun = self.noun_of(sign.rstrip("."))
        return noun and self.amount(Amount(number, scale, sign.rstrip(".")), noun[0], "")

    def noun_of(self, sign: str) -> tuple[Noun, Noun | None] | None:
        """Noun of a currency, and noun of its hundredth part; None if unknown."""
        nouns = (self._money.currencies.get(key) for key in (sign, sign.upper(), sign[-1:]))
        return next(filter(None, nouns), None)

    def amount(self, amount: Amount, noun: Noun | None, gender: str) -> str:
        """Words of an amount with its noun; without one, of a number before a noun of this gender."""
        g, number, (_, cent) = self.grammar, amount.number, self.noun_of(amount.sign) or (None, None)
        if self.noun_of(amount.sign):
            number = re.sub(r"^0+(?=\d)", "", number)
        if amount.scale:
            scale = self._money.scales[amount.scale]
            value = Decimal(number) * scale.power
            if scale.noun and ("." in number or not scale.power):
                return g.joint.join(filter(None, (g.counted(number, scale.noun), self._of(noun))))
            number = str(int(value)) if value == int(value) else str(value)
        whole, _, part = number.partition(".")
        if noun and cent and 0 < len(part) <= 2:
            if small := part.ljust(2, "0").lstrip("0"):
                return self._with_cents(whole, small, noun, cent)
            number = whole
        if self.noun_of(amount.sign) and not part.strip("0"):
            number = whole
        if noun is None:
            return g.spoken(number, gender)
        if self._money.of and number.isdigit() and int(number) and int(number) % 1_000_000 == 0:
            return f"{g.spoken(number)} {self._of(noun)}"
        return g.counted(number, noun)

    def _with_cents(self, whole: str, small: str, noun: Noun, cent: Noun) -> str:
        g, cents = self.grammar, self._money.cents
        if whole == "0":
            return g.counted(small, cent)
        part = g.spoken(small, cent.gender if "{noun}" in cents else "")
        form = cent.forms[min(g.form(small), len(cent.forms) - 1)]
        return cents.format(whole=g.counted(whole, noun), part=part, noun=form)

    def _of(self, noun: Noun | None) -> str:
        """The noun after millions, as the language writes it."""
        if noun is None:
            return ""
        money, form = self._money, self.grammar.form("1000000")
        name = noun.forms[min(form, len(noun.forms) - 1)]
        pattern = money.of_vowel if money.of_vowel and name[0] in "aeiou" else money.of
        return pattern.format(name) if pattern else name

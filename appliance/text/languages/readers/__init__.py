"""The readers that all languages share, one for each facet."""

from __future__ import annotations

from appliance.text.languages.grammar import BaseGrammar
from appliance.text.languages.readers.chat import ChatReader
from appliance.text.languages.readers.dates import DateReader
from appliance.text.languages.readers.money import MoneyReader
from appliance.text.languages.readers.numbers import NumberReader
from appliance.text.languages.readers.reader import BaseReader, always, undotted, written_rules
from appliance.text.languages.readers.signs import SignReader
from appliance.text.languages.readers.times import TimeReader
from appliance.text.languages.readers.units import UnitReader
from appliance.text.spans import Language, Readings, Table

_READERS = (DateReader, TimeReader, MoneyReader, ChatReader, SignReader, UnitReader, NumberReader)
"""Readers in order of precedence."""


def rules(of: BaseGrammar | BaseReader, name: str) -> Table:
    """Rows of `digit_rules`, `letter_rules` or `sign_rules`, if a grammar or reader has that method."""
    table: Table = getattr(of, name, tuple)()
    return table


def digit_table(grammar: BaseGrammar) -> Table:
    """Readings of all languages that begin with a digit."""
    return [row for reader in _READERS for row in rules(reader(grammar), "digit_rules")]


def language_of(grammar: BaseGrammar) -> Language:
    """Language of a grammar; its own rules have precedence over the common rules."""
    readers = [reader(grammar) for reader in _READERS]

    def words(place: str, name: str) -> Readings:
        own = [*written_rules(grammar, place), *rules(grammar, name)]
        return Readings([*own, *(row for reader in readers for row in rules(reader, name))])

    alone = {sign: always(grammar, grammar.signs.words[sign]) for sign in "&+=%×÷"}
    alone |= {sign: always(grammar, words) for sign, words in grammar.signs.symbols.items()}
    writing = grammar.words.writing
    return Language(
        code=grammar.code,
        link=grammar.chat.link,
        mail=grammar.chat.mail,
        listing=grammar.chat.listing,
        comma=grammar.comma,
        point=grammar.signs.ending or grammar.signs.dot,
        digit=lambda character: f"{grammar.joint}{grammar.digits(character)}{grammar.joint}",
        number=lambda n, is_ordinal: grammar.ordinal(int(n)) if is_ordinal else grammar.spoken(n),
        numbers=Readings(
            [
                *written_rules(grammar, "at digit"),
                *rules(grammar, "digit_rules"),
                *grammar.in_case(digit_table(grammar)),
            ]
        ),
        words=words("at letter", "letter_rules"),
        signs=words("at sign", "sign_rules"),
        capitals=grammar.capitals,
        scripts=tuple(writing.scripts.split()),
        abbreviations=frozenset(undotted(grammar.chat.abbreviations)),
        heart=grammar.chat.heart,
        alone=alone,
        sample=writing.sample,
        stretched=writing.stretched,
    )

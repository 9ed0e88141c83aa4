"""The readers that all languages share, one for each facet."""

from __future__ import annotations

from appliance.text.languages.readers.chat import ChatReader
from appliance.text.languages.readers.dates import DateReader
from appliance.text.languages.readers.money import MoneyReader
from appliance.text.languages.readers.numbers import NumberReader
from appliance.text.languages.readers.reader import Reader, always, unstopped, written_rules
from appliance.text.languages.readers.signs import SignReader
from appliance.text.languages.readers.times import TimeReader
from appliance.text.languages.readers.units import UnitReader
from appliance.text.languages.speech import Speech
from appliance.text.spans import Language, Readings, Table

_READERS = (DateReader, TimeReader, MoneyReader, ChatReader, SignReader, UnitReader, NumberReader)
"""In order of precedence."""


def rules(of: Speech | Reader, name: str) -> Table:
    """Rows of `digit_rules`, `letter_rules` or `sign_rules`, if a grammar or reader has that method."""
    table: Table = getattr(of, name, tuple)()
    return table


def digit_table(speech: Speech) -> Table:
    """Readings of all languages that begin with a digit."""
    return [row for reader in _READERS for row in rules(reader(speech), "digit_rules")]


def language_of(speech: Speech) -> Language:
    """Language of a grammar; its own rules have precedence over the common rules."""
    readers = [reader(speech) for reader in _READERS]

    def words(place: str, name: str) -> Readings:
        own = [*written_rules(speech, place), *rules(speech, name)]
        return Readings([*own, *(row for reader in readers for row in rules(reader, name))])

    alone = {sign: always(speech, speech.signs.words[sign]) for sign in "&+=%×÷"}
    alone |= {sign: always(speech, words) for sign, words in speech.signs.symbols.items()}
    writing = speech.words.writing
    return Language(
        code=speech.code,
        link=speech.chat.link,
        mail=speech.chat.mail,
        listing=speech.chat.listing,
        comma=speech.comma,
        point=speech.signs.ending or speech.signs.dot,
        digit=lambda character: f"{speech.joint}{speech.digits(character)}{speech.joint}",
        number=lambda n, is_ordinal: speech.ordinal(int(n)) if is_ordinal else speech.spoken(n),
        numbers=Readings(
            [
                *written_rules(speech, "at digit"),
                *rules(speech, "digit_rules"),
                *speech.in_case(digit_table(speech)),
            ]
        ),
        words=words("at letter", "letter_rules"),
        signs=words("at sign", "sign_rules"),
        capitals=speech.capitals,
        scripts=tuple(writing.scripts.split()),
        abbreviations=frozenset(unstopped(speech.chat.abbreviations)),
        heart=speech.chat.heart,
        alone=alone,
        sample=writing.sample,
        stretched=writing.stretched,
    )

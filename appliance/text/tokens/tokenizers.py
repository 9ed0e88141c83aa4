"""Tokenizers by name. The dictionaries and processes that they need start at their first use."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence

from appliance.contract.tokens import Tokenizer, Vocabulary
from appliance.text.languages import resolve
from appliance.text.phones import front
from appliance.text.scripts import JOINERS, LETTERS
from appliance.text.tokens import chinese
from appliance.text.tokens.emilia import marks, phones
from appliance.text.tokens.emilia.tokens import CachedMaker, Emilia, can_say

WARM = "Hello, frobnicator"
"""A word that is in the dictionary of `phones`, and a word that is not."""
_emilia = Emilia(phones.SHARED.phones)
_SPOKEN_SIGNS = frozenset("%&@+=£$€'-" + JOINERS) | marks.ALL_MARKS
"""Signs that espeak reads, or reads across, although no token stands for them."""


def maker(tokenizer: Tokenizer, voice: str = "") -> Callable[[str], Sequence[str]]:
    """Maker for `Vocabulary.split`.

    Those of espeak raise PhonesMissing. `voice` is for the tokenizer `espeak`.
    """
    if tokenizer == "phones":
        return lambda text: front.front()(text)
    if tokenizer == "espeak":
        return _espeak(voice)
    return _emilia if tokenizer == "emilia" else chinese.to_tokens


@functools.cache
def _espeak(voice: str) -> CachedMaker:
    return CachedMaker(lambda text: phones.SHARED.phones(text, voice))


def warm(tokenizer: Tokenizer, voice: str = "") -> None:
    """Load dictionaries, which takes most of a second, and start processes. Raises PhonesMissing."""
    if tokenizer == "phones":
        front.front()(WARM)
        return
    if tokenizer == "espeak":
        _espeak(voice)(WARM)
        return
    chinese.warm()
    if tokenizer == "emilia":
        _emilia("你好 hello")


def says(vocabulary: Vocabulary, character: str) -> bool:
    """True if a vocabulary has all tokens of one character."""
    if vocabulary.tokenizer == "emilia":
        return can_say(character, vocabulary.index)
    if vocabulary.tokenizer == "espeak":
        return _spoken_by_espeak(vocabulary, character)
    if vocabulary.tokenizer == "phones":
        return front.can_say(character)
    tokens = vocabulary.split(character, chinese.to_tokens)  # none if the tokenizer drops it
    return bool(tokens) and all(token in vocabulary.index for token in tokens if token != " ")


def _spoken_by_espeak(vocabulary: Vocabulary, character: str) -> bool:
    """True for Latin letters and letters of the voice's script. espeak speaks the names of others."""
    if unicodedata.category(character)[0] in "LM":
        scripts = dict.fromkeys(("LATIN", *resolve(vocabulary.voice).scripts))
        own = "".join(LETTERS[script] for script in scripts)
        return unicodedata.category(character)[0] == "M" or re.match(f"[{own}]", character) is not None
    return character.isdecimal() or character in _SPOKEN_SIGNS or character in vocabulary.index

"""Tokenizers by name; what they need, as dictionaries and the process of `emilia`, begins when first used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.contract.tokens import Tokenizer, Vocabulary
from appliance.text import chinese
from appliance.text.emilia import phones
from appliance.text.emilia.tokens import Emilia, can_say
from appliance.text.phones import front

WARM = "Hello, frobnicator"
"""Words that the dictionary of `phones` has and lacks."""
_emilia = Emilia(phones.SHARED.phones)


def maker(tokenizer: Tokenizer) -> Callable[[str], Sequence[str]]:
    """For `Vocabulary.split`; that of `emilia` raises PhonesMissing."""
    if tokenizer == "phones":
        return lambda text: front.front()(text)
    return _emilia if tokenizer == "emilia" else chinese.to_tokens


def warm(tokenizer: Tokenizer) -> None:
    """Load dictionaries, most of a second, and start what it needs. Raises PhonesMissing."""
    if tokenizer == "phones":
        front.front()(WARM)
        return
    chinese.warm()
    if tokenizer == "emilia":
        _emilia("你好 hello")


def says(vocabulary: Vocabulary, character: str) -> bool:
    """True if a vocabulary has what one character is made into."""
    if vocabulary.tokenizer == "emilia":
        return can_say(character, vocabulary.index)
    if vocabulary.tokenizer == "phones":
        return front.can_say(character)
    made = vocabulary.split(character, chinese.to_tokens)  # none where the tokenizer leaves it out
    return bool(made) and all(token in vocabulary.index for token in made if token != " ")

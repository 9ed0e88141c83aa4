"""The languages that have words for numbers and signs.

Each is a folder, named by its code and loaded at first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from appliance.text.languages.grammar import BaseGrammar
from appliance.text.languages.plain import PLAIN
from appliance.text.languages.readers import language_of
from appliance.text.languages.words import own, read
from appliance.text.scripts import script_of
from appliance.text.spans import Language

WORDS = "words.tsv"
LANGUAGES: Mapping[str, Path] = MappingProxyType(
    {path.parent.name: path for path in sorted(Path(__file__).parent.glob(f"*/{WORDS}"))}
)
"""Code → the language's file of words."""


class UnknownLanguage(ValueError):
    """No language has this code. The message names the known codes."""


def base_code(tag: str) -> str:
    """The language of a tag: "de-AT", "en_GB", "zh-CN" → "de", "en", "zh"."""
    return tag.strip().replace("_", "-").partition("-")[0].lower()


def grammar(code: str, *others: Path) -> BaseGrammar:
    """Grammar of a language. Rows of the files `others` replace its own rows.

    Raises UnknownLanguage and WordsError.
    """
    path = LANGUAGES.get(base_code(code))
    if path is None:
        raise UnknownLanguage(f"{code!r} is not known; {', '.join(LANGUAGES)} are")
    base = path.parent.name
    grammar_class: type[BaseGrammar] = getattr(import_module(f"{__name__}.{base}"), "Grammar", BaseGrammar)
    return grammar_class(base, read(path, *others) if others else own(path))


def language(code: str, *others: Path) -> Language:
    """The language of a code. `others` are as in grammar(). Raises UnknownLanguage and WordsError."""
    return language_of(grammar(code, *others)) if others else _language(base_code(code))


@cache
def _language(code: str) -> Language:
    return language_of(grammar(code))


@cache
def resolve(code: str) -> Language:
    """The language of a code; for an unknown one, PLAIN with the language's script."""
    base = base_code(code)
    return language(base) if base in LANGUAGES else replace(PLAIN, code=base, scripts=(script_of(base),))


def muted(spoken: Language) -> Language:
    """PLAIN, with the scripts of a language."""
    return replace(PLAIN, code=spoken.code, scripts=spoken.scripts)

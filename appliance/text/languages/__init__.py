"""Languages with words for numbers and signs: each is a folder by its code, read at its first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from appliance.text.languages.plain import PLAIN
from appliance.text.languages.readers import language_of
from appliance.text.languages.speech import Speech
from appliance.text.languages.words import own, read
from appliance.text.scripts import script_of
from appliance.text.spans import Language

WORDS = "words.tsv"
LANGUAGES: Mapping[str, Path] = MappingProxyType(
    {path.parent.name: path for path in sorted(Path(__file__).parent.glob(f"*/{WORDS}"))}
)
"""File of words of each language."""


class UnknownLanguage(ValueError):
    """No language has this code; the message names the known codes."""


def base_code(tag: str) -> str:
    """ "de-AT", "en_GB", "zh-CN" → "de", "en", "zh"."""
    return tag.strip().replace("_", "-").partition("-")[0].lower()


def speech(code: str, *others: Path) -> Speech:
    """Grammar of a language; the rows of `others` replace its own rows.

    Raises UnknownLanguage and WordsError.
    """
    path = LANGUAGES.get(base_code(code))
    if path is None:
        raise UnknownLanguage(f"{code!r} is not known; {', '.join(LANGUAGES)} are")
    base = path.parent.name
    grammar: type[Speech] = getattr(import_module(f"{__name__}.{base}"), "Grammar", Speech)
    return grammar(base, read(path, *others) if others else own(path))


def language(code: str, *others: Path) -> Language:
    """Raises UnknownLanguage and WordsError."""
    return language_of(speech(code, *others)) if others else _language(base_code(code))


@cache
def _language(code: str) -> Language:
    return language_of(speech(code))


@cache
def known(code: str) -> Language:
    """The language, or PLAIN in the script of an unregistered language."""
    base = base_code(code)
    return language(base) if base in LANGUAGES else replace(PLAIN, code=base, scripts=(script_of(base),))


def muted(spoken: Language) -> Language:
    """PLAIN, in the scripts of a language."""
    return replace(PLAIN, code=spoken.code, scripts=spoken.scripts)

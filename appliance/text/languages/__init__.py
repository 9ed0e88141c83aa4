"""Languages with words for numbers and signs, by code; each module loads at its first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import MappingProxyType

from appliance.text.languages.plain import PLAIN
from appliance.text.scripts import script_of
from appliance.text.spans import Language

LANGUAGES: Mapping[str, str] = MappingProxyType(
    {
        code: f"appliance.text.languages.{name}:{name.upper()}"
        for code, name in (
            *(("en", "english"), ("zh", "mandarin"), ("de", "german"), ("es", "spanish")),
            *(("fr", "french"), ("it", "italian"), ("pt", "portuguese"), ("ru", "russian")),
            *(("ja", "japanese"), ("hi", "hindi"), ("ar", "arabic")),
        )
    }
)


class UnknownLanguage(ValueError):
    """No language has this code; the message names the known codes."""


def base_code(tag: str) -> str:
    """ "de-AT", "en_GB", "zh-CN" → "de", "en", "zh"."""
    return tag.strip().replace("_", "-").partition("-")[0].lower()


@cache
def language(code: str) -> Language:
    """Raises UnknownLanguage."""
    place = LANGUAGES.get(base_code(code))
    if place is None:
        raise UnknownLanguage(f"{code!r} is not known; {', '.join(LANGUAGES)} are")
    module, _, name = place.partition(":")
    found = getattr(import_module(module), name)
    assert isinstance(found, Language)
    return found


@cache
def known(code: str) -> Language:
    """The language, or PLAIN in the script of an unregistered language."""
    base = base_code(code)
    return language(base) if base in LANGUAGES else replace(PLAIN, code=base, scripts=(script_of(base),))


def muted(spoken: Language) -> Language:
    """PLAIN, in the scripts of a language."""
    return replace(PLAIN, code=spoken.code, scripts=spoken.scripts)

"""The voice for a text's language, by the table `text.languages`.

If only one language of the table has the text's script, the script decides. Otherwise py3langid does; it must
be installed only if the table needs it.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, cast

from appliance.config import LanguageRow
from appliance.errors import ConfigError
from appliance.text.chat.line import Languages, unnamed
from appliance.text.languages import base_code, resolve
from appliance.text.scripts import LETTERS

INSTALL = "pip install 'f5-appliance[languages]'"
LEAST_ODDS = 3.0
"""Ratio of the likeliest language's likelihood to the next one's from which on a text is in that language.

Of 468 chat lines in six languages, including notes of a word or a number, two thirds reach it, 39 of 40
rightly.
"""
MOST_CHARACTERS = 1_000
"""Most characters of a text that are read."""
MOST_CHANNELS = 1_024
"""Most channels whose last language is remembered."""
_NO_LETTERS = re.compile(r"[\W\d_]+")

Rank = Callable[[str], Sequence[tuple[str, float]]]
"""Text → (code, probability) of the table's languages, the likeliest first."""


class LanguageTable:
    """Rows by language, and the last language of each channel. Thread-safe."""

    def __init__(self, rows: Mapping[str, LanguageRow]) -> None:
        """`rows` has at least one row. Raises ConfigError if the table needs a package that is missing."""
        self._rows = rows
        languages = [resolve(code) for code in rows]
        self._languages = Languages(languages, LETTERS)
        every = [script for language in languages for script in set(language.scripts)]
        self._rank = _ranking(list(rows)) if len(every) > len(set(every)) else None
        self._last: dict[str, str] = {}
        self._lock = threading.Lock()

    def of(self, text: str, channel: str = "", language: str = "") -> tuple[str, LanguageRow]:
        """(language, row) of a text. The channel remembers the language."""
        code, row = self.likely(text, channel, language)
        with self._lock:
            self._last.pop(channel, None)
            if channel:
                self._last[channel] = code
            if len(self._last) > MOST_CHANNELS:
                del self._last[next(iter(self._last))]
        return code, row

    def likely(self, text: str, channel: str = "", language: str = "") -> tuple[str, LanguageRow]:
        """(language, row) of a text; the caller may have stated its `language`.

        If the text has no clear language, its channel's last language counts, else the table's first.
        """
        code = base_code(language)
        if code not in self._rows:
            code = self._clear_language(text[:MOST_CHARACTERS])
        with self._lock:
            code = code or self._last.get(channel) or next(iter(self._rows))
        return code, self._rows[code]

    def _clear_language(self, text: str) -> str:
        """Code of a text's language, or "" if it is not clear."""
        likely = [language.code for language in self._languages.likeliest(text)]
        if len(likely) < 2 or self._rank is None:
            return "".join(likely[:1])
        (code, first), (_, second), *_ = self._rank(_NO_LETTERS.sub(" ", unnamed(text)).strip())
        return code if code in likely and first >= LEAST_ODDS * second else ""


def _ranking(codes: Sequence[str]) -> Rank:
    """Ranking of the languages with these codes. Raises ConfigError."""
    try:
        identifier = copy.copy(_identifier())
        identifier.set_languages(codes)
    except ImportError:
        raise ConfigError(
            f"text.languages: to tell {', '.join(codes)} apart py3langid is missing: {INSTALL}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"text.languages: py3langid does not know them all: {error}") from None
    return cast(Rank, identifier.rank)


@cache
def _identifier() -> Any:
    """py3langid with all its languages: 80 MB, and 0.7 s of a core. Raises ImportError."""
    library = import_module("py3langid.langid")
    return library.LanguageIdentifier.from_model_file(library.MODEL_FILE, norm_probs=True)

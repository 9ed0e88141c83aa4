"""Tokens of a text: segments by language, English by its phones, Chinese by initials and finals with tones.

Tags `[…]` are tokens themselves, `<hao3>` is pinyin. Letters of other languages join the segment around them.
A text without English and Chinese has no tokens.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby

from appliance.text.tokens.chinese import segment

_MARKS = str.maketrans("，。！？；：、‘’“”⋯", ",.!?;:,''\"\"…")
_ELLIPSIS = re.compile(r"···|・・・|\.\.\.")
_PART = re.compile(r"[<\[].*?[>\]]|.")
_BRACKETS = {"<>": "pinyin", "[]": "tag"}
_SYLLABLE = re.compile(r"[^\W\d_]+[1-5]")
_SPOKEN_SIGNS = frozenset("0123456789%&@+=£")
"""Characters, besides letters, that are read although no token stands for them."""
LONGEST_CACHED = 400
"""Longest text whose tokens stay in memory, in characters: transcripts, which every reply needs."""
MOST_CACHED = 2_048
"""Texts whose tokens stay in memory."""


class CachedMaker:
    """Maker of tokens with a cache for short texts. Thread-safe if `make` is."""

    def __init__(self, make: Callable[[str], tuple[str, ...]]) -> None:
        self._make = make
        self._cached_make = functools.lru_cache(maxsize=MOST_CACHED)(make)

    def __call__(self, text: str) -> tuple[str, ...]:
        """Tokens of a text, possibly some that no vocabulary has. Raises what `make` raises."""
        return self._cached_make(text) if len(text) <= LONGEST_CACHED else self._make(text)


class Emilia(CachedMaker):
    """Makes tokens of Emilia's weights. Thread-safe if `phones` is."""

    def __init__(self, phones: Callable[[str], Sequence[str]]) -> None:
        super().__init__(self._tokens)
        self._phones = phones

    def _tokens(self, text: str) -> tuple[str, ...]:
        # Imported here: it reads the words of two languages, which other tokenizers do not need.
        from appliance.text.tokens.emilia.words import english_words

        tokens: list[str] = []
        for part, language in segments(_ELLIPSIS.sub("…", text.translate(_MARKS))):
            if language == "en":
                tokens += self._phones(english_words(part))
            elif language == "zh":
                tokens += _chinese(part)
            elif language == "pinyin":
                syllable = part.strip("<>")
                tokens += _split(syllable) if _SYLLABLE.fullmatch(syllable) else ()
            elif language == "tag":
                tokens.append(part)
        return tuple(tokens)


def segments(text: str) -> Iterator[tuple[str, str]]:
    """(part, "en" | "zh" | "pinyin" | "tag" | ""). A part of no language joins the part before it."""
    text = text.replace("\n", "")
    # Without this limit, each bracket that opens after the last closing one would search to the end.
    closed = max(text.rfind(">"), text.rfind("]")) + 1
    language = ""
    parts: list[tuple[str, str]] = []
    for part in (*_PART.findall(text[:closed]), *text[closed:]):
        own = _language(part)
        parts.append((part, language := own or language))
    first = next((language for _, language in parts if language), "")
    kinds = ((part, _BRACKETS.get(part[0] + part[-1], language or first)) for part, language in parts)
    for kind, run in groupby(kinds, lambda part: part[1]):
        if kind in _BRACKETS.values():
            yield from run
        else:
            yield "".join(part for part, _ in run), kind


def can_say(character: str, tokens: Collection[str]) -> bool:
    """True for letters of English and Chinese, and for signs that are tokens or are read as words."""
    if _is_chinese(character):
        return all(token in tokens for token in _chinese(character))
    if character.isalpha():
        # Letters of the phones' alphabet are no letters of a text. Letters such as é count as English.
        return character < "\u0250"
    return character in _SPOKEN_SIGNS or (character not in "_^#" and character in tokens)


def _language(part: str) -> str:
    if _is_chinese(part) or part[0] + part[-1] == "<>":
        return "zh"
    return "en" if part.isascii() and part.isalpha() else ""


def _is_chinese(part: str) -> bool:
    return "\u4e00" <= part <= "\u9fa5"


def _chinese(text: str) -> list[str]:
    from pypinyin import Style, lazy_pinyin

    from appliance.text.tokens.emilia.words import chinese_words

    syllables = lazy_pinyin(
        list(segment(chinese_words(text))), style=Style.TONE3, tone_sandhi=True, neutral_tone_with_five=True
    )
    return [
        token
        for syllable in syllables
        for token in (_split(syllable) if _SYLLABLE.fullmatch(syllable) else (syllable,))
    ]


@functools.lru_cache(maxsize=2048)
def _split(syllable: str) -> tuple[str, ...]:
    """Initial and final of a syllable: hao3 → h0, ao3."""
    from pypinyin.contrib.tone_convert import to_finals_tone3, to_initials

    initial = to_initials(syllable, strict=False)
    final = to_finals_tone3(syllable, strict=False, neutral_tone_with_five=True)
    return tuple(filter(None, (initial and f"{initial}0", final)))

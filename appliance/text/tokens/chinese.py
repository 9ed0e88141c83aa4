"""Chinese words and pinyin, by rjieba and pypinyin, which are loaded at their first use."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.contract import tokens


def segment(text: str) -> Sequence[str]:
    import rjieba

    return rjieba.cut(text)


def pinyin(word: str) -> Sequence[str]:
    """A toned syllable for each character, with sandhi."""
    from pypinyin import Style, lazy_pinyin

    return lazy_pinyin(word, style=Style.TONE3, tone_sandhi=True)


def to_tokens(text: str) -> list[str]:
    return tokens.to_tokens(text, segment, pinyin)


def warm() -> None:
    """Load both dictionaries, which takes most of a second."""
    to_tokens("你好 hello")

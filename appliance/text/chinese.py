"""Chinese words and pinyin: rjieba and pypinyin, loaded when first used."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.contract import tokens


def segment(text: str) -> Sequence[str]:
    """Words of a text, in order; nothing is lost."""
    import rjieba

    return rjieba.cut(text)


def pinyin(word: str) -> Sequence[str]:
    """A syllable with its tone for each character, with tone sandhi."""
    from pypinyin import Style, lazy_pinyin

    return lazy_pinyin(word, style=Style.TONE3, tone_sandhi=True)


def to_tokens(text: str) -> list[str]:
    return tokens.to_tokens(text, segment, pinyin)


def warm() -> None:
    """Load both dictionaries, which takes most of a second."""
    to_tokens("你好 hello")

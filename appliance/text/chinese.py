"""The segmenter and the pinyin converter of the device: rjieba and pypinyin, loaded when first needed."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.contract import tokens


def segment(text: str) -> Sequence[str]:
    """Words of a text; joined, they give it again."""
    import rjieba

    return rjieba.cut(text)


def pinyin(word: str) -> Sequence[str]:
    """A syllable with its tone for each character; neighbouring third tones shift as when spoken."""
    from pypinyin import Style, lazy_pinyin

    return lazy_pinyin(word, style=Style.TONE3, tone_sandhi=True)


def to_tokens(text: str) -> list[str]:
    """`contract.tokens.to_tokens` with these two."""
    return tokens.to_tokens(text, segment, pinyin)


def warm() -> None:
    """Load both dictionaries, which takes most of a second, before the first request needs them."""
    to_tokens("你好 hello")

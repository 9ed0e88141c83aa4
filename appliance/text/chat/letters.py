"""Decorative letters → plain ones: digits, wide, squared, small capitals, look-alikes, struck out."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from appliance.text.chat import leet
from appliance.text.chat.rewrite import Rewriting
from appliance.text.spans import Kind

_SYMBOLS = dict(zip(str.split("times cdot pm leq geq neq approx div to"), "××±≤≥≠≈÷→", strict=True))
"""Commands of LaTeX, and the sign for each."""
_ENTITY = re.compile(r"&(?:[a-zA-Z][a-zA-Z0-9]{1,20}|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
_LATEX = re.compile(
    r"\\(?:d?frac\{([^{}]{1,40})\}\{([^{}]{1,40})\}|sqrt\{([^{}]{1,40})\}"
    rf"|({'|'.join(_SYMBOLS)})(?![A-Za-z]))"
)
_KEYCAP = re.compile("([0-9#*])\ufe0f?\u20e3")
_FANCY = re.compile(r"[^\x00-\x7f\u3400-\u9fff]+")
_NAME = re.compile(
    r"(?:CROSSED )?(?:NEGATIVE )?(?:SQUARED |CIRCLED )?"
    r"(?:LATIN LETTER SMALL CAPITAL|LATIN CAPITAL LETTER|REGIONAL INDICATOR SYMBOL LETTER) ([A-Z])"
)
_NUMERAL = re.compile(r"CIRCLED|PARENTHESIZED|FULL STOP|ROMAN NUMERAL")
_LIKE = dict(
    zip(
        "аеорсхуѕіјһԁԛԝғкмтнвАВЕЅІЈКМНОРСТХΑΒΕΖΗΙΚΜΝΟΡΤΥΧο",
        "aeopcxysijhdqwfkmthbABESIJKMHOPCTXABEZHIKMNOPTYXo",
        strict=True,
    )
)
"""Look-alike letters of Cyrillic and Greek, and their Latin letters."""
_ALIKE = "".join(_LIKE)
_MIXED = re.compile(rf"(?<!\w)(?=\w*[A-Za-z])(?=\w*[{_ALIKE}])[A-Za-z0-9{_ALIKE}]{{2,}}(?!\w)")
_STRIKES = re.compile("[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")
"""Marks that strike or decorate. NFC has already composed most marks that belong to letters."""
_OVERLAYS = re.compile("[\u0334-\u0338\u0488\u0489\u20d2-\u20e6]")
_MOST_MARKS = 2
"""Most marks on one letter, among marks of the vocabulary. More marks are decoration."""
_FOREIGN = re.compile(r"(?<![A-Za-z])[\u0370-\u03ff\u0400-\u052f]{2,}(?![A-Za-z])")
"""A Greek or Cyrillic word."""
_DEGREE = re.compile(r"˚|º(?=\s?[CF](?![A-Za-z]))")
"""A degree sign that is drawn as a ring, or as the ending of an ordinal."""
_NUMERO = re.compile(r"№\s*(?=\d)")
_HALF = re.compile(r"[\u00bc-\u00be\u2150-\u215e](?=[^\W\d_\u00bc-\u00be\u2150-\u215e])")
_POWER = re.compile(r"(?<=\^\d)\^")
"""A sign inside ^1^2, a twelfth power."""
_SQUARES = "🅰🅱🅾🅿"
"""Letters among the emoji."""
_SQUARED = re.compile(f"(?:(?<=[A-Za-z])[{_SQUARES}]|[{_SQUARES}](?=\ufe0f?[A-Za-z]))\ufe0f?")
_FLAG_LETTER = "[\U0001f1e6-\U0001f1ff]"
_LONE = re.compile(f"(?<!{_FLAG_LETTER}){_FLAG_LETTER}(?!{_FLAG_LETTER})")


def plain(text: Rewriting, can_say: Callable[[str], bool]) -> None:
    """Make letters plain.

    Keeps emoji, ℃, accents that the vocabulary has, and look-alikes in a line with Greek or Cyrillic words.
    """

    def struck(match: re.Match[str]) -> str:
        """Text without its strikes: H̴i̴ → Hi; ɛ̃ stays."""
        marks = [mark for mark in match[0] if can_say(mark) and not _OVERLAYS.match(mark)]
        return "".join(marks) if len(marks) <= _MOST_MARKS else ""

    if "&" in text.text:
        text.sub(Kind.MARKUP.value, _ENTITY, lambda m: html.unescape(m[0]))
    if "\\" in text.text:
        text.sub(Kind.MARKUP.value, _LATEX, _latex)
    text.sub(Kind.WIDTH.value, leet.WRITTEN, leet.word)
    if text.text.isascii():
        return
    text.text = unicodedata.normalize("NFC", text.text)
    text.sub(Kind.WIDTH.value, _DEGREE, lambda m: "°")
    text.sub(Kind.WIDTH.value, _NUMERO, lambda m: "#")
    text.sub(Kind.WIDTH.value, _HALF, lambda m: f"{m[0]} ")
    text.sub(Kind.WIDTH.value, _KEYCAP, lambda m: f" {m[1]}, ")
    text.sub(Kind.WIDTH.value, _LONE, lambda m: chr(ord(m[0]) - 0x1F1E6 + ord("A")))
    text.sub(
        Kind.WIDTH.value, _FANCY, lambda m: _POWER.sub("", _STRIKES.sub(struck, "".join(map(_plain, m[0]))))
    )
    if any(square in text.text for square in _SQUARES):
        for _ in range(3):  # each replaced letter shows that the next one is a letter too
            text.sub(Kind.WIDTH.value, _SQUARED, lambda m: "ABOP"[_SQUARES.index(m[0][0])])
    if not _FOREIGN.search(text.text):
        text.sub(Kind.WIDTH.value, _MIXED, lambda m: "".join(_LIKE.get(c, c) for c in m[0]))


def _latex(match: re.Match[str]) -> str:
    if match[4]:
        return _SYMBOLS[match[4]]
    return f"√{match[3]}" if match[3] else f"{match[1]}/{match[2]}"


ORDINALS = "ªº"
"""Endings of Romance ordinals. They are no superscript letters."""


@lru_cache(maxsize=4096)
def _plain(character: str) -> str:
    """The plain form of a character; other characters stay.

    Ａ, 𝕳, ʜ, 🅷 → A, H, h, H; ① and Ⅲ → " 1 " and " 3 "; ½ → " 1/2", ² → "^2", ㎡ → m2.
    """
    folded = unicodedata.normalize("NFKC", character)
    name = unicodedata.name(character, "")
    value = unicodedata.numeric(character, None)
    if value is not None and value == int(value) and _NUMERAL.search(name):
        return f" {int(value)} "
    if (match := _NAME.fullmatch(name)) and "REGIONAL" not in name:
        return match[1].lower() if "SMALL CAPITAL" in name else match[1]
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if kind == "<fraction>":
        return " " + folded.replace("\u2044", "/")
    if kind == "<super>" and folded.isdigit():
        return f"^{folded}"
    if kind == "<square>" and (unit := folded.replace("\u2215", "/")).isascii():
        return unit
    if kind == "<wide>" and folded == "¢":
        return folded
    return folded if folded.isascii() and folded.isalnum() and character not in ORDINALS else character

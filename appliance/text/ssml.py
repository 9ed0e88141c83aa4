"""A small SSML (W3C SSML 1.1): speak, p, s, voice, break, sub, say-as.

Only the text of other elements counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

from appliance.errors import InvalidRequest
from appliance.fields import shown
from appliance.text.languages.quantity import LONGEST

FIELD = "text"
MAX_BREAK_S = 10.0
STRENGTHS = {"none": 0.0, "x-weak": 0.1, "weak": 0.2, "medium": 0.4, "strong": 0.8, "x-strong": 1.2}
"""Seconds for each strength; the standard leaves them open."""
UNSPOKEN = ("metadata", "desc", "lexicon", "meta")
SPELT = ("characters", "spell-out", "digits", "telephone", "cardinal", "number", "ordinal")
"""Values of interpret-as that change the reading."""
AS_WRITTEN = ("date", "time", "currency", "unit", "fraction")
"""Values that the front end recognises without interpret-as."""


@dataclass(frozen=True)
class BreakTag:
    """A pause."""

    seconds: float


@dataclass(frozen=True)
class SayAs:
    text: str
    how: str
    """A value of SPELT, or "sub" for a verbatim text."""
    written: str


@dataclass(frozen=True)
class Ignored:
    """Begin tag of an element that changes nothing, or of an unknown reading."""

    tag: str


@dataclass(frozen=True)
class VoiceTag:
    name: str
    """"" for the request's voice."""
    tag: str
    """"" at the element's end."""


Piece = str | BreakTag | SayAs | Ignored | VoiceTag


def parse(text: str) -> list[Piece]:
    """Pieces of an SSML document. Raises InvalidRequest."""
    if "<!DOCTYPE" in text:
        raise _wrong("a DOCTYPE is not allowed")
    reader = _SsmlTarget()
    parser = ElementTree.XMLParser(target=reader)
    try:
        parser.feed(text)
        parser.close()
    except ElementTree.ParseError as error:
        raise _wrong(f"it is not well-formed XML: {error}") from None
    except UnicodeEncodeError:
        raise _wrong("it has characters that XML does not allow") from None
    return reader.pieces


class _SsmlTarget:
    """Target of the XML parser."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._open: list[str] = []
        self._voices = [""]
        self._inside = ""
        self._attributes: Mapping[str, str] = {}
        self._unspoken = 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Open an element. Raises InvalidRequest if it is not allowed here."""
        tag = name.rpartition("}")[2]
        if (tag == "speak") != (not self._open):
            raise _wrong("it must be one <speak> element, with the others inside")
        if self._open and self._open[-1] in ("break", "sub", "say-as"):
            raise _wrong(f"<{self._open[-1]}> must not contain another element")
        self._open.append(tag)
        self._unspoken += tag in UNSPOKEN
        if tag == "break":
            self.pieces.append(BreakTag(_seconds(attributes)))
        elif tag == "voice":
            self._voices.append(attributes.get("name", "").lower() or self._voices[-1])
            self.pieces.append(VoiceTag(self._voices[-1], _written(tag, attributes)))
        elif tag not in ("speak", "p", "s", "sub", "say-as"):
            self.pieces.append(Ignored(_written(tag, attributes)))
        self._inside, self._attributes = "", attributes

    def data(self, text: str) -> None:
        if self._open[-1] in ("sub", "say-as", "break"):
            self._inside += text
        elif not self._unspoken:
            self.pieces.append(text)

    def end(self, name: str) -> None:
        """Close an element, and add its text."""
        tag = self._open.pop()
        self._unspoken -= tag in UNSPOKEN
        if tag in ("p", "s"):
            written = "".join(piece for piece in self.pieces[-2:] if isinstance(piece, str)).rstrip()
            self.pieces.append(". " if written[-1:].isalnum() else " ")
        elif tag == "voice":
            self._voices.pop()
            self.pieces.append(VoiceTag(self._voices[-1], ""))
        elif tag == "break" and self._inside.strip():
            raise _wrong("<break> must not contain text")
        elif tag == "sub":
            alias = self._attributes.get("alias", "").strip()
            if not alias:
                raise _wrong('<sub> needs an alias: <sub alias="World Wide Web">WWW</sub>')
            self.pieces.append(SayAs(alias, "sub", self._inside))
        elif tag == "say-as":
            how = self._attributes.get("interpret-as", "")
            if how not in (*SPELT, *AS_WRITTEN):
                self.pieces.append(Ignored(_written(tag, self._attributes)))
            is_spelt = how in SPELT
            self.pieces.append(SayAs(self._inside, how, self._inside) if is_spelt else self._inside)

    def close(self) -> None:
        pass


def _written(tag: str, attributes: Mapping[str, str]) -> str:
    return f"<{' '.join([tag, *(f'{name}={value!r}' for name, value in attributes.items())])}>"


def _seconds(attributes: Mapping[str, str]) -> float:
    if (time := attributes.get("time")) is None:
        strength = attributes.get("strength", "medium")
        if strength not in STRENGTHS:
            raise _wrong(f"strength={shown(strength)} is not known; {', '.join(STRENGTHS)} are")
        return STRENGTHS[strength]
    match = re.fullmatch(r"\+?(\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})(ms|s)", time.strip(), re.ASCII)
    if not match:
        raise _wrong(f"time={shown(time)} must be like 500ms or 1.5s")
    seconds = float(match[1]) / (1_000.0 if match[2] == "ms" else 1.0)
    if seconds > MAX_BREAK_S:
        raise _wrong(f"time={shown(time)} is above {MAX_BREAK_S:g}s")
    return seconds


def spelt(piece: SayAs, digit: Callable[[str], str], number: Callable[[str, bool], str]) -> str:
    """Words of a spelt text. `number` gets digits, and True for an ordinal."""
    if piece.how == "sub":
        return piece.text
    if piece.how in ("cardinal", "number", "ordinal"):
        plain = piece.text.strip().replace(",", "")
        if not re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?", plain, re.ASCII):
            raise _wrong(f"{piece.text.strip()[:40]!r} is not a number")
        if piece.how == "ordinal" and (not plain.isdigit() or len(plain) > LONGEST):
            raise _wrong(f"{plain!r} has no ordinal")
        return number(plain, piece.how == "ordinal")
    words = (digit(c) if c.isascii() and c.isdigit() else c.upper() for c in piece.text if not c.isspace())
    if piece.how in ("digits", "telephone"):
        words = (digit(c) for c in piece.text if c.isascii() and c.isdigit())
    return " ".join(words)


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(FIELD, f"as SSML, {what}")

"""Text → tokens → vocabulary indices, with the rules of upstream's `convert_char_to_pinyin`."""

from __future__ import annotations

import codecs
import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from appliance.errors import BundleError
from appliance.fields import MOST_SHOWN, shown

Segmenter = Callable[[str], Sequence[str]]
Pinyin = Callable[[str], Sequence[str]]
"""Word → a syllable for each character, with the tone as a digit ("ni3")."""

Tokenizer = Literal["pinyin", "char", "letters", "simple", "emilia", "espeak", "phones"]
"""Tokenizers. `pinyin`: upstream's, with Chinese as syllables.

`char`: every character as it is. ZipVoice's leave out what their vocabulary lacks: `letters`, of LibriTTS;
`simple`, every character as it is; `emilia`, phones, initials and finals; `espeak`, phones of a voice of
espeak. `phones`, of English (text/phones), leaves out unknown tokens, too.
"""

BY_ESPEAK = ("emilia", "espeak")
"""Tokenizers that use the process of espeak."""
ESPEAK_VOICE = re.compile(r"[a-z]{2,3}(-[a-z0-9]+)*")
"""Language by espeak's name: de, en-gb, pt-br, cmn."""

UNKNOWN = 0
"""Index of unknown tokens: the space, as in upstream."""
FIRST = (" ", "\ufeff ")
"""Allowed first lines. Upstream reads a byte order mark as part of the token, so spaces are then unknown."""

_SUBSTITUTES = str.maketrans({";": ",", "“": '"', "”": '"', "‘": "'", "’": "'"})
_NO_SPACE_AFTER = " :'\""
_FIRST_IDEOGRAPH, _LAST_IDEOGRAPH = "\u3100", "\u9fff"


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a bundle, and the tokenizer that makes them."""

    tokens: tuple[str, ...]
    tokenizer: Tokenizer = "pinyin"
    voice: str = ""
    """Voice of the tokenizer `espeak`."""

    def __post_init__(self) -> None:
        if self.tokens and self.tokenizer in ("simple", "espeak"):
            return
        if not self.tokens or self.tokens[0] not in FIRST:
            first = shown(self.tokens[0]) if self.tokens else "nothing"
            raise ValueError(f"the first line must be a single space, not {first}")

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """Token → its line, counted from 0. Of duplicates the last line counts, as in upstream.

        Duplicates make upstream's embedding smaller than the file: tokens beyond it are unknown.
        """
        lines = {token: line for line, token in enumerate(self.tokens)}
        return {token: line for token, line in lines.items() if line < len(lines)}

    @functools.cached_property
    def size(self) -> int:
        """Number of distinct tokens. A model has one more embedding, for the filler."""
        return len(set(self.tokens))

    @functools.cached_property
    def repeated(self) -> tuple[str, ...]:
        """Tokens that occur on several lines."""
        return tuple(token for token, lines in Counter(self.tokens).items() if lines > 1)

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of the tokens, independent of line endings."""
        return hashlib.sha256("\n".join(self.tokens).encode()).hexdigest()

    @property
    def leaves_out(self) -> bool:
        """True if the tokenizer drops unknown tokens, False if it reads them as spaces."""
        return self.tokenizer not in ("pinyin", "char")

    @property
    def spells(self) -> bool:
        """True if each character is a token."""
        return self.tokenizer in ("char", "letters", "simple")

    def lacks(self, tokens: Iterable[str]) -> str:
        """Tokens that the vocabulary lacks, for a message; "" if it lacks none."""
        return ", ".join(shown(token) for token in tokens if token not in self.index)[:MOST_SHOWN]

    def split(self, text: str, make: Callable[[str], Sequence[str]]) -> Sequence[str]:
        """Tokens of a text; `make` is the tokenizer, unless each character is a token."""
        tokens = list(text) if self.spells else make(text)
        return [token for token in tokens if token in self.index] if self.leaves_out else tokens

    def ids(self, tokens: Iterable[str]) -> NDArray[np.int32]:
        """(T,) indices, not yet shifted by one."""
        return np.array([self.index.get(token, UNKNOWN) for token in tokens], dtype=np.int32)


def parse_vocabulary(text: str, tokenizer: Tokenizer = "pinyin", voice: str = "") -> Vocabulary:
    """Vocabulary with one token per line.

    Raises ValueError if the first must be a single space and is not.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return Vocabulary(tuple(lines[:-1] if lines[-1] == "" else lines), tokenizer, voice)


def read_vocabulary(path: Path, tokenizer: Tokenizer = "pinyin", voice: str = "") -> Vocabulary:
    """Read a vocabulary. Raises BundleError if the file is missing or no vocabulary."""
    try:
        return parse_vocabulary(lines(path.read_bytes()), tokenizer, voice)
    except OSError as error:
        raise BundleError(f"{path}: unreadable: {error.strerror}") from error
    except ValueError as error:
        raise BundleError(f"{path}: not a vocabulary: {error}") from error


def lines(raw: bytes) -> str:
    """Tokens of a file: one per line, in UTF-8 or UTF-16; or a list, or tokens with numbers, in JSON.

    Raises ValueError.
    """
    text = raw.decode("utf-16" if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8")
    if not text.lstrip().startswith(('["', '{"', "[\n", "{\n")):
        return text
    try:
        tokens = json.loads(text)
    except ValueError:
        return text
    if isinstance(tokens, dict):
        numbers = sorted(tokens.values()) if all(type(n) is int for n in tokens.values()) else []
        if numbers != list(range(len(tokens))):
            raise ValueError("JSON must number its tokens from 0, without gaps")
        tokens = sorted(tokens, key=tokens.__getitem__)
    if not all(isinstance(token, str) and "\n" not in token for token in tokens):
        raise ValueError("JSON must be a list of tokens, or an object of tokens and their numbers")
    return "".join(f"{token}\n" for token in tokens)


def to_tokens(text: str, segment: Segmenter, pinyin: Pinyin) -> list[str]:
    """Letters, digits and signs one by one; each Chinese character as a space and a syllable.

    A space precedes a word in ASCII, except after a space, a colon or a quote.
    """
    tokens: list[str] = []
    for word in segment(text.translate(_SUBSTITUTES)):
        size_bytes = len(word.encode())
        if size_bytes == len(word):
            if tokens and size_bytes > 1 and tokens[-1] not in _NO_SPACE_AFTER:
                tokens.append(" ")
            tokens.extend(word)
        elif size_bytes == 3 * len(word):
            tokens.extend(_syllables(word, pinyin))
        else:
            for character in word:
                tokens.extend(_syllables(character, pinyin) if _is_ideograph(character) else character)
    return tokens


def _syllables(word: str, pinyin: Pinyin) -> Iterator[str]:
    """Pinyin of a word, with a space before each Chinese character, as upstream writes it."""
    spoken = pinyin(word)
    # A converter returns unknown characters as one piece, on which upstream fails.
    if len(spoken) != len(word):
        spoken = [syllable for character in word for syllable in pinyin(character)]
    for character, syllable in zip(word, spoken, strict=True):
        if _is_ideograph(character):
            yield " "
        yield syllable


def _is_ideograph(character: str) -> bool:
    return _FIRST_IDEOGRAPH <= character <= _LAST_IDEOGRAPH

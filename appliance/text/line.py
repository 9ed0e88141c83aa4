"""A line of chat with its languages, and the choices that say how it is spoken."""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.config import TextConfig
from appliance.text.languages.english import ENGLISH
from appliance.text.languages.mandarin import MANDARIN
from appliance.text.marks import Marks
from appliance.text.spans import Language

HAN = r"\u3400-\u9fff"
_TLDS = (
    "com|net|org|io|tv|gg|cn|me|co|uk|de|jp|fm|ly|be|dev|app|xyz|info|live|link|ai|eu|fr|it|es|nl|ru|us|ca|edu"
    "|gov|stream|site|online"
)
_LINK_END = r"(?<![.,!?;:)\]'\"])"  # punctuation at the end is the sentence's
LINK = (
    rf"(?:[a-z][a-z0-9+.-]{{1,20}}://|www\.)[^\s{HAN}，。！？、<>]+{_LINK_END}"
    rf"|(?<![\w@.])[\w-]+(?:\.[\w-]+)*\.(?:{_TLDS})(?::\d{{2,5}})?(?:/[^\s{HAN}，。！？<>]*{_LINK_END})?(?![\w-]|\.\w)"
)
MAIL = r"(?:mailto:)?[\w.+-]+@[\w-]+(?:\.[\w-]+)+"


def is_chinese(text: str, default: str = "en") -> bool:
    """True with half as many Chinese characters as words in letters; `default` without either."""
    if "." in text or "@" in text:
        text = _ADDRESS.sub("", text)
    han, words = len(_HAN.findall(text)), len(_LATIN.findall(text))
    return 2 * han >= words if han or words else default == "zh"


_ADDRESS = re.compile(f"{MAIL}|{LINK}", re.IGNORECASE)
_HAN = re.compile(f"[{HAN}]")
_LATIN = re.compile("[A-Za-z]{2,}")
_CLAUSE = re.compile(r"[，。！？；!?;\n]|[,.](?=\s\D)")


def language_of(text: str, choices: TextConfig, chinese: bool) -> Language:
    """Language of a whole line; `chinese`: the bundle can say it."""
    return MANDARIN if chinese and is_chinese(text, choices.language) else ENGLISH


class Line:
    def __init__(self, text: str, choices: TextConfig, marks: Marks, chinese: bool) -> None:
        self.text, self.choices, self.marks = text, choices, marks
        self.whole = language_of(text, choices, chinese)
        self._ends, self._languages = [len(text)], [self.whole]
        if chinese and _HAN.search(text):
            starts = [0, *(match.end() for match in _CLAUSE.finditer(text))]
            self._ends = [*starts[1:], len(text)]
            self._languages = [
                MANDARIN if is_chinese(text[a:b], self.whole.code) else ENGLISH
                for a, b in zip(starts, self._ends, strict=True)
            ]
        letters = [c for c in text if c.isascii() and c.isalpha()]
        self.shouted = len(letters) >= 5 and sum(c.isupper() for c in letters) > 0.6 * len(letters)

    def languages(self) -> Iterator[tuple[int, Language]]:
        """(end, language) of each clause."""
        yield from zip(self._ends, self._languages, strict=True)

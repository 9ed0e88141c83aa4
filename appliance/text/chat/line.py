"""A line of chat with its languages, and the choices that say how it is spoken."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from appliance.config import TextConfig
from appliance.text.chat.marks import Marks
from appliance.text.languages.plain import PLAIN
from appliance.text.scripts import HAN, KANA, LETTERS, WIDE
from appliance.text.spans import Language

_TLDS = (
    "com|net|org|io|tv|gg|cn|me|co|uk|de|jp|fm|ly|be|dev|app|xyz|info|live|link|ai|eu|fr|it|es|nl|ru|us|ca|edu"
    "|gov|stream|site|online"
)
_LINK_END = r"(?<![.,!?;:)\]'\"])"  # punctuation at the end is the sentence's
LINK = (
    rf"(?:[a-z][a-z0-9+.-]{{1,20}}://|www\.)[^\s{HAN}{KANA}，。！？、<>]+{_LINK_END}"
    rf"|(?<![\w@.-])[\w-]+(?:\.[\w-]+)*\.(?:{_TLDS})(?::\d{{2,5}})?(?:/[^\s{HAN}{KANA}，。！？<>]*{_LINK_END})?(?!(?![{HAN}{KANA}])[\w-]|\.\w)"
)
MAIL = r"(?<![\w.+-])(?:mailto:)?[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
_ADDRESS = re.compile(f"{MAIL}|{LINK}", re.IGNORECASE)
_CLAUSE = re.compile(r"[，。！？；!?;\n।॥؟۔؛،]|[,.](?=\s\D)")
_ACRONYM = re.compile(r"(?<![A-Za-z])[A-Z]{2,4}(?![a-z])|(?<=\d)[A-Za-z/]{1,5}(?![A-Za-z])")
"""And a unit. In a Chinese or Japanese line it is no foreign word."""
_SIGNS = re.compile(
    r"(?<![A-Za-z])[A-Z]{2,5}(?![A-Za-z])|(?<![A-Za-z])[A-Za-z]{1,3}(?=[.:：]?\d)|(?<=\d)(?:[A-Za-z/]{1,4}"
    r"|\s(?i:fps|hp|xp|km/h|km|kg|cm|mm|ml|ms|hz|gb|mb|tb|min))(?![A-Za-z])"
)
"""Acronyms, and signs of numbers, which all languages write in Latin letters: GG, 10 FPS, lvl99."""
_DIGIT = re.compile(r"\d")
_LAUGHTER = re.compile(r"(?<![A-Za-z])[wW]{2,}(?![A-Za-z.])")
"""A Japanese laugh, which is no Latin word."""
_OTHER = "OTHER"


class Languages:
    """Languages in force. A clause is in the first language that has the script of most of its letters."""

    def __init__(self, listed: Sequence[Language], readable: Collection[str]) -> None:
        """`readable` are the scripts that the vocabulary has; letters of others tell no language."""
        self.first = listed[0] if listed else PLAIN
        self._listed = listed
        scripts = dict.fromkeys(script for language in listed for script in language.scripts)
        groups = {script: LETTERS[script] for script in scripts}
        if others := "".join(LETTERS[script] for script in readable if script not in scripts):
            groups[_OTHER] = others
        # A single letter, as in "x 3", tells nothing; a single Chinese character does.
        self._words = re.compile(
            "|".join(
                f"(?P<{script}>[{letters}]{'' if script in WIDE else '{2,}'})"
                for script, letters in groups.items()
            )
            or "(?!)"
        )

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(language.code for language in self._listed)

    def of(self, text: str, default: Language | None = None) -> Language:
        """Language of a text; `default`, or the first, without letters, PLAIN for a script of no language."""
        return self._decide(text, self._written(text), default or self.first)

    def _decide(self, text: str, written: Counter[str | None], default: Language) -> Language:
        likeliest = self._most(written, default)
        if likeliest is default or (likeliest.scripts and not _DIGIT.search(text)):
            return likeliest
        words = self._written(_SIGNS.sub("", text))
        return self._most(words, default) if not words or not likeliest.scripts else likeliest

    def clauses(self, text: str) -> tuple[Language, list[tuple[int, Language]]]:
        """Language of the whole, and the (end, language) of each clause."""
        written = self._written(text)
        whole = self._decide(text, written, self.first)
        if len(written) < 2:
            return whole, [(len(text), whole)]
        starts = [0, *(match.end() for match in _CLAUSE.finditer(text))]
        ends = [*starts[1:], len(text)]
        clauses = [(text[a:b], b) for a, b in zip(starts, ends, strict=True)]
        if WIDE.intersection(whole.scripts):
            clauses = [(_ACRONYM.sub("", clause), end) for clause, end in clauses]
        return whole, [(end, self.of(clause, whole)) for clause, end in clauses]

    def _written(self, text: str) -> Counter[str | None]:
        """Words in each script; characters of scripts without spaces."""
        if "." in text or "@" in text:
            text = _ADDRESS.sub("", text)
        text = _LAUGHTER.sub("", text)
        return Counter(match.lastgroup for match in self._words.finditer(text))

    def _most(self, written: Counter[str | None], default: Language) -> Language:
        if not written:
            return default

        def share(language: Language) -> tuple[int, bool]:
            wide = sum(written[script] for script in language.scripts if script in WIDE)
            return 2 * wide + sum(written[s] for s in language.scripts if s not in WIDE), wide > 0

        most = max(self._listed, key=share, default=PLAIN)
        first = WIDE.intersection(self.first.scripts)
        if not WIDE.intersection(most.scripts) and any(written[script] for script in first):
            return self.first  # the names within it are foreign, but not its grammar
        return most if any(written[script] for script in most.scripts) else PLAIN


class ChatLine:
    def __init__(self, text: str, choices: TextConfig, marks: Marks, languages: Languages) -> None:
        self.text, self.choices, self.marks = text, choices, marks
        self.whole, self._clauses = languages.clauses(text)
        self._ends = [end for end, _ in self._clauses]
        cased = [c for c in text if c.isupper() or c.islower()]
        self.shouted = len(cased) >= 5 and sum(map(str.isupper, cased)) > 0.6 * len(cased)

    def languages(self) -> Iterator[tuple[int, Language]]:
        """(end, language) of each clause."""
        yield from self._clauses

    def language_at(self, place: int) -> Language:
        return self._clauses[min(bisect_right(self._ends, place), len(self._ends) - 1)][1]

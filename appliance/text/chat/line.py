"""A line of chat: its text, the language of each part, and the configuration."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from appliance.config import TextConfig
from appliance.text.chat.lists import LISTS
from appliance.text.chat.marks import Marks
from appliance.text.languages.plain import PLAIN
from appliance.text.scripts import HAN, KANA, LETTERS, WIDE
from appliance.text.spans import Language

_TLDS = "|".join(LISTS["domains"])
_LINK_END = r"(?<![.,!?;:)\]'\"])"  # punctuation at the end belongs to the sentence
LINK = (
    rf"(?:[a-z][a-z0-9+.-]{{1,20}}://|www\.)[^\s{HAN}{KANA}，。！？、<>]+{_LINK_END}"
    rf"|(?<![\w@.-])[\w-]+(?:\.[\w-]+)*\.(?:{_TLDS})(?::\d{{2,5}})?(?:/[^\s{HAN}{KANA}，。！？<>]*{_LINK_END})?(?!(?![{HAN}{KANA}])[\w-]|\.\w)"
)
MAIL = r"(?<![\w.+-])(?:mailto:)?[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
_NAME = re.compile(
    rf"{MAIL}|{LINK}|[@#]\w+|\[[^\]]*\]|<[^>]*>|:\w+:|(?<=[^\W\d_])\.[a-z]{{2,4}}(?!\w)", re.IGNORECASE
)
_NAMING = re.compile(r"[.@#[<:]")
_CLAUSE = re.compile(rf"[，。！？；!?;\n।॥؟۔؛،]|[,.](?=\s\D)|(?<=[^\W\d_][^\W\d_]|.[{HAN}])\.(?=\s)")
_SIGNS = re.compile(
    r"(?<![A-Za-z])[A-Z]{2,5}(?![A-Za-z])|(?<![A-Za-z])[A-Za-z]{1,3}(?=[.:：]?\d)|(?<=\d)(?:[A-Za-z/]{1,5}"
    r"|\s(?i:fps|hp|xp|km/h|km|kg|cm|mm|ml|ms|hz|gb|mb|tb|min))(?![A-Za-z])"
)
"""Acronyms, units, and labels of numbers, which all languages write in Latin letters: GG, 10 FPS."""
_CAPITALISED = re.compile(r"[A-Za-z]*[A-Z][A-Za-z]*")
_LAUGHTER = re.compile(r"(?<![A-Za-z])[wW]{2,}(?!\.?[A-Za-z])")
"""Matches a Japanese laugh, which is not a Latin word."""
_NUMBER = re.compile(r"(?<!\w)\W?[$€£¥₹₽₩]?\d[\d.,:]*")
_LATIN, _OTHER = "LATIN", "OTHER"


def unnamed(text: str) -> str:
    """Text without links, names, tags and emotes, because these say nothing about its language."""
    return _NAME.sub(" ", text) if _NAMING.search(text) else text


class Languages:
    """Active languages. A clause is in the first language whose script most of its words have.

    Acronyms do not count. Next to words of another script, neither do Latin names and a single Latin word.
    """

    def __init__(self, languages: Sequence[Language], readable: Collection[str]) -> None:
        """`readable` are the vocabulary's scripts.

        Letters of other scripts say nothing about the language.
        """
        self.first = languages[0] if languages else PLAIN
        self._languages = languages
        scripts = dict.fromkeys(script for language in languages for script in language.scripts)
        groups = {script: LETTERS[script] for script in scripts}
        groups |= {_LATIN: LETTERS[_LATIN]} if _LATIN in readable else {}
        if others := "".join(LETTERS[script] for script in readable if script not in groups):
            groups[_OTHER] = others
        # A single letter, as in "x 3", says nothing about the language; a single Chinese character does.
        self._words = re.compile(
            "|".join(
                f"(?P<{script}>[{letters}]{'' if script in WIDE else '{2,}'})"
                for script, letters in groups.items()
            )
            or "(?!)"
        )
        self._letters = [
            (language, re.compile("[" + "".join(LETTERS[script] for script in language.scripts) + "]"))
            for language in languages
            if _LATIN not in language.scripts
        ]

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(language.code for language in self._languages)

    def of(self, text: str, default: Language | None = None) -> Language:
        """Language of a text. `default`, or the first, if no word shows one; PLAIN if none has the script."""
        return self._most(self._written(text), default or self.first)

    def likeliest(self, text: str) -> list[Language]:
        """Languages that have the script of most words of a text; none if it has no words."""
        written = self._written(text)
        most = max((self._share(written, one) for one in self._languages), default=(0, False))
        return [one for one in self._languages if most[0] and self._share(written, one) == most]

    def clauses(self, text: str) -> tuple[Language, list[tuple[int, Language]]]:
        """Language of the whole line, and (end, language) of each clause and of numbers within.

        A number next to a word of another script is in that word's language.
        """
        written = self._written(text)
        whole = self._most(written, self.first)
        if len(written) < 2:
            return whole, [(len(text), whole)]
        result, start, language = [], 0, whole
        for end in (*(match.end() for match in _CLAUSE.finditer(text)), len(text)):
            clause = text[start:end]
            before = language if any(map(str.isalpha, clause)) else whole
            language = self._most(self._written(clause, is_mixed=True), before)
            for match in _NUMBER.finditer(text, start, end):
                beside = self._beside(text, match, language)
                result += [(match.start(), language), (match.end(), beside)]
            result.append((end, language))
            start = end
        return whole, result

    def _beside(self, text: str, match: re.Match[str], default: Language) -> Language:
        """Language of a number before or after a word whose script is not Latin."""
        after = text[match.end() : match.end() + 3].strip(" %$€£¥₹₽₩")[:1]
        letter = after if after.isalpha() else text[: match.start() + 1].rstrip(" ")[-1:]
        written_so = [language for language, letters in self._letters if letters.match(letter)]
        return default if default in written_so else next(iter(written_so), default)

    def _written(self, text: str, is_mixed: bool = False) -> Counter[str | None]:
        """Number of words in each script; of characters, if the script has no spaces."""
        text = _LAUGHTER.sub("", unnamed(text))
        written = Counter(match.lastgroup for match in self._words.finditer(text))
        if not self._letters or not written[_LATIN]:
            return +written
        is_mixed |= len(written) > 1
        text = _SIGNS.sub("", text)
        text = _CAPITALISED.sub("", text) if is_mixed else text
        written = Counter(match.lastgroup for match in self._words.finditer(text))
        if written[_LATIN] < 2:
            del written[_LATIN]
        return +written

    def _share(self, written: Counter[str | None], language: Language) -> tuple[int, bool]:
        wide = sum(written[script] for script in language.scripts if script in WIDE)
        return 2 * wide + sum(written[s] for s in language.scripts if s not in WIDE), wide > 0

    def _most(self, written: Counter[str | None], default: Language) -> Language:
        """The language with the most words; PLAIN if no language has their script."""
        if not written:
            return default
        most = max(self._languages, key=lambda language: self._share(written, language), default=PLAIN)
        first = WIDE.intersection(self.first.scripts)
        if not WIDE.intersection(most.scripts) and any(written[script] for script in first):
            return self.first  # the clause has foreign names, but the grammar of the first language
        return most if any(written[script] for script in most.scripts) else PLAIN


class ChatLine:
    """A line of chat, with its languages and the configuration."""

    def __init__(self, text: str, choices: TextConfig, marks: Marks, languages: Languages) -> None:
        self.text, self.choices, self.marks = text, choices, marks
        self.whole, self._clauses = languages.clauses(text)
        self._ends = [end for end, _ in self._clauses]
        capitals, small = sum(map(str.isupper, text)), sum(map(str.islower, text))
        self.shouted = capitals + small >= 5 and capitals > 0.6 * (capitals + small)

    def languages(self) -> Iterator[tuple[int, Language]]:
        """(end, language) of each clause."""
        yield from self._clauses

    def language_at(self, place: int) -> Language:
        return self._clauses[min(bisect_right(self._ends, place), len(self._ends) - 1)][1]

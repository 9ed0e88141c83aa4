"""A text that arrives bit by bit → complete pieces."""

from __future__ import annotations

import re

from appliance.config import TextConfig
from appliance.text.chat.chat import rewrite, unnamed
from appliance.text.chat.found import THOUGHTS
from appliance.text.chat.line import Languages
from appliance.text.chat.marks import Marks
from appliance.text.chat.rewrite import Rewriting
from appliance.text.languages import known
from appliance.text.pieces.split import Break, Budgets, Rank, breaks, finished
from appliance.text.scripts import HAN, KANA, MARKS

MOST_HELD = 300
"""Characters that wait for an end that changes no word; a longer text is cut where it may change one."""
LETTERS_AHEAD = 4
"""Letters, of words after an end, behind which nothing changes how a number before them is read."""
NEAR = 48
"""Characters before and after an end that are read to judge it."""
MOST_TRIES = 2
"""Ends that one call judges so, each in a millisecond."""
_TAG = re.compile(rf"(</?(?:{THOUGHTS})>)")
_PART_OF_TAG = re.compile("</?[a-z_]{0,14}$")
_TELLING = re.compile(
    rf"[\d_]|[^\w\s{MARKS},;:!?.…’'।،؟。，！？、-]|(?<![^\W\d_])(?:[^\W\d_]{{1,3}}\.|[A-ZА-Я]+(?![^\W\d_]))"
)
"""Numbers, signs, capitals, short words before a full stop: what is read by what stands beside it."""
_LETTER = rf"(?:[^\W\d_{HAN}{KANA}]|[{MARKS}])"
_AHEAD = re.compile(rf"[{HAN}{KANA}]|{_LETTER}+(?=[^\w{MARKS}]|[{HAN}{KANA}])")
_WORD = re.compile(rf"[{HAN}{KANA}]|(?:{_LETTER}|\d)+")


class TextSplitter:
    """Collects text and returns each piece once it is complete.

    A piece ends where it and what follows, each read by itself, have the words of both read together, and
    where nothing that is still to come can change them. The first piece is the first clause that is long
    enough or, before any ends, the words so far. Later ones end with a sentence, or with a clause from
    `budgets.first` on. A language model's thoughts are left out, and emoji that have been named.
    """

    def __init__(self, budgets: Budgets, languages: tuple[str, ...] = (), *, verbatim: bool = False) -> None:
        """`languages` are codes of those in force; a `verbatim` text is spoken as it is written."""
        self._budgets, self._codes, self._verbatim = budgets, languages, verbatim
        self._languages = Languages([known(code) for code in languages or ("en",)], ())
        self.begin()

    def begin(self) -> None:
        """Begin an utterance; what waits is forgotten."""
        self._text = self._tag = self._thought = ""
        self._is_first = True
        self._enough = self._tries = 0
        """Characters from which on the text is read again."""
        self._refused: set[int] = set()
        """Ends that would change words."""
        self._named: set[str] = set()
        self.characters = 0
        """Those of the utterance so far, without thoughts."""

    @property
    def waiting(self) -> int:
        """Characters that are in no piece yet."""
        return len(self._text)

    def add(self, text: str) -> list[str]:
        """Pieces completed by this text."""
        self.take(text)
        return [piece for piece in iter(self.cut, None) if piece]

    def take(self, text: str) -> None:
        """Append a text without its thoughts."""
        text, self._tag = self._tag + text, ""
        if not self._verbatim and (part := _PART_OF_TAG.search(text)):
            text, self._tag = text[: part.start()], part[0]
        for place, part in enumerate([text] if self._verbatim else _TAG.split(text)):
            if self._thought:
                self._thought = "" if part == self._thought.replace("<", "</") else self._thought
            elif place % 2 and part[1] != "/":
                self._thought = part
            else:
                self._text += part
                self.characters += len(part)

    def cut(self) -> str | None:
        """The next piece; "" if ends are left to judge, None while it is incomplete."""
        self._tries, size, at = MOST_TRIES, MOST_HELD + 2 * NEAR, None
        while at is None and self._tries and len(self._text) >= self._enough:
            at = self._end(self._text[:size])
            if at is None and self._tries and size >= len(self._text):
                # What is held is read again once it is longer by a tenth, and so in linear time.
                self._enough = max(len(self._text) + 1, len(self._text[MOST_HELD:]) // 10 + len(self._text))
            size *= 2
        if at is None:
            return None if self._tries else ""
        piece = self._piece(at.end)
        self._text, self._is_first, self._enough = self._text[at.next :], False, 0
        self._refused.clear()
        return piece

    def rest(self) -> str:
        """Rest at the end of the input, but a thought that has not ended."""
        self._text += "" if self._thought else self._tag
        rest = self._piece(len(self._text))
        self.begin()
        return rest

    def _piece(self, end: int) -> str:
        piece = self._text[:end].strip()
        return piece if self._verbatim else unnamed(piece, self._named).strip()

    def _end(self, text: str) -> Break | None:
        """End of the next piece; None while it is incomplete, and after too many tries."""
        most = finished(text)
        # White space completes a clause as any following character would.
        whole = f"{text[:most]}." if text[most - 1 : most].isspace() else text[: most + 1]
        limit = self._budgets.first if self._is_first else self._budgets.largest
        is_full = len(text.encode()) > limit
        cuts = [at for at in breaks(whole, self._codes, Rank.IDEOGRAPH) if at.end <= most]
        ends, others, beyond = [], [], []
        for at in cuts:
            size = len(text[: at.end].encode())
            is_end = at.rank is Rank.SENTENCE or (
                at.rank is Rank.CLAUSE and (self._is_first or size >= self._budgets.first)
            )
            if size > limit:
                beyond += [at] if is_full else []
            elif size >= self._budgets.minimum:
                ends += [at] if is_end else []
                others += [at] if is_full or (self._is_first and at.rank >= Rank.SPACE) else []
        others.sort(key=lambda at: (at.rank, at.end), reverse=True)
        for at in (*ends, *others, *beyond):
            fits = self._fits(text, at, most)
            if fits:
                return at
            if not self._tries or (fits is None and at in ends and not is_full):
                return None
        if len(text) <= MOST_HELD:
            return None
        letters = (at for at in breaks(whole, self._codes) if limit <= at.end <= most)
        return next(iter((*ends, *others, *beyond)), next(letters, None))

    def _fits(self, text: str, at: Break, most: int) -> bool | None:
        """True if a piece may end there; None if it is too early to tell."""
        if self._verbatim or at.end in self._refused or text.count("```", 0, at.end) % 2:
            return self._verbatim
        left, right = text[max(at.end - NEAR, 0) : at.end], text[at.next : min(at.next + NEAR, most)]
        if right and left.split()[-1].startswith(right.split()[0]):
            return None  # a word that is said again may be said too often
        near = left[-NEAR // 2 :], right[: NEAR // 2]
        if at.rank >= Rank.SPACE and not any(map(_TELLING.search, near)):
            return True if right or at.rank >= Rank.CLAUSE else None
        if sum(len(word[0]) for word in _AHEAD.finditer(right)) < LETTERS_AHEAD:
            return None
        self._tries -= 1
        named, together = set(self._named), text[max(at.end - NEAR, 0) : at.next + len(right)]
        apart = self._heard(left, named) + self._heard(right, named)
        if apart == self._heard(together, set(self._named)):
            return True
        self._refused.add(at.end)
        return False

    def _heard(self, text: str, named: set[str]) -> list[str]:
        """Words that are spoken."""
        said, marks = Rewriting(unnamed(text, named)), Marks()
        rewrite(said, TextConfig(), marks, self._languages, lambda mark: True)
        return _WORD.findall(marks.restored(said.text).casefold())

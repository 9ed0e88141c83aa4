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
"""Characters that wait for an end that changes no word; from then on a piece ends where it may change one."""
LETTERS_AHEAD = 4
"""In words after an end, that no number or sign before them is read by what is still to come."""
MOST_TRIES = 4
"""Ends that are judged so at a time: each takes a part of a millisecond."""
NEAR = 48
"""Characters before and after an end that are read to judge it."""
_TAG = re.compile(rf"(</?(?:{THOUGHTS})>)")
_PART_OF_TAG = re.compile("</?[a-z_]{0,14}$")
_TELLING = re.compile(
    rf"[\d_]|[^\w\s{MARKS},;:!?.…’'।،؟。，！？、-]|(?<![^\W\d_])(?:[^\W\d_]{{1,3}}\.|[A-ZА-Я]+(?![^\W\d_]))"
)
"""Numbers, signs, capitals, short words before a full stop: what is read by what stands beside it."""
_WORD_AHEAD = re.compile(rf"[{HAN}{KANA}]|(?:[^\W\d_{HAN}{KANA}]|[{MARKS}])+(?=[^\w{MARKS}]|[{HAN}{KANA}])")
_WORD = re.compile(rf"[{HAN}{KANA}]|(?:(?![{HAN}{KANA}])(?:[^\W_]|[{MARKS}]))+")


class TextSplitter:
    """Collects text and returns each piece once it is complete.

    A piece ends where it and what follows, each read by itself, have the words of both read together, and
    where nothing that is still to come can change them. The first piece is the first clause that is long
    enough or, before any ends, the words so far. Later ones end with a sentence, or with a clause from
    `budgets.first` on. A language model's thoughts are left out, and emoji that have been named.
    """

    def __init__(
        self, budgets: Budgets, languages: tuple[str, ...] = (), *, verbatim: bool = False
    ) -> None:
        """`languages` are codes of those in force; a `verbatim` text is spoken as it is written."""
        self._budgets, self._codes, self._verbatim = budgets, languages, verbatim
        self._languages = Languages([known(code) for code in languages or ("en",)], ())
        self._begin()

    def _begin(self) -> None:
        self._text = self._tag = self._thought = ""
        self._is_first = True
        self._enough = 0
        """Characters from which on the text is read again."""
        self._refused: set[int] = set()
        """Ends that would change words."""
        self._named: set[str] = set()
        self.characters = 0
        """Those of the utterance so far, without thoughts."""

    def add(self, text: str) -> list[str]:
        """Pieces completed by this text."""
        self.take(text)
        return self.cut()

    def take(self, text: str) -> None:
        """Append a text without its thoughts."""
        text, self._tag = self._tag + text, ""
        if not self._verbatim and (part := _PART_OF_TAG.search(text)):
            text, self._tag = text[: part.start()], part[0]
        for part in [text] if self._verbatim else _TAG.split(text):
            is_tag = not self._verbatim and _TAG.fullmatch(part)
            if self._thought:
                self._thought = "" if part == self._thought.replace("<", "</") else self._thought
            elif is_tag and part[1] != "/":
                self._thought = part
            else:
                self._text += part
                self.characters += len(part)

    def cut(self) -> list[str]:
        """Pieces that are complete."""
        if len(self._text) < self._enough:
            return []
        pieces = []
        while (at := self._next()) is not None:
            pieces.append(self._piece(at.end))
            self._text = self._text[at.next :]
            self._is_first = False
            self._refused.clear()
        # What waits without an end is read again once it is longer by a tenth, and so in linear time.
        self._enough = len(self._text) * 11 // 10 if len(self._text) > MOST_HELD else 0
        return [piece for piece in pieces if piece]

    def rest(self) -> str:
        """Rest at the end of the input, but a thought that has not ended."""
        self._text += "" if self._thought else self._tag
        rest = self._piece(len(self._text))
        self._begin()
        return rest

    def _piece(self, end: int) -> str:
        piece = self._text[:end].strip()
        return piece if self._verbatim else unnamed(piece, self._named).strip()

    def _next(self) -> Break | None:
        """End of the next piece; None while it is incomplete."""
        limit = self._budgets.first if self._is_first else self._budgets.largest
        size = max(limit, MOST_HELD) + 2 * NEAR
        while (at := self._end(self._text[:size], limit)) is None and size < len(self._text):
            size *= 2
        return at

    def _end(self, text: str, limit: int) -> Break | None:
        budgets, most = self._budgets, finished(text)
        # White space completes a clause as any following character would.
        whole = f"{text}." if text[-1:].isspace() else text
        cuts = [at for at in breaks(whole, self._codes, Rank.IDEOGRAPH) if at.end <= most]
        sizes = {at: len(text[: at.end].encode()) for at in cuts}
        roomy = [at for at, size in sizes.items() if size >= budgets.minimum]
        fitting = [at for at in roomy if sizes[at] <= limit]
        enough = 0 if self._is_first else budgets.first
        ends = [
            at
            for at in fitting
            if at.rank is Rank.SENTENCE or (at.rank is Rank.CLAUSE and sizes[at] >= enough)
        ]
        is_full = len(text.encode()) > limit
        others = sorted(fitting, key=lambda at: (at.rank, at.end), reverse=True)
        others = [at for at in others if is_full or (self._is_first and at.rank >= Rank.SPACE)]
        beyond = [at for at in roomy if sizes[at] > limit]
        self._tries = MOST_TRIES
        for at in (*ends, *others, *beyond):
            fits = self._fits(text, at, most)
            if fits:
                return at
            if not self._tries or (fits is None and at in ends and not is_full):
                break
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
        ahead = "".join(word[0] for word in _WORD_AHEAD.finditer(right))
        near = left[-NEAR // 2 :], right[: NEAR // 2]
        if at.rank >= Rank.SPACE and not any(map(_TELLING.search, near)):
            return True if right or at.rank >= Rank.CLAUSE else None
        if len(ahead) < LETTERS_AHEAD:
            return None
        self._tries -= 1
        named = set(self._named)
        together = self._heard(unnamed(text[max(at.end - NEAR, 0) : most][:2*NEAR], set(named)))
        apart = self._heard(unnamed(left, named)) + self._heard(unnamed(right, named))
        if together != apart:
            self._refused.add(at.end)
        return together == apart

    def _heard(self, text: str) -> list[str]:
        """Words that are spoken."""
        said, marks = Rewriting(text), Marks()
        rewrite(said, TextConfig(), marks, self._languages, lambda mark: True)
        return _WORD.findall(marks.restored(said.text).casefold())

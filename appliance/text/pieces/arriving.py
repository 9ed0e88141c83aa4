"""A text that arrives bit by bit → complete pieces."""

from __future__ import annotations

import re

from appliance.config import TextConfig
from appliance.text.chat.chat import PICTURE, rewrite, unnamed
from appliance.text.chat.finders import THOUGHTS
from appliance.text.chat.line import Languages
from appliance.text.chat.marks import Marks
from appliance.text.chat.rewrite import Rewriting
from appliance.text.languages import known
from appliance.text.pieces.split import Break, Budgets, Rank, breaks, finished
from appliance.text.scripts import HAN, KANA, MARKS

MOST_HELD = 300
"""Characters that may wait for an end at which no word changes; a longer text is cut at another."""
LETTERS_AHEAD = 4
"""Letters of the words after a number from which on the number's reading is settled."""
NEAR = 40
"""Characters before and after an end that are read to judge the end."""
MOST_REFUSED = 6
"""Ends of one piece that are read in vain."""
MOST_TRIES = 2
"""Ends that one call reads, each in a millisecond."""
_TAG = re.compile(rf"(</?(?:{THOUGHTS})>|</?[a-z_]{{0,14}}$|{PICTURE}(?:[\ufe0f🏻-🏿]|\u200d{PICTURE}?)*$)")
"""Tag of thoughts; at the end also the start of a tag, or of an emoji."""
_TELLING = re.compile(
    rf"[\d_]|[^\w\s{MARKS},;:!?.…’'।،؟。，！？、-]|(?<![^\W\d_])(?:[^\W\d_]{{1,3}}\.|(?:[A-ZА-Я]+|[b-df-hj-np-tv-xz])(?![^\W\d_]))"
)
"""Numbers, signs, capitals, lone consonants, short words with a full stop: read by their neighbours."""
_FENCE = re.compile(r"```|(?m:^~~~)")
_QUOTE = re.compile(r"(?m)^>+ [^\n]*\Z|\A[^\n@]{1,40}@[\w.-]+[:：][^\n]*\Z|\A@[\w-]+=\S*(?: \S*){0,3}\Z")
"""Quotation or tags whose line has not begun."""
_LETTER = rf"(?:[^\W\d_{HAN}{KANA}]|[{MARKS}])"
_AHEAD = re.compile(rf"[{HAN}{KANA}]|{_LETTER}+(?=[^\w{MARKS}]|[{HAN}{KANA}])")
_WORD = re.compile(rf"[{HAN}{KANA}]|(?:{_LETTER}|\d)+")


class TextSplitter:
    """Collects text and returns each piece once the piece is complete.

    A piece ends at a place where the piece and the text after it have the same words as both together, and
    where later text changes no word. The first piece is the first clause that is long enough or, before any
    clause ends, all words. Later pieces end with a sentence, or with a clause from `budgets.first` on. The
    splitter drops the thoughts of a language model and emoji that an earlier piece has.
    """

    def __init__(
        self, budgets: Budgets, languages: tuple[str, ...] = (), *, most: int = 4_096, verbatim: bool = False
    ) -> None:
        """`languages` are the codes in force; an utterance has `most` characters; `verbatim`: as written."""
        self._budgets, self._codes, self._verbatim, self.most = budgets, languages, verbatim, most
        self._languages = Languages([known(code) for code in languages or ("en",)], ())
        self.begin()

    def begin(self) -> None:
        """Begin an utterance and forget the text before."""
        self._text = self._tag = self._thought = ""
        self._is_first, self._limit = True, self._budgets.first
        self._enough = 0
        """Characters from which on the text is read again."""
        self._refused: set[int] = set()
        """Ends at which words would change."""
        self._named: set[str] = set()
        self._characters = 0

    @property
    def is_too_long(self) -> bool:
        """True if the utterance, thoughts left out, has too many characters."""
        return self._characters > self.most

    @property
    def waiting(self) -> int:
        """Characters that are in no piece yet."""
        return len(self._text)

    def add(self, text: str) -> list[str]:
        """Pieces that this text completes."""
        self.take(text)
        return [piece for piece in iter(self.cut, None) if piece]

    def take(self, text: str) -> None:
        """Append a text without its thoughts."""
        parts = [text] if self._verbatim else _TAG.split(self._tag + text)
        self._tag = ""
        for place, part in enumerate(parts):
            if place % 2 and part[-1] != ">":
                self._tag = part
            elif self._thought:
                self._thought = "" if part == self._thought else self._thought
            elif place % 2 and part[1] != "/":
                self._thought = f"</{part[1:]}"
            else:
                self._characters += len(part)
                part = "" if self.is_too_long else part
                self._text += part if self._verbatim else unnamed(part, self._named)

    def cut(self) -> str | None:
        """Next piece; "" if the next call may find one, None while the piece is incomplete."""
        self._tries, size, at = MOST_TRIES, self._limit + 2 * NEAR, None
        while at is None and self._tries and self.waiting >= self._enough:
            at = self._end(self._text[:size])
            if size >= self.waiting and self._tries:
                # A text without an end is read again with a tenth more, and so in linear time.
                is_full = len(self._text.encode()) > self._limit
                self._enough = self.waiting + 1 + is_full * self.waiting // 10
            size *= 2
        if at is None:
            return None if self._tries else ""
        piece = self._text[: at.end].strip()
        self._text, self._is_first, self._enough = self._text[at.next :], False, 0
        self._limit = self._budgets.largest
        self._refused.clear()
        return piece

    def fit(self, budgets: Budgets) -> None:
        """Cut the pieces after the first by other budgets."""
        self._budgets, self._limit = budgets, budgets.largest

    def rest(self) -> str:
        """Rest at the end of the input; a thought that has not ended is dropped."""
        rest = self._text + ("" if self._thought else unnamed(self._tag, self._named))
        self.begin()
        return rest.strip()

    def _end(self, text: str) -> Break | None:
        """End of the next piece; None while the piece is incomplete or after too many tries."""
        budgets, most = self._budgets, finished(text)
        is_full = len(text.encode()) > self._limit

        def preference(at: Break) -> tuple[int, int, int]:
            size = len(text[: at.end].encode())
            if size > self._limit:
                return 2, 0, at.end
            is_clause = at.rank is Rank.CLAUSE and (self._is_first or size >= budgets.first)
            return (0, 0, at.end) if is_clause or at.rank is Rank.SENTENCE else (1, -at.rank, -at.end)

        # White space completes a clause as any following character would.
        whole = f"{text[:most]}." if text[most - 1 : most].isspace() else text[: most + 1]
        cuts = breaks(whole, self._codes, Rank.IDEOGRAPH)
        ends = [at for at in cuts if at.end <= most and len(text[: at.end].encode()) >= budgets.minimum]
        if not self._verbatim and _FENCE.search(text):
            ends = [at for at in ends if len(_FENCE.findall(text, 0, at.end)) % 2 == 0]
        for at in (ends := sorted(ends, key=preference)):
            is_best = preference(at)[0] == 0
            if not (is_best or is_full or (self._is_first and at.rank >= Rank.SPACE)):
                break
            fits = self._fits(text, at, most)
            if fits:
                return at
            if not self._tries or (fits is None and is_best and not is_full):
                return None
        return ends[0] if ends and is_full and len(text) > MOST_HELD else None

    def _fits(self, text: str, at: Break, most: int) -> bool | None:
        """True if a piece may end there; None while later text may change that."""
        is_refused = at.end in self._refused or len(self._refused) >= MOST_REFUSED
        if self._verbatim or is_refused or _QUOTE.search(text, 0, at.end):
            return self._verbatim
        start, end = max(at.end - NEAR, 0), min(at.next + NEAR, most)
        left, right = text[start : at.end], text[at.next : end]
        word = re.match(r"\w+", right)
        if word and at.rank < Rank.CLAUSE and left.split()[-1].startswith(word[0]):
            return None  # a repeated word may be repeated once more
        near = left[-NEAR // 2 :], right[: NEAR // 2]
        if at.rank >= Rank.SPACE and not any(map(_TELLING.search, near)):
            return True if right or at.rank >= Rank.CLAUSE else None
        ahead = _AHEAD.findall(right)
        is_scale = at.rank < Rank.CLAUSE and left[-1:].isdigit()  # 1,5 milyon TL
        if sum(map(len, ahead)) < LETTERS_AHEAD or (is_scale and len(ahead) < 2):
            return None
        self._tries -= 1
        fits = self._heard(left) + self._heard(right) == self._heard(text[start:end])
        self._refused |= set() if fits else {at.end}
        return fits

    def _heard(self, text: str) -> list[str]:
        """Spoken words of a text."""
        said, marks = Rewriting(text), Marks()
        rewrite(said, TextConfig(), marks, self._languages, lambda mark: True)
        return _WORD.findall(marks.restored(said.text).casefold())

"""Cuts a text that arrives in parts into pieces, each as soon as it is complete.

Why a cut is tested: a word or number is read by its neighbours, so pieces could be spoken in other words than
the same text in one request. A piece ends only at a place that changes no word: the piece and the rest, read
apart, must have the same words as both together, and no text that may still arrive can change them. The test
uses the full rewriting of chat, so its words are the spoken words.

The cost: the text around a place is read three times, which takes a millisecond. So the test reads only NEAR
characters on each side, only if they contain something that neighbours decide, and at most MOST_TRIES times
in a call. If a text has no such place, it is cut at another place when it is longer than MOST_HELD.
"""

from __future__ import annotations

import re

from appliance.config import TextConfig
from appliance.text.chat.chat import PICTURE, rewrite, unnamed
from appliance.text.chat.finders import THOUGHTS
from appliance.text.chat.line import Languages
from appliance.text.chat.marks import Marks
from appliance.text.chat.rewrite import Rewriting
from appliance.text.languages import resolve
from appliance.text.pieces.split import Break, Budgets, Rank, breaks, finished
from appliance.text.scripts import HAN, KANA, MARKS

MOST_HELD = 300
"""Characters that may wait for a place that changes no word. A longer text is cut at another place."""
LETTERS_AHEAD = 4
"""Number of letters that must follow a number, so that its reading is settled."""
NEAR = 40
"""Characters before and after a place that are read to test it."""
MOST_REFUSED = 6
"""Most places per piece that fail the test. Then no more are tested."""
MOST_TRIES = 2
"""Most places that one call tests, each in about a millisecond."""
_TAG = re.compile(rf"(</?(?:{THOUGHTS})>|</?[a-z_]{{0,14}}$|{PICTURE}(?:[\ufe0f🏻-🏿]|\u200d{PICTURE}?)*$)")
"""Matches a tag of thoughts; at the end of the text, also the beginning of a tag or of an emoji."""
_TELLING = re.compile(
    rf"[\d_]|[^\w\s{MARKS},;:!?.…’'।،؟。，！？、-]|(?<![^\W\d_])(?:[^\W\d_]{{1,3}}\.|(?:[A-ZА-Я]+|[b-df-hj-np-tv-xz])(?![^\W\d_]))"
)
"""Numbers, signs, capitals, lone consonants, short words with a full stop: their neighbours decide a word."""
_FENCE = re.compile(r"```|(?m:^~~~)")
_QUOTE = re.compile(r"(?m)^>+ [^\n]*\Z|\A[^\n@]{1,40}@[\w.-]+[:：][^\n]*\Z|\A@[\w-]+=\S*(?: \S*){0,3}\Z")
"""Matches a text that ends inside a quoted line, or inside the tags before a line."""
_LETTER = rf"(?:[^\W\d_{HAN}{KANA}]|[{MARKS}])"
_AHEAD = re.compile(rf"[{HAN}{KANA}]|{_LETTER}+(?=[^\w{MARKS}]|[{HAN}{KANA}])")
_WORD = re.compile(rf"[{HAN}{KANA}]|(?:{_LETTER}|\d)+")


class TextSplitter:
    """Collects text, and returns each piece when it is complete.

    The first piece is the first clause that is long enough; before a clause ends, it is all whole words.
    Later pieces end with a sentence, or with a clause if they are at least `budgets.first` long. Leaves out
    the thoughts of a language model, and emoji that an earlier piece has.
    """

    def __init__(
        self, budgets: Budgets, languages: tuple[str, ...] = (), *, most: int = 4_096, verbatim: bool = False
    ) -> None:
        """`languages` are codes. `most` limits an utterance's characters. `verbatim`: no rewriting."""
        self._budgets, self._codes, self._verbatim, self.most = budgets, languages, verbatim, most
        self._languages = Languages([resolve(code) for code in languages or ("en",)], ())
        self.begin()

    def begin(self) -> None:
        """Begin an utterance and forget the text before."""
        self._text = self._tag = self._thought = ""
        self._is_first, self._limit = True, self._budgets.first
        self._enough = 0
        """Number of characters from which the text is read again."""
        self._refused: set[int] = set()
        """Places that failed the test."""
        self._named: set[str] = set()
        self._characters = 0

    @property
    def is_too_long(self) -> bool:
        """True if the utterance, without thoughts, has too many characters."""
        return self._characters > self.most

    @property
    def waiting(self) -> int:
        """Number of characters that are in no piece yet."""
        return len(self._text)

    def add(self, text: str) -> list[str]:
        """Add text and return the pieces that it completes."""
        self.take(text)
        return [piece for piece in iter(self.cut, None) if piece]

    def take(self, text: str) -> None:
        """Add text, without its thoughts."""
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
        """The next piece; "" if another call may find one; None if the piece is incomplete."""
        self._tries, size, at = MOST_TRIES, self._limit + 2 * NEAR, None
        while at is None and self._tries and self.waiting >= self._enough:
            at = self._end(self._text[:size])
            if size >= self.waiting and self._tries:
                # If there is no place yet, wait until the text is longer by a tenth: the time is linear.
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
        """Use other budgets for the next pieces."""
        self._budgets, self._limit = budgets, budgets.largest

    def rest(self) -> str:
        """The rest, at the end of the input. An unfinished thought is dropped."""
        rest = self._text + ("" if self._thought else unnamed(self._tag, self._named))
        self.begin()
        return rest.strip()

    def _end(self, text: str) -> Break | None:
        """The end of the next piece; None if the piece is incomplete, or after too many tries."""
        budgets, most = self._budgets, finished(text)
        is_full = len(text.encode()) > self._limit

        def preference(at: Break) -> tuple[int, int, int]:
            size = len(text[: at.end].encode())
            if size > self._limit:
                return 2, 0, at.end
            is_clause = at.rank is Rank.CLAUSE and (self._is_first or size >= budgets.first)
            return (0, 0, at.end) if is_clause or at.rank is Rank.SENTENCE else (1, -at.rank, -at.end)

        # White space completes a clause as any other character does.
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
        fits = self._spoken_words(left) + self._spoken_words(right) == self._spoken_words(text[start:end])
        self._refused |= set() if fits else {at.end}
        return fits

    def _spoken_words(self, text: str) -> list[str]:
        """Words of a text, as spoken."""
        rewritten, marks = Rewriting(text), Marks()
        rewrite(rewritten, TextConfig(), marks, self._languages, lambda mark: True)
        return _WORD.findall(marks.restored(rewritten.text).casefold())

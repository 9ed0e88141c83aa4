"""Text → pieces, one per segment: as upstream chunks it, or a short first piece and then growing ones.

Sizes are UTF-8 bytes, from which upstream estimates durations.

Why the pieces grow: a reply can start when its first piece is spoken, so that piece is short. While it plays,
the engine synthesises the next, which may be longer by a factor (GROWTH). Each piece recomputes the
reference's frames, so more pieces cost more of the engine; a text is cut only if the first audio comes
earlier by WORTH_A_CUT. Among the places within a piece's budget, a sentence is better than a clause, a clause
than a space, and a space than a place between characters. A place is never inside a number, an address, or a
syllable. All places of a text are found once, so that the time stays linear; nothing looks at the sound of
the cut.
"""

from __future__ import annotations

import enum
import itertools
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from appliance.text.languages import resolve
from appliance.text.scripts import JOINERS

FIRST_MIN_S = 1.0
"""Shortest planned piece, in seconds. The model mumbles on shorter ones."""
FIRST_MAX_S = 4.0
"""Longest first piece, in seconds."""
WORTH_A_CUT = 1 / 3
"""Share of the time to first audio that a cut must save, because each piece computes the reference again."""
GROWTH = 2.0
"""Largest ratio to the previous piece, during whose playback a piece is synthesised."""

_UPSTREAM_BREAK = re.compile(r"(?<=[;:,.!?])\s+|(?<=[；：，。！？])")


def chunk_text(text: str, max_bytes: int) -> list[str]:
    """Upstream's `chunk_text`: packs clauses greedily; a longer clause stays whole."""
    chunks: list[str] = []
    chunk = ""
    for sentence in filter(None, _UPSTREAM_BREAK.split(text)):
        if size_of(chunk) + size_of(sentence) > max_bytes:
            if chunk:
                chunks.append(chunk.strip())
            chunk = ""
        chunk += sentence + " " if size_of(sentence[-1]) == 1 else sentence
    if chunk:
        chunks.append(chunk.strip())
    return chunks


@dataclass(frozen=True)
class Budgets:
    """Sizes of pieces, in bytes."""

    minimum: int
    """Shortest piece, unless the text is shorter or has no other place to cut."""
    first: int
    largest: int
    reference: int = 0
    """Size of the reference's transcript, whose frames are computed with each piece."""

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.first <= self.largest:
            raise ValueError(
                f"need 1 ≤ minimum ≤ first ≤ largest, not {self.minimum}, {self.first}, {self.largest}"
            )

    @classmethod
    def at_pace(cls, bytes_per_second: float, *, minimum: int, largest: int, reference: int = 0) -> Budgets:
        """Budgets for a speed in bytes per second. `minimum` is a floor and `largest` a ceiling, in bytes."""
        least = min(max(int(FIRST_MIN_S * bytes_per_second), minimum, 1), max(largest, 1))
        first = min(max(int(FIRST_MAX_S * bytes_per_second), least), max(largest, 1))
        return cls(least, first, max(largest, 1), reference)

    def worth_a_cut(self, first: int, text: int) -> bool:
        return text > self.largest or self.reference + first <= (1 - WORTH_A_CUT) * (self.reference + text)


def split_low_latency(text: str, budgets: Budgets, languages: tuple[str, ...] = ()) -> list[str]:
    """A short first piece, then growing ones. Only white space at the cuts is lost.

    The first piece ends with the shortest clause that is long enough. Others fill their budget, and end with
    a sentence of its second half, else with a clause, at a space, or between characters. Numbers, URLs and
    syllables are never cut. A text that is not `worth_a_cut` stays whole. `languages` are codes; their
    abbreviations end no sentence.
    """
    text = text.strip()
    places = Breaks(text, languages)
    pieces: list[str] = []
    start, budget = 0, budgets.first
    while start < len(text):
        cut = places.choose(start, budget, budgets.minimum)
        if not pieces and not budgets.worth_a_cut(places.size(0, cut.end), places.size(0)):
            return [text]
        pieces.append(text[start : cut.end])
        start = cut.next
        budget = min(int(budget * GROWTH), budgets.largest)
    return pieces


def first_within(text: str, most: int, languages: tuple[str, ...] = ()) -> str:
    """Beginning of a text: to a clause's end, else a space, else between syllables, else anywhere."""
    return text[: Breaks(text, languages).end_within(0, most)]


def cut_to_fit(text: str, most: int, languages: tuple[str, ...] = ()) -> list[str]:
    """Pieces of at most `most` bytes. Only white space is lost."""
    if size_of(text) <= most:
        return [text] if text else []
    places = Breaks(text, languages)
    pieces, start = [], 0
    while places.size(start) > most:
        end = places.end_within(start, most)
        pieces.append(text[start:end])
        start = next((n for n in range(end, len(text)) if not text[n].isspace()), len(text))
    return [*pieces, text[start:]] if start < len(text) else pieces


class Rank(enum.IntEnum):
    LETTER = 0
    IDEOGRAPH = 1
    SPACE = 2
    CLAUSE = 3
    SENTENCE = 4


@dataclass(frozen=True)
class Break:
    """A place to cut a text at."""

    end: int
    """End of the left piece."""
    next: int
    """Beginning of the right piece, after white space."""
    rank: Rank


class Breaks:
    """Places to cut a text at, including its end, found once."""

    def __init__(self, text: str, languages: tuple[str, ...] = ()) -> None:
        self._text = text
        self._breaks = [*breaks(text, languages), Break(len(text), len(text), Rank.SENTENCE)]
        self._ends = [at.end for at in self._breaks]
        self._sizes = [*itertools.accumulate(map(size_of, text), initial=0)]

    def size(self, start: int, end: int = -1) -> int:
        """Bytes of a piece; -1 stands for the end of the text."""
        return self._sizes[end] - self._sizes[start]

    def choose(self, start: int, budget: int, minimum: int) -> Break:
        """End of a piece of `split_low_latency`. The first piece begins at 0."""
        fitting = self._fitting(start, budget)
        roomy = [
            at
            for at in fitting
            if self.size(start, at.end) >= minimum and (self.size(at.next) or minimum) >= minimum
        ]
        clauses = [at for at in roomy if at.rank >= Rank.CLAUSE]
        if start == 0 and clauses:
            return clauses[0]
        if self.size(start) <= budget:
            return fitting[-1]

        def quality(at: Break) -> tuple[bool, bool, Rank, int]:
            return at.rank >= Rank.CLAUSE, 2 * self.size(start, at.end) >= budget, at.rank, at.end

        return max(roomy or fitting, key=quality)

    def end_within(self, start: int, most: int) -> int:
        """End of a piece of at most `most` bytes: a place, or the end of a syllable, or any index."""

        def quality(at: Break) -> tuple[bool, bool, int]:
            return at.rank >= Rank.CLAUSE, at.rank >= Rank.IDEOGRAPH, at.end

        end = max(self._fitting(start, most), key=quality).end
        if self.size(start, end) <= most:
            return end
        most = max(most, 4)  # one character at least
        end = full = start + len(self._text[start : start + most].encode()[:most].decode(errors="ignore"))
        while start < end < len(self._text) and _is_joined(self._text[end - 1], self._text[end]):
            end -= 1
        return end if end > start else full

    def _fitting(self, start: int, most: int) -> list[Break]:
        """Places at which pieces of at most `most` bytes end; else the next place."""
        first = bisect_right(self._ends, start)
        last = bisect_right(self._sizes, self._sizes[start] + most) - 1
        return self._breaks[first : max(bisect_right(self._ends, last), first + 1)]


_CLOSERS = "[\"'”’“»›)）】」』》〉\\]]*"
_ENDS = "։؝؞؟۔܀܁܂߹࠷࠹࠽࠾।॥။።፧፨᙮᜵᜶។៕᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿‼‽⁇⁈⁉⸮⸼。꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗！？｡།༎๚๛"
"""Unicode's Sentence_Terminal beyond ASCII, and the ends of Tibetan and Thai texts."""
_PAUSES = "，；：、…～،؛՝፣፤፥፦၊៖᠂᠄᠈؍߸︐﹐﹑﹔﹕；､"
_GAP = r"(?=[\s\u2e80-\uffef])"  # ASCII punctuation ends a clause before white space or a Chinese character
_PUNCTUATION = (
    (
        Rank.SENTENCE,
        re.compile(rf"(?:(?<![.!?…])[.!?…]+{_CLOSERS}{_GAP}|(?:[{_ENDS}]|．(?!\d))+{_CLOSERS})\s*"),
    ),
    (
        Rank.CLAUSE,
        re.compile(rf"(?:(?<![,;:])[,;:]+{_CLOSERS}{_GAP}|\s[-–—]+(?=\s)|[{_PAUSES}]+{_CLOSERS}|——)\s*"),
    ),
    (Rank.SPACE, re.compile(r"\s+")),
)
_WHOLE = re.compile(
    r"(?:https?://|www\.)[!-~]+"  # a URL ends at the first character outside ASCII
    r"|(?<![A-Za-z0-9])[A-Za-z0-9][\w.+-]{0,63}@[\w-]+(?:\.[\w-]+)+"  # a mail address
    r"|\d+(?:[.,:/'-]\d+| \d{3}(?!\d))*"  # a number, with its separators and its unit; a time, a date
    r"(?:\s(?:[ap]\.?m\b\.?|[kcm]?[gm]\b|lbs?\b|[KMGT]B\b|[kM]?Hz\b|fps\b|ms\b|(?:min|sec|hr)s?\b|[mb]illion\b|%))?"
    r"|[〇零一二三四五六七八九十百千万亿两点]{2,}"
    r"|\b(?:[A-ZÀ-ÖØ-ÞΑ-ΩЀ-Я]|No(?=\.\s\d))\.\s"  # this full stop ends no sentence
)
"""Text that is never cut."""
_LONGEST_OPEN = 90
"""Characters of the longest tag, direction or emote."""
_UNFINISHED = re.compile(
    r"(?:<(?:[/A-Za-z!][^<>\n]{0,80})?|\[[^\[\]\n]{0,60}|[(（][^()（）\n]{0,40}|(?<![\w*])\*[^*\n]{0,80}|(?<!\w):\w{0,40}|`+)$"
)


def finished(text: str) -> int:
    """Length without an unfinished listing, tag, direction or emote at the end, and the word there."""
    if text.count("```") % 2:
        return text.rfind("```")
    match = _UNFINISHED.search(text, max(len(text) - _LONGEST_OPEN, 0))
    return match.start() if match else len(text)


_ORDINALS = frozenset(str.split("de da nb nn no fi cs sk pl hr sr bs sl hu et lv lt tr is"))
"""Languages that write an ordinal number with a full stop."""


@lru_cache(maxsize=64)
def _abbreviated(languages: tuple[str, ...]) -> re.Pattern[str]:
    """Pattern of abbreviations, and ordinals, with their last full stop and the space after it.

    For a language without known abbreviations the English ones apply: Dr. and e.g. occur everywhere.
    """
    codes = languages or ("en",)
    words = {word for code in codes for word in (resolve(code).abbreviations or resolve("en").abbreviations)}
    patterns = [re.sub(r"\\\.(?:\\ )?", r"\\.\\s?", re.escape(word)) for word in words]
    if not _ORDINALS.isdisjoint(codes):
        patterns.append(r"\d{1,2}(?=\.\s[^\W\d])")
    longest_first = "|".join(sorted(patterns, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{longest_first or '(?!)'})\.\s", re.IGNORECASE)


def breaks(text: str, languages: tuple[str, ...] = (), least: Rank = Rank.LETTER) -> Iterator[Break]:
    """Places to cut `text` at, in order, each with its best rank, if that is at least `least`."""
    cuts: dict[int, Break] = {}
    for place in range(1, 0 if least and text.isascii() else len(text)):
        rank_between = _rank_between(text[place - 1], text[place])
        if (
            rank_between is not None
            and rank_between >= least
            and text[place + 1 : place + 2] not in _SILENCED
        ):
            cuts[place] = Break(place, place, rank_between)
    for rank, pattern in reversed(_PUNCTUATION):
        for match in pattern.finditer(text):
            end = match.start() + len(match[0].rstrip())
            cuts[match.end()] = Break(end, match.end(), rank)
    wholes = [m.span() for pattern in (_WHOLE, _abbreviated(languages)) for m in pattern.finditer(text)]
    ahead = iter([*sorted(wholes), (len(text), len(text) + 1)])
    begin, end = next(ahead)
    for place in sorted(cuts):
        cut = cuts[place]
        while end <= cut.end:
            begin, end = next(ahead)
        if begin >= cut.next and cut.next < len(text):
            yield cut


_VIRAMA = 9
"""Unicode's combining class of the marks that join two consonants."""
_THAI = re.compile("[\u0e01-\u0eff]")
_SKIN_TONES = "🏻🏼🏽🏾🏿"
_LEADING = "เแโใไເແໂໃໄ"
"""Vowels of Thai and Lao that are written before their consonant. They begin a syllable."""
_FOLLOWING = "ะาำๅฯๆะາຳຽໆຯ"
"""Letters of Thai and Lao that belong to the letter before them."""
_CLOSING = "ะำะຳๆ"
"""Letters of _FOLLOWING that end a syllable."""
_SILENCED = frozenset("์်")
"""Marks of Thai and Burmese on a letter that ends a syllable."""
_OPEN = "ัື็ັົ"
"""Vowels of Thai and Lao that need another letter."""


def _rank_between(left: str, right: str) -> Rank | None:
    """Rank of a cut between two characters; None if they belong together."""
    if left.isspace() or right.isspace() or left.isdigit() or right.isdigit():
        return None
    if left.isascii() and right.isascii():
        return Rank.LETTER
    if _is_joined(left, right):
        return None
    wide = "WF"
    if unicodedata.east_asian_width(left) in wide or unicodedata.east_asian_width(right) in wide:
        return Rank.IDEOGRAPH
    if right in _LEADING or left in _CLOSING or left == "་":
        return Rank.IDEOGRAPH
    return None if _THAI.match(left) and _THAI.match(right) else Rank.LETTER


def _is_joined(left: str, right: str) -> bool:
    """True inside a letter with its marks, a conjunct or an emoji, and after a vowel that needs a letter."""
    return (
        unicodedata.category(right)[0] == "M"
        or right in _FOLLOWING
        or left in _LEADING + _OPEN
        or left in JOINERS
        or right in JOINERS
        or (unicodedata.combining(left) == _VIRAMA and left not in _SILENCED)
        or right in _SKIN_TONES
        or "\u1160" <= right <= "\u11ff"
    )


def size_of(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text.encode())

"""Text → pieces, one per segment: as upstream chunks it, or a short first piece, then growing ones.

Sizes are UTF-8 bytes, from which upstream estimates durations.
"""

from __future__ import annotations

import enum
import itertools
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from appliance.text.languages import known
from appliance.text.scripts import JOINERS

FIRST_MIN_S = 1.0
"""Shortest planned piece; the model mumbles on less."""
FIRST_MAX_S = 4.0
"""Longest first piece."""
WORTH_A_CUT = 1 / 3
"""Share of the time to first audio to save: each piece recomputes the reference's frames."""
GROWTH = 2.0
"""Largest ratio to the piece before, during whose playback one is synthesised."""

_UPSTREAM_BREAK = re.compile(r"(?<=[;:,.!?])\s+|(?<=[；：，。！？])")


def chunk_text(text: str, max_bytes: int) -> list[str]:
    """Upstream's `chunk_text`: clauses packed greedily; a longer one stays whole."""
    chunks: list[str] = []
    chunk = ""
    for sentence in filter(None, _UPSTREAM_BREAK.split(text)):
        if _bytes(chunk) + _bytes(sentence) > max_bytes:
            if chunk:
                chunks.append(chunk.strip())
            chunk = ""
        chunk += sentence + " " if _bytes(sentence[-1]) == 1 else sentence
    if chunk:
        chunks.append(chunk.strip())
    return chunks


@dataclass(frozen=True)
class Budgets:
    """Sizes in bytes."""

    minimum: int
    """Floor, unless the text is shorter or has no other place to cut."""
    first: int
    largest: int
    reference: int = 0
    """Size of the reference's transcript, computed with each piece."""

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.first <= self.largest:
            raise ValueError(
                f"need 1 ≤ minimum ≤ first ≤ largest, not {self.minimum}, {self.first}, {self.largest}"
            )

    @classmethod
    def at_pace(cls, bytes_per_second: float, *, minimum: int, largest: int, reference: int = 0) -> Budgets:
        """`minimum` is a floor and `largest` a ceiling, in bytes."""
        least = min(max(int(FIRST_MIN_S * bytes_per_second), minimum, 1), max(largest, 1))
        first = min(max(int(FIRST_MAX_S * bytes_per_second), least), max(largest, 1))
        return cls(least, first, max(largest, 1), reference)

    def worth_a_cut(self, first: int, text: int) -> bool:
        return text > self.largest or self.reference + first <= (1 - WORTH_A_CUT) * (self.reference + text)


def split_low_latency(text: str, budgets: Budgets, languages: tuple[str, ...] = ()) -> list[str]:
    """A short first piece, then growing ones; only white space at the cuts is lost.

    The first ends with the shortest clause that is long enough. Others fill their budget and end with a
    sentence of its second half, else with a clause, at a space, or between characters. Numbers and URLs are
    never cut, nor are syllables. A text that is not `worth_a_cut` stays whole. `languages` are codes, whose
    abbreviations end no sentence.
    """
    text = text.strip()
    sizes = [0, *itertools.accumulate(map(_bytes, text))]
    places = [*breaks(text, languages), Break(len(text), len(text), Rank.SENTENCE)]
    pieces: list[str] = []
    start, budget = 0, budgets.first
    while start < len(text):
        ahead = [
            _Cut(at, sizes[at.end] - sizes[start], sizes[-1] - sizes[at.next])
            for at in places
            if at.end > start
        ]
        chosen = _choose(ahead, budget, budgets.minimum, first=not pieces)
        if not pieces and not budgets.worth_a_cut(sizes[chosen.end], sizes[-1]):
            return [text]
        pieces.append(text[start : chosen.end])
        start = chosen.next
        budget = min(int(budget * GROWTH), budgets.largest)
    return pieces


def first_within(text: str, most: int, languages: tuple[str, ...] = ()) -> str:
    """Start of a text: to a clause's end, else a space, else between syllables, else anywhere."""
    fitting = [at for at in breaks(text, languages) if _bytes(text[: at.end]) <= most]
    clauses = [at for at in fitting if at.rank >= Rank.CLAUSE]
    spaces = [at for at in fitting if at.rank >= Rank.IDEOGRAPH]
    for places in (clauses, spaces, fitting):
        if places and places[-1].end:
            return text[: places[-1].end]
    piece = text.encode()[: max(most, 4)].decode(errors="ignore")  # one character at least
    place = len(piece)
    while 0 < place < len(text) and _is_joined(text[place - 1], text[place]):
        place -= 1
    return piece[:place] or piece


def cut_to_fit(text: str, most: int, languages: tuple[str, ...] = ()) -> list[str]:
    """Pieces of at most `most` bytes; only white space is lost."""
    pieces = []
    while _bytes(text) > most:
        piece = first_within(text, most, languages)
        pieces.append(piece)
        text = text[len(piece) :].lstrip()
    return [*pieces, text] if text else pieces


class Rank(enum.IntEnum):
    LETTER = 0
    IDEOGRAPH = 1
    SPACE = 2
    CLAUSE = 3
    SENTENCE = 4


@dataclass(frozen=True)
class Break:
    end: int
    """End of the left piece."""
    next: int
    """Start of the right piece, after white space."""
    rank: Rank


@dataclass(frozen=True)
class _Cut:
    """A break, relative to the start of a piece."""

    at: Break
    size: int
    """Bytes of the piece."""
    left: int
    """Bytes after it."""


def _choose(ahead: list[_Cut], budget: int, minimum: int, *, first: bool) -> Break:
    fitting = [cut for cut in ahead if cut.size <= budget]
    roomy = [cut for cut in fitting if cut.size >= minimum and (cut.left >= minimum or not cut.left)]
    if first:
        for cut in roomy:
            if cut.at.rank >= Rank.CLAUSE:
                return cut.at
    if not fitting or ahead[-1].size <= budget:
        return (fitting or ahead[:1])[-1].at

    def quality(cut: _Cut) -> tuple[bool, bool, Rank, int]:
        return cut.at.rank >= Rank.CLAUSE, 2 * cut.size >= budget, cut.at.rank, cut.size

    return max(roomy or fitting, key=quality).at


_CLOSERS = "[\"'”’“»›)）】」』》〉\\]]*"
_ENDS = "։؝؞؟۔܀܁܂߹࠷࠹࠽࠾।॥။።፧፨᙮᜵᜶។៕᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿‼‽⁇⁈⁉⸮⸼。꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗！？｡།༎๚๛"
"""Unicode's Sentence_Terminal beyond ASCII, and the ends of Tibetan and Thai texts."""
_PAUSES = "，；：、…～،؛՝፣፤፥፦၊៖᠂᠄᠈؍߸︐﹐﹑﹔﹕；､"
_GAP = r"(?=[\s\u2e80-\uffef])"  # ASCII punctuation ends a clause before white space or a Chinese character
_PUNCTUATION = (
    (Rank.SENTENCE, re.compile(rf"(?:[.!?…]+{_CLOSERS}{_GAP}|(?:[{_ENDS}]|．(?!\d))+{_CLOSERS})\s*")),
    (Rank.CLAUSE, re.compile(rf"(?:[,;:]+{_CLOSERS}{_GAP}|\s[-–—]+(?=\s)|[{_PAUSES}]+{_CLOSERS}|——)\s*")),
    (Rank.SPACE, re.compile(r"\s+")),
)
_WHOLE = re.compile(
    r"(?:https?://|www\.)[!-~]+"  # a URL ends at the first character outside ASCII
    r"|[A-Za-z0-9][\w.+-]*@[\w-]+(?:\.[\w-]+)+"  # a mail address
    r"|\d+(?:[.,:/'-]\d+| \d{3}(?!\d))*"  # a number, with its separators and its unit; a time, a date
    r"(?:\s(?:[ap]\.?m\b\.?|[kcm]?[gm]\b|lbs?\b|[KMGT]B\b|[kM]?Hz\b|fps\b|ms\b|(?:min|sec|hr)s?\b|[mb]illion\b|%))?"
    r"|(?s:<(think|thinking)>.*?</\1>)|</?[A-Za-z!][^<>\n]{0,80}>"  # tags
    r"|\[[^\[\]\n]{1,60}\]|(?<![\w*])\*[^*\n]{1,80}\*|:\w{2,40}:"  # stage directions, emotes
    r"|[〇零一二三四五六七八九十百千万亿两点]{2,}"
    r"|\b(?:[A-ZÀ-ÖØ-ÞΑ-ΩЀ-Я]|No(?=\.\s\d))\.\s"  # this full stop ends no sentence
)


_UNFINISHED = re.compile(
    r"(?s:<(?:think|thinking)>(?!.*</think(?:ing)?>).*$)"
    r"|(?:<(?:[/A-Za-z!][^<>\n]{0,80})?|\[[^\[\]\n]{0,60}|\([^()\n]{0,20}|(?<![\w*])\*[^*\n]{0,80}|(?<!\w):\w{0,40})$"
    r"|[$€£¥]?\d[\d.,:/'-]*(?:\s?[A-Za-z%.]{0,3})?$"
)


def finished(text: str) -> int:
    """Length without a tag, direction, emote or number at the end that may go on."""
    match = _UNFINISHED.search(text)
    return match.start() if match else len(text)


_ORDINALS = frozenset(str.split("de da nb nn no fi cs sk pl hr sr bs sl hu et lv lt tr is"))
"""Languages that write an ordinal number with a full stop."""


@lru_cache(maxsize=64)
def _abbreviated(languages: tuple[str, ...]) -> re.Pattern[str]:
    """Pattern of abbreviations, and ordinals, with their last full stop and the space after it.

    English ones where a language has none that are known: Dr. and e.g. are met everywhere.
    """
    codes = languages or ("en",)
    words = {word for code in codes for word in (known(code).abbreviations or known("en").abbreviations)}
    patterns = [re.sub(r"\\\.(?:\\ )?", r"\\.\\s?", re.escape(word)) for word in words]
    if not _ORDINALS.isdisjoint(codes):
        patterns.append(r"\d{1,2}(?=\.\s[^\W\d])")
    longest_first = "|".join(sorted(patterns, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{longest_first or '(?!)'})\.\s", re.IGNORECASE)


def breaks(text: str, languages: tuple[str, ...] = ()) -> Iterator[Break]:
    """Places to cut `text` at, in order, each with its best rank."""
    found: dict[int, Break] = {}
    for rank, pattern in reversed(_PUNCTUATION):
        for match in pattern.finditer(text):
            found[match.end()] = Break(len(text[: match.end()].rstrip()), match.end(), rank)
    for place in range(1, len(text)):
        rank_between = _rank_between(text[place - 1], text[place])
        if rank_between is not None and text[place + 1 : place + 2] not in _SILENCED:
            found.setdefault(place, Break(place, place, rank_between))
    wholes = sorted(m.span() for pattern in (_WHOLE, _abbreviated(languages)) for m in pattern.finditer(text))
    for place in sorted(found):
        cut = found[place]
        while wholes and wholes[0][1] <= cut.end:
            del wholes[0]
        inside = wholes and wholes[0][0] < cut.next
        if not inside and cut.next < len(text):
            yield cut


_VIRAMA = 9
"""Unicode's combining class of the marks that join two consonants."""
_THAI = re.compile("[\u0e01-\u0eff]")
_SKIN_TONES = "🏻🏼🏽🏾🏿"
_LEADING = "เแโใไເແໂໃໄ"
"""Vowels of Thai and Lao that are written before their consonant: a syllable begins."""
_FOLLOWING = "ะาำๅฯๆะາຳຽໆຯ"
"""Letters of Thai and Lao that belong to what is before them."""
_CLOSING = "ะำะຳๆ"
"""Letters of _FOLLOWING that end a syllable."""
_SILENCED = frozenset("์်")
"""Marks of Thai and Burmese on a letter that ends a syllable."""
_OPEN = "ัື็ັົ"
"""Vowels of Thai and Lao that need another letter."""


def _rank_between(left: str, right: str) -> Rank | None:
    """None if the characters belong together."""
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
    """True within a letter with its marks, a conjunct, an emoji, and where a vowel needs what follows it."""
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


def _bytes(text: str) -> int:
    return len(text.encode())

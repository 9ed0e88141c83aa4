"""Japanese: its numbers and counters, in kana, with the sound changes between them."""

from __future__ import annotations

import re

from appliance.text.languages.facets import Noun
from appliance.text.languages.grammar import BaseGrammar
from appliance.text.languages.quantity import is_rating
from appliance.text.languages.words import Words
from appliance.text.spans import Kind, Table, before

_SCALES = {"百": 100, "千": 1_000, "万": 10**4, "億": 10**8, "兆": 10**12}
_CLOSED = {"いち": "いっ", "ろく": "ろっ", "はち": "はっ", "じゅう": "じゅっ", "ゃく": "ゃっ"}
"""Ends of numbers before some counters: いち + かい → いっかい."""
_FEW = ("いち", "はち", "じゅう")
_SHORT = {
    "y": {"よん": "よ"},
    "j": {"よん": "よ", "なな": "しち", "きゅう": "く"},
    "g": {"よん": "し", "なな": "しち", "きゅう": "く"},
}
_VOICED, _PLOSIVE = str.maketrans("はひふへほ", "ばびぶべぼ"), str.maketrans("はひふへほ", "ぱぴぷぺぽ")
_KINDS = ("k", "s", "t", "b", "p", "y", "j", "g", "")
"""Kinds of sound change: before k, s or t; h → b or p after ん; or only of the number."""
_SIGNS = {"-": "マイナス", "−": "マイナス", "+": "プラス", "第": "だい"}
_TAILS = {"目": "め", "間": "かん", "半": "はん"}
_END = r"(?![A-Za-z\d_%°]|[.,:]\d)"


class Grammar(BaseGrammar):
    def __init__(self, code: str, words: Words) -> None:
        super().__init__(code, words)
        self._counters = {
            written: (spoken, kind)
            for kind in _KINDS
            for pairs in (self.lists[f"counters {kind}".strip()],)
            for written, spoken in zip(pairs[::2], pairs[1::2], strict=True)
        }
        whole = self.lists["counted"]
        self._whole = dict(zip(whole[::2], whole[1::2], strict=True))
        """Number with its counter → a word that is irregular: 1人."""
        self._any = "|".join(sorted(self._counters, key=len, reverse=True))

    def count(self, number: int, counter: str, words: str = "") -> str:
        """Words of a number with its counter. `words` are the number's, if they are not its cardinal."""
        if (whole := self._whole.get(f"{number}{counter}")) and not words:
            return whole
        if counter == "分" and number % 10 == 4:
            return f"{self.cardinal(number)}ぷん"
        return _with(words or self.cardinal(number), *self._counters[counter])

    def counted(self, number: str, noun: Noun) -> str:
        """Words of a number with a unit: 30 min, 4 h."""
        counter = {"ふん": "分", "じかん": "時"}.get(noun.forms[0])
        if counter and number.isdigit():
            return self.count(int(number), counter) + "かん" * (counter == "時")
        return super().counted(number, noun)

    def decimals(self, whole: str, part: str) -> str:
        head = "れいてん" if whole == "0" else _with(self.cardinal(int(whole)), "てん", "t")
        return head + self.digits(part)

    def ordinal(self, number: int, ending: str = "") -> str:
        return f"{self.cardinal(number)}ばんめ"

    def year(self, number: int) -> str:
        return self.count(number, "年")

    def day(self, number: int, match: re.Match[str]) -> str:
        return "ついたち" if number == 1 else self.count(number, "日")

    def clock(self, hour: int, minute: int, marked: bool) -> str:
        return self.count(hour, "時") + (self.count(minute, "分") if minute else "")

    def digit_rules(self) -> Table:
        any_ = self._any
        number = r"(?P<n>\d{1,3}(?:,\d{3})+|\d{1,12})(?:\.(?P<part>\d+))?"
        self._count = number + rf"(?P<scale>[百千万億兆])?(?P<counter>{any_})?(?P<tail>間?[目半]?)"
        return (
            (Kind.DATE, rf"(\d{{1,2}})/(\d{{1,2}}){_END}", self._month_day),
            (Kind.FRACTION, rf"(\d+(?:\.\d+)?)/(5|10|20|100){_END}", self._out_of),
            (Kind.TIME, r"(?i)()(\d{1,2})(?:[:.](\d\d))?\s?([ap])\.?m(?![A-Za-z])\.?", self._half_day),
            (Kind.RANGE, rf"(\d{{1,4}})({any_})?\s?[-–—~～〜]\s?(\d{{1,4}})({any_})", self._from_to),
            (Kind.RANGE, rf"([1-8])[,、]([2-9])({any_})", self._or_one_more),
            (Kind.NUMBER, r"([1-9])つ", lambda m: self.lists["things"][int(m[1]) - 1]),
            (Kind.UNIT, rf"(?P<sign>(?<![A-Za-z\d.)])[-−+])?{self._count}(?<=\D)", self._counted),
        )

    def letter_rules(self) -> Table:
        return ((Kind.TIME, r"(?i)([ap])m\s?(\d{1,2})(?:[:時](\d\d)分?|時)?()(?!\d)", self._half_day),)

    def sign_rules(self) -> Table:
        limit = rf"(?<![\w)<>＜＞])([<>＜＞])(\d{{1,6}})({self._any}|[%％])?(?!\d|[.,]\d)"
        return (
            (Kind.NUMBER, rf"(?P<sign>第){self._count}", self._counted),
            (Kind.NUMBER, r"#(\d+)(?![A-Za-z\d])", lambda m: self.count(int(m[1]), "番")),
            (Kind.UNIT, limit, self._limit),
        )

    def _counted(self, match: re.Match[str]) -> str:
        """Read 100件, 3万人, 1.5万円, 第3回, 5人目."""
        number, part, scale = int(match["n"].replace(",", "")), match["part"], match["scale"]
        counter, words = match["counter"] or "", ""
        if part:
            words = self.decimals(str(number), part)
            words += re.sub("^い[ちっ]", "", self.cardinal(_SCALES[scale])) if scale else ""
        elif scale:
            number *= _SCALES[scale]
        if counter == "日" and number == 1 and before(match).endswith("月"):
            reading = self.day(1, match)
        else:
            reading = self.count(number, counter, words) if counter else words or self.cardinal(number)
        return _SIGNS.get(match["sign"] or "", "") + reading + "".join(_TAILS[c] for c in match["tail"])

    def _from_to(self, match: re.Match[str]) -> str:
        """Read 3〜5人, 20時〜22時."""
        first = int(match[1])
        words = self.count(first, match[2]) if match[2] else self.cardinal(first)
        return f"{words}から{self.count(int(match[3]), match[4])}"

    def _limit(self, match: re.Match[str]) -> str:
        """Read <5分."""
        if match[3] in ("%", "％"):
            words = f"{self.cardinal(int(match[2]))}パーセント"
        else:
            words = self.count(int(match[2]), match[3]) if match[3] else self.cardinal(int(match[2]))
        return f"{words}{'みまん' if match[1] in '<＜' else 'ちょう'}"

    def _or_one_more(self, match: re.Match[str]) -> str | None:
        """Read 2,3人."""
        is_next = int(match[2]) == int(match[1]) + 1
        return f"{self.cardinal(int(match[1]))}、{self.count(int(match[2]), match[3])}" if is_next else None

    def _half_day(self, match: re.Match[str]) -> str | None:
        half, hour, minute = (match[1] or match[4] or "").lower(), int(match[2]), int(match[3] or 0)
        if not half or hour > 12 or minute > 59:
            return None
        return ("ごぜん" if half == "a" else "ごご") + self.clock(hour, minute, True)

    def _month_day(self, match: re.Match[str]) -> str | None:
        month, day = int(match[1]), int(match[2])
        if not (1 <= month <= 12 and 1 <= day <= 31) or match[0] in self.signs.fractions:
            return None
        return self.count(month, "月") + self.day(day, match)

    def _out_of(self, match: re.Match[str]) -> str | None:
        """Read 8.5/10. The whole comes first."""
        is_rated = is_rating(match[1], match[2])
        return f"{self.spoken(match[2])}{self.signs.out_of}{self.spoken(match[1])}" if is_rated else None


def _with(words: str, word: str, kind: str) -> str:
    """Words of a number with the word of its counter, and the sound changes between them."""
    if kind in _SHORT:
        end = next((end for end in _SHORT[kind] if words.endswith(end)), "")
        return words.removesuffix(end) + _SHORT[kind].get(end, "") + word
    closing: tuple[str, ...] = {"": (), "s": _FEW, "t": _FEW}.get(kind, tuple(_CLOSED))
    end = next((end for end in closing if words.endswith(end)), "")
    if end:
        return words.removesuffix(end) + _CLOSED[end] + (word.translate(_PLOSIVE) if kind in "bp" else word)
    if kind in ("b", "p") and re.search("さん$|[せぜま]ん$", words):
        return words + word.translate(_VOICED if kind == "b" else _PLOSIVE)
    return words + word

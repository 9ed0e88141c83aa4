"""Chinese: its numbers, and the numbers that are words in chat: 666, 88, 233."""

from __future__ import annotations

import re
from decimal import Decimal

from appliance.text.languages.facets import Noun
from appliance.text.languages.grammar import Amount, BaseGrammar
from appliance.text.languages.quantity import DASH, NUMBER, roman
from appliance.text.languages.zh.numbers import chinese, chinese_digits
from appliance.text.spans import Kind, Table, before

_MEASURES = (
    "点个只位块次天夜年条本件张把句声秒分杯瓶台辆部场局首集层间人斤米元"
    "万千百亿岁小种名款支队轮倍帧升吨度枚颗粒遍趟双套包盒碗"
)
"""Measure words that make the two before them 两: 两个."""
_UNCOUNTED = "日号月楼级期届"
"""Measure words that leave the two before them 二."""
_NOT_COUNTED = rf"(?!\.?\d|[%°℃℉A-Za-z{_MEASURES}日号月])"
_LETTER_END = r"(?![A-Za-z\d_]|[.,:]\d|(?<=\d)/\d)"


class Grammar(BaseGrammar):
    def year(self, number: int) -> str:
        return f"{chinese_digits(str(number))}年"

    def clock(self, hour: int, minute: int, marked: bool, second: int = 0) -> str:
        words = f"{self.spoken(str(hour), 'two')}点"
        if minute == 30 and not second:
            return f"{words}半"
        if minute or second:
            words += f"{'零' if minute < 10 else ''}{chinese(minute)}分"
        return words + (f"{chinese(second)}秒" if second else "")

    def capitals(self, match: re.Match[str], shouted: bool) -> tuple[Kind, str] | None:
        """Words of Roman numerals. Other capitals stay as written."""
        after_han, word = before(match, 1) >= "\u4e00", match[0]
        if re.fullmatch(r"(?=[IVX]{2,})X{0,3}(?:IX|IV|V?I{0,3})", word) and (
            after_han or word in ("III", "VIII")
        ):
            return Kind.ROMAN, chinese(roman(word))
        letter = match.string[match.start() : match.end() + 1]
        is_spelt = re.match(r"(?:X{1,4}[SL]|A{3,4}(?=[级大游]))(?![A-Za-z])", letter)
        return (Kind.ACRONYM, " ".join(word)) if is_spelt else None

    def measured(self, amount: Amount, match: re.Match[str]) -> Amount | None:
        """Tell which unit a letter is.

        3A is a class of games, the 65W of a charger is not 650,000, and 3天-5折 is not a range.
        """
        text, groups = match.string, match.groupdict()
        if groups.get("unit_a") and not (groups["unit_b"] or groups["before_b"]):
            return None
        if amount.sign == "A" and not self.words.patterns["current"].search(text):
            return None
        around = before(match, 8) + text[match.end() : match.end() + 6]
        if amount.scale in ("k", "K") and (thousands := Decimal(amount.number)) >= 10:
            return Amount(f"{(thousands * 1_000).normalize():f}", "", amount.sign)
        if amount.scale == "W" and not amount.sign and self.words.patterns["watts"].search(around):
            return Amount(amount.number, "", "瓦")
        return amount

    def bare(self, match: re.Match[str]) -> str | tuple[Kind, str]:
        number, after = self.plain(match["number"]), match.string[match.end() : match.end() + 1]
        words = self.spoken(number, "two" if after and after in _MEASURES else "")
        return self.signed(match, words)

    def counted(self, number: str, noun: Noun) -> str:
        name = noun.forms[0]
        if name == "百分之":
            return f"{name}{'百' if number == '100' else self.spoken(number)}"
        return f"{self.spoken(number) if name in _UNCOUNTED else self.spoken(number, 'two')}{name}"

    def negative(self, match: re.Match[str]) -> str:
        groups = match.groupdict()
        is_cold = (groups.get("unit") or groups.get("unit_b") or "")[:1] in ("°", "℃")
        return ("" if before(match, 2) == "零下" else "零下") if is_cold else self.signs.minus

    def in_code(self, digits: str, code: str) -> str:
        """Words of digits in a code. One or two digits are read as a number."""
        is_number = len(digits) <= 2 and digits[0] != "0" and re.fullmatch(r"[^\d_]*\d+[^\d_]*", code)
        return self.spoken(digits) if is_number else self.digits(digits)

    def grouped(self, text: str) -> str:
        return self.digits(text)

    def digit_rules(self) -> Table:
        hour = r"(?P<hour>\d{1,2})"
        time = rf"{hour}[:：](?P<minute>\d{{2}})(?:[:：](?P<second>\d{{2}}))?{_LETTER_END}"
        half = rf"(?i){hour}(?:[:：.](?P<minute>\d{{2}}))?(?:[:：](?P<second>\d{{2}}))?"
        half += r"\s?(?P<half>[ap])\.?m(?![A-Za-z])\.?"
        percents = (
            rf"(?P<sign>(?<![A-Za-z\d.)）])[-−+])?(?P<number>{NUMBER})\s?(?P<each>[%％])?{DASH}"
            rf"(?P<minus>[-−])?(?P<last>{NUMBER})\s?[%％]{_LETTER_END}(?!\s?=|-\d)"
        )
        emergency = "|".join(self.lists["emergency"])
        slash = rf"(?!0\d\d|(?:\d+/)?(?:19|20)\d\d(?!\d))(\d{{1,4}})/(\d{{1,4}}){_LETTER_END}"
        return (
            (Kind.LAUGHTER, rf"233+(?!\.?\d|[%{_MEASURES}号])", self._laughter),
            (Kind.PHONE, rf"(?:{emergency}){_NOT_COUNTED}", self._emergency),
            (Kind.YEAR, r"(\d{2})年", self._two_digit_year),
            (Kind.TIME, half, self._clock),
            (Kind.TIME, time, self._clock),
            (Kind.RANGE, percents, self._percents),
            (Kind.FRACTION, slash, self._slash),
        )

    def _laughter(self, match: re.Match[str]) -> str | None:
        earlier = before(match)
        is_word = not earlier.strip() or not earlier[-1].isalnum() or self.is_after("laughing", match)
        return "哈哈哈" if not self.is_after("counted", match) and (len(match[0]) > 3 or is_word) else None

    def _emergency(self, match: re.Match[str]) -> str | None:
        is_counted = self._is_counted(match) or bool(self.is_before("noun", match))
        is_counted = is_counted and not self.is_after("dialled", match)
        return None if is_counted else chinese_digits(match[0]).replace("一", "幺")

    def _two_digit_year(self, match: re.Match[str]) -> str | None:
        """Read 86年 as the year 1986. None for 86 years."""
        digits, text = match[1], match.string
        after = text[match.end() : match.end() + 4]
        if re.match(r"\d{1,2}月|(?:出?生|的冬|的夏|的春|的秋)", after) or digits[0] == "0":
            return f"{chinese_digits(digits)}年"
        if (
            self.words.patterns["long ago"].match(after)
            or self.is_after("so long", match)
            or digits[1] == "0"
            or int(digits) < 30
        ):
            return None
        return f"{chinese_digits(digits)}年"

    def _lasting(self, hours: int, minutes: int, seconds: int) -> str:
        """Words of a duration: 倒计时00:45, 速通2:30:15."""
        parts = ((hours, "小时"), (minutes, "分" if seconds else "分钟"), (seconds, "秒"))
        return "".join(f"{self.spoken(str(n), 'two')}{name}" for n, name in parts if n) or "零秒"

    def _clock(self, match: re.Match[str]) -> str | None:
        groups = match.groupdict()
        hour, minute, second = (int(groups.get(name) or 0) for name in ("hour", "minute", "second"))
        if hour > 24 or minute > 59 or second > 59:
            return None
        half = {"a": "上午", "p": "下午"}.get((groups.get("half") or "").lower(), "")
        if not half and self.is_after("lasting", match):
            return self._lasting(*(hour, minute, second) if groups.get("second") else (0, hour, minute))
        return ("" if self.is_after("halves", match) else half) + self.clock(hour, minute, False, second)

    def _percents(self, match: re.Match[str]) -> str:
        """Read 5%-10%, 5-10%."""
        a, b = self.plain(match["number"]), self.plain(match["last"])
        is_each = match["each"] or match["minus"]
        last = f"{'负' if match['minus'] else ''}{self.in_unit(b, '%') if is_each else self.spoken(b)}"
        return self.signed(match, f"{self.in_unit(a, '%')}到{last}")

    def _slash(self, match: re.Match[str]) -> str:
        a, b, after = int(match[1]), int(match[2]), match.string[match.end() : match.end() + 1]
        if a < b and (b <= 10 or after == "的"):
            return f"{chinese(b)}分之{chinese(a)}"
        if 1 <= a <= 12 and 1 <= b <= 31:
            return f"{chinese(a)}月{chinese(b)}日"
        return f"{chinese(a)}比{chinese(b)}"

    def _is_counted(self, match: re.Match[str]) -> bool:
        """True if the word before shows that the number counts something: 涨粉, but not 房间号."""
        return self.is_after("counted", match) and not self.is_after("named", match)

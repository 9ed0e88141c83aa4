"""Numbers and signs of chat in Chinese words: `speak` applies RULES."""

from __future__ import annotations

import re
from collections.abc import Callable

from appliance.text.numbers import LONGEST, chinese, chinese_decimal, chinese_digits
from appliance.text.rewrite import Rewriting

_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_START = r"(?<![A-Za-z\d.,:/$€£¥%-])"
_END = r"(?![A-Za-z\d%°]|[.,:/]\d)"
_MEASURES = "点个只位块次天年条本件张把句声秒分杯瓶台辆部场局首集层楼间人斤米元万千百亿岁"
_CURRENCIES = {"$": "美元", "€": "欧元", "£": "英镑", "¥": "元", "￥": "元"}
_UNITS = {
    "kg": "公斤",
    "g": "克",
    "km": "公里",
    "cm": "厘米",
    "mm": "毫米",
    "m": "米",
    "km/h": "公里每小时",
    "fps": "帧",
    "ms": "毫秒",
    "s": "秒",
    "min": "分钟",
    "h": "小时",
    "hz": "赫兹",
}
_WORDS = {
    "666": "六六六",
    "888": "八八八",
    "520": "五二零",
    "1314": "一三一四",
    "996": "九九六",
    "007": "零零七",
}
"""Numbers that are words in chat."""


def digit(character: str) -> str:
    """A digit within a word."""
    return chinese_digits(character)


def number(plain: str, ordinal: bool) -> str:
    """A cardinal or ordinal number without separators."""
    return f"第{chinese(int(plain))}" if ordinal else _plain(plain)


def _plain(number: str) -> str:
    """A number; digit by digit if it is long or begins with 0."""
    digits = number.lstrip("-")
    if len(digits.partition(".")[0].replace(",", "")) > LONGEST or (
        digits[0] == "0" and digits.isdigit() and len(digits) > 1
    ):
        return chinese_digits(digits)
    return chinese_decimal(number)


def _quantity(number: str) -> str:
    """Read a number as before a measure word, where two is 两."""
    return "两" if number == "2" else chinese_decimal(number)


def _iso_date(match: re.Match[str]) -> str | None:
    year, month, day = match.groups()
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    return f"{chinese_digits(year)}年{chinese(int(month))}月{chinese(int(day))}日"


def _clock(hour: str, minute: str, half: str = "") -> str | None:
    if int(hour) > 24 or int(minute) > 59:
        return None
    part = {"a": "上午", "p": "下午"}.get(half.lower(), "")
    words = f"{part}{_quantity(str(int(hour)))}点"
    if not int(minute):
        return words
    if int(minute) == 30:
        return f"{words}半"
    return f"{words}{'零' if int(minute) < 10 else ''}{chinese(int(minute))}分"


def _points(version: str) -> str:
    return "点".join(chinese(int(p)) if len(p) <= 3 else chinese_digits(p) for p in version.split("."))


def _money(match: re.Match[str]) -> str:
    scale = {"k": "千", "w": "万", "万": "万"}.get((match[3] or "").lower(), "")
    return f"{_quantity(match[2])}{scale}{_CURRENCIES[match[1]]}"


def _phone(match: re.Match[str]) -> str | None:
    return chinese_digits(match[0]) if sum(c.isdigit() for c in match[0]) >= 9 else None


def _unit(match: re.Match[str]) -> str | None:
    if match[2] in ("G", "M"):
        return None
    return f"{_quantity(match[1])}{_UNITS[match[2].lower()]}"


def _scaled(match: re.Match[str]) -> str | None:
    shown = match[2] == "K" or re.match("画质|屏|分辨率|视频", match.string[match.end() :])
    if shown and match[2] in "kK" and match[1] in ("2", "4", "8"):
        return f"{chinese_decimal(match[1])}K"
    return f"{_quantity(match[1])}{'千' if match[2] in 'kK' else '万'}"


def _range(match: re.Match[str]) -> str:
    a, b = match[1], match[2]
    if a.isdigit() and b.isdigit() and (int(a) == 0 or int(b) == 0 or int(a) > int(b)):
        return f"{_plain(a)}比{_plain(b)}"
    return f"{_plain(a)}到{_plain(b)}"


def _slash(match: re.Match[str]) -> str:
    a, b = int(match[1]), int(match[2])
    if a < b <= 10:
        return f"{chinese(b)}分之{chinese(a)}"
    if 1 <= a <= 12 and 1 <= b <= 31:
        return f"{chinese(a)}月{chinese(b)}日"
    return f"{chinese(a)}比{chinese(b)}"


RULES: tuple[tuple[str, str, str | Callable[[re.Match[str]], str | None]], ...] = (
    ("sign", r"\s?²", "平方"),
    ("sign", r"\s?³", "立方"),
    ("range", r"(?<=\d[:：]\d\d)\s?[-–~～]\s?(?=\d{1,2}[:：]\d\d)", "到"),
    ("laughter", rf"{_START}23{{2,}}(?![\d元块个人.%])", "哈哈哈"),
    ("goodbye", r"(?<![\d.])88(?=$|[。！!~，,\s])", "拜拜"),
    (
        "number",
        rf"{_START}(6{{3,}}|8{{3,}}|520|1314|996|007)(?![\d.%A-Za-z元块个])",
        lambda m: _WORDS.get(m[1]) or chinese_digits(m[1][:3]),
    ),
    (
        "name",
        r"(?:QQ|微信|群|号|ID|房间|拨打|报警)[是为:：]?\s?(\d{3,})(?![\d-])",
        lambda m: m[0].replace(m[1], chinese_digits(m[1])),
    ),
    ("date", rf"{_START}(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){_END}", _iso_date),
    ("date", r"(?<!\d)(\d{4})年", lambda m: f"{chinese_digits(m[1])}年"),
    ("date", r"(?<!\d)(\d{2})(?=后(?!面|来|天|退))", lambda m: chinese_digits(m[1])),
    (
        "time",
        rf"{_START}(\d{{1,2}})[:：](\d{{2}})(?:[:：]\d{{2}})?\s?([ap])\.?m(?![A-Za-z])",
        lambda m: _clock(m[1], m[2], m[3]),
    ),
    ("time", rf"{_START}(\d{{1,2}})\s?([ap])m(?![A-Za-z])", lambda m: _clock(m[1], "0", m[2])),
    ("time", rf"{_START}(\d{{1,2}})[:：](\d{{2}}){_END}", lambda m: _clock(m[1], m[2])),
    ("score", rf"{_START}(\d+)[:：比](\d+){_END}", lambda m: f"{_plain(m[1])}比{_plain(m[2])}"),
    ("version", r"(?<![A-Za-z\d.])v\.?(\d+(?:\.\d+)*)(?=版)", lambda m: _points(m[1])),
    ("version", rf"(?<![A-Za-z\d.])v\.?(\d+(?:\.\d+)*){_END}", lambda m: f"版本{_points(m[1])}"),
    ("version", rf"{_START}(\d+(?:\.\d+){{2,}}){_END}", lambda m: _points(m[1])),
    ("phone", rf"{_START}(?:1\d{{10}}|0\d{{6,}}){_END}", lambda m: chinese_digits(m[0])),
    ("phone", rf"{_START}\d{{3,4}}(?:[ -]\d{{3,8}}){{1,2}}{_END}", _phone),
    ("money", rf"([$€£¥￥])\s?({_NUMBER})([kw万])?", _money),
    ("money", rf"{_START}({_NUMBER})([$€£])", lambda m: f"{_quantity(m[1])}{_CURRENCIES[m[2]]}"),
    ("percent", rf"{_START}100\s?[%％]", "百分之百"),
    (
        "percent",
        rf"(-?)({_NUMBER})\s?[%％]",
        lambda m: f"{'负' if m[1] else ''}百分之{chinese_decimal(m[2])}",
    ),
    (
        "unit",
        rf"(-?)({_NUMBER})\s?(?:°\s?C|℃)",
        lambda m: f"{'零下' if m[1] else ''}{chinese_decimal(m[2])}摄氏度",
    ),
    ("unit", rf"(-?)({_NUMBER})\s?°", lambda m: f"{'零下' if m[1] else ''}{chinese_decimal(m[2])}度"),
    ("unit", rf"{_START}(\d{{3,4}})p(?![A-Za-z])", lambda m: f"{chinese_digits(m[1])}P"),
    ("unit", rf"{_START}({_NUMBER})\s?({'|'.join(_UNITS)})(?![A-Za-z/])", _unit),
    ("number", rf"{_START}({_NUMBER})([kw])(?![A-Za-z])", _scaled),
    ("unit", rf"{_START}(\d)米(\d{{2}})(?!\d)", lambda m: f"{_quantity(m[1])}米{chinese_digits(m[2])}"),
    ("sign", r"(?<=\d)\s?-\s?(?=\d+\s?=)", "减"),
    ("sign", r"(?<![A-Za-z])([CF])#", r"\1井"),
    ("range", rf"{_START}({_NUMBER})\s?[-–~～]\s?({_NUMBER}){_END}", _range),
    ("fraction", rf"{_START}(\d{{1,2}})/(\d{{1,2}}){_END}", _slash),
    ("number", r"第(\d+)", lambda m: f"第{_plain(m[1])}"),
    ("sign", r"(?<![A-Za-z\d])\+(\d+)", lambda m: f"加{_plain(m[1])}"),
    ("sign", r"(?<![A-Za-z])\s?[x×*]\s?(\d+)(?![A-Za-z\d])", lambda m: f"乘{_plain(m[1])}"),
    ("sign", r"\s?\+\s?(?=\d)", "加"),
    ("number", rf"{_START}2(?=[{_MEASURES}])", "两"),
    ("number", rf"(?<![\d.A-Za-z])-?{_NUMBER}(?![\d])", lambda m: _plain(m[0])),
    ("sign", r"\s?=\s?", "等于"),
    ("sign", r"\s?&\s?", "和"),
    ("sign", r"\s?\+\s?", "加"),
)
"""Kind of change, pattern, replacement; applied in order, since later rules match what earlier ones leave."""


def speak(text: Rewriting) -> None:
    """Rewrite the numbers and signs of a text."""
    for kind, pattern, to in RULES:
        text.sub(kind, pattern, to)

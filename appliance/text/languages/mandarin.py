"""Chinese: the words of numbers and signs."""

from __future__ import annotations

import re

from appliance.text.languages import quantity
from appliance.text.languages.numbers import chinese, chinese_decimal, chinese_digits, is_code, roman
from appliance.text.languages.quantity import DASH, END, NUMBER, Quantity
from appliance.text.spans import Kind, Language, Readings, before

_MEASURES = (
    "点个只位块次天夜年条本件张把句声秒分杯瓶台辆部场局首集层间人斤米元"
    "万千百亿岁小种名款支队轮倍帧升吨度枚颗粒遍趟双套包盒碗"
)
"""Measure words after which two is 两: 两个."""
_CURRENCIES = {
    "$": "美元",
    "US$": "美元",
    "HK$": "港元",
    "C$": "加元",
    "A$": "澳元",
    "NZ$": "新西兰元",
    "R$": "雷亚尔",
    "€": "欧元",
    "£": "英镑",
    "¥": "元",
    "￥": "元",
    "₹": "卢比",
    "₩": "韩元",
    "₽": "卢布",
    "₫": "越南盾",
    "₺": "里拉",
    "₱": "比索",
    "₿": "比特币",
}
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
    "ml": "毫升",
    "mbps": "兆每秒",
    "gbps": "G每秒",
    "kb/s": "K每秒",
    "mb/s": "兆每秒",
    "gb/s": "G每秒",
    "tb/s": "T每秒",
    "mbit/s": "兆每秒",
    "km/s": "公里每秒",
    "m/s": "米每秒",
    "rpm": "转每分钟",
    "mg": "毫克",
    "l": "升",
    "m2": "平方米",
    "km2": "平方公里",
    "cm2": "平方厘米",
    "m3": "立方米",
    "gw": "吉瓦",
    "kwh": "度",
    "mah": "毫安时",
    "khz": "千赫",
    "mhz": "兆赫",
    "ghz": "吉赫",
    "db": "分贝",
    "px": "像素",
    "kcal": "千卡",
    "¢": "美分",
    "º": "度",
    "°f": "华氏度",
    "° f": "华氏度",
    "℉": "华氏度",
    "°c": "摄氏度",
    "° c": "摄氏度",
    "℃": "摄氏度",
    "°": "度",
    "x": "倍",
    "$": "美元",
    "€": "欧元",
    "£": "英镑",
    "%": "",
    "％": "",
    **{
        measure: measure
        for measure in "日号月年天点个只位块次条本件张把句秒分杯瓶台辆部场局首集层楼间"
        "人斤米元岁级期届帧升吨度枚颗"
    },
}
_CASED_UNITS = {
    "V": "伏",
    "A": "安",
    "Wh": "瓦时",
    "Ah": "安时",
    "kW": "千瓦",
    "MW": "兆瓦",
    "mA": "毫安",
} | {
    "kV": "千伏",
    "nm": "纳米",
}
_SCORE_BEFORE, _SCORE_AFTER = (
    re.compile(r"(?:比分|总分|大比分)(?:是|为)?\s?$"),
    re.compile("落后|领先|战平|惜败|告负|不敌|战胜|取胜"),
)
_CURRENT = re.compile(r"\d\s?[VW](?![A-Za-z])|电|充|输出")
"""In a line with amps: 3A is otherwise a class of games."""
_WATTS = re.compile("充电|快充|闪充|功率|功耗|电源|显卡|适配器|充电器|灯泡|瓦|输出|TDP")
"""Words that make 65W no 650,000."""
_RATES = dict(
    zip(
        str.split("s sec min h m2 km2 m3 kg g km m l kwh gb"),
        str.split("秒 秒 分钟 小时 平方米 平方公里 立方米 公斤 克 公里 米 升 度 G"),
        strict=True,
    )
)
_RATED = (
    "秒|小时|分钟?|天|日|周|月|年|晚|平方米|平米|平方|平|公斤|千克|斤|吨|公里|升|度|人|个|次|只|件"
    "|张|位|条|瓶|杯|台|股|局|场|集|首|套|份|本|盒|包"
)
"""Denominators of rates, after the /."""
_SCALES = {"k": "千", "w": "万", "万": "万", "千": "千", "亿": "亿", "百": "百"}
_CLAUSE_START = r"(?<![^\s，。！？；、,.!?~～])"
_CLAUSE_END = r"(?=$|[\s，。！？；、,.!?~～])"
_LEAVING = re.compile(
    r"(?:走|溜|下|睡|撤|闪|再见|晚安|大家|各位|先|去|见|休息|下播|下线|家人们?|兄弟|朋友|老铁|睡觉|主播|宝|们|拜)"
    r"[了啦咯吧]?[~～，, ]?$"
)
_COUNTED = re.compile(
    r"(?:考|得|花|充|打赏|涨粉|涨|等级|级|有|共|到|差|用|值|卖|买|送|刷|赢|输|剩|第|超|破|满|达|约|近|才|只|价格?|号|是|为|分|粉)[了过到]?\s?$"
)
_LAUGHING = re.compile(r"(?:笑|哈|乐|死我?了?|[啊呀吧草艹嘛呢了])$")
_NAMED = re.compile(
    r"(?:QQ|微信|群|号|ID|房间|拨打|报警|电话|热线|编号|验证码|密码|番号|邮编|车次|住在|教室)[是为:：]*\s?$",
    re.I,
)
_DIALLED = re.compile(r"(?:打(?!赏|[了出到])|拨|呼叫|报警|求助|热线|电话)[^，。！？,.!?]*$")
_EMERGENCY = ("110", "119", "120", "122", "114")
_SERVICES = (
    "12306",
    "12315",
    "12345",
    "12320",
    "12123",
    "12580",
    "10086",
    "10010",
    "10000",
    "10001",
    "95588",
    "95555",
    "95533",
)
_SALES = ("618", "315", "5201314", "1314520", "520", "521", "1314", "996", "007", "404")
"""Numbers that are names."""
_NOT_COUNTED = rf"(?![\d.%A-Za-z{_MEASURES}日号月])"
_LONG_AGO = re.compile(r"(?:前|后|来|间|之|多|以|了|内|里|级|半|期|时)")
_SO_LONG = re.compile(r"(?:了|过|近|约|满|第|整整|已|达|这|那|有|长达|超过|每|用|花|等|刑|个)$")
_HALVES = re.compile(r"(?:上午|下午|晚上|早上|中午|凌晨|傍晚|今晚|明晚)\s?$")


def digit(character: str) -> str:
    return chinese_digits(character)


def number(plain: str, ordinal: bool) -> str:
    return f"第{chinese(int(plain))}" if ordinal else _plain(plain)


def _plain(number: str) -> str:
    """A number; digit by digit if `is_code`."""
    return chinese_digits(number) if is_code(number) else chinese_decimal(number)


def _counted(number: str) -> str:
    return "两" if number == "2" else _plain(number)


# Numbers that are words.


def _laughter(match: re.Match[str]) -> str | None:
    earlier = before(match)
    if _COUNTED.search(earlier):
        return None
    return (
        "哈哈哈"
        if len(match[0]) > 3 or not earlier.strip() or not earlier[-1].isalnum() or _LAUGHING.search(earlier)
        else None
    )


def _goodbye(match: re.Match[str]) -> str | None:
    earlier = before(match)
    return (
        "拜拜" if not earlier.strip() or earlier[-1] in "，。！？,.!? ~" or _LEAVING.search(earlier) else None
    )


def _is_counted(match: re.Match[str]) -> bool:
    """True if the word before counts with the number, as 涨粉 does and 房间号 does not."""
    earlier = before(match)
    return bool(_COUNTED.search(earlier)) and not _NAMED.search(earlier)


def _repeated(match: re.Match[str]) -> tuple[Kind, str] | None:
    """666 as praise: three digits; 8888: each, unless something is counted with it."""
    earlier = before(match)
    if match[0][:4] == "6666" and not (earlier.strip() and earlier[-1].isalnum()):
        return Kind.REPEAT, chinese_digits("666")
    return None if _is_counted(match) else (Kind.NUMBER, chinese_digits(match[0]))


def _emergency(match: re.Match[str]) -> str | None:
    is_counted = _is_counted(match) and not _DIALLED.search(before(match))
    return None if is_counted else chinese_digits(match[0]).replace("一", "幺")


def _named_number(match: re.Match[str]) -> str | None:
    return chinese_digits(match[0]) if _NAMED.search(before(match)) else None


def _known_number(match: re.Match[str]) -> str | None:
    return None if _COUNTED.search(before(match)) else chinese_digits(match[0])


# Dates and times.


def _date(match: re.Match[str]) -> str | None:
    year, month, day = match.groups()
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    return f"{chinese_digits(year)}年{chinese(int(month))}月{chinese(int(day))}日"


def _two_digit_year(match: re.Match[str]) -> str | None:
    """86年: of 1986, or 86 years."""
    digits, text = match[1], match.string
    after = text[match.end() : match.end() + 4]
    if re.match(r"\d{1,2}月|(?:出?生|的冬|的夏|的春|的秋)", after) or digits[0] == "0":
        return f"{chinese_digits(digits)}年"
    if _LONG_AGO.match(after) or _SO_LONG.search(before(match)) or digits[1] == "0" or int(digits) < 30:
        return None
    return f"{chinese_digits(digits)}年"


def _years(match: re.Match[str]) -> str | None:
    a, b = match[1], match[2]
    return f"{chinese_digits(a)}到{chinese_digits(b)}" if int(a) < int(b) else None


def _clock(match: re.Match[str]) -> str | None:
    groups = match.groupdict()
    hour, minute, second = (int(groups.get(name) or 0) for name in ("hour", "minute", "second"))
    half = (groups.get("half") or "").lower()
    if hour > 24 or minute > 59 or second > 59:
        return None
    part = "" if _HALVES.search(before(match)) else {"a": "上午", "p": "下午"}.get(half, "")
    words = f"{part}{_counted(str(hour))}点"
    if minute == 30 and not second:
        return f"{words}半"
    if minute or second:
        words += f"{'零' if minute < 10 else ''}{chinese(minute)}分"
    return words + (f"{chinese(second)}秒" if second else "")


def _points(version: str) -> str:
    return "点".join(_plain(part) for part in version.split("."))


def _phone(match: re.Match[str]) -> str | None:
    return chinese_digits(match[0]) if sum(c.isdigit() for c in match[0]) >= 9 else None


# Quantities.


def _said(read: Quantity) -> str:
    unit, scale = read.unit.lower(), _SCALES.get(read.scale.lower(), "")
    number = read.number
    if unit in ("%", "％"):
        return "百分之百" if number == "100" else f"百分之{_plain(number)}"
    name = _CASED_UNITS.get(read.unit) or _UNITS.get(unit.replace("^", ""), "")
    is_counted = bool(scale or read.currency or (unit and (name != unit or unit in _MEASURES)))
    words = f"{_counted(number) if is_counted else _plain(number)}{scale}"
    return words + (_CURRENCIES.get(read.currency) or name)


def _quantity(match: re.Match[str]) -> tuple[Kind, str] | None:
    read, text = quantity.read(match), match.string
    if not (read.currency or read.unit or read.scale) or read.unit in ("G", "M"):
        return None
    if read.unit == "A" and not _CURRENT.search(text):
        return None
    around = before(match, 8) + text[match.end() : match.end() + 6]
    if read.scale == "W" and not read.unit and _WATTS.search(around):
        return Kind.UNIT, f"{_counted(read.number)}瓦"
    of_screen = read.scale == "K" or (
        read.scale == "k" and re.match("画质|屏|分辨率|视频", text[match.end() :])
    )
    if of_screen and read.number in ("2", "4", "8"):
        return read.kind, f"{chinese_decimal(read.number)}K"
    if read.unit == "年" and re.fullmatch(r"\d{4}", read.number):
        return Kind.YEAR, f"{chinese_digits(read.number)}年"
    cold = read.unit and read.unit[0] in "°℃"
    sign = {"-": _below_zero(read), "−": _below_zero(read), "+": "加"}.get(match["sign"] or "", "")
    if cold and before(match, 2) == "零下":
        sign = ""
    return read.kind, sign + _said(read)


def _below_zero(read: Quantity) -> str:
    return "零下" if read.unit[:1] in ("°", "℃") else "负"


def _range(match: re.Match[str]) -> str | None:
    a, b = quantity.read(match, "_a"), quantity.read(match, "_b")
    if not quantity.alike(a, b):
        return None
    is_bare = not (a.unit or b.unit or a.currency or b.currency) and (a.number + b.number).isdigit()
    is_score = _SCORE_BEFORE.search(before(match)) or _SCORE_AFTER.match(match.string, match.end())
    is_falling = is_bare and (int(a.number) == 0 or int(b.number) == 0 or int(a.number) > int(b.number))
    if is_falling or (is_bare and is_score):
        return f"{_plain(a.number)}比{_plain(b.number)}"
    if a.unit in ("%", "％"):
        return f"{_said(a)}到{_said(b)}"
    if b.unit in ("%", "％"):
        return f"百分之{_plain(a.number)}到{_plain(b.number)}"
    if b.unit == "年" and all(re.fullmatch(r"\d{4}|[3-9]\d", side.number) for side in (a, b)):
        return f"{chinese_digits(a.number)}{a.unit}到{chinese_digits(b.number)}年"
    first = Quantity(a.number, "", a.scale, a.unit if a.unit in _MEASURES or a.unit in "日号月" else "")
    second = Quantity(b.number, a.currency or b.currency, b.scale, b.unit)
    signs = (_below_zero(b) if match["sign"] in ("-", "−") else "", _below_zero(b) if match["minus"] else "")
    return f"{signs[0]}{_said(first)}到{signs[1]}{_said(second)}"


def _score(match: re.Match[str]) -> str | None:
    """12/3/8, 7-2-11"""
    groups = re.findall(r"\d+", match[0])
    return "，".join(map(_plain, groups)) if sum(map(len, groups)) < 9 else None


def _rate(match: re.Match[str]) -> str | None:
    """The part of a rate after its number: /秒"""
    is_rate = re.search(quantity.RATED, before(match))
    return f"每{_RATES.get(match[1].lower().replace('^', ''), match[1])}" if is_rate else None


def _dotted(match: re.Match[str]) -> str | None:
    """A version or address; None for a number in groups: 2.300.000.000."""
    is_number = re.fullmatch(r"[1-9]\d{0,2}(?:\.\d{3}){2,}", match[1])
    is_address = match[1].count(".") == 3 and quantity.is_address(match)
    return None if is_number and not is_address else _points(match[1])


def _slash(match: re.Match[str]) -> str:
    a, b, after = int(match[1]), int(match[2]), match.string[match.end() : match.end() + 1]
    if a < b and (b <= 10 or after == "的"):
        return f"{chinese(b)}分之{chinese(a)}"
    if 1 <= a <= 12 and 1 <= b <= 31:
        return f"{chinese(a)}月{chinese(b)}日"
    return f"{chinese(a)}比{chinese(b)}"


def _code(match: re.Match[str]) -> str:
    """One or two digits at the end are a number."""
    parts = re.findall(r"[^\W\d_]+|\d+(?:\.\d+)*|_+", match[0])
    groups = sum(part[0].isdigit() for part in parts)
    said = ""
    for part in parts:
        if part[0] == "_":
            said += " "
        elif not part[0].isdigit():
            said += part
        elif "." in part:
            is_decimal = match[0][0].isdigit() and part.count(".") == 1
            said += chinese_decimal(part) if is_decimal else _points(part)
        elif groups == 1 and "_" not in match[0] and len(part) <= 2 and part[0] != "0":
            said += _plain(part)
        else:
            said += chinese_digits(part)
    return said


def _hexadecimal(match: re.Match[str]) -> str:
    return "零x" + "".join(chinese_digits(c) or c for c in match[1])


def _number(match: re.Match[str]) -> str:
    plain = quantity.plain(match["number"])
    sign = {"-": "负", "−": "负", "+": "加"}.get(match["sign"] or "", "")
    after = match.string[match.end() : match.end() + 1]
    return sign + (_counted(plain) if after and after in _MEASURES else _plain(plain))


_SIGN = r"(?P<sign>(?<![A-Za-z\d.)）])[-−+])?"
_LETTER_END = r"(?![A-Za-z\d_]|[.,:]\d|(?<=\d)/\d)"
_PART_OF_DAY = "(?:上午|下午|晚上|早上|凌晨|中午|傍晚|次日|第二天|明天|今晚|明早)"
_RATE_SIGNS = quantity.units_pattern(_RATES)
_Q, _A, _B = (quantity.pattern(suffix, _SCALES, _UNITS, _CASED_UNITS) for suffix in ("", "_a", "_b"))

NUMBERS = Readings(
    (
        (Kind.LAUGHTER, rf"233+(?![\d.%{_MEASURES}号])", _laughter),
        (
            Kind.GOODBYE,
            rf"8{{2,}}(?<!888){_CLAUSE_END}|{_CLAUSE_START}88(?=[了啦咯]|家人|大家|各位)",
            _goodbye,
        ),
        (Kind.CODE, r"(\d{3,4})(?=房间|室(?!友)|宿舍|号房|教室)", lambda m: chinese_digits(m[1])),
        (
            Kind.TIME,
            r"(?i)(\d{1,2})h(\d{1,2})(?:m(?:in)?)?(?![a-z\d])",
            lambda m: f"{_counted(m[1])}小时{_plain(m[2])}分",
        ),
        (Kind.SCORE, r"\d{1,3}(?:/\d{1,3}){2}(?![\d/])|\d{1,3}(?:-\d{1,3}){2,4}(?![\d-]|\s?=)", _score),
        (Kind.NUMBER, rf"(?:6{{3,}}|8{{3,}}){_NOT_COUNTED}", _repeated),
        (Kind.PHONE, rf"(?:{'|'.join(_EMERGENCY)}){_NOT_COUNTED}", _emergency),
        (Kind.CODE, rf"(?:{'|'.join((*_SALES, *_SERVICES))}){_NOT_COUNTED}", _known_number),
        (Kind.CODE, r"\d{3,}(?![\d-])", _named_number),
        (
            Kind.DATE,
            r"(\d{1,2})·(\d{1,2})(?!\d)|3[ .]15(?=晚会|维权|打假|消费)",
            lambda m: chinese_digits(m[0]),
        ),
        (Kind.CODE, r"0[xX]([0-9A-Fa-f]+)(?!\w)", _hexadecimal),
        (Kind.DATE, rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){END}", _date),
        (
            Kind.YEAR,
            rf"((?:19|20)\d\d){DASH}((?:19|20)\d\d)(?=年|赛季|学年|财年|届|级|[^\d{_MEASURES}.%A-Za-z])",
            _years,
        ),
        (
            Kind.YEAR,
            rf"(\d{{4}})年{DASH}(\d{{4}})年",
            lambda m: f"{chinese_digits(m[1])}年到{chinese_digits(m[2])}年",
        ),
        (Kind.YEAR, r"(\d{4})年", lambda m: f"{chinese_digits(m[1])}年"),
        (Kind.YEAR, r"(\d{2})年", _two_digit_year),
        (Kind.YEAR, r"(\d{2})(?=后(?!面|来|天|退))", lambda m: chinese_digits(m[1])),
        (
            Kind.TIME,
            r"(?i)(?P<hour>\d{1,2})(?:[:：.](?P<minute>\d{2}))?(?:[:：](?P<second>\d{2}))?\s?(?P<half>[ap])\.?m(?![A-Za-z])\.?",
            _clock,
        ),
        (
            Kind.TIME,
            rf"(?P<hour>\d{{1,2}})[:：](?P<minute>\d{{2}})(?:[:：](?P<second>\d{{2}}))?{_LETTER_END}",
            _clock,
        ),
        (
            Kind.TIME,
            r"(\d{1,3})[′'](\d{1,2})(?:[″\"]|'')",
            lambda m: f"{_counted(m[1])}分{chinese(int(m[2]))}秒",
        ),
        (Kind.SCORE, rf"(\d+)[:：比](\d+){_LETTER_END}", lambda m: f"{_plain(m[1])}比{_plain(m[2])}"),
        (Kind.PHONE, rf"{quantity.PHONE}{_LETTER_END}", _phone),
        (Kind.VERSION, rf"(\d+(?:\.\d+){{2,}}){_LETTER_END}", _dotted),
        (Kind.PHONE, rf"(?:1\d{{10}}|0\d{{6,}}){_LETTER_END}", lambda m: chinese_digits(m[0])),
        (Kind.PHONE, rf"\d{{3,4}}(?:[ -]\d{{3,8}}){{1,2}}{_LETTER_END}", _phone),
        (Kind.NUMBER, r"(\d{2})(?=折)", lambda m: chinese_digits(m[1])),
        (Kind.FRACTION, rf"24/7{_LETTER_END}", lambda m: "二十四小时"),
        (Kind.UNIT, r"(\d)米(\d{2})(?!\d)", lambda m: f"{_counted(m[1])}米{chinese_digits(m[2])}"),
        (Kind.UNIT, r"(\d{3,4})[pP](?![A-Za-z])", lambda m: f"{chinese_digits(m[1])}P"),
        (Kind.RANGE, rf"{_SIGN}(?i:{_A}{DASH}(?P<minus>[-−])?{_B}){_LETTER_END}(?!\s?=|-\d)", _range),
        (Kind.UNIT, rf"{_SIGN}(?i:{_Q}){_LETTER_END}", _quantity),
        (Kind.FRACTION, rf"(\d{{1,2}})/(\d{{1,2}}){_LETTER_END}", _slash),
        (
            Kind.SIGN,
            rf"({NUMBER})\s?[xX×*]\s?({NUMBER})(?![A-Za-z\d_])",
            lambda m: f"{_plain(quantity.plain(m[1]))}乘{_plain(quantity.plain(m[2]))}",
        ),
        (Kind.NUMBER, rf"{_SIGN}(?P<number>{NUMBER})(?![A-Za-z\d_]|\.\d)", _number),
        (Kind.NUMBER, rf"{_SIGN}(?P<number>{NUMBER})(?=[A-Z]{{1,3}}(?![A-Za-z\d_]))", _number),
        (Kind.CODE, r"[A-Za-z\d_]+(?:\.\d[A-Za-z\d_]*)*", _code),
    )
)


def _version(match: re.Match[str]) -> str:
    words = _points(match[1]) + (match[2] or "")
    return words if match.string.startswith("版", match.end()) else f"版本{words}"


WORDS = Readings(
    (
        (Kind.VERSION, r"[vV]\.?(\d+(?:\.\d+)*)((?<=\.\d)[a-z])?(?![A-Za-z\d])", _version),
        (Kind.NUMBER, r"[Nn]o\.\s?(\d+)", lambda m: f"第{_plain(m[1])}"),
        (Kind.SIGN, r"C\+\+", lambda m: "C加加"),
        (Kind.SIGN, r"([CF])#", lambda m: f"{m[1]}井"),
        (Kind.SIGN, r"[xX]\s?(\d+)(?![A-Za-z\d])", lambda m: f"乘{_plain(m[1])}"),
        (Kind.CODE, r"(?=[A-Za-z]*\d)[A-Za-z][A-Za-z0-9]*(?:\.\d[A-Za-z0-9]*)*(?![A-Za-z\d_])", _code),
        (Kind.CODE, r"(?=[A-Za-z\d]*[\d_])[A-Za-z][A-Za-z\d_]*", _code),
    )
)
SIGNS = Readings(
    (
        (Kind.SIGN, r"\^2(?!\d)", lambda m: "平方"),
        (Kind.SIGN, r"\^3(?!\d)", lambda m: "立方"),
        (Kind.SIGN, r"(?<=\d)\^(\d+)", lambda m: f"的{_plain(m[1])}次方"),
        (Kind.RANGE, rf"第(\d+)(?:{DASH}|到)(\d+)", lambda m: f"第{_plain(m[1])}到{_plain(m[2])}"),
        (Kind.NUMBER, r"第(\d+)", lambda m: f"第{_plain(m[1])}"),
        (Kind.SIGN, r"(?:(?<=\d)|(?<=\d ))[-−]\s?(?=\d+\s?=)", lambda m: "减"),
        (Kind.RANGE, r"(?<=[:：]\d\d)[-–—~～](?=\s?\d{1,2}[:：]\d\d)", lambda m: "到"),
        (
            Kind.RANGE,
            rf"(?<=[点分半时日号月年])\s?[-–—~～]\s?(?={_PART_OF_DAY}?\d)(?!\s?[\d.]+\s?[°℃度])",
            lambda m: "到",
        ),
        (
            Kind.RANGE,
            rf"(?<=[点分半时日号月年晨上午晚])\s?[-–—~～]\s?(?={_PART_OF_DAY})",
            lambda m: "到",
        ),
        (
            Kind.RANGE,
            r"(?<=[周期][一二三四五六日天])\s?[-–—~～]\s?(?=(?:周|星期)[一二三四五六日天])",
            lambda m: "到",
        ),
        (Kind.SIGN, r"(?<=[约概])[~～](?=\d)", lambda m: ""),
        (Kind.SIGN, r"(?<![\w)）])[~～](?=\d)", lambda m: "约"),
        (Kind.UNIT, rf"\s?/\s?((?i:{_RATE_SIGNS})(?![A-Za-z\d_])|(?:{_RATED}))", _rate),
        (Kind.SIGN, r"±", lambda m: "正负"),
        (Kind.SIGN, r"[×*](?= ?\d)", lambda m: "乘"),
        (Kind.SIGN, r"÷", lambda m: "除以"),
        (Kind.SIGN, r"<=|≤", lambda m: "小于等于"),
        (Kind.SIGN, r">=|≥", lambda m: "大于等于"),
        (Kind.SIGN, r"!=|≠", lambda m: "不等于"),
        (Kind.SIGN, r"≈", lambda m: "约等于"),
        (Kind.SIGN, r"√", lambda m: "根号"),
        (Kind.SIGN, r"(?<=[\w)])<(?=[\w(-])", lambda m: "小于"),
        (Kind.SIGN, r"(?<=[\w)])>(?=[\w(-])", lambda m: "大于"),
        (Kind.SIGN, r"\+", lambda m: "加"),
        (Kind.SIGN, r"={3,}|#+", lambda m: " "),
        (Kind.SIGN, r"={1,2}", lambda m: "等于"),
        (Kind.SIGN, r"&+", lambda m: "和"),
    )
)


def capitals(match: re.Match[str], shouted: bool) -> tuple[Kind, str] | None:
    """Other capitals stay beside Chinese."""
    earlier = before(match, 1)
    if re.fullmatch(r"(?=[IVX]{2,})X{0,3}(?:IX|IV|V?I{0,3})", match[0]) and (
        earlier >= "\u4e00" or match[0] in ("III", "VIII")
    ):
        return Kind.ROMAN, chinese(roman(match[0]))
    if re.match(
        r"(?:X{1,4}[SL]|A{3,4}(?=[级大游]))(?![A-Za-z])", match.string[match.start() : match.end() + 1]
    ):
        return Kind.ACRONYM, " ".join(match[0])
    return None


MANDARIN = Language(
    code="zh",
    link="链接",
    mail="邮箱",
    listing="代码。",
    comma="，",
    point="点",
    digit=digit,
    number=number,
    numbers=NUMBERS,
    words=WORDS,
    signs=SIGNS,
    capitals=capitals,
    scripts=("CJK",),
    alone=dict(
        zip(
            "&+=%@$€£¥°×÷→#",
            str.split("和 加 等于 百分号 艾特 美元 欧元 英镑 元 度 乘 除以 到 号"),
            strict=True,
        )
    ),
    stretched=3,
)

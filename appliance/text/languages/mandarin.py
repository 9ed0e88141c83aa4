"""Chinese: the words of numbers and signs."""

from __future__ import annotations

import re
from decimal import Decimal

from appliance.text.languages.lexis import Amount, Lexis, Noun
from appliance.text.languages.numbers import chinese, chinese_digits, roman
from appliance.text.languages.quantity import DASH, END, NUMBER, PHONE
from appliance.text.languages.readings import language_of
from appliance.text.spans import Kind, before

_MEASURES = (
    "点个只位块次天夜年条本件张把句声秒分杯瓶台辆部场局首集层间人斤米元"
    "万千百亿岁小种名款支队轮倍帧升吨度枚颗粒遍趟双套包盒碗"
)
"""Measure words after which two is 两: 两个."""
_MEASURED = "日号月年天点个只位块次条本件张把句秒分杯瓶台辆部场局首集层楼间人斤米元岁级期届帧升吨度枚颗瓦"
"""Measure words that are units of a number before them."""
_UNCOUNTED = "日号月楼级期届"
"""Measure words before which two stays 二."""
_SCORE_BEFORE, _SCORE_AFTER = (
    re.compile(r"(?:比分|总分|大比分)(?:是|为)?\s?$"),
    re.compile("落后|领先|战平|惜败|告负|不敌|战胜|取胜"),
)
_CURRENT = re.compile(r"\d\s?[VW](?![A-Za-z])|电|充|输出")
"""Signs of a line with amps: otherwise 3A is a class of games."""
_WATTS = re.compile("充电|快充|闪充|功率|功耗|电源|显卡|适配器|充电器|灯泡|瓦|输出|TDP")
"""Words that make 65W no 650,000."""
_RATED = (
    "秒|小时|分钟|分|天|日|周|月|年|晚|平方米|平米|平方|平|公斤|千克|斤|吨|公里|升|度|人|个|次|只|件"
    "|张|位|条|瓶|杯|台|股|局|场|集|首|套|份|本|盒|包"
)
"""Denominators of rates, after the /."""
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
_SERVICES = str.split("12306 12315 12345 12320 12123 12580 10086 10010 10000 10001 95588 95555 95533")
_SALES = ("886", "618", "315", "5201314", "1314520", "520", "521", "1314", "996", "007", "404")
"""Numbers that are names."""
_NOT_COUNTED = rf"(?![\d.%°℃℉A-Za-z{_MEASURES}日号月])"
_LONG_AGO = re.compile(r"(?:前|后|来|间|之|多|以|了|内|里|级|半|期|时)")
_SO_LONG = re.compile(r"(?:了|过|近|约|满|第|整整|已|达|这|那|有|长达|超过|每|用|花|等|刑|个)$")
_LASTING = re.compile(
    r"(?:倒计时|速通|用时|耗时|还剩|剩余|只剩|纪录|记录|成绩|时长|PB|pb)[:：]?(?:是|为|了)?\s?$"
)
_HALVES = re.compile(r"(?:上午|下午|晚上|早上|中午|凌晨|傍晚|今晚|明晚)\s?$")


class _Mandarin(Lexis):
    def measured(self, amount: Amount, match: re.Match[str]) -> Amount | None:
        """3A is a class of games, 65W of a charger is not 650,000, 3天-5折 is not a range."""
        text, groups = match.string, match.groupdict()
        if groups.get("unit_a") and not (groups["unit_b"] or groups["before_b"]):
            return None
        if amount.sign == "A" and not _CURRENT.search(text):
            return None
        around = before(match, 8) + text[match.end() : match.end() + 6]
        if amount.scale in ("k", "K") and (thousands := Decimal(amount.number)) >= 10:
            return Amount(f"{(thousands * 1_000).normalize():f}", "", amount.sign)
        if amount.scale == "W" and not amount.sign and _WATTS.search(around):
            return Amount(amount.number, "", "瓦")
        return amount

    def twos(self, number: str) -> str:
        """两 for a two that counts, else the usual words."""
        return "两" if number == "2" else self.spoken(number)

    def bare(self, match: re.Match[str]) -> str | tuple[Kind, str]:
        number, after = self.plain(match["number"]), match.string[match.end() : match.end() + 1]
        return self.signed(match, self.twos(number) if after and after in _MEASURES else self.spoken(number))

    def counted(self, number: str, noun: Noun) -> str:
        name = noun.forms[0]
        if name == "百分之":
            return f"{name}{'百' if number == '100' else self.spoken(number)}"
        return f"{self.spoken(number) if name in _UNCOUNTED else self.twos(number)}{name}"

    def negative(self, match: re.Match[str]) -> str:
        groups = match.groupdict()
        is_cold = (groups.get("unit") or groups.get("unit_b") or "")[:1] in ("°", "℃")
        return ("" if before(match, 2) == "零下" else "零下") if is_cold else self.minus

    def in_code(self, digits: str, code: str) -> str:
        """Words of a code's digits: one or two of them are a number."""
        is_number = len(digits) <= 2 and digits[0] != "0" and re.fullmatch(r"[^\d_]*\d+[^\d_]*", code)
        return self.spoken(digits) if is_number else self.digits(digits)

    def grouped(self, text: str) -> str:
        return self.digits(text)


def _clock_words(hour: int, minute: int, second: int = 0) -> str:
    words = f"{'两' if hour == 2 else chinese(hour)}点"
    if minute == 30 and not second:
        return f"{words}半"
    if minute or second:
        words += f"{'零' if minute < 10 else ''}{chinese(minute)}分"
    return words + (f"{chinese(second)}秒" if second else "")


def _capitals(match: re.Match[str], shouted: bool) -> tuple[Kind, str] | None:
    """Words of Roman numerals; other capitals in Chinese text stay."""
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


LEXIS = _Mandarin(
    code="zh",
    cardinal=lambda number, gender: chinese(number),
    ordinal=lambda number, gender: f"第{chinese(number)}",
    point="点",
    decimal=".",
    number=NUMBER,
    unsigned=r"A-Za-z\d.)）",
    joint="",
    comma="，",
    letter="[A-Za-z]",
    glued=r"[A-Z]{1,3}(?![A-Za-z\d_])",
    units="""
        kg 公斤; g 克; km 公里; cm 厘米; mm 毫米; km/h 公里每小时; fps 帧; ms 毫秒; s 秒; min 分钟
        h 小时; hz 赫兹; ml 毫升; mbps 兆每秒; gbps G每秒; kb/s K每秒; mb/s 兆每秒; gb/s G每秒
        tb/s T每秒; mbit/s 兆每秒; km/s 公里每秒; m/s 米每秒; rpm 转每分钟; mg 毫克; l 升; m2 平方米
        km2 平方公里; cm2 平方厘米; m3 立方米; gw 吉瓦; kwh 度; mah 毫安时; khz 千赫; mhz 兆赫; ghz 吉赫
        db 分贝; px 像素; kcal 千卡; ¢ 美分; º 度; °f 华氏度; ℉ 华氏度; °c 摄氏度; ℃ 摄氏度; ° 度; x 倍
        % 百分之; ％ 百分之
    """
    + "; ".join(f"{measure} {measure}" for measure in _MEASURED),
    cased="""
        m 米; V 伏; A 安; Wh 瓦时; Ah 安时; kW 千瓦; MW 兆瓦; mA 毫安; kV 千伏; nm 纳米; L 升; X 倍; S 秒
        H 小时
    """,
    per="""
        s 每秒; sec 每秒; min 每分钟; h 每小时; m2 每平方米; km2 每平方公里; m3 每立方米; kg 每公斤
        g 每克; km 每公里; m 每米; l 每升; kwh 每度; gb 每G
    """
    + "; ".join(f"{each} 每{each}" for each in _RATED.split("|")),
    per_word="每{}",
    currencies="""
        $ 美元; US$ 美元; HK$ 港元; C$ 加元; A$ 澳元; NZ$ 新西兰元; R$ 雷亚尔; € 欧元; £ 英镑; ¥ 元
        ￥ 元; ₹ 卢比; ₩ 韩元; ₽ 卢布; ₫ 越南盾; ₺ 里拉; ₱ 比索; ₿ 比特币
    """,
    cents="",
    thousands="",
    scales="k 千; K 千; w 万; W 万; 万 万; 千 千; 亿 亿; 百 百",
    repeated=f"{_MEASURES}日号月",
    months=" ".join(f"{chinese(month)}月" for month in range(1, 13)),
    of_month="(?!)",
    day_first="(?!)",
    day=lambda number, match: f"{chinese(number)}日",
    date=("{month}{day}", "{year}"),
    years="(?!)",
    clock=lambda hour, minute, marked: _clock_words(hour, minute),
    phone=rf"{PHONE}|1\d{{10}}|0\d{{6,}}|\d{{3,4}}(?:[ -]\d{{3,8}}){{1,2}}",
    phone_digits=9,
    signs="和|加|等于|百分号|乘|除以|减|正负|小于等于|大于等于|小于|大于|不等于|约等于|根号|到|平方|的",
    symbols=dict(zip("@$€£¥°→#", str.split("艾特 美元 欧元 英镑 元 度 到 号"), strict=True)),
    slash="/",
    limits="不到|超过",
    to="到",
    score="比",
    out_of="比",
    versus="",
    number_sign="",
    version="版本",
    dot="点",
    minus="负",
    link="链接",
    mail="邮箱",
    listing="代码。",
    heart="",
    scripts=("CJK",),
    capitals=_capitals,
    reads_roman=False,
    stretched=3,
)


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


def _or_one_more(match: re.Match[str]) -> str | None:
    """2、3个"""
    is_next = int(match[2]) == int(match[1]) + 1
    return f"{LEXIS.twos(match[1])}{chinese(int(match[2]))}" if is_next else None


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


def _lasting(hours: int, minutes: int, seconds: int) -> str:
    """倒计时00:45; 速通2:30:15"""
    parts = ((hours, "小时"), (minutes, "分" if seconds else "分钟"), (seconds, "秒"))
    return "".join(f"{LEXIS.twos(str(n))}{name}" for n, name in parts if n) or "零秒"


def _clock(match: re.Match[str]) -> str | None:
    groups = match.groupdict()
    hour, minute, second = (int(groups.get(name) or 0) for name in ("hour", "minute", "second"))
    if hour > 24 or minute > 59 or second > 59:
        return None
    half = {"a": "上午", "p": "下午"}.get((groups.get("half") or "").lower(), "")
    if not half and _LASTING.search(before(match)):
        return _lasting(*(hour, minute, second) if groups.get("second") else (0, hour, minute))
    return ("" if _HALVES.search(before(match)) else half) + _clock_words(hour, minute, second)


def _lap(match: re.Match[str]) -> str:
    """1:02.35"""
    minutes = f"{LEXIS.twos(match[1])}分" if int(match[1]) else ""
    zero = "零" if minutes and match[2][0] == "0" and match[2] != "00" else ""
    return f"{minutes}{zero}{chinese(int(match[2]))}秒{chinese_digits(match[3])}"


# Ranges, fractions.


def _percents(match: re.Match[str]) -> str:
    """5%-10%, 5-10%"""
    a, b = LEXIS.plain(match["number"]), LEXIS.plain(match["last"])
    is_each = match["each"] or match["minus"]
    last = f"{'负' if match['minus'] else ''}{_percent(b) if is_each else LEXIS.spoken(b)}"
    return LEXIS.signed(match, f"{_percent(a)}到{last}")


def _percent(number: str) -> str:
    return LEXIS.in_unit(number, "%")


def _result(match: re.Match[str]) -> str | None:
    """2-1 with a word that makes it a score."""
    is_score = _SCORE_BEFORE.search(before(match)) or _SCORE_AFTER.match(match.string, match.end())
    return f"{LEXIS.spoken(match[1])}比{LEXIS.spoken(match[2])}" if is_score else None


def _slash(match: re.Match[str]) -> str:
    a, b, after = int(match[1]), int(match[2]), match.string[match.end() : match.end() + 1]
    if a < b and (b <= 10 or after == "的"):
        return f"{chinese(b)}分之{chinese(a)}"
    if 1 <= a <= 12 and 1 <= b <= 31:
        return f"{chinese(a)}月{chinese(b)}日"
    return f"{chinese(a)}比{chinese(b)}"


def _hexadecimal(match: re.Match[str]) -> str:
    return "零x" + "".join(chinese_digits(c) or c for c in match[1])


_LETTER_END = r"(?![A-Za-z\d_]|[.,:]\d|(?<=\d)/\d)"
_PART_OF_DAY = "(?:上午|下午|晚上|早上|凌晨|中午|傍晚|次日|第二天|明天|今晚|明早)"


MANDARIN = language_of(
    LEXIS,
    numbers=(
        (Kind.SIGN, r"(?<=[歼轰运苏图格])(?<!\d.)[-－](?=\d)", lambda m: ""),
        (Kind.CODE, r"98[kK](?![A-Za-z\d]|\s?[粉人赞播元块观次])", lambda m: "九八K"),
        (
            Kind.MONEY,
            r"(?<=满)(\d+)[-－](\d+)(?!\d)",
            lambda m: f"{LEXIS.spoken(m[1])}减{LEXIS.spoken(m[2])}",
        ),
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
            lambda m: f"{LEXIS.twos(m[1])}小时{LEXIS.spoken(m[2])}分",
        ),
        (Kind.LAUGHTER, rf"{_CLAUSE_START}5{{3,}}{_CLAUSE_END}", lambda m: "呜呜呜"),
        (Kind.NUMBER, rf"(?:6{{3,}}|8{{3,}}){_NOT_COUNTED}", _repeated),
        (Kind.REPEAT, rf"{_CLAUSE_START}(\d)\1{{2,}}{_CLAUSE_END}", lambda m: chinese_digits(m[0][:3])),
        (
            Kind.NUMBER,
            r"(\d)([kKwW])(\d)(?![A-Za-z\d])",
            lambda m: f"{LEXIS.twos(m[1])}{'千' if m[2] in 'kK' else '万'}{chinese(int(m[3]))}",
        ),
        (Kind.RANGE, rf"([1-8])[、,，]([2-9])(?=[{_MEASURES}])", _or_one_more),
        (Kind.PHONE, rf"(?:{'|'.join(_EMERGENCY)}){_NOT_COUNTED}", _emergency),
        (Kind.CODE, rf"(?:{'|'.join((*_SALES, *_SERVICES))}){_NOT_COUNTED}", _known_number),
        (Kind.CODE, r"\d{3,}(?![\d-])", _named_number),
        (
            Kind.DATE,
            r"(\d{1,2})·(\d{1,2})(?!\d)|3[ .]15(?=晚会|维权|打假|消费)|(?:[56]|10)\.1(?=放假|假|国庆|儿童)",
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
            rf"(\d{{4}}|[3-9]\d)(年?){DASH}(\d{{4}}|[3-9]\d)年",
            lambda m: f"{chinese_digits(m[1])}{m[2]}到{chinese_digits(m[3])}年",
        ),
        (Kind.YEAR, r"20\d\d(?=赛季|款|版|届)", lambda m: chinese_digits(m[0])),
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
        (Kind.TIME, r"(\d{1,2})[:：]([0-5]\d)\.(\d{1,3})(?![\d.])", _lap),
        (Kind.UNIT, r"(\d)[★☆]", lambda m: f"{chinese(int(m[1]))}星"),
        (
            Kind.TIME,
            r"(\d{1,3})[′'](\d{1,2})(?:[″\"]|'')",
            lambda m: f"{LEXIS.twos(m[1])}分{chinese(int(m[2]))}秒",
        ),
        (
            Kind.SCORE,
            rf"(\d+)[:：比](\d+){_LETTER_END}",
            lambda m: f"{LEXIS.spoken(m[1])}比{LEXIS.spoken(m[2])}",
        ),
        (Kind.NUMBER, r"(\d{2})(?=折)", lambda m: chinese_digits(m[1])),
        (Kind.FRACTION, rf"24/7{_LETTER_END}", lambda m: "二十四小时"),
        (
            Kind.UNIT,
            r"([12])(?:米|[mM](?![23](?!\d)))(\d{1,2})(?![A-Za-z\d])",
            lambda m: f"{LEXIS.twos(m[1])}米{chinese_digits(m[2])}",
        ),
        (Kind.UNIT, r"(\d{3,4})[pP](?![A-Za-z])", lambda m: f"{chinese_digits(m[1])}P"),
        (
            Kind.PERCENT,
            rf"({NUMBER})\s?([百千万亿])\s?[%％]",
            lambda m: f"百分之{LEXIS.spoken(LEXIS.plain(m[1]))}{m[2]}",
        ),
        (Kind.UNIT, r"([248])k(?=画质|屏|分辨率|视频)", lambda m: f"{chinese(int(m[1]))}K"),
        (
            Kind.RANGE,
            rf"(?P<sign>(?<![A-Za-z\d.)）])[-−+])?(?P<number>{NUMBER})\s?(?P<each>[%％])?{DASH}"
            rf"(?P<minus>[-−])?(?P<last>{NUMBER})\s?[%％]{_LETTER_END}(?!\s?=|-\d)",
            _percents,
        ),
        (Kind.RANGE, rf"(\d+){DASH}(\d+){_LETTER_END}(?!\s?=|-\d)", _result),
        (
            Kind.FRACTION,
            rf"(?!0\d\d|(?:\d+/)?(?:19|20)\d\d(?!\d))(\d{{1,4}})/(\d{{1,4}}){_LETTER_END}",
            _slash,
        ),
    ),
    words=(
        (Kind.WORD, r"[vV](?=\.?\s)", lambda m: m[0]),
        (Kind.CODE, r"[vV](587|5)(?![.\d])", lambda m: f"V{chinese_digits(m[1])}"),  # 威武
        (
            Kind.VERSION,
            r"[vV]\.?(\d+(?:\.\d+)*)((?:(?<=\.\d)|(?<=\.\d\d))[a-z])?(?=版)",
            lambda m: LEXIS.points(m[1]) + (m[2] or ""),
        ),
        (Kind.NUMBER, r"[Ll][Vv]\.?\s?(\d+)(?![A-Za-z\d.])级?", lambda m: f"{LEXIS.spoken(m[1])}级"),
        (Kind.NUMBER, r"[Nn][Oo]\.\s?(\d+)", lambda m: f"第{LEXIS.spoken(m[1])}"),
        (Kind.NUMBER, r"(KDA?|ADR)\s?(\d+\.\d+)(?![\w.])", lambda m: f"{m[1]}{LEXIS.spoken(m[2])}"),
        (Kind.SIGN, r"C\+\+", lambda m: "C加加"),
        (Kind.SIGN, r"([CF])#", lambda m: f"{m[1]}井"),
        (Kind.SIGN, r"[xX]\s?(\d+)(?![A-Za-z\d])", lambda m: f"乘{LEXIS.spoken(m[1])}"),
    ),
    signs=(
        (Kind.SIGN, r"\^2(?!\d)", lambda m: "平方"),
        (Kind.SIGN, r"\^3(?!\d)", lambda m: "立方"),
        (Kind.SIGN, r"(?<=\d)\^(\d+)", lambda m: f"的{LEXIS.spoken(m[1])}次方"),
        (
            Kind.RANGE,
            rf"第(\d+)(?:{DASH}|到)(\d+)",
            lambda m: f"第{LEXIS.spoken(m[1])}到{LEXIS.spoken(m[2])}",
        ),
        (Kind.NUMBER, r"第(\d+)", lambda m: f"第{LEXIS.spoken(m[1])}"),
        (Kind.SIGN, r"(?:(?<=\d)|(?<=\d ))[-−]\s?(?=\d+\s?=)", lambda m: "减"),
        (Kind.RANGE, r"(?<=[:：]\d\d)[-–—~～](?=\s?\d{1,2}[:：]\d\d)", lambda m: "到"),
        (
            Kind.RANGE,
            rf"(?<=[点分半时日号月年])\s?[-–—~～]\s?(?={_PART_OF_DAY}?\d)(?!\s?[\d.]+\s?[°℃度])",
            lambda m: "到",
        ),
        (Kind.RANGE, rf"(?<=[点分半时日号月年晨上午晚])\s?[-–—~～]\s?(?={_PART_OF_DAY})", lambda m: "到"),
        (
            Kind.RANGE,
            r"(?<=[周期][一二三四五六日天])\s?[-–—~～]\s?(?=(?:周|星期)[一二三四五六日天])",
            lambda m: "到",
        ),
        (Kind.SIGN, r"(?<=[约概])[~～](?=\d)", lambda m: ""),
        (Kind.SIGN, r"(?<![\w)）])[~～](?=\d)", lambda m: "约"),
        (Kind.SIGN, r"[~～](?=\s?\w)", lambda m: m[0]),
        (Kind.SIGN, r"#+", lambda m: " "),
        (Kind.SIGN, r"[×*](?= ?\d)", lambda m: "乘"),
        (Kind.SIGN, r"\+", lambda m: "加"),
    ),
)

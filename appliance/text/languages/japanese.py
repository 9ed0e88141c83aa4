"""Japanese: the words of numbers, their counters and signs, in kana."""

from __future__ import annotations

import re

from appliance.text.languages.lexis import Lexis
from appliance.text.languages.quantity import is_rating
from appliance.text.languages.readings import language_of
from appliance.text.scripts import KANA
from appliance.text.spans import Kind, before

_DIGITS = str.split("ゼロ いち に さん よん ご ろく なな はち きゅう")
_MYRIADS = ((10**12, "ちょう"), (10**8, "おく"), (10**4, "まん"))
_SCALES = {"百": 100, "千": 1_000, "万": 10**4, "億": 10**8, "兆": 10**12}
_JOINED = {
    **{"さんひゃく": "さんびゃく", "ろくひゃく": "ろっぴゃく", "はちひゃく": "はっぴゃく"},
    **{"さんせん": "さんぜん", "はちせん": "はっせん"},
}
_CLOSED = {"いち": "いっ", "ろく": "ろっ", "はち": "はっ", "じゅう": "じゅっ", "ゃく": "ゃっ"}
"""Ends of numbers before some counters: いち + かい → いっかい."""
_SHORT = {"y": {"よん": "よ"}, "j": {"よん": "よ", "なな": "しち", "きゅう": "く"}} | {
    "g": {"よん": "し", "なな": "しち", "きゅう": "く"}
}
_VOICED, _PLOSIVE = str.maketrans("はひふへほ", "ばびぶべぼ"), str.maketrans("はひふへほ", "ぱぴぷぺぽ")
_COUNTERS = {
    written: (said, kind)
    for kind, rows in {
        "k": "回 かい 個 こ 件 けん 曲 きょく 巻 かん 級 きゅう ヶ月 かげつ か月 かげつ "
        "カ月 かげつ ヵ月 かげつ ヶ所 かしょ 箇所 かしょ 期 き 機 き 階 かい 桁 けた",
        "s": "歳 さい 才 さい 冊 さつ 週 しゅう 章 しょう 勝 しょう 周 しゅう 戦 せん",
        "t": "点 てん 頭 とう 着 ちゃく 体 たい 通 つう 対 たい 等 とう",
        "b": "本 ほん 匹 ひき 杯 はい 票 ひょう",
        "p": "発 はつ 敗 はい 泊 はく 分 ふん",
        "y": "人 にん 年 ねん 年代 ねんだい 円 えん",
        "j": "時 じ",
        "g": "月 がつ",
        "": "℃ ど °C ど 秒 びょう 枚 まい 番 ばん 位 い 度 ど 倍 ばい 名 めい 台 だい 羽 わ "
        "段 だん 部 ぶ 話 わ 号 ごう 割 わり 列 れつ 問 もん 代 だい 連 れん 世代 せだい 日 にち",
    }.items()
    for written, said in zip(rows.split()[::2], rows.split()[1::2], strict=True)
}
"""Counter, its kana, and where the two change: before k, s or t, h → b or p after ん, or the number alone."""
_DAYS = str.split(
    "ふつか みっか よっか いつか むいか なのか ようか ここのか とおか じゅうよっか はつか にじゅうよっか "
    "じゅうしちにち じゅうくにち にじゅうしちにち にじゅうくにち"
)
_WHOLE = {
    "1人": "ひとり",
    "2人": "ふたり",
    "20歳": "はたち",
    "20才": "はたち",
    "3階": "さんがい",
    "0時": "れいじ",
} | {f"{day}日": said for day, said in zip((*range(2, 11), 14, 20, 24, 17, 19, 27, 29), _DAYS, strict=True)}
_THINGS = str.split("ひとつ ふたつ みっつ よっつ いつつ むっつ ななつ やっつ ここのつ")


def cardinal(number: int, gender: str = "") -> str:
    """Kana of a number; 10,000 and 10,000,000 say their one."""
    for size, name in _MYRIADS:
        if number >= size:
            count, rest = divmod(number, size)
            words = cardinal(count)
            if words.endswith("せん") and count % 10_000 == 1_000:
                words = f"{words.removesuffix('せん')}いっせん"
            return _with(words, name, "t" if name == "ちょう" else "") + (cardinal(rest) if rest else "")
    words = ""
    for size, name in ((1_000, "せん"), (100, "ひゃく"), (10, "じゅう")):
        count, number = divmod(number, size)
        if count:
            written = ("" if count == 1 else _DIGITS[count]) + name
            words += _JOINED.get(written, written)
    return words + (_DIGITS[number] if number or not words else "")


def _with(words: str, said: str, kind: str) -> str:
    """Words of a number and its counter, with the sounds that change between them."""
    if kind in _SHORT:
        end = next((end for end in _SHORT[kind] if words.endswith(end)), "")
        return words.removesuffix(end) + _SHORT[kind].get(end, "") + said
    few = ("いち", "はち", "じゅう")
    closing: tuple[str, ...] = {"": (), "s": few, "t": few}.get(kind, tuple(_CLOSED))
    end = next((end for end in closing if words.endswith(end)), "")
    if end:
        return words.removesuffix(end) + _CLOSED[end] + (said.translate(_PLOSIVE) if kind in "bp" else said)
    if kind in ("b", "p") and re.search("さん$|[せぜま]ん$", words):
        return words + said.translate(_VOICED if kind == "b" else _PLOSIVE)
    return words + said


def counted(number: int, counter: str, words: str = "") -> str:
    """`words` of the number, if they are not its cardinal."""
    if (whole := _WHOLE.get(f"{number}{counter}")) and not words:
        return whole
    if counter == "分" and number % 10 == 4:
        return f"{cardinal(number)}ぷん"
    return _with(words or cardinal(number), *_COUNTERS[counter])


def _unit(number: int, noun: str) -> str:
    """Noun of a unit with its number: 30 min, 4 h."""
    if noun == "ふん":
        return counted(number, "分")
    return f"{counted(number, '時')}かん" if noun == "じかん" else cardinal(number) + noun


def decimals(whole: str, part: str) -> str:
    head = "れいてん" if whole == "0" else _with(cardinal(int(whole)), "てん", "t")
    return head + "".join(_DIGITS[int(digit)] for digit in part)


def ordinal(number: int, gender: str = "") -> str:
    return f"{cardinal(number)}ばんめ"


def clock(hour: int, minute: int, marked: bool) -> str:
    return counted(hour, "時") + (counted(minute, "分") if minute else "")


def _day(number: int, match: re.Match[str] | None = None) -> str:
    return "ついたち" if number == 1 else counted(number, "日")


def _counted(match: re.Match[str]) -> str:
    """100件, 3万人, 1.5万円, 第3回, 5人目"""
    groups = match.groupdict()
    number, part, scale = int(groups["n"].replace(",", "")), groups["part"], groups["scale"]
    counter = groups["counter"] or ""
    words = ""
    if part:
        words = decimals(str(number), part) + (
            re.sub("^い[ちっ]", "", cardinal(_SCALES[scale])) if scale else ""
        )
    elif scale:
        number *= _SCALES[scale]
    if counter == "日" and number == 1 and before(match).endswith("月"):
        said = _day(1)
    else:
        said = counted(number, counter, words) if counter else words or cardinal(number)
    sign = {"-": "マイナス", "−": "マイナス", "+": "プラス", "第": "だい"}.get(groups["sign"] or "", "")
    return sign + said + "".join({"目": "め", "間": "かん", "半": "はん"}[c] for c in groups["tail"])


def _from_to(match: re.Match[str]) -> str:
    """3〜5人, 20時〜22時"""
    first = int(match[1])
    words = counted(first, match[2]) if match[2] else cardinal(first)
    return f"{words}から{counted(int(match[3]), match[4])}"


def _limit(match: re.Match[str]) -> str:
    """<5分"""
    if match[3] in ("%", "％"):
        words = f"{cardinal(int(match[2]))}パーセント"
    else:
        words = counted(int(match[2]), match[3]) if match[3] else cardinal(int(match[2]))
    return f"{words}{'みまん' if match[1] in '<＜' else 'ちょう'}"


def _or_one_more(match: re.Match[str]) -> str | None:
    """2,3人"""
    is_next = int(match[2]) == int(match[1]) + 1
    return f"{cardinal(int(match[1]))}、{counted(int(match[2]), match[3])}" if is_next else None


def _applause(match: re.Match[str]) -> str | None:
    """888 behind a word that it does not count."""
    is_number = re.search(
        r"(?:(?<!おめ)[はがをにのも]|番号|番|号|数|点|力|計|約|第|残り|あと|レベル|スコア|ランク|ルーム|部屋|ID|コード|パス)[:：]?\s?$",
        before(match),
    )
    return None if is_number else "ぱちぱちぱち"


def _half_day(match: re.Match[str]) -> str | None:
    half, hour, minute = (match[1] or match[4] or "").lower(), int(match[2]), int(match[3] or 0)
    if not half or hour > 12 or minute > 59:
        return None
    return ("ごぜん" if half == "a" else "ごご") + clock(hour, minute, True)


def _year_month_day(match: re.Match[str]) -> str | None:
    year, month, day = map(int, match.groups())
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return counted(year, "年") + counted(month, "月") + _day(day)


def _month_day(match: re.Match[str]) -> str | None:
    month, day = int(match[1]), int(match[2])
    if not (1 <= month <= 12 and 1 <= day <= 31) or match.groups() in LEXIS.fractions:
        return None
    return counted(month, "月") + _day(day)


def _out_of(match: re.Match[str]) -> str | None:
    """8.5/10: the whole comes first."""
    return (
        f"{LEXIS.spoken(match[2])}{LEXIS.out_of}{LEXIS.spoken(match[1])}"
        if is_rating(*match.groups())
        else None
    )


LEXIS = Lexis(
    code="ja",
    cardinal=cardinal,
    ordinal=ordinal,
    year=lambda number: counted(number, "年"),
    scripts=("HIRAGANA", "KATAKANA", "CJK"),
    sample="いちにさんよごろくなはきゅうじひゃせぜまおびぴっ",
    point="てん",
    decimal=".",
    decimals=decimals,
    joint="",
    count=_unit,
    comma="、",
    letter="[A-Za-z]",
    glued="(?i:off)(?![A-Za-z])",
    units="""
        m2 へいほうメートル; km2 へいほうキロメートル; cm2 へいほうセンチ; m3 りっぽうメートル
        kbit キロビット; mbit メガビット; gbit ギガビット
        gbps ギガビーピーエス; ¢ セント; mah ミリアンペアアワー; kwh キロワットじ; gw ギガワット
        khz キロヘルツ
        º ど; °f ど; kcal キロカロリー; rpm アールピーエム
        kg キロ; g グラム; mg ミリグラム; t トン; km キロ; m メートル; cm センチ; mm ミリ
        l リットル; ml ミリリットル; kb キロバイト; mb メガ; gb ギガ; tb テラ
        mbps メガビーピーエス; fps エフピーエス; hz ヘルツ; mhz メガヘルツ; ghz ギガヘルツ
        w ワット; kw キロワット; db デシベル; px ピクセル; ms ミリびょう; s びょう; sec びょう
        min ふん; h じかん; d にち; x ばい; % パーセント; ° ど; °c ど
    """,
    cased="""
        W ワット; V ボルト; A アンペア; Ah アンペアアワー; Wh ワットじ; mA ミリアンペア; kV キロボルト
        MW メガワット; L リットル
    """,
    per="""
        s まいびょう; sec まいびょう; min まいふん; h まいじ; d まいにち; 秒 まいびょう; 分 まいふん
        時 まいじ; 日 まいにち; 週 まいしゅう; 月 まいつき
        年 まいとし; kg パーキロ; g パーグラム; l パーリットル; km パーキロメートル; m パーメートル
        m2 パーへいほうメートル; km2 パーへいほうキロメートル
        m3 パーりっぽうメートル; kwh パーキロワットじ; gb パーギガ; 人 ひとりあたり; 回 いっかいあたり
        個 いっこあたり; 枚 いちまいあたり; 本 いっぽんあたり
    """,
    per_word="パー{}",
    ending="ドット",
    currencies="""
        ¥ えん; ￥ えん; JPY えん; $ ドル; US$ ドル; USD ドル; € ユーロ; £ ポンド; ₩ ウォン; ₽ ルーブル
        ₹ ルピー; ₿ ビットコイン
    """,
    cents="{}",
    scales="M 1000000",
    months="いちがつ にがつ さんがつ しがつ ごがつ ろくがつ しちがつ はちがつ くがつ じゅうがつ "
    "じゅういちがつ じゅうにがつ",
    day=_day,
    date=("{month}{day}", "{year}"),
    clock=clock,
    lasting="あと|残り|のこり",
    signs="アンド|プラス|イコール|パーセント|かける|わる|ひく|プラスマイナス|いか|いじょう|しょうなり|だいなり"
    "|ノットイコール|やく|ルート|、|のにじょう|の",
    to="から",
    score="たい",
    out_of="ぶんの",
    versus="たい",
    number_sign="ナンバー",
    version="バージョン",
    dot="てん",
    minus="マイナス",
    link="リンク",
    mail="メールアドレス",
    listing="コード。",
    heart="ハート",
    fractions={
        ("1", "2"): "にぶんのいち",
        ("1", "3"): "さんぶんのいち",
        ("2", "3"): "さんぶんのに",
        ("1", "4"): "よんぶんのいち",
        ("3", "4"): "よんぶんのさん",
        ("24", "7"): "にじゅうよじかん",
    },
)
_WEEKDAYS = dict(zip("月火水木金土日", str.split("げつ か すい もく きん ど にち"), strict=True))
_WEEK = "".join(_WEEKDAYS)
_COUNTER = "|".join(sorted(_COUNTERS, key=len, reverse=True))
_NUMBER = r"(?P<n>\d{1,3}(?:,\d{3})+|\d{1,12})(?:\.(?P<part>\d+))?"
_COUNT = _NUMBER + rf"(?P<scale>[百千万億兆])?(?P<counter>{_COUNTER})?(?P<tail>間?[目半]?)"
_END = r"(?![A-Za-z\d_%°]|[.,:/]\d)"
JAPANESE = language_of(
    LEXIS,
    numbers=(
        (Kind.LAUGHTER, r"(?<![\d.,:A-Za-z/%¥$+-])8{3,}(?=$|[\s、。!！?？…wW♪~〜])", _applause),
        (Kind.LAUGHTER, rf"(?<![^\s、。!！?？…])8{{4,}}(?=[{KANA}])", lambda m: "ぱちぱちぱち"),
        (Kind.DATE, rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){_END}", _year_month_day),
        (Kind.DATE, rf"(\d{{1,2}})/(\d{{1,2}}){_END}", _month_day),
        (Kind.FRACTION, rf"(\d+(?:\.\d+)?)/(5|10|20|100){_END}", _out_of),
        (Kind.TIME, r"(?i)()(\d{1,2})(?:[:.](\d\d))?\s?([ap])\.?m(?![A-Za-z])\.?", _half_day),
        (
            Kind.TIME,
            r"([01]?\d|2[0-4]):([0-5]\d):([0-5]\d)(?=に|から|まで|頃|ごろ|現在|開始|スタート)",
            lambda m: clock(int(m[1]), int(m[2]), True) + counted(int(m[3]), "秒"),
        ),
        (Kind.UNIT, r"(\d+(?:\.\d+)?)\s?(?:°\s?F|℉)(?![A-Za-z])", lambda m: f"かし{LEXIS.spoken(m[1])}ど"),
        (Kind.RANGE, rf"(\d{{1,4}})({_COUNTER})?\s?[-–—~～〜]\s?(\d{{1,4}})({_COUNTER})", _from_to),
        (Kind.RANGE, rf"([1-8])[,、]([2-9])({_COUNTER})", _or_one_more),
        (Kind.SCORE, r"(?i)1\s?on\s?1(?![A-Za-z\d])", lambda m: "ワンオンワン"),
        (
            Kind.FRACTION,
            r"(\d{1,3})分の(\d{1,3})(?!\d)",
            lambda m: f"{cardinal(int(m[1]))}ぶんの{cardinal(int(m[2]))}",
        ),
        (
            Kind.NUMBER,
            r"(\d{1,4})\^(\d{1,4})(?!\d)",
            lambda m: f"{cardinal(int(m[1]))}の{cardinal(int(m[2]))}じょう",
        ),
        (Kind.NUMBER, r"100均", lambda m: "ひゃっきん"),
        (Kind.NUMBER, r"([1-9])つ", lambda m: _THINGS[int(m[1]) - 1]),
        (
            Kind.UNIT,
            r"(?i)(\d+)\s?km/h(?![a-z])",
            lambda m: f"{'' if before(m).endswith('時速') else 'じそく'}{cardinal(int(m[1]))}キロ",
        ),
        (Kind.UNIT, rf"(?P<sign>(?<![A-Za-z\d.)])[-−+])?{_COUNT}(?<=\D)", _counted),
    ),
    words=(
        (Kind.NUMBER, r"(?i)pp?\.\s?(\d+)(?!\d)", lambda m: f"{cardinal(int(m[1]))}ページ"),
        (Kind.TIME, r"(?i)([ap])m\s?(\d{1,2})(?:[:時](\d\d)分?|時)?()(?!\d)", _half_day),
        (Kind.WORD, r"(?i)lv\.?\s?(?=\d)", lambda m: "レベル"),
        (Kind.NUMBER, r"(?i)no\.\s?(\d+)(?![A-Za-z\d])", lambda m: f"ナンバー{LEXIS.spoken(m[1])}"),
        (Kind.LAUGHTER, r"(?<![A-Za-z0-9])[wW]+(?![A-Za-z0-9.])", lambda m: "わら"),
    ),
    signs=(
        (Kind.NUMBER, rf"(?P<sign>第){_COUNT}", _counted),
        (Kind.NUMBER, r"#(\d+)(?![A-Za-z\d])", lambda m: counted(int(m[1]), "番")),
        (Kind.RANGE, r"(?<=\d)[〜～~](?=\d)", lambda m: "から"),
        (Kind.RANGE, rf"(?<=(?<!\w)[{_WEEK}])\s?[-–—~～〜]\s?(?=[{_WEEK}](?!\w))", lambda m: "から"),
        (Kind.UNIT, rf"(?<![\w)<>＜＞])([<>＜＞])(\d{{1,6}})({_COUNTER}|[%％])?(?![\d.,])", _limit),
        (Kind.DATE, rf"(?<=[日\d])[(（]([{_WEEK}])[)）]", lambda m: f"{_WEEKDAYS[m[1]]}ようび"),
    ),
)

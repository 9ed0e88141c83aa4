"""Japanese: numbers and their counters in hiragana, with the sounds that change between them."""

from __future__ import annotations

import re

from appliance.text.languages.spoken import Speech
from appliance.text.spans import Kind

_DIGITS = ("ゼロ", "いち", "に", "さん", "よん", "ご", "ろく", "なな", "はち", "きゅう")
_PLACES = ((1_000, "せん"), (100, "ひゃく"), (10, "じゅう"))
_CHANGED = {
    **{(1_000, 3): "さんぜん", (1_000, 8): "はっせん"},
    **{(100, 3): "さんびゃく", (100, 6): "ろっぴゃく", (100, 8): "はっぴゃく"},
}
_MYRIADS = ((10**8, "おく"), (10**4, "まん"))
_COUNTERS = {
    **{
        "人": "にん",
        "名": "めい",
        "時": "じ",
        "時間": "じかん",
        "分": "ふん",
        "分間": "ふんかん",
        "秒": "びょう",
    },
    **{
        "年": "ねん",
        "月": "がつ",
        "ヶ月": "かげつ",
        "か月": "かげつ",
        "日": "にち",
        "日間": "にちかん",
        "週間": "しゅうかん",
    },
    **{
        "円": "えん",
        "個": "こ",
        "本": "ほん",
        "匹": "ひき",
        "回": "かい",
        "歳": "さい",
        "才": "さい",
        "件": "けん",
    },
    **{
        "位": "い",
        "度": "ど",
        "点": "てん",
        "倍": "ばい",
        "枚": "まい",
        "番": "ばん",
        "階": "かい",
        "話": "わ",
    },
    **{
        "戦": "せん",
        "勝": "しょう",
        "敗": "はい",
        "台": "だい",
        "冊": "さつ",
        "杯": "はい",
        "世代": "せだい",
        "連": "れん",
    },
    **{
        "キロ": "キロ",
        "ドル": "ドル",
        "ユーロ": "ユーロ",
        "ポイント": "ポイント",
        "パーセント": "パーセント",
    },
}
_READINGS = {
    **{("人", 1): "ひとり", ("人", 2): "ふたり", ("歳", 20): "はたち", ("才", 20): "はたち"},
    **{
        ("日", 1): "ついたち",
        ("日", 2): "ふつか",
        ("日", 3): "みっか",
        ("日", 4): "よっか",
        ("日", 5): "いつか",
    },
    **{
        ("日", 6): "むいか",
        ("日", 7): "なのか",
        ("日", 8): "ようか",
        ("日", 9): "ここのか",
        ("日", 10): "とおか",
    },
    **{("日", 14): "じゅうよっか", ("日", 20): "はつか", ("日", 24): "にじゅうよっか"},
}
_OWN_ENDS = {
    **{
        ("時", 4): "よ",
        ("時", 7): "しち",
        ("時", 9): "く",
        ("月", 4): "し",
        ("月", 7): "しち",
        ("月", 9): "く",
    },
    **{("人", 4): "よ", ("年", 4): "よ", ("時間", 4): "よ", ("時間", 7): "しち", ("時間", 9): "く"},
}
"""Last digit before a counter, where it is read otherwise."""
_SHORT = {"いち": "いっ", "ろく": "ろっ", "はち": "はっ", "じゅう": "じゅっ", "ひゃく": "ひゃっ"}
"""Ends of numbers that double a hard sound after them."""
_HARD = {
    "か": "いち ろく はち じゅう ひゃく",
    "さ": "いち はち じゅう",
    "た": "いち はち じゅう",
    "は": "いち ろく はち じゅう ひゃく",
}
_ROWS = {"か": "かきくけこ", "さ": "さしすせそ", "た": "たちつてと", "は": "はひふへほ"}
_VOICED = str.maketrans("はひふへほ", "ばびぶべぼ")
_SOFT = str.maketrans("はひふへほ", "ぱぴぷぺぽ")


def cardinal(number: int, gender: str = "") -> str:
    for size, name in _MYRIADS:
        if number >= size:
            count, rest = divmod(number, size)
            return cardinal(count) + name + (cardinal(rest) if rest else "")
    words = ""
    for size, name in _PLACES:
        count, number = divmod(number, size)
        if count:
            words += _CHANGED.get((size, count), name if count == 1 else _DIGITS[count] + name)
    return words + (_DIGITS[number] if number or not words else "")


def counted(number: int, counter: str) -> str:
    """さんぼん of 3本, よじ of 4時, ひとり of 1人."""
    if reading := _READINGS.get((counter, number)):
        return reading
    words, sound = cardinal(number), _COUNTERS[counter]
    last = number % 10
    if last and (end := _OWN_ENDS.get((counter, last))):
        return words.removesuffix(_DIGITS[last]) + end + sound
    row = next((row for row, sounds in _ROWS.items() if sound[0] in sounds), "")
    hard = next((end for end in _HARD.get(row, "").split() if words.endswith(end)), "")
    if hard:
        words = words.removesuffix(hard) + _SHORT[hard]
    if row == "は":
        if hard or (sound.startswith("ふん") and words.endswith(("さん", "よん"))):
            sound = sound[0].translate(_SOFT) + sound[1:]
        elif words.endswith(("さん", "せん", "まん")):
            sound = sound[0].translate(_VOICED) + sound[1:]
    return words + sound


def _counted(match: re.Match[str]) -> str:
    number, scale, counter = SPEECH.plain(match["number"]), match["scale"] or "", match["counter"]
    sign = SPEECH.minus if match["sign"] else ""
    if scale or "." in number:
        words = SPEECH.said(number) + {"万": "まん", "億": "おく", "千": "せん"}.get(scale, "")
        return sign + words + _COUNTERS.get(counter or "", "")
    return sign + (counted(int(number), counter) if counter else SPEECH.said(number))


def _nth(match: re.Match[str]) -> str:
    number = int(match[1])
    return f"だい{counted(number, match[2]) if match[2] else cardinal(number)}"


def clock(hour: int, minute: int, marked: bool) -> str:
    return counted(hour, "時") + (counted(minute, "分") if minute else "")


SPEECH = Speech(
    code="ja",
    scripts=("HIRAGANA", "KATAKANA", "CJK"),
    letter="[A-Za-z]",
    cardinal=cardinal,
    ordinal=lambda number, gender: f"{cardinal(number)}ばんめ",
    sample="いちにさんよごろくななはきゅうじひゃせまえ",
    joint="",
    comma="、",
    point="てん",
    decimal=".",
    units="""
        kg キロ; g グラム; mg ミリグラム; km キロ; m メートル; cm センチ; mm ミリ; l リットル; ml ミリリットル
        km/h キロ; kb キロバイト; mb メガ; gb ギガ; tb テラ; fps エフピーエス; hz ヘルツ; w ワット
        px ピクセル; ms ミリびょう; s びょう; h じかん; % パーセント; ° ど; °c ど; x ばい
    """,
    currencies="""
        ¥ えん; ￥ えん; $ ドル|セント; US$ ドル|セント; € ユーロ|セント; £ ポンド|ペンス
        ₩ ウォン; ₿ ビットコイン
    """,
    cents="{}{cent}",
    scales="M 1000000; 万 10000 まん; 億 100000000 おく",
    months="いちがつ にがつ さんがつ しがつ ごがつ ろくがつ しちがつ はちがつ くがつ じゅうがつ"
    " じゅういちがつ じゅうにがつ",
    of_month=r"(?!)",
    day=lambda number, match: counted(number, "日"),
    date=("{month}{day}", ""),
    date_before=r"(?!)",
    clock=clock,
    hour=r"(?!)",
    signs="と|たす|は|パーセント|かける|わる|ひく|プラスマイナス|いか|いじょう|しょうなり|だいなり|ノットイコール|やく|ルート|から|のにじょう",
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
)
_ANY_COUNTER = "|".join(sorted(_COUNTERS, key=len, reverse=True))
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_COUNTED = (
    rf"(?P<sign>(?<![\w.)])[-−])?(?P<number>{_NUMBER})(?P<scale>[万億千])?"
    rf"(?P<counter>{_ANY_COUNTER})?(?![A-Za-z\d%°:./]|[-~〜]\d)"
)
JAPANESE = SPEECH.language(
    numbers=(
        (Kind.LAUGHTER, r"(?:(?<!.)|(?<=[、。！!\s]))8{3,}(?=$|[、。！!\s])", lambda m: "ぱちぱちぱち"),
        (
            Kind.DATE,
            r"(?:(\d{4})年)?(\d{1,2})月(\d{1,2})日(?!間)",
            lambda m: (
                (counted(int(m[1]), "年") if m[1] else "")
                + counted(int(m[2]), "月")
                + counted(int(m[3]), "日")
            ),
        ),
        (Kind.TIME, r"(\d{1,2})時半", lambda m: counted(int(m[1]), "時") + "はん"),
        (
            Kind.RANGE,
            rf"(\d+)[-~〜](\d+)({_ANY_COUNTER})",
            lambda m: f"{cardinal(int(m[1]))}から{counted(int(m[2]), m[3])}",
        ),
        (Kind.NUMBER, _COUNTED, _counted),
    ),
    words=((Kind.LAUGHTER, r"(?:w{2,}|W{2,}|w)(?![A-Za-z\d.])", lambda m: "わら"),),
    signs=((Kind.NUMBER, rf"第(\d{{1,4}})({_ANY_COUNTER})?", _nth),),
)

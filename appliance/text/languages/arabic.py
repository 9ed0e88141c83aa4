"""Arabic: the words of numbers and signs, as Modern Standard Arabic in pause, without endings of case.

A number that counts no noun has the form that is used in counting, خمسة, as before a masculine noun. Before a
noun its gender is kept, as are the twos and tens after a preposition, عشرين: both can be heard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from appliance.text.languages.lexis import Lexis, Noun, as_rows
from appliance.text.languages.readings import language_of, number_table
from appliance.text.spans import Kind, Say, Table, before

_ONES = str.split("صفر واحد اثنان ثلاثة أربعة خمسة ستة سبعة ثمانية تسعة عشرة")
_FEMININE_ONES = str.split("صفر واحدة اثنتان ثلاث أربع خمس ست سبع ثماني تسع عشر")
"""Numbers before a feminine noun."""
_TENS = str.split("_ _ عشرون ثلاثون أربعون خمسون ستون سبعون ثمانون تسعون")
_HUNDREDS = str.split("_ مئة مئتان ثلاثمئة أربعمئة خمسمئة ستمئة سبعمئة ثمانمئة تسعمئة")
_SCALES = (
    (10**9, ("مليار", "ملياران", "مليارات")),
    (10**6, ("مليون", "مليونان", "ملايين")),
    (1_000, ("ألف", "ألفان", "آلاف")),
)
_ORDINALS = str.split("_ الأول الثاني الثالث الرابع الخامس السادس السابع الثامن التاسع العاشر الحادي")
_QUARTERS = {15: "والربع", 20: "والثلث", 30: "والنصف"}
_MINUTE = ("دقيقة", "دقيقتان", "دقائق")
_MONTHS = "يناير فبراير مارس أبريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر نوفمبر ديسمبر"
_PREPOSITION = re.compile(
    r"(?<!\w)(?:و?(?:في|من|إلى|الى|على|عن|حتى|بعد|قبل|منذ|خلال|حوالي|يوم|كل|لمدة|مع|بين|تحت|فوق|عام|سنة|لعام|بعام|لسنة)"
    rf"|{_MONTHS.replace(' ', '|')}) $"
)
_LARGE_TWO = "ألف|مئت|مليون|مليار"


def form(number: str) -> int:
    """ريال 0, ريالان 1, ريالات 2."""
    if number in ("1", "2") or "." in number:
        return int(number == "2")
    return 2 * (3 <= int(number) % 100 <= 10)


def cardinal(number: int, gender: str = "") -> str:
    """Words of a number; with a gender the form before a noun: مئتا."""
    words = " و".join(_parts(number, gender))
    return re.sub(rf"({_LARGE_TWO})ان$", r"\1ا", words) if gender else words


def _parts(number: int, gender: str) -> list[str]:
    for size, names in _SCALES:
        if number >= size:
            count, rest = divmod(number, size)
            counted = f"{cardinal(count, 'm')} {names[form(str(count))]}" if count > 2 else names[count - 1]
            return [counted, *(_parts(rest, gender) if rest else ())]
    if number >= 100:
        return [_HUNDREDS[number // 100], *(_parts(number % 100, gender) if number % 100 else ())]
    ones = _FEMININE_ONES if gender == "f" else _ONES
    if number <= 10:
        return [ones[number]]
    if number < 20:
        pair = {11: ("أحد", "إحدى"), 12: ("اثنا", "اثنتا")}.get(number, (ones[number - 10],) * 2)
        return [f"{pair[gender == 'f']} {'عشرة' if gender == 'f' else 'عشر'}"]
    tens = _TENS[number // 10]
    one = re.sub("ثماني$", "ثمان", ones[number % 10])
    return [one, tens] if number % 10 else [tens]


def ordinal(number: int, gender: str = "") -> str:
    """Definite; from 100 on the number itself."""
    tens, ones = divmod(number, 10)
    if number < 1 or number > 99 or (ones == 0 and tens > 1):
        return f"ال{cardinal(number)}"
    name = _ORDINALS[10 if number == 10 else 11 if ones == 1 and tens else ones]
    if gender == "f":
        name = "الأولى" if number == 1 else name.replace("الحادي", "الحادية") if ones == 1 else f"{name}ة"
    if number <= 10:
        return name
    return f"{name} {'عشرة' if gender == 'f' else 'عشر'}" if tens == 1 else f"{name} وال{_TENS[tens]}"


def oblique(words: str) -> str:
    """Twos and tens after a preposition."""
    words = re.sub(rf"\b(و?(?:{_LARGE_TWO}|اثنت?))ا\b", r"\1ي", words)
    words = re.sub(r"(?<=\w\w)(?<!ثم)(?<!ثو)ان\b", "ين", words)  # but ثمان and ثوان
    return re.sub(r"(عشر|ثلاث|أربع|خمس|ست|سبع|ثمان|تسع)ون\b", r"\1ين", words)


def clock(hour: int, minute: int, marked: bool) -> str:
    words = "الواحدة" if hour == 1 else ordinal(hour or 12, "f")
    if not minute or minute in _QUARTERS:
        return f"{words} {_QUARTERS.get(minute, '')}".strip()
    name = _MINUTE[form(str(minute))]
    minutes = name if minute < 3 else f"{cardinal(minute, 'f')} {name}"
    return f"{words} و{minutes}"


@dataclass(frozen=True)
class _Arabic(Lexis):
    def counted(self, number: str, noun: Noun) -> str:
        """The word for one stands after its noun, two is the noun's dual, 102 a hundred nouns and two."""
        if len(noun.forms) == 1:
            return f"{self.spoken(number)} {noun.forms[0]}"
        name, _, tail = noun.forms[self.form(number)].partition(" ")
        rest = int(number) % 100 if number.isdigit() else 0
        if rest in (1, 2) and number != str(rest):
            hundreds = self.spoken(str(int(number) - rest), noun.gender)
            return f"{hundreds} {name} و{noun.forms[rest - 1]}"
        if number == "1":
            name += " واحدة" if noun.gender == "f" else " واحد"
        elif number != "2":
            name = f"{self.spoken(number, '' if '.' in number else noun.gender)} {name}"
        return f"{name} {tail}".strip()

    def between(self, first: str, word: str, second: str) -> str:
        return super().between(first, word, oblique(second) if word == self.to else second)


LEXIS = _Arabic(
    code="ar",
    scripts=("ARABIC",),
    cardinal=cardinal,
    ordinal=ordinal,
    year=lambda number: oblique(cardinal(number)),
    sample="أإآةئىؤء",
    comma="، ",
    decimal=".",
    point="فاصلة",
    in_pairs=True,
    form=form,
    units="""
        م2 متر مربع/متران مربعان/أمتار مربعة; m2 متر مربع/متران مربعان/أمتار مربعة
        كم2 كيلومتر مربع/كيلومتران مربعان/كيلومترات مربعة
        km2 كيلومتر مربع/كيلومتران مربعان/كيلومترات مربعة; mbit ميغابت; gbit غيغابت; gbps غيغابت في الثانية
        ¢ سنت/ان/ات; mah مللي أمبير ساعة; kwh كيلوواط ساعة; mw ميغاواط; gw غيغاواط; kv كيلوفولت
        ma مللي أمبير; khz كيلوهرتز; ميغا ميغا; º f:درجة/درجتان/درجات
        m3 متر مكعب/متران مكعبان/أمتار مكعبة; م3 متر مكعب/متران مكعبان/أمتار مكعبة
        mm مليمتر/ان/ات; g غرام/ان/ات; ml مليلتر/ان/ات; l لتر/ان/ات; mg مليغرام/ان/ات
        كغ كيلوغرام/ان/ات; كغم كيلوغرام/ان/ات; كجم كيلوغرام/ان/ات; كيلو كيلو; غ غرام/ان/ات; جم غرام/ان/ات
        كم كيلومتر/ان/ات; م متر/متران/أمتار; سم سنتيمتر/ان/ات; مم مليمتر/ان/ات; لتر لتر/ان/ات
        مل مليلتر/ان/ات; كم/س كيلومتر/ان/ات في الساعة; كم/ساعة كيلومتر/ان/ات في الساعة
        km/h كيلومتر/ان/ات في الساعة; kg كيلوغرام/ان/ات; km كيلومتر/ان/ات; cm سنتيمتر/ان/ات
        m متر/متران/أمتار; kb كيلوبايت; mb ميغابايت; gb غيغابايت; tb تيرابايت; mbps ميغابت في الثانية
        fps إطار/ان/ات في الثانية; hz هرتز; mhz ميغاهرتز; ghz غيغاهرتز; w واط; kw كيلوواط; px بكسل
        ms مللي ثانية; s f:ثانية/ثانيتان/ثوان; ث f:ثانية/ثانيتان/ثوان; min f:دقيقة/دقيقتان/دقائق
        د f:دقيقة/دقيقتان/دقائق; h f:ساعة/ساعتان/ساعات; س f:ساعة/ساعتان/ساعات; d يوم/يومان/أيام; % بالمئة
        ٪ بالمئة; ° f:درجة/درجتان/درجات; °c f:درجة/درجتان/درجات مئوية; °م f:درجة/درجتان/درجات مئوية
        °f f:درجة/درجتان/درجات فهرنهايت; x f:مرة/مرتين/مرات
    """,
    cased="W واط; V فولت; A أمبير; Ah أمبير ساعة; Wh واط ساعة",
    per="""
        s في الثانية; sec في الثانية; min في الدقيقة; h في الساعة; d في اليوم; ث في الثانية
        ثانية في الثانية; د في الدقيقة; دقيقة في الدقيقة; س في الساعة; ساعة في الساعة; يوم في اليوم
        أسبوع في الأسبوع; شهر في الشهر; سنة في السنة; kg للكيلوغرام; g للغرام; l للتر; km للكيلومتر
        m للمتر; m2 للمتر المربع; km2 للكيلومتر المربع; m3 للمتر المكعب; kwh للكيلوواط ساعة; gb للغيغابايت
        كغ للكيلوغرام; كجم للكيلوغرام; كم للكيلومتر; م2 للمتر المربع; شخص للشخص
    """,
    per_word="لكل {}",
    clock_before="الساع[ةه]|في",
    lasting="(?:ال)?باقي|(?:ال)?متبقي|تبقى|بقي",
    labelled="ص = صفحة; ج = جزء",
    currencies="""
        ﷼ ريال/ان/ات|f:هللة/هللتان/هللات; ر.س ريال/ان/ات|f:هللة/هللتان/هللات
        SAR ريال/ان/ات|f:هللة/هللتان/هللات; $ دولار/ان/ات|سنت/ان/ات; US$ دولار/ان/ات|سنت/ان/ات
        USD دولار/ان/ات|سنت/ان/ات; € يورو|سنت/ان/ات; EUR يورو|سنت/ان/ات; £ جنيه/ان/ات|قرش/ان/قروش
        ج.م جنيه/ان/ات|قرش/ان/قروش; EGP جنيه/ان/ات|قرش/ان/قروش; د.إ درهم/ان/دراهم|فلس/ان/فلوس
        AED درهم/ان/دراهم|فلس/ان/فلوس; د.م درهم/ان/دراهم|سنتيم/ان/ات; د.ك دينار/ان/دنانير|فلس/ان/فلوس
        د.ع دينار/ان/دنانير; د.ج دينار/ان/دنانير; د.ت دينار/ان/دنانير; ريال ريال/ان/ات|f:هللة/هللتان/هللات
        دولار دولار/ان/ات|سنت/ان/ات; جنيه جنيه/ان/ات|قرش/ان/قروش; درهم درهم/ان/دراهم|فلس/ان/فلوس
        دينار دينار/ان/دنانير|فلس/ان/فلوس; ليرة f:ليرة/ليرتان/ليرات; ₺ f:ليرة/ليرتان/ليرات
        ل.س f:ليرة/ليرتان/ليرات; ل.ل f:ليرة/ليرتان/ليرات; ¥ ين; ₩ وون; ₽ روبل/ان/ات
        ₹ f:روبية/روبيتان/روبيات; ₿ بيتكوين
    """,
    cents=" و{} {cent}",
    thousands="k K ك ألف الف آلاف الاف",
    scales="""
        M 1000000 مليون/ان/ملايين; مليون 1000000 مليون/ان/ملايين; ملايين 1000000 مليون/ان/ملايين
        مليار 1000000000 مليار/ان/ات
    """,
    months=_MONTHS,
    of_month=r"\s",
    day=lambda number, match: "الأول من" if number == 1 else cardinal(number),
    date=("{day} {month}", " عام {year}"),
    date_before="يوم|بتاريخ|تاريخ|حتى|لغاية",
    clock=clock,
    feminine=r"\w+ة|مرات|دقائق|دقايق|ساعات|ثواني|ثوان|سنوات|سنين|جولات|مباريات|نقاط|نقط|حلقات|ليالي|قنوات|صور|هدايا"
    "|ألعاب|مراحل|خرائط|محاولات|بطولات|رسائل|بنات|كلمات|غرف|جوائز|شخصيات|سيارات|نسخ|طلقات|ضربات|درجات|خطوات"
    "|صفحات|دول|قطع|لغات|أرواح|مهمات|مهام|فرص|بطاقات",
    no_noun=r"ال\w+|و\w*|من|في|على|إلى|الى|عن|مع|ضد|أو|او|ثم|لكن|بس|لا|ما|هو|هي|هذا|هذه|كان|كانت|يا|أنا|انا|أنت|كل"
    "|فقط|اليوم|بعد|قبل|حتى|لأن|إذا|اذا|مباشر|مقابل",
    labels="مستوى|المستوى|لفل|رقم|المركز|مركز|الحلقة|حلقة|الجزء|جزء|الموسم|المرحلة|الجولة|توب|صفحة|الساعة|عام|سنة"
    "|القسم|فصل|الفصل|الإصدار",
    signs="و|زائد|يساوي|بالمئة|ضرب|تقسيم|ناقص|زائد أو ناقص|أصغر من أو يساوي|أكبر من أو يساوي|أصغر من|أكبر من"
    "|لا يساوي|حوالي|جذر|إلى|تربيع|أس",
    limits="أقل من|أكثر من",
    to="إلى",
    score="مقابل",
    out_of="من",
    versus="ضد",
    number_sign="رقم",
    version="الإصدار",
    dot="نقطة",
    minus="سالب",
    link="رابط",
    mail="بريد إلكتروني",
    listing="كود.",
    heart="قلب",
    fractions={
        ("1", "2"): "نصف",
        ("1", "3"): "ثلث",
        ("2", "3"): "ثلثان",
        ("1", "4"): "ربع",
        ("3", "4"): "ثلاثة أرباع",
        ("24", "7"): "أربع وعشرون ساعة طوال الأسبوع",
    },
    abbreviations="""
        د. = دكتور; أ. = أستاذ; م. = مهندس; ص. = صفحة; ت. = هاتف; ق. م = قبل الميلاد; ص. ب = صندوق بريد
        ج. = جزء
    """,
)


def _in_case(say: Say) -> Say:
    """Put words into the oblique case after a preposition, which may be a prefix of the number: بـ5."""

    def read(match: re.Match[str]) -> str | tuple[Kind, str] | None:
        words, prefix = say(match), match.groupdict().get("prefix") or ""
        if words is None or not (prefix or _PREPOSITION.search(before(match))):
            return words
        kind, text = words if isinstance(words, tuple) else (None, words)
        text = prefix + (text if prefix in ("و", "ف") else oblique(text))
        return (kind, text) if kind else text

    return read


def _moment(match: re.Match[str]) -> str | None:
    """19:30, 7:05 م, 7 pm; a bare hour after the word for it."""
    hour, minute, half = int(match["h"]), int(match["m"] or 0), (match["half"] or "")[:1].lower()
    is_named = re.search(r"الساع[ةه] $", before(match))
    is_told = bool(is_named or _DAY_PARTS.match(match.string, match.end()))
    if not hour and re.search(rf"(?:{LEXIS.lasting}) $", before(match)):
        return None
    if hour > 24 or minute > 59 or not (match["m"] or half in ("a", "p") or is_told):
        return None
    words = clock(hour, minute, False) + {"a": " صباحا", "ص": " صباحا", "p": " مساء", "م": " مساء"}.get(
        half, ""
    )
    is_plain = not (is_named or match.groupdict().get("prefix") or _PREPOSITION.search(before(match)))
    return f"الساعة {words}" if is_plain else words


def _year(match: re.Match[str]) -> str | None:
    """1445هـ, عام 2026م"""
    if match["era"] == "م" and not re.search(r"(?:عام|سنة|/) ?$", before(match)):
        return None
    return f"{oblique(cardinal(int(match['year'])))} {'ميلادي' if match['era'] == 'م' else 'هجري'}"


def _one(match: re.Match[str]) -> str | None:
    """1 دقيقة, 2 دقيقة: one stands after its noun, two is its dual."""
    noun, is_one = match[2], int(match[1]) == 1
    if (
        noun in _UNITS
        or re.fullmatch(f"{LEXIS.no_noun}|{_MONTHS.replace(' ', '|')}", noun)
        or _LABEL.search(before(match))
    ):
        return None
    if is_one:
        return f"{noun} {'واحدة' if re.fullmatch(LEXIS.feminine, noun) else 'واحد'}"
    if noun[-1] != "ة" and not re.fullmatch(_WITH_DUAL, noun):
        return None
    ending = "ين" if _PREPOSITION.search(before(match)) else "ان"
    return f"{noun[:-1]}ت{ending}" if noun[-1] == "ة" else f"{noun}{ending}"


def _definite(match: re.Match[str]) -> str:
    """الـ3: an ordinal after a definite noun."""
    number, noun = int(match[1]), re.search(r"(?<!\w)[وفبل]?ا?ل\w+ $", before(match))
    if noun and number < 100:
        return ordinal(number, "f" if noun[0].endswith("ة ") else "")
    return f"ال{cardinal(number, LEXIS.followed(match))}"


def _rank(match: re.Match[str]) -> str | None:
    """المركز 2, الحلقة 3"""
    noun = re.search(rf"(?<!\w)(?:[وفبك]?ال|لل)(?:{_RANKED}|(?P<f>{_RANKED_FEMININE})) $", before(match))
    return ordinal(int(match[1]), "f" if noun["f"] else "") if noun and 0 < int(match[1]) < 100 else None


def _by(match: re.Match[str]) -> str:
    return f"{LEXIS.spoken(LEXIS.plain(match[1]))} في {oblique(LEXIS.spoken(LEXIS.plain(match[2])))}"


def _percent(match: re.Match[str]) -> str:
    return f"{LEXIS.spoken(LEXIS.plain(match[1]))} بالمئة"


_RANKED = "مركز|موسم|قرن|جزء|دور|أسبوع"
_RANKED_FEMININE = "حلقة|مرحلة|جولة|مرتبة"
"""Nouns whose number is an ordinal."""
_WITH_DUAL = "يوم|شهر|أسبوع|شخص|لاعب|متابع|مشترك|مشاهد|صديق|هدف|كوب|عام"
"""Masculine nouns that two of them make a dual: 2 يوم."""
_DAY_PARTS = re.compile(r"(?: (?:إلى|الى) \d{1,2}(?::\d\d)?)? (?:مساء|صباح|ظهر|عصر|فجر|ليل)")
_LABEL = re.compile(rf"(?<!\w)(?:{LEXIS.labels}) $")
_UNITS = as_rows(LEXIS.units)
_ENDS = r"(?![\w%٪°]|[.,:/]\d)"
_MOMENT = rf"(?P<h>\d{{1,2}})(?::(?P<m>\d\d))?(?:\s?(?P<half>[صم]|[apAP]\.?[mM]))?{_ENDS}"
_YEAR = r"(?P<year>1[3-9]\d\d|20\d\d|١[٣-٩]\d\d|٢٠\d\d)\s?(?P<era>م|هـ?)(?!\w)"
_SIMPLE = r"(?!\d+[/:]\d|\d+(?:[ -]\d+){2,}|\d+(?:\.\d+){2,})"
"""No date, fraction or telephone number."""
_TABLE: Table = [
    (kind, pattern, _in_case(say))
    for kind, pattern, say in (
        (Kind.TIME, _MOMENT, _moment),
        (Kind.YEAR, _YEAR, _year),
        (Kind.SIGN, rf"(\d+)\s?x\s?(\d+){_ENDS}", _by),
        *number_table(LEXIS),
    )
]
ARABIC = language_of(
    LEXIS,
    numbers=(
        (Kind.NUMBER, rf"(\d{{1,2}}){_ENDS}", _rank),
        (Kind.NUMBER, r"([12١٢])\s([\u0621-\u064a]{3,})", _one),
        *_TABLE,
    ),
    words=(
        (Kind.NUMBER, r"الـ?\s?(\d+)(?![\w%٪]|[.,:/]\d)", _definite),
        (Kind.WORD, r"[إا]لخ(?!\w)", lambda m: "إلى آخره"),
        *(
            (kind, rf"(?P<prefix>[وفبلك])ـ?\s?{_SIMPLE if '(?P<number' in pattern else ''}(?:{pattern})", say)
            for kind, pattern, say in _TABLE
            if pattern in (_MOMENT, _YEAR) or "(?P<number" in pattern
        ),
        (Kind.WORD, r"[وفبلك]ـ?(?=\d)", lambda m: m[0][0]),
    ),
    signs=((Kind.PERCENT, r"[%٪]\s?(\d+(?:[.,٫]\d+)?)", _percent),),
)

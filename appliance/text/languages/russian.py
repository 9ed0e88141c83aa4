"""Russian: the words of numbers and signs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from appliance.text.languages.lexis import Lexis, as_noun, as_rows
from appliance.text.languages.numbers import roman
from appliance.text.languages.quantity import is_rating
from appliance.text.languages.readings import language_of, number_table
from appliance.text.spans import Kind, Say, before

_SMALL = str.split(
    "ноль один два три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать "
    "четырнадцать пятнадцать шестнадцать семнадцать восемнадцать девятнадцать"
)
_TENS = str.split("_ _ двадцать тридцать сорок пятьдесят шестьдесят семьдесят восемьдесят девяносто")
_HUNDREDS = str.split("_ сто двести триста четыреста пятьсот шестьсот семьсот восемьсот девятьсот")
_SCALES = (
    (10**9, "m", ("миллиард", "миллиарда", "миллиардов")),
    (10**6, "m", ("миллион", "миллиона", "миллионов")),
    (1_000, "f", ("тысяча", "тысячи", "тысяч")),
)
_OF_GENDER = {
    ("один", "f"): "одна",
    ("один", "n"): "одно",
    ("один", "a"): "одну",
    ("два", "f"): "две",
    ("два", "a"): "две",
}
_GENITIVES = as_rows(
    "ноль ноля; один одного; одно одного; одна одной; одну одной; два двух; две двух; три трёх"
    "; четыре четырёх; восемь восьми; сорок сорока; девяносто девяноста; сто ста; двести двухсот"
    "; триста трёхсот; четыреста четырёхсот; тысяча тысячи; тысячи тысяч"
) | {many[form]: many[form + 1] for _, _, many in _SCALES[:2] for form in (0, 1)}
_ORDINALS = {
    number: re.sub("ь$", "", word)
    for number, word in [*enumerate(_SMALL), *((10 * n, _TENS[n]) for n in (2, 3))]
} | {
    0: "нулев",
    1: "перв",
    2: "втор",
    3: "трет",
    4: "четвёрт",
    7: "седьм",
    8: "восьм",
    40: "сороков",
    90: "девяност",
}
_STRESSED = (0, 2, 6, 7, 8, 40)
_HARD = str.split("ый ая ое ого ому ым ом ую ой ые ых ыми")
_SOFT = str.split("ий ья ье ьего ьему ьим ьем ью ьей ьи ьих ьими")
_ENDINGS = {
    "й": "ый", "я": "ая", "е": "ое", "го": "ого", "му": "ому", "м": "ым", "ю": "ую", "х": "ых", "ми": "ыми"
} | {ending: ending for ending in _HARD}  # fmt: skip
_LOCATIVE = re.compile(r"(?i)(?<!\w)(?:во?|на|об?|при) $")
_GENITIVE = re.compile(
    r"(?i)(?<!\w)(?:до|от|из|без|около|больше|меньше|более|менее|свыше|после|для|против|кроме|старше|младше"
    r"|порядка|ниже|выше|дороже|дешевле|ок\.) $|[<>≥≤]=?\s?$"
)
_FROM = re.compile(r"(?i)(?<!\w)со? $")
_HOURS = re.compile(r"\s(?:час|утра|вечера|дня|ночи|минут|лет|(?:до|по)\s\d)")
"""Words after a number that с puts in the genitive."""
_TO = re.compile(r"(?i)(?<!\w)ко? $")
_PLURAL = re.compile(r"\s[а-яё]{2,}(?P<case>[ая]ми?|ьми|[ая]х)(?![\w-])")
"""A noun whose ending tells the case of the number before it."""
_OBLIQUE = {
    "м": {"одного": "одному", "двух": "двум", "трёх": "трём", "четырёх": "четырём"},
    "и": {"одного": "одним", "одной": "одной", "двух": "двумя", "трёх": "тремя", "четырёх": "четырьмя"},
}
"""Dative and instrumental, by the last letter of the noun, from the genitive."""
_FEMININE_PLACE = re.compile(
    r"(?!веке|уроке|звонке|рынке|списке|участке|кубке|замке)(?:карте|минуте|игре|секунде|неделе|главе|странице|волне|лиге|фазе|ночи|части|\w+(?:ии|ке))"
)
_NUMBERED = {
    **dict.fromkeys(str.split("сезон раунд этап тур класс этаж выпуск эпизод том курс уровень день"), "ый"),
    **dict.fromkeys(str.split("серия часть глава лига фаза волна страница минута ступень"), "ая"),
    "место": "ое",
}
"""Nouns which in the nominative make the number before them an ordinal, and its ending."""
_NOMINATIVE = re.compile(r"(?i)(?:^|\s[-–—]\s?|[:(«\"]\s?|(?<!\w)(?:сегодня|завтра|вчера|это|на|по|за) )$")
_MONTHS = "января февраля марта апреля мая июня июля августа сентября октября ноября декабря"
_SHORT = "руб|р|коп|тыс|млн|млрд|шт|чел|мин|сек|ч|кг|км|см|мм|м|л|г"
"""Units and scales that are written with a full stop too."""


def form(number: str) -> int:
    """рубль 0, рубля 1, рублей 2; a fraction is followed by 1."""
    if "." in number:
        return 1
    ones = 0 if int(number) % 100 in (11, 12, 13, 14) else int(number) % 10
    return 0 if ones == 1 else 1 if ones in (2, 3, 4) else 2


def genitive_form(number: str) -> int:
    """рубля 1, рублей 2."""
    return 1 if "." in number or form(number) == 0 else 2


def cardinal(number: int, gender: str = "") -> str:
    """Gender "m", "f", "n", or "a" for the feminine accusative: одну."""
    for size, of_size, names in _SCALES:
        if number >= size:
            count, rest = divmod(number, size)
            words = f"{cardinal(count, of_size)} {names[form(str(count))]}"
            return words + (f" {cardinal(rest, gender)}" if rest else "")
    for size, table in ((100, _HUNDREDS), (10, _TENS)):
        if number >= max(size, 20):
            count, rest = divmod(number, size)
            return table[count] + (f" {cardinal(rest, gender)}" if rest else "")
    return _OF_GENDER.get((_SMALL[number], gender), _SMALL[number])


def genitive(words: str) -> str:
    return " ".join(map(_word_of, words.split()))


def _word_of(word: str) -> str:
    if word in _GENITIVES:
        return _GENITIVES[word]
    if hundreds_or_tens := re.fullmatch("(.+ь)(десят|сот)", word):
        return f"{_word_of(hundreds_or_tens[1])}{hundreds_or_tens[2]}{'и' * (hundreds_or_tens[2] == 'десят')}"
    return re.sub("ая$", "ой", re.sub("ь$", "и", word))


def _stem(last: int) -> str:
    if last in _ORDINALS:
        return _ORDINALS[last]
    if last < 100:
        return f"{genitive(_SMALL[last // 10])}десят"
    size, name = next(
        pair for pair in ((10**6, "миллионн"), (1_000, "тысячн"), (100, "сот")) if last >= pair[0]
    )
    count = last // size
    return (genitive(cardinal(count)).replace(" ", "") if count > 1 else "") + name


def ordinal(number: int, ending: str = "") -> str:
    """`ending` as in _HARD."""
    ending = ending if ending in _HARD else "ый"
    last = number % 100 if number % 10 == 0 or number % 100 < 20 else number % 10
    last = last or number % 1_000 or number % 10**6 or number
    head = cardinal(number - last) if number > last else ""
    if last == 3:
        ending = _SOFT[_HARD.index(ending)]
    elif last in _STRESSED and ending == "ый":
        ending = "ой"
    return f"{head} {_stem(last)}{ending}".strip().removeprefix("одна ")


def day(number: int, match: re.Match[str]) -> str:
    """Nominative as a title and after some words, else genitive: on that day."""
    earlier, after = before(match), match.string[match.end() :]
    goes_on = re.match(r"\s[а-яё]+\s[а-яё\d]" if match[0].isdigit() else r"\s[а-яё]", after)
    is_title = _NOMINATIVE.search(earlier) and (earlier or not goes_on)
    if _TO.search(earlier):
        return ordinal(number, "ому")
    return ordinal(number, "ое" if is_title else "ого")


def clock(hour: int, minute: int, marked: bool) -> str:
    if not minute:
        return f"{cardinal(hour)} {'ноль-ноль' if hour else 'часов'}"
    return f"{cardinal(hour)} {'ноль ' if minute < 10 else ''}{cardinal(minute)}"


def decimals(whole: str, part: str) -> str:
    """Up to thousandths as a fraction."""
    if len(part) > 3 or not int(part):
        mark = " запятая" if int(part) else ""
        return f"{cardinal(int(whole))}{mark} {' '.join(cardinal(int(digit)) for digit in part)}"
    of_whole, of_part = ("ая" if form(n) == 0 else "ых" for n in (whole, part))
    place = ("десят", "сот", "тысячн")[len(part) - 1]
    return f"{cardinal(int(whole), 'f')} цел{of_whole} {cardinal(int(part), 'f')} {place}{of_part}"


@dataclass(frozen=True)
class _Russian(Lexis):
    genitive: bool = False

    def between(self, first: str, word: str, second: str) -> str:
        return f"{first}-{second}" if word == "-" else super().between(first, word, second)

    def followed(self, match: re.Match[str]) -> str:
        """Gender of one by the singular of the noun, of two by its genitive."""
        after = re.match(r"\s([а-яё]+)(?:\s([а-яё]+))?", match.string[match.end() :].lower())
        if not after or re.fullmatch(self.no_noun, after[1]) or _LABEL.search(before(match)):
            return ""
        groups = match.groupdict()
        number = self.plain(groups.get("number") or groups.get("number_b") or "0").partition(".")[0]
        word = after[2] or after[1] if re.search("[ыи][хе]$", after[1]) else after[1]
        if self.genitive or form(number):
            return "f" if re.search("[ыи]$|ой$", word) else "m"
        if re.search("[ую]ю$|[ую]$", word):
            return "a"
        if re.search("[оеё]$|мя$", word):
            return "n"
        return "f" if re.search("[ая]$|(?:ост|зн|ч|щ|част|смерт|двер|запис|рол|модел|цел)ь$", word) else "m"


_LABEL = re.compile(
    r"(?i)(?<!\w)(?:уровень|уровня|уровне|лвл|номер|топ|часть|сезон|серия|раунд|карта|фаза|эпизод|версия|глава"
    r"|акт|вариант|пункт|шаг|день|игра|№)\s?$"
)
LEXIS = _Russian(
    code="ru",
    scripts=("CYRILLIC",),
    cardinal=cardinal,
    ordinal=lambda number, _: ordinal(number),
    year=lambda number: ordinal(number, "ого"),
    sample="ёйъыэюя",
    point="запятая",
    decimals=decimals,
    form=form,
    units="""
        кв.м квадратный метр/квадратных метра/квадратных метров
        м2 квадратный метр/квадратных метра/квадратных метров
        m2 квадратный метр/квадратных метра/квадратных метров
        км2 квадратный километр/квадратных километра/квадратных километров
        km2 квадратный километр/квадратных километра/квадратных километров
        м3 кубический метр/кубических метра/кубических метров; кбит килобит/а/килобит
        мбит мегабит/а/мегабит; гбит гигабит/а/гигабит; mbit мегабит/а/мегабит; gbit гигабит/а/гигабит
        mbps мегабит/а/мегабит в секунду; gbps гигабит/а/гигабит в секунду; ¢ цент/а/ов
        мач миллиампер-час/а/ов; mah миллиампер-час/а/ов; квтч киловатт-час/а/ов; квт·ч киловатт-час/а/ов
        kwh киловатт-час/а/ов; kw киловатт/а/киловатт; кгц килогерц/а/килогерц
        º градус/а/ов; mhz мегагерц/а/мегагерц
        м метр/а/ов; ккал f:килокалория/килокалории/килокалорий
        m3 кубический метр/кубических метра/кубических метров
        gw гигаватт/а/гигаватт; khz килогерц/а/килогерц
        cm сантиметр/а/ов; mm миллиметр/а/ов; m метр/а/ов; g грамм/а/ов; l литр/а/ов; ml миллилитр/а/ов
        кг килограмм/а/ов; г грамм/а/ов; т f:тонна/тонны/тонн; км километр/а/ов; м метр/а/ов
        см сантиметр/а/ов; мм миллиметр/а/ов; л литр/а/ов; мл миллилитр/а/ов; км/ч километр/а/ов в час
        м/с метр/а/ов в секунду; кб килобайт/а/килобайт; мб мегабайт/а/мегабайт; гб гигабайт/а/гигабайт
        тб терабайт/а/терабайт; мбит/с мегабит/а/ов в секунду; kg килограмм/а/ов; km километр/а/ов
        mb мегабайт/а/мегабайт; gb гигабайт/а/гигабайт; tb терабайт/а/терабайт; fps кадр/а/ов в секунду
        фпс кадр/а/ов в секунду; гц герц/а/герц; hz герц/а/герц; мгц мегагерц/а/мегагерц
        ггц гигагерц/а/гигагерц; ghz гигагерц/а/гигагерц; вт ватт/а/ватт; квт киловатт/а/киловатт
        дб децибел/а/децибел; px пиксель/пикселя/пикселей; ms f:миллисекунда/миллисекунды/миллисекунд
        мс f:миллисекунда/миллисекунды/миллисекунд; s f:секунда/секунды/секунд; сек f:секунда/секунды/секунд
        min f:минута/минуты/минут; мин f:минута/минуты/минут; h час/а/ов; ч час/а/ов; d день/дня/дней
        шт f:штука/штуки/штук; чел человек/а/человек; % процент/а/ов; ° градус/а/ов; °c градус/а/ов Цельсия
        °с градус/а/ов Цельсия; °f градус/а/ов Фаренгейта; x раз/а/раз; х раз/а/раз; ★ f:звезда/звезды/звёзд
    """,
    cased="""
        W ватт/а/ватт; В вольт/а/вольт; V вольт/а/вольт; А ампер/а/ампер; A ампер/а/ампер
        Вт ватт/а/ватт; mA миллиампер/а/миллиампер; kV киловольт/а/киловольт; MW мегаватт/а/мегаватт
        мА миллиампер/а/миллиампер; кВ киловольт/а/киловольт; МВт мегаватт/а/мегаватт
    """,
    per="""
        s в секунду; sec в секунду; min в минуту; h в час; d в день; с в секунду; сек в секунду
        мин в минуту; ч в час; час в час; день в день; сут в сутки; сутки в сутки; нед в неделю
        неделю в неделю; мес в месяц; месяц в месяц; год в год; kg за килограмм; g за грамм; l за литр
        km за километр; m за метр; m2 за квадратный метр; km2 за квадратный километр; m3 за кубический метр
        kwh за киловатт-час; gb за гигабайт; кг за килограмм; г за грамм; л за литр; км за километр
        м2 за квадратный метр; км2 за квадратный километр; м3 за кубический метр; квтч за киловатт-час
        квт·ч за киловатт-час; шт за штуку
        чел за человека; гб за гигабайт
    """,
    per_word="за {}",
    clock_before="в|к|до|с",
    lasting="осталось|ещё|еще|через|за",
    half=lambda number: f"{cardinal(number)} с половиной",
    labelled="с. = страница; т. = том; сер. = серия; ep = эпизод",
    kings="Людовик|П[её]тр|Николай|Александр|Иван|Павел|Генрих|Карл|Георг|Фридрих|Вильгельм|Филипп|Ричард|Эдуард"
    "|Наполеон|Василий|Иоанн(?: Павел)?",
    queens="Екатерина|Елизавета|Мария|Анна",
    regnal=lambda number, gender: ordinal(number, "ая" if gender == "f" else "").capitalize(),
    currencies="""
        ₽ рубль/рубля/рублей|f:копейка/копейки/копеек; руб рубль/рубля/рублей|f:копейка/копейки/копеек
        р рубль/рубля/рублей|f:копейка/копейки/копеек; RUB рубль/рубля/рублей|f:копейка/копейки/копеек
        коп f:копейка/копейки/копеек; $ доллар/а/ов|цент/а/ов; USD доллар/а/ов|цент/а/ов
        US$ доллар/а/ов|цент/а/ов; € евро|цент/а/ов; EUR евро|цент/а/ов; £ фунт/а/ов|пенс/а/ов
        ¥ f:иена/иены/иен; ₸ тенге; тг тенге; ₴ f:гривна/гривны/гривен|f:копейка/копейки/копеек
        грн f:гривна/гривны/гривен|f:копейка/копейки/копеек; ₺ f:лира/лиры/лир; ₹ f:рупия/рупии/рупий
        ₿ биткоин/а/ов; ₩ f:вона/воны/вон
    """,
    cents=" {} {cent}",
    thousands="к К k K тыс",
    scales="""
        млн 1000000 миллион/а/ов; кк 1000000 миллион/а/ов; М 1000000 миллион/а/ов; M 1000000 миллион/а/ов
        млрд 1000000000 миллиард/а/ов
    """,
    months=_MONTHS,
    of_month=r"\s",
    day=day,
    date=("{day} {month}", " {year} года"),
    date_before="до|с|на|по|от|к|сегодня|завтра",
    clock=clock,
    hour=r"\s?ч(?:ас(?:ов|а)?)?(?![а-яё])\.?",
    no_noun="и|или|а|но|на|в|во|с|со|к|у|из|за|по|до|от|о|об|не|ни|это|то|как|что|же|ли|бы|уже|ещё|еще|я|ты|мы|вы|он"
    "|она|они|меня|тебя|нас|вас|если|когда|чтобы|есть|нет|да|будет|был|была|были|было|только|раз|раза",
    signs="и|плюс|равно|процентов|умножить на|разделить на|минус|плюс-минус|не больше|не меньше|меньше|больше"
    "|не равно|примерно|корень из|,|в квадрате|в степени",
    to="-",
    score="-",
    out_of="из",
    versus="на",
    number_sign="номер",
    version="версия",
    dot="точка",
    minus="минус",
    link="ссылка",
    mail="почта",
    listing="код.",
    heart="сердечко",
    fractions={
        ("1", "2"): "одна вторая",
        ("1", "3"): "одна треть",
        ("2", "3"): "две трети",
        ("1", "4"): "одна четверть",
        ("3", "4"): "три четверти",
        ("24", "7"): "двадцать четыре на семь",
    },
    weekdays="пн = с понедельника|понедельник; вт = со вторника|вторник; ср = со среды|среду"
    "; чт = с четверга|четверг; пт = с пятницы|пятницу; сб = с субботы|субботу"
    "; вс = с воскресенья|воскресенье",
    day_range="{} по {}",
    chat="пж = пожалуйста; крч = короче; нзч = не за что"
    "; мб = может быть; пжл = пожалуйста; плз = пожалуйста; спс = спасибо; кст = кстати; оч = очень"
    "; лвл = уровень; lvl = уровень",
    abbreviations="""
        т. е. = то есть; т. к. = так как; и т. д. = и так далее; и т. п. = и тому подобное; и др. = и другие
        и пр. = и прочее; т. н. = так называемый; т. о. = таким образом; ул. = улица; просп. = проспект
        г. = город; обл. = область; стр. = страница; им. = имени; макс. = максимум; мин. = минимум
        тел. = телефон; напр. = например; проф. = профессор; гл. = глава; см. = смотри; руб.; тыс.; млн.
        млрд.; шт.; чел.; сек.; н. э. = нашей эры; до н. э. = до нашей эры; т. д. = так далее
        т. п. = тому подобное; ок. = около
    """,
)
_IN_GENITIVE = replace(
    LEXIS,
    genitive=True,
    form=genitive_form,
    cardinal=lambda number, gender: genitive(cardinal(number, gender)),
    decimals=lambda whole, part: genitive(decimals(whole, part)),
)


def _in_case(say: Say) -> Say:
    """Put words into the case of the preposition before, or of the noun after; None: nominative."""

    def read(match: re.Match[str]) -> str | tuple[Kind, str] | None:
        noun, number = _PLURAL.match(match.string, match.end()), match.groupdict().get("number") or ""
        if number and form(LEXIS.plain(number)) == 0:
            noun = None
        is_to = match[0].isdigit() and bool(_TO.search(before(match)))
        is_since = _FROM.search(before(match)) and _HOURS.match(match.string, match.end())
        words = say(match) if noun or is_to or is_since or _GENITIVE.search(before(match)) else None
        ending = noun["case"][-1] if noun else "м" if is_to else ""
        return _oblique(words, ending) if isinstance(words, str) and ending in _OBLIQUE else words

    return read


def _oblique(words: str, ending: str) -> str:
    table = _OBLIQUE[ending]
    said = (table.get(word, re.sub("и$", "ью", word) if ending == "и" else word) for word in words.split())
    return " ".join(said).replace("восьмью", "восемью")


def _place(match: re.Match[str]) -> str | None:
    """5 место, 3 сезон, на 3 карте: a noun in the singular."""
    number, noun = int(match[1]), match[2].lower()
    if form(match[1]) and (ending := _NUMBERED.get(noun)):
        return ordinal(number, ending)
    if not _LOCATIVE.search(before(match)) or not re.search("(?<![иы])е$|ии$|части$|ночи$", noun):
        return None
    if re.fullmatch("уже|же|где|вс[её]|тоже|вообще|не|мне|тебе|себе|даже|более|менее|кайфе", noun):
        return None
    return ordinal(number, "ой" if _FEMININE_PLACE.fullmatch(noun) else "ом")


def _places(match: re.Match[str]) -> str | None:
    """2-3 место"""
    ending = _NUMBERED.get(match[3].lower())
    return f"{ordinal(int(match[1]), ending)}-{ordinal(int(match[2]), ending)}" if ending else None


def _short_day(match: re.Match[str]) -> str | None:
    """24.12"""
    if int(match[1]) > 31:
        return None
    return f"{day(int(match[1]), match)} {_MONTHS.split()[int(match[2]) - 1]}"


def _moment(hour: str, minute: str) -> str:
    """Time of day in the genitive."""
    minutes = (
        f"{'ноля ' if 0 < int(minute) < 10 else ''}{genitive(cardinal(int(minute)))}" if int(minute) else ""
    )
    return f"{genitive(cardinal(int(hour)))} {minutes}".strip()


def _clock_in_case(match: re.Match[str]) -> str | None:
    earlier = before(match)
    if int(match[1]) > 24 or not any(each.search(earlier) for each in (_GENITIVE, _FROM, _TO)):
        return None
    words = _moment(match[1], match[2])
    return _oblique(words, "м") if _TO.search(earlier) else words


def _hours(match: re.Match[str]) -> str | None:
    """19:00-21:00"""
    if max(int(match[1]), int(match[3])) > 24:
        return None
    words = f"{_moment(match[1], match[2])} до {_moment(match[3], match[4])}"
    return words if _FROM.search(before(match)) else f"с {words}"


def _century(match: re.Match[str]) -> str:
    """XX век, в XX веке"""
    endings = {"": "ый", "а": "ого", "у": "ому", "ом": "ым", "е": "ом"}
    return ordinal(roman(match[1]), endings.get(match[2].lower(), "ых"))


def _short_century(match: re.Match[str]) -> str:
    """в XXI в."""
    ending, word = ("ом", "веке") if _LOCATIVE.search(before(match)) else ("", "век")
    stop = "" if match.string[match.end() :].strip() else "."
    number = int(match[1]) if match[1].isdigit() else roman(match[1])
    return f"{ordinal(number, ending)} {word}{stop}"


def _hours_minutes(match: re.Match[str]) -> str:
    """1ч 30м"""
    return f"{LEXIS.in_unit(match[1], 'ч')} {LEXIS.in_unit(match[2], 'мин')}"


def _thousand_roubles(match: re.Match[str]) -> str:
    """5 т.р."""
    return LEXIS.counted(f"{match[1]}000", as_noun("рубль/рубля/рублей"))


def _year_of_era(match: re.Match[str]) -> str:
    """44 г. до н.э."""
    ending, word = ("ом", "году") if _LOCATIVE.search(before(match)) else ("", "год")
    return f"{ordinal(int(match[1]), ending)} {word}"


def _short_year(match: re.Match[str]) -> str | None:
    """98 года, в 98 году; but 22 года are years."""
    is_count = match[2] == "года" and form(match[1]) == 1
    return None if is_count else f"{ordinal(int(match[1]), 'ого' if match[2] == 'года' else 'ом')} {match[2]}"


def _years(match: re.Match[str]) -> str:
    """2024-2026"""
    first, last = int(match[1]), int(match[2])
    if _LOCATIVE.search(before(match)):
        return f"{ordinal(first, 'ом')} и {ordinal(last, 'ом')} годах"
    words = f"{ordinal(first, 'ого')} по {ordinal(last)} год"
    return words if _FROM.search(before(match)) else f"с {words}"


def _year(match: re.Match[str]) -> str | None:
    """Case by the word after it, 2026 году, or by the month and the preposition before it."""
    word, earlier = (match[2] or "").lower(), before(match)
    is_dated = re.search(rf"(?i)(?<!\w)(?:{_MONTHS.replace(' ', '|')}) $", earlier)
    if not word and not is_dated:
        is_end = re.match(r"\s?(?:[,.!?)]|$|по\s\d{4})", match.string[match.end() :])
        ending = "ом" if _LOCATIVE.search(earlier) else "ого" if _FROM.search(earlier) else ""
        ending = "ый" if re.search(r"(?i)с \d{4} по $", earlier) else ending
        return ordinal(int(match[1]), ending) if is_end and ending and match[1] != "2000" else None
    if word in ("", "г", "г."):
        word = "году" if _LOCATIVE.search(earlier) and not is_dated else "года"
        if not (is_dated or _LOCATIVE.search(earlier) or _GENITIVE.search(earlier) or _FROM.search(earlier)):
            word = "год"
    endings = {"год": "ый", "года": "ого", "годом": "ым", "годы": "ые", "годов": "ых", "годах": "ых"}
    ending = endings.get(word, "ому" if _TO.search(earlier) else "ом")
    return f"{ordinal(int(match[1]), ending)} {word}"


def _written_year(match: re.Match[str]) -> str | None:
    """24.12.2026 г.: the date has the word already."""
    is_dated = re.search(r"\d[-./]\d{1,2}[-./]\d{2,4}\s?$", before(match))
    return (
        ("." if match[0][-1] == "." and not match.string[match.end() :].strip() else "") if is_dated else None
    )


def _dotted_time(match: re.Match[str]) -> str | None:
    """в 19.30"""
    is_told = re.search(r"(?i)(?<!\w)в $", before(match)) and not re.match(
        r"\sраз", match.string[match.end() :]
    )
    return clock(int(match[1]), int(match[2]), False) if is_told else None


def _suffixed(match: re.Match[str]) -> str | None:
    """1-й, 2-я, 90-е; 2-х, 5-ти are cardinals, 2М two million, 2м two metres."""
    number, suffix, earlier = int(match[1]), match[2].lower(), before(match)
    after = match.string[match.end() :]
    if match[2] in ("м", "М") and "-" not in match[0]:
        is_place = _LOCATIVE.search(earlier) and re.match(r"\s(?!\w+(?:ше|же)\b)[а-яё]+е\b", after)
        return ordinal(number, "ом") if is_place else None
    if suffix == "ти" or (suffix == "х" and 2 <= number <= 4):
        return genitive(cardinal(number))
    ending = _ENDINGS[suffix]
    if (
        suffix == "е"
        and number
        and number % 10 == 0
        and not re.match(rf"(?i)\s(?:мест|числ|видео|[а-яё]+ние\b|{_MONTHS.replace(' ', '|')})", after)
    ):
        ending = "ые"
    elif suffix == "м" and _LOCATIVE.search(earlier):
        ending = "ом"
    elif suffix == "й" and re.match(r"\s[а-яё]+[еиы]\b", after):
        ending = "ой"
    return ordinal(number, ending)


def _out_of(match: re.Match[str]) -> str | None:
    whole, most = LEXIS.plain(match[1]), match[2]
    return f"{LEXIS.spoken(whole)} из {genitive(cardinal(int(most)))}" if is_rating(whole, most) else None


def _full_stop(match: re.Match[str]) -> str | None:
    """Full stop of руб. and the like, within a sentence."""
    return "" if re.search(rf"(?i)\d\s?(?:{_SHORT})$", before(match)) else None


def _smile(match: re.Match[str]) -> str | None:
    """A bracket that closes none."""
    earlier = match.string[: match.start()]
    return " " if earlier.count("(") <= earlier.count(")") else None


_CARDS = dict(
    enumerate(str.split("двойк тройк четвёрк пятёрк шестёрк семёрк восьмёрк девятк десятк"), start=2)
)
"""Stems of 5-ка."""
_YEAR = r"(1[1-9]\d\d|20\d\d)"
_ENDS = r"(?![\w%°]|[.,:/]\d)"
RUSSIAN = language_of(
    LEXIS,
    numbers=(
        (Kind.TIME, r"(\d{1,2}):([0-5]\d)\s?[-–—]\s?(\d{1,2}):([0-5]\d)(?![\d:])", _hours),
        (Kind.TIME, r"(\d{1,2}):([0-5]\d)(?![\d:])", _clock_in_case),
        (Kind.TIME, rf"([01]?\d|2[0-3])\.([0-5]\d){_ENDS}", _dotted_time),
        (
            Kind.DATE,
            rf"(\d{{1,2}})(?=\s?(?:на|по|до|и|-|–)\s?\d{{1,2}}\s(?:{_MONTHS.replace(' ', '|')}))",
            lambda m: day(int(m[1]), m) if int(m[1]) < 32 else None,
        ),
        (Kind.YEAR, rf"{_YEAR}[-–—]{_YEAR}(?:\s?(?:гг?\.?|год\w*))?(?!\w|[-.,:/]\d)", _years),
        (Kind.DATE, rf"(\d{{1,2}})\.(0[1-9]|1[0-2]){_ENDS}(?!\s?(?:[%$€₽]|млн|тыс|руб))", _short_day),
        (Kind.YEAR, r"(\d{1,4})\s?г(?:\.|од[ау]?)?(?=\s?(?:до\s)?н\.?\s?э)", _year_of_era),
        (Kind.YEAR, r"(\d\d)\s(год[ау])(?!\w)", _short_year),
        (Kind.YEAR, rf"(?i){_YEAR}(?:\s?(год(?:а|у|ом|ы|ов|ах)?|г\.?))?(?!\w|[.,:/]\d)", _year),
        (
            Kind.NUMBER,
            rf"(?i)(\d{{1,6}})-?({'|'.join(sorted(_ENDINGS, key=len, reverse=True))}|ти)(?!\w)",
            _suffixed,
        ),
        (Kind.FRACTION, rf"(\d+(?:[.,]\d+)?)/(5|10|20|100){_ENDS}", _out_of),
        (
            Kind.SIGN,
            rf"(\d+)\s?[xх]\s?(\d+){_ENDS}",
            lambda m: f"{LEXIS.spoken(m[1])} на {LEXIS.spoken(m[2])}",
        ),
        (Kind.RANGE, r"(\d{1,3})[-–](\d{1,3})(?=\s([а-яё]+))", _places),
        (Kind.NUMBER, r"([1-9]|1\d|2[01])\sв\.(?!\s?\w)", _short_century),
        (Kind.TIME, r"(\d+)\s?ч\s?(\d+)\s?м(?:ин)?(?!\w)", _hours_minutes),
        (Kind.MONEY, r"(\d+)\s?т\.\s?р\.?(?!\w)", _thousand_roubles),
        (
            Kind.UNIT,
            r"(\d+(?:[.,]\d+)?)\s?кв\.\s?м(?!\w)",
            lambda m: LEXIS.in_unit(LEXIS.plain(m[1]), "кв.м"),
        ),
        (Kind.NUMBER, r"(10|[2-9])-к(а|у|и|е|ой)(?!\w)", lambda m: _CARDS[int(m[1])] + m[2]),
        (Kind.NUMBER, r"(\d{1,3})(?=\s([а-яё]+))", _place),
        (Kind.NUMBER, r"(\d+)(?=\s[кКkKмМxXхХ]\s)", lambda m: LEXIS.spoken(m[1])),
        *((kind, pattern, _in_case(say)) for kind, pattern, say in number_table(_IN_GENITIVE)),
    ),
    words=(
        (Kind.ROMAN, r"([IVX]{1,6})(?=\sвек(а|у|ом|е|ов|ах|)(?!\w))", _century),
        (Kind.ROMAN, r"([IVX]{1,6})\sв\.", _short_century),
        (Kind.WORD, r"г(?:\.|ода?)?(?!\w)", _written_year),
        (Kind.SIGN, rf"[xXхХ](\d+){_ENDS}", lambda m: f"икс {LEXIS.spoken(m[1])}"),
        (Kind.WORD, r"(?i)г-(н|жа)(?!\w)", lambda m: "господин" if m[1] in "нН" else "госпожа"),
        (Kind.WORD, r"(д|кв)\.\s?(?=\d)", lambda m: "дом " if m[1] == "д" else "квартира "),
        (Kind.WORD, r"(?i)(?:по\s)?мск(?!\w)", lambda m: "по Москве"),
        (Kind.WORD, r"(?i)ит([дп])(?!\w)", lambda m: "и так далее" if m[1] in "дД" else "и тому подобное"),
    ),
    signs=(
        (Kind.SIGN, r"\.(?=\s?[а-яё,)])", _full_stop),
        (Kind.EMOTICON, r"\)+", _smile),
        (Kind.EMOTICON, r"\({2,}|\((?=\s|$)", lambda m: " "),
    ),
)

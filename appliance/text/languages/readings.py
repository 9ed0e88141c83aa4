"""The readings that all languages share: numbers with their units, dates, times, signs, abbreviations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from appliance.text.languages import quantity
from appliance.text.languages.lexis import Amount, Lexis, Noun, as_noun, as_rows
from appliance.text.languages.numbers import roman
from appliance.text.languages.plain import SMALL
from appliance.text.languages.quantity import CURRENCY, DASH
from appliance.text.scripts import HAN
from appliance.text.spans import Kind, Language, Readings, Say, Table, before

_VERSION_BEFORE = re.compile(
    r"(?i)\b(?:patch|version|versi[oó]n|versão|versione|parche|update|build|firmware|версия|версии|патч|патче)\s$"
)
"""Words before a number whose point is no decimal's: Patch 4.2"""

SIGNS = (
    r"&+",
    r"\+(?=\s?\d)|(?<=\S)\+(?=\s|$|[,.!?])|(?<=\s)\+(?=\s)|(?<=\w)\+(?=\w)",
    r"(?<![=!<>])={1,2}(?![=>])",
    r"(?<=\w)\s?[%％](?!\w)",
    r"×(?=\s?\d)|(?<=\d)\*(?=\d)",
    r"÷",
    r"(?:(?<=[\d)])|(?<=[\d)] ))[-−](?=\s?\d+(?:[.,]\d+)?\s?=)",
    r"±",
    r"<=|≤",
    r">=|≥",
    r"(?<=[\w)])<(?=[\w(-])|(?<=[\w)]\s)<(?=\s[\w(-])|(?<!<)<(?=[.,]?\d)",
    r"(?<=[\w)])>(?=[\w(-])|(?<=[\w)]\s)>(?=\s[\w(-])|(?<!>)>(?=[.,]?\d)",
    r"!=|≠",
    r"≈|~(?=\s?\w)",
    r"√",
    r"[-=]>|→",
    r"(?<=\w)\^2(?!\d)",
    r"(?<=[\d)])\^(?=[-−(]?\d)",
)
"""& + = % × ÷ − ± ≤ ≥ < > ≠ ≈ √ → ² ^: the order of `Lexis.signs`."""
_SEATS = (
    "gate|raum|zimmer|klasse|reihe|bus|linie|gleis|haus|sitz|sala|aula|clase|puerta|asiento|fila|salle|classe|porte"
    "|siège|classe|porta|posto|assento|ряд|класс|кабинет|дом|кв|комната|место|в|из|कक्षा|कमरा|غرفة|قاعة|صف"
)
"""Words before a number and a letter that is no unit: gate 5A."""
_SHORT_END = r"(?:(?<=[^\W\d_]{3})(?<![^\W\d_]{5})(?<!mil)(?<!mila)\.)?"
"""Full stop of Mio. and тыс., which is no sentence's; mil is a whole word."""
_TIME_END = rf"(?:(?i:(?<=min)|(?<=std)|(?<=sec)|(?<=sek)|(?<=seg)|(?<=мин)|(?<=сек))\.(?=\s[\d{SMALL}]))?"
"""Full stop of 1 Std. 30 Min., which ends no sentence either."""
_NUMERAL = r"X{0,3}(?:IX|IV|V?I{0,3})"
_ROMAN = rf"(?=[IVX]{{2}}){_NUMERAL}"
_ONLY_ROMAN = frozenset(str.split("III VII VIII XII XIII XIV XVI XVII XVIII XIX XXI XXII XXIII XXIV"))
"""Numerals that are nothing else."""
_NO_MONTHS = ("mar", "set", "out")
"""Short forms that may be other words after a number: 3 set."""
_CENTURY = "siècle|siglo|século|secolo"
_SHORT_CENTURY = re.compile(r"(?i)(?<!\w)s(?:[eé]c)?\.\s?$")
_LAST_WORD = re.compile(r"([^\W\d_][\w'’-]*)[ :]?$")
_NEXT_LETTERS = re.compile(r"\s([^\W\d_]{2})")
_TITLES = "GTA|gta|FF|WW|DQ|MGS|DMC|TES|SF|MW"
"""Initials of titles with a Roman numeral."""
_VARIANTS = "X3D|XTX|XT|HX|KS|KF|[KkXFHUGT]|T[iI]|ti"
"""Letters after the number of a processor or graphics card."""
_ONLY_VARIANTS = frozenset(str.split("X3D XTX XT KS KF Ti TI"))
_PROCESSOR = re.compile(
    r"(?:\b[iIrR][3579]|\b(?:RTX|GTX|RX|GT|Ryzen|Core|Ultra|Intel|AMD|Threadripper)(?: [3579])?)[- ]$"
)
_MEASURED = frozenset(str.split("km m kb mb gb kbit mbit gbit км м кб мб гб кбит мбит гбит كم م"))
"""Units whose rates are named without a number too: in km/h."""


def language_of(lexis: Lexis, numbers: Table = (), words: Table = (), signs: Table = ()) -> Language:
    """Language of a lexis; its tables have precedence over the common readings."""
    reader = _CommonReadings(lexis)
    said = [f"{lexis.joint}{word}{lexis.joint}" for word in lexis.signs.split("|")]
    table: Table = [(Kind.SIGN, p, _always(word)) for p, word in zip(SIGNS, said, strict=True)]
    limits: Table = [
        (
            Kind.SIGN,
            rf"(?<!{lexis.letter})(?<![\d_)<>]){sign}(?=[.,]?\d)",
            _always(f"{lexis.joint}{words}{lexis.joint}"),
        )
        for sign, words in zip("<>", filter(None, lexis.limits.split("|")), strict=False)
    ]
    return Language(
        code=lexis.code,
        link=lexis.link,
        mail=lexis.mail,
        listing=lexis.listing,
        comma=lexis.comma,
        point=lexis.ending or lexis.dot,
        digit=lambda character: f"{lexis.joint}{lexis.digits(character)}{lexis.joint}",
        number=lambda n, is_ordinal: lexis.ordinal(int(n), "") if is_ordinal else lexis.spoken(n),
        numbers=Readings([*numbers, *reader.numbers()]),
        words=Readings([*words, *reader.words()]),
        signs=Readings([*signs, *reader.signs(), *limits, *table]),
        capitals=lexis.capitals,
        scripts=lexis.scripts,
        abbreviations=frozenset(_rows_of(lexis.abbreviations)),
        heart=lexis.heart,
        alone={**dict(zip("&+=%×÷", said, strict=False)), **lexis.symbols},
        sample=lexis.sample,
        stretched=lexis.stretched,
    )


def number_table(lexis: Lexis) -> Table:
    """The common readings of numbers."""
    return _CommonReadings(lexis).numbers()


def _short_months(names: Sequence[str]) -> dict[str, str]:
    """ "juil" and "oct" → name."""
    shorts = [(name[:size].lower(), name) for size in (4, 3) for name in names if size < len(name)]
    return {
        short: name
        for short, name in shorts
        if sum(other.lower().startswith(short) for other in names) == 1 and short not in _NO_MONTHS
    }


def _stopped(short: str) -> str:
    """Pattern of a short noun; its full stop is optional unless the lexis has it."""
    return re.escape(short) if short.endswith(".") else rf"{re.escape(short)}\.?"


def _always(words: str) -> Say:
    return lambda match: words


def _rows_of(abbreviations: str) -> dict[str, str]:
    """ "z. B. = zum Beispiel; Dr." → "z. b", "z.b" and "dr", with their words."""
    rows = {}
    for row in re.split(r"[;\n]", abbreviations):
        short, _, words = row.strip().partition("=")
        if key := short.strip().lower().removesuffix("."):
            rows[key] = rows[key.replace(". ", ".")] = words.strip()
    return rows


class _CommonReadings:
    """The common readings of a language."""

    def __init__(self, lexis: Lexis) -> None:
        self._s = lexis
        self._names = {sign.lower(): as_noun(rest) for sign, rest in as_rows(lexis.units).items()}
        self._cased = {sign: as_noun(rest) for sign, rest in as_rows(lexis.cased).items()}
        self._rates = as_rows(lexis.per)
        self._currencies = {
            sign: (as_noun(main), as_noun(cent) if cent.strip() else None)
            for sign, rest in as_rows(lexis.currencies).items()
            for main, _, cent in (rest.partition("|"),)
        }
        self._codes = [sign for sign in self._currencies if re.fullmatch("[A-Z]{3}", sign)]
        """Currencies that may come before the number too: EUR 5."""
        self._scales = {
            sign: (int(power or 0), as_noun(noun) if noun else None)
            for sign, rest in as_rows(lexis.scales).items()
            for power, noun in re.findall(r"^(\d*) ?(.*)$", rest)
        } | {sign: (1_000, None) for sign in lexis.thousands.split()}
        is_shortened = lexis.scripts[0] in ("LATIN", "CYRILLIC")
        self._short_months = _short_months(lexis.months.split()) if is_shortened else {}
        group, point = ("." if lexis.decimal == "," else ","), re.escape(lexis.decimal)
        first = r"(?![0٠०])\d{1,3}"
        self._number = lexis.number or (
            rf"(?:{first}(?:[{group}٬]\d{{2,3}})*[{group}٬]\d{{3}}(?:[{point}٫]\d+)?(?!\d)"
            rf"|{first}(?: \d{{3}})+(?:{point}\d+)?(?!\d)|{first}(?:['’]\d{{3}})+(?:[.,]\d+)?(?!\d)"
            rf"|{first}(?:{point}\d{{3}})+[{group}]\d+|{first}(?:{point}\d{{3}}){{2,}}(?!\d)|\d+[.,٫]\d+|\d+|(?<!\w)[.,]\d+)"
        )
        self._end = rf"(?!{lexis.letter}|[\d_%°]|[.,:]\d|(?<=\d)/\d)"
        self._sign = rf"(?P<sign>(?<![{lexis.unsigned}])[-−+])?"
        self._marks = "." if lexis.number else ".,"

    # Patterns.

    def _quantity_pattern(self, suffix: str = "") -> str:
        signs = [sign for sign in self._currencies if not re.fullmatch(CURRENCY, sign)]
        codes = quantity.units_pattern(signs) or "(?!)"
        units = quantity.units_pattern(self._names, self._cased)
        scales = self._scales_pattern()
        number, letter = self._number, self._s.letter
        if self._s.number:
            number = rf"\d+,\d{{1,2}}(?=\s?(?:{CURRENCY}|{scales}|(?i:{codes}|{units}))(?!{letter}))|{number}"
        return (
            rf"(?P<before{suffix}>{CURRENCY}\s?)?(?P<number{suffix}>{number})"
            rf"(?:\s?(?P<scale{suffix}>{scales}){_SHORT_END}(?:(?<=[{HAN}])|(?!{letter}|[A-Za-z^])))?"
            rf"(?:\s?(?P<unit{suffix}>{CURRENCY}|(?i:{codes})|(?(before{suffix})(?<!\s))(?i:{units}))"
            r"(?:(?<![A-Za-z])|(?![A-Za-z])))?"
        )

    def numbers(self) -> Table:
        s, end, number, sign, marks = self._s, self._end, self._number, self._sign, self._marks
        short = r"(?<=\d\d[-/.]\d\d[-/.])\d\d"  # 24.12.26, but not 1.2.10
        months = "|".join([*s.months.split(), *self._short_months])
        table: list[tuple[Kind, str, Say]] = [
            (Kind.CODE, rf"(\d{{1,3}}(?:\.\d{{1,3}}){{3}})(?::(\d{{1,5}}))?{end}", self._address),
            (Kind.DATE, rf"(?P<y>\d{{4}})([-/.])(?P<m>\d{{1,2}})\2(?P<d>\d{{1,2}}){end}", self._date),
            (
                Kind.DATE,
                rf"(?P<d>\d{{1,2}})({s.day_first})(?P<m>\d{{1,2}})\2(?P<y>\d{{4}}|{short}){end}",
                self._date,
            ),
            (Kind.YEAR, rf"((?:19|20)\d\d)[-–/](\d\d){end}(?!-)", self._season),
            (Kind.DATE, rf"(?P<d>\d{{1,2}})/(?P<m>\d{{1,2}}){end}", self._short_date),
            (Kind.DATE, rf"(?i)(?P<d>\d{{1,2}})(?={s.of_month}(?:{months})(?!\w))", self._day),
            (Kind.TIME, r"(?i)(\d{1,2})(?:[:.](\d\d))?\s?([ap])\.?\s?m\b\.?", self._half_day),
            (
                Kind.TIME,
                rf"(?i)(?P<h>\d{{1,2}}):(?P<min>[0-5]\d):(?P<s>[0-5]\d)(?P<mark>{s.hour})?{end}",
                self._clock_with_seconds,
            ),
            (Kind.TIME, rf"(?P<h>\d{{1,2}}):(?P<min>[0-5]\d):(?P<s>[0-5]\d){end}", self._lasting),
            (Kind.TIME, rf"(\d{{1,2}}):([0-5]\d)[.,](\d{{1,3}}){end}", self._lap),
            (
                Kind.TIME,
                rf"(?i)(?P<h>\d{{1,2}})(?::|{s.hour_minute})(?P<m>\d\d)(?P<mark>{s.hour})?{end}",
                self._clock,
            ),
            (
                Kind.TIME,
                rf"(?:(?P<d>\d+)\s?d\s?)?(?:(?P<h>\d+)\s?h\s?)(?:(?P<min>\d+)(?:\s?m(?:in)?\s?|(?<=h\d\d)))?(?:(?P<s>\d+)\s?s)?{end}",
                self._lasting,
            ),
            (Kind.TIME, rf"(?P<min>\d+)\s?m(?:in)?\s?(?P<s>\d+)\s?s{end}", self._lasting),
            (Kind.SCORE, rf"[0٠०]*(\d{{1,3}}):[0٠०]*(\d{{1,3}}){end}", self._between(s.score)),
            (Kind.SCORE, rf"(\d{{1,2}})(?:\s(?=[vV][sS]?\s))?([vV][sS]?)\s?(\d{{1,2}}){end}", self._versus),
            (Kind.PHONE, rf"(?:{s.phone}){end}", self._phone),
            (Kind.SCORE, rf"\d{{1,3}}(?:[-–]\d{{1,3}}){{2,4}}{end}(?!\s?=)", self._score),
            (Kind.VERSION, rf"(?!{number}{end})(\d+(?:\.\d+){{2,}}){end}", lambda m: s.points(m[1])),
            (
                Kind.VERSION,
                rf"(\d+\.\d+){end}",
                lambda m: s.points(m[1]) if _VERSION_BEFORE.search(before(m)) else None,
            ),
            (
                Kind.FRACTION,
                rf"(\d{{1,3}}) 1/2(?:\s?((?i:{quantity.units_pattern(self._names)})))?{end}",
                self._half,
            ),
            (Kind.FRACTION, rf"(\d+(?:[.,]\d+)?)/(\d+(?:/\d+)*){end}", self._slash),
            (
                Kind.MONEY,
                rf"(\d+)\s?€(\d\d){end}",
                lambda m: self._amount(Amount(f"{m[1]}.{m[2]}", "", "€"), ""),
            ),
            (Kind.TIME, r"(\d{1,3})['’′](?![\w'’])", self._minutes),
            (Kind.NUMBER, rf"(?i)(\d{{1,4}})(?:st|nd|rd|th){end}", lambda m: s.ordinal(int(m[1]), "")),
            (Kind.CODE, rf"(\d{{3,5}})({_VARIANTS})(?!{s.letter}|[\d_])", self._model),
            (
                Kind.SIGN,
                rf"({number})\s?[x×*]\s?({number}){end}",
                lambda m: self._between(s.signs.split("|")[4])(m),
            ),
            (
                Kind.RANGE,
                rf"(?=.[^-–—~～]{{0,40}}[-–—~～]){sign}{self._quantity_pattern('_a')}{DASH}(?P<minus>[-−])?{self._quantity_pattern('_b')}{end}(?!\s?=|-\d)",
                self._range,
            ),
            (
                Kind.UNIT,
                rf"{sign}{self._quantity_pattern()}(?:{end}|(?={s.glued})){_TIME_END}",
                self._quantity,
            ),
            (Kind.NUMBER, rf"\d+(?:,\d{{1,2}}){{2,}}{end}", self._list),
            (
                Kind.UNIT,
                rf"(?<![{s.unsigned}])(?P<sign>[-−])(\d{{1,3}})\s?([CF]){end}",
                lambda m: s.signed(m, s.joint.join((s.spoken(m[2]), s.letters(m[3])))),
            ),
            (
                Kind.NUMBER,
                rf"{sign}(?P<number>{number})(?:(?!{s.letter}|[\d_]|[{marks}]\d)|(?={s.glued}))",
                s.bare,
            ),
            (Kind.CODE, rf"(?:\d|_|{s.letter})+(?:[{marks}]\d(?:\d|_|{s.letter})*)*", self._code),
        ]
        return table

    def words(self) -> Table:
        s, letter = self._s, self._s.letter
        shorts = {short: words for short, words in _rows_of(s.abbreviations).items() if words}
        pattern = "|".join(sorted((re.escape(short) for short in shorts), key=len, reverse=True)) or "(?!)"
        chat, days = _rows_of(s.chat), "|".join(_rows_of(s.weekdays)) or "(?!)"
        months = "|".join(self._short_months) or "(?!)"
        labelled = as_rows(s.labelled.replace(" = ", " "))
        shorts_before = "|".join(map(_stopped, labelled)) or "(?!)"
        return [
            (
                Kind.ACRONYM,
                rf"(?i)(?:{'|'.join(map(re.escape, chat)) or '(?!)'})(?![^\W\d]|')",
                lambda m: chat[m[0].lower()],
            ),
            (
                Kind.WORD,
                rf"(?i)(?<!\w\.)({shorts_before})\s?(?=\d|(?-i:{_ROMAN})(?!\w))",
                lambda m: f"{labelled.get(m[1].lower()) or labelled[m[1].lower().removesuffix('.')]} ",
            ),
            (Kind.WORD, rf"(?i)({pattern})\.(?!\w*\.\w)(?P<last>\s*$)?", self._short(shorts)),
            (Kind.ROMAN, rf"([IVX]{{1,6}})({s.regnal_stop})(?!{letter}|[\d_'’])", self._king),
            (Kind.ROMAN, rf"({_TITLES})\s?((?i:{_ROMAN}|[VX]))(?!{letter}|[\d_'’])", self._title),
            (
                Kind.ROMAN,
                rf"({_ROMAN})({s.roman_ending})?(?!{letter}|[\d_'’])",
                self._roman if s.reads_roman else lambda m: None,
            ),
            (
                Kind.VERSION,
                rf"[vV]\.?\s?(\d+(?:\.\d+)*)(?:(?:(?<=\.\d)|(?<=\.\d\d))([a-z]))?{self._end}",
                self._version,
            ),
            (
                Kind.UNIT,
                rf"(?i)({'|'.join(_MEASURED & self._names.keys())})/({self._rate_signs()})(?!{letter}|[\d_])",
                self._bare_rate,
            ),
            (
                Kind.DATE,
                rf"(?i)({days})\.?\s?[-–]\s?({days})\.?(?!{letter}|[\d_])",
                self._weekdays(_rows_of(s.weekdays)),
            ),
            (Kind.DATE, rf"((?i:{months}))(?!{letter}|[\d_])(?:\.(?=\s?[{SMALL}\d,]))?", self._short_month),
            (Kind.SIGN, rf"(?i)vs\.?(?!{letter}|[\d_])", lambda m: s.versus or None),
            (
                Kind.MONEY,
                rf"(?P<code>{'|'.join(self._codes) or '(?!)'})\s?(?P<number>{self._number})"
                rf"(?:\s?(?P<scale>{self._scales_pattern()}))?{self._end}",
                lambda m: self._amount(Amount(s.plain(m["number"]), m["scale"] or "", m["code"]), ""),
            ),
            (
                Kind.SIGN,
                rf"[xX](\d+){self._end}",
                lambda m: f"{s.signs.split('|')[4]}{s.joint}{s.spoken(s.plain(m[1]))}",
            ),
            (
                Kind.CODE,
                rf"(?={letter}*[\d_]){letter}(?:\d|_|{letter})*(?:\.\d(?:\d|_|{letter})*)*",
                self._code,
            ),
        ]

    def signs(self) -> Table:
        s = self._s
        return [
            (
                Kind.NUMBER,
                rf"#(\d+){self._end}",
                lambda m: f"{s.number_sign}{s.joint}{s.spoken(s.plain(m[1]))}",
            ),
            (Kind.SIGN, r"#+|={3,}", _always(" ")),
            (Kind.SIGN, r"(?<!\w)['’](?=\d\d(?!\d))", _always("")),  # anni '90
            (Kind.RANGE, r"(?<=[\dhH])\s?[-–—]\s?(?=\d{1,2}(?::\d\d|\s?[hH]))", _always(f" {s.to} ")),
            (
                Kind.RANGE,
                r"(?:(?<=:\d\d )|(?<=\d[hH] )|(?<=\d [hH] )|(?<=\dUhr )|(?<=\d Uhr )|(?<=[ap]m ))[-–—]"
                r"\s?(?=\d{1,2}(?::\d\d|\s?(?:[hH](?!\w)|Uhr|[ap]m)))",
                _always(s.to),
            ),
            (
                Kind.UNIT,
                rf"\s?/\s?((?i:{self._rate_signs()})(?!{s.letter}|[\d_])|{s.letter}+(?![\w/]))",
                self._rate,
            ),
            (Kind.UNIT, r"\s?/\s?(?=100\s?(?:km|км)(?!\w))", _always(f" {s.per_word.format('').strip()} ")),
            (Kind.SIGN, r"(?<=\w)/(?=\w)", _always(s.slash)),
        ]

    def _scales_pattern(self) -> str:
        return "|".join(sorted(map(re.escape, self._scales), key=len, reverse=True)) or "(?!)"

    def _rate_signs(self) -> str:
        return quantity.units_pattern(self._rates) or "(?!)"

    # Words of matches.

    def _short(self, words: Mapping[str, str]) -> Say:
        """An abbreviation's words; at the end of the text its full stop is the sentence's too."""
        return lambda m: words[m[1].lower()] + ("" if m["last"] is None else ".")

    def _between(self, word: str) -> Callable[[re.Match[str]], str]:
        s = self._s
        return lambda m: s.between(s.spoken(s.plain(m[1])), word, s.spoken(s.plain(m[2])))

    def _versus(self, match: re.Match[str]) -> str:
        """1v1"""
        s = self._s
        return s.between(s.spoken(s.plain(match[1])), s.versus or match[2], s.spoken(s.plain(match[3])))

    def _rate(self, match: re.Match[str]) -> str | None:
        """The part of a rate after its number: /s, and any word after money."""
        s, earlier, word = self._s, before(match), match[1]
        if re.search(quantity.RATED, earlier) and (words := self._per(word)):
            return s.joint + words
        is_price = re.search(rf"{CURRENCY}\s?[\d.,]+\w{{0,2}}$|\d\s?{CURRENCY}$", earlier)
        return s.joint + s.per_word.format(word) if is_price and len(word) > 2 else None

    def _per(self, sign: str) -> str:
        return self._rates.get(re.sub(r"[\s^]", "", sign.lower()), "")

    def _bare_rate(self, match: re.Match[str]) -> str:
        """km/h without a number."""
        noun = self._names[self._bits(match[1], match.end(1), match.string).lower()]
        return f"{noun.forms[-1]}{self._s.joint}{self._per(match[2])}"

    def _bits(self, unit: str, end: int, text: str) -> str:
        """Mb/s is of bits, MB/s of bytes."""
        is_bits = unit in ("Kb", "Mb", "Gb", "Tb") and re.match(
            r"\s?/\s?(?:s|sec|min|h|hr)(?![A-Za-z])", text[end:]
        )
        return f"{unit}it" if is_bits and f"{unit.lower()}it" in self._names else unit

    def _score(self, match: re.Match[str]) -> str:
        """7-2-11, 4-2-3-1"""
        said = (self._s.spoken(self._s.plain(part)) for part in re.findall(r"\d+", match[0]))
        return (self._s.joint or self._s.comma).join(said)

    def _clock_with_seconds(self, match: re.Match[str]) -> str | None:
        s, hour = self._s, int(match["h"])
        is_told = match["mark"] or re.search(rf"(?i)(?<!\w)(?:{s.clock_before})\s?$", before(match))
        if hour > 24 or not is_told:
            return None
        seconds, joint = str(int(match["s"])), s.signs.partition("|")[0]
        words = s.clock(hour, int(match["min"]), False)
        if seconds == "0":
            return words
        joint = f" {joint}" if s.code == "ar" else s.joint.join(("", joint, "")) if s.joint else ""
        return f"{words}{joint}{s.counted(seconds, self._names['s'])}"

    def _address(self, match: re.Match[str]) -> str | None:
        if not quantity.is_address(match):
            return None
        port = f"{self._s.comma}{self._s.digits(match[2])}" if match[2] else ""
        return self._s.points(match[1]) + port

    def _date(self, match: re.Match[str]) -> str | None:
        s, day, month = self._s, int(match["d"]), int(match["m"])
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return None
        said = s.date[0].format(day=s.day(day, match), month=s.months.split()[month - 1])
        if not (year := match.groupdict().get("y")):
            return said
        full = int(year) + (2_000 if len(year) == 2 else 0)
        return said + s.date[1].format(year=s.year(full) if s.year else s.cardinal(full, ""))

    def _short_date(self, match: re.Match[str]) -> str | None:
        if match[0] == "24/7":
            return None
        is_told = re.search(rf"(?i)(?<!\w)(?:{self._s.date_before})\s$", before(match))
        return self._date(match) if is_told or int(match["d"]) > 12 else None

    def _day(self, match: re.Match[str]) -> str | None:
        return self._s.day(int(match["d"]), match) if 1 <= int(match["d"]) <= 31 else None

    def _short_month(self, match: re.Match[str]) -> str | None:
        """14 juil."""
        is_dated = re.search(rf"(?i)(?<!\d)[0-3]?\d(?:er|º)?{self._s.of_month}$", before(match))
        if not is_dated:
            return None
        joint = self._s.date[0].removeprefix("{day}").removesuffix("{month}")
        return f"{joint}{self._short_months[match[1].lower()]}".removeprefix(before(match)[-len(joint) :])

    def _season(self, match: re.Match[str]) -> str | None:
        """2025/26"""
        s, first, last = self._s, int(match[1]), int(match[2])
        if s.scripts != ("LATIN",) or last != (first + 1) % 100 or not last:
            return None
        return f"{s.year(first) if s.year else s.cardinal(first, '')} {s.cardinal(last, '')}"

    def _half(self, match: re.Match[str]) -> str | None:
        """2 1/2, 2½ h"""
        if noun := self._nouns(match[2] or "")[0]:
            return self._s.counted(f"{match[1]}.5", noun)
        return self._s.half(int(match[1])) if self._s.half else None

    def _minutes(self, match: re.Match[str]) -> str | None:
        """90', but no end of a quotation."""
        is_quoted = re.search(r"['’](?!\w)|(?<!\w)['’]", match.string[: match.start()])
        return None if is_quoted or "min" not in self._names else self._s.in_unit(match[1], "min")

    def _half_day(self, match: re.Match[str]) -> str | None:
        hour, minute = int(match[1]), int(match[2] or 0)
        if not (1 <= hour <= 12 and minute < 60):
            return None
        return f"{self._s.clock(hour, minute, False)} {match[3].lower()} m"

    def _clock(self, match: re.Match[str]) -> str | None:
        hour, minute = int(match["h"]), int(match["m"])
        if hour > 24 or minute > 59:
            return None
        if self._is_lasting(match) and (":" not in match[0] or not hour):
            hours, minutes = ("min", "s") if ":" in match[0] else ("h", "min")
            return self._named({hours: match["h"], minutes: match["m"]})
        return self._s.clock(hour, minute, ":" not in match[0] or bool(match["mark"]))

    def _is_lasting(self, match: re.Match[str]) -> bool:
        """True for a length of time, not a time of day: quedan 00:45."""
        edge = r"(?<!\w)" if self._s.joint else ""
        return bool(
            re.search(rf"(?i){edge}(?:{self._s.lasting})\s?$", before(match))
            or re.match(rf"(?i)\s?(?:{self._s.lasting})(?!\w)", match.string[match.end() :])
        )

    def _lasting(self, match: re.Match[str]) -> str | None:
        parts = {unit: value for unit, value in match.groupdict().items() if value}
        is_told = re.search(rf"(?i)(?<!\w)(?:{self._s.clock_before})\s$", before(match))
        if is_told and parts.keys() == {"h", "min"} and "m" not in match[0] and int(parts["h"]) < 25:
            return self._s.clock(int(parts["h"]), int(parts["min"]), True)
        return self._named(parts) if len(parts) > 1 else None

    def _named(self, parts: Mapping[str, str]) -> str | None:
        """Numbers with the nouns of their units, without zeros."""
        numbers = {unit: str(int(value)) for unit, value in parts.items()}
        named = {unit: number for unit, number in numbers.items() if number != "0"} or {"s": "0"}
        if not named.keys() <= self._names.keys():
            return None
        return self._s.joint.join(
            self._s.counted(number, self._names[unit]) for unit, number in named.items()
        )

    def _lap(self, match: re.Match[str]) -> str | None:
        """1:02.35"""
        if not {"min", "s"} <= self._names.keys():
            return None
        minutes, seconds = str(int(match[1])), f"{int(match[2])}.{match[3]}"
        named = [("min", minutes)] * (minutes != "0") + [("s", seconds)]
        return self._s.joint.join(self._s.counted(number, self._names[unit]) for unit, number in named)

    def _phone(self, match: re.Match[str]) -> str | None:
        if sum(map(str.isdigit, match[0])) < self._s.phone_digits:
            return None
        plus = f"{self._s.signs.split('|')[1]}{self._s.joint}" if match[0][0] == "+" else ""
        return plus + self._s.grouped(match[0])

    def _version(self, match: re.Match[str]) -> str:
        s = self._s
        is_named = before(match).rstrip().lower().endswith(s.version.lower())
        words = s.joint.join(filter(None, (s.points(match[1]), match[2])))
        return words if is_named else f"{s.version}{s.joint}{words}"

    def _slash(self, match: re.Match[str]) -> str | tuple[Kind, str]:
        s, (a, b) = self._s, map(self._s.plain, match.groups())
        if found := s.fractions.get((a, b)):
            return found
        if quantity.is_rating(a, b):
            return s.joint.join((s.spoken(a), s.out_of, s.spoken(b)))
        said = (s.joint or s.comma).join(s.spoken(s.plain(part)) for part in (a, *b.split("/")))
        return (Kind.SCORE, said) if "/" in b else said

    def _list(self, match: re.Match[str]) -> str:
        return self._s.comma.join(self._s.spoken(part) for part in match[0].split(","))

    def _weekdays(self, names: Mapping[str, str]) -> Say:
        def read(match: re.Match[str]) -> str | None:
            if match[1] == match[2]:
                return None  # so-so
            first, last = (names[match[group].lower()].partition("|") for group in (1, 2))
            return self._s.day_range.format(first[0], last[2] or last[0])

        return read

    def _title(self, match: re.Match[str]) -> str:
        """GTA VI, FFX"""
        s = self._s
        return s.joint.join((s.letters(match[1].upper()), s.cardinal(roman(match[2].upper()), "")))

    def _roman(self, match: re.Match[str]) -> str | None:
        """Louis XIV, XVe siècle; not the word that it may be: IO VI AMO."""
        s, numeral = self._s, match[1]
        if match[2]:
            return s.ordinal(roman(numeral), "f" if match[2] in ("re", "ère") else "")
        is_only = numeral in _ONLY_ROMAN or _SHORT_CENTURY.search(before(match))
        return s.cardinal(roman(numeral), "") if is_only or self._is_numbered(match) else None

    def _king(self, match: re.Match[str]) -> str | None:
        """Felipe II; Juan V. is a name."""
        s, after = self._s, match.string[match.end() :]
        named = re.search(rf"(?<!\w)(?:(?P<m>{s.kings})|(?P<f>{s.queens}))\s$", before(match, 40))
        if not named or not s.regnal or not re.fullmatch(_NUMERAL, match[1]):
            return None
        if len(match[1]) == 1 and after[:1] == ".":
            return None
        is_last = match[2] and not after.strip()
        return s.regnal(roman(match[1]), "f" if named["f"] else "m") + "." * bool(is_last)

    def _is_numbered(self, match: re.Match[str]) -> bool:
        """True after a name or a noun that has numbers, in a line that does not shout."""
        named, after = _LAST_WORD.search(before(match)), _NEXT_LETTERS.match(match.string, match.end())
        if not named or (after and after[1].isupper()):
            return False
        word = named[1]
        is_name = not word[0].islower() and not (len(word) > 1 and word.isupper())
        return is_name or bool(re.fullmatch(rf"(?i){_CENTURY}|{self._s.labels}", word))

    def _model(self, match: re.Match[str]) -> str | None:
        """9800X3D, i7-13700K"""
        s, letters = self._s, match[2]
        if letters not in _ONLY_VARIANTS and not _PROCESSOR.search(before(match)):
            return None
        parts = re.findall(r"[A-Za-z]+|\d", letters)
        said = (s.spoken(part) if part.isdigit() else s.letters(part) for part in parts)
        return s.joint.join((s.spoken(match[1]), *said))

    def _code(self, match: re.Match[str]) -> str:
        s, said = self._s, []
        for part in re.findall(r"[^\W\d_]+|\d+(?:\.\d+)+|\d+,\d+|\d+|_+", match[0]):
            if "," in part or (s.decimal == "." and part.count(".") == 1 and match[0][0].isdigit()):
                said.append(s.spoken(s.plain(part)))
            elif "." in part:
                said.append(s.points(part))
            elif part[0].isdigit():
                said.append(s.in_code(s.plain(part), match[0]))
            elif part[0] != "_":
                said.append(s.letters(part))
            elif not s.joint:
                said.append(" ")
        return s.joint.join(said)

    def _quantity(self, match: re.Match[str]) -> tuple[Kind, str] | None:
        read = self._read(match)
        if read is None or not (read.scale or read.sign):
            return None
        return self._kind(read), self._s.signed(match, self._amount(read, self._s.followed(match)))

    def _range(self, match: re.Match[str]) -> str | None:
        """Descending bare numbers are a score."""
        s, a, b = self._s, self._read(match, "_a"), self._read(match, "_b")
        if a is None or b is None or (a.sign and b.sign not in ("", a.sign)):
            return None
        is_rising = float(a.number) < float(b.number)
        is_close = not re.search(r"\s[-–—~～]\s", match[0])
        is_common = is_close and is_rising and float(b.number) < 1_000  # 5k-10, but not 1万-2 and 1k-2米
        scale = b.scale or (a.scale if is_common and not re.search(f"[{HAN}]", a.scale + b.sign) else "")
        both = Amount(b.number, scale, b.sign or a.sign)
        year, is_score = s.year or (lambda number: s.cardinal(number, "")), False
        if not (a.scale or both.scale or both.sign) and (a.number + b.number).isdigit():
            if all(re.fullmatch(s.years, n) for n in (a.number, b.number)):
                return s.joint.join((year(int(a.number)), s.to, year(int(b.number))))
            is_score = not is_rising or a.number == "0"
        noun = self._nouns(both.sign)[0]
        gender = noun.gender if noun else "" if is_score else s.followed(match)
        first = self._amount(Amount(a.number, a.scale, a.sign if a.sign in s.repeated else ""), gender)
        second = self._amount(both, gender)
        if match["minus"]:
            second = f"{s.negative(match)}{s.joint}{second}"
        return s.between(s.signed(match, first), s.score if is_score else s.to, second)

    def _read(self, match: re.Match[str], suffix: str = "") -> Amount | None:
        """Amount of a match; None if its letter is no unit: 5G, 4K."""
        groups = match.groupdict()
        unit = groups[f"unit{suffix}"] or ""
        number, scale = self._s.plain(groups[f"number{suffix}"]), groups[f"scale{suffix}"] or ""
        sign = (unit if unit.upper() in self._codes else groups[f"before{suffix}"] or unit).strip()
        if (len(unit) == 1 and unit.isupper() and unit not in self._cased) or (
            scale == "K" and number in ("2", "4", "8") and not sign
        ):
            return None
        if unit and re.match(r"\.[^\W\d_](?![^\W\d_])", match.string[match.end() :]):
            return None  # 500 d.C.
        if unit in self._cased and re.search(
            rf"(?<!\w)(?:{self._s.labels}|{_SEATS})\s$", before(match), re.I
        ):
            return None
        return self._s.measured(Amount(number, scale, self._bits(sign, match.end(), match.string)), match)

    def _nouns(self, sign: str) -> tuple[Noun | None, Noun | None]:
        """Noun of a currency or unit, and of the currency's hundredth part."""
        if money := self._money(sign):
            return money
        return self._cased.get(sign) or self._names.get(re.sub(r"[\s^]", "", sign.lower())), None

    def _money(self, sign: str) -> tuple[Noun, Noun | None] | None:
        found = (self._currencies.get(key) for key in (sign, sign.upper(), sign[-1:]))
        return next(filter(None, found), None)

    def _kind(self, read: Amount) -> Kind:
        if read.sign in ("%", "％", "٪"):
            return Kind.PERCENT
        if not read.sign:
            return Kind.NUMBER
        return Kind.UNIT if self._nouns(read.sign)[0] and not self._money(read.sign) else Kind.MONEY

    def _amount(self, read: Amount, gender: str) -> str:
        """Words of an amount. `gender`: the next word's, for an amount without a noun."""
        s, number = self._s, read.number
        noun, cent = self._nouns(read.sign)
        if self._money(read.sign):
            number = re.sub(r"^0+(?=\d)", "", number)
        if read.scale:
            power, scale = self._scales[read.scale]
            value = Decimal(number) * power
            if scale and ("." in number or not power):
                return s.joint.join(filter(None, (s.counted(number, scale), self._of(noun))))
            number = str(int(value)) if value == int(value) else str(value)
        whole, _, part = number.partition(".")
        if noun and cent and 0 < len(part) <= 2:
            small = part.ljust(2, "0").lstrip("0")
            if not small:
                number = whole
            elif whole == "0":
                return s.counted(small, cent)
            else:
                named = s.spoken(small, cent.gender if "{cent}" in s.cents else "")
                form = cent.forms[min(s.form(small), len(cent.forms) - 1)]
                return s.counted(whole, noun) + s.cents.format(named, cent=form)
        if noun is None:
            return s.spoken(number, gender)
        if s.of and number.isdigit() and int(number) and int(number) % 1_000_000 == 0:
            return f"{s.spoken(number)} {self._of(noun)}"
        return s.counted(number, noun)

    def _of(self, noun: Noun | None) -> str:
        """Noun after millions."""
        if noun is None:
            return ""
        name = noun.forms[-1]
        consonant, _, vowel = self._s.of.partition("|")
        return f"{vowel if vowel and name[0] in 'aeiou' else consonant}{name}"

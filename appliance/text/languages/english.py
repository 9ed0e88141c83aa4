"""English: the words of numbers, signs and capitals."""

from __future__ import annotations

import re

from appliance.text.languages.capitals import SPELT, capitals, is_spelt
from appliance.text.languages.lexis import Amount, Lexis, as_rows
from appliance.text.languages.numbers import LONGEST, english, english_ordinal, english_year
from appliance.text.languages.quantity import CURRENCY, DASH, END, NUMBER, PHONE, is_address, is_rating
from appliance.text.languages.readings import language_of
from appliance.text.spans import Kind, before

_MONTHS = str.split("January February March April May June July August September October November December")
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if name != "May" else "May" for name in _MONTHS)
_WEEKDAYS = {name[:3].lower(): f"{name}day" for name in str.split("Mon Tues Wednes Thurs Fri Satur Sun")}
_SCALES = {"k": "thousand", "m": "million", "mn": "million", "b": "billion", "bn": "billion"} | {
    word: word for word in ("thousand", "million", "billion", "trillion")
}
_MONEY = re.compile(rf"(?i){CURRENCY}|usd|eur|gbp|jpy|cny|rmb")
_PER_TIME = re.compile(r"\s?/\s?(?:s|sec|h|hr|min)(?![A-Za-z])")
_SEATS = (
    "room|class|seat|gate|row|flight|apt|apartment|block|group|section|grade|bus|line|terminal|plan|tier"
    r"|exit|platform|unit|floor|season|part|figure|fig\.?|vitamin"
)
"""Words before a number and a letter that is no unit: gate 5A."""
_LENGTH_BEFORE = re.compile(
    r"\b(?:ran?|runs?|jump\w*|swim|swam|dash|height|depth|tall|walk\w*|climb\w*) (?:a |the |of )?$", re.I
)
_LENGTH_AFTER = re.compile(
    r"\s?(?:tall|high|long|deep|wide|away|sprint|dash|race|swim|below|above|underwater|[x×])", re.I
)
_TIME_BEFORE = re.compile(
    r"\b(?:for|in|after|wait|every|within|took|takes|about|under|another|timed out|last|next) $|~$", re.I
)
_TIME_AFTER = re.compile(
    r"\s(?:left|ago|later|cooldown|remaining|cd|delay|clip|video|timer|timeout|ban)\b", re.I
)
_RECORD = re.compile(r"\d\s?W\b\W{0,5}\d+\s?L\b|\d\s?L\b\W{0,5}\d+\s?W\b")
"""3W 2L: won and lost."""
_EACH = (
    r"(?i)(?:\s?/\s?\w"
    r"|\s(?:each|apiece|per|off|tips?\b|a (?:pop|piece|sub|bit|unit|share|gallon|word|minute)))"
)
_PRICE_BEFORE = re.compile(
    r"(?i)\b(?:costs?|tips?|tipped|paid|pays?|worth|donated|charges?|only|just|for|at) $"
)
_MANY_AFTER = re.compile(
    r"(?i)\s(?:users|view(?:er)?s|subs|followers|people|players|downloads|copies|fans|streams|likes|coins|dollars)\b"
)
"""Words of which there are millions."""
_DECADE_BEFORE = re.compile(
    r"\b(?:the|early|late|mid|and|or|my|your|his|her|our|their)[ -]$|'$|\d0s[-–]$", re.I
)
_YEAR_BEFORE = re.compile(
    r"\b(?:(?i:born|in|since|by|until|till|of|from|year|early|late|before|after|through)|(?:19|20)\d\d and"
    r"|[QH][1-4]|[A-Z][a-z]{2,}) $"
)
_CODE_BEFORE = re.compile(
    r"\b(?:zip|code|pin|otp|u?id|room|ext|extension|account|serial|passcode|password|order|ticket|tracking"
    r"|invoice|case)(?: code| number| no\.?| is|:)*(?: #?|#)$",
    re.I,
)
_DAYS = r"(?:mon|tues?|wed|thu(?:rs)?|fri|sat|sun|(?:mon|tues|wednes|thurs|fri|satur|sun)day)"
_WEEKDAY_BEFORE = re.compile(rf"\b{_DAYS},? $", re.I)
_DATE_BEFORE = re.compile(
    rf"\b(?:on|by|before|since|until|birthday is|bday is|it's|today is|{_DAYS}),? $", re.I
)
_PHONE_BEFORE = re.compile(r"\b(?:call|phone|tel|text|number|dial|fax|hotline|at)\b\W*$", re.I)
_POWERS = {"2": "squared", "3": "cubed"}


class _English(Lexis):
    def measured(self, amount: Amount, match: re.Match[str]) -> Amount | None:
        """m is minutes, meters or millions; W and L are won and lost; 2D is no time; 5kg-10 no range."""
        scale, sign, groups = amount.scale, amount.sign, match.groupdict()
        if scale in ("k", "K") and re.match(r"(?i)\s(?:run|race)\b", match.string[match.end() :]):
            return None
        if scale in ("b", "m") and not _MONEY.search(match[0]):
            if scale == "b":
                return None
            is_time = (groups.get("scale_a") or "m") == "m"  # 1k-2m
            if is_time and not _MANY_AFTER.match(match.string, match.end()):
                scale, sign = "", "m"
        if sign and _is_open(match):
            return None
        if sign in (*"dwyDY",) and not _is_timed(match):
            return None
        if sign in (*"WVAL",) and _RECORD.search(match.string):
            return None
        return Amount(amount.number, scale, "min" if sign == "m" and not _is_length(match) else sign)

    def bare(self, match: re.Match[str]) -> str | tuple[Kind, str]:
        """A code's digits each, a year in its halves, .45 without a zero but in a list: 10,.45."""
        digits = "" if match["sign"] else match["number"]
        if re.fullmatch(r"\.\d{2,3}", digits) and before(match, 1) != ",":
            return f"point {self.digits(digits)}"
        if len(digits) > 3 and digits.isdigit() and _CODE_BEFORE.search(before(match)):
            return Kind.CODE, self.digits(digits)
        if re.fullmatch(self.years, digits) and _YEAR_BEFORE.search(before(match)):
            return Kind.YEAR, english_year(int(digits))
        is_old = re.fullmatch(r"1[0-8]\d\d", digits) and not re.match(r"\s\w", match.string[match.end() :])
        if is_old and re.search(r"(?i)\b(?:in|since|until|till|by|of|year) $", before(match)):
            return Kind.YEAR, english_year(int(digits))
        return super().bare(match)

    def in_code(self, digits: str, code: str) -> str:
        """Up to two digits are one number, and any before its unit: 500W."""
        is_alone = len(digits) <= 2 and re.fullmatch(r"[^\d_]*\d+[^\d_]*", code)
        is_number = digits[0] != "0" and (is_alone or re.fullmatch(r"\d+[A-Z]{1,2}", code))
        return self.spoken(digits) if is_number else self.digits(digits)

    def letters(self, letters: str) -> str:
        return " ".join(letters) if letters.isupper() and (letters in SPELT or is_spelt(letters)) else letters


def _clock(hour: int, minute: int, marked: bool) -> str:
    if minute:
        return f"{english(hour)} {_minutes(minute)}"
    return f"{english(hour)} hundred" if hour > 12 else f"{english(hour)} o'clock"


def _minutes(minute: int) -> str:
    return f"{'oh ' if minute < 10 else ''}{english(minute)}" if minute else ""


LEXIS = _English(
    code="en",
    cardinal=lambda number, gender: english(number),
    ordinal=lambda number, gender: english_ordinal(number),
    point="point",
    decimal=".",
    number=NUMBER,
    unsigned=r"\w.)",
    units="""
        kg kilogram/s; g gram/s; mg milligram/s; km kilometer/s; cm centimeter/s; mm millimeter/s; mi mile/s
        yd yard/s; l liter/s; ml milliliter/s; gal gallon/s; oz ounce/s; lb pound/s; lbs pound/s
        ft foot/feet; m2 square meter/s; km2 square kilometer/s; cm2 square centimeter/s
        mm2 square millimeter/s; mi2 square mile/s; ft2 square foot/square feet
        sqft square foot/square feet; m3 cubic meter/s; cm3 cubic centimeter/s; ft3 cubic foot/cubic feet
        kb kilobyte/s; mb megabyte/s; gb gigabyte/s; tb terabyte/s; kib kibibyte/s; mib mebibyte/s
        gib gibibyte/s; tib tebibyte/s; kbit kilobit/s; mbit megabit/s; gbit gigabit/s; tbit terabit/s
        px pixel/s; db decibel/s; kw kilowatt/s; gw gigawatt/s; kwh kilowatt hour/s; mwh megawatt hour/s
        mah milliamp hour/s; kbps kilobit/s per second; tbps terabit/s per second; mbps megabit/s per second
        gbps gigabit/s per second; fps frame/s per second; hz hertz; khz kilohertz; mhz megahertz
        ghz gigahertz; rpm revolution/s per minute; bpm beat/s per minute; mph mile/s per hour
        rps request/s per second; kph kilometer/s per hour; ms millisecond/s; psi pound/s per square inch
        wk week/s; wks week/s; mo month/s; mos month/s; yr year/s; yrs year/s; tsp teaspoon/s
        tbsp tablespoon/s; qt quart/s; qts quart/s; pts point/s; dpi dot/s per inch; ppi pixel/s per inch
        kcal kilocalorie/s; req request/s; reqs request/s; tok token/s; ¢ cent/s; s second/s; sec second/s
        secs second/s; min minute/s; mins minute/s; h hour/s; hr hour/s; hrs hour/s; d day/s; w week/s
        y year/s; x time/s; % percent; ° degree/s; °c degree/s celsius; º degree/s; ℃ degree/s celsius
        °f degree/s fahrenheit; ℉ degree/s fahrenheit; sqm square meter/s; sqkm square kilometer/s
        sqmi square mile/s; ★ star/s
    """,
    cased="""
        W watt/s; V volt/s; A amp/s; L liter/s; Ah amp hour/s; Wh watt hour/s; mW milliwatt/s; MW megawatt/s
        kV kilovolt/s; mA milliamp/s; nm nanometer/s; ns nanosecond/s; m meter/s; S second/s; H hour/s
        D day/s; Y year/s; X time/s
    """,
    per="""
        s per second; sec per second; min per minute; h per hour; hr per hour; d per day; day per day
        wk per week; week per week; mo per month; month per month; yr per year; year per year; y per year
        m2 per square meter; km2 per square kilometer; ft2 per square foot; sqft per square foot
        m3 per cubic meter; cm3 per cubic centimeter; kg per kilogram; g per gram; lb per pound
        km per kilometer; mi per mile; m per meter; cm per centimeter; l per liter; ml per milliliter
        gal per gallon; gb per gigabyte; tb per terabyte; kwh per kilowatt hour; side per side
        person per person; player per player; game per game; match per match; round per round
        night per night; serving per serving; user per user; page per page; session per session; set per set
        lap per lap; sqm per square meter; sqkm per square kilometer; sqmi per square mile
    """,
    per_word="per {}",
    currencies="""
        $ dollar/s|cent/s; US$ US dollar/s|cent/s; C$ Canadian dollar/s|cent/s
        A$ Australian dollar/s|cent/s; NZ$ New Zealand dollar/s|cent/s; HK$ Hong Kong dollar/s|cent/s
        R$ real/reais|centavo/s; € euro/s|cent/s; £ pound/s|penny/pence; ¥ yen; ￥ yen; ₹ rupee/s|paisa/paise
        ₩ won; ₽ ruble/s|kopeck/s; ₫ dong; ₺ lira|kurus; ₱ peso/s|centavo/s; ₿ bitcoin; USD dollar/s|cent/s
        EUR euro/s|cent/s; GBP pound/s|penny/pence; JPY yen; CNY yuan; RMB yuan
        CAD Canadian dollar/s|cent/s; AUD Australian dollar/s|cent/s; CHF Swiss franc/s|centime/s
        MX$ Mexican peso/s|centavo/s; S$ Singapore dollar/s|cent/s; ₴ hryvnia/s; ₸ tenge; ₪ shekel/s; ₦ naira
        ₡ colon/es; zł zloty/s; kr krone/kroner
    """,
    cents=" and {} {cent}",
    thousands="",
    scales="; ".join(
        f"{sign} {word}" for short, word in _SCALES.items() for sign in {short, short.upper(), short.title()}
    ),
    months=" ".join(_MONTHS),
    of_month="(?!)",
    day_first="(?!)",
    day=lambda number, match: english_ordinal(number),
    date=("{month} {day}", ", {year}"),
    year=english_year,
    years=r"(?:19|20)\d\d",
    clock=_clock,
    hour="(?!)",
    lasting="left|remaining|remain",
    labelled="vol. = volume; ch. = chapter; p. = page; pp. = pages; ep = episode",
    phone=rf"(?:{PHONE}|\d{{1,5}}(?:-\d{{1,7}}){{3,}}|\d{{1,4}}(?:-\d{{2,4}}){{2,}}"
    r"|0\d{1,4}(?:[ -]\d{2,8})+|\d{3} \d{3} (?!000)\d{3})(?!-\d)|\+\d{7,}|0\d{6,}",
    labels=_SEATS,
    letter="[A-Za-z]",
    glued=r"(?:hp|xp|off|subs?|bits?)(?![A-Za-z\d_])",
    signs="and|plus|equals|percent|times|divided by|minus|plus or minus|is less than or equal to"
    "|is greater than or equal to|is less than|is greater than|is not|about|square root of|to|squared|to the",
    symbols={
        **{"@": " at ", "$": " dollars ", "€": " euros ", "£": " pounds ", "¥": " yuan "},
        **{"°": " degrees ", "→": " to ", "#": " number ", "§": " section "},
    },
    to="to",
    score="to",
    out_of="out of",
    versus="",
    number_sign="number",
    version="version",
    dot="point",
    ending="dot",
    minus="minus",
    link="link",
    mail="email address",
    listing="code.",
    heart="heart",
    fractions={
        ("1", "2"): "one half",
        ("1", "3"): "one third",
        ("2", "3"): "two thirds",
        ("1", "4"): "one quarter",
        ("3", "4"): "three quarters",
        ("24", "7"): "twenty-four seven",
    },
    abbreviations="mr; mrs; ms; dr; prof; st; sr; jr; vs; e.g; i.e",
    weekdays="; ".join(f"{short} = {day}" for short, day in _WEEKDAYS.items()),
    day_range="{} to {}",
    capitals=capitals,
    reads_roman=False,
    stretched=3,
)


def _is_length(match: re.Match[str]) -> bool:
    after = (pattern.match(match.string, match.end()) for pattern in (_PER_TIME, _LENGTH_AFTER))
    return any(after) or bool(_LENGTH_BEFORE.search(before(match)))


def _is_open(match: re.Match[str]) -> bool:
    """True for two amounts, 5kg-10 or 5% - 10, of which only the first has a unit."""
    groups = match.groupdict()
    has_others = any(map(groups.get, ("before_a", "before_b", "unit_b"))) or groups.get("scale_b") == "m"
    return "unit_a" in groups and not has_others and bool(re.search(r"[\w\s][-–—~～]", match[0]))


def _is_timed(match: re.Match[str]) -> bool:
    return bool(_TIME_BEFORE.search(before(match)) or _TIME_AFTER.match(match.string, match.end()))


# Dates and times.


def _date(year: str, month: str, day: str) -> str | None:
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    said = f"{_MONTHS[int(month) - 1]} {english_ordinal(int(day))}"
    return f"{said}, {english_year(int(year))}" if year else said


def _slash_date(match: re.Match[str]) -> str | None:
    """Month first, as in the United States, unless that is no date."""
    first, second, year = match.groups()
    if len(year) == 2 and re.search(r"kda|\bwent\b|score|deaths", match.string, re.I):
        return None
    year = f"20{year}" if len(year) == 2 else year
    return _date(year, first, second) or _date(year, second, first)


def _dotted_date(match: re.Match[str]) -> str | None:
    """29.11.2026"""
    first, second, year = match.groups()
    return _date(year, second, first) or _date(year, first, second)


def _timestamp(match: re.Match[str]) -> str | None:
    """2026-11-29T20:00Z"""
    date, hour, minute = _date(*match.groups()[:3]), int(match[4]), int(match[5])
    if date is None or hour > 24 or minute > 59:
        return None
    return f"{date} at {_clock(hour, minute, False)}{' U T C' * bool(match[6])}"


def _month_day(match: re.Match[str]) -> str | None:
    month = next(n for n, name in enumerate(_MONTHS, 1) if name.lower().startswith(match[1][:3].lower()))
    if match[1] == "may" and not match[3]:
        return None
    return _date((match[4] or "")[-4:], str(month), match[2])


def _day_month(match: re.Match[str]) -> str | None:
    if not 1 <= int(match[1]) <= 31:
        return None
    month = next(name for name in _MONTHS if name.startswith(match[2][:3]))
    year = f", {english_year(int(match[3][-4:]))}" if match[3] else ""
    the = "" if re.search(r"\bthe $", before(match), re.I) else "the "
    return f"{the}{english_ordinal(int(match[1]))} of {month}{year}"


def _half_day(match: re.Match[str]) -> str | None:
    """7 pm, 7:30:05 am; a time without minutes has no seconds."""
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    if hour > 12 or minute > 59:
        return None
    minutes = _minutes(minute) or ("zero" if second else "")
    return " ".join(filter(None, (english(hour), minutes, _minutes(second), f"{match[4].lower()} m")))


def _duration(match: re.Match[str]) -> str:
    hours, minutes, seconds = map(int, match.groups())
    if not minutes:
        return f"{LEXIS.in_unit(str(hours), 'h')} and {LEXIS.in_unit(str(seconds), 's')}"
    return f"{english(hours)} {_minutes(minutes)} {_minutes(seconds) or 'zero'}"


def _address(match: re.Match[str]) -> str | None:
    if not is_address(match):
        return None
    dots = LEXIS.points(match[1]).replace("point", "dot")
    return f"{dots}, port {LEXIS.spoken(match[2])}" if match[2] else dots


# Telephone numbers, codes.


def _short_phone(match: re.Match[str]) -> str | None:
    first, second = match[1], match[2]
    is_round = first[-1] == "0" and second[-1] == "0" and first != "0" and int(first) < int(second)
    is_phone = not is_round or second[0] == "0" or _PHONE_BEFORE.search(before(match))
    return f"{LEXIS.digits(first)}, {LEXIS.digits(second)}" if is_phone else None


def _hexadecimal(match: re.Match[str]) -> str:
    return "zero x " + " ".join(LEXIS.digits(c) or c for c in match[1])


_SHORT = {
    **{"dmg": "damage", "lvl": "level", "lvls": "levels", "hw": "homework", "btw": "by the way"},
    **{"Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Hwy": "Highway", "approx": "approximately"},
}
_BY_SOUND = as_rows(
    "b4 before; gr8 great; h8 hate; l8 late; l8r later; m8 mate; w8 wait; str8 straight"
    "; any1 anyone; every1 everyone; some1 someone"
)
"""Words whose digits stand for a sound, in small letters; `chat/leet.py` has digits drawn for letters."""
_WRITTEN_OUT = {"yr": "year", "wk": "week", "tsp": "teaspoon", "tbsp": "tablespoon"}
_TIMES = {"s": "second", "h": "hour", "min": "minute"}
_DAY_BEFORE = re.compile(r"\b(?:on|by|until|till|this|next|last|every|due|from|to|see you) $", re.I)
_DAY_AFTER = re.compile(rf",?\s(?:the )?(?:\d|{_MONTH}\b|at \d|night|morning|evening|noon)", re.I)


def _weekday(match: re.Match[str]) -> str | None:
    """Fri 12/11, by fri"""
    earlier, is_word = before(match), match[1] in ("sat", "sun", "wed")
    is_day = _DAY_BEFORE.search(earlier) or (not is_word and _DAY_AFTER.match(match.string, match.end()))
    return _WEEKDAYS[match[1][:3].lower()] if is_day else None


def _possessive(match: re.Match[str]) -> tuple[Kind, str] | None:
    """Henry VIII's"""
    said = capitals(match, False)
    return said if said and said[0] is Kind.ROMAN else None


def _codec(match: re.Match[str]) -> str:
    """x264, H.265, x86"""
    return f"{match[1][0]} {_pairs(match[2]) if len(match[2]) > 2 else english(int(match[2]))}"


def _title(match: re.Match[str]) -> str | None:
    """Dr. Smith, Elm St., St. Mary's"""
    is_street = match[1] == "St" and re.search(r"\b(?:[A-Z][a-z]+|\d+(?:st|nd|rd|th)) $", before(match))
    if is_street:
        return "Street"
    names = {"Dr": "Doctor", "St": "Saint"}
    return names[match[1]] if re.match(r"\s[A-Z]", match.string[match.end() :]) else None


def _written_out(match: re.Match[str]) -> str:
    """A unit without a number: this yr, 3/4 tsp"""
    return f"{_WRITTEN_OUT[match[1].lower()]}{match[2].lower()}"


# Measures, plain numbers.


def _by(match: re.Match[str]) -> str:
    """3.5m x 4m"""
    one = _SIDES[match[2]]
    many = {"foot": "feet", "inch": "inches"}.get(one, f"{one}s")
    sides = (f"{LEXIS.spoken(LEXIS.plain(n))} {one if n == '1' else many}" for n in (match[1], match[3]))
    return " by ".join(sides)


_SIDES = {
    **{"km": "kilometer", "m": "meter", "cm": "centimeter"},
    **{"mm": "millimeter", "ft": "foot", "in": "inch"},
}


def _inches(match: re.Match[str]) -> str | None:
    """27" monitor, but not the end of a quotation."""
    return f"{LEXIS.spoken(match[1])} inch" if before(match).count('"') % 2 == 0 else None


def _cents(match: re.Match[str]) -> str | None:
    """50c if that is a price: 20c each."""
    is_price = re.match(_EACH, match.string[match.end() :]) or _PRICE_BEFORE.search(before(match))
    return LEXIS.in_unit(match[1], "¢") if is_price else None


def _hash(match: re.Match[str]) -> str:
    """#1, or the number of an order."""
    is_code = len(match[1]) > 3 and _CODE_BEFORE.search(f"{before(match)}#")
    return f"number {LEXIS.digits(match[1]) if is_code else LEXIS.spoken(match[1])}"


def _decade(match: re.Match[str]) -> str | None:
    """80s → eighties; 2000s → two thousands; 1900s → nineteen hundreds."""
    century, tens = match[1] or "", match[2]
    is_seconds = _is_timed(match) or not (century or _DECADE_BEFORE.search(before(match)))
    if "'" not in match[0] and is_seconds:
        return None
    if not century and tens in ("00", "10"):
        return None
    if tens == "00":
        return "two thousands" if century == "20" else f"{english(int(century))} hundreds"
    words = english(int(tens))
    many = f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"
    return f"{english(int(century))} {many}" if century else many


def _ordinal(match: re.Match[str]) -> str | None:
    digits = LEXIS.plain(match[1])
    return english_ordinal(int(digits)) if len(digits) <= LONGEST else None


def _side(digits: str) -> str:
    """Words of a side of 1920x1080."""
    return english(int(digits)) if digits.endswith("000") else _pairs(digits)


def _pairs(digits: str) -> str:
    head, tail = digits[:-2], digits[-2:]
    return f"{english(int(head))} {'hundred' if tail == '00' else english(int(tail))}"


def _slash(match: re.Match[str]) -> str | None:
    a, b = match[1], match[2]
    if (a, b) in LEXIS.fractions and not _WEEKDAY_BEFORE.search(before(match)):
        return LEXIS.fractions[a, b]
    if is_rating(a, b) and (float(a) <= int(b) or not _DATE_BEFORE.search(before(match))):
        return f"{LEXIS.spoken(a)} out of {LEXIS.spoken(b)}"
    if "." not in a and int(a) + int(b) == 100:
        return f"{LEXIS.spoken(a)} {LEXIS.spoken(b)}"
    after = match.string[match.end() : match.end() + 5]
    is_date = 12 < int(b) <= 31 or (
        int(b) <= 12 and (_DATE_BEFORE.search(before(match)) or after[:4] == " is ")
    )
    if "." not in a and 1 <= int(a) <= 12 and is_date and int(b):
        return _date("", a, b)
    return f"{LEXIS.spoken(a)} slash {LEXIS.spoken(b)}"


def _mixed(match: re.Match[str]) -> str:
    whole, a, b = map(LEXIS.spoken, match.groups())
    return f"{whole} and {LEXIS.fractions.get((match[2], match[3])) or f'{a} over {b}'}"


def _parts(match: re.Match[str]) -> str:
    """2/3rds"""
    words = LEXIS.fractions.get((match[1], match[2]))
    return words or f"{english(int(match[1]))} {english_ordinal(int(match[2]))}{'s' * (match[1] != '1')}"


def _feet(match: re.Match[str]) -> str | None:
    """6'2: feet and inches; 12'30": minutes and seconds."""
    large, small = int(match[1]), int(match[2])
    if large < 9 and small < 12:
        return f"{english(large)} foot {english(small)}"
    if not match[3] or small > 59:
        return None
    return f"{LEXIS.in_unit(str(large), 'min')} {LEXIS.in_unit(str(small), 's')}"


def _powers(match: re.Match[str]) -> str:
    power = match[1]
    if power in _POWERS:
        return f" {_POWERS[power]} "
    if power.lstrip("-").isdigit():
        return f" to the {'minus ' if power[0] == '-' else ''}{english_ordinal(int(power.lstrip('-')))} "
    return f" to the {power} "


ENGLISH = language_of(
    LEXIS,
    numbers=(
        (Kind.LAUGHTER, r"(?:(?<!.)|(?<=[,.!?] ))23{3,}(?=$|[,.!?])", lambda m: "ha ha ha"),
        (Kind.NUMBER, r"(?:(?<!.)|(?<=[,.!?] ))6{3,}(?=$|[,.!?])", lambda m: LEXIS.digits(m[0])),
        (Kind.CODE, r"0[xX]([0-9A-Fa-f]+)(?![A-Za-z\d_])", _hexadecimal),
        (Kind.CODE, r"(\d{1,3}(?:\.\d{1,3}){3})(?::(\d{1,5}))?(?![\w.]\d|\w)", _address),
        (Kind.DATE, rf"(\d{{1,2}})/(\d{{1,2}})/(\d{{4}}|\d\d){END}", _slash_date),
        (Kind.DATE, rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){END}", lambda m: _date(*m.groups())),
        (Kind.DATE, rf"(\d{{1,2}})\.(\d{{1,2}})\.((?:19|20)\d\d){END}", _dotted_date),
        (Kind.DATE, r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::\d\d(?:\.\d+)?)?(Z?)(?![\w:])", _timestamp),
        (
            Kind.DATE,
            rf"(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\b(,? (?:19|20)\d\d(?!\d))?",
            _day_month,
        ),
        (Kind.TIME, r"(?i)(\d{1,2})(?:[:.](\d{2}))?(?::(\d{2}))?\s?([ap])\.?\s?m\b\.?", _half_day),
        (Kind.TIME, rf"(\d{{1,2}}):(\d{{2}}):(\d{{2}}){END}", _duration),
        (
            Kind.TIME,
            rf"(\d{{1,2}}):(\d{{2}})\.(\d{{1,3}}){END}",
            lambda m: f"{english(int(m[1]))} {_minutes(int(m[2])) or 'zero'} point {LEXIS.digits(m[3])}",
        ),
        (Kind.PHONE, rf"(\d{{3}})-(\d{{4}}){END}(?!-\d)", _short_phone),
        (
            Kind.PHONE,
            rf"(?:911|112|999){END}(?!-\d)",
            lambda m: LEXIS.digits(m[0]) if _PHONE_BEFORE.search(before(m)) else None,
        ),
        (
            Kind.SCORE,
            r"(\d{1,3})[-–](\d{1,3})(?=\s?\(?(?:HT|FT|OT|ET|AET)(?![A-Za-z\d_]))",
            lambda m: f"{LEXIS.spoken(m[1])} to {LEXIS.spoken(m[2])}",
        ),
        (Kind.MONEY, r"(\d{1,3})c(?![A-Za-z\d_])", _cents),
        (
            Kind.WORD,
            r"2(nite|night|day|morrow)(?![A-Za-z\d_])",
            lambda m: f"to{m[1].replace('nite', 'night')}",
        ),
        (
            Kind.SCORE,
            r"(\d{1,2})/([248])(?=\s(?:time|beat|signature)\b)",
            lambda m: f"{LEXIS.spoken(m[1])} {LEXIS.spoken(m[2])}",
        ),
        (Kind.FRACTION, rf"(\d+) (\d)/(\d){END}", _mixed),
        (Kind.FRACTION, r"(\d)/(\d)(?:rd|th)s?(?![A-Za-z\d_])", _parts),
        (Kind.FRACTION, rf"24-7{END}(?!-)", lambda m: LEXIS.fractions["24", "7"]),
        (Kind.FRACTION, rf"(\d+(?:\.\d+)?)(?:/| / )(\d+){END}", _slash),
        (Kind.UNIT, r"([3-8])['′](?=\s[a-z])", lambda m: f"{english(int(m[1]))} foot"),
        (Kind.UNIT, r"(\d{1,2})['′](\d{1,2})(\"|″|'')?(?![A-Za-z\d_])", _feet),
        (
            Kind.UNIT,
            r"(\d{3,4})([pi])(\d{2,3})?(?![A-Za-z\d_])",
            lambda m: f"{_pairs(m[1])} {m[2]}{f' {english(int(m[3]))}' if m[3] else ''}",
        ),
        (
            Kind.UNIT,
            r"([48])[kK](\d{2,3})(?![A-Za-z\d_])",
            lambda m: f"{english(int(m[1]))} k {english(int(m[2]))}",
        ),
        (
            Kind.UNIT,
            r"([1-9]\d{2,3})\s?[xX×]\s?([1-9]\d{2,3})(?![A-Za-z\d_.])",
            lambda m: f"{_side(m[1])} by {_side(m[2])}",
        ),
        (Kind.CODE, r"401\(?[kK]\)?(?![A-Za-z\d_])", lambda m: "four oh one k"),
        (Kind.UNIT, rf"({NUMBER})\s?(k?m|cm|mm|ft|in)\s?[x×]\s?({NUMBER})\s?\2(?![A-Za-z\d_])", _by),
        (Kind.UNIT, r"(\d+(?:\.\d+)?)[\"″](?=\s|$|[,.!?])", _inches),
        (
            Kind.RANGE,
            rf"({NUMBER}){DASH}\1{END}(?!\s?=|-\d)",
            lambda m: " ".join([LEXIS.spoken(LEXIS.plain(m[1]))] * 2),  # 50-50
        ),
        (Kind.YEAR, r"(1\d|20)?(\d0)'?s(?![A-Za-z\d_])", _decade),
        (Kind.NUMBER, r"(?i)(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)(?![A-Za-z\d_])", _ordinal),
    ),
    words=(
        (
            Kind.DATE,
            rf"(?i)({_MONTH})\.? (\d{{1,2}})(st|nd|rd|th)?\b(?![.:]?\d)(,? (?:19|20)\d\d(?!\d))?",
            _month_day,
        ),
        (
            Kind.UNIT,
            r"(m|ft)/(s|h|min)(?![A-Za-z\d_])",
            lambda m: f"{'feet' if m[1] == 'ft' else 'meters'} per {_TIMES[m[2]]}",
        ),
        (Kind.CODE, r"([xX]|[hH]\.?)(86|64|26[456])(?![A-Za-z\d_]|\.\d)", _codec),
        (Kind.SIGN, r"(Dr|St)(?:\.|(?=\s|$))(?=\s|$|[,!?])", _title),
        (Kind.SIGN, r"(?i)(yr|wk|tsp|tbsp)(s?)\.?(?![A-Za-z\d_])", _written_out),
        (Kind.SIGN, r"(?i)vs\.?(?![A-Za-z\d_])", lambda m: "versus"),
        (Kind.SIGN, r"N[oO]\.\s?(?=\d)|(?<![?!] )nos?\.\s?(?=\d)", lambda m: "number "),
        (Kind.SIGN, r"[Ww]/[Ll](?![A-Za-z\d_])", lambda m: f"{m[0][0]} {m[0][2]}"),
        (
            Kind.ACRONYM,
            r"([A-Z]{1,3})&([A-Z]{1,2})(?![A-Za-z\d_])",
            lambda m: f"{' '.join(m[1])} and {' '.join(m[2])}",
        ),
        (Kind.WORD, rf"({'|'.join(_BY_SOUND)})(?![A-Za-z\d_])", lambda m: _BY_SOUND[m[1]]),
        (Kind.SIGN, r"(?i)w/o\b", lambda m: "without"),
        (Kind.SIGN, r"(?i)w/e\b", lambda m: "whatever"),
        (Kind.SIGN, r"(?i)w/(?=\s|\w)", lambda m: "with "),
        (Kind.SIGN, r"C\+\+", lambda m: "C plus plus"),
        (Kind.SIGN, r"([A-G])#(m?)(?![A-Za-z\d_])", lambda m: f"{m[1]} sharp{' minor' * bool(m[2])}"),
        (Kind.WORD, rf"({'|'.join(_SHORT)})(?:\.|(?![A-Za-z\d_]))", lambda m: _SHORT[m[1]]),
        (Kind.WORD, r"[Ll]vl?\.?(?=\s?\d)", lambda m: "level"),
        (Kind.ROMAN, r"[IVX]{2,6}(?='s(?![A-Za-z]))", _possessive),
        (Kind.WORD, r"ft\.(?=\s[A-Z])", lambda m: "featuring"),
        (Kind.DATE, r"(?i)(mon|tues?|wed|thu(?:rs)?|fri|sat|sun)\.?(?![A-Za-z\d_])", _weekday),
        (Kind.SIGN, r"[xX]\s?(\d+(?:\.\d+)?)(?![A-Za-z\d_]|\.\d)", lambda m: f"times {LEXIS.spoken(m[1])}"),
    ),
    signs=(
        (Kind.SIGN, r"(?<=[\w)])\^\{?(-?\d{1,3}|[a-z])\}?(?![A-Za-z\d_])", _powers),
        (Kind.NUMBER, r"#(\d+)(?![A-Za-z\d_])", _hash),
        (
            Kind.RANGE,
            r"(?:(?<=:\d\d)|(?<=[apAP][mM]))[-–—~](?=\s?\d{1,2}(?::\d\d|(?:\.\d\d)?\s?[apAP]\.?[mM]))",
            lambda m: " to ",
        ),
        (Kind.RANGE, r"(?<=\w) ~ (?=\d)", lambda m: " to "),
        (Kind.SIGN, r"(?<![\w)<>])([<>])(?=\.?\d)", lambda m: f"{'less' if m[1] == '<' else 'more'} than "),
        (Kind.SIGN, r"~(?=\s)", lambda m: m[0]),
        (Kind.SIGN, r"\$(?=[A-Z]{2,5}(?![A-Za-z\d_]))", lambda m: ""),  # a share's name
        (Kind.SIGN, r"(?<=\s)\|\|(?=\s)", lambda m: " or "),
        (Kind.SIGN, r"(?<!\w)@(?=\s)", lambda m: "at"),
    ),
)

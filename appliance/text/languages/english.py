"""English: the words of numbers, signs and capitals."""

from __future__ import annotations

import re

from appliance.text.languages import quantity
from appliance.text.languages.capitals import SPELT, capitals, is_spelt
from appliance.text.languages.numbers import (
    LONGEST,
    english,
    english_decimal,
    english_digits,
    english_ordinal,
    english_year,
    is_code,
)
from appliance.text.languages.quantity import DASH, END, NUMBER, Quantity
from appliance.text.spans import Kind, Language, Readings, before

_MONTHS = str.split("January February March April May June July August September October November December")
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if name != "May" else "May" for name in _MONTHS)
_CURRENCIES = {
    sign: tuple(names.split("/"))
    for sign, names in (
        row.split(" ", 1)
        for row in (
            "$ dollar/dollars/cent/cents",
            "US$ US dollar/US dollars/cent/cents",
            "C$ Canadian dollar/Canadian dollars/cent/cents",
            "A$ Australian dollar/Australian dollars/cent/cents",
            "NZ$ New Zealand dollar/New Zealand dollars/cent/cents",
            "HK$ Hong Kong dollar/Hong Kong dollars/cent/cents",
            "R$ real/reais/centavo/centavos",
            "€ euro/euros/cent/cents",
            "£ pound/pounds/penny/pence",
            "¥ yen/yen//",
            "￥ yen/yen//",
            "₹ rupee/rupees/paisa/paise",
            "₩ won/won//",
            "₽ ruble/rubles/kopeck/kopecks",
            "₫ dong/dong//",
            "₺ lira/lira/kurus/kurus",
            "₱ peso/pesos/centavo/centavos",
            "₿ bitcoin/bitcoin//",
            "usd dollar/dollars/cent/cents",
            "eur euro/euros/cent/cents",
            "gbp pound/pounds/penny/pence",
            "jpy yen/yen//",
            "cny yuan/yuan//",
            "rmb yuan/yuan//",
        )
    )
}
"""One, many, and their hundredth part."""
_SCALES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion", "mn": "million"}
_WORD_SCALES = "thousand|million|billion|trillion"
_NAMES = """
    kg kilogram; g gram; mg milligram; km kilometer; cm centimeter; mm millimeter; mi mile
    yd yard; l liter; ml milliliter; gal gallon; oz ounce; lb pound; lbs pound; ft foot/feet
    m2 square meter; km2 square kilometer; cm2 square centimeter; mm2 square millimeter
    mi2 square mile; ft2 square foot/square feet; sqft square foot/square feet;
    m3 cubic meter; cm3 cubic centimeter; ft3 cubic foot/cubic feet
    kb kilobyte; mb megabyte; gb gigabyte; tb terabyte; kib kibibyte; mib mebibyte; gib gibibyte
    tib tebibyte; kbit kilobit; mbit megabit; gbit gigabit; tbit terabit; px pixel; db decibel
    kw kilowatt; gw gigawatt; kwh kilowatt hour; mwh megawatt hour; mah milliamp hour
    kbps kilobit/s per second; tbps terabit/s per second
    mbps megabit/s per second; gbps gigabit/s per second; fps frame/s per second; hz hertz/hertz
    khz kilohertz/kilohertz; mhz megahertz/megahertz; ghz gigahertz/gigahertz
    rpm revolution/s per minute; bpm beat/s per minute; mph mile/s per hour; rps request/s per second
    kph kilometer/s per hour; ms millisecond; psi pound/s per square inch
    wk week; wks week; mo month; mos month; yr year; yrs year; tsp teaspoon; tbsp tablespoon; qt quart
    qts quart; pts point; dpi dot/s per inch; ppi pixel/s per inch; kcal kilocalorie; req request
    reqs request; tok token
    ¢ cent; s second; sec second; secs second; min minute; mins minute; m minute; h hour; hr hour; hrs hour
    d day; w week; y year; x time; % percent/percent; ° degree; °c degree/s celsius
    º degree; ℃ degree/s celsius; °f degree/s fahrenheit; ℉ degree/s fahrenheit
"""
_CASED = """
    W watt; V volt; A amp; L liter; Ah amp hour; Wh watt hour; mW milliwatt; MW megawatt; kV kilovolt
    mA milliamp; nm nanometer; ns nanosecond
"""
"""Units whose letters in another case are none."""
_BITS = "Kb kilobit; Mb megabit; Gb gigabit; Tb terabit"
"""Before /s."""
_PER = """
    s second; sec second; min minute; h hour; hr hour; d day; day day; wk week; week week; mo month
    month month; yr year; year year; y year; m2 square meter; km2 square kilometer; ft2 square foot
    sqft square foot; m3 cubic meter; cm3 cubic centimeter; kg kilogram; g gram; lb pound; km kilometer
    mi mile; m meter; cm centimeter; l liter; ml milliliter; gal gallon; gb gigabyte; tb terabyte
    kwh kilowatt hour; side side; person person; player player; game game; match match; round round
    night night; serving serving; user user; page page; session session; set set; lap lap
"""
"""Denominators of rates, after the /."""


def _unit_names(names: str) -> dict[str, tuple[str, str]]:
    """Sign → one, many: "kg kilogram", "ft foot/feet", "mph mile/s per hour"."""
    units = {}
    for row in re.split(r"[;\n]\s*", names.strip()):
        sign, name = row.strip().split(" ", 1)
        one, slash, many = name.partition("/")
        if not slash:
            units[sign] = (one, f"{one}s")
        elif many.startswith("s "):
            units[sign] = (one + many[1:], one + many)
        else:
            units[sign] = (one, many)
    return units


_UNITS = _unit_names(_NAMES)
_CASED_UNITS, _BIT_UNITS = _unit_names(_CASED), _unit_names(_BITS)
_RATES = {sign: one for sign, (one, _) in _unit_names(_PER).items()}
_UNITS |= {"° c": _UNITS["°c"], "° f": _UNITS["°f"]}
_SQUARES = {"ft": "ft2", "m": "m2", "km": "km2", "mi": "mi2"}
_UNITS |= {f"sq {side}": _UNITS[sign] for side, sign in _SQUARES.items()}
_RATES |= {f"sq {side}": _UNITS[sign][0] for side, sign in _SQUARES.items()}
_METERS = ("meter", "meters")
_PER_TIME = re.compile(r"\s?/\s?(?:s|sec|h|hr|min)(?![A-Za-z])")
_SEAT_BEFORE = re.compile(
    r"\b(?:room|class|seat|gate|row|flight|apt|apartment|block|group|section|grade|bus|line|terminal|plan|tier"
    r"|exit|platform|unit|floor|season|part|figure|fig\.?|vitamin) $",
    re.I,
)
"""Words before a number and a letter that is no unit: gate 5A."""
_MONEY_UNITS = ("$", "€", "£", "₹", "₽", "₩", "usd", "eur", "gbp", "jpy", "cny", "rmb")
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
_DECADE_BEFORE = re.compile(r"\b(?:the|early|late|mid|and|or|my|your|his|her|our|their)[ -]$|'$", re.I)
_YEAR_BEFORE = re.compile(
    r"\b(?:(?i:born|in|since|by|until|till|of|from|year|early|late|before|after|through)|(?:19|20)\d\d and"
    r"|[A-Z][a-z]{2,}) $"
)
_CODE_BEFORE = re.compile(
    r"\b(?:zip|code|pin|otp|id|room|ext|extension|account|serial|passcode|password|order|ticket|tracking"
    r"|invoice|case)(?: code| number| no\.?| is|:)*(?: #?|#)$",
    re.I,
)
_DAYS = r"(?:mon|tues?|wed|thu(?:rs)?|fri|sat|sun|(?:mon|tues|wednes|thurs|fri|satur|sun)day)"
_WEEKDAY_BEFORE = re.compile(rf"\b{_DAYS},? $", re.I)
_DATE_BEFORE = re.compile(
    rf"\b(?:on|by|before|since|until|birthday is|bday is|it's|today is|{_DAYS}),? $", re.I
)
_PHONE_BEFORE = re.compile(r"\b(?:call|phone|tel|text|number|dial|fax|hotline|at)\b\W*$", re.I)
_FRACTIONS = {
    ("1", "2"): "one half",
    ("1", "3"): "one third",
    ("2", "3"): "two thirds",
    ("1", "4"): "one quarter",
    ("3", "4"): "three quarters",
    ("24", "7"): "twenty-four seven",
}
_OUT_OF = {"5", "10", "20", "100"}
_POWERS = {"2": "squared", "3": "cubed"}


def digit(character: str) -> str:
    return f" {english_digits(character)} "


def number(plain: str, ordinal: bool) -> str:
    return english_ordinal(int(plain)) if ordinal else english_decimal(plain)


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


def _minutes(minute: int) -> str:
    return f"{'oh ' if minute < 10 else ''}{english(minute)}" if minute else ""


def _clock(hour: str, minute: str, second: str | None, half: str | None) -> str | None:
    if int(hour) > (12 if half else 24) or int(minute) > 59:
        return None
    # Without minutes the seconds would be taken for them.
    words = [english(int(hour)), _minutes(int(minute)) or ("zero" if int(second or 0) else "")]
    words.append(_minutes(int(second or 0)))
    if half:
        words.append(f"{half.lower()} m")
    elif not int(minute):
        words[1] = "hundred" if int(hour) > 12 else "o'clock"
    return " ".join(filter(None, words))


def _duration(match: re.Match[str]) -> str:
    hours, minutes, seconds = map(int, match.groups())
    if not minutes:
        return (
            f"{english(hours)} {_UNITS['h'][hours != 1]} and {english(seconds)} {_UNITS['s'][seconds != 1]}"
        )
    return f"{english(hours)} {_minutes(minutes)} {_minutes(seconds) or 'zero'}"


def _hours_minutes(match: re.Match[str]) -> str:
    """1h30m, 2h 5m 10s."""
    parts = re.findall(r"(\d+)\s?([dhms])", match[0], re.I)
    return " ".join(f"{english_decimal(n)} {_UNITS[unit.lower()][n != '1']}" for n, unit in parts)


def _points(version: str) -> str:
    return " point ".join(_digits_or_number(part) for part in version.split("."))


def _digits_or_number(digits: str) -> str:
    is_number = len(digits) <= 3 and (digits == "0" or digits[0] != "0")
    return english(int(digits)) if is_number else english_digits(digits)


def _address(match: re.Match[str]) -> str | None:
    if not quantity.is_address(match):
        return None
    dots = " dot ".join(map(_digits_or_number, match[1].split(".")))
    return f"{dots}, port {english_decimal(match[2])}" if match[2] else dots


# Telephone numbers, codes.


def _groups(match: re.Match[str]) -> str | None:
    """A number of several groups, as a telephone's: each digit."""
    groups = re.findall(r"\d+", match[0])
    if sum(map(len, groups)) < 7:
        return None
    return ("plus " if match[0][0] == "+" else "") + ", ".join(map(english_digits, groups))


def _short_phone(match: re.Match[str]) -> str | None:
    first, second = match[1], match[2]
    is_round = first[-1] == "0" and second[-1] == "0" and first != "0" and int(first) < int(second)
    is_phone = not is_round or second[0] == "0" or _PHONE_BEFORE.search(before(match))
    return f"{english_digits(first)}, {english_digits(second)}" if is_phone else None


def _code(match: re.Match[str]) -> str:
    """Up to two digits at the end are one number."""
    parts = re.findall(r"[^\W\d_]+|\d+(?:\.\d+)*", match[0])
    digits = [part for part in parts if part[0].isdigit()]
    is_decimal = match[0][0].isdigit()
    is_amount = re.fullmatch(r"\d+[A-Z]{1,2}", match[0]) is not None
    said = []
    for part in parts:
        if not part[0].isdigit():
            said.append(" ".join(part) if part.isupper() and (part in SPELT or is_spelt(part)) else part)
        elif "." in part:
            said.append(english_decimal(part) if is_decimal and part.count(".") == 1 else _points(part))
        elif len(digits) == 1 and "_" not in match[0] and part[0] != "0" and (len(part) <= 2 or is_amount):
            said.append(plain(part))
        else:
            said.append(english_digits(part))
    return " ".join(said)


def _hexadecimal(match: re.Match[str]) -> str:
    return "zero x " + " ".join(digit(c).strip() if c.isdigit() else c for c in match[1])


_SHORT = {
    **{"dmg": "damage", "lvl": "level", "lvls": "levels", "hw": "homework", "btw": "by the way"},
    **{"Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Hwy": "Highway", "approx": "approximately"},
}
_NUMBERED = {"vol": "volume", "ch": "chapter", "p": "page", "pp": "pages"}
_WEEKDAYS = {name[:3].lower(): f"{name}day" for name in str.split("Mon Tues Wednes Thurs Fri Satur Sun")}
_DAY_BEFORE = re.compile(r"\b(?:on|by|until|till|this|next|last|every|due|from|to|see you) $", re.I)
_DAY_AFTER = re.compile(rf",?\s(?:the )?(?:\d|{_MONTH}\b|at \d|night|morning|evening|noon)", re.I)


def _weekday(match: re.Match[str]) -> str | None:
    """Fri 12/11, by fri"""
    earlier, is_word = before(match), match[1] in ("sat", "sun", "wed")
    is_day = _DAY_BEFORE.search(earlier) or (not is_word and _DAY_AFTER.match(match.string, match.end()))
    return _WEEKDAYS[match[1][:3].lower()] if is_day else None


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
    return f"{_UNITS[match[1].lower()][0]}{match[2].lower()}"


# Money, units, plain numbers.


def _money(amount: str, sign: str, scale: str = "") -> str:
    one, many, cent, cents = _CURRENCIES[sign]
    if scale:
        return f"{english_decimal(amount)} {scale} {many}"
    whole, _, part = amount.partition(".")
    if len(part) not in (0, 1, 2) or (part and not cent):
        return f"{english_decimal(amount)} {many}"
    small = int(part.ljust(2, "0")) if part else 0
    words = [f"{english_decimal(whole)} {one if whole == '1' else many}"] if int(whole) or not small else []
    if small:
        words.append(f"{english(small)} {cent if small == 1 else cents}")
    return " and ".join(words)


def _scale(quantity: Quantity) -> str:
    return _SCALES.get(quantity.scale.lower(), quantity.scale.lower())


def _names(sign: str) -> tuple[str, str]:
    """One and many of a unit."""
    return _CASED_UNITS.get(sign) or _UNITS[sign.lower().replace("^", "")]


def _said(quantity: Quantity, unit: tuple[str, str] | None = None) -> str:
    unit_sign = quantity.unit.lower()
    if currency := quantity.currency or (unit_sign if unit_sign in _CURRENCIES else ""):
        return _money(quantity.number, currency, _scale(quantity))
    words = f"{plain(quantity.number)} {_scale(quantity)}".strip()
    if quantity.unit:
        one, many = unit or _names(quantity.unit)
        words += f" {one if quantity.number == '1' else many}"
    return words


def _quantity(match: re.Match[str]) -> tuple[Kind, str] | None:
    read, earlier = quantity.read(match), before(match)
    after = match.string[match.end() : match.end() + 16]
    if not (read.currency or read.scale or read.unit) or read.unit == "G":
        return None
    is_rate = bool(_PER_TIME.match(after))
    if read.scale == "m" and not read.currency and not _MANY_AFTER.match(after):
        read = Quantity(read.number, unit="m")
    if read.scale == "b" and not read.currency:
        return None
    if read.scale == "K" and read.number in ("2", "4", "8") and not read.currency:
        return None  # the width of a screen
    is_timed = bool(_TIME_BEFORE.search(earlier) or _TIME_AFTER.match(after))
    if read.unit in (*"dwyDY",) and not is_timed:
        return None  # 2D
    if read.unit in (*"WVAL",) and (_SEAT_BEFORE.search(earlier) or _RECORD.search(match.string)):
        return None
    if is_rate and read.unit in _BIT_UNITS:
        return read.kind, _signed(match, _said(read, _BIT_UNITS[read.unit]))
    is_tens = re.fullmatch(r"(?:1\d|20)\d0|[2-9]0", read.number) and not is_timed
    if read.unit == "s" and is_tens and (len(read.number) > 2 or _DECADE_BEFORE.search(earlier)):
        return None  # the 80s
    is_length = read.unit == "m" and (is_rate or _LENGTH_BEFORE.search(earlier) or _LENGTH_AFTER.match(after))
    return read.kind, _signed(match, _said(read, _METERS if is_length else None))


def _signed(match: re.Match[str], words: str) -> str:
    sign = {"-": "minus ", "−": "minus ", "+": "plus "}.get(match["sign"] or "", "")
    return f"{sign}{words}"


def _range(match: re.Match[str]) -> str | None:
    a, b = quantity.read(match, "_a"), quantity.read(match, "_b")
    if not quantity.alike(a, b):
        return None
    is_length = "m" in (a.scale, b.scale) and not (a.currency or b.currency)
    is_length = is_length and bool(_PER_TIME.match(match.string, match.end()))
    if is_length:
        b = Quantity(b.number, unit="m")
    elif ("m" in (a.scale, b.scale) and not (a.currency or b.currency)) or "G" in (a.unit, b.unit):
        return None
    both = Quantity(b.number, a.currency or b.currency, b.scale or a.scale, b.unit)
    if a.number == b.number and not both.unit and not both.currency:
        return f"{plain(a.number)} {plain(b.number)}"
    is_bare = not (both.unit or both.scale or both.currency)
    if is_bare and _is_year(a.number) and _is_year(b.number) and int(a.number) < int(b.number):
        return f"{english_year(int(a.number))} to {english_year(int(b.number))}"
    first = _signed(match, f"{plain(a.number)} {_scale(a)}".strip())
    return f"{first} to {'minus ' if match['minus'] else ''}{_said(both, _METERS if is_length else None)}"


def _rate(match: re.Match[str]) -> str | None:
    """The part of a rate after its number: /s, and any word after money."""
    earlier, word = before(match), match[1]
    if re.search(quantity.RATED, earlier) and (one := _RATES.get(word.lower().replace("^", ""))):
        return f" per {one}"
    is_price = len(word) > 2 and re.search(rf"{quantity.CURRENCY}\s?[\d.,]+\w{{0,2}}$|\d\s?[€$£]$", earlier)
    return f" per {word}" if is_price else None


def _bare_rate(match: re.Match[str]) -> str:
    """km/h without a number."""
    sign = match[1]
    many = _METERS[1] if sign == "m" else (_BIT_UNITS.get(sign) or _UNITS[sign.lower()])[1]
    return f"{many} per {_RATES[match[2]]}"


def _by(match: re.Match[str]) -> str:
    """3.5m x 4m"""
    one, many = ("inch", "inches") if match[2] == "in" else _METERS if match[2] == "m" else _UNITS[match[2]]
    first, second = (plain(quantity.plain(number)) for number in (match[1], match[3]))
    return f"{first} {one if match[1] == '1' else many} by {second} {one if match[3] == '1' else many}"


def _inches(match: re.Match[str]) -> str | None:
    """27" monitor; not the end of what is quoted."""
    return f"{plain(match[1])} inch" if before(match).count('"') % 2 == 0 else None


def _cents(match: re.Match[str]) -> str | None:
    """50c where that is a price: 20c each."""
    is_price = re.match(_EACH, match.string[match.end() :]) or _PRICE_BEFORE.search(before(match))
    return f"{english(int(match[1]))} {'cent' if match[1] == '1' else 'cents'}" if is_price else None


def _score(match: re.Match[str]) -> str:
    """7-2-11, 4-2-3-1"""
    return " ".join(map(plain, re.findall(r"\d+", match[0])))


def _is_year(number: str) -> bool:
    return re.fullmatch(r"(?:19|20)\d\d", number) is not None


def _hash(match: re.Match[str]) -> str:
    """#1, or the number of an order."""
    is_code = len(match[1]) > 3 and _CODE_BEFORE.search(f"{before(match)}#")
    return f"number {english_digits(match[1]) if is_code else plain(match[1])}"


def _decade(match: re.Match[str]) -> str | None:
    """80s → eighties; 2000s → two thousands; 1900s → nineteen hundreds."""
    century, tens = match[1] or "", match[2]
    if not century and tens in ("00", "10"):
        return None
    if tens == "00":
        return "two thousands" if century == "20" else f"{english(int(century))} hundreds"
    words = english(int(tens))
    many = f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"
    return f"{english(int(century))} {many}" if century else many


def _ordinal(match: re.Match[str]) -> str | None:
    digits = quantity.plain(match[1])
    return english_ordinal(int(digits)) if len(digits) <= LONGEST else None


def _pairs(digits: str) -> str:
    head, tail = digits[:-2], digits[-2:]
    return f"{english(int(head))} {'hundred' if tail == '00' else english(int(tail))}"


def _slash(match: re.Match[str]) -> str | None:
    a, b = match[1], match[2]
    if (a, b) in _FRACTIONS and not _WEEKDAY_BEFORE.search(before(match)):
        return _FRACTIONS[a, b]
    if b in _OUT_OF and float(a) <= int(b):
        return f"{english_decimal(a)} out of {english_decimal(b)}"
    if "." not in a and int(a) + int(b) == 100:
        return f"{plain(a)} {plain(b)}"
    after = match.string[match.end() : match.end() + 5]
    is_date = 12 < int(b) <= 31 or (
        int(b) <= 12 and (_DATE_BEFORE.search(before(match)) or after[:4] == " is ")
    )
    if "." not in a and 1 <= int(a) <= 12 and is_date and int(b):
        return _date("", a, b)
    return f"{plain(a)} slash {plain(b)}"


def _feet(match: re.Match[str]) -> str | None:
    """6'2: feet and inches; 12'30": minutes and seconds."""
    large, small = int(match[1]), int(match[2])
    if large < 9 and small < 12:
        return f"{english(large)} foot {english(small)}"
    if not match[3] or small > 59:
        return None
    return f"{english(large)} {_UNITS['m'][large != 1]} {english(small)} {_UNITS['s'][small != 1]}"


def _year(match: re.Match[str]) -> str | None:
    return english_year(int(match[0])) if _YEAR_BEFORE.search(before(match)) else None


def plain(number: str) -> str:
    return english_digits(number) if is_code(number) else english_decimal(number)


def _number(match: re.Match[str]) -> str:
    return _signed(match, plain(quantity.plain(match["number"])))


def _powers(match: re.Match[str]) -> str:
    power = match[1]
    if power in _POWERS:
        return f" {_POWERS[power]} "
    if power.lstrip("-").isdigit():
        return f" to the {'minus ' if power[0] == '-' else ''}{english_ordinal(int(power.lstrip('-')))} "
    return f" to the {power} "


_SIGN = r"(?P<sign>(?<![\w.)])[-−+])?"
_QUANTITIES = (
    quantity.pattern("", [*_SCALES, "K", "M", "B", _WORD_SCALES], [*_UNITS, *_MONEY_UNITS], _CASED_UNITS),
    quantity.pattern("_a", [*_SCALES, "K", "M", "B"], [*_UNITS, *_MONEY_UNITS], _CASED_UNITS),
    quantity.pattern("_b", [*_SCALES, "K", "M", "B", _WORD_SCALES], [*_UNITS, *_MONEY_UNITS], _CASED_UNITS),
)
_RATE_SIGNS, _UNIT_SIGNS = quantity.units_pattern(_RATES), quantity.units_pattern([*_UNITS, *_SCALES])

NUMBERS = Readings(
    (
        (Kind.LAUGHTER, r"(?:(?<!.)|(?<=[,.!?] ))23{3,}(?=$|[,.!?])", lambda m: "ha ha ha"),
        (Kind.NUMBER, r"(?:(?<!.)|(?<=[,.!?] ))6{3,}(?=$|[,.!?])", lambda m: english_digits(m[0])),
        (Kind.CODE, r"0[xX]([0-9A-Fa-f]+)(?![A-Za-z\d_])", _hexadecimal),
        (Kind.CODE, r"(\d{1,3}(?:\.\d{1,3}){3})(?::(\d{1,5}))?(?![\w.]\d|\w)", _address),
        (Kind.DATE, rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){END}", lambda m: _date(*m.groups())),
        (Kind.DATE, rf"(\d{{1,2}})/(\d{{1,2}})/(\d{{4}}|\d\d){END}", _slash_date),
        (
            Kind.DATE,
            rf"(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\b(,? (?:19|20)\d\d(?!\d))?",
            _day_month,
        ),
        (
            Kind.TIME,
            r"(?i)(\d{1,2})(?:[:.](\d{2}))?(?::(\d{2}))?\s?([ap])\.?m\b\.?",
            lambda m: _clock(m[1], m[2] or "0", m[3], m[4]),
        ),
        (Kind.TIME, rf"(\d{{1,2}}):(\d{{2}}):(\d{{2}}){END}", _duration),
        (
            Kind.TIME,
            rf"(\d{{1,2}}):(\d{{2}})\.(\d{{1,3}}){END}",
            lambda m: f"{english(int(m[1]))} {_minutes(int(m[2])) or 'zero'} point {english_digits(m[3])}",
        ),
        (Kind.TIME, rf"(\d{{1,2}}):(\d{{2}}){END}", lambda m: _clock(m[1], m[2], None, None)),
        (
            Kind.TIME,
            r"(?i)(?:\d{1,3}\s?[dhm]\s?){1,2}\d{1,2}\s?(?:min|[ms])(?![A-Za-z\d_])",
            _hours_minutes,
        ),
        (
            Kind.SCORE,
            rf"(\d{{1,2}}):(\d{{1,2}}){END}",
            lambda m: f"{english(int(m[1]))} to {english(int(m[2]))}",
        ),
        (Kind.NUMBER, rf"{_SIGN}(?P<number>\d{{1,3}}(?=(?: \d{{3}})* 000(?!\d))(?: \d{{3}})+){END}", _number),
        (
            Kind.PHONE,
            rf"(?:{quantity.PHONE}|0\d{{1,4}}(?:[ -]\d{{2,8}})+|\d{{1,4}}(?:-\d{{2,4}}){{2,}}"
            r"|\d{3} \d{3} \d{3})"
            r"(?![-\w]\d|\w|\.\d)",
            _groups,
        ),
        (Kind.PHONE, r"\d{1,5}(?:-\d{1,7}){3,}(?![-\w]\d|\w)", _groups),
        (Kind.PHONE, rf"(\d{{3}})-(\d{{4}}){END}", _short_phone),
        (Kind.PHONE, rf"(?:\+\d{{7,}}|0\d{{6,}}){END}", _groups),
        (
            Kind.PHONE,
            rf"(?:911|112|999){END}",
            lambda m: english_digits(m[0]) if _PHONE_BEFORE.search(before(m)) else None,
        ),
        (
            Kind.SCORE,
            rf"(\d{{1,3}})/(\d{{1,3}})/(\d{{1,3}}){END}",
            lambda m: " ".join(map(plain, m.groups())),
        ),
        (Kind.SCORE, rf"\d{{1,3}}(?:[-–]\d{{1,3}}){{2,4}}{END}(?!\s?=)", _score),
        (
            Kind.SCORE,
            r"(\d{1,3})[-–](\d{1,3})(?=\s?\(?(?:HT|FT|OT|ET|AET)(?![A-Za-z\d_]))",
            lambda m: f"{plain(m[1])} to {plain(m[2])}",
        ),
        (Kind.MONEY, r"(\d{1,3})c(?![A-Za-z\d_])", _cents),
        (
            Kind.SCORE,
            r"(\d{1,2})/([248])(?=\s(?:time|beat|signature)\b)",
            lambda m: f"{plain(m[1])} {plain(m[2])}",
        ),
        (
            Kind.FRACTION,
            rf"(\d+) (\d)/(\d){END}",
            lambda m: (
                f"{plain(m[1])} and {_FRACTIONS.get((m[2], m[3])) or f'{plain(m[2])} over {plain(m[3])}'}"
            ),
        ),
        (Kind.FRACTION, rf"(\d+(?:\.\d+)?)/(\d+){END}", _slash),
        (Kind.UNIT, r"(\d{1,2})['′](\d{1,2})(\"|″|'')?(?![A-Za-z\d_])", _feet),
        (Kind.UNIT, r"(\d{3,4})([pi])(?![A-Za-z\d_])", lambda m: f"{_pairs(m[1])} {m[2]}"),
        (Kind.CODE, r"401\(?[kK]\)?(?![A-Za-z\d_])", lambda m: "four oh one k"),
        (Kind.UNIT, rf"({NUMBER})\s?(k?m|cm|mm|ft|in)\s?[x×]\s?({NUMBER})\s?\2(?![A-Za-z\d_])", _by),
        (Kind.UNIT, r"(\d+(?:\.\d+)?)[\"″](?=\s|$|[,.!?])", _inches),
        (
            Kind.SIGN,
            rf"({NUMBER})\s?[x×*]\s?({NUMBER})(?![A-Za-z\d_]|\.\d)",
            lambda m: f"{plain(quantity.plain(m[1]))} times {plain(quantity.plain(m[2]))}",
        ),
        (
            Kind.RANGE,
            rf"{_SIGN}(?i:{_QUANTITIES[1]}{DASH}(?P<minus>[-−])?{_QUANTITIES[2]}){END}(?!\s?=|-\d)",
            _range,
        ),
        (
            Kind.NUMBER,
            rf"(?<![\w$€£])\.(\d{{2,3}})(?![A-Za-z\d_%°]|[.,]\d|\s?(?i:{_UNIT_SIGNS})(?![A-Za-z\d_]))",
            lambda m: f"point {english_digits(m[1])}",
        ),
        (Kind.UNIT, rf"{_SIGN}(?i:{_QUANTITIES[0]}){END}", _quantity),
        (Kind.MONEY, rf"{_SIGN}(?i:{_QUANTITIES[0]})(?=off(?![A-Za-z\d_]))", _quantity),
        (Kind.YEAR, r"(1\d|20)?(\d0)'?s(?![A-Za-z\d_])", _decade),
        (Kind.NUMBER, r"(?i)(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)(?![A-Za-z\d_])", _ordinal),
        (Kind.NUMBER, rf"{_SIGN}(?P<number>{NUMBER})(?=(?:hp|xp|off|subs?|bits?)(?![A-Za-z\d_]))", _number),
        (
            Kind.CODE,
            r"\d{4,}(?![A-Za-z\d_]|[.,]\d)",
            lambda m: english_digits(m[0]) if _CODE_BEFORE.search(before(m)) else None,
        ),
        (Kind.YEAR, rf"(?:19|20)\d\d{END}", _year),
        (Kind.NUMBER, rf"{_SIGN}(?P<number>{NUMBER})(?![A-Za-z\d_]|\.\d)", _number),
        (Kind.CODE, r"[A-Za-z\d_]+(?:\.\d[A-Za-z\d_]*)*", _code),
    )
)


WORDS = Readings(
    (
        (
            Kind.DATE,
            rf"(?i)({_MONTH})\.? (\d{{1,2}})(st|nd|rd|th)?\b(?![.:]?\d)(,? (?:19|20)\d\d(?!\d))?",
            _month_day,
        ),
        (
            Kind.VERSION,
            rf"[vV]\.?\s?(\d+(?:\.\d+)*)(?:(?<=\.\d)([a-z]))?{END}",
            lambda m: f"version {_points(m[1])} {m[2] or ''}".rstrip(),
        ),
        (Kind.UNIT, r"(km|m|ft|[kKMGT][bB]|[kMGT]bit)/(s|h|min)(?![A-Za-z\d_])", _bare_rate),
        (Kind.CODE, r"([xX]|[hH]\.?)(86|64|26[456])(?![A-Za-z\d_]|\.\d)", _codec),
        (Kind.SIGN, r"(Dr|St)(?:\.|(?=\s|$))(?=\s|$|[,!?])", _title),
        (Kind.SIGN, r"(?i)(yr|wk|tsp|tbsp)(s?)\.?(?![A-Za-z\d_])", _written_out),
        (Kind.SIGN, r"(?i)vs\.?(?![A-Za-z\d_])", lambda m: "versus"),
        (Kind.SIGN, r"No\.\s?(?=\d)|(?<![?!] )nos?\.\s?(?=\d)", lambda m: "number "),
        (Kind.SIGN, r"(?i)w/o\b", lambda m: "without"),
        (Kind.SIGN, r"(?i)w/(?=\s|\w)", lambda m: "with "),
        (Kind.SIGN, r"C\+\+", lambda m: "C plus plus"),
        (Kind.SIGN, r"([A-G])#(m?)(?![A-Za-z\d_])", lambda m: f"{m[1]} sharp{' minor' * bool(m[2])}"),
        (Kind.WORD, rf"({'|'.join(_SHORT)})(?:\.|(?![A-Za-z\d_]))", lambda m: _SHORT[m[1]]),
        (Kind.WORD, r"(?i)(vol|ch|pp?)\.\s?(?=\d)", lambda m: f"{_NUMBERED[m[1].lower()]} "),
        (Kind.WORD, r"ft\.(?=\s[A-Z])", lambda m: "featuring"),
        (Kind.DATE, r"(?i)(mon|tues?|wed|thu(?:rs)?|fri|sat|sun)\.?(?![A-Za-z\d_])", _weekday),
        (Kind.SIGN, r"[xX]\s?(\d+(?:\.\d+)?)(?![A-Za-z\d_]|\.\d)", lambda m: f"times {plain(m[1])}"),
        (Kind.CODE, r"(?=[A-Za-z]*\d)[A-Za-z][A-Za-z0-9]*(?:\.\d[A-Za-z0-9]*)*(?![^\W\u3400-\u9fff])", _code),
        (Kind.CODE, r"(?=[A-Za-z]*[\d_])[A-Za-z]\w*", _code),
    )
)

SIGNS = Readings(
    (
        (Kind.SIGN, r"(?<=[\w)])\^\{?(-?\d{1,3}|[a-z])\}?(?![A-Za-z\d_])", _powers),
        (Kind.NUMBER, r"#(\d+)(?![A-Za-z\d_])", _hash),
        (Kind.SIGN, r"#+", lambda m: " "),
        (Kind.SIGN, r"(?:(?<=[\d)])|(?<=[\d)] ))[-−](?=\s?\d+(?:\.\d+)?\s?=)", lambda m: " minus "),
        (
            Kind.RANGE,
            r"(?:(?<=:\d\d)|(?<=[apAP][mM]))[-–—~](?=\s?\d{1,2}(?::\d\d|(?:\.\d\d)?\s?[apAP]\.?[mM]))",
            lambda m: " to ",
        ),
        (Kind.SIGN, r"±", lambda m: " plus or minus "),
        (Kind.SIGN, r"×(?= ?\d)|(?<=\d)\*(?=\d)", lambda m: " times "),
        (Kind.SIGN, r"÷", lambda m: " divided by "),
        (Kind.SIGN, r"<=|≤", lambda m: " is less than or equal to "),
        (Kind.SIGN, r">=|≥", lambda m: " is greater than or equal to "),
        (Kind.SIGN, r"(?<=[\w)])<(?=[\w(-])|(?<=[\w)]\s)<(?=\s[\w(-])", lambda m: " is less than "),
        (Kind.SIGN, r"(?<=[\w)])>(?=[\w(-])|(?<=[\w)]\s)>(?=\s[\w(-])", lambda m: " is greater than "),
        (Kind.SIGN, r"!=|≠", lambda m: " is not "),
        (Kind.SIGN, r"≈", lambda m: " about "),
        (Kind.SIGN, r"√", lambda m: " square root of "),
        (Kind.SIGN, r"[-=]>|→", lambda m: " to "),
        (Kind.SIGN, r"={3,}", lambda m: " "),
        (Kind.SIGN, r"={1,2}", lambda m: " equals "),
        (Kind.SIGN, r"&+", lambda m: " and "),
        (Kind.SIGN, r"\$(?=[A-Z]{2,5}(?![A-Za-z\d_]))", lambda m: ""),  # a share's name
        (Kind.SIGN, r"(?<=\s)\|\|(?=\s)", lambda m: " or "),
        (Kind.UNIT, r"\s?/\s?(?=100\s?km(?!\w))", lambda m: " per "),
        (
            Kind.SIGN,
            r"\+(?=\s?\d)|(?<=\S)\+(?=\s|$|[,.!?])|(?<=\s)\+(?=\s)|(?<=\w)\+(?=\w)",
            lambda m: " plus ",
        ),
        (Kind.SIGN, r"(?<=\w)%(?![A-Za-z\d_])", lambda m: " percent"),
        (Kind.SIGN, r"(?<!\w)@(?=\s)", lambda m: "at"),
        (Kind.UNIT, rf"\s?/\s?((?i:{_RATE_SIGNS})(?![A-Za-z\d_])|[A-Za-z]+(?![\w/]))", _rate),
        (Kind.SIGN, r"(?<=\w)/(?=\w)", lambda m: " "),
        (Kind.SIGN, r"~(?=\w)", lambda m: "about "),
    )
)

ENGLISH = Language(
    code="en",
    link="link",
    mail="email address",
    listing="code.",
    comma=", ",
    point="dot",
    digit=digit,
    number=number,
    numbers=NUMBERS,
    words=WORDS,
    signs=SIGNS,
    capitals=capitals,
    abbreviations=frozenset(str.split("mr mrs ms dr prof st sr jr vs e.g i.e")),
    heart="heart",
    alone={
        "&": " and ",
        "+": " plus ",
        "=": " equals ",
        "%": " percent ",
        "@": " at ",
        "$": " dollars ",
        "€": " euros ",
        "£": " pounds ",
        "¥": " yuan ",
        "°": " degrees ",
        "×": " times ",
        "÷": " divided by ",
        "→": " to ",
        "#": " number ",
    },
    stretched=3,
)

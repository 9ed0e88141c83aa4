"""English: its numbers and dates, and what letters after a number mean."""

from __future__ import annotations

import re

from appliance.text.languages.en.capitals import SPELT, capitals, is_spelt
from appliance.text.languages.en.numbers import english, english_ordinal, english_year
from appliance.text.languages.quantity import CURRENCY, DASH, END, LONGEST, NUMBER, PHONE, is_rating
from appliance.text.languages.speech import Amount, Speech
from appliance.text.spans import Kind, Table, before

_MONTH = (
    "Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|Jun(?:e)?|Jul(?:y)?|Aug(?:ust)?|Sep(?:tember)?"
    "|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?"
)
_MONEY = re.compile(rf"(?i){CURRENCY}|usd|eur|gbp|jpy|cny|rmb")
_PER_TIME = re.compile(r"\s?/\s?(?:s|sec|h|hr|min)(?![A-Za-z])")
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
_DECADE_AFTER = re.compile(
    r"\s(?:music|synth\w*|vibes?|movies?|kids?|rock|pop|metal|hits?|style|aesthetic|songs?|cartoons?|fashion|shows?)\b"
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
_DAY_BEFORE = re.compile(r"\b(?:on|by|until|till|this|next|last|every|due|from|to|see you) $", re.I)
_DAY_AFTER = re.compile(rf",?\s(?:the )?(?:\d|{_MONTH}\b|at \d|night|morning|evening|noon)", re.I)


class Grammar(Speech):
    phone = (
        rf"(?:{PHONE}|\d{{1,5}}(?:-\d{{1,7}}){{3,}}|\d{{1,4}}(?:-\d{{2,4}}){{2,}}"
        r"|0\d{1,4}(?:[ -]\d{2,8})+|\d{3} \d{3} (?!000)\d{3})(?!-\d)|\+\d{7,}|0\d{6,}"
    )

    def ordinal(self, number: int, ending: str = "") -> str:
        return english_ordinal(number)

    def year(self, number: int) -> str:
        return english_year(number)

    def day(self, number: int, match: re.Match[str]) -> str:
        return english_ordinal(number)

    def capitals(self, match: re.Match[str], shouted: bool) -> tuple[Kind, str] | None:
        return capitals(match, shouted)

    def group(self, text: str, form: str) -> str:
        """{1:pairs} reads pairs of digits."""
        if form == "pairs":
            return english(int(text)) if text.endswith("000") else _pairs(text)
        return super().group(text, form)

    def measured(self, amount: Amount, match: re.Match[str]) -> Amount | None:
        """m is minutes, meters or millions; W and L are won and lost; 2D is no time; 5kg-10 no range."""
        scale, sign, groups = amount.scale, amount.sign, match.groupdict()
        if scale in ("k", "K") and re.match(r"(?i)\s(?:run|race)\b", match.string[match.end() :]):
            return None
        if scale in ("b", "m", "T") and not _MONEY.search(match[0]):
            if scale in ("b", "T"):
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
        if re.fullmatch(self.dates.years, digits) and _YEAR_BEFORE.search(before(match)):
            return Kind.YEAR, english_year(int(digits))
        is_counting = re.match(r"\s(?!lol|ok)\w", match.string[match.end() :])
        is_old = re.fullmatch(r"1[0-8]\d\d", digits) and not is_counting
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

    def digit_rules(self) -> Table:
        end = r"(?![A-Za-z\d_])"
        both = rf"({NUMBER}){DASH}\1{END}(?!\s?=|-\d)"
        day_month = rf"(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\b(,? (?:19|20)\d\d(?!\d))?"
        stamp = r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::\d\d(?:\.\d+)?)?(Z?)(?![\w:])"
        half_day = r"(?i)(\d{1,2})(?:[:.](\d{2}))?(?::(\d{2}))?\s?([ap])\.?\s?m\b\.?"
        return (
            (Kind.DATE, rf"(\d{{1,2}})/(\d{{1,2}})/(\d{{4}}|\d\d){END}", self._slash_date),
            (Kind.DATE, rf"(\d{{1,2}})\.(\d{{1,2}})\.((?:19|20)\d\d){END}", self._dotted_date),
            (Kind.DATE, stamp, self._timestamp),
            (Kind.DATE, day_month, self._day_month),
            (Kind.TIME, half_day, self._half_day),
            (Kind.TIME, rf"(\d{{1,2}}):(\d{{2}}):(\d{{2}}){END}", self._duration),
            (Kind.TIME, rf"(\d{{1,2}}):(\d{{2}})\.(\d{{1,3}}){END}", self._lap),
            (Kind.PHONE, rf"(\d{{3}})-(\d{{4}}){END}(?!-\d)", self._short_phone),
            (Kind.PHONE, rf"(?:911|112|999){END}(?!-\d)", self._emergency),
            (Kind.MONEY, rf"(\d{{1,3}})c{end}", self._cents),
            (Kind.FRACTION, rf"(\d+) (\d)/(\d){END}", self._mixed),
            (Kind.FRACTION, rf"(\d)/(\d)(?:rd|th)s?{end}", self._parts),
            (Kind.FRACTION, rf"(\d+(?:\.\d+)?)(?:/| / )(\d+){END}", self._slash),
            (Kind.UNIT, rf"(\d{{1,2}})['′’](\d{{1,2}})(\"|″|”|'')?{end}", self._feet),
            (Kind.UNIT, r"(\d+(?:\.\d+)?)[\"″”](?=\s|$|[,.!?)])", self._inches),
            (Kind.RANGE, both, lambda m: " ".join([self.spoken(self.plain(m[1]))] * 2)),  # 50-50
            (Kind.YEAR, rf"(1\d|20)?(\d0)'?s{end}", self._decade),
            (Kind.NUMBER, rf"(?i)(\d{{1,3}}(?:,\d{{3}})+|\d+)(?:st|nd|rd|th){end}", self._ordinal),
        )

    def letter_rules(self) -> Table:
        month_day = rf"(?i)({_MONTH})\.? (\d{{1,2}})(st|nd|rd|th)?\b(?![.:]?\d)(,? (?:19|20)\d\d(?!\d))?"
        return (
            (Kind.DATE, month_day, self._month_day),
            (Kind.SIGN, r"(Dr|St)(?:\.|(?=[\s,!?\")]|$))(?=\s|$|[,!?\")])", self._title),
            (Kind.ROMAN, r"[IVX]{2,6}(?=['’]s(?![A-Za-z]))", self._possessive),
            (Kind.DATE, r"(?i)(mon|tues?|wed|thu(?:rs)?|fri|sat|sun)\.?(?![A-Za-z\d_])", self._weekday),
        )

    def _date(self, year: str, month: str, day: str) -> str | None:
        if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
            return None
        said = f"{self.months[int(month) - 1]} {english_ordinal(int(day))}"
        return f"{said}, {english_year(int(year))}" if year else said

    def _slash_date(self, match: re.Match[str]) -> str | None:
        """Month first, as in the United States, unless that is no date."""
        first, second, year = match.groups()
        if len(year) == 2 and re.search(r"kda|\bwent\b|score|deaths", match.string, re.I):
            return None
        year = f"20{year}" if len(year) == 2 else year
        return self._date(year, first, second) or self._date(year, second, first)

    def _dotted_date(self, match: re.Match[str]) -> str | None:
        """29.11.2026"""
        first, second, year = match.groups()
        return self._date(year, second, first) or self._date(year, first, second)

    def _timestamp(self, match: re.Match[str]) -> str | None:
        """2026-11-29T20:00Z"""
        date, hour, minute = self._date(*match.groups()[:3]), int(match[4]), int(match[5])
        if date is None or hour > 24 or minute > 59:
            return None
        return f"{date} at {self.clock(hour, minute, False)}{' U T C' * bool(match[6])}"

    def _month_day(self, match: re.Match[str]) -> str | None:
        month = next(
            n for n, name in enumerate(self.months, 1) if name.lower().startswith(match[1][:3].lower())
        )
        if match[1] == "may" and not match[3]:
            return None
        return self._date((match[4] or "")[-4:], str(month), match[2])

    def _day_month(self, match: re.Match[str]) -> str | None:
        if not 1 <= int(match[1]) <= 31:
            return None
        month = next(name for name in self.months if name.startswith(match[2][:3]))
        year = f", {english_year(int(match[3][-4:]))}" if match[3] else ""
        the = "" if re.search(r"\bthe $", before(match), re.I) else "the "
        return f"{the}{english_ordinal(int(match[1]))} of {month}{year}"

    def _duration(self, match: re.Match[str]) -> str:
        hours, minutes, seconds = map(int, match.groups())
        if not minutes:
            return f"{self.in_unit(str(hours), 'h')} and {self.in_unit(str(seconds), 's')}"
        return f"{english(hours)} {_minutes(minutes)} {_minutes(seconds) or 'zero'}"

    def _short_phone(self, match: re.Match[str]) -> str | None:
        first, second = match[1], match[2]
        is_round = first[-1] == "0" and second[-1] == "0" and first != "0" and int(first) < int(second)
        is_phone = not is_round or second[0] == "0" or _PHONE_BEFORE.search(before(match))
        return f"{self.digits(first)}, {self.digits(second)}" if is_phone else None

    def _weekday(self, match: re.Match[str]) -> str | None:
        """Fri 12/11, by fri"""
        earlier, is_word = before(match), match[1] in ("sat", "sun", "wed")
        is_day = _DAY_BEFORE.search(earlier) or (not is_word and _DAY_AFTER.match(match.string, match.end()))
        return self.dates.weekdays[match[1][:3].lower()][0] if is_day else None

    def _possessive(self, match: re.Match[str]) -> tuple[Kind, str] | None:
        """Henry VIII's"""
        said = capitals(match, False)
        return said if said and said[0] is Kind.ROMAN else None

    def _title(self, match: re.Match[str]) -> str | None:
        """Dr. Smith, Elm St., St. Mary's"""
        is_street = match[1] == "St" and re.search(r"\b(?:[A-Z][a-z]+|\d+(?:st|nd|rd|th)) $", before(match))
        if is_street:
            return "Street"
        names = {"Dr": "Doctor", "St": "Saint"}
        return names[match[1]] if re.match(r"\s[A-Z]", match.string[match.end() :]) else None

    def _inches(self, match: re.Match[str]) -> str | None:
        """27" monitor, but not the end of a quotation."""
        earlier = match.string[: match.start()]
        is_quoted = earlier.count('"') % 2 or earlier.count("“") > earlier.count("”")
        return None if is_quoted else f"{self.spoken(match[1])} inch"

    def _cents(self, match: re.Match[str]) -> str | None:
        """50c if that is a price: 20c each."""
        is_price = re.match(_EACH, match.string[match.end() :]) or _PRICE_BEFORE.search(before(match))
        return self.in_unit(match[1], "¢") if is_price else None

    def _decade(self, match: re.Match[str]) -> str | None:
        """80s → eighties; 2000s → two thousands; 1900s → nineteen hundreds."""
        century, tens = match[1] or "", match[2]
        is_named = _DECADE_BEFORE.search(before(match)) or _DECADE_AFTER.match(match.string, match.end())
        is_seconds = _is_timed(match) or not (century or is_named)
        if "'" not in match[0] and is_seconds:
            return None
        if not century and tens in ("00", "10"):
            return None
        if tens == "00":
            return "two thousands" if century == "20" else f"{english(int(century))} hundreds"
        words = english(int(tens))
        many = f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"
        return f"{english(int(century))} {many}" if century else many

    def _ordinal(self, match: re.Match[str]) -> str | None:
        digits = self.plain(match[1])
        return english_ordinal(int(digits)) if len(digits) <= LONGEST else None

    def _slash(self, match: re.Match[str]) -> str | None:
        a, b = match[1], match[2]
        if f"{a}/{b}" in self.signs.fractions and not _WEEKDAY_BEFORE.search(before(match)):
            return self.signs.fractions[f"{a}/{b}"]
        if is_rating(a, b) and (float(a) <= int(b) or not _DATE_BEFORE.search(before(match))):
            return f"{self.spoken(a)} out of {self.spoken(b)}"
        if "." not in a and int(a) + int(b) == 100:
            return f"{self.spoken(a)} {self.spoken(b)}"
        after = match.string[match.end() : match.end() + 5]
        is_date = 12 < int(b) <= 31 or (
            int(b) <= 12 and (_DATE_BEFORE.search(before(match)) or after[:4] == " is ")
        )
        if "." not in a and 1 <= int(a) <= 12 and is_date and int(b):
            return self._date("", a, b)
        return f"{self.spoken(a)} slash {self.spoken(b)}"

    def _mixed(self, match: re.Match[str]) -> str:
        whole, a, b = map(self.spoken, match.groups())
        return f"{whole} and {self.signs.fractions.get(f'{match[2]}/{match[3]}') or f'{a} over {b}'}"

    def _parts(self, match: re.Match[str]) -> str:
        """2/3rds"""
        words = self.signs.fractions.get(f"{match[1]}/{match[2]}")
        return words or f"{english(int(match[1]))} {english_ordinal(int(match[2]))}{'s' * (match[1] != '1')}"

    def _feet(self, match: re.Match[str]) -> str | None:
        """6'2: feet and inches; 12'30": minutes and seconds."""
        large, small = int(match[1]), int(match[2])
        if large < 9 and small < 12:
            return f"{english(large)} foot {english(small)}"
        if not match[3] or small > 59:
            return None
        return f"{self.in_unit(str(large), 'min')} {self.in_unit(str(small), 's')}"

    def _emergency(self, match: re.Match[str]) -> str | None:
        return self.digits(match[0]) if _PHONE_BEFORE.search(before(match)) else None

    def _half_day(self, match: re.Match[str]) -> str | None:
        """7 pm, 7:30:05 am; a time without minutes has no seconds."""
        hour, minute, second = (int(part or 0) for part in match.groups()[:3])
        if hour > 12 or minute > 59:
            return None
        minutes = _minutes(minute) or ("zero" if second else "")
        return " ".join(filter(None, (english(hour), minutes, _minutes(second), f"{match[4].lower()} m")))

    def _lap(self, match: re.Match[str]) -> str:
        """1:02.35"""
        return f"{english(int(match[1]))} {_minutes(int(match[2])) or 'zero'} point {self.digits(match[3])}"


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


def _minutes(minute: int) -> str:
    return f"{'oh ' if minute < 10 else ''}{english(minute)}" if minute else ""


def _pairs(digits: str) -> str:
    head, tail = digits[:-2], digits[-2:]
    return f"{english(int(head))} {'hundred' if tail == '00' else english(int(tail))}"

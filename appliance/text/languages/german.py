"""German: the words of numbers and signs."""

from __future__ import annotations

import re

from appliance.text.languages.lexis import Lexis
from appliance.text.languages.readings import language_of
from appliance.text.spans import Kind, before

_SMALL = str.split(
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn"
)
_TENS = str.split("_ _ zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
_SCALES = ((10**9, "Milliarde", "Milliarden"), (10**6, "Million", "Millionen"))
_IRREGULAR = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}
_MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember"
_NEUTER = (
    "Mal|Spiel|Level|Video|Match|Jahr|Game|Leben|Team|Kapitel|Tor|Ziel|Geschenk|Abo|Kind|Buch|Set|Quartal"
    "|Viertel|Drittel|Semester"
)
_COUNTED = (
    rf"{_NEUTER}|Platz|Runde|Teil|Staffel|Folge|Stelle|Versuch|Tag|Stream|Liga|Etage|Stock|Klasse|Stufe|Reihe|Sub"
    rf"|{_MONTHS.replace(' ', '|')}|(?:{'|'.join(name[:3] for name in _MONTHS.split())}|Sept)\b"
    "|Boss|Mensch|Advent|Geburtstag|Woche|Stunde|Minute|Halbzeit|Bundesliga|Welt"
    r"|Rang|Preis|Akt|Weltkrieg|Schritt|OG|UG|Kl\b"
)
"""Nouns that tell "1." from the end of a sentence."""
_ARTICLE = re.compile(r"(?i)\b(?:die|der|das|eine?) $")
_WEAK = re.compile(
    r"(?i)\b(?:(?:in|an|auf|aus|mit|bei|von|vor|nach|seit|zu|ab|hinter|neben|über|unter|während|wegen) der"
    r"|am|im|zum|zur|vom|beim|dem|den|des|bis|ab|seit|m?einen|m?einem|deinen|unseren|jeden|dritten) $"
)
_BEFORE_ORDINAL = re.compile(
    r"(?i)\b(?:der|die|das|dem|den|des|[ai]m|zum|zur|vom|beim|ins"
    r"|(?:mein|dein|sein|unser|euer|ihr|jed)(?:e[nmrs]?)?) $"
)
_YEAR_BEFORE = re.compile(
    r"\b(?:(?i:geboren|jahre?n?|seit|von|bis|in|ab|vor|nach|um|anno|sommer|winter|wm|em)|[A-Z][a-zä]+r) $"
)


def cardinal(number: int, gender: str = "") -> str:
    """Only one itself has a gender: ein Euro, eine Stunde."""
    if number == 1 and gender:
        return "eine" if gender == "f" else "ein"
    for size, one, many in _SCALES:
        if number >= size:
            count, rest = divmod(number, size)
            words = f"eine {one}" if count == 1 else f"{cardinal(count)} {many}"
            return words + (f" {cardinal(rest)}" if rest else "")
    for size, name in ((1_000, "tausend"), (100, "hundert")):
        if number >= size:
            count, rest = divmod(number, size)
            return re.sub("eins$", "ein", cardinal(count)) + name + (cardinal(rest) if rest else "")
    if number < 20:
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    return (f"{'ein' if ones == 1 else _SMALL[ones]}und" if ones else "") + _TENS[tens]


def ordinal(number: int, ending: str = "e") -> str:
    rest = number % 100
    if rest in _IRREGULAR:
        head = cardinal(number - rest) if number > rest else ""
        return f"{head}{_IRREGULAR[rest]}{ending or 'e'}"
    return f"{cardinal(number)}{'t' if 0 < rest < 20 else 'st'}{ending or 'e'}"


def year(number: int) -> str:
    century, rest = divmod(number, 100)
    if 11 <= century <= 19:
        return f"{cardinal(century)}hundert{cardinal(rest) if rest else ''}"
    return cardinal(number)


def day(number: int, match: re.Match[str]) -> str:
    return ordinal(number, _ending(before(match), "er"))


def _strong(noun: str) -> str:
    """Ending of an ordinal before a noun without an article."""
    return "es" if re.fullmatch(_NEUTER, noun) else "e" if re.fullmatch(_FEMININE, noun) else "er"


def _ending(earlier: str, strong: str) -> str:
    """Ending of an ordinal after earlier words; in a pair, 1. und 2., both have the same."""
    earlier = re.sub(r"\d+\.\s?(?:und|oder|bis|[-–/])\s?$", "", earlier)
    return "en" if _WEAK.search(earlier) else "e" if _ARTICLE.search(earlier) else strong


def _ordinal(match: re.Match[str]) -> str | None:
    """1. Platz, but not the end of a sentence."""
    noun, earlier = match[2], before(match)
    if not (re.match(rf"(?:{_COUNTED})", noun) or _BEFORE_ORDINAL.search(earlier)):
        return None
    return ordinal(int(match[1]), _ending(earlier, _strong(noun)))


def _first_of_two(match: re.Match[str]) -> str:
    """1. und 2. Level, 3.-5. Platz, 15.-20.12."""
    word = {"-": "bis ", "–": "bis ", "/": ""}.get(match[2], f"{match[2]} ")
    return f"{ordinal(int(match[1]), _ending(before(match), _strong(match[3] or '')))} {word}"


def _price(match: re.Match[str]) -> str:
    """5,-, 5,-€, 1.200,- CHF"""
    currency = "Franken" if match[2] in ("CHF", "Fr.") else "Euro"
    return f"{cardinal(int(match[1].replace('.', '')), 'm')} {currency}"


def _hour(match: re.Match[str]) -> str | None:
    """ab 18h"""
    is_told = re.search(r"(?i)\b(?:um|ab|bis|gegen) $", before(match))
    return clock(int(match[1]), 0, True) if is_told and int(match[1]) < 25 else None


def _month(match: re.Match[str]) -> tuple[Kind, str] | None:
    """24.12."""
    day_, month = int(match[1]), int(match[2])
    if not (1 <= day_ <= 31 and 1 <= month <= 12):
        return None
    return Kind.DATE, f"{day(day_, match)} {_MONTHS.split()[month - 1]}"


def clock(hour: int, minute: int, marked: bool) -> str:
    words = f"{cardinal(hour, 'm')} Uhr"
    return f"{words} {cardinal(minute)}" if minute else words


def _year(match: re.Match[str]) -> str | None:
    return year(int(match[0])) if _YEAR_BEFORE.search(before(match)) else None


def _times(match: re.Match[str]) -> str:
    return cardinal(int(match[1]), "m") + ("fach" if match[2] == "fach" else "mal")


def _day_alone(match: re.Match[str]) -> str | None:
    """am 14."""
    is_told = re.search(r"(?i)\b(?:am|vom|zum|den|dem|beim) $", before(match))
    stop = "" if match.string[match.end() :].strip() else "."
    return f"{ordinal(int(match[1]), 'en')}{stop}" if is_told else None


def _place_alone(match: re.Match[str]) -> str | None:
    """in der 90."""
    stop = "" if match.string[match.end() :].strip() else "."
    return f"{ordinal(int(match[1]), 'en')}{stop}" if re.search(r"(?i)\bin der $", before(match)) else None


def _weekday(match: re.Match[str]) -> str | None:
    """Fr. um 8; So and Do begin a sentence, too."""
    return None if match[0] in ("So", "Do") else _DAYS[match[1]]


_DAYS = {
    **{"Mo": "Montag", "Di": "Dienstag", "Mi": "Mittwoch", "Do": "Donnerstag", "Fr": "Freitag"},
    **{"Sa": "Samstag", "So": "Sonntag"},
}
_FEMININE = r"(?:[A-ZÄÖÜ]\w*(?:e|ung|heit|keit|ion|schaft|ät|zeit|liga)|Person|Nacht|Liga|Frau|Woche)"
LEXIS = Lexis(
    code="de",
    cardinal=cardinal,
    ordinal=ordinal,
    year=year,
    sample="äöüß",
    point="Komma",
    units="""
        qm Quadratmeter; m2 Quadratmeter; km2 Quadratkilometer; cm2 Quadratzentimeter; m3 Kubikmeter
        kbit Kilobit
        mbit Megabit; gbit Gigabit; gbps Gigabit/ pro Sekunde; ¢ Cent; ct Cent; mah Milliamperestunden
        gw Gigawatt; mwh f:Megawattstunde/n; º Grad
        kcal f:Kilokalorie/n; u/min f:Umdrehung/en pro Minute
        kg Kilogramm; g Gramm; mg Milligramm; t f:Tonne/n; km Kilometer; m Meter; cm Zentimeter; mm Millimeter
        l Liter; ml Milliliter; km/h Kilometer/ pro Stunde; kmh Kilometer/ pro Stunde; m/s Meter/ pro Sekunde
        kb Kilobyte; mb Megabyte; gb Gigabyte; tb Terabyte; mbps Megabit/ pro Sekunde
        fps Bilder/ pro Sekunde; hz Hertz; khz Kilohertz; mhz Megahertz; ghz Gigahertz; w Watt; kw Kilowatt
        kwh f:Kilowattstunde/n; db Dezibel; px Pixel; ms f:Millisekunde/n; s f:Sekunde/n; sek f:Sekunde/n
        min f:Minute/n; h f:Stunde/n; std f:Stunde/n; d Tag/e; % Prozent; ° Grad; °c Grad/ Celsius
        °f Grad/ Fahrenheit; x mal; ★ Stern/e
    """,
    cased="""
        W Watt; V Volt; A Ampere; Ah Amperestunden; Wh f:Wattstunde/n; mA Milliampere; kV Kilovolt
        MW Megawatt; J Jahr/e
    """,
    per="""
        s pro Sekunde; sec pro Sekunde; min pro Minute; h pro Stunde; d pro Tag; tag pro Tag
        woche pro Woche; monat pro Monat; jahr pro Jahr; kg pro Kilo; g pro Gramm; l pro Liter
        km pro Kilometer; m pro Meter; m2 pro Quadratmeter; km2 pro Quadratkilometer; m3 pro Kubikmeter
        kwh pro Kilowattstunde; gb pro Gigabyte; sek pro Sekunde; std pro Stunde
    """,
    per_word="pro {}",
    clock_before="um|ab|gegen|bis|seit|kurz vor|kurz nach",
    lasting="noch|übrig|verbleiben|fehlen",
    kings="Ludwig|Heinrich|Friedrich(?: Wilhelm)?|Wilhelm|Karl|Otto|Georg|Philipp|Leopold|Joseph|Ferdinand"
    "|Johannes(?: Paul)?|Paul|Pius|Benedikt|Leo|Nikolaus|Alexander|Napoleon|Rudolf|Konrad|Franz",
    queens="Elisabeth|Elizabeth|Katharina|Margarethe",
    regnal_stop=r"\.?",
    regnal=lambda number, gender: f"{'die' if gender == 'f' else 'der'} {ordinal(number).capitalize()}",
    currencies="""
        € Euro|Cent; EUR Euro|Cent; Euro Euro|Cent; Dollar Dollar|Cent; $ Dollar|Cent; US$ US-Dollar|Cent
        USD US-Dollar|Cent; £ Pfund|Pence
        ¥ Yen; ₽ Rubel|Kopeke/n; ₹ f:Rupie/n|Paisa; ₩ Won; ₿ Bitcoin/s; CHF Franken|Rappen
        zł Zloty; Kč f:Krone/n; kr f:Krone/n; Ft Forint; ₴ Hrywnja
    """,
    cents=" {}",
    thousands="k K tsd Tsd",
    scales="M 1000000 f:Million/en; Mio 1000000 f:Million/en; Mrd 1000000000 f:Milliarde/n",
    months=_MONTHS,
    of_month=r"(?:\.\s?|\s)",
    day=day,
    date=("{day} {month}", " {year}"),
    clock=clock,
    hour=r"\s?uhr|\s?h",
    feminine=_FEMININE,
    no_noun=r"[a-zäöü].*|Uhr",
    labels="level|platz|runde|nr|nummer|teil|staffel|folge|part|stufe|team|phase|kapitel|akt|map|top|tag|season",
    signs="und|plus|gleich|Prozent|mal|geteilt durch|minus|plus minus|höchstens|mindestens|kleiner als"
    "|größer als|ungleich|ungefähr|Wurzel aus|zu|Quadrat|hoch",
    limits="weniger als|mehr als",
    to="bis",
    score="zu",
    out_of="von",
    versus="gegen",
    number_sign="Nummer",
    version="Version",
    dot="Punkt",
    minus="minus",
    link="Link",
    mail="E-Mail-Adresse",
    listing="Code.",
    heart="Herz",
    fractions={
        ("1", "2"): "ein halb",
        ("1", "3"): "ein Drittel",
        ("2", "3"): "zwei Drittel",
        ("1", "4"): "ein Viertel",
        ("3", "4"): "drei Viertel",
        ("24", "7"): "vierundzwanzig sieben",
    },
    weekdays="; ".join(f"{short} = {name}" for short, name in _DAYS.items()),
    day_range="{} bis {}",
    chat="vlt = vielleicht; iwie = irgendwie; iwann = irgendwann; kp = kein Plan; gn8 = gute Nacht"
    "; n8 = Nacht; lvl = Level; vllt = vielleicht; zb = zum Beispiel; mfg = mit freundlichen Grüßen",
    half=lambda number: f"{cardinal(number, 'm')}einhalb",
    labelled="nr = Nummer; no. = Nummer; bd. = Band; ep = Episode",
    symbols={"§": " Paragraf "},
    abbreviations="""
        z. B. = zum Beispiel; d. h. = das heißt; u. a. = unter anderem; bzw. = beziehungsweise; ca. = circa
        evtl. = eventuell; ggf. = gegebenenfalls; inkl. = inklusive; max. = maximal; min. = mindestens
        Nr. = Nummer; Str. = Straße; Dr. = Doktor; Prof. = Professor; St. = Sankt; vgl. = vergleiche
        s. o. = siehe oben; v. a. = vor allem; o. ä. = oder ähnlich; i. d. R. = in der Regel; sog. = sogenannt
        usw. = und so weiter; etc. = et cetera; Hr. = Herr; Fr.; MwSt. = Mehrwertsteuer; Jg. = Jahrgang
        n. V. = nach Verlängerung; n. E. = nach Elfmeterschießen
        Mio. = Millionen; Mrd. = Milliarden; Std. = Stunden; Abs. = Absatz; Kap. = Kapitel
        mind. = mindestens; exkl. = exklusive; zzgl. = zuzüglich; bzgl. = bezüglich; s. u. = siehe unten
        z. Zt. = zurzeit; u. v. m. = und vieles mehr; o. g. = oben genannt; evt. = eventuell
        v. Chr. = vor Christus; n. Chr. = nach Christus; Jh. = Jahrhundert; Jhd. = Jahrhundert
        z. T. = zum Teil; u. U. = unter Umständen; Art. = Artikel; Abb. = Abbildung; Tel. = Telefon
    """,
)
GERMAN = language_of(
    LEXIS,
    numbers=(
        (Kind.TIME, r"(?i)([01]?\d|2[0-4])\.([0-5]\d)\s?uhr\b", lambda m: clock(int(m[1]), int(m[2]), True)),
        (Kind.TIME, r"(?i)1(?=\s?uhr\b)", lambda m: "ein"),
        (Kind.TIME, r"(\d{1,2})\s?h(?!\w|\s?\d)", _hour),
        (Kind.MONEY, r"(\d{1,3}(?:\.\d{3})+|\d+),[-–]{1,2}\s?(€|EUR|Euro|CHF|Fr\.|)(?!\w)", _price),
        (Kind.DATE, r"(\d{1,2})\.(\d{1,2})\.(?![\d\w])", _month),
        (
            Kind.NUMBER,
            r"(\d{1,4})\.\s?(und|oder|bis|[-–/])\s?(?=\d{1,4}\.(?:\s?([A-ZÄÖÜ]\w+)|\d{1,2}\.))",
            _first_of_two,
        ),
        (Kind.NUMBER, r"(1|10)\.?000er(n?)(?!\w)", lambda m: f"{'zehn' * (m[1] == '10')}tausender{m[2]}"),
        (Kind.YEAR, r"(\d0)er(n?)(?!\w)", lambda m: f"{cardinal(int(m[1]))}er{m[2]}"),
        (Kind.NUMBER, r"([1-9]\d?)er(n?)(?!\w)", lambda m: f"{cardinal(int(m[1]))}er{m[2]}"),
        (
            Kind.PERCENT,
            r"(\d{1,3})\s?%ig(e[nmrs]?|)(?!\w)",
            lambda m: f"{'hundert' if m[1] == '100' else cardinal(int(m[1]))}prozentig{m[2]}",
        ),
        (Kind.TIME, r"1/2\s?(?:h|Std\.?|Stunden?)(?!\w)", lambda m: "eine halbe Stunde"),
        (Kind.CODE, r"1[aA](?!\w)", lambda m: "eins A"),
        (Kind.NUMBER, r"(\d{1,3})\.(?=\s*$|\s?[,!?)])", _place_alone),
        (Kind.YEAR, r"(1[1-9]\d0|20\d0)er(n?)(?!\w)", lambda m: f"{year(int(m[1]))}er{m[2]}"),
        (Kind.YEAR, r"1[1-9]\d\d(?![\w%°]|[.,:/]\d|\s?[€$])", _year),
        (Kind.NUMBER, r"(\d{1,4})\.(?=\s?([A-ZÄÖÜ]\w+))", _ordinal),
        (Kind.DATE, r"([12]?\d|3[01])\.(?=\s*$|\s?[,!?)]|\s[a-zäöü])", _day_alone),
        (Kind.NUMBER, r"(\d{1,4})(?:st|t)(er?|en|es|em)(?!\w)", lambda m: ordinal(int(m[1]), m[2])),
        (Kind.NUMBER, r"(\d{1,4})\s?(fach|mal|x)(?!\w)", _times),
    ),
    words=(
        (Kind.DATE, rf"({'|'.join(_DAYS)})\.?(?=\s(?:um\s|ab\s|\d))", _weekday),
        (Kind.DATE, rf"({'|'.join(_DAYS)})\.(?=,)", lambda m: _DAYS[m[1]]),
        (
            Kind.WORD,
            r"Fr\.(?=\s(?!Abend|Morgen|Mittag|Nacht|Vormittag|Nachmittag)[A-ZÄÖÜ][a-zäöüß])",
            lambda m: "Frau",
        ),
        (Kind.WORD, r"S\.(?=\s\d)", lambda m: "Seite"),
        (Kind.WORD, r"([A-ZÄÖÜ][a-zäöüß]*s?)tr\.(?=\s?\d)", lambda m: f"{m[1]}traße"),
    ),
)

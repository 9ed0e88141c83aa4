"""Italian: the words of numbers and signs."""

from __future__ import annotations

import re

from appliance.text.languages.lexis import Lexis, Noun
from appliance.text.languages.numbers import roman
from appliance.text.languages.readings import language_of
from appliance.text.spans import Kind, before

_SMALL = str.split(
    "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici "
    "sedici diciassette diciotto diciannove"
)
_TENS = str.split("_ dieci venti trenta quaranta cinquanta sessanta settanta ottanta novanta")
_ORDINALS = str.split("_ primo secondo terzo quarto quinto sesto settimo ottavo nono decimo")


def cardinal(number: int, gender: str = "") -> str:
    """Un and una for one itself before a noun."""
    if number == 1 and gender:
        return "una" if gender == "f" else "un"
    for size, one, many in ((10**9, "un miliardo", "miliardi"), (10**6, "un milione", "milioni")):
        if number >= size:
            count, rest = divmod(number, size)
            words = one if count == 1 else f"{cardinal(count)} {many}"
            return words + (f" e {cardinal(rest)}" if rest else "")
    if number >= 1_000:
        count, rest = divmod(number, 1_000)
        head = "mille" if count == 1 else f"{cardinal(count)}mila".replace("trémila", "tremila")
        return _accented(head + (cardinal(rest) if rest else ""))
    if number >= 100:
        count, rest = divmod(number, 100)
        hundred = ("" if count == 1 else _SMALL[count]) + ("cent" if rest // 10 == 8 else "cento")
        return _accented(hundred + (cardinal(rest) if rest else ""))
    if number < 20:
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    head = _TENS[tens][:-1] if ones in (1, 8) else _TENS[tens]
    return _accented(head + (_SMALL[ones] if ones else ""))


def _accented(words: str) -> str:
    """ventitré, but tre alone."""
    return re.sub("(?<=[a-z])tre$", "tré", words)


def ordinal(number: int, gender: str = "") -> str:
    if 0 < number <= 10:
        words = _ORDINALS[number]
    else:
        words = cardinal(number).replace("tré", "tre")
        words = (words if words.endswith(("tre", "sei")) else words[:-1]) + "esimo"
    return re.sub("o$", "a", words) if gender == "f" else words


def _ordinal(match: re.Match[str]) -> str:
    if match[2] == "º" and LEXIS.is_weather(match):
        return LEXIS.in_unit(match[1], "°")
    return ordinal(int(match[1]), "f" if match[2] in "ªa" else "")


def _placed(match: re.Match[str]) -> str | None:
    """il 5°, al 90'"""
    is_placed = re.search(r"(?i)(?<!\w)(?:il|al|del|dal|nel|sul) $", before(match))
    return ordinal(int(match[1])) if is_placed and not LEXIS.is_weather(match) else None


def _dotted(match: re.Match[str]) -> str | None:
    """alle 20.30"""
    is_told = re.search(r"(?i)(?<!\w)(?:d?alle|ore|h\.?|verso le) $", before(match))
    return clock(int(match[1]), int(match[2]), False) if is_told else None


def clock(hour: int, minute: int, marked: bool) -> str:
    words = "una" if hour == 1 else cardinal(hour)
    return f"{words} e {cardinal(minute)}" if minute else words


class _Italian(Lexis):
    def counted(self, number: str, noun: Noun) -> str:
        return re.sub(r"^una (?=[aeiou])", "un'", super().counted(number, noun))


LEXIS = _Italian(
    code="it",
    cardinal=cardinal,
    ordinal=ordinal,
    sample="àèìòù",
    point="virgola",
    in_pairs=True,
    units="""
        mq metro quadrato/metri quadrati
        m2 metro quadrato/metri quadrati; km2 chilometro quadrato/chilometri quadrati
        cm2 centimetro quadrato/centimetri quadrati
        m3 metro cubo/metri cubi; kbit kilobit; kbps kilobit al secondo
        mbit megabit; gbit gigabit; gbps gigabit al secondo
        ¢ centesimo/centesimi; mah milliampere ora; gw gigawatt; khz chilohertz; ct centesimo/centesimi
        cent centesimo/centesimi; kcal f:chilocaloria/chilocalorie
        kg chilo/chili; g grammo/grammi; mg milligrammo/milligrammi; t f:tonnellata/tonnellate
        km chilometro/chilometri
        m metro/metri; cm centimetro/centimetri; mm millimetro/millimetri; l litro/litri
        ml millilitro/millilitri
        km/h chilometro/chilometri all'ora; kmh chilometro/chilometri all'ora; kb kilobyte; mb megabyte
        gb giga; tb tera
        mbps megabit al secondo; fps fotogramma/fotogrammi al secondo; hz hertz; mhz megahertz
        ghz gigahertz; w watt
        kw chilowatt; kwh chilowattora; db decibel; px pixel; ms millisecondo/millisecondi; s secondo/secondi
        sec secondo/secondi; min minuto/minuti; h f:ora/ore; gg giorno/giorni; % per cento; ° grado/gradi
        °c grado/gradi Celsius; °f grado/gradi Fahrenheit; x f:volta/volte; ★ f:stella/stelle
    """,
    cased="""
        W watt; V volt; A ampere; Ah ampere ora; Wh wattora; mA milliampere; kV chilovolt
        MW megawatt
    """,
    per="""
        s al secondo; sec al secondo; min al minuto; h all'ora; d al giorno; ora all'ora; giorno al giorno
        settimana alla settimana; mese al mese; anno all'anno; kg al chilo; g al grammo; l al litro
        km al chilometro; m al metro; m2 al metro quadrato; km2 al chilometro quadrato; m3 al metro cubo
        kwh al chilowattora; gb al giga
    """,
    per_word="a {}",
    clock_before="alle|dalle|all'|ore|verso le",
    lasting="in|tra|fra|per|dura|durata|mancano|restano|rimangono",
    half=lambda number: f"{cardinal(number)} e mezzo",
    labelled="liv = livello; num = numero; p. = pagina; pagg. = pagine; ep = episodio; nr = numero"
    "; sec. = secolo",
    kings="Luigi|Enrico|Vittorio Emanuele|Umberto|Carlo|Federico|Francesco|Filippo|Giorgio|Guglielmo|Pio"
    "|Leone|Giovanni(?: Paolo)?|Paolo|Benedetto|Clemente|Riccardo|Edoardo|Napoleone|Urbano|Sisto",
    queens="Elisabetta|Caterina|Maria|Isabella",
    regnal=ordinal,
    degrees="sotto|sopra|celsius|fahrenheit|centigradi|nord|sud|est|ovest|fuori|oggi|ieri|domani|stasera|stamattina|adesso|ora|circa|gradi",
    weather="sono|fa|fanno|temperatura|circa|ci sono",
    currencies="""
        € euro|centesimo/centesimi; euro euro|centesimo/centesimi
        dollari dollaro/dollari|centesimo/centesimi; EUR euro|centesimo/centesimi
        $ dollaro/dollari|centesimo/centesimi
        USD dollaro/dollari|centesimo/centesimi; US$ dollaro/dollari|centesimo/centesimi
        £ f:sterlina/sterline|penny/pence
        ¥ yen; ₽ rublo/rubli|copeco/copechi; ₹ f:rupia/rupie|paisa; ₩ won; ₿ bitcoin
        CHF franco/franchi|centesimo/centesimi
    """,
    cents=" e {}",
    thousands="k mila",
    scales="""
        milioni 1000000 milione/milioni; milione 1000000 milione/milioni; M 1000000 milione/milioni
        mln 1000000 milione/milioni; Mln 1000000 milione/milioni
        mld 1000000000 miliardo/miliardi
    """,
    of="di ",
    months="gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    of_month=r"\s",
    day=lambda number, match: "primo" if number == 1 else cardinal(number),
    date=("{day} {month}", " {year}"),
    date_before="il|del|dal|al|entro il|fino al|nel",
    clock=clock,
    hour=r"\s?h",
    hour_minute=r"\s?h\s?",
    feminine=r"(?i)(?!gioco|problema|sistema|programma|tema)\w+(?:a|zione|sione|tà|trice|ione)|volte|ore"
    r"|vite|persone|partite|mani"
    r"|donne|parti|notti|morti|stelle|chiavi|classi|armi|fasi|righe|pagine|mappe",
    no_noun=r"(?i)vs|a|al|alla|alle|ai|con|da|dal|di|del|della|e|è|ed|il|la|le|gli|i|lo|in|ma|mi|ti|ci|si|no"
    r"|non|o|per|più|meno|poi"
    r"|se|sono|su|sul|tra|fra|un|una|uno|che|chi|qua|qui|già|ancora|sì|fa|sia|ho|hai|ha",
    labels="livello|lvl|numero|n|top|parte|stagione|capitolo|round|mappa|fase|episodio|versione|opzione"
    "|atto|pagina|tappa",
    signs="e|più|uguale|per cento|per|diviso|meno|più o meno|minore o uguale a|maggiore o uguale a"
    "|minore di|maggiore di|diverso da|circa|radice di|a|al quadrato|elevato a",
    limits="meno di|più di",
    to="a",
    score="a",
    out_of="su",
    versus="contro",
    number_sign="numero",
    version="versione",
    dot="punto",
    minus="meno",
    link="link",
    mail="indirizzo e-mail",
    listing="codice.",
    heart="cuore",
    fractions={
        ("1", "2"): "un mezzo",
        ("1", "3"): "un terzo",
        ("2", "3"): "due terzi",
        ("1", "4"): "un quarto",
        ("3", "4"): "tre quarti",
        ("24", "7"): "ventiquattro sette",
    },
    weekdays="lun = lunedì; mar = martedì; mer = mercoledì; gio = giovedì; ven = venerdì; sab = sabato"
    "; dom = domenica",
    day_range="da {} a {}",
    chat="xò = però; qst = questo; qnd = quando; cmq = comunque"
    "; nn = non; xké = perché; xkè = perché; xche = perché; xke = perché; qlcs = qualcosa"
    "; qnt = quanto; x favore = per favore"
    "; x me = per me; x te = per te; d nuovo = di nuovo; xchè = perché; ke = che; qlc = qualcosa"
    "; qlcn = qualcuno; grz = grazie; lvl = livello; sig.ra = signora"
    "; v.le = viale; p.zza = piazza; c.so = corso"
    "; dott.ssa = dottoressa; prof.ssa = professoressa",
    abbreviations="""
        Sig. = signor; Dott. = dottor; Dr. = dottor; Prof. = professor; ecc. = eccetera
        es. = esempio
        p. es. = per esempio; ad es. = ad esempio; max. = massimo; min. = minimo; ca. = circa; pag. = pagina
        tel. = telefono; cap. = capitolo; vol. = volume; a. C. = avanti Cristo; d. C. = dopo Cristo
        cfr. = confronta; pers. = persone
    """,
)
ITALIAN = language_of(
    LEXIS,
    numbers=(
        (Kind.NUMBER, r"1\s(?=[aeiou]\w*a\b)", lambda m: "un'"),
        (Kind.TIME, r"1/2\s?(?:h|or[ae])(?!\w)", lambda m: "mezz'ora"),
        (Kind.NUMBER, r"(\d{1,3})[°'’](?!\w)", _placed),
        (Kind.TIME, r"(?<=ll['’])1(?![\w:.,])", lambda m: "una"),
        (Kind.TIME, r"(?i)24\s?h(?:ore)?\s?/\s?24(?!\d)", lambda m: "ventiquattro ore su ventiquattro"),
        (Kind.TIME, r"(?i)7\s?gg?\s?/\s?7(?!\d)", lambda m: "sette giorni su sette"),
        (Kind.PHONE, r"3\d\d[ .-]\d{6,7}(?!\d)", lambda m: LEXIS.grouped(m[0])),
        (Kind.NUMBER, r"(\d{1,4})\s?([ºª])(?!\w)", _ordinal),
        (Kind.NUMBER, r"(\d{1,2})([ao])(?=\s[^\W\d_]{3})", _ordinal),
        (Kind.NUMBER, r"(\d{1,3})°(?=\s[^\W\d_])", LEXIS.numbered),
        (Kind.NUMBER, r"(\d{1,2})°(?=-\d{1,2}°\s[^\W\d_]{3})", lambda m: ordinal(int(m[1]))),
        (Kind.TIME, r"([01]?\d|2[0-3])\.([0-5]\d)(?![\w%€°]|[.,:/]\d|\s?€)", _dotted),
    ),
    words=(
        (Kind.SIGN, r"(?i)n[º°.]\s?(?=\d)", lambda m: "numero "),
        (Kind.WORD, r"(?<=[IVX] )sec\.", lambda m: "secolo"),
        (Kind.TIME, r"[hH]\.?\s(?=\d{1,2}(?:[.:][0-5]\d)?(?![\w.,:]))", lambda m: "ore "),
        (
            Kind.ROMAN,
            r"([IVX]{1,6})(?=\s(?:secolo(?!\w)|sec\.))|(?:(?<=secolo\s)|(?<=sec\. ))([IVX]{1,6})(?!\w)",
            lambda m: ordinal(roman(m[1] or m[2])),
        ),
    ),
)

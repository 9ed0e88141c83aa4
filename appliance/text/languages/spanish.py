"""Spanish: the words of numbers and signs."""

from __future__ import annotations

import re

from appliance.text.languages.lexis import Lexis, as_noun
from appliance.text.languages.readings import language_of
from appliance.text.spans import Kind, before

_SMALL = str.split(
    "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis "
    "diecisiete "
    "dieciocho diecinueve veinte veintiuno veintidós veintitrés veinticuatro veinticinco veintiséis "
    "veintisiete "
    "veintiocho veintinueve"
)
_TENS = str.split("_ _ _ treinta cuarenta cincuenta sesenta setenta ochenta noventa")
_HUNDREDS = str.split(
    "_ ciento doscientos trescientos cuatrocientos quinientos seiscientos setecientos ochocientos novecientos"
)
_ORDINALS = str.split(
    "_ primero segundo tercero cuarto quinto sexto séptimo octavo noveno décimo undécimo duodécimo"
)
_ORDINAL_TENS = str.split(
    "_ décimo vigésimo trigésimo cuadragésimo quincuagésimo sexagésimo septuagésimo octogésimo nonagésimo"
)


def cardinal(number: int, gender: str = "") -> str:
    """Un before a masculine noun, una and doscientas before a feminine one."""
    for size, one, many in ((10**6, "un millón", "millones"), (1_000, "mil", "mil")):
        if number >= size:
            count, rest = divmod(number, size)
            kind = gender if size == 1_000 and gender else "m"
            words = one if count == 1 else f"{cardinal(count, kind)} {many}"
            return words + (f" {cardinal(rest, gender)}" if rest else "")
    if number >= 100:
        count, rest = divmod(number, 100)
        if number == 100:
            return "cien"
        hundred = re.sub("os$", "as", _HUNDREDS[count]) if gender == "f" else _HUNDREDS[count]
        return hundred + (f" {cardinal(rest, gender)}" if rest else "")
    if number < 30:
        words = _SMALL[number]
    else:
        tens, ones = divmod(number, 10)
        words = _TENS[tens] + (f" y {_SMALL[ones]}" if ones else "")
    if gender == "m":
        return re.sub("uno$", "ún" if number == 21 else "un", words)
    return re.sub("uno$", "una", words) if gender == "f" else words


def ordinal(number: int, gender: str = "") -> str:
    """Up to 99; "m" before a noun."""
    if not 0 < number < 100:
        return cardinal(number, gender)
    tens, ones = divmod(number, 10)
    words = _ORDINALS[number] if number < 13 else " ".join(filter(None, (_ORDINAL_TENS[tens], _one(ones))))
    if gender == "m":
        return re.sub("(?<=er)o$", "", words)
    return re.sub(r"o\b", "a", words) if gender == "f" else words


def _one(ones: int) -> str:
    return _ORDINALS[ones] if ones else ""


def _ordinal(match: re.Match[str]) -> str:
    ending = match[2].lower()
    if ending == "º" and LEXIS.is_weather(match):
        return LEXIS.in_unit(match[1], "°")
    gender = (
        "f" if ending in ("ª", "ra", "da", "ta", "ma", "va", "na", "a") else "m" if ending == "er" else ""
    )
    return ordinal(int(match[1]), gender or ("m" if LEXIS.followed(match) else ""))


def _decade(match: re.Match[str]) -> str | None:
    """los 90s"""
    is_decade = re.search(r"(?i)(?<!\w)(?:los|años|de) $", before(match))
    return cardinal(int(match[1])) if is_decade or match[0][-2] in "'’" else None


def _one_o_clock(match: re.Match[str]) -> str | None:
    return "una" if re.search(r"(?i)(?<!\w)(?:a|de|desde|hasta|sobre|es) la $", before(match)) else None


def _soles(match: re.Match[str]) -> str:
    """S/ 20"""
    soles = LEXIS.counted(match[1].replace(",", ""), as_noun("sol/es"))
    return soles + (LEXIS.cents.format(cardinal(int(match[2]))) if match[2] and int(match[2]) else "")


def clock(hour: int, minute: int, marked: bool) -> str:
    words = cardinal(hour, "f")
    if not minute:
        return f"{words} hora{'s' * (hour != 1)}" if marked or hour > 12 or not hour else words
    if 0 < hour <= 12:
        return f"{words} y {cardinal(minute)}"
    return f"{words} {'cero ' if minute < 10 else ''}{cardinal(minute)}"


LEXIS = Lexis(
    code="es",
    cardinal=cardinal,
    ordinal=ordinal,
    sample="áéíóúñ",
    point="coma",
    in_pairs=True,
    units="""
        m2 metro cuadrado/metros cuadrados; km2 kilómetro cuadrado/kilómetros cuadrados
        cm2 centímetro cuadrado/centímetros cuadrados; m3 metro cúbico/metros cúbicos
        kbit kilobit/s; kbps kilobit/s por segundo
        mbit megabit/s; gbit gigabit/s; gbps gigabit/s por segundo; ¢ centavo/s
        mah miliamperio hora/miliamperios hora; kwh kilovatio hora/kilovatios hora; gw gigavatio/s
        khz kilohercio/s; ct céntimo/s; cts céntimo/s; kcal f:kilocaloría/s
        kg kilo/s; g gramo/s; mg miligramo/s; t f:tonelada/s; km kilómetro/s; m metro/s; cm centímetro/s
        mm milímetro/s; l litro/s; ml mililitro/s; km/h kilómetro/s por hora; kmh kilómetro/s por hora
        kb kilobyte/s; mb mega/s; gb giga/s; tb tera/s; mbps megabit/s por segundo
        fps fotograma/s por segundo
        hz hercio/s; mhz megahercio/s; ghz gigahercio/s; w vatio/s; kw kilovatio/s; db decibelio/s
        px píxel/es
        ms milisegundo/s; s segundo/s; seg segundo/s; min minuto/s; mins minuto/s; h f:hora/s
        hs f:hora/s; d día/s; % por ciento
        ° grado/s; °c grado/s Celsius; °f grado/s Fahrenheit; ºc grado/s Celsius; x f:vez/veces
        ★ f:estrella/s
    """,
    cased="""
        W vatio/s; V voltio/s; A amperio/s; Ah amperio hora/amperios hora; Wh vatio hora/vatios hora
        mA miliamperio/s; kV kilovoltio/s; MW megavatio/s
    """,
    per="""
        s por segundo; sec por segundo; min por minuto; h por hora; d por día; día por día
        semana por semana; mes por mes; año por año; kg por kilo; g por gramo; l por litro
        km por kilómetro; m por metro; m2 por metro cuadrado; km2 por kilómetro cuadrado
        m3 por metro cúbico; kwh por kilovatio hora; gb por giga; seg por segundo
    """,
    per_word="por {}",
    clock_before="a las?|las|desde las|hasta las|sobre las",
    lasting="en|por|durante|tras|dur[aóe]n?|quedan?|faltan?|hace|dentro de",
    half=lambda number: f"{cardinal(number)} y medio",
    labelled="niv = nivel; num = número; p. = página; págs. = páginas; ep = episodio"
    "; temp. = temporada; s. = siglo",
    kings="Felipe|Carlos|Alfonso|Fernando|Juan Carlos|Luis|Enrique|Jorge|Juan(?: Pablo)?|Pablo|Benedicto|Pío"
    "|Francisco|Guillermo|Ricardo|Eduardo|Pedro|Napoleón|Sancho|Ramiro",
    queens="Isabel|Catalina|Juana|María|Cristina",
    regnal=lambda number, gender: ordinal(number, gender.strip("m")) if number < 11 else cardinal(number),
    degrees="bajo|sobre|celsius|fahrenheit|centígrados|norte|sur|este|oeste|fuera|afuera|aquí|allá|acá|ayer|mañana|anoche|dentro|grados",
    weather="hace|hacen|hizo|hacía|estamos a|temperaturas?(?: de)?",
    currencies="""
        € euro/s|céntimo/s; euros euro/s|céntimo/s; dólares dólar/es|centavo/s; pesos peso/s|centavo/s
        EUR euro/s|céntimo/s; $ dólar/es|centavo/s; USD dólar/es|centavo/s
        US$ dólar/es|centavo/s; £ f:libra/s|penique/s; ¥ yen/es; ₽ rublo/s|kopek/s; ₹ f:rupia/s|paisa/s
        ₩ won/s; ₱ peso/s|centavo/s; MXN peso/s mexicanos|centavo/s; ARS peso/s argentinos|centavo/s
        MX$ peso/s mexicanos|centavo/s; ₡ colón/colones
        COP peso/s colombianos|centavo/s; CLP peso/s chilenos|centavo/s; PEN sol/es|céntimo/s
        ₿ bitcoin/s; R$ real/reales|centavo/s; CHF franco/s suizos|céntimo/s
    """,
    cents=" con {}",
    thousands="k mil",
    scales="millones 1000000 millón/millones; millón 1000000 millón/millones"
    "; M 1000000 millón/millones; mill 1000000 millón/millones",
    of="de ",
    months="enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    date=("{day} de {month}", " de {year}"),
    date_before="el|del|al|día|desde el|hasta el",
    day=lambda number, match: cardinal(number),
    clock=clock,
    hour_minute=r"\s?h\s?",
    feminine=r"(?i)(?!d[ií]as?$|problemas?$|mapas?$|temas?$|programas?$|sistemas?$|planetas?$)"
    r"\w+(?:as?|[cs]ión|[cs]iones|dad|dades)|vez|veces|noches?|partes?|clases?|llaves?|muertes?",
    no_noun=r"(?i)vs|a|al|ante|con|contra|de|del|desde|en|entre|es|era|está|fue|hasta|la|las|el|los|le|me|te"
    r"|se|lo"
    r"|más|menos|ni|no|o|para|pero|por|porque|que|sí?|sin|si|son|ya|y|e|u|también|tampoco|ahora|hoy|hay"
    r"|contra"
    r"|cuando|como|gracias",
    labels="nivel|lvl|número|nº|núm|top|parte|temporada|capítulo|ronda|mapa|fase|episodio|versión|puesto"
    "|opción",
    signs="y|más|igual a|por ciento|por|dividido entre|menos|más menos|menor o igual que|mayor o igual que"
    "|menor que|mayor que|distinto de|aproximadamente|raíz de|a|al cuadrado|elevado a",
    limits="menos de|más de",
    to="a",
    score="a",
    out_of="de",
    versus="contra",
    number_sign="número",
    version="versión",
    dot="punto",
    minus="menos",
    link="enlace",
    mail="correo electrónico",
    listing="código.",
    heart="corazón",
    fractions={
        ("1", "2"): "un medio",
        ("1", "3"): "un tercio",
        ("2", "3"): "dos tercios",
        ("1", "4"): "un cuarto",
        ("3", "4"): "tres cuartos",
        ("24", "7"): "veinticuatro siete",
    },
    weekdays="lun = lunes; mar = martes; mié = miércoles; mie = miércoles; jue = jueves; vie = viernes"
    "; sáb = sábado; sab = sábado; dom = domingo; l = lunes; v = viernes",
    day_range="de {} a {}",
    chat="xq = porque; pq = porque; tb = también; lvl = nivel; salu2 = saludos; to2 = todos; xfa = porfa"
    "; tmb = también; tbn = también; bn = bien; grax = gracias; bss = besos; xk = porque; x favor = por favor"
    "; x todo = por todo; x eso = por eso; x fa = porfa; k tal = qué tal; msj = mensaje"
    "; d nada = de nada; ntp = no te preocupes",
    abbreviations="""
        Sr. = señor; Sra. = señora; Srta. = señorita; Dr. = doctor; Dra. = doctora; D.; Dña. = doña
        Ud. = usted
        Uds. = ustedes; p. ej. = por ejemplo; etc. = etcétera; EE. UU. = Estados Unidos; núm. = número
        aprox. = aproximadamente; máx. = máximo; mín. = mínimo; pág. = página; tel. = teléfono; av. = avenida
        Prof. = profesor; vs. = contra; cap. = capítulo; vol. = volumen; art. = artículo
        a. C. = antes de Cristo; d. C. = después de Cristo; pers. = personas
    """,
)
SPANISH = language_of(
    LEXIS,
    numbers=(
        (
            Kind.NUMBER,
            r"(?i)([48])(?:[tv]os|avos)(?=\sde\sfinal)",
            lambda m: "cuartos" if m[1] == "4" else "octavos",
        ),
        (
            Kind.NUMBER,
            r"(?i)(\d{1,2})\.?(º|ª|ero|er|ro|ra|do|da|to|ta|mo|ma|vo|va|no|na|o|a)(?![\w])",
            _ordinal,
        ),
        (Kind.YEAR, r"([1-9]0)['’]?s(?!\w)", _decade),
        (Kind.PHONE, r"[67]\d\d \d{3} \d{3}(?!\s?[\w€$£%])", lambda m: LEXIS.grouped(m[0])),
        (Kind.NUMBER, r"(\d{1,2})°(?=\s[^\W\d_])", LEXIS.numbered),
        (Kind.TIME, r"1(?::00)?(?=\s(?:de la (?:tarde|mañana|madrugada)))", lambda m: "una"),
        (Kind.TIME, r"1/2\s?(?:h|horas?)(?!\w)", lambda m: "media hora"),
        (Kind.TIME, r"1(?![\w:.,/-]|\s[^\W\d_])", _one_o_clock),
    ),
    words=(
        (Kind.SIGN, r"(?i)n\.?[º°]\.?\s?(?=\d)", lambda m: "número "),
        (Kind.WORD, r"[qQ](?=\s[a-záéíóúñ])", lambda m: "que"),
        (Kind.SIGN, r"N[oO]\.\s?(?=\d)", lambda m: "número "),
        (Kind.MONEY, r"S/\.?\s?(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d\d))?(?![\w]|[.,]\d)", _soles),
        (Kind.WORD, r"[cC]/\s?(?=[A-ZÁÉÍÓÚÑ])", lambda m: "calle "),
    ),
)

"""French: the words of numbers and signs."""

from __future__ import annotations

import re

from appliance.text.languages.lexis import Lexis
from appliance.text.languages.readings import language_of
from appliance.text.spans import Kind, before

_SMALL = str.split(
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept "
    "dix-huit "
    "dix-neuf"
)
_TENS = str.split("_ dix vingt trente quarante cinquante soixante soixante quatre-vingt quatre-vingt")


def cardinal(number: int, gender: str = "") -> str:
    """Une before a feminine noun."""
    for size, one, many in ((10**9, "un milliard", "milliards"), (10**6, "un million", "millions")):
        if number >= size:
            count, rest = divmod(number, size)
            words = one if count == 1 else f"{cardinal(count)} {many}"
            return words + (f" {cardinal(rest, gender)}" if rest else "")
    if number >= 1_000:
        count, rest = divmod(number, 1_000)
        # Before mille, cent and vingt take no s.
        words = "mille" if count == 1 else re.sub("(?<=cent|ingt)s$", "", cardinal(count)) + " mille"
        return words + (f" {cardinal(rest, gender)}" if rest else "")
    if number >= 100:
        count, rest = divmod(number, 100)
        words = "cent" if count == 1 else f"{_SMALL[count]} cent"
        return f"{words} {cardinal(rest, gender)}" if rest else words + "s" * (count > 1)
    words = _below_hundred(number)
    return f"{words}e" if gender == "f" and re.search(r"\bun$", words) else words


def _below_hundred(number: int) -> str:
    if number < 20:
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    if tens in (7, 9):
        ones += 10
    if not ones:
        return _TENS[tens] + "s" * (tens == 8)
    return f"{_TENS[tens]}{' et ' if ones in (1, 11) and tens < 8 else '-'}{_SMALL[ones]}"


def ordinal(number: int, gender: str = "") -> str:
    if number == 1:
        return "première" if gender == "f" else "premier"
    words = re.sub("(?<=cent|ingt|lion)s$", "", cardinal(number))
    words = re.sub("(?<=cin)q$", "qu", re.sub("neuf$", "neuv", words))
    return f"{words.removesuffix('e')}ième"


def _ordinal(match: re.Match[str]) -> str:
    ending = match[2].lower()
    if ending in ("nd", "nde"):
        return "seconde" if ending == "nde" else "second"
    return ordinal(int(match[1]), "f" if ending in ("re", "ère", "ere") else "")


def _decade(match: re.Match[str]) -> str | None:
    """les 90's"""
    is_decade = re.search(r"(?i)(?<!\w)(?:les|années|des) $", before(match))
    return cardinal(int(match[1])) if is_decade else None


def _ratio(match: re.Match[str]) -> str | None:
    """A screen in 16/9; not le 16/9, or 16/9 à 20h."""
    is_date = re.search(r"(?i)(?<!\w)(?:le|du|au) $", before(match)) or re.match(
        r"\s(?:à|vers)\s\d{1,2}\s?[h:]", match.string[match.end() :]
    )
    return None if is_date else f"{cardinal(int(match[1]))} {'tiers' if match[2] == '3' else 'neuvièmes'}"


def clock(hour: int, minute: int, marked: bool) -> str:
    words = f"{cardinal(hour, 'f')} heure{'s' * (hour > 1)}"
    return f"{words} {cardinal(minute)}" if minute else words


_TENTHS = {
    **{"10": "diz", "12": "douz", "15": "quinz", "20": "vingt", "30": "trent", "40": "quarant"},
    **{"50": "cinquant", "60": "soixant", "100": "cent"},
}
"""Stems of 10aine."""
LEXIS = Lexis(
    code="fr",
    cardinal=cardinal,
    ordinal=ordinal,
    sample="éèàç",
    point="virgule",
    in_pairs=True,
    form=lambda number: int(float(number) >= 2),
    units="""
        m2 mètre carré/mètres carrés; km2 kilomètre carré/kilomètres carrés
        cm2 centimètre carré/centimètres carrés; m3 mètre cube/mètres cubes
        kbit kilobit/s; kbps kilobit/s par seconde
        mbit mégabit/s; gbit gigabit/s; gbps gigabit/s par seconde; ¢ centime/s
        ct centime/s; cts centime/s; mah milliampère-heure/milliampères-heures; gw gigawatt/s; º degré/s
        kcal f:kilocalorie/s; pts point/s
        kg kilo/s; g gramme/s; mg milligramme/s; t f:tonne/s; km kilomètre/s; m mètre/s; cm centimètre/s
        mm millimètre/s; l litre/s; ml millilitre/s; cl centilitre/s; km/h kilomètre/s par heure
        kmh kilomètre/s par heure
        ko kilooctet/s; mo mégaoctet/s; go gigaoctet/s; to téraoctet/s; kb kilooctet/s; mb mégaoctet/s
        gb gigaoctet/s
        tb téraoctet/s; mbps mégabit/s par seconde; fps f:image/s par seconde; ips f:image/s par seconde
        hz hertz
        khz kilohertz; mhz mégahertz; ghz gigahertz; w watt/s; kw kilowatt/s; kwh kilowattheure/s
        db décibel/s
        px pixel/s; ms f:milliseconde/s; s f:seconde/s; sec f:seconde/s; min f:minute/s; h f:heure/s; j jour/s
        % pour cent; ° degré/s; °c degré/s Celsius; °f degré/s Fahrenheit; x f:fois; ★ f:étoile/s
    """,
    cased="""
        W watt/s; V volt/s; A ampère/s; Ah ampère-heure/ampères-heures; Wh wattheure/s
        mA milliampère/s; kV kilovolt/s; MW mégawatt/s
    """,
    per="""
        s par seconde; sec par seconde; min par minute; h par heure; d par jour; j par jour; jour par jour
        semaine par semaine; mois par mois; an par an; kg par kilo; g par gramme; l par litre
        km par kilomètre; m par mètre; m2 par mètre carré; km2 par kilomètre carré; m3 par mètre cube
        kwh par kilowattheure; gb par gigaoctet
    """,
    per_word="par {}",
    clock_before="à|vers|dès|jusqu'à",
    lasting="reste|restent|restant|restantes|encore",
    half=lambda number: f"{cardinal(number)} et demi",
    labelled="niv = niveau; num = numéro; p. = page; ch. = chapitre; ép = épisode; ep = épisode",
    degrees="celsius|fahrenheit|centigrades|nord|sud|est|ouest|sous|dehors|ici|chez|hier|demain|ce|cette|environ",
    weather="fait|faisait|fera|température",
    currencies="""
        € euro/s|centime/s; euros euro/s|centime/s; dollars dollar/s|cent/s; EUR euro/s|centime/s
        $ dollar/s|cent/s; USD dollar/s|cent/s; US$ dollar/s|cent/s
        CAD dollar/s canadiens|cent/s; £ f:livre/s|penny/pence; ¥ yen/s; ₽ rouble/s|kopeck/s
        ₹ f:roupie/s|paisa/s
        ₩ won/s; ₿ bitcoin/s; CHF franc/s suisses|centime/s
    """,
    cents=" {}",
    scales="M 1000000 million/s; Mds 1000000000 milliard/s; Md 1000000000 milliard/s",
    of="de |d'",
    months="janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    of_month=r"\s",
    day=lambda number, match: "premier" if number == 1 else cardinal(number),
    date=("{day} {month}", " {year}"),
    date_before="le|du|au|dès le|depuis le|jusqu'au",
    clock=clock,
    hour=r"\s?h(?:eures?)?",
    hour_minute=r"\s?h\s?",
    feminine=r"(?i)\w+(?:[sct]ion|ture|ette|esse|ance|ence|ée|tié|té|oire|aine|ille|elle|ice|ude)s?|vies?"
    r"|parties?|fois"
    r"|personnes?|minutes?|heures?|secondes?|places?|manches?|games?|maps?|cartes?|équipes?|étoiles?|vues?"
    r"|morts?|parts?"
    r"|pages?|lignes?|choses?|mains?|armes?|clés?|saisons?|rondes?|images?|vidéos?|erreurs?|pizzas?|bières?"
    r"|femmes?|filles?"
    r"|questions?|blagues?|bulles?|pauses?|tasses?|têtes?|vagues?|salles?|quêtes?|âmes?|pièces?|roses?",
    no_noun=r"(?i)à|au|aux|avec|ce|c|dans|de|des|du|d|en|est|et|il|elle|je|la|le|les|mais|ne|on|ou|où|par"
    r"|pas|plus|pour"
    r"|que|qui|sans|si|sur|tu|un|une|vs|y|merci|donc|alors|contre|c'est|sont|a|ont",
    labels="niveau|lvl|numéro|n°|top|partie|saison|chapitre|round|map|phase|épisode|version|étape|option"
    "|acte|page|tome",
    signs="et|plus|égale|pour cent|fois|divisé par|moins|plus ou moins|inférieur ou égal à"
    "|supérieur ou égal à"
    "|inférieur à|supérieur à|différent de|environ|racine de|à|au carré|puissance",
    limits="moins de|plus de",
    to="à",
    score="à",
    out_of="sur",
    versus="contre",
    number_sign="numéro",
    version="version",
    dot="point",
    minus="moins",
    link="lien",
    mail="adresse e-mail",
    listing="code.",
    heart="cœur",
    roman_ending="er|re|ère|ème|è?me|e",
    fractions={
        ("1", "2"): "un demi",
        ("1", "3"): "un tiers",
        ("2", "3"): "deux tiers",
        ("1", "4"): "un quart",
        ("3", "4"): "trois quarts",
        ("24", "7"): "vingt-quatre sept",
        ("24", "24"): "vingt-quatre sur vingt-quatre",
        ("7", "7"): "sept sur sept",
        ("1", "8"): "un huitième",
    },
    weekdays="lun = lundi; mar = mardi; mer = mercredi; jeu = jeudi; ven = vendredi; sam = samedi"
    "; dim = dimanche",
    day_range="du {} au {}",
    chat="""
        bjr = bonjour; bsr = bonsoir; pcq = parce que; càd = c'est-à-dire; jsp = je sais pas
        jpp = j'en peux plus; bi1 = bien; koi29 = quoi de neuf; bcp = beaucoup; dsl = désolé; slt = salut
        tkt = t'inquiète; tjrs = toujours; lvl = niveau
        mme = madame; mlle = mademoiselle; svp = s'il vous plaît; stp = s'il te plaît; rdv = rendez-vous
        qqn = quelqu'un; qqch = quelque chose; pk = pourquoi; pkoi = pourquoi; tjs = toujours; jms = jamais
        ajd = aujourd'hui; auj = aujourd'hui; vrm = vraiment; vrmt = vraiment; bne = bonne; jtm = je t'aime
        qd = quand; koi = quoi; a2m1 = à demain; qq1 = quelqu'un; mtn = maintenant; c-à-d = c'est-à-dire
        dr = docteur
    """,
    abbreviations="""
        M. = monsieur; MM. = messieurs; Dr. = docteur; Pr. = professeur
        av. J.-C. = avant Jésus-Christ; ap. J.-C. = après Jésus-Christ; St. = saint; Ste. = sainte
        c.-à-d. = c'est-à-dire; p. ex. = par exemple; ex. = exemple; etc. = et cetera; env. = environ
        max. = maximum
        min. = minimum; av. = avenue; bd. = boulevard; tél. = téléphone; chap. = chapitre
        vol. = volume; art. = article; éd.; pers. = personnes
    """,
)
FRENCH = language_of(
    LEXIS,
    numbers=(
        (Kind.TIME, r"(?i)24\s?h(?:eures)?\s?/\s?24(?!\d)", lambda m: "vingt-quatre heures sur vingt-quatre"),
        (Kind.TIME, r"(?i)7\s?j(?:ours)?\s?/\s?7(?!\d)", lambda m: "sept jours sur sept"),
        (Kind.TIME, r"1/2\s?(?:h|heures?)(?!\w)", lambda m: "une demi-heure"),
        (Kind.TIME, r"(\d{1,2})\s?h\s?1/2(?!\w)", lambda m: f"{LEXIS.in_unit(m[1], 'h')} et demie"),
        (Kind.NUMBER, rf"({'|'.join(_TENTHS)})aine(s?)(?!\w)", lambda m: f"{_TENTHS[m[1]]}aine{m[2]}"),
        (Kind.NUMBER, r"(?i)(\d{1,4})(er|ère|ere|re|ème|eme|ième|nde|nd|e|è)s?(?!\w)", _ordinal),
        (Kind.NUMBER, r"(\d{1,3})°(?=\s[^\W\d_])", LEXIS.numbered),
        (Kind.YEAR, r"([1-9]0)['’]?s(?!\w)", _decade),
        (Kind.FRACTION, r"(16(?=/9)|21(?=/9)|4(?=/3))/(9|3)(?![\w/])", _ratio),
        (Kind.TIME, r"3/4\s(?:h(?!\w)|heures?)", lambda m: "trois quarts d'heure"),
        (
            Kind.UNIT,
            r"([12])\s?m\s?(\d\d)(?!\w)",
            lambda m: f"{LEXIS.in_unit(m[1], 'm')} {cardinal(int(m[2]))}",
        ),
        (
            Kind.TIME,
            r"(?i)(\d{1,2})\s?h(?!\w|\s\d)",
            lambda m: clock(int(m[1]), 0, True) if int(m[1]) < 25 else None,
        ),
    ),
    words=(
        (Kind.SIGN, r"(?i)n[º°]\s?(?=\d)", lambda m: "numéro "),
        (Kind.ROMAN, r"I(er|[eè]re|re)(?!\w)", lambda m: "premier" if m[1] == "er" else "première"),
        (Kind.WORD, r"(?<=[IVX]e )s\.|(?<=[IVX]ème )s\.", lambda m: "siècle"),
    ),
)

"""Portuguese, as in Brazil: the words of numbers and signs."""

from __future__ import annotations

import re

from appliance.text.languages.lexis import Lexis
from appliance.text.languages.readings import language_of
from appliance.text.spans import Kind

_SMALL = str.split(
    "zero um dois três quatro cinco seis sete oito nove dez onze doze treze quatorze quinze dezesseis "
    "dezessete dezoito dezenove"
)
_TENS = str.split("_ dez vinte trinta quarenta cinquenta sessenta setenta oitenta noventa")
_HUNDREDS = str.split(
    "_ cento duzentos trezentos quatrocentos quinhentos seiscentos setecentos oitocentos novecentos"
)
_ORDINALS = str.split("_ primeiro segundo terceiro quarto quinto sexto sétimo oitavo nono")
_ORDINAL_TENS = str.split(
    "_ décimo vigésimo trigésimo quadragésimo quinquagésimo sexagésimo septuagésimo octogésimo nonagésimo"
)


def cardinal(number: int, gender: str = "") -> str:
    """Uma, duas and duzentas before a feminine noun."""
    for size, one, many in (
        (10**9, "um bilhão", "bilhões"),
        (10**6, "um milhão", "milhões"),
        (1_000, "mil", "mil"),
    ):
        if number >= size:
            count, rest = divmod(number, size)
            kind = gender if size == 1_000 else ""
            words = one if count == 1 else f"{cardinal(count, kind)} {many}"
            if not rest:
                return words
            # The last two digits, or round hundreds, are joined by "e".
            joint = " e " if rest < 100 or (rest < 1_000 and rest % 100 == 0) else " "
            return words + joint + cardinal(rest, gender)
    if number == 100:
        return "cem"
    if number >= 100:
        count, rest = divmod(number, 100)
        hundred = re.sub("os$", "as", _HUNDREDS[count]) if gender == "f" else _HUNDREDS[count]
        return hundred + (f" e {cardinal(rest, gender)}" if rest else "")
    if number >= 20:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f" e {cardinal(ones, gender)}" if ones else "")
    if gender == "f" and number in (1, 2):
        return "uma" if number == 1 else "duas"
    return _SMALL[number]


def ordinal(number: int, gender: str = "") -> str:
    """Up to 99."""
    if not 0 < number < 100:
        return cardinal(number, gender)
    tens, ones = divmod(number, 10)
    words = " ".join(([_ORDINAL_TENS[tens]] if tens else []) + ([_ORDINALS[ones]] if ones else []))
    return re.sub(r"o\b", "a", words) if gender == "f" else words


def _ordinal(match: re.Match[str]) -> str:
    if match[2] == "º" and LEXIS.is_weather(match):
        return LEXIS.in_unit(match[1], "°")
    return ordinal(int(match[1]), "f" if match[2] in "ªa" else "")


def _score(match: re.Match[str]) -> str:
    """Flamengo 3x2"""
    return f"{cardinal(int(match[1]))} a {cardinal(int(match[2]))}"


def clock(hour: int, minute: int, marked: bool) -> str:
    words = cardinal(hour, "f")
    return f"{words} e {cardinal(minute)}" if minute else f"{words} hora{'s' * (hour != 1)}"


_WEEKDAYS = {2: "segunda", 3: "terça", 4: "quarta", 5: "quinta", 6: "sexta"}
LEXIS = Lexis(
    code="pt",
    cardinal=cardinal,
    ordinal=ordinal,
    sample="ãçéêõ",
    point="vírgula",
    in_pairs=True,
    units="""
        m2 metro quadrado/metros quadrados; km2 quilômetro quadrado/quilômetros quadrados
        cm2 centímetro quadrado/centímetros quadrados; m3 metro cúbico/metros cúbicos
        kbit quilobit/s; kbps quilobit/s por segundo
        mbit megabit/s; gbit gigabit/s; gbps gigabit/s por segundo; ¢ centavo/s
        mah miliampere-hora/miliamperes-hora; gw gigawatt/s; khz quilohertz; kcal f:quilocaloria/s
        kg quilo/s; g grama/s; mg miligrama/s; t f:tonelada/s; km quilômetro/s; m metro/s; cm centímetro/s
        mm milímetro/s; l litro/s; ml mililitro/s; km/h quilômetro/s por hora; kmh quilômetro/s por hora
        kb quilobyte/s; mb mega/s; gb giga/s; tb tera/s; mbps megabit/s por segundo
        fps quadro/s por segundo; hz hertz
        mhz megahertz; ghz gigahertz; w watt/s; kw quilowatt/s; kwh quilowatt-hora; db decibéis
        px pixel/pixels
        ms milissegundo/s; s segundo/s; seg segundo/s; min minuto/s; h f:hora/s; d dia/s; % por cento
        ° grau/s
        °c grau/s Celsius; °f grau/s Fahrenheit; x f:vez/vezes; ★ f:estrela/s
    """,
    cased="""
        W watt/s; V volt/s; A ampere/s; Ah ampere-hora/amperes-hora; Wh watt-hora/watts-hora
        mA miliampere/s; kV quilovolt/s; MW megawatt/s
    """,
    per="""
        s por segundo; sec por segundo; min por minuto; h por hora; d por dia; dia por dia
        semana por semana; mês por mês; ano por ano; kg por quilo; g por grama; l por litro
        km por quilômetro; m por metro; m2 por metro quadrado; km2 por quilômetro quadrado
        m3 por metro cúbico; kwh por quilowatt-hora; gb por giga; seg por segundo
    """,
    per_word="por {}",
    clock_before="às|as|das|até as|até às|desde as",
    lasting="em|por|durante|duram?|durou|faltam?|restam?|há|daqui a",
    half=lambda number: f"{cardinal(number)} e meio",
    labelled="nv = nível; num = número; p. = página; págs. = páginas; ep = episódio; séc. = século",
    kings="Luís|Pedro|João(?: Paulo)?|Manuel|Afonso|Carlos|Henrique|Filipe|Felipe|Jorge|Sebastião|Bento|Pio"
    "|José|Paulo|Francisco|Ricardo|Eduardo|Napoleão|Sancho|Dinis",
    queens="Isabel|Elizabeth|Catarina|Maria|Joana",
    regnal=lambda number, gender: ordinal(number, gender) if number < 11 else cardinal(number),
    degrees="abaixo|acima|celsius|fahrenheit|centígrados|norte|sul|leste|oeste|fora|aqui|lá|ontem|amanhã|graus",
    weather="faz|fazem|fazendo|está|temperatura(?: de)?",
    currencies="""
        R$ real/reais|centavo/s; reais real/reais|centavo/s; euros euro/s|cêntimo/s
        dólares dólar/es|centavo/s; BRL real/reais|centavo/s; € euro/s|cêntimo/s; EUR euro/s|cêntimo/s
        $ dólar/es|centavo/s
        US$ dólar/es|centavo/s; USD dólar/es|centavo/s; £ f:libra/s|pence; ¥ iene/s; ₽ rublo/s|copeque/s
        ₹ f:rupia/s|paisa; ₩ won/s; ₿ bitcoin/s; CHF franco/s|cêntimo/s
    """,
    cents=" e {} {cent}",
    scales="milhões 1000000 milhão/milhões; milhão 1000000 milhão/milhões; M 1000000 milhão/milhões"
    "; mi 1000000 milhão/milhões; bi 1000000000 bilhão/bilhões"
    "; tri trilhão/trilhões",
    thousands="k K mil",
    of="de ",
    months="janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    day=lambda number, match: "primeiro" if number == 1 else cardinal(number),
    date=("{day} de {month}", " de {year}"),
    date_before="dia|em|no dia|até|desde|o|do|ao",
    clock=clock,
    hour=r"\s?h(?:oras)?",
    hour_minute=r"\s?h\s?",
    feminine=r"(?i)(?!dia|problema|sistema|mapa|tema|programa|planeta|gra?ma)\w+(?:as?|[çs][ãõ]o|[çs]ões"
    r"|gem|gens|dade|dades)"
    r"|vez|vezes|mortes?|partes?|noites?|fases?|chaves?|horas?|vidas?",
    no_noun=r"(?i)vs|a|à|ao|aos|as|às|o|os|com|contra|da|das|de|do|dos|e|é|em|era|foi|já|mais|mas|menos|na|nas"
    r"|no|nos|não|ou"
    r"|para|pra|por|porque|que|se|sem|só|também|tá|tem|vai|agora|hoje|ainda|até|quando|como",
    labels="nível|lvl|número|nº|top|parte|temporada|capítulo|round|rodada|mapa|fase|episódio|versão|opção"
    "|ato|página",
    signs="e|mais|igual a|por cento|vezes|dividido por|menos|mais ou menos|menor ou igual a|maior ou igual a"
    "|menor que|maior que|diferente de|cerca de|raiz de|para|ao quadrado|elevado a",
    limits="menos de|mais de",
    to="a",
    score="a",
    out_of="de",
    versus="contra",
    number_sign="número",
    version="versão",
    dot="ponto",
    minus="menos",
    link="link",
    mail="e-mail",
    listing="código.",
    heart="coração",
    fractions={
        ("1", "2"): "um meio",
        ("1", "3"): "um terço",
        ("2", "3"): "dois terços",
        ("1", "4"): "um quarto",
        ("3", "4"): "três quartos",
        ("24", "7"): "vinte e quatro sete",
    },
    weekdays="seg = segunda; ter = terça; qua = quarta; qui = quinta; sex = sexta; sáb = sábado; sab = sábado"
    "; dom = domingo",
    day_range="de {} a {}",
    chat="qdo = quando; cmg = comigo; pfv = por favor; tmb = também; ngm = ninguém"
    "; tds = todos; ctz = certeza; nss = nossa"
    "; tmj = tamo junto; mds = meu Deus; q isso = que isso"
    "; mt = muito; oq = o que; sdds = saudades; bjs = beijos"
    "; vc = você; vcs = vocês; tb = também; tbm = também; pq = porque; hj = hoje; blz = beleza"
    "; obg = obrigado; vlw = valeu; flw = falou; vdd = verdade; msm = mesmo; mto = muito; dps = depois"
    "; lvl = nível",
    abbreviations="""
        Sr. = senhor; Sra. = senhora; Srta. = senhorita; Dr. = doutor; Dra. = doutora; Prof. = professor
        etc. = etcétera
        p. ex. = por exemplo; ex. = exemplo; máx. = máximo; mín. = mínimo; pág. = página; tel. = telefone
        cap. = capítulo; vol. = volume; av. = avenida; a. C. = antes de Cristo; d. C. = depois de Cristo
        aprox. = cerca de
    """,
)
PORTUGUESE = language_of(
    LEXIS,
    numbers=(
        (Kind.NUMBER, r"(?i)([2-6])(?:[aª][\s-]|-)feira(?!\w)", lambda m: f"{_WEEKDAYS[int(m[1])]}-feira"),
        (Kind.NUMBER, r"(?i)([48])as(?=\sde\sfinal)", lambda m: "quartas" if m[1] == "4" else "oitavas"),
        (Kind.TIME, r"1/2\s?(?:h|horas?)(?!\w)", lambda m: "meia hora"),
        (Kind.NUMBER, r"(\d{1,4})\s?([ºª])(?!\w)", _ordinal),
        (Kind.NUMBER, r"(\d{1,2})([ao])(?=\s[^\W\d_]{3})", _ordinal),
        (Kind.NUMBER, r"(\d{1,3})°(?=\s[^\W\d_])", LEXIS.numbered),
        (Kind.SCORE, r"(\d{1,2})x(\d{1,2})(?![\w.,]\d|\w)", _score),
        (
            Kind.UNIT,
            r"([12])\s?m\s?(\d\d)(?!\w)",
            lambda m: f"{LEXIS.in_unit(m[1], 'm')} e {cardinal(int(m[2]))}",
        ),
        (Kind.PHONE, r"\d{2}\s?\d{4,5}-\d{4}(?!\d)", lambda m: LEXIS.grouped(m[0])),
    ),
    words=(
        (Kind.SIGN, r"(?i)n[º°.]\s?(?=\d)", lambda m: "número "),
        (Kind.WORD, r"([pcs])/\s?(?=[a-zà-ú])", lambda m: {"p": "para ", "c": "com ", "s": "sem "}[m[1]]),
        (Kind.EMOTICON, r"s2(?!\w)", lambda m: LEXIS.heart),
        (Kind.WORD, r"S\.\s(?=[A-ZÁÂÉÍÓÚ])", lambda m: "São "),
        (Kind.SCORE, r"[xX]1(?![\w.,]*\d|\w)", lambda m: "xis um"),
    ),
)

"""Hindi: the words of numbers and signs, in lakh and crore."""

from __future__ import annotations

from appliance.text.languages.spoken import Speech
from appliance.text.spans import Kind

_SMALL = str.split(
    """
    शून्य एक दो तीन चार पाँच छह सात आठ नौ दस ग्यारह बारह तेरह चौदह पंद्रह सोलह सत्रह अठारह उन्नीस
    बीस इक्कीस बाईस तेईस चौबीस पच्चीस छब्बीस सत्ताईस अट्ठाईस उनतीस तीस इकतीस बत्तीस तैंतीस चौंतीस पैंतीस छत्तीस सैंतीस
    अड़तीस उनतालीस चालीस इकतालीस बयालीस तैंतालीस चौवालीस पैंतालीस छियालीस सैंतालीस अड़तालीस उनचास पचास इक्यावन बावन
    तिरपन चौवन पचपन छप्पन सत्तावन अट्ठावन उनसठ साठ इकसठ बासठ तिरसठ चौंसठ पैंसठ छियासठ सड़सठ अड़सठ उनहत्तर सत्तर इकहत्तर
    बहत्तर तिहत्तर चौहत्तर पचहत्तर छिहत्तर सतहत्तर अठहत्तर उनासी अस्सी इक्यासी बयासी तिरासी चौरासी पचासी छियासी सत्तासी
    अट्ठासी नवासी नब्बे इक्यानवे बानवे तिरानवे चौरानवे पचानवे छियानवे सत्तानवे अट्ठानवे निन्यानवे
    """
)
_SCALES = ((10**9, "अरब"), (10**7, "करोड़"), (10**5, "लाख"), (1_000, "हज़ार"), (100, "सौ"))
_STEMS = {1: "पहल", 2: "दूसर", 3: "तीसर", 4: "चौथ", 6: "छठ"}
_ENDINGS = {"ी": "ीं", "े": "ें", "ा": "ाँ"}
_LETTER = r"[\u0900-\u0963\u0970-\u097fA-Za-z]"


def cardinal(number: int, gender: str = "") -> str:
    for size, name in _SCALES:
        if number >= size:
            count, rest = divmod(number, size)
            return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")
    return _SMALL[number]


def ordinal(number: int, vowel: str = "") -> str:
    """Ends with ा, ी or े by its noun."""
    vowel = vowel if vowel in _ENDINGS else "ा"
    return f"{_STEMS[number]}{vowel}" if number in _STEMS else f"{cardinal(number)}व{_ENDINGS[vowel]}"


def year(number: int) -> str:
    """1999 is nineteen hundred ninety-nine."""
    century, rest = divmod(number, 100)
    if 11 <= century <= 19:
        return f"{cardinal(century)} सौ" + (f" {cardinal(rest)}" if rest else "")
    return cardinal(number)


def clock(hour: int, minute: int, marked: bool) -> str:
    if not minute:
        return f"{cardinal(hour)} बजे"
    return f"{cardinal(hour)} बजकर {cardinal(minute)} मिनट"


SPEECH = Speech(
    code="hi",
    scripts=("DEVANAGARI",),
    letter=_LETTER,
    cardinal=cardinal,
    ordinal=ordinal,
    year=year,
    sample="सदतकनचपहबआइलर",
    point="दशमलव",
    decimal=".",
    units="""
        kg किलो; g ग्राम; mg मिलीग्राम; km किलोमीटर; m मीटर; cm सेंटीमीटर; mm मिलीमीटर; l लीटर; ml मिलीलीटर
        km/h किलोमीटर प्रति घंटा; kmph किलोमीटर प्रति घंटा; kb केबी; mb एमबी; gb जीबी; tb टीबी; mbps एमबीपीएस
        fps एफपीएस; hz हर्ट्ज़; mhz मेगाहर्ट्ज़; ghz गीगाहर्ट्ज़; w वाट; kw किलोवाट; db डेसिबल; px पिक्सेल; ms मिलीसेकंड
        s सेकंड; sec सेकंड; min मिनट; h घंटा/घंटे; hr घंटा/घंटे
        % प्रतिशत; ° डिग्री; °c डिग्री सेल्सियस; °f डिग्री फ़ारेनहाइट; x गुना
    """,
    currencies="""
        ₹ रुपया/रुपये|पैसा/पैसे; INR रुपया/रुपये|पैसा/पैसे; $ डॉलर|सेंट; USD डॉलर|सेंट; US$ डॉलर|सेंट; € यूरो|सेंट
        EUR यूरो|सेंट; £ पाउंड|पेंस; ¥ येन; ₽ रूबल; ₿ बिटकॉइन
    """,
    cents=" {} {cent}",
    scales="M 1000000; cr 10000000 करोड़",
    months="जनवरी फ़रवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर अक्टूबर नवंबर दिसंबर",
    of_month=r"\s",
    day=lambda number, match: cardinal(number),
    date=("{day} {month}", " {year}"),
    clock=clock,
    hour=r"\s?बजे",
    signs="और|प्लस|बराबर|प्रतिशत|गुणा|भाग|माइनस|प्लस माइनस|से कम या बराबर|से ज़्यादा या बराबर|से कम|से ज़्यादा"
    "|बराबर नहीं|लगभग|वर्गमूल|से|का वर्ग",
    to="से",
    score="और",
    out_of="बटा",
    versus="बनाम",
    number_sign="नंबर",
    version="वर्ज़न",
    dot="पॉइंट",
    minus="माइनस",
    link="लिंक",
    mail="ईमेल",
    listing="कोड।",
    heart="दिल",
    fractions={
        ("1", "2"): "आधा",
        ("1", "4"): "एक चौथाई",
        ("3", "4"): "तीन चौथाई",
        ("24", "7"): "चौबीस सात",
    },
    abbreviations="डॉ. = डॉक्टर; श्री. = श्री; प्रो. = प्रोफ़ेसर; नं. = नंबर; कि. मी. = किलोमीटर; रु. = रुपये",
)
_ORDINAL = r"([०-९\d]{1,3})\s?व([ाीे])[ँंः]?(?![\u0900-\u0963])"
HINDI = SPEECH.language(
    numbers=(
        (Kind.NUMBER, _ORDINAL, lambda m: ordinal(int(m[1]), m[2])),
        (Kind.YEAR, r"1[1-9]\d\d(?=\s(?:में|से|तक|का|की|के)(?![\u0900-\u0963]))", lambda m: year(int(m[0]))),
    ),
    words=(
        (
            Kind.MONEY,
            r"(?i)(?:rs|रु)\.?\s?([०-९\d][०-९\d,]*)(?![\d.])",
            lambda m: f"{SPEECH.said(SPEECH.plain(m[1]))} रुपये",
        ),
    ),
)

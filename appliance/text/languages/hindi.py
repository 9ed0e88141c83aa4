"""Hindi: the words of numbers and signs."""

from __future__ import annotations

import re

from appliance.text.languages.lexis import Lexis
from appliance.text.languages.readings import language_of
from appliance.text.spans import Kind, Say, before

_SMALL = str.split(
    "शून्य एक दो तीन चार पाँच छह सात आठ नौ दस ग्यारह बारह तेरह चौदह पंद्रह सोलह सत्रह अठारह उन्नीस "
    "बीस इक्कीस बाईस तेईस चौबीस पच्चीस छब्बीस सत्ताईस अट्ठाईस उनतीस "
    "तीस इकतीस बत्तीस तैंतीस चौंतीस पैंतीस छत्तीस सैंतीस अड़तीस उनतालीस "
    "चालीस इकतालीस बयालीस तैंतालीस चौवालीस पैंतालीस छियालीस सैंतालीस अड़तालीस उनचास "
    "पचास इक्यावन बावन तिरपन चौवन पचपन छप्पन सत्तावन अट्ठावन उनसठ "
    "साठ इकसठ बासठ तिरसठ चौंसठ पैंसठ छियासठ सड़सठ अड़सठ उनहत्तर "
    "सत्तर इकहत्तर बहत्तर तिहत्तर चौहत्तर पचहत्तर छिहत्तर सतहत्तर अठहत्तर उनासी "
    "अस्सी इक्यासी बयासी तिरासी चौरासी पचासी छियासी सत्तासी अट्ठासी नवासी "
    "नब्बे इक्यानवे बानवे तिरानवे चौरानवे पचानवे छियानवे सत्तानवे अट्ठानवे निन्यानवे"
)
_SCALES = ((10**11, "खरब"), (10**9, "अरब"), (10**7, "करोड़"), (10**5, "लाख"), (1_000, "हज़ार"), (100, "सौ"))
_ORDINALS = {1: "पहल", 2: "दूसर", 3: "तीसर", 4: "चौथ", 6: "छठ"}
_ENDINGS = {"ा": "वाँ", "ी": "वीं", "े": "वें"}
_MONTHS = "जनवरी|फ़रवरी|मार्च|अप्रैल|मई|जून|जुलाई|अगस्त|सितंबर|अक्टूबर|नवंबर|दिसंबर"
_PARTS = ((4, "रात"), (12, "सुबह"), (16, "दोपहर"), (20, "शाम"), (24, "रात"))
"""Parts of the day, and the hour that each ends with."""


def cardinal(number: int, gender: str = "") -> str:
    """Lakh, crore, arab and kharab; no gender."""
    for size, name in _SCALES:
        if number >= size:
            count, rest = divmod(number, size)
            return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")
    return _SMALL[number]


def ordinal(number: int, ending: str = "") -> str:
    """Ordinal with the vowel of its gender and case."""
    ending = ending or "ा"
    if number in _ORDINALS:
        return _ORDINALS[number] + ending
    return cardinal(number) + _ENDINGS[ending]


def year(number: int) -> str:
    century, rest = divmod(number, 100)
    if 11 <= century <= 19:
        return f"{cardinal(century)} सौ" + (f" {cardinal(rest)}" if rest else "")
    return cardinal(number)


def _half(whole: int) -> str:
    """1½ and 2½ have words of their own."""
    return {1: "डेढ़", 2: "ढाई"}.get(whole) or f"साढ़े {cardinal(whole)}"


def decimals(whole: str, part: str) -> str:
    if part == "5" and whole != "0":
        return _half(int(whole))
    return f"{cardinal(int(whole))} दशमलव {' '.join(_SMALL[int(digit)] for digit in part)}"


def clock(hour: int, minute: int, marked: bool) -> str:
    """Time of day, with the words for quarters."""
    if not minute:
        return f"{cardinal(hour)} बजे"
    if not 1 <= hour <= 12 or minute not in (15, 30, 45):
        return f"{cardinal(hour)} बजकर {cardinal(minute)} मिनट"
    if minute == 30:
        return f"{_half(hour)} बजे"
    return f"सवा {cardinal(hour)} बजे" if minute == 15 else f"पौने {cardinal(hour % 12 + 1)} बजे"


def _half_day(match: re.Match[str]) -> str | None:
    hour, minute = int(match[1]), int(match[2] or 0)
    if not (1 <= hour <= 12 and minute < 60):
        return None
    time = clock(hour, minute, True)
    if re.search(r"(?:सुबह|दोपहर|शाम|रात|आज|कल)\s(?:को\s)?$", match.string[: match.start()]):
        return time
    full = hour % 12 + (12 if match[3] in "pP" else 0)
    return f"{next(part for end, part in _PARTS if full < end)} {time}"


def _ordinal(vowel: str) -> Say:
    return lambda match: ordinal(int(match[1]), vowel)


def _out_of(match: re.Match[str]) -> str:
    return f"{cardinal(int(match[2]))} में से {LEXIS.spoken(LEXIS.plain(match[1]))}"


def _year(match: re.Match[str]) -> str | None:
    """15 अगस्त 1947, 1999 में"""
    is_dated = re.search(rf"(?:{_MONTHS}|सन्?),?\s$", before(match))
    is_told = re.match(rf"\s(?:में|से|तक|का|की|के){_WORD_END}", match.string[match.end() :])
    return year(int(match[0])) if is_dated or is_told else None


def _rupees(match: re.Match[str]) -> str:
    """Rs. 500"""
    found = HINDI.numbers.at(f"₹{match[1]}", 0)
    return found.spoken if found else match[0]


def _limit(match: re.Match[str]) -> str:
    """<5 मिनट"""
    unit = " प्रतिशत" if match[3] in ("%", " %") else match[3] or ""
    return f"{LEXIS.spoken(LEXIS.plain(match[2]))}{unit} से {'कम' if match[1] == '<' else 'ज़्यादा'}"


LEXIS = Lexis(
    code="hi",
    cardinal=cardinal,
    ordinal=ordinal,
    year=year,
    scripts=("DEVANAGARI",),
    sample="एकदोतीनचारपाँचछहसातआठनौसौहज़ारलाखकरोड़",
    point="दशमलव",
    decimal=".",
    decimals=decimals,
    units="""
        m2 वर्ग मीटर; km2 वर्ग किलोमीटर; m3 घन मीटर; mbit मेगाबिट; gbit गीगाबिट; gbps गीगाबिट प्रति सेकंड
        ¢ सेंट; mah मिलीएम्पियर घंटा/मिलीएम्पियर घंटे; kwh किलोवाट घंटा/किलोवाट घंटे; gw गीगावाट
        khz किलोहर्ट्ज़; मी मीटर; mg मिलीग्राम; º डिग्री
        kg किलो; g ग्राम; km किलोमीटर; m मीटर; cm सेंटीमीटर; mm मिलीमीटर; l लीटर; ml मिलीलीटर; ft फ़ुट
        km/h किलोमीटर प्रति घंटा; kmph किलोमीटर प्रति घंटा; kb केबी; mb एमबी; gb जीबी; tb टीबी; mbps एमबीपीएस
        fps एफपीएस; hz हर्ट्ज़; mhz मेगाहर्ट्ज़; ghz गीगाहर्ट्ज़; w वाट; kw किलोवाट; db डेसिबल; px पिक्सल
        ms मिलीसेकंड
        s सेकंड; sec सेकंड; min मिनट; mins मिनट; h घंटा/घंटे; hr घंटा/घंटे; hrs घंटा/घंटे; d दिन; x गुना
        % प्रतिशत
        ° डिग्री; °c डिग्री सेल्सियस; °f डिग्री फ़ारेनहाइट; किमी किलोमीटर; कि.मी. किलोमीटर; किग्रा किलोग्राम
        कि.ग्रा. किलोग्राम; मी. मीटर; सेमी सेंटीमीटर; ★ स्टार
    """,
    cased="""
        W वाट; V वोल्ट; A एम्पियर; Ah एम्पियर घंटा/एम्पियर घंटे; Wh वाट घंटा/वाट घंटे; mA मिलीएम्पियर
        kV किलोवोल्ट; MW मेगावाट
    """,
    per="""
        s प्रति सेकंड; sec प्रति सेकंड; min प्रति मिनट; h प्रति घंटा; d प्रति दिन; सेकंड प्रति सेकंड
        मिनट प्रति मिनट; घंटा प्रति घंटा; दिन प्रति दिन; सप्ताह प्रति सप्ताह; महीना प्रति महीना
        माह प्रति माह; साल प्रति साल; वर्ष प्रति वर्ष; kg प्रति किलो; g प्रति ग्राम; l प्रति लीटर
        km प्रति किलोमीटर; m प्रति मीटर; m2 प्रति वर्ग मीटर; km2 प्रति वर्ग किलोमीटर; m3 प्रति घन मीटर
        kwh प्रति यूनिट; gb प्रति जीबी; किलो प्रति किलो; किग्रा प्रति किलोग्राम; किमी प्रति किलोमीटर
    """,
    per_word="प्रति {}",
    currencies="""
        ₹ रुपया/रुपये|पैसा/पैसे; INR रुपया/रुपये|पैसा/पैसे; Rs रुपया/रुपये|पैसा/पैसे
        रु. रुपया/रुपये|पैसा/पैसे
        रु रुपया/रुपये|पैसा/पैसे
        $ डॉलर|सेंट; USD डॉलर|सेंट; US$ डॉलर|सेंट; € यूरो|सेंट; EUR यूरो|सेंट; £ पाउंड|पेंस; ¥ येन; ₿ बिटकॉइन
    """,
    cents=" {} {cent}",
    thousands="k K हज़ार हजार",
    scales="""
        M 1000000 मिलियन; लाख 100000 लाख; L 100000 लाख; lakh 100000 लाख; lakhs 100000 लाख
        करोड़ 10000000 करोड़
        Cr 10000000 करोड़; cr 10000000 करोड़; crore 10000000 करोड़
    """,
    months=_MONTHS.replace("|", " "),
    of_month=r"\s",
    day=lambda number, match: cardinal(number),
    date=("{day} {month}", " {year}"),
    date_before="तारीख|दिनांक|तक|को",
    clock=clock,
    hour=r"\s?बजे",
    lasting="बाकी|बाक़ी|बचे",
    signs="और|प्लस|बराबर|प्रतिशत|गुणा|भाग|माइनस|प्लस माइनस|से कम या बराबर|से ज़्यादा या बराबर|से कम|से ज़्यादा"
    "|बराबर नहीं|लगभग|वर्गमूल|से|का वर्ग|की घात",
    to="से",
    score="",
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
        ("1", "3"): "एक तिहाई",
        ("2", "3"): "दो तिहाई",
        ("1", "4"): "एक चौथाई",
        ("3", "4"): "तीन चौथाई",
        ("24", "7"): "चौबीसों घंटे",
    },
    weekdays="सोम = सोमवार; मंगल = मंगलवार; बुध = बुधवार; गुरु = गुरुवार; शुक्र = शुक्रवार; शनि = शनिवार; रवि = रविवार",
    day_range="{} से {}",
    abbreviations="""
        डॉ. = डॉक्टर; प्रो. = प्रोफ़ेसर; श्री.; सु. श्री. = सुश्री; रु. = रुपये; नं. = नंबर
        कि. मी. = किलोमीटर
        उदा. = उदाहरण; पृ. = पृष्ठ; ई. पू. = ईसा पूर्व
    """,
)
_POSTPOSITION = "में|से|तक|का|की|के|को|पर"
_END = r"(?![\w%°]|[.,:/]\d)"
_WORD_END = r"(?![\w\u0900-\u0903\u093a-\u094f])"
_SCALE = "k|लाख|करोड़|हज़ार|हजार|L|Cr"
HINDI = language_of(
    LEXIS,
    numbers=(
        (Kind.TIME, r"(?i)(\d{1,2})(?:[:.](\d\d))?\s?([ap])\.?m\b\.?", _half_day),
        *(
            (Kind.NUMBER, rf"(\d{{1,4}})(?:{endings}){_WORD_END}", _ordinal(vowel))
            for vowel, endings in (
                ("ा", r"ला|रा|था|ठा|वा[ँं]?|\sवा[ँं]"),
                ("ी", r"ली|री|थी|ठी|वी[ँं]?|\sवी[ँं]"),
                ("े", r"ले|रे|थे|ठे|वे[ँं]?|\sवे[ँं]"),
            )
        ),
        (Kind.FRACTION, rf"(\d{{1,3}}(?:\.\d+)?)/(5|10|20|100){_END}", _out_of),
        (Kind.MONEY, rf"₹\s?[1१](?=\s(?:{_POSTPOSITION}){_WORD_END})", lambda m: "एक रुपये"),
        (Kind.YEAR, rf"1[1-9]\d\d{_END}", _year),
        (Kind.PHONE, rf"(?:[6-9]\d{{9}}|[6-9]\d{{4}}[ -]\d{{5}}){_END}", lambda m: LEXIS.grouped(m[0])),
    ),
    words=(
        (Kind.MONEY, rf"(?:Rs|INR|रु|रू)\.?\s?(\d[\d,]*(?:\.\d+)?(?:\s?(?:{_SCALE}))?)(?!\w)", _rupees),
        (Kind.WORD, r"नं\.?\s?(?=\d)", lambda m: "नंबर "),
    ),
    signs=(
        (Kind.SIGN, r"(?<=\d)/-(?!\w)", lambda m: " "),  # 500/- is a price
        (Kind.UNIT, r"(?<![\w)<>])([<>])(\d[\d,]*(?:\.\d+)?)(\s?%|\s[\u0900-\u097f]+)?(?!\w)", _limit),
    ),
)

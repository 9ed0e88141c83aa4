"""Words of a text in English, compared with a recogniser's transcript of the speech."""

from __future__ import annotations

import re

from appliance.text.languages import language
from appliance.text.languages.en.numbers import english_year

# Both texts are normalised with this table, because the recogniser writes American English.
_SPELLED = (
    "ok=okay, favourite=favorite, colour=color, mister=mr, missus=mrs, doctor=dr, miz=ms, saint=st, "
    "theatre=theater, grey=gray, alright=all right, cannot=can not, percent=per cent"
)
_SPELLINGS = dict(pair.split("=") for pair in _SPELLED.split(", "))
_YEAR = re.compile(r"(?<![\w.,/:$-])(?:1[1-9]|20)(?!00)\d\d(?![\w%/:-]|[.,]\d)")
"""Years: recognisers write "1984" for a spoken year, without any word that marks it as one."""
_AND = re.compile(r"\b(hundred|thousand) and\b")
_NUMERIC = re.compile(r"(?<![^\W_])(?:[-+]?[$€£]?\d|[A-Za-z]\w*\d)|[&%]")


def wrong_words(text: str, transcript: str) -> int:
    """Fewest substitutions, deletions and insertions of words between the normalised texts."""
    words, heard = plain(text).split(), plain(transcript).split()
    row = list(range(len(heard) + 1))
    for number, word in enumerate(words, 1):
        before, row = row, [number]
        for place, other in enumerate(heard):
            row.append(min(before[place] + (word != other), before[place + 1] + 1, row[place] + 1))
    return row[-1]


def plain(text: str) -> str:
    """Normalise a text for word errors: lower case, spelled numbers, one spelling, no punctuation."""
    text = _YEAR.sub(lambda year: english_year(int(year[0])), text.replace("’", "'"))
    text = re.sub(r"\bto-(?=day|night|morrow)", "to", spelled(text).lower())
    words = re.findall(r"[a-z']+", _AND.sub(r"\1", text))
    words = [word.strip("'") for word in words if word.strip("'")]
    return " ".join(_SPELLINGS.get(word, word) for word in words)


def spelled(text: str) -> str:
    """Replace numbers, amounts, & and % by the words that the device speaks in English. Other text stays."""
    english = language("en")
    spoken = ""
    place = 0
    for match in _NUMERIC.finditer(text):
        readings = english.signs if match[0] in "&%" else english.numbers
        if match.start() >= place and (span := readings.at(text, match.start())):
            spoken, place = spoken + text[place : span.start] + span.spoken, span.end
    return spoken + text[place:]

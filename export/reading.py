"""`text` of a manifest: the languages, letters and tokenizer with which weights were trained to read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from appliance.contract.bundle import Text
from appliance.contract.tokens import Tokenizer, Vocabulary
from appliance.text.languages import LANGUAGES
from export.weights import Known

HOW = "--language CODE[,CODE] sets them"
_CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de "
    "dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id "
    "ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu "
    "lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu "
    "rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr "
    "ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
ISO_639_1 = frozenset(_CODES.split())
_PINYIN = re.compile(r"[a-zü]{2,6}[1-5]")
_SCRIPTS = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "THAI": "th",
    "GREEK": "el",
    "HEBREW": "he",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "ORIYA": "or",
    "SINHALA": "si",
    "KHMER": "km",
    "LAO": "lo",
    "MYANMAR": "my",
}
"""Scripts that one language is mostly written in, by the first word of their letters' Unicode names."""
_ALPHABETS = {
    "LATIN": {
        "de": ("äöüß", "ß"),
        "es": ("áéíóúüñ", "ñ"),
        "fr": ("àâæçèéêëîïôœùûüÿ", "çèê"),
        "it": ("àèéìíîòóùú", "òù"),
        "pt": ("áâãàçéêíóôõúü", "ãõ"),
    },
    "CYRILLIC": {"ru": ("абвгдеёжзийклмнопрстуфхцчшщъыьэюя", "ъыэ")},
    "ARABIC": {"ar": ("ءآأؤإئابةتثجحخدذرزسشصضطظعغـفقكلمنهوىي", "ةضظ")},
}
"""Script → language → its letters beyond ASCII, all that a vocabulary may have, and those that it must."""


def parse_languages(text: str) -> tuple[str, ...]:
    """Parse `de,en`. Raises ValueError for what is no ISO 639-1 code."""
    codes = tuple(part.strip() for part in text.split(","))
    if wrong := [code for code in codes if code not in ISO_639_1]:
        raise ValueError(
            f"--language: must be ISO 639-1 codes of two small letters, such as de or de,en, not {wrong[0]!r}"
        )
    return tuple(dict.fromkeys(codes))


def text_of(
    vocabulary: Vocabulary, tokenizer: Tokenizer, row: Known | None, stated: Sequence[str] | None
) -> tuple[Text, list[str]]:
    """Text block, and what is to be said of it.

    Languages are those stated, else those of the known weights, else guessed from the vocabulary.
    """
    said = []
    if stated is not None:
        languages = tuple(stated)
    elif tokenizer == "emilia":
        languages = ("en", "zh")
    elif tokenizer == "phones":
        languages = ("en",)
    elif row is not None:
        languages = row.languages
        said.append(f"languages: {', '.join(languages)}, those of {row.name}; {HOW}")
    elif languages := guess(vocabulary):
        said.append(f"languages: {', '.join(languages)}, guessed from the vocabulary; {HOW}")
    else:
        said.append(f"languages: not known, so no words are put into texts, as for numbers and signs; {HOW}")
    if unread := [code for code in languages if code not in LANGUAGES]:
        said.append(f"{', '.join(unread)}: no words are known here, so none are put into texts of it")
    # Those of phones say nothing of a text's.
    letters = {
        token for token in vocabulary.tokens if len(token) == 1 and tokenizer not in ("emilia", "phones")
    }
    return Text(languages, tokenizer, _case(letters), _form(letters)), said


def guess(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Language that the letters tell, or none; upstream's own vocabulary, of pinyin, has most scripts."""
    if any(_PINYIN.fullmatch(token) for token in vocabulary.tokens):
        return ()
    scripts: dict[str, set[str]] = {}
    for token in vocabulary.tokens:
        if len(token) == 1 and not token.isascii() and token.isalpha():
            script = unicodedata.name(token, "?").split()[0].split("-")[0]
            scripts.setdefault(script, set()).add(token.lower())
    found = {_SCRIPTS[script] for script in scripts if script in _SCRIPTS}
    for script, letters in scripts.items():
        alphabets = _ALPHABETS.get(script, {})
        found |= {code for code, (all_, own) in alphabets.items() if set(own) <= letters <= set(all_)}
    others = scripts.keys() - _SCRIPTS.keys() - _ALPHABETS.keys() - {"CJK"}
    return tuple(found) if len(found) == 1 and not others else ()


def _case(letters: set[str]) -> Literal["both", "lower", "upper"]:
    small = sum(letter.islower() and letter.upper() != letter for letter in letters)
    capital = sum(letter.isupper() and letter.lower() != letter for letter in letters)
    if not small + capital or min(small, capital) * 4 >= max(small, capital):
        return "both"
    return "lower" if small > capital else "upper"


def _form(letters: set[str]) -> Literal["NFC", "NFD"]:
    """NFD for combining marks without any of the letters that they would compose."""
    marks = [letter for letter in letters if unicodedata.combining(letter)]
    pairs = (unicodedata.normalize("NFC", base + mark) for mark in marks for base in letters)
    composed = {pair for pair in pairs if len(pair) == 1}
    return "NFD" if composed and not composed & letters else "NFC"

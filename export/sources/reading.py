"""The section `text` of a manifest: languages, case, Unicode form and tokenizer of the training's texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from appliance.contract.bundle import Text
from appliance.contract.tokens import BY_ESPEAK, ESPEAK_VOICE, Tokenizer, Vocabulary, lines
from appliance.errors import BundleError
from appliance.fields import shown
from appliance.text.languages import LANGUAGES, base_code
from appliance.text.tokens.tokenizers import maker
from export.sources.weights import Known

PAD = "_"
"""ZipVoice's token for padding."""
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
_ONE_LANGUAGE = (
    "HIRAGANA:ja KATAKANA:ja HANGUL:ko THAI:th GREEK:el HEBREW:he GEORGIAN:ka ARMENIAN:hy TAMIL:ta "
    "TELUGU:te KANNADA:kn MALAYALAM:ml GUJARATI:gu GURMUKHI:pa ORIYA:or SINHALA:si KHMER:km LAO:lo "
    "MYANMAR:my"
)
_SCRIPTS = dict(pair.split(":") for pair in _ONE_LANGUAGE.split())
"""Scripts that belong to one language, by the first word of their letters' Unicode names → the language."""
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
"""Script → language → letters beyond ASCII that a vocabulary may have, and letters that it must have."""


_ISO_OF = {"cmn": "zh", "yue": "zh", "hak": "zh"}
"""Codes that espeak uses for a language → ISO 639-1."""
NUMBERS = ". ".join(map(str, (*range(21), *range(30, 110, 10), 1000, 1_000_000)))
"""A text that works in all languages, because espeak reads numbers in the voice's language."""
MOST_UNKNOWN = 0.5
"""Largest share of a voice's symbols that may be missing from a vocabulary."""


def parse_tokenizer(text: str) -> tuple[Tokenizer, str]:
    """Parse the name of a tokenizer, or `espeak:LANG`, into name and voice. Raises ValueError."""
    name, colon, voice = text.partition(":")
    tokenizers: tuple[Tokenizer, ...] = get_args(Tokenizer)
    for tokenizer in tokenizers:
        if name == tokenizer and (not colon or name == "espeak"):
            return tokenizer, parse_voice(voice, "--tokenizer espeak:LANG") if colon else ""
    names = ", ".join(f"{name}[:LANG]" if name == "espeak" else name for name in tokenizers)
    raise ValueError(f"--tokenizer: must be one of {names}, not {shown(text)}")


def parse_voice(text: str, where: str) -> str:
    """Parse a language of espeak, regardless of case and of `_` or `-`. Raises ValueError."""
    voice = text.strip().replace("_", "-").lower()
    if not ESPEAK_VOICE.fullmatch(voice):
        raise ValueError(
            f"{where}: must be a language of espeak, such as de, en-gb or pt-br, not {shown(text)}"
        )
    return voice


def read_options(
    tokenizer: str | None, languages: str | None
) -> tuple[Tokenizer | None, str, tuple[str, ...] | None]:
    """Tokenizer, voice and languages from `--tokenizer` and `--language`; None if the option is missing.

    With `espeak`, the first language may be one of espeak's, such as pt_BR, and sets the voice. Raises
    ValueError.
    """
    name, voice = (None, "") if tokenizer is None else parse_tokenizer(tokenizer)
    if name != "espeak":
        return name, "", None if languages is None else parse_languages(languages)
    if languages is None and not voice:
        raise ValueError("--tokenizer espeak: needs a language: --tokenizer espeak:de, or --language de")
    voices = [parse_voice(one, "--language") for one in (languages or voice).split(",")]
    codes = (_ISO_OF.get(base_code(one), base_code(one)) for one in voices)
    return name, voice or voices[0], tuple(dict.fromkeys(code for code in codes if code in ISO_639_1))


def parse_languages(text: str) -> tuple[str, ...]:
    """Parse `de,en`. Raises ValueError for a code that is not in ISO 639-1."""
    codes = tuple(part.strip() for part in text.split(","))
    if wrong := [code for code in codes if code not in ISO_639_1]:
        raise ValueError(
            f"--language: must be ISO 639-1 codes in lower case, such as de or de,en, not {wrong[0]!r}"
        )
    return tuple(dict.fromkeys(codes))


def numbered(path: Path) -> dict[str, int]:
    r"""Number of each token, from lines `token\\tnumber` numbered from 0. Raises BundleError."""
    try:
        rows = [row for row in lines(path.read_bytes()).split("\n") if row]
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: unreadable: {error}") from error
    if rows[:1] == [PAD]:  # of JSON, whose tokens are in the order of their numbers
        rows = [f"{token}\t{number}" for number, token in enumerate(rows)]
    pairs = [row.rpartition("\t") for row in rows]
    try:
        numbers = {token: int(number) for token, _, number in pairs}
    except ValueError as error:
        raise BundleError(f"{path}: must have a token, a tab and a number on each line") from error
    if PAD not in numbers or sorted(numbers.values()) != list(range(len(pairs))):
        raise BundleError(f"{path}: must number its tokens from 0, one of them {PAD}")
    return numbers


def text_of(
    vocabulary: Vocabulary, tokenizer: Tokenizer, row: Known | None, stated: Sequence[str] | None
) -> tuple[Text, list[str]]:
    """The section `text`, and lines that tell the user about it.

    Languages are `stated`, or else the known weights' languages, or else a guess from the vocabulary. Raises
    BundleError for a language that the tokenizer cannot read.
    """
    notes = []
    others = [code for code in stated or () if tokenizer == "emilia" and code not in ("en", "zh")]
    if others:
        raise BundleError(
            f"--tokenizer emilia: reads only English and Chinese, and would say {', '.join(others)} by "
            f"American phones; for weights tuned as run_finetune.sh does, pass --tokenizer espeak:{others[0]}"
        )
    if stated is not None:
        languages = tuple(stated)
    elif tokenizer == "emilia":
        languages = ("en", "zh")
    elif tokenizer == "phones":
        languages = ("en",)
    elif row is not None:
        languages = row.languages
        notes.append(f"languages: {', '.join(languages)}, as listed for {row.name}; {HOW}")
    elif languages := guess(vocabulary):
        notes.append(f"languages: {', '.join(languages)}, guessed from the vocabulary; {HOW}")
    else:
        notes.append(f"languages: unknown, so numbers and signs stay as written; {HOW}")
    if unread := [code for code in languages if code not in LANGUAGES]:
        notes.append(f"{', '.join(unread)}: has no words here, so its numbers and signs stay as written")
    # Phones tell nothing about the case and form of texts.
    phones = tokenizer in (*BY_ESPEAK, "phones")
    letters = {token for token in vocabulary.tokens if len(token) == 1 and not phones}
    if tokenizer == "espeak":
        notes += unheard(vocabulary)
    return Text(languages, tokenizer, _case(letters), _form(letters), voice=vocabulary.voice), notes


def unheard(vocabulary: Vocabulary) -> list[str]:
    """Lines about symbols of the espeak voice that are missing from the vocabulary.

    Raises BundleError if most are missing, and PhonesMissing.
    """
    symbols = maker("espeak", vocabulary.voice)(NUMBERS)
    unknown = [symbol for symbol in symbols if symbol not in vocabulary.index]
    if not unknown:
        return []
    share = len(unknown) / len(symbols)
    note = (
        f"{share:.1%} of the symbols by which espeak's {vocabulary.voice} says numbers are not in the tokens:"
        f" {' '.join(dict.fromkeys(unknown))}"
    )
    if share > MOST_UNKNOWN:
        raise BundleError(f"{note}; the tokens are for another tokenizer or language: pass --tokenizer")
    return [f"{note}; texts leave them out"]


def guess(vocabulary: Vocabulary) -> tuple[str, ...]:
    """The language of the vocabulary's letters, as a tuple; empty if they fit no language or several.

    Upstream's vocabulary, with pinyin, has letters of most scripts and so determines no language.
    """
    if any(_PINYIN.fullmatch(token) for token in vocabulary.tokens):
        return ()
    scripts: dict[str, set[str]] = {}
    for token in vocabulary.tokens:
        if len(token) == 1 and not token.isascii() and token.isalpha():
            script = unicodedata.name(token, "?").split()[0].split("-")[0]
            scripts.setdefault(script, set()).add(token.lower())
    languages = {_SCRIPTS[script] for script in scripts if script in _SCRIPTS}
    for script, letters in scripts.items():
        alphabets = _ALPHABETS.get(script, {})
        languages |= {code for code, (all_, own) in alphabets.items() if set(own) <= letters <= set(all_)}
    others = scripts.keys() - _SCRIPTS.keys() - _ALPHABETS.keys() - {"CJK"}
    return tuple(languages) if len(languages) == 1 and not others else ()


def _case(letters: set[str]) -> Literal["both", "lower", "upper"]:
    small = sum(letter.islower() and letter.upper() != letter for letter in letters)
    capital = sum(letter.isupper() and letter.lower() != letter for letter in letters)
    if not small + capital or min(small, capital) * 4 >= max(small, capital):
        return "both"
    return "lower" if small > capital else "upper"


def _form(letters: set[str]) -> Literal["NFC", "NFD"]:
    """NFD if the vocabulary has combining marks, and no letter that a mark and a base compose."""
    marks = [letter for letter in letters if unicodedata.combining(letter)]
    pairs = (unicodedata.normalize("NFC", base + mark) for mark in marks for base in letters)
    composed = {pair for pair in pairs if len(pair) == 1}
    return "NFD" if composed and not composed & letters else "NFC"


def framing(row: Known | None, around: tuple[str, str] | None, dialect: str) -> dict[str, Any]:
    """`around` and `dialect` of the section `text`: as given, else the known weights' own.

    Raises ValueError.
    """
    dialects = row.dialects if row is not None else {}
    if dialect and dialect not in dialects:
        there = f"one of {', '.join(dialects)}" if dialects else "left out, because these weights mark none"
        raise ValueError(f"--dialect: must be {there}, not {dialect}")
    if around is not None:
        return {"around": around, "dialect": dialect}
    if not dialects:
        return {}
    dialect = dialect or next(iter(dialects))
    return {"around": dialects[dialect], "dialect": dialect}

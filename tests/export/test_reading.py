"""The manifest's text section: languages that are stated, recorded, guessed or missing; letters' case and
form."""

import unicodedata
from importlib.resources import files

import pytest

from appliance.contract.bundle import Text
from appliance.contract.tokens import Vocabulary, parse_vocabulary
from appliance.text.phones import alphabet
from export.sources.reading import guess, parse_languages, text_of
from export.sources.weights import KNOWN
from tests.harness.rows import rows
from tests.oracle import upstream

ASCII = [chr(code) for code in range(32, 127)]
KANA = "ぁあいうえおかきくけこさしすせそアイウエオカキクケコー"
RUSSIAN = "абвгдеёжзийклмнопрстуфхцчшщъыьэюя"


def vocabulary(letters: str, pinyin: bool = False) -> Vocabulary:
    return Vocabulary(tuple(dict.fromkeys([*ASCII, *letters, *(["ni3", "hao3"] if pinyin else [])])))


@pytest.mark.parametrize(("letters", "languages"), [row[:2] for row in rows(__file__, "letters.jsonl")])
def test_a_language_is_guessed_if_only_it_has_these_letters(letters: str, languages: list[str]) -> None:
    """The end of a row may give the reason."""
    assert guess(vocabulary(letters)) == tuple(languages)
    assert guess(vocabulary(letters, pinyin=True)) == ()  # starts with upstream's, which has most scripts


@pytest.mark.torch
def test_upstreams_vocabulary_tells_no_language() -> None:
    upstream.require()
    text = files("f5_tts").joinpath("infer/examples/vocab.txt").read_bytes().decode()
    found, said = text_of(parse_vocabulary(text), "pinyin", None, None)
    assert found == Text()
    told = "languages: unknown, so numbers and signs stay as written; "
    assert said == [f"{told}--language CODE[,CODE] sets them"]


def test_stated_languages_precede_recorded_and_guessed_ones() -> None:
    kana, silma = vocabulary(KANA), KNOWN["SILMA"]
    assert text_of(kana, "char", silma, ("zh", "en")) == (Text(("zh", "en"), "char"), [])
    found, said = text_of(kana, "pinyin", KNOWN["F5TTS_v1_Base"], None)
    assert found.languages == ("en", "zh")
    assert said == ["languages: en, zh, as listed for F5TTS_v1_Base; --language CODE[,CODE] sets them"]
    phones = Vocabulary(alphabet.TOKENS, "phones")
    assert text_of(phones, "phones", None, None) == (Text(("en",), "phones"), [])
    _, said = text_of(kana, "pinyin", None, None)
    assert said[0].startswith("languages: ja, guessed from the vocabulary; --language")


def test_a_language_without_words_is_allowed_and_said() -> None:
    found, said = text_of(vocabulary("äö"), "pinyin", None, ("fi",))
    assert found.languages == ("fi",)
    assert said == ["fi: has no words here, so its numbers and signs stay as written"]


def test_languages_are_iso_639_1() -> None:
    assert parse_languages("de, en,de") == ("de", "en")
    for wrong in ("german", "DE", "de-AT", "", "xx", "de,"):
        with pytest.raises(ValueError, match="must be ISO 639-1 codes in lower case"):
            parse_languages(wrong)


@pytest.mark.parametrize(("tokens", "case"), [
    ("abcdefghijklmnopqrstuvwxyz", "lower"),
    ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "upper"),
    ("abcdefABCDEF", "both"),
    (RUSSIAN + "Ω", "lower"),  # a sign
    (KANA, "both"),
])  # fmt: skip
def test_the_case_follows_the_letters(tokens: str, case: str) -> None:
    found, _ = text_of(Vocabulary((" ", *tokens)), "pinyin", None, ())
    assert found.case == case


def test_the_form_is_decomposed_where_marks_stand_alone() -> None:
    def form(tokens: str) -> str:
        return text_of(Vocabulary((" ", *tokens)), "char", None, ())[0].form

    composed = "aeiouáéíóúạẹ"
    assert form(composed) == "NFC"
    assert form("".join(dict.fromkeys(unicodedata.normalize("NFD", composed)))) == "NFD"
    assert form(composed + "\u0301") == "NFC"  # Russian stress next to composed letters

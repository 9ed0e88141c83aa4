"""The voice of a line's language: 200 lines in five languages, scripts, and lines of no clear language.

The lines are chat and donations in viewers' style, written before any detector was tried; 50 lines of one or
two words follow.
"""

import sys

import pytest

from appliance.config import LanguageRow
from appliance.errors import ConfigError
from appliance.text.polyglot import MOST_CHANNELS, LanguageTable
from tests.harness.rows import rows

FIVE = ("en", "de", "fr", "es", "it")
LINES = [(row["language"], row["text"]) for row in rows(__file__, "polyglot_lines.jsonl")]
LONG = [(language, text) for language, text in LINES if len(text.split()) > 2]
SHORT = [line for line in LINES if line not in LONG]
UNCLEAR = ("lol", "gg", "666", "😂😂", "https://youtu.be/dQw4w9WgXcQ", "@Hans_Müller", "brb", "xD", "")


def table(*codes: str) -> LanguageTable:
    return LanguageTable({code: LanguageRow(f"voice-{code}") for code in codes})


def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)


@pytest.mark.parametrize("codes", [FIVE, FIVE[::-1]])
def test_98_percent_of_200_lines_get_their_voice(codes: tuple[str, ...]) -> None:
    assert len(LONG) == 200 and {sum(code == one for one, _ in LONG) for code in FIVE} == {40}
    voices = table(*codes)
    wrong = [(code, text) for code, text in LONG if voices.of(text)[1].voice != f"voice-{code}"]
    assert len(wrong) <= 4, wrong


def test_most_lines_of_one_or_two_words_get_their_voice_in_a_channel() -> None:
    assert len(SHORT) == 50
    right = 0
    for code, text in SHORT:
        voices = table(*FIVE)
        voices.of(next(line for language, line in LONG if language == code), "chat")
        right += voices.of(text, "chat")[0] == code
    assert right >= 45


@pytest.mark.parametrize("text", UNCLEAR)
def test_a_line_of_no_clear_language_gets_the_channel_s_last_voice_or_the_first(text: str) -> None:
    voices = table(*FIVE)
    assert voices.of(text)[0] == voices.of(text, "chat")[0] == "en"
    assert voices.of("ich schaue seit gestern zu", "chat")[0] == "de"
    assert voices.of("je te regarde depuis hier", "other")[0] == "fr"
    assert [voices.of(text, c)[0] for c in ("chat", "other", "third", "")] == ["de", "fr", "en", "en"]


def test_the_callers_language_counts_if_the_table_has_it() -> None:
    voices = table(*FIVE)
    assert voices.of("ich schaue seit gestern zu", language="es-MX")[0] == "es"
    assert voices.of("ich schaue seit gestern zu", language="pt")[0] == "de"


def test_a_script_of_one_language_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    without_library(monkeypatch)
    voices = table("en", "ru", "zh", "ar", "hi")
    for text, code in (
        ("hello from London", "en"),
        ("привет из Москвы, gg", "ru"),
        ("主播好厉害 nice", "zh"),
        ("مرحبا بالجميع", "ar"),
        ("सबको नमस्ते", "hi"),
        ("γεια σας", "en"),
    ):
        assert voices.of(text)[0] == code, text


def test_kana_mark_japanese_among_chinese_and_latin() -> None:
    voices = table("zh", "ja", "en", "de")
    assert [
        voices.of(t)[0] for t in ("こんにちは、今日は楽しい", "今天直播真好看", "guten Morgen euch allen")
    ] == [*("ja", "zh", "de")]


def test_a_table_that_needs_the_library_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    without_library(monkeypatch)
    from appliance.text import polyglot

    polyglot._identifier.cache_clear()
    with pytest.raises(ConfigError, match=r"tell en, de apart py3langid is missing: pip install 'f5-appl"):
        table("en", "de")


def test_links_tags_and_names_do_not_decide_the_language() -> None:
    voices = table(*FIVE)
    line = "[voice:heart] @the_great_one ich schaue seit gestern zu https://www.example.com/what/is :catJAM:"
    assert voices.of(line)[0] == "de"


def test_only_the_last_channels_are_remembered() -> None:
    voices = table(*FIVE)
    for number in range(MOST_CHANNELS + 1):
        voices.of("ich schaue seit gestern zu", f"channel {number}")
    assert [voices.of("lol", f"channel {number}")[0] for number in (0, MOST_CHANNELS)] == ["en", "de"]

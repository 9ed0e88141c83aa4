"""Active languages: the language of each clause, and no foreign words in a text of unknown language."""

import re
import unicodedata
from collections import Counter
from functools import cache

import emoji
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import TextConfig
from appliance.contract.tokens import Vocabulary
from appliance.errors import ConfigError, InvalidRequest
from appliance.request import Handling
from appliance.text.languages import LANGUAGES, UnknownLanguage, base_code, language, resolve
from appliance.text.languages.plain import PLAIN
from appliance.text.sayable import FrontEnd
from appliance.text.scripts import LETTERS
from appliance.text.tokens.chinese import to_tokens
from tests.harness.rows import rows
from tests.text.test_chat import chinese_too
from tests.text.test_spans import lines

LATIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZäöüßÄÖÜáéíóúñçàèìòùâêîôûœ"
CYRILLIC = "".join(map(chr, range(0x410, 0x450))) + "ёЁ"
KANA = "".join(map(chr, [*range(0x3041, 0x3097), *range(0x30A1, 0x30FD)]))
SIGNS = "0123456789.,:;!?¿¡'\"-()%€$£&+=@#/°²"
DEVANAGARI = "".join(map(chr, range(0x900, 0x970)))


@cache
def front(*languages: str, configured: str = "") -> FrontEnd:
    """Front end of a bundle with letters, signs and digits of several scripts, and Chinese syllables."""
    tokens = dict.fromkeys((" ", *LATIN, *CYRILLIC, *KANA, *DEVANAGARI, *SIGNS, *chinese_too().tokens))
    return FrontEnd(Vocabulary(tuple(tokens)), TextConfig(language=configured), languages)


@pytest.mark.parametrize("code", LANGUAGES)
def test_each_registered_language_loads_and_has_words_and_a_known_script(code: str) -> None:
    loaded = language(code)
    assert (loaded.code, loaded.says_digits) == (code, True)
    assert loaded.link.strip() and loaded.mail.strip() and set(loaded.scripts) <= set(LETTERS)
    assert all(word == word.lower() and word[-1] != "." for word in loaded.abbreviations)


def test_tags_of_regions_and_of_unregistered_languages() -> None:
    assert [base_code(tag) for tag in ("de-AT", "en_GB", "zh-CN", " EN ")] == ["de", "en", "zh", "en"]
    assert language("en-GB") is language("en")
    with pytest.raises(UnknownLanguage, match=r"'tlh' is not known; ar, de, en, "):
        language("tlh")
    assert [resolve(of).scripts for of in ("nl", "uk", "mr")] == [("LATIN",), ("CYRILLIC",), ("DEVANAGARI",)]
    assert resolve("nl").numbers is PLAIN.numbers and resolve("en") is language("en")


@pytest.mark.parametrize(
    ("languages", "text", "spoken"),
    [*rows(__file__, "active.jsonl"), *(("", *line) for line in rows(__file__, "no_language.jsonl"))],
)
def test_a_line_is_spoken_in_the_active_languages(languages: str, text: str, spoken: str) -> None:
    assert front(*languages.split()).speakable(text).text == spoken


def test_the_request_s_language_precedes_the_configured_and_the_bundle_s() -> None:
    assert front("zh", configured="en").speakable("5").text == "five"
    assert front("zh", configured="en").speakable("5", language="de-AT").text == "fünf"
    assert front("en").speakable("5", language="zh-CN").text == "五"
    assert front("nl", configured="nl").speakable("5", language="nl").text == "5"
    with pytest.raises(InvalidRequest, match=r"language_code: 'xx' is not known; ar, de, en, "):
        front("en").speakable("5", language="xx")
    with pytest.raises(ConfigError, match=r"text\.language: 'nl' is not known; ar, de, en, "):
        FrontEnd(chinese_too(), TextConfig(language="nl"), ("en",))


def test_a_language_that_the_vocabulary_cannot_say_is_not_active() -> None:
    letters = Vocabulary((" ", *"abcdefghijklmnopqrstuvwxyz0123456789"))
    english = FrontEnd(letters, languages=("zh", "en"))
    assert english.speakable("等级5 5").text == "five five"
    # A language that the request names keeps its clauses: they get no words of another language.
    assert english.speakable("よる9時, all of 5", language="ja").text == "9 all of five"
    assert FrontEnd(letters, languages=("de", "en")).speakable("5 Abos").text == "funf abos"
    nothing = FrontEnd(Vocabulary((" ", *"xyz1")), languages=("zh", "en"))
    assert nothing.speakable("x 12").text == "x 1"


def test_random_lines_of_unknown_language_get_no_words() -> None:
    for line in lines():
        for handling in (Handling.CHAT, Handling.VERBATIM):
            spoken = front().speakable(line, handling)
            added = Counter(c for c in spoken.text.lower() if c.isalpha())
            written = unicodedata.normalize("NFKC", line).lower()
            assert not added - Counter(c for c in written if c.isalpha()), (line, spoken)


def test_signs_and_digits_outside_the_vocabulary_become_words_or_are_dropped() -> None:
    letters = Vocabulary((" ", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ."))
    verbatim = Handling.VERBATIM
    assert FrontEnd(letters, languages=("en",)).speakable("a % 5 ٥", verbatim).text == "a percent five five"
    spoken = FrontEnd(letters).speakable("a % 5 b", verbatim)
    assert spoken.text == "a b" and [(c.kind, c.before) for c in spoken.changes] == [("unsayable", "%5")]
    chinese = front("zh").speakable("好 ÷", verbatim)
    assert chinese.text == "好除以"


def test_names_of_emoji_omit_skin_tones_in_every_language() -> None:
    from appliance.text.chat.chat import _emoji_name

    toned = [character for character in emoji.EMOJI_DATA if re.search("[🏻-🏿]", character[1:])]
    assert len(toned) > 2_000
    for code in emoji.LANGUAGES:
        bare = {_emoji_name(character, resolve(code)) for character in toned}
        named = {_emoji_name(c, resolve(code)) for c in emoji.EMOJI_DATA if not re.search("[🏻-🏿]", c)}
        assert bare <= named and "" not in bare, (code, sorted(bare - named)[:5])


@pytest.mark.parametrize(("text", "spoken"), [
    ("dаnke ѕorry", "danke sorry"), ("сoк и пoка, привет", "сoк и пoка, привет"),
    ("привет ѕorry", "привет ѕorry"), ("а и о", "а и о"),
])  # fmt: skip
def test_look_alikes_are_folded_unless_a_word_is_greek_or_cyrillic(text: str, spoken: str) -> None:
    tokens = dict.fromkeys((" ", *LATIN, *CYRILLIC, "ѕ", *SIGNS))
    assert FrontEnd(Vocabulary(tuple(tokens)), languages=("ru",)).speakable(text).text == spoken


SCRIPTS = st.text(
    alphabet=st.one_of(
        st.sampled_from(
            LATIN + CYRILLIC + KANA + DEVANAGARI + SIGNS + "\u200c\u200d\u0301\u0308 \n@_*[]<>😂👍🏽"
        ),
        st.characters(min_codepoint=0x300, max_codepoint=0x3200),
    ),
    max_size=80,
)


@given(SCRIPTS, st.sampled_from((Handling.CHAT, Handling.VERBATIM)), st.sampled_from(("", "de", "en", "zh")))
def test_text_of_any_script_becomes_speakable(text: str, handling: Handling, code: str) -> None:
    for vocabulary in (
        Vocabulary(tuple(dict.fromkeys(" " + LATIN + SIGNS))),
        Vocabulary((" ", *"abcdefghijklmnopqrstuvwxyz\u0301\u0308\u0327"), "char"),
        Vocabulary(tuple(dict.fromkeys(" " + DEVANAGARI + CYRILLIC.upper())), "char"),
    ):
        spoken = FrontEnd(vocabulary, languages=("ru", "mr")).speakable(text, handling, language=code)
        tokens = vocabulary.split(spoken.text, to_tokens)
        assert all(token in vocabulary.index for token in tokens), (spoken, vocabulary)

"""Lists of pronunciations and SSML: the spoken text, the pauses, and the refusals."""

import re
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import InvalidRequest
from appliance.request import Handling, Pause, SpokenText
from appliance.text import pronounce, ssml
from appliance.text.chat.line import LINK, MAIL
from appliance.text.chat.marks import Marks
from appliance.text.chat.rewrite import Rewriting
from appliance.text.normalise import normalise
from tests.harness.rows import rows
from tests.text.test_chat import front

SSML = Handling.SSML


def say(text: str, words: dict[str, str], language: str = "en", handling: Handling = Handling.CHAT) -> str:
    return front(language).speakable(text, handling, words).text


@pytest.mark.parametrize(("text", "words", "spoken"), rows(__file__, "pronunciations.jsonl"))
def test_words_sound_as_the_list_defines(text: str, words: dict[str, str], spoken: str) -> None:
    assert say(text, words) == spoken


def test_chinese_words_need_no_spaces_around_them() -> None:
    words = {"小明": "小铭", "Anna": "安娜"}
    assert say("我叫小明明", words, "zh") == "我叫小铭明"
    assert say("你好Anna啊", words, "zh") == "你好安娜啊"


def test_a_verbatim_text_has_its_pronunciations_too_and_the_change_is_named() -> None:
    spoken = front("en").speakable("anna 5%", Handling.VERBATIM, {"anna": "Ah-na 5"})
    assert spoken.text == "Ah-na five five percent"
    assert next((c.kind, c.before, c.after) for c in spoken.changes) == ("pronunciation", "anna", "Ah-na 5")


def test_changes_name_words_and_never_their_marks() -> None:
    kinds = {c.kind: (c.before, c.after) for c in front("en").speakable("x " * 9, words={"x": "ex"}).changes}
    assert kinds["repeat"] == ("ex ex ex ex ex ex ex ex ex", "ex ex ex")


@pytest.mark.parametrize(("words", "message"), [
    ({"": "x"}, "has an empty side"), ({"x": " \u200b"}, "has an empty side"),
    ({"x" * 65: "y"}, "65 characters; at most 64"),
    ({"x": "y" * 201}, "201 characters; at most 200"),
    ({str(n): "y" for n in range(501)}, "501 words; at most 500"),
])  # fmt: skip
def test_lists_are_bounded(words: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        pronounce.check(words)
    assert caught.value.field == "pronunciations"


def test_a_full_list_may_contain_signs() -> None:
    words = {f"({n}[*{n}\\": f"word {n}" for n in range(500)}
    pronounce.check(words)
    assert say("(77[*77\\ and (4[*", words).startswith("word seven seven and ")


def test_a_long_word_is_refused_before_its_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(pronounce, "normalise", lambda text: looked.append(len(text)) or normalise(text))
    for words in ({"anna": "x" * 1_000_000}, {"x" * 1_000_000: "anna"}):
        with pytest.raises(InvalidRequest, match="1000000 characters; at most"):
            pronounce.check(words)
    assert max(looked, default=0) <= pronounce.MOST_SAY


def replaced(text: str, words: dict[str, str]) -> str:
    marks = Marks()
    rewriting = Rewriting(text)
    pronounce.pronounce(rewriting, words, marks)
    return marks.restored(rewriting.text)


def by_pattern(text: str, words: dict[str, str]) -> str:
    """The same result by one pattern of all words, each with the characters that must not surround it."""
    letter = "(?-i:[^\\W\u3400-\u9fff])"
    says = {unicodedata.normalize("NFC", word.strip()).lower(): normalise(say) for word, say in words.items()}

    def whole(word: str) -> str:
        before = f"(?<!{letter})" if re.match(letter, word) else ""
        after = f"(?!{letter})" if re.match(letter, word[-1]) else ""
        return f"{before}{re.escape(word)}{after}"

    longest_first = "|".join(map(whole, sorted(says, key=len, reverse=True)))
    pattern = re.compile(f"{LINK}|{MAIL}|@?(?P<word>{longest_first})", re.IGNORECASE)
    return pattern.sub(
        lambda match: says.get((match["word"] or "").lower(), match[0]), unicodedata.normalize("NFC", text)
    )


PARTS = [
    *"aAbB1_@@+-.(*éÉßσΣжЖ小明い 😂", "e\u0301", " ", " ", "www.", ".tv", "@x.com", "https://a", "anna",
    "ANNA",
]  # fmt: skip
WORDS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("".join).filter(normalise)
LINES = st.lists(st.sampled_from(PARTS), max_size=20).map("".join)


@settings(max_examples=200, deadline=None)
@given(LINES, st.lists(WORDS, min_size=1, max_size=6), st.data())
@pytest.mark.slow
def test_replaced_words_equal_those_of_one_pattern(text: str, words: list[str], data: st.DataObject) -> None:
    shown = {word.strip().lower(): word for word in words}.values()
    says = {word: f"<{number}>" for number, word in enumerate(shown)}
    # Random lines rarely contain a random word.
    line = text + "".join(data.draw(st.lists(st.sampled_from([*words, " ", "@", "x", "明"]), max_size=8)))
    assert replaced(line, says) == by_pattern(line, says)


@pytest.mark.parametrize(("text", "words", "spoken"), [
    ("İnci, İNCİ", {"İnci": "Indji"}, "Indji, Indji"),
    ("Kelvin \u212aelvin", {"kelvin": "K"}, "K K"),
    ("Straẞe STRAßE", {"straße": "street"}, "street street"),
    ("ΟΔΟΣ οδος", {"Οδος": "road"}, "road road"), ("ſam", {"Sam": "S"}, "S"),
    ("ANNA", {"anna": "one", "Anna": "two"}, "two"),  # the later entry wins
])  # fmt: skip
def test_words_match_in_any_case(text: str, words: dict[str, str], spoken: str) -> None:
    assert replaced(text, words) == spoken


@pytest.mark.parametrize("pause", ["[pause:10s]", "<break time='10s'/>", "[pause]" * 5, "<speak>[pause:3s]"])
def test_pauses_of_a_chat_line_last_ten_seconds_at_most(pause: str) -> None:
    spoken = front("en").speakable(f"<speak>Hi{f'{pause}a' * 17}</speak>")
    assert [spoken.text.split(), sum(each.seconds for each in spoken.pauses)] == [["Hi", *"a" * 17], 10.0]
    assert spoken.pauses[0].after == 2


@pytest.mark.parametrize("stem", ["小" * 61, "a b" * 20], ids=["Chinese", "English"])
def test_replacement_by_a_full_list_takes_little_longer_than_its_compilation(stem: str) -> None:
    words = {f"{stem}{number:03}": "x" for number in range(500)}
    begun = time.process_time()
    re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
    compiled = time.process_time()
    replaced((stem * 99)[:4096], words)
    assert time.process_time() - compiled < 30 * (compiled - begun)


@pytest.mark.parametrize(("body", "text", "pauses"), rows(__file__, "ssml.jsonl"))
def test_ssml_has_its_text_and_pauses(body: str, text: str, pauses: list[tuple[int, float]]) -> None:
    spoken = front("en").speakable(f"<speak>{body}</speak>", SSML)
    assert spoken.text == text
    assert spoken.pauses == tuple(Pause(*pause) for pause in pauses)


@pytest.mark.parametrize(("body", "text", "ignored"), rows(__file__, "ssml_ignored.jsonl"))
def test_the_words_of_ignored_elements_are_spoken(body: str, text: str, ignored: list[str]) -> None:
    spoken = front("en").speakable(f"<speak>{body}</speak>", SSML)
    assert spoken.text == text
    tags = [change.before for change in spoken.changes if change.kind == "ssml"]
    assert len(tags) == len(ignored) and all(map(str.startswith, tags, ignored))


def test_ssml_in_chinese_and_with_a_namespace() -> None:
    body = "第<say-as interpret-as='digits'>12</say-as>，<say-as interpret-as='ordinal'>12</say-as>名"
    document = f'<?xml version="1.0"?><speak version="1.1" xmlns="http://www.w3.org/2001/10/synthesis">{body}</speak>'
    assert front("zh").speakable(document, SSML).text == "第一二，第十二名"


def test_pronunciations_hold_in_ssml() -> None:
    spoken = front("en").speakable("<speak>anna<break/>anna</speak>", SSML, {"anna": "Ah-na"})
    assert (spoken.text, spoken.pauses) == ("Ah-na Ah-na", (Pause(5, 0.4),))


@pytest.mark.parametrize(("document", "message"), rows(__file__, "ssml_refused.jsonl"))
def test_invalid_ssml_is_refused(document: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^text: as SSML, ") as caught:
        ssml.parse(document)
        front("en").speakable(document, SSML)
    assert message in str(caught.value)


def test_deeply_nested_ssml_is_read() -> None:
    document = f"<speak>{'<s>' * 20_000}a{'</s>' * 20_000}</speak>"
    assert front("en").speakable(document, SSML).text == "a."


TAGS = [
    "<speak>", "</speak>", "<break/>", "<break time='", "'/>", "<sub alias='x'>", "</sub>", "<s>", "</s>",
    "&lt;",
]  # fmt: skip


@given(st.lists(st.one_of(st.sampled_from([*TAGS, "hi", " 5 ", "😂"]), st.text(max_size=4)), max_size=12))
def test_every_document_is_read_or_refused(pieces: list[str]) -> None:
    try:
        spoken = front("en").speakable(f"<speak>{''.join(pieces)}</speak>", SSML)
    except InvalidRequest as refused:
        assert refused.field == "text"
        return
    assert isinstance(spoken, SpokenText) and normalise(spoken.text) == spoken.text
    places = [pause.after for pause in spoken.pauses]
    assert places == sorted(set(places)) and all(0 < place <= len(spoken.text) for place in places)
    assert all(spoken.text[:place].strip() for place in places)

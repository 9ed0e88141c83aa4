"""Tags that switch a voice or its style: valid places, spoken text, and no lost word."""

import itertools
import re

import pytest

from appliance.request import AT_FIRST, Change, Handling, Request, Run, Segmentation, SpokenText, Switch
from appliance.text.styles import Voiced
from tests.harness.rows import rows
from tests.text.test_chat import front

STYLES = ("happy", "very-sad", "9")


def with_tags(
    text: str, handling: Handling = Handling.CHAT, styles: tuple[str, ...] = STYLES, **words: str
) -> SpokenText:
    return front("en").speakable(text, handling, words, styles=styles)


def runs(spoken: SpokenText) -> list[tuple[str, str]]:
    request = Request(spoken.text, "ann", 7, 0, 2.0, Segmentation.UPSTREAM, switches=spoken.switches)
    return [(run.speaker[1], run.text.strip()) for run in request.runs]


@pytest.mark.parametrize(("text", "expected"), rows(__file__, "styles.jsonl"))
def test_a_tag_switches_the_style_and_is_not_spoken(text: str, expected: list[list[str]]) -> None:
    spoken = with_tags(text)
    assert runs(spoken) == [*map(tuple, expected)]
    tags = [change.before for change in spoken.changes if change.kind == "style"]
    assert tags and all(tag in text for tag in tags) and "happy" not in spoken.text.lower()


@pytest.mark.parametrize("text", [
    "[sad] there [party] you [doge]", "[b]bold[/b] [1] [pause] [laugh]",
    "(happy) *happy* 【happy】 <happy> [/happy] [happy hour] happy",
    "[happy](https://a.example) link",
])  # fmt: skip
def test_other_brackets_are_read_as_in_a_voice_without_styles(text: str) -> None:
    assert with_tags(text) == front("en").speakable(text)


def test_a_voice_without_styles_has_no_tags() -> None:
    for text in ("[happy] there", "[neutral] there"):
        assert with_tags(text, styles=()) == front("en").speakable(text)
        assert [change.kind for change in with_tags(text, styles=()).changes] == ["direction"]


def test_a_style_may_have_the_name_of_another_tag() -> None:
    spoken = with_tags("[pause] a [b] b [laugh] c [5] d", styles=("pause", "b", "laugh", "5"))
    assert runs(spoken) == [("pause", "a"), ("b", "b"), ("laugh", "c"), ("5", "d")]
    assert spoken.pauses == spoken.directions == ()


def test_tags_switch_in_ssml_but_not_in_verbatim_text() -> None:
    assert with_tags("[happy] a", Handling.VERBATIM) == front("en").speakable("[happy] a", Handling.VERBATIM)
    spoken = with_tags('<speak>a <break time="1s"/> [happy] b</speak>', Handling.SSML)
    assert runs(spoken) == [("", "a"), ("happy", "b")] and [p.seconds for p in spoken.pauses] == [1.0]


def test_a_pronunciation_of_the_style_s_name_leaves_the_tag() -> None:
    spoken = with_tags("[happy] so happy", happy="glad")
    assert (spoken.text, runs(spoken)) == ("so glad", [("happy", "so glad")])


def test_a_tag_in_dropped_text_switches_nothing() -> None:
    spoken = with_tags("<think>[happy] hm</think> a `[very-sad]` b")
    assert runs(spoken)[0] == ("", "a") and "hm" not in spoken.text


def test_no_word_is_lost_wherever_tags_stand() -> None:
    words = ["one", "two,", "three.", "four!", "five"]
    for where in itertools.product((0, 1), repeat=len(words) + 1):
        parts = [f"{'[happy] ' if tag else ''}{word}" for tag, word in zip(where, [*words, ""], strict=True)]
        spoken = with_tags(" ".join(parts))
        assert "".join(filter(str.isalnum, spoken.text)) == "onetwothreefourfive", parts
        assert "".join(text for _, text in runs(spoken)).replace(" ", "") == spoken.text.replace(" ", "")


OTHERS = {"": Voiced({"bo": "own"}, STYLES), "berta": Voiced({"bo": "Beau"}, ("calm",)), "o_1": Voiced({})}


def speakers(
    text: str, handling: Handling = Handling.CHAT, style: str = "happy", begin: Switch = AT_FIRST
) -> list[tuple[str, str, str]]:
    own = OTHERS[begin.voice]
    spoken = front("en").speakable(text, handling, own.words, "", own.styles, OTHERS.get, begin.voice)
    switches = (begin, *spoken.switches)
    request = Request(spoken.text, "ann", 7, 0, 2.0, Segmentation.UPSTREAM, style=style, switches=switches)
    return [(*run.speaker, run.text.strip()) for run in request.runs]


@pytest.mark.parametrize(("text", "expected"), rows(__file__, "voices.jsonl"))
def test_a_voice_tag_switches_voice_styles_and_pronunciations(text: str, expected: list[list[str]]) -> None:
    spoken = speakers(text)
    assert [[*run[:2]] for run in spoken] == [run[:2] for run in expected]
    assert [re.sub(r"\W+", " ", run[2]).strip() for run in spoken] == [
        re.sub(r"\W+", " ", run[2]).strip() for run in expected
    ]


def test_an_empty_voice_tag_returns_to_the_request_s_voice() -> None:
    begin = Switch(0, "calm", "berta")
    spoken = speakers("bo [voice] bo [happy] c", style="", begin=begin)
    assert spoken == [("berta", "calm", "Beau"), ("ann", "", "own"), ("ann", "happy", "c")]


def test_voice_elements_of_ssml_nest() -> None:
    text = (
        '<speak>a <voice name="Berta">b <voice name="o_1">c</voice> d<break time="1s"/></voice> e '
        '<voice name="nobody">f</voice> <voice gender="female">g</voice></speak>'
    )
    of_berta = [("berta", "", "b"), ("o_1", "", "c"), ("berta", "", "d")]
    assert speakers(text, Handling.SSML) == [("ann", "happy", "a"), *of_berta, ("ann", "happy", "e f g")]
    assert [run[0] for run in speakers("a [voice:berta] b", Handling.VERBATIM)] == ["ann"]


def test_no_word_is_lost_wherever_voices_change() -> None:
    words, tags = ["one", "two,", "three.", "four!"], ("", "[voice:berta] ", "[voice] ")
    for where in itertools.product(tags, repeat=len(words) + 1):
        spoken = speakers(" ".join(f"{tag}{word}" for tag, word in zip(where, [*words, ""], strict=True)))
        assert re.sub(r"\W", "", "".join(run[2] for run in spoken)) == "onetwothreefour", where


def test_the_change_names_the_tag() -> None:
    assert Change("style", "[Happy]", "") in with_tags("[Happy] a").changes
    assert with_tags("[Happy] a").switches == (Switch(0, "happy"),)
    assert with_tags("a [neutral] b").switches == (Switch(1, ""),)
    assert [Run(0, "a", ("ann", "")), Run(1, " b", ("ann", "happy"))] == Request(
        "a b", "ann", 7, 0, 2.0, Segmentation.UPSTREAM, switches=(Switch(1, "happy"),)
    ).runs

"""Characters that cleaning removes, and characters that it must not change."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import InvalidRequest
from appliance.text.normalise import clean, normalise
from tests.oracle.golden import generate


def test_ordinary_lines_pass_unchanged():
    for line in generate.lines():
        if line == " ".join(line.split()) and unicodedata.is_normalized("NFC", line):
            assert normalise(line) == line


@pytest.mark.parametrize(("text", "cleaned"), [
    ("  a \t b\r\n c　d ", "a b c d"), ("e\u0301te\u0301", "été"), ("a\u200bb\u200dc\ufeffd", "abcd"),
    ("\u202eabc\u202c \u2066x\u2069", "abc x"), ("a\x00b\x1bc\x7f", "abc"),
    ("soft\u00adhyphen", "softhyphen"), ("❤\ufe0f", "❤"), ("a\udc80b", "ab"), ("a \u200b b", "a b"),
])  # fmt: skip
def test_invisible_characters_are_removed(text, cleaned):
    assert normalise(text) == cleaned


@given(st.text())
def test_cleaning_twice_changes_nothing_and_the_result_can_be_encoded(text):
    once = normalise(text)
    assert normalise(once) == once
    once.encode()


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b\u200d", "\x00\x01", "　"])
def test_a_text_without_visible_characters_is_refused(text):
    with pytest.raises(InvalidRequest, match=r"^text: is empty"):
        clean(text, limit_characters=100)


def test_a_text_that_is_too_long_is_refused_with_the_limit():
    assert clean("x" * 100, limit_characters=100) == "x" * 100
    with pytest.raises(InvalidRequest, match=r"^transcript: has 101 characters, at most 100") as caught:
        clean("x" * 101, limit_characters=100, field="transcript")
    assert caught.value.field == "transcript"

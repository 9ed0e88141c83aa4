"""Spoken words find their places in what was written."""

from __future__ import annotations

import pytest

from appliance.audio.captions import written_spans
from appliance.audio.words import Word, split
from appliance.text.normalise import normalise


def places(written: str, spoken: str) -> list[tuple[str, str]]:
    """(spoken word, its place in the text) of each."""
    words = split(spoken)
    spans = written_spans(written, [Word(word, 0.0, 0.0, 0) for word in words])
    assert spans == sorted(spans) and all(0 <= begin <= end <= len(written) for begin, end in spans)
    return [(word, written[begin:end]) for word, (begin, end) in zip(words, spans, strict=True)]


@pytest.mark.parametrize(("written", "spoken", "expected"), [
    ("Hi, chat!", "hi, chat.", [("hi,", "Hi,"), ("chat.", "chat!")]),
    ("[happy] hello", "hello", [("hello", "hello")]),
    ("a $5 hat", "a five dollar hat", [("a", "a"), ("five", "$5"), ("dollar", "$5"), ("hat", "hat")]),
    ("see https://x.y/z", "see link", [("see", "see"), ("link", "https://x.y/z")]),
    ("4 me 2", "for me too", [("for", "4"), ("me", "me"), ("too", "2")]),
    ("😂", "tears of joy", [("tears", "😂"), ("of", "😂"), ("joy", "😂")]),
    ("25 twenty", "twenty five twenty", [("twenty", "25"), ("five", "25"), ("twenty", "twenty")]),
    ("有5个", "有五个", [("有", "有"), ("五", "5"), ("个", "个")]),
    ("", "x", [("x", "")]),
])  # fmt: skip
def test_places(written: str, spoken: str, expected: list[tuple[str, str]]) -> None:
    assert places(written, spoken) == expected


def test_a_text_that_is_spoken_as_written_is_marked_word_by_word() -> None:
    text = normalise("a rose is a rose is a rose, is a rose. " * 40)
    assert all(spoken == written for spoken, written in places(text, text))


def test_the_words_after_a_rewritten_place_are_found_again() -> None:
    """Also where nearly all is rewritten, and the words repeat."""
    written = " ".join(f"{n} times" for n in range(100, 160))
    spoken = " ".join(f"one hundred and {n} times" for n in range(100, 160))
    assert [place for word, place in places(written, spoken) if word == "times"] == ["times"] * 60

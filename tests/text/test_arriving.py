"""Pieces of a text that is being written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.text.pieces.arriving import TextSplitter
from appliance.text.pieces.split import Budgets

BUDGETS = Budgets(10, 40, 80)


def pieces(parts: list[str]) -> list[str]:
    written = TextSplitter(BUDGETS)
    found = [piece for part in parts for piece in written.add(part)]
    return [*found, rest] if (rest := written.rest()) else found


@pytest.mark.parametrize(("parts", "expected", "by_letters"), [
    (["Thanks for the raid, ", "everyone. How are you?"], ["Thanks for the raid,", "everyone. How are you?"],
     ["Thanks for", "the raid, everyone.", "How are you?"]),
    (["Hi. ", "Welcome back. "], ["Hi. Welcome back."], ["Hi. Welcome", "back."]),
    (["So many words and no clause at all ends here"], ["So many words and no clause at all ends", "here"],
     ["So many words", "and no clause at all ends here"]),
    (["It was 3.", "14, they say."], ["It was 3.14,", "they say."], None),
    (["大家好，", "欢迎来到直播间。", "今天玩什么？"], ["大家好，", "欢迎来到直播间。", "今天玩什么？"],
     None),
    (["see https://a.example/b?c=d, it is good"], ["see https://a.example/b?c=d,", "it is good"], None),
    (["   "], [], None),
    (["We meet at 7:05", " pm today, do not be late, my dear friends."],
     ["We meet at", "7:05 pm today, do not be late, my dear friends."], None),
    (["Hello <emphasis level=", "'strong'>dear</emphasis> friends, hi."],
     ["Hello <emphasis level='strong'>dear", "</emphasis> friends, hi."], None),
    (["Oh my dear *wav", "es at everybody* hi there, all."],
     ["Oh my dear", "*waves at everybody* hi there, all."], None),
    (["<think>It is long, much longer. Than any budget. ", "By far, I think.</think>Hello there, chat."],
     ["<think>It is long, much longer. Than any budget. By far, I think.</think>Hello there, chat."], None),
])  # fmt: skip
def test_clauses_are_given_away_when_they_are_complete(
    parts: list[str], expected: list[str], by_letters: list[str] | None
) -> None:
    """`by_letters`: where each comes alone; None: the same."""
    assert pieces(parts) == expected
    assert pieces(list("".join(parts))) == (expected if by_letters is None else by_letters)


def test_later_pieces_are_sentences() -> None:
    text = (
        "First of all, hello there, friend, and welcome. Then some more, and more, and yet more of it. End."
    )
    assert pieces([text]) == [
        "First of all,",
        "hello there, friend, and welcome.",
        "Then some more, and more, and yet more of it.",
        "End.",
    ]


def test_a_clause_is_complete_with_the_space_after_it() -> None:
    written = TextSplitter(BUDGETS)
    assert written.add("Certainly,") == []
    assert written.add(" ") == ["Certainly,"]


def test_the_next_utterance_begins_anew() -> None:
    written = TextSplitter(BUDGETS)
    assert written.add("One two three, four") == ["One two three,"]
    assert written.rest() == "four"
    assert written.rest() == ""
    assert written.add("Five six seven, eight") == ["Five six seven,"]


@given(st.lists(st.text(alphabet="ab ,.!?，。好1", max_size=30), max_size=12))
def test_nothing_is_lost_however_it_is_sent(parts: list[str]) -> None:
    found = pieces(parts)
    assert "".join("".join(found).split()) == "".join("".join(parts).split())
    assert all(piece == piece.strip() and piece for piece in found)

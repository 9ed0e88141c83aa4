"""Pieces of a text whose writing goes on."""

import itertools
import random
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.text.languages import LANGUAGES
from appliance.text.pieces.arriving import TextSplitter
from appliance.text.pieces.split import Budgets, cut_to_fit, finished, split_low_latency
from tests.harness.rows import rows
from tests.text.languages.test_lines import ROWS, front

BUDGETS = Budgets(10, 40, 80)
CHAT = [(row["language"], row["text"]) for row in rows(__file__, "chat_lines.jsonl")]
LINES = [*((code, text) for code, text, _ in ROWS), *CHAT]
CODE = f"```\n{'x = 1. It is so. ' * 20}\n```"
KINDS = "a.|. |...|1|1,|1 |1:|$1.|a|A. |LOL |好|你好，|二|สวัสดี|مرحبا |नमस्ते |😀|a@|/a|<think>|```|hi, it is. "


def pieces(parts: list[str], budgets: Budgets = BUDGETS, languages: tuple[str, ...] = ()) -> list[str]:
    written = TextSplitter(budgets, languages)
    cut = [piece for part in parts for piece in written.add(part)]
    return [*cut, rest] if (rest := written.rest()) else cut


@pytest.mark.parametrize(("parts", "expected", "by_letters"), rows(__file__, "arriving.jsonl"))
def test_complete_clauses_are_returned(
    parts: list[str], expected: list[str], by_letters: list[str] | None
) -> None:
    """`by_letters`: expected clauses if letters come singly; None: the same clauses."""
    assert pieces(parts) == expected
    assert pieces(list("".join(parts))) == (expected if by_letters is None else by_letters)


def test_the_next_utterance_starts_without_the_last_one_s_text() -> None:
    written = TextSplitter(BUDGETS)
    assert written.add("One two three, four") == ["One two three,"]
    assert [written.rest(), written.rest()] == ["four", ""]
    assert written.add("Five six seven, eight") == ["Five six seven,"]
    written.take(f"<think>{'a' * 9_999}</think>{'b' * 4_000}")
    assert not written.is_too_long


@given(st.lists(st.text(alphabet="ab ,.!?，。好1", max_size=30), max_size=12))
def test_no_text_is_lost_whatever_its_parts_are(parts: list[str]) -> None:
    cut = pieces(parts)
    assert "".join("".join(cut).split()) == "".join("".join(parts).split())
    assert all(piece == piece.strip() and piece for piece in cut)


@pytest.mark.once
@pytest.mark.parametrize("code", LANGUAGES)
def test_a_stream_has_the_same_words_as_the_whole_text(code: str) -> None:
    lines, chance = [text for of, text in LINES if of == code], random.Random(7)
    differ = []
    for _ in range(40):
        text = ("。" if code in ("ja", "zh") else " ").join(chance.choices(lines, k=chance.randint(1, 5)))
        ends = [*itertools.accumulate(chance.randint(1, 20) for _ in text)]
        parts = [text[begin:end] for begin, end in itertools.pairwise([0, *ends])]
        spoken = [
            re.sub(r"[\W_]+", "", "".join(front(code).speakable(piece).text for piece in whole).casefold())
            for whole in ([text], pieces(parts, Budgets(15, 60, 240), (code,)))
        ]
        differ += [text] if spoken[0] != spoken[1] else []
    assert len(differ) <= 1, differ  # 2 to 10 if the cuts ignore how the text is read


@pytest.mark.once
@pytest.mark.parametrize("unit", KINDS.split("|"))
@pytest.mark.slow
def test_four_times_the_text_takes_four_times_as_long(unit: str) -> None:
    """The square would be 16 times."""

    def took(work: Callable[[str], object], size: int) -> float:
        begun = time.thread_time()
        work((unit * size)[:size])
        return max(time.thread_time() - begun, 1e-3)

    works: list[Callable[[str], object]] = [
        *(finished, front("en").speakable, lambda text: split_low_latency(text, BUDGETS)),
        *(lambda text: cut_to_fit(text, 60), lambda text: pieces([text])),
        lambda text: pieces([text[place : place + 4] for place in range(0, len(text), 4)]),
    ]
    for number, work in enumerate(works):
        assert min(took(work, 2_000) / took(work, 500) for _ in range(2)) < 9, number

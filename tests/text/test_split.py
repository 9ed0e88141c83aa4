"""Upstream's chunks by golden file and directly; the properties of the low-latency split."""

import itertools
import json
import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.text.pieces.split import (
    GROWTH,
    Budgets,
    Rank,
    breaks,
    chunk_text,
    cut_to_fit,
    split_low_latency,
)
from tests.harness.rows import rows
from tests.oracle import upstream
from tests.oracle.golden import generate

WHOLE = re.compile(r"(?:https?://|www\.)[!-~]+|\d+(?:[.,:]\d+)*")
WORDS = st.sampled_from(
    [
        *("hello", "world,", "stop.", "really?!", "Dr. Who", "e.g.", "wait...", "(so)", '"quoted."'),
        *("你好", "，", "今天天气真好。", "对；", "哈哈哈哈哈哈哈哈哈哈哈哈", "——", "嗯……", "「好」"),
        *("3.14", "1,234,567.89", "12:30", "10000000000", "https://example.com/a,b.c?d=1;2", "www.a.b/c!"),
        *("😀", "x", "-", "A" * 70, "e\u0301" * 9, "!" * 40),
    ]
)
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from(["", " ", " ", "  ", "\n"])), min_size=1, max_size=60).map(
    lambda parts: "".join(word + gap for word, gap in parts)
)
BUDGETS = st.tuples(
    st.integers(4, 30), st.integers(0, 60), st.integers(0, 300), st.sampled_from([0, 30, 200])
).map(lambda n: Budgets(n[0], n[0] + n[1], n[0] + n[1] + n[2], n[3]))
AT_ENGLISH_PACE = Budgets.at_pace(15.0, minimum=10, largest=200)


def size(text: str) -> int:
    return len(text.encode())


def test_chunks_of_a_hundred_lines_equal_the_golden_file():
    for row in json.loads(generate.GOLDEN_LINES.read_text("utf-8"))["lines"]:
        for budget, chunks in row["chunks"].items():
            assert chunk_text(row["line"], int(budget)) == chunks, row["line"]


@pytest.mark.torch
@given(st.one_of(TEXTS, st.text()), st.integers(-5, 300))
@example("   ", 10)
@example("", 10)
def test_chunks_of_any_text_equal_upstreams(text, budget):
    assert chunk_text(text, budget) == upstream.chunk_text(text, budget)


@given(st.one_of(TEXTS, st.text()), BUDGETS)
def test_no_text_is_lost(text, budgets):
    pieces = split_low_latency(text, budgets)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(piece == piece.strip() != "" for piece in pieces)


@given(TEXTS, BUDGETS)
def test_pieces_stay_within_growing_budgets(text, budgets):
    budget, pieces = budgets.first, split_low_latency(text, budgets)
    if len(pieces) == 1 and size(text.strip()) <= budgets.largest:
        return  # a cut is not worth it: see the test below
    for piece in pieces:
        if size(piece) > budget:
            # Only an uncuttable unit, with the marks that cling to it, exceeds a budget.
            assert WHOLE.search(piece) or re.search(r"Dr\.|e\.g\.|é", piece), piece
            words = re.sub(r"(?:Dr|e\.g)\.\s+", "", piece).split()
            assert len(words) <= 2, piece
        budget = min(int(budget * GROWTH), budgets.largest)


@given(TEXTS, BUDGETS)
def test_numbers_and_urls_stay_whole(text, budgets):
    pieces = split_low_latency(text, budgets)
    place, cuts = 0, set()
    for piece in pieces:
        place = text.index(piece, place) + len(piece)
        cuts.add(place)
    for match in WHOLE.finditer(text):
        assert not cuts & set(range(match.start() + 1, match.end())), match.group()


@given(TEXTS)
def test_no_piece_of_several_is_too_short_if_words_are_short(text):
    words = [word for word in text.split() if size(word) <= 15]
    pieces = split_low_latency(" ".join(words), AT_ENGLISH_PACE)
    if len(pieces) > 1:
        assert min(size(piece) for piece in pieces) >= AT_ENGLISH_PACE.minimum


@pytest.mark.parametrize(("text", "pieces"), rows(__file__, "first_pieces.jsonl"))
def test_first_pieces_are_the_shortest_clauses_that_are_long_enough(text, pieces):
    budgets = Budgets(15, 60, 200) if "they say" not in text else Budgets(9, 60, 200)
    assert split_low_latency(text, budgets) == pieces


def test_a_text_is_cut_if_its_first_sound_comes_a_third_sooner():
    text = "Thanks for the follow, and welcome to the stream."
    cut, whole = ["Thanks for the follow,", "and welcome to the stream."], [text]
    assert (size(cut[0]), size(text)) == (22, 49)
    for reference, pieces in ((0, cut), (31, cut), (33, whole), (200, whole)):
        # A reference of 32 bytes gives (32 + 22) / (32 + 49) = 2 / 3.
        assert split_low_latency(text, Budgets(15, 60, 200, reference)) == pieces, reference
    # A text that exceeds one piece is cut at any cost, and so is the begin of a long text.
    assert len(split_low_latency(text, Budgets(15, 40, 40, 200))) == 2
    assert split_low_latency(text * 9, Budgets(15, 60, 900, 200))[0] == cut[0]


@given(TEXTS, BUDGETS)
def test_longer_references_never_make_more_pieces(text, budgets):
    dearer = replace(budgets, reference=2 * budgets.reference + 50)
    assert len(split_low_latency(text, dearer)) <= len(split_low_latency(text, budgets))


@pytest.mark.parametrize("number", ["1 234 567", "2024/12/31", "138-0013-8000", "三千五百二十八"])
def test_numbers_of_several_groups_stay_whole(number):
    pieces = split_low_latency(f"so many {number} and so on", Budgets(4, 13, 13))
    assert any(number in piece for piece in pieces), pieces


@pytest.mark.parametrize(("sentence", "ends"), [(20, "."), (19, ",")])
def test_a_sentence_of_half_a_piece_is_preferred_to_a_longer_clause(sentence, ends):
    """Budgets are 20 bytes, then 40: a sentence of half a piece is preferred to a longer clause."""
    first, then = "a" * 19 + ",", "b" * (sentence - 1) + "."
    text = f"{first} {then} {'c' * 12}, {'d' * 60}"
    assert split_low_latency(text, Budgets(5, 20, 40))[1][-1] == ends


def test_later_pieces_end_with_sentences_rather_than_clauses():
    text = "This is how it starts. " + "One, two, three and four, five. Six, " * 6
    later = split_low_latency(text, AT_ENGLISH_PACE)[1:-1]
    assert later
    assert all(piece.endswith(".") for piece in later)


def test_budgets_follow_the_pace():
    budgets = Budgets.at_pace(15.0, minimum=10, largest=200)
    assert (budgets.minimum, budgets.first, budgets.largest) == (15, 60, 200)
    assert Budgets.at_pace(5.0, minimum=10, largest=200).minimum == 10
    assert Budgets.at_pace(15.0, minimum=10, largest=8) == Budgets(8, 8, 8)
    assert Budgets.at_pace(15.0, minimum=10, largest=-3) == Budgets(1, 1, 1)
    assert Budgets.at_pace(15.0, minimum=10, largest=200, reference=70).reference == 70
    with pytest.raises(ValueError, match="minimum ≤ first ≤ largest, not 20, 10, 30"):
        Budgets(20, 10, 30)


def sentences(text: str, *languages: str) -> list[str]:
    pieces, start = [], 0
    for cut in breaks(text, languages):
        if cut.rank is Rank.SENTENCE:
            pieces.append(text[start : cut.end])
            start = cut.next
    return [*pieces, text[start:]]


@pytest.mark.parametrize("parts", [
    ["यह एक वाक्य है।", "दूसरा॥", "तीसरा"], ["مرحبا؟", "نعم، صحيح۔", "لا"], ["Բարեւ։", "Լաւ"],
    ["ሰላም።", "እሺ፧", "አዎ"], ["សួស្តី។", "បាទ"], ["မင်္ဂလာပါ။", "ဟုတ်ကဲ့"], ["ཀ་ཁ།", "ག"],
    ["３．５です。", "はい！", "ええ"], ["¿Qué tal?", "¡Hola!", "Bien"], ["Что‽", "Да"],
])  # fmt: skip
def test_sentences_end_in_all_scripts(parts):
    assert sentences(" ".join(parts)) == parts


@pytest.mark.parametrize(("languages", "parts"), [
    (["de"], ["Am 3. Mai geht es los.", "Ja, z. B. heute.", "Dr. Müller ist da."]),
    (["en"], ["It is at 3.", "May I come?", "Mr. A. B. Smith e.g. likes No. 5.", "No.", "That is wrong."]),
    (["es"], ["No.", "Vamos a jugar.", "Sí"]), (["nl"], ["No.", "Dr. Who"]), ([], ["No.", "Dr. Who"]),
    (["ru"], ["А. С. Пушкин.", "Да"]), (["zh", "de"], ["Platz 3. Mai"]),
])  # fmt: skip
def test_abbreviations_and_ordinals_end_no_sentence(languages, parts):
    assert sentences(" ".join(parts), *languages) == parts


SYLLABLE = st.sampled_from(
    str.split("สวัสดี ครับ ทุก คน เกมส์ ใหม่ น้ำ และ เป็น क्ष त्रि विद्या र्थी श्री කො ကျ မြန် ខ្មែរ ê e\u0301 한 👍🏽 བོད་")
)
SYLLABLES = st.lists(SYLLABLE, min_size=1, max_size=60).map("".join)


@given(SYLLABLES, BUDGETS, st.integers(12, 90))
def test_no_cut_falls_before_a_mark_or_within_a_thai_syllable(text, budgets, most):
    for pieces in (split_low_latency(text, budgets), cut_to_fit(text, most)):
        assert "".join(pieces) == text
        for left, right in itertools.pairwise(pieces):
            assert unicodedata.category(right[0])[0] != "M" and right[0] not in "ะาำๅๆ🏽", (left, right)
            assert left[-1] not in "เแโใไ", (left, right)
            assert unicodedata.combining(left[-1]) != 9 or left[-1] == "်", (left, right)
    assert all(size(piece) <= most for piece in cut_to_fit(text, most))


def test_thai_is_cut_between_syllables():
    pieces = cut_to_fit("สวัสดีครับทุกคนวันนี้เราจะมาเล่นเกมใหม่กันนะครับ", 90)
    assert len(pieces) > 1 and all(
        piece[0] in "เแโใไ" or before[-1] in "ะำๆ" for before, piece in itertools.pairwise(pieces)
    )

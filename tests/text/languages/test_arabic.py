"""Arabic numbers and ordinals, against a table written by hand."""

from __future__ import annotations

import pytest

from appliance.text.languages.arabic import cardinal, clock, oblique, ordinal

CARDINALS = {
    **{0: "صفر", 1: "واحد", 2: "اثنان", 3: "ثلاثة", 8: "ثمانية", 10: "عشرة", 11: "أحد عشر", 12: "اثنا عشر"},
    **{13: "ثلاثة عشر", 19: "تسعة عشر", 20: "عشرون", 21: "واحد وعشرون", 45: "خمسة وأربعون"},
    **{99: "تسعة وتسعون", 100: "مئة", 101: "مئة وواحد", 115: "مئة وخمسة عشر", 200: "مئتان", 300: "ثلاثمئة"},
    **{342: "ثلاثمئة واثنان وأربعون", 1_000: "ألف", 1_001: "ألف وواحد", 2_000: "ألفان"},
    **{2_026: "ألفان وستة وعشرون", 3_000: "ثلاثة آلاف", 10_000: "عشرة آلاف", 11_000: "أحد عشر ألف"},
    **{103_000: "مئة وثلاثة آلاف", 200_000: "مئتا ألف", 1_000_000: "مليون", 2_000_000: "مليونان"},
    **{5_000_000: "خمسة ملايين", 1_234_567: "مليون ومئتان وأربعة وثلاثون ألف وخمسمئة وسبعة وستون"},
    **{4_000_000_000: "أربعة مليارات"},
}
COUNTED = {
    **{(3, "m"): "ثلاثة", (3, "f"): "ثلاث", (8, "f"): "ثماني", (10, "f"): "عشر", (11, "f"): "إحدى عشرة"},
    **{(12, "f"): "اثنتا عشرة", (13, "f"): "ثلاث عشرة", (28, "f"): "ثمان وعشرون", (105, "f"): "مئة وخمس"},
    **{(200, "m"): "مئتا", (2_000, "f"): "ألفا", (2_300, "m"): "ألفان وثلاثمئة"},
}
ORDINALS = {
    **{(1, ""): "الأول", (1, "f"): "الأولى", (2, "f"): "الثانية", (6, ""): "السادس", (10, "f"): "العاشرة"},
    **{(11, ""): "الحادي عشر", (11, "f"): "الحادية عشرة", (12, "f"): "الثانية عشرة"},
    **{(19, ""): "التاسع عشر", (20, ""): "العشرون", (21, "f"): "الحادية والعشرون"},
    **{(35, ""): "الخامس والثلاثون", (100, ""): "المئة"},
}


@pytest.mark.parametrize(("number", "words"), CARDINALS.items())
def test_a_number_in_words(number: int, words: str) -> None:
    assert cardinal(number) == words


@pytest.mark.parametrize(("counted", "words"), COUNTED.items())
def test_a_number_before_a_noun(counted: tuple[int, str], words: str) -> None:
    assert cardinal(*counted) == words


@pytest.mark.parametrize(("ordered", "words"), ORDINALS.items())
def test_an_ordinal_is_definite(ordered: tuple[int, str], words: str) -> None:
    assert ordinal(*ordered) == words


@pytest.mark.parametrize(("words", "after_a_preposition"), [
    ("عشرون ريال", "عشرين ريال"), ("ألفان وستة وعشرون", "ألفين وستة وعشرين"), ("مئتا شخص", "مئتي شخص"),
    ("اثنا عشر", "اثني عشر"), ("دولاران", "دولارين"),
    ("ثمان وعشرون دقيقة وعشر ثوان", "ثمان وعشرين دقيقة وعشر ثوان"),
    ("مليون وثلاثة", "مليون وثلاثة"),
])  # fmt: skip
def test_twos_and_tens_after_a_preposition(words: str, after_a_preposition: str) -> None:
    assert oblique(words) == after_a_preposition


@pytest.mark.parametrize(("hour", "minute", "words"), [
    (1, 0, "الواحدة"), (0, 30, "الثانية عشرة والنصف"), (7, 1, "السابعة ودقيقة"),
    (13, 10, "الثالثة عشرة وعشر دقائق"), (21, 45, "الحادية والعشرون وخمس وأربعون دقيقة"),
])  # fmt: skip
def test_a_time_of_day(hour: int, minute: int, words: str) -> None:
    assert clock(hour, minute, False) == words

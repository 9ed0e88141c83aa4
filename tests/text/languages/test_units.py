"""Units, decimals, groups of digits: no sign stays letters, no number holds a full stop or loses a part."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.text.languages import LANGUAGES
from tests.harness.rows import rows
from tests.text.languages.test_lines import front

pytestmark = pytest.mark.once

AMONG = dict(rows(__file__, "among.jsonl"))
"""A line of each language."""
LATIN = ("en", "de", "es", "fr", "it", "pt", "tr", "vi")
UNITS = (
    *str.split("km cm mm kg km/h m/s km/s MB/s GB/s Mb/s Mbit/s Gbit/s m² km² m³ ㎡ ㎢ V A W kW MW kWh mAh"),
    *str.split("Hz MHz GHz ms ¢ % °C °F ° ˚C ℃ ºC €/m² $/kg €/h Mbps Gbps m²/s kg/m² kWh/h"),
)


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_unit_after_a_number_becomes_words(code: str) -> None:
    assert set(AMONG) == set(LANGUAGES)
    points = "," if code in ("de", "es", "fr", "it", "pt", "ru", "tr", "vi") else "."
    bare = set(re.findall(r"\w+", AMONG[code]))
    for sign in UNITS:
        for number in ("1", "2", "65", f"2{points}5", "7 "):
            if (sign, number) == ("A", "7 "):
                continue  # not a unit but a word
            spoken = front(code).speakable(AMONG[code].format(f"{number}{sign}")).text
            words = set(re.findall(r"\w+", spoken)) - bare
            letters = {"m", "s", "h"} if code == "zh" else set(re.findall(r"\w+", sign)) - {"A"}
            assert not words & letters, spoken
            assert not re.search(r"[\d/^°¢%€$]", spoken), (sign, spoken)
            if code not in (*LATIN, "zh"):
                assert not re.search("[A-Za-z]", spoken), (sign, spoken)


NUMBERS = st.from_regex(r"[1-9][0-9]{0,3}(?:[.,:][0-9]{1,3}){1,4}[a-z]{0,2}", fullmatch=True)
GROUPS = st.from_regex(r"[1-9][0-9]{0,3}(?:[-., :/][0-9]{1,4}){1,4}", fullmatch=True)


@pytest.mark.parametrize("code", LANGUAGES)
@settings(max_examples=40)
@given(NUMBERS)
@pytest.mark.slow
def test_no_full_stop_stands_inside_a_number(code: str, number: str) -> None:
    spoken = front(code).speakable(AMONG[code].format(number)).text
    assert not re.search(r"[.。!?]", spoken), spoken


@pytest.mark.parametrize("code", LANGUAGES)
@settings(max_examples=30)
@given(GROUPS)
def test_every_group_of_digits_changes_the_words(code: str, groups: str) -> None:
    """Another number in its place changes the spoken text."""
    spoken = front(code).speakable(AMONG[code].format(groups)).text
    for match in re.finditer("[0-9]+", groups):
        last = match[0][-1]
        other = f"{groups[: match.end() - 1]}{int(last) % 9 + 1}{groups[match.end() :]}"
        assert front(code).speakable(AMONG[code].format(other)).text != spoken, (groups, other, spoken)

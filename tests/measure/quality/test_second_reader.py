"""The front end and wetext's grammars read the same Chinese numbers, dates and units."""

import re
from collections.abc import Callable

import pytest

from tests.harness.rows import rows
from tests.text.test_chat import front

# wetext is installed in the workshop.
pytestmark = [pytest.mark.torch, pytest.mark.judges, pytest.mark.slow]

NUMBERS = [
    *(*range(23), 55, 99, 100, 101, 109, 110, 111, 119, 120, 200, 202, 220, 222, 999, 1_000, 1_001, 1_010),
    *(1_100, 2_000, 2_002, 2_222, 9_999, 10_000, 10_001, 10_010, 10_100, 20_000, 22_222, 100_000, 200_000),
    *(1_000_000, 20_000_000, 100_000_000, 123_456_789, 200_000_000, 1_000_000_000),
]
COUNTED = (
    *("一共{}人", "养了{}只猫", "第{}集", "第{}名", "涨了{}%", "下降了{}.5%", "卖{}元", "卖{}.25元"),
    *("花了￥{}.50", "花了€{}.50", "花了${}", "比分{}:2", "气温{}℃", "气温-{}℃", "得了-{}分", "重{}kg"),
    *("跑了{}km", "速度{}km/h", "长{}m", "身高{}cm", "距离{}米", "喝了{}ml", "等了{}分钟", "过了{}天"),
)
DATED = ("{}年{}月{}日生", "生于{}-{:02}-{:02}", "生于{}/{}/{}")
DATES = [(y, m, d) for y in (1949, 2000, 2010, 2026) for m, d in ((1, 1), (2, 29), (10, 2), (12, 31))]
LINES = [
    *(line.format(number) for line in COUNTED for number in NUMBERS),
    *(line.format(*date) for line in DATED for date in DATES),
    *(f"{hour}:{minute:02}开播" for hour in (1, 2, 9, 12, 20, 23) for minute in (0, 1, 10, 22, 30, 59)),
    *(f"{part}/{whole}的人" for part in range(1, 6) for whole in range(part + 1, 12)),
    *(f"等{least}{sign}{most}分钟" for least, most in ((1, 2), (2, 3), (10, 20)) for sign in "~-"),
    *("电话13812345678", "电话010-12345678", "电话400-800-8888"),
]
TASTES = {
    "两": "二",  # 200 is either, and so is 2 before a measure
    "幺": "一",  # digits of telephone numbers, as people dictate them
    "公斤": "千克",
    "零下": "负",  # of temperatures
    "点半": "点三十分",
    "百分之百": "百分之一百",
    "每小时(.+)公里": r"\1公里每小时",
}
"""Pairs of ways to say the same."""


@pytest.fixture(scope="module")
def theirs() -> Callable[[str], str]:
    wetext = pytest.importorskip("wetext", reason="it is not installed (scripts/requirements/quality.txt)")
    normalize: Callable[[str], str] = wetext.Normalizer(lang="zh").normalize
    return normalize


def ours(line: str) -> str:
    return front("zh").speakable(line).text


def alike(spoken: str, tastes: dict[str, str]) -> str:
    """Drop marks, and replace each taste by the other."""
    spoken = re.sub(r"[\W_]", "", spoken)
    for one, other in tastes.items():
        spoken = re.sub(one, other, spoken)
    return spoken


def test_both_read_a_line_alike(theirs: Callable[[str], str]) -> None:
    read = {line: (ours(line), theirs(line)) for line in dict.fromkeys(LINES)}

    def differ(tastes: dict[str, str]) -> dict[str, tuple[str, str]]:
        return {line: pair for line, pair in read.items() if len({alike(one, tastes) for one in pair}) > 1}

    assert len(read) > 1_500 and differ(TASTES) == {}
    for taste in TASTES:
        assert differ({one: other for one, other in TASTES.items() if one != taste}), f"{taste} is of no use"


@pytest.mark.parametrize(("line", "right", "other", "why"), rows(__file__, "otherwise.jsonl"))
def test_a_person_has_judged_the_differences(
    theirs: Callable[[str], str], line: str, right: str, other: str, why: str
) -> None:
    assert (ours(line), theirs(line)) == (right, other), f"ours is right: {why}"

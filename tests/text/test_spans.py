"""Nothing of a chat line is lost: properties over random lines, judged without the front end's own tables."""

import random
import re
import string
from collections import Counter
from collections.abc import Iterator

import pytest

from appliance.config import TextConfig
from appliance.contract.tokens import Vocabulary
from appliance.request import Handling, Pause, SpokenText
from appliance.text.chat import rewrite
from appliance.text.sayable import FrontEnd
from tests.text.test_chat import BOTH, chinese_too, front

LINES = 1_500
WORDS = str.split(
    "hello world nice game boss level the a of I you what stream chat don't café GG LOL XP KFC III XIII "
    "XXXL AAA x3 8p XO PM SHOUTING sooooo hahahahaha T-shirt and/or AC/DC iPhone15 RTX4090 0xFFFF R2-D2 "
    "PM2.5 wx_cat88 user_name_9"
)
HAN = str.split("主播 等级 房间号 今天 涨粉 哈哈哈哈哈 考了 打赏 个赞 年 第 元 好 的人 三三三三 报警")
NUMBERS = str.split(
    "88 666 8888 233 110 12306 1,234 1 000 3.5 0.5x 600s 45m 1h30m 100Mbps 50% 50%-60% $20-$30 $5.3 "
    "€1.200,50 12,5 kg 5' 6'2 2024-2025 7/12 50/50 3:2 12:00:45 5:30pm 10.0.0.1 555-0134 "
    "978-3-16-148410-0 v2.0.1 #1 ① Ⅲ 5±1 10^6 1️⃣ 007 -5°C 3日-5日 86年"
)
SIGNS = [
    *"<>&+=%@#/|^~.,!?;:()[]{}\"'-…。，！😂\u200b\n",
    *str.split(
        "<br> </b> <b> ** * _ ~~ ` :) XD <3 :catJAM: [doge] [laugh] *waves* (sighs) @anna_9 #GG 👍🏽 <think>"
    ),
    *("https://a.example/x?y=1", "a.b@c.de", "- ", "1. ", "### "),
]
GLUE = [" ", " ", " ", " ", "", "-", "\n"]


def random_line(source: random.Random) -> str:
    parts = []
    for _ in range(source.randrange(1, 9)):
        drawn = [str(source.randrange(10 ** source.randrange(1, 8)))]
        parts.append(source.choice(source.choice((WORDS, WORDS, HAN, NUMBERS, SIGNS, drawn))))
    return "".join(part + source.choice(GLUE) for part in parts)


def lines() -> list[str]:
    source = random.Random(20261125)
    return [random_line(source) for _ in range(LINES)]


@pytest.fixture(scope="module", params=["en", "zh"])
def spoken(request: pytest.FixtureRequest) -> Iterator[list[tuple[str, SpokenText]]]:
    """Random lines with their spoken forms; every change is written out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "MOST_CHARACTERS", 1_000)
        yield [(line, front(request.param).speakable(line)) for line in lines()]


def letters(text: str) -> Counter[str]:
    return Counter(c for c in text.lower() if c.isalnum())


def test_no_letter_or_digit_is_lost_silently(spoken: list[tuple[str, SpokenText]]) -> None:
    for line, result in spoken:
        named: Counter[str] = Counter()
        for change in result.changes:
            named += letters(change.before)
        missing = letters(line) - letters(result.text) - named
        assert not missing, (line, result)
        digits = Counter(c for c in line if c in string.digits)
        assert not digits - named, (line, result)


def test_no_two_words_run_together(spoken: list[tuple[str, SpokenText]]) -> None:
    word = re.compile("[A-Za-z]+")
    for line, result in spoken:
        words = set(word.findall(line.lower().replace("é", "e").replace("\u200b", "")))
        for change in result.changes:
            words |= set(word.findall(change.after.lower().replace("é", "e")))
        unknown = set(word.findall(result.text.lower())) - words
        assert not unknown, (line, result, unknown)


def test_no_html_tag_is_spoken(spoken: list[tuple[str, SpokenText]]) -> None:
    for line, result in spoken:
        if "<br>" in line:
            assert not re.search(r"\bbr\b", result.text), (line, result)


SMALL = str.split(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
TENS = str.split("- - twenty thirty forty fifty sixty seventy eighty ninety")
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}


def number_of(words: str) -> int:
    total = part = 0
    for word in words.replace("-", " ").split():
        if word == "hundred":
            part *= 100
        elif word in SCALES:
            total, part = total + part * SCALES[word], 0
        else:
            part += SMALL.index(word) if word in SMALL else 10 * TENS.index(word)
    return total + part


def number_of_chinese(words: str) -> int:
    """The number that Chinese words say, as a cardinal or digit by digit."""
    digits = {character: n for n, character in enumerate("零一二三四五六七八九")} | {"两": 2, "幺": 1}
    if all(c in digits for c in words):
        return int("".join(str(digits[c]) for c in words))
    total = group = digit = 0
    for c in words:
        if c in digits:
            digit = digits[c]
        elif c in "十百千":
            group, digit = group + (digit or 1) * 10 ** ("十百千".index(c) + 1), 0
        else:
            total, group, digit = (total + group + digit) * {"万": 10**4, "亿": 10**8}[c], 0, 0
    return total + group + digit


@pytest.mark.parametrize(("language", "before", "after"), [
    ("en", "I have ", " left"), ("en", "level ", ""), ("en", "", " of them"),
    ("zh", "等级", ""), ("zh", "房间号", ""), ("zh", "今天涨粉", ""), ("zh", "一共有", "人"),
    ("zh", "考了", "分"), ("zh", "微信号", "，谢谢"),
])  # fmt: skip
def test_a_number_keeps_its_value_in_words(language: str, before: str, after: str) -> None:
    source, value_of = random.Random(1), {"en": number_of, "zh": number_of_chinese}[language]
    drawn = (source.randrange(10**9 if language == "en" else 10**8) for _ in range(300))
    for number in [*range(1, 1_100), 2_333, 6_666, 8_888, 66_666, 888_888, 8_888_888, *drawn]:
        words = front(language).speakable(f"{before}{number}{after}").text
        assert value_of(words.removeprefix(before).removesuffix(after)) == number, (number, words)


def test_stage_directions_are_dropped_and_named_or_spoken_as_configured() -> None:
    result = front("en").speakable("*waves* Hi chat [laugh] that's *really* good [pause:1s] (sighs) bye")
    assert result.text == "Hi chat that's really good bye"
    directions = [(c.before, c.after) for c in result.changes if c.kind == "direction"]
    assert directions == [("*waves*", ""), ("[laugh]", ""), ("(sighs)", "")]
    assert [(d.after, d.text) for d in result.directions] == [(0, "waves"), (7, "laugh"), (26, "sighs")]
    assert result.pauses == (Pause(26, 1.0),)
    speaking = FrontEnd(chinese_too(), TextConfig(directions="speak"), BOTH)
    assert speaking.speakable("*waves* Hi [laugh]").text == "waves Hi laugh"
    assert front("zh").speakable("（笑）好的").text == "好的"


def test_a_vocabulary_without_a_mark_joins_the_letters() -> None:
    vocabulary = Vocabulary((" ", *"abcdefghijklmnopqrstuvwxyz."))
    assert FrontEnd(vocabulary).speakable("e\u0301t e\u0334t", Handling.VERBATIM).text == "et et"

"""English text → phones: hibari's tokens, our list over them, any text, and the table in the package."""

import itertools
import json
import random
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import pytest

from appliance.contract.tokens import Vocabulary
from appliance.text.phones import alphabet
from appliance.text.phones.front import OWN, Phones, front, rows
from appliance.text.phones.table import Table
from appliance.text.sayable import FrontEnd
from appliance.text.tokens.tokenizers import maker, warm
from tests.harness import rows as tables
from tests.text.phones import generate

GOLDEN: dict[str, str] = dict(map(json.loads, generate.GOLDEN.read_text("utf-8").splitlines()))
OTHERWISE = dict(tables.rows(__file__, "otherwise.jsonl"))
"""Lines that we read differently on purpose. hibari takes these words for articles, spells nothing unknown
and does not know drawn-out words."""
UNLIKE = (
    "Mr. Smith, Mrs. Jones, Dr. Who and St. Mary met Prof. Oak.",  # our normaliser expands abbreviations
    'Wait... what? No!! Really?! Yes; no: maybe, (perhaps) [not] "quoted" ‘single’ “double”.',
    "I S B N nine seven eight, three, one six, one four eight four one zero, zero",
    'he said "lap twenty-seven" twice',
)
"""Lines that differ from hibari in a stress or a space."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Phones:
    """Phones without our word list."""
    own = tmp_path_factory.mktemp("own") / "words.txt"
    own.touch()
    return Phones(own=own)


def reading(text: str) -> str:
    return "".join(front()(text))


def test_tokens_equal_hibaris(bare: Phones) -> None:
    expected = {text: tokens for text, tokens in (GOLDEN | OTHERWISE).items() if text not in UNLIKE}
    assert {text: "".join(bare(text)) for text in expected} == expected


def test_the_golden_file_equals_hibaris_output() -> None:
    pytest.importorskip("hibari", reason="it is not installed (scripts/requirements/hibari.txt)")
    assert generate.golden() == generate.GOLDEN.read_text("utf-8")


@pytest.mark.parametrize(("text", "expected"), tables.rows(__file__, "readings.jsonl"))
def test_readings_of_lines(text: str, expected: str) -> None:
    assert reading(text) == expected


def test_our_own_list_has_only_symbols_of_the_alphabet() -> None:
    words = [word for word, _ in rows(OWN.read_text("utf-8"))]
    assert len(set(words)) == len(words)
    for word, reading in rows(OWN.read_text("utf-8")):
        symbols = set(reading.strip("/")) - {" "} if reading[0] == "/" else set()
        assert symbols <= {*"".join(alphabet.TOKENS)}, word
        assert any(token in front()(word) for token in alphabet.TOKENS[1:]), word


def strange() -> list[str]:
    random_ = random.Random(1)
    characters = "aAbBzZ'’-_.,!? \t\n/&3٣é\u0301ß你\U0001f525\udc80\x00()\"*ﬁ𝕳"
    return ["".join(random_.choices(characters, k=random_.randrange(1, 40))) for _ in range(100)]


def test_any_text_has_a_reading_with_its_words() -> None:
    short = [*strange(), *list(GOLDEN)[:50]]
    long = [part * (10_000 // len(part)) for part in ("a", "(", "don't ")] + ["a-" * 500, "9" * 2_000]
    readings = {text: front().read(text) for text in short + long}
    for text, reading in readings.items():
        assert set(reading.tokens) <= alphabet.ALL_TOKENS
        assert [text[word.begin : word.end] for word in reading.words] == text.split()
        spoken = [reading.tokens[word.first : word.last] for word in reading.words if word.first < word.last]
        phones = "".join(reading.tokens)
        assert " ".join(map("".join, spoken)) == phones == generate.single(phones)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(Phones().read, short)) == [readings[text] for text in short]


def test_a_bundle_of_phones_speaks_a_chat_line() -> None:
    vocabulary = Vocabulary(alphabet.TOKENS, "phones")
    front_end = FrontEnd(vocabulary, languages=("en",))
    warm("phones")
    spoken = front_end.speakable("Naïve café: I don't pay $5 for 2 well-known 你好 games 🔥!").text
    assert spoken == "Naïve café: I don't pay five dollars for two well-known games, fire!"
    assert "".join(vocabulary.split(spoken, maker("phones"))).startswith(
        "nɑˈiv kæfˈA, ˌI dˈOnt pˈA fˈIv dˈɑləɹz"
    )
    assert front_end.spelling.read("Łódź [x]") == "Łódź x"


def test_a_table_has_its_keys_and_no_others(tmp_path: Path) -> None:
    values = {f"word {n}": str(n).encode() for n in range(5000)}
    buckets: list[bytes] = [b""] * 65_536
    for key, value in values.items():
        digest = blake2b(f"w{key}".encode(), digest_size=6).digest()
        buckets[int.from_bytes(digest[:2], "little")] += digest[2:] + bytes([len(value)]) + value
    assert max(map(len, buckets)) > 2 * (4 + 1 + 4)  # several keys share a bucket
    ends = itertools.accumulate(map(len, buckets), initial=16 + 4 * 65_537)
    starts = b"".join(end.to_bytes(4, "little") for end in ends)
    (tmp_path / "table").write_bytes(b"f5phones 1\n".ljust(16) + starts + b"".join(buckets))
    table = Table(tmp_path / "table")
    assert all(table.get("w", key) == value for key, value in values.items())
    assert table.get("x", "word 1") is None and table.get("w", "word") is None
    (tmp_path / "table").write_bytes(b"another file")
    with pytest.raises(ValueError, match="begins with b'another file', not"):
        Table(tmp_path / "table")

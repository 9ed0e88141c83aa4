"""Emilia's tokens against upstream's by golden file, and the process that makes phones."""

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.contract.tokens import Vocabulary
from appliance.errors import InvalidRequest, PhonesMissing
from appliance.text.sayable import FrontEnd
from appliance.text.tokens.emilia import espeak
from appliance.text.tokens.emilia.marks import joined, single
from appliance.text.tokens.emilia.phones import PROGRAM, Espeak
from appliance.text.tokens.emilia.tokens import Emilia, segments
from appliance.text.tokens.emilia.words import cardinal, chinese_words, english_words
from appliance.text.tokens.tokenizers import says
from tests.text.emilia.spoken import (
    GOLDEN,
    LIBRARY,
    LINES,
    NUMBERS,
    TONGUES,
    VOCABULARY,
    needs_library,
    recorded,
)


def numbers(emilia: Emilia, line: str) -> list[int]:
    return [NUMBERS[token] for token in VOCABULARY.split(line, emilia)]


@pytest.mark.parametrize("number", range(len(LINES)))
def test_tokens_equal_upstreams(number: int) -> None:
    """espeak-ng 1.51's phones come from the golden file."""
    assert numbers(Emilia(recorded), LINES[number]) == GOLDEN["ids"][number], LINES[number]


@needs_library
def test_tokens_by_the_installed_library_equal_upstreams(library: Espeak) -> None:
    tokens = [numbers(Emilia(library.phones), line) for line in LINES]
    # Other releases read some words differently. In all of them, a text does not depend on earlier texts.
    if library.version in ("1.50", "1.51"):
        assert tokens == GOLDEN["ids"]
    assert [numbers(Emilia(library.phones), line) for line in LINES[::-1]] == tokens[::-1]


@pytest.fixture(scope="module")
def library() -> Iterator[Espeak]:
    process = Espeak()
    yield process
    process.close()


@needs_library
def test_phones_of_other_voices_equal_upstreams(library: Espeak) -> None:
    """Upstream is `EspeakTokenizer` of piper_phonemize 1.1.0; a single process reads all lines."""
    if library.version != "1.51":
        pytest.skip("other releases say some words otherwise")
    for row in map(json.loads, TONGUES.read_text("utf-8").splitlines()):
        assert "".join(library.phones(row["text"], row["voice"])) == row["phones"], row
        assert library.phones("Hi. X") == (*"hˈaɪ.ˈɛks",)


@needs_library
def test_a_text_does_not_change_the_voice_of_the_next(library: Espeak) -> None:
    """Tone marks and letters of another script made 1.51 change its voice."""
    before = library.phones("Guten Tag", "de")
    for text in ("Tag ꜆", "Тag ஃ", "你"):
        library.phones(text, "de")
        assert library.phones("Guten Tag", "de") == before


@needs_library
def test_a_voice_is_chosen_as_by_the_espeak_command(library: Espeak) -> None:
    british, own = library.phones("rather", "en-gb"), library.phones("rather", "en-gb-x-rp")
    assert british[-1] == "ə" != library.phones("rather")[-1] and own
    assert library.phones("hei", "no") == library.phones("hei", "nb")
    with pytest.raises(PhonesMissing, match=r"has no language 'xx'; of its \d+ there are .*\bde, en-"):
        library.phones("a", "xx")
    with pytest.raises(PhonesMissing, match=r"has no language 'pt-xx'; of its \d+ there are pt, pt-br, "):
        library.phones("a", "pt-xx")
    assert library.phones("Hi. X") == (*"hˈaɪ.ˈɛks",)


def test_a_voice_says_the_letters_of_its_script() -> None:
    german, hindi = (Vocabulary(("a", "."), "espeak", voice) for voice in ("de", "hi"))
    sayable = {german: "aäßé5%'-.,!?:;…؟。€\u0301", hindi: "aनि।5\u200d"}
    for vocabulary, characters in sayable.items():
        assert [c for c in characters if not says(vocabulary, c)] == []
    assert [c for c in "ж你न^_#" if says(german, c)] == [c for c in "ж你^" if says(hindi, c)] == []
    assert says(Vocabulary(("a",), "espeak", "cmn"), "你")


def test_a_text_is_cut_by_language() -> None:
    assert list(segments("“Hi, 你好 [laugh] ok<hao3>!")) == [
        ("“Hi, ", "en"), ("你好 ", "zh"), ("[laugh]", "tag"), (" ", "zh"), ("ok", "en"), ("<hao3>", "pinyin"),
        ("!", "zh"),
    ]  # fmt: skip
    assert list(segments("12 <")) == [("12 <", "")]
    assert list(segments("")) == []


def test_numbers_become_words() -> None:
    assert cardinal(1_234_005) == "one million, two hundred thirty-four thousand five"
    assert cardinal(305, with_and=True) == "three hundred and five"
    assert english_words("in 2005, 1999 and 3000") == (
        "in  two thousand five ,  nineteen ninety-nine  and  three thousand "
    )
    assert english_words("$1.01 MR. 2nd").split() == ["one", "dollar,", "one", "cent", "mister.", "second"]
    assert chinese_words("2024年3月1日-3个50%") == "二零二四年三月一日负三个百分之五十"
    assert english_words("9" * 40).split() == ["nine"] * 40


def test_phones_of_clauses_are_joined_with_their_marks() -> None:
    assert joined([("hi", "Hi. Y"), ("yes", "es!\0")]) == "hi.yes!"
    assert joined([("a", "a, b"), ("b", "; c"), ("c", "\0")]) == "a, b; c"
    assert joined([("wait", "Wait... n"), ("no", "o\0")]) == "waitno"
    assert joined([("a", "a?!. X"), ("(de)x(en-us)", "\0")]) == "a?x"
    assert joined([("a", "a" * 700 + " "), ("b", "b:c\0")]) == "ab"  # a long clause is cut at a space
    assert joined([("", "!! \0")]) == ""
    assert single("what?!?! a…. b, c") == "what? a… b, c"


def test_the_program_imports_nothing_of_the_package() -> None:
    """The program that loads the library imports nothing of the package."""
    tree = ast.parse(PROGRAM.read_text("utf-8"))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_chat_text_becomes_sayable_by_emilia() -> None:
    front = FrontEnd(VOCABULARY, languages=("en", "zh"))
    spoken = front.speakable("Café 50% off — ok, really, 3 <b>x</b>. 三百。你好 50%, привет")
    assert spoken.text == "Café fifty percent off - ok, really, three x. 三百. 你好百分之五十,"
    assert [change.kind for change in spoken.changes][-1] == "unsayable"
    assert not front.spelling.can_say("ə") and not front.spelling.can_say("<")


PROCESS = """
    import json, sys, time
    print(json.dumps({"version": "1"}), flush=True)
    for line in sys.stdin:
        _, text = json.loads(line)
        if "die" in text:
            break
        while "hang" in text:
            time.sleep(60)
        print("{" if "garbage" in text else json.dumps([["p" * 3, text + "\\0"]]), flush=True)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Espeak]:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROCESS))
    espeak_process = Espeak((sys.executable, "-I", "-S", str(program)), patience_s=5.0)
    yield espeak_process
    espeak_process.close()


@pytest.mark.parametrize("text", ["die", "garbage"])
def test_a_text_on_which_espeak_fails_is_refused_and_the_next_is_read(process: Espeak, text: str) -> None:
    with pytest.raises(InvalidRequest, match="espeak fails on it"):
        process.phones(text)
    assert process.phones("good.") == ("p", "p", "p", ".")


def test_a_hanging_process_is_killed(process: Espeak) -> None:
    assert process.phones("good") == ("p", "p", "p")
    first = process._process
    assert first is not None
    process._patience_s = 0.2
    with pytest.raises(InvalidRequest, match="espeak fails on it"):
        process.phones("hang")
    assert first.poll() == -signal.SIGKILL
    process._patience_s = 5.0
    assert process.phones("good") == ("p", "p", "p")


def test_a_process_that_died_between_two_texts_is_restarted(process: Espeak) -> None:
    process.phones("good")
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    assert process.phones("good") == ("p", "p", "p")


def test_a_missing_library_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / espeak.LIBRARY).write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    process = Espeak()
    for _ in range(2):
        with pytest.raises(PhonesMissing, match=r"libespeak-ng\.so\.1.*sudo apt install libespeak-ng1"):
            process.phones("Hello.")
    assert process._process is None
    monkeypatch.undo()
    process._missing_until = 0.0
    if LIBRARY:
        assert process.phones("Hello.")[-1] == "."
    process.close()
    gone = Espeak((str(tmp_path / "python"),))
    with pytest.raises(PhonesMissing, match="does not start"):
        gone.phones("Hello.")


def test_a_process_that_ends_reports_the_missing_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*args, **options)
        process.wait()
        return process

    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", ended)
    failing = Espeak((sys.executable, "-c", """print('{"missing": "it is not there"}')"""))
    with pytest.raises(PhonesMissing, match="it is not there; with the internet: sudo apt"):
        failing.phones("Hello.")


@needs_library
def test_hostile_texts_have_phones(library: Espeak) -> None:
    emilia, many = Emilia(library.phones), 10_000
    for text in ("a\x01Vx b\x00c", "a" * many, "x" + "!" * many, "<" * many + "a", "1/" * 5000 + "a"):
        assert emilia(text)
    assert emilia("Hi. X") == (*"hˈaɪ.ˈɛks",)


def test_a_vocabulary_drops_unknown_tokens() -> None:
    vocabulary = Vocabulary((" ", "a", "h0"), "emilia")
    assert vocabulary.split("x", lambda text: ["a", "?", "h0", " "]) == ["a", "h0", " "]

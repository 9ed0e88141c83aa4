"""Weights that read Emilia's phones: their export, and a daemon that speaks English and Chinese from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from appliance import cli
from appliance.client import CallFailed, Client
from appliance.contract.bundle import Bundle
from appliance.errors import BundleError
from appliance.text.emilia import espeak
from export.families import NAMED, zipvoice
from tests.daemons import reference_wav, running
from tests.export.small import Workshop
from tests.export.zipvoice import made
from tests.text.emilia.spoken import NUMBERS, TOKENS

pytestmark = [pytest.mark.torch, pytest.mark.once]

WORDS = "Hello there, my friend."
TRANSCRIPT_TOKENS, TOKENS_SAID = 59, 24
"""Numbers of tokens of `Running.add_voice`'s transcript and of WORDS, by espeak's voice."""
CHINESE = "今天天气很好，我们去公园吧。"


def test_named_families_are_upstreams() -> None:
    """`infer_zipvoice.py`: strengths, the grid's shift, one row or two."""
    base, distilled = NAMED["ZipVoice"], NAMED["ZipVoice-Distill"]
    assert (base.tokenizer, distilled.tokenizer) == ("emilia", "emilia")
    assert (base.sampler, distilled.sampler) == (zipvoice.TWO_ROWS, zipvoice.DISTILLED)
    assert [(d.guidance, d.grid, d.shift) for d in (base.defaults, distilled.defaults)] == [
        (1.0, "shift", 0.5),
        (3.0, "shift", 0.5),
    ]
    letters = NAMED["ZipVoice-LibriTTS-Distill"]
    assert (letters.defaults.guidance, letters.defaults.shift, letters.tokenizer) == (3.0, 0.7, "letters")


def test_a_tokens_file_tells_its_tokenizer(tmp_path: Path) -> None:
    vocabulary = zipvoice.vocabulary(TOKENS, "emilia")
    assert vocabulary.tokens[0] == " " and vocabulary.size == len(NUMBERS) - 1
    with pytest.raises(BundleError, match="has phones and pinyin: --tokenizer emilia, not letters"):
        zipvoice.vocabulary(TOKENS, "letters")
    letters = tmp_path / "tokens.txt"
    letters.write_text("_\t0\n \t1\na\t2\n")
    with pytest.raises(BundleError, match="has letters: --tokenizer letters, not emilia"):
        zipvoice.vocabulary(letters, "emilia")


@pytest.fixture(scope="module")
def bundle(workshop: Workshop) -> Bundle:
    tokens = [token for token in NUMBERS if token != "_"]
    return made(workshop, distilled=True, name="ZipVoice", tokens=tokens)


@pytest.fixture
def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No library can be loaded by the name of espeak's."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / espeak.LIBRARY).write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))


@pytest.mark.slow
def test_it_says_what_it_reads(bundle: Bundle) -> None:
    text = bundle.manifest.text
    assert dataclasses.astuple(text) == (("en", "zh"), "emilia", "both", "NFC", "tokens", {})


@pytest.mark.slow
def test_english_and_chinese_are_spoken(bundle: Bundle, tmp_path: Path) -> None:
    try:
        espeak.opened()
    except OSError:
        pytest.skip("libespeak-ng1 is not installed")
    with (
        running(tmp_path, speaks_from=bundle.folder, synthesis={"nfe": 4}) as box,
        Client(box.address) as client,
    ):
        box.add_voice()
        spoken: Any = client.speak(text=WORDS, voice="ann", seed=3)
        expected_s = 3.0 * TOKENS_SAID / TRANSCRIPT_TOKENS
        assert abs(len(spoken.audio) / 2 / 24_000 - expected_s) < 0.2
        chinese: Any = client.speak(text=f"{CHINESE} OK!", voice="ann", seed=3)
        assert len(chinese.audio) > len(spoken.audio)


@pytest.mark.slow
@pytest.mark.usefixtures("missing")
def test_without_espeak_english_is_refused_with_the_remedy(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        running(tmp_path, speaks_from=bundle.folder, synthesis={"nfe": 4}) as box,
        Client(box.address) as client,
    ):
        assert "English is refused: " in box.log and "sudo apt install libespeak-ng1" in box.log
        client.add_voice("zh", reference_wav(), CHINESE)
        assert client.speak(text=CHINESE, voice="zh").audio
        with pytest.raises(CallFailed, match="sudo apt install libespeak-ng1") as refused:
            client.speak(text=WORDS, voice="zh")
        assert (refused.value.status, refused.value.reason) == ("FAILED_PRECONDITION", "PHONES_MISSING")
    assert cli.main(["check", "--json", "--only", "bundle", "--config", str(tmp_path / "config.yaml")]) == 2
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["level"], finding["remedy"]) == ("FAIL", "sudo apt install libespeak-ng1")

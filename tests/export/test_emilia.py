"""Weights that read Emilia's phones: their export, and a daemon that speaks English and Chinese from it."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance import cli
from appliance.client import CallFailed, Client
from appliance.contract.bundle import Bundle
from appliance.contract.tokens import Tokenizer
from appliance.errors import BundleError, PhonesMissing
from appliance.request import Features, Reference, Request, Segmentation
from appliance.speech.plan import Planner
from appliance.text.tokens.emilia import espeak, phones
from appliance.text.tokens.tokenizers import maker
from export import assemble, evidence
from export.families import NAMED, zipvoice
from export.sources.reading import read_options, text_of, unheard
from tests.export.zipvoice import made, published
from tests.harness.daemons import reference_wav, running
from tests.harness.rows import rows
from tests.harness.small import Workshop
from tests.text.emilia.spoken import NUMBERS, TOKENS, TONGUES, needs_library

pytestmark = [pytest.mark.torch, pytest.mark.once]

GERMAN = [row for row in map(json.loads, TONGUES.read_text("utf-8").splitlines()) if row["voice"] == "de"]
GERMAN_PHONES = sorted({phone for row in GERMAN for phone in row["phones"]} - {*" .,!?;:"})
WORDS = "Hello there, my friend."
TRANSCRIPT_TOKENS, TOKENS_SAID = 59, 24
"""Numbers of tokens of `Running.add_voice`'s transcript and of WORDS, by espeak's voice."""
CHINESE = "今天天气很好，我们去公园吧。"


def test_named_families_are_upstreams() -> None:
    """`infer_zipvoice.py`: strengths, the grid's shift, one row or two."""
    base, distilled = NAMED["ZipVoice"], NAMED["ZipVoice-Distill"]
    assert (base.tokenizer, distilled.tokenizer) == ("emilia", "emilia")
    assert (base.sampler, distilled.sampler) == (zipvoice.TWO_ROWS, zipvoice.DISTILLED)
    usual = [(d.guidance, d.grid, d.shift) for d in (base.defaults, distilled.defaults)]
    assert usual == [(1.0, "shift", 0.5), (3.0, "shift", 0.5)]
    letters = NAMED["ZipVoice-LibriTTS-Distill"]
    assert (letters.defaults.guidance, letters.defaults.shift, letters.tokenizer) == (3.0, 0.7, "letters")


def written(path: Path, tokens: str) -> Path:
    path.write_text("".join(f"{token}\t{number}\n" for number, token in enumerate(["_", *tokens])), "utf-8")
    return path


def test_a_tokens_file_tells_its_tokenizer(tmp_path: Path) -> None:
    vocabulary = zipvoice.vocabulary(TOKENS, "emilia")
    assert vocabulary.tokens[0] == " " and vocabulary.size == len(NUMBERS) - 1
    assert zipvoice.vocabulary(TOKENS, "espeak", "de").tokens == vocabulary.tokens
    letters, kana = written(tmp_path / "letters.txt", " a"), written(tmp_path / "kana.txt", "あい。")
    for file, tokenizer, message in (
        (TOKENS, "letters", "has phones and pinyin: --tokenizer emilia, or espeak:LANG .*, not letters"),
        (TOKENS, "char", "has phones and pinyin: .*, not simple"),
        (letters, "emilia", "has letters: --tokenizer letters, or simple .*, not emilia"),
        (kana, "letters", "lacks ' ', 'A', 'B' of LibriTTS's letters: .* --tokenizer simple"),
    ):
        with pytest.raises(BundleError, match=message):
            zipvoice.vocabulary(file, tokenizer)


@pytest.mark.parametrize("tokenizer", ["simple", "char"])
def test_characters_need_no_space_and_unknown_ones_are_dropped(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """`SimpleTokenizer` skips unknown characters too. It reads `_` as its padding; the bundle leaves `_`
    out."""
    vocabulary = zipvoice.vocabulary(written(tmp_path / "tokens.txt", "のあい。"), tokenizer)
    assert (vocabulary.tokens, vocabulary.tokenizer) == (tuple("のあい。"), "simple")
    for text in ("あい の。", "hé: 1 あ_ok。", "\u3000\n漢", ""):
        assert vocabulary.split(text, list) == [c for c in text if c in "のあい。"]
    path = tmp_path / "tokens.txt"
    for raw in (path.read_text("utf-8").encode("utf-16"), json.dumps(["_", *"のあい。"]).encode()):
        path.write_bytes(raw)
        assert zipvoice.vocabulary(path, tokenizer) == vocabulary


def test_weights_that_lack_the_words_of_the_recordings_are_not_judged_by_them(tmp_path: Path) -> None:
    given = published(tmp_path, tokens="のあい。")
    loaded = assemble.load(dataclasses.replace(given, tokenizer="simple", languages=("ja",)))
    found = evidence.weigh(loaded)
    assert (found.verdict, [*found.losses]) == (evidence.Verdict.UNREAD, [evidence.COPY])
    assert "lack the words of heart, michael; pass --recording FILE --transcript TEXT" in found.advice[0]


@pytest.mark.parametrize(("given", "read"), rows(__file__, "voices.jsonl"))
def test_a_language_of_espeak_is_its_voice(given: tuple[str | None, str | None], read: Any) -> None:
    if isinstance(read, str):
        with pytest.raises(ValueError, match=read):
            read_options(*given)
    else:
        assert json.loads(json.dumps(read_options(*given))) == read


def test_emilia_is_refused_for_other_languages_and_the_voice_is_named() -> None:
    vocabulary = zipvoice.vocabulary(TOKENS, "emilia")
    with pytest.raises(BundleError, match=r"would say de, tr by American phones; .* --tokenizer espeak:de"):
        text_of(vocabulary, "emilia", None, ("en", "de", "tr"))


@needs_library
def test_symbols_that_the_tokens_lack_are_named_with_their_share(tmp_path: Path) -> None:
    assert unheard(zipvoice.vocabulary(TOKENS, "espeak", "en-us")) == []
    [told] = unheard(zipvoice.vocabulary(TOKENS, "espeak", "de"))
    assert re.match(
        r"\d\.\d% of the symbols by which espeak's de says numbers .* tokens: .*y.*; they are left", told
    )
    letters = written(tmp_path / "tokens.txt", " ABCDEF.")
    with pytest.raises(
        BundleError, match=r"[6-9]\d\.\d% of .* the tokens are for another tokenizer or language"
    ):
        unheard(zipvoice.vocabulary(letters, "espeak", "de"))
    with pytest.raises(PhonesMissing, match="has no language 'xx'"):
        unheard(zipvoice.vocabulary(TOKENS, "espeak", "xx"))


@pytest.fixture(scope="module")
def bundle(workshop: Workshop) -> Bundle:
    tokens = [token for token in NUMBERS if token != "_"]
    return made(workshop, distilled=True, name="ZipVoice", tokens=tokens)


@pytest.fixture
def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which espeak's library cannot be loaded."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / espeak.LIBRARY).write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    monkeypatch.setattr(phones, "SHARED", phones.Espeak())


@pytest.mark.slow
def test_the_manifest_describes_the_text(bundle: Bundle) -> None:
    text = bundle.manifest.text
    assert dataclasses.astuple(text) == (
        *(("en", "zh"), "emilia", "both", "NFC", "tokens", {}),
        *("", ("", ""), ""),
    )


@needs_library
@pytest.mark.slow
def test_a_daemon_speaks_english_and_chinese(bundle: Bundle, tmp_path: Path) -> None:
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
def test_english_without_espeak_is_refused_with_the_remedy(
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
    assert finding["level"] == "FAIL"
    assert finding["remedy"] == "with the internet: sudo apt install libespeak-ng1"


@needs_library
@pytest.mark.slow
def test_german_is_spoken_by_a_german_voice(workshop: Workshop, tmp_path: Path) -> None:
    """Indices and lengths equal the results of upstream's `EspeakTokenizer`."""
    bundle = made(workshop, distilled=True, name="ZipVoice", tokens=[*" .,!?;:", *GERMAN_PHONES], voice="de")
    text, vocabulary = bundle.manifest.text, bundle.vocabulary()
    assert (text.languages, text.tokenizer, text.voice, text.form) == (("de",), "espeak", "de", "NFC")
    transcript, line = (row for row in GERMAN if row["text"].startswith(("Wir", "Im Team")))
    given = Reference(
        transcript["text"], Features(np.zeros(72_000, np.float32), np.zeros((281, 100), np.float32), 0.1)
    )
    planner = Planner(bundle.manifest, vocabulary, lambda *_: given, maker("espeak", "de"))
    (segment,) = planner.plan(Request(line["text"], "ann", 4, 3, 3.0, Segmentation.UPSTREAM))
    assert [vocabulary.tokens[i] for i in segment.ids] == list(transcript["phones"] + line["phones"])
    with (
        running(tmp_path, speaks_from=bundle.folder, synthesis={"nfe": 4}) as box,
        Client(box.address) as client,
    ):
        client.add_voice("ann", reference_wav(), transcript["text"])
        spoken: Any = client.speak(text=line["text"], voice="ann", seed=3)
        expected_s = 3.0 * len(line["phones"]) / len(transcript["phones"])
        assert abs(len(spoken.audio) / 2 / 24_000 - expected_s) < 0.3

"""The demo's corpus: what is said, how it is cut, kept, taken up again and carried."""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from export.demo import corpus, engines, sentences, speech_metrics, spelling
from export.demo.corpus import CorpusError
from export.demo.engines import SAMPLE_RATE_HZ, EngineError, RHVoice, Utterance
from export.demo.sentences import FORTUNES, Sentence

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]


# Numbers and sentences.


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (15, "fifteen"),
        (18, "eighteen"),
        (40, "forty"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (115, "one hundred and fifteen"),
        (1_000, "one thousand"),
        (1_001, "one thousand and one"),
        (12_345, "twelve thousand three hundred and forty-five"),
        (2_000_100, "two million one hundred"),
    ],
)
def test_cardinals(number: int, words: str) -> None:
    assert spelling.cardinal(number) == words


def test_cardinals_are_all_different_and_have_an_end() -> None:
    assert len({spelling.cardinal(n) for n in range(20_000)}) == 20_000
    with pytest.raises(ValueError, match="only 0 to"):
        spelling.cardinal(-1)
    with pytest.raises(ValueError, match="only 0 to"):
        spelling.cardinal(spelling.LARGEST + 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I have 3 cats.", "I have three cats."),
        ("the 21st of May", "the twenty-first of May"),
        ("the 20th, the 12th", "the twentieth, the twelfth"),
        ("in 1984.", "in nineteen eighty-four."),
        ("in 1905, in 2000, in 1900", "in nineteen oh five, in two thousand, in nineteen hundred"),
        ("about 1,234,567 of them", "about one million two hundred and thirty-four thousand "
         "five hundred and sixty-seven of them"),
        ("It costs $5 or $1.50.", "It costs five dollars or one dollar and fifty cents."),
        ("3.14 is pi", "three point one four is pi"),
        ("50% of it, 7 % of that", "fifty percent of it, seven percent of that"),
        ("Mr. Fox and Dr. Bear", "Mister Fox and Doctor Bear"),
        ("bread & butter", "bread and butter"),
        ("at 10:30, version 1.2.3, 24/7", "at 10:30, version 1.2.3, 24/7"),
    ],
)  # fmt: skip
def test_numbers_are_spelled_or_left_alone(text: str, said: str) -> None:
    assert spelling.spell(text) == said


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ('"Well," he said -- "no; never!"', "Well, he said, no, never!"),
        ("Wait...  what??", "Wait, what?"),
        ("One, two ... three.", "One, two, three."),
        ("Really?!  Yes!!", "Really! Yes!"),
        ("It\u2019s \u201cfine\u201d \u2014 mostly.", "It's fine, mostly."),
        ("the boys' 'secret' plan, don't", "the boys secret plan, don't"),
    ],
)
def test_punctuation_is_made_plain(raw: str, text: str) -> None:
    assert sentences.clean(raw) == text


PROSE = """The old clock on the wall has been wrong for seven years now.
\t\t-- Xerxes
%
A short verse
is not a sentence
and has no end
so it is left out
%
A river is wider than it looks, and this one is no exception at all.  The man
said "walk on" and they walked on.
%
vi foo.c | grep -n bar
%
ONE TWO THREE ARE SHOUTED WORDS.
%
Damn that stupid river and everything in it.
%
"""


@pytest.fixture
def fortunes(tmp_path: Path) -> Path:
    """As many files as Debian's, with little in them."""
    folder = tmp_path / "fortunes"
    folder.mkdir()
    animals = ("cat", "dog", "bird", "fish", "horse", "mouse", "snail", "goat", "frog", "crow")
    for number, name in enumerate(FORTUNES.split()):
        lines = [
            f"In the {spelling.ordinal(number + 1)} year the {animal} of house {spelling.cardinal(i)} "
            f"sang about {spelling.cardinal(100 * number + i)} quiet lamps."
            for i, animal in enumerate(animals)
        ]
        (folder / name).write_text(PROSE + "\n%\n".join(lines) + "\n")
    everything = "".join(path.read_text() for path in folder.iterdir())
    (tmp_path / "words").write_text("\n".join(re.findall(r"[a-z']+", everything.lower())))
    return folder


@pytest.fixture
def collected(fortunes: Path) -> list[Sentence]:
    return sentences.collect(fortunes, None)


def test_prose_is_kept_and_the_rest_is_not(collected: list[Sentence]) -> None:
    texts = {sentence.text for sentence in collected}
    assert "The old clock on the wall has been wrong for seven years now." in texts
    assert "The man said walk on and they walked on." in texts
    together = " ".join(texts)
    for absent in ("Xerxes", "verse", "grep", "SHOUTED", "stupid"):
        assert absent not in together


def test_every_sentence_is_plain(collected: list[Sentence]) -> None:
    for sentence in collected:
        assert re.fullmatch(r"[A-Z][A-Za-z .,?!'-]*[.?!]", sentence.text), sentence
        assert 3 <= len(sentence.text.split()) <= 24, sentence
        assert len(sentence.text) <= sentences.CHARACTERS
    assert len({sentence.id for sentence in collected}) == len(collected)


def test_a_dictionary_keeps_strangers_out(fortunes: Path, tmp_path: Path) -> None:
    words = tmp_path / "few words"
    words.write_text("the\nold\nclock\non\nwall\nhas\nbeen\nwrong\nfor\nseven\nyears\nnow\n")
    quoted = [s.text for s in sentences.collect(fortunes, words) if s.id.startswith("fort")]
    assert quoted == ["The old clock on the wall has been wrong for seven years now."]


def test_held_out_sentences_are_long_apart_and_first(collected: list[Sentence]) -> None:
    splits = [sentence.split for sentence in collected]
    assert splits == sorted(splits, key=["test", "valid", "train"].index)
    test = [s for s in collected if s.split == "test"]
    assert all(len(re.findall(r"[\w']+", s.text)) >= sentences.HELD_OUT_WORDS for s in test)
    assert Counter(s.id[:4] for s in test)["live"] == sentences.HELD_OUT * sentences.LIVESTREAM_SHARE

    def runs(text: str) -> set[str]:
        words = re.findall(r"[a-z']+", text.lower())
        return {" ".join(words[i : i + 6]) for i in range(len(words) - 5)}

    held = set().union(*(runs(s.text) for s in collected if s.split != "train"))
    assert all(held.isdisjoint(runs(s.text)) for s in collected if s.split == "train")


def test_templates_are_held_out_whole(collected: list[Sentence]) -> None:
    template_of = dict(sentences.livestream(sentences.LIVESTREAM_LINES))
    used: dict[str, set[str]] = {}
    for sentence in collected:
        if sentence.id.startswith("live"):
            used.setdefault(template_of[sentence.text], set()).add(sentence.split)
    assert {"test"} in used.values()
    assert all(split == {"train"} or "train" not in split for split in used.values())


def test_the_lines_of_the_quality_test_are_held_out(collected: list[Sentence]) -> None:
    lines = (ROOT / "tests/quality/lines.txt").read_text().splitlines()
    assert len(lines) == 20
    assert set(lines) <= {s.text for s in collected if s.split == "test"}


def test_the_split_is_the_same_every_time(fortunes: Path, collected: list[Sentence], tmp_path: Path) -> None:
    assert sentences.collect(fortunes, None) == collected
    sentences.write(collected, tmp_path / "deep" / "sentences.jsonl")
    assert sentences.read(tmp_path / "deep" / "sentences.jsonl") == collected


def test_livestream_lines_fill_every_slot_and_are_plain() -> None:
    data = yaml.safe_load(sentences.LIVESTREAM.read_text())
    assert len(data["templates"]) == len(set(data["templates"])) > 150
    asked, chatted = _slots(data["templates"]), _slots(data["chat"]["templates"])
    assert asked == set(data["slots"])
    assert set(data["chat"]["slots"]) <= chatted <= asked | set(data["chat"]["slots"])
    for lines in ([line for line, _ in sentences.livestream(3_000)], sentences.chat(2_000)):
        assert len(set(lines)) == len(lines) >= 2_000
        for line in lines:
            assert re.fullmatch(r"[A-Z][A-Za-z .,?!'-]*[.?!]", line), line


def _slots(templates: list[str]) -> set[str]:
    return {slot for template in templates for slot in re.findall(r"\{(\w+)\}", template)}


def test_short_lines_are_trained_on_alone(collected: list[Sentence]) -> None:
    short = [sentence for sentence in collected if sentence.id.startswith("chat")]
    assert len(short) > 2_000
    assert {sentence.split for sentence in short} == {"train"}


def test_what_the_demo_is_judged_by_is_new_to_it(collected: list[Sentence]) -> None:
    (words,) = (line.split() for line in sentences.excluded_lines())
    assert " ".join(words) == "thanks for the follow welcome to the stream"
    said = [" ".join(re.findall(r"[a-z']+", s.text.lower())) for s in collected if s.split == "train"]
    for at in range(len(words) - 5):
        assert not any(" ".join(words[at : at + 6]) in line for line in said)
    # Both of its halves are spoken all the time.
    for half in ("thanks for the follow", "welcome to the stream"):
        assert sum(half in line for line in said) > 5


# Speaking, with an engine that hums.


class Hum:
    """A tone as long as the text, between silences; counts what it is asked."""

    spoken = 0

    def __init__(self, folder: Path, voice: str) -> None:
        self.pitch = {"bdl": 110.0, "slt": 220.0}[voice]

    def speak(self, text: str) -> Utterance:
        type(self).spoken += 1
        t = np.arange(len(text) * 1_200) / SAMPLE_RATE_HZ
        tone = (8_000 * np.sin(2 * np.pi * self.pitch * t)).astype(np.int16)
        silence = np.zeros(12_000, np.int16)
        starts = [match.start() for match in re.finditer(r"\S+", text)]
        words = [(at, at + 1, 12_000 + at * 1_200) for at in starts]
        return Utterance(np.concatenate([silence, tone, silence]), words)


class Ears:
    """Understands what is short."""

    def transcribe(self, sound: object, rate_hz: int) -> str:
        return ""

    def errors(self, said: str, heard: str) -> speech_metrics.Errors:
        return speech_metrics.Errors(len(said) > 80, 1)


@pytest.fixture
def humming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "RHVoice", Hum)
    monkeypatch.setattr(corpus, "_engines", {})
    monkeypatch.setattr(corpus, "BATCH", 8)
    monkeypatch.setattr(sentences, "HELD_OUT", 12)
    monkeypatch.setattr(sentences, "LIVESTREAM_LINES", 1_000)
    monkeypatch.setattr(sentences, "CHAT_LINES", 100)
    monkeypatch.setattr(corpus, "_recogniser", Ears)
    monkeypatch.setattr(corpus, "missing", lambda modules: [])
    monkeypatch.setattr(Hum, "spoken", 0)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / engines.RECORD).write_text('{"packages": {"hum": "1"}, "terms": {}}')
    return folder


@pytest.fixture
def made(humming: None, tmp_path: Path, fortunes: Path, engine: Path) -> Path:
    """Both voices, little more than a minute each beyond what is held out."""
    folder = tmp_path / "corpus"
    corpus.make(folder, engine, fortunes.parent, ["bdl", "slt"], hours=0.02, workers=1)
    return folder


def test_silence_is_trimmed_and_words_move_with_it() -> None:
    spoken = Hum(Path(), "bdl").speak("ten letters")
    trimmed = corpus.trim(spoken)
    margin = round(SAMPLE_RATE_HZ * corpus.MARGIN_S)
    assert len(trimmed.samples) == pytest.approx(11 * 1_200 + 2 * margin, abs=500)
    assert [word[2] for word in trimmed.words] == [margin, margin + 4 * 1_200]
    np.testing.assert_array_equal(trimmed.samples, spoken.samples[12_000 - margin :][: len(trimmed.samples)])


def test_a_corpus_is_complete_and_mapped(made: Path) -> None:
    clips = corpus.read_clips(made)
    counts = Counter((clip.voice, clip.split) for clip in clips)
    assert (
        counts["bdl", "test"]
        == counts["slt", "test"]
        == len([s for s in sentences.read(made / "sentences.jsonl") if s.split == "test"])
    )
    for voice in ("bdl", "slt"):
        hours = sum(c.seconds for c in clips if (c.voice, c.split) == (voice, "train")) / 3600
        assert 0.02 <= hours < 0.035
    for clip in clips[::5]:
        expected = corpus.trim(Hum(Path(), clip.voice).speak(clip.text))
        np.testing.assert_array_equal(corpus.audio(made, clip), expected.samples)
        assert clip.words == [list(word) for word in expected.words]
    assert isinstance(corpus.audio(made, clips[0]).base, np.memmap)
    described = json.loads((made / "corpus.json").read_text())
    assert described["sample_rate_hz"] == SAMPLE_RATE_HZ
    assert described["engine"]["packages"] == {"hum": "1"}
    assert described["mel"]["mels"] == 100


def test_what_is_made_is_not_made_again(made: Path, engine: Path, fortunes: Path) -> None:
    before = corpus.read_clips(made)
    spoken = Hum.spoken
    corpus.make(made, engine, fortunes.parent, ["bdl", "slt"], hours=0.02, workers=1)
    assert Hum.spoken == spoken
    assert corpus.read_clips(made) == before


def test_an_interruption_costs_one_batch(
    humming: None, tmp_path: Path, fortunes: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    corpus.make(whole, engine, fortunes.parent, ["bdl"], hours=0.03, workers=1)
    needed = Hum.spoken
    speak = Hum.speak

    def stops(self: Hum, text: str) -> Utterance:
        if Hum.spoken == needed + 3 * 8 + 7:
            raise KeyboardInterrupt
        return speak(self, text)

    monkeypatch.setattr(Hum, "speak", stops)
    with pytest.raises(KeyboardInterrupt):
        corpus.make(broken, engine, fortunes.parent, ["bdl"], hours=0.03, workers=1)
    monkeypatch.setattr(Hum, "speak", speak)
    assert len(list((broken / "shards" / "bdl").iterdir())) == 3
    Hum.spoken = 0
    corpus.make(broken, engine, fortunes.parent, ["bdl"], hours=0.03, workers=1)
    assert Hum.spoken == needed - 3 * 8
    assert (broken / "clips.jsonl").read_text() == (whole / "clips.jsonl").read_text()
    for path in (whole / "audio" / "bdl").iterdir():
        assert path.read_bytes() == (broken / "audio" / "bdl" / path.name).read_bytes()


def test_training_clips_that_are_not_understood_are_dropped(made: Path) -> None:
    before = corpus.read_clips(made)
    long = {c.id for c in before if len(c.text) > 80}
    assert long
    corpus.recognise(made, ["bdl", "slt"], workers=1, limit=1)
    judged = [c for c in corpus.read_clips(made) if c.wer is not None]
    assert {c.shard for c in judged} == {0}
    corpus.recognise(made, ["bdl", "slt"], workers=1, limit=None)
    after = {c.id: c for c in corpus.read_clips(made)}
    assert all(c.wer is not None for c in after.values())
    dropped = {c.id for c in before} - set(after)
    assert dropped == {c.id for c in before if c.id in long and c.split == "train"}
    # Held-out clips stay: without them the engine would look better than it is.
    assert any(c.wer == 1.0 for c in after.values() if c.split == "test") or not any(
        c.id in long for c in before if c.split == "test"
    )
    assert f"{len(dropped)} of {len(before)} clips were dropped" in corpus.summary(made)


def test_what_is_missing_is_said(tmp_path: Path, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorpusError, match="no corpus; `python -m export"):
        corpus.read_clips(tmp_path)
    with pytest.raises(CorpusError, match="no texts"):
        corpus.make(tmp_path / "c", engine, tmp_path / "nothing", ["bdl"], hours=1, workers=1)
    monkeypatch.setattr(speech_metrics.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CorpusError, match="not installed: moonshine-voice, jiwer, soxr"):
        corpus.recognise(tmp_path, ["bdl"], workers=1, limit=None)
    with pytest.raises(EngineError, match="make the engine's folder"):
        RHVoice(tmp_path, "bdl")
    with pytest.raises(EngineError, match="no such voice; there are bdl, slt"):
        RHVoice(tmp_path, "alan")
    with pytest.raises(EngineError, match="no engine; make it with"):
        engines.record(tmp_path)


def test_without_apt_the_engine_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.shutil, "which", lambda name: None)
    with pytest.raises(EngineError, match="without apt-get none can be fetched"):
        engines.prepare(tmp_path / "engine", tmp_path / "texts")
    assert not (tmp_path / "engine").exists()


# Carrying.


def test_the_carried_engine_is_all_that_speaking_needs(made: Path, engine: Path, tmp_path: Path) -> None:
    (tmp_path / engines.PRONUNCIATIONS).write_text("how words are said")
    corpus.pack(engine, made, tmp_path / engines.PRONUNCIATIONS, tmp_path / "c.tar.xz")
    with tarfile.open(tmp_path / "c.tar.xz") as archive:
        archive.extractall(tmp_path / "there", filter="data")
    there = tmp_path / "there"
    corpus.make(there / "corpus", there / "engine", tmp_path / "no texts", ["bdl"], hours=0.02, workers=1)
    here = [c for c in corpus.read_clips(made) if c.voice == "bdl"]
    assert corpus.read_clips(there / "corpus") == here
    assert (there / "texts" / engines.PRONUNCIATIONS).read_text() == "how words are said"


# The true engine, where it has been fetched.


@pytest.fixture(scope="module")
def rhvoice() -> RHVoice:
    folder = ROOT / corpus.ENGINE
    if not (folder / engines.RECORD).exists():
        pytest.skip(f"no engine at {corpus.ENGINE}: `{engines.PREPARE}` fetches it")
    return RHVoice(folder, "slt")


def test_the_engine_speaks_the_same_twice(rhvoice: RHVoice) -> None:
    text = "Thanks for the follow, and welcome to the stream."
    one, other = rhvoice.speak(text), rhvoice.speak(text)
    np.testing.assert_array_equal(one.samples, other.samples)
    assert 2.0 < len(one.samples) / SAMPLE_RATE_HZ < 4.0
    assert [text[first:last] for first, last, _ in one.words] == text.split()
    assert [at for _, _, at in one.words] == sorted(at for _, _, at in one.words)


def test_the_engine_speaks_as_slowly_as_it_is_told(rhvoice: RHVoice) -> None:
    text = "Thanks for the follow, and welcome to the stream."
    calm = RHVoice(ROOT / corpus.ENGINE, "slt", rate=0.8)
    lasting = [len(corpus.trim(voice.speak(text)).samples) for voice in (rhvoice, calm)]
    assert lasting[1] / lasting[0] == pytest.approx(1 / 0.8, rel=0.05)


def test_the_engine_makes_shards_in_other_processes(rhvoice: RHVoice, tmp_path: Path) -> None:
    texts = [f"This is sentence number {spelling.cardinal(n)}." for n in range(140)]
    lines = [Sentence(f"live-{n:010x}", text, "train") for n, text in enumerate(texts)]
    sentences.write(lines, tmp_path / "corpus" / "sentences.jsonl")
    options = SimpleNamespace(
        action="make", folder=tmp_path / "corpus", engine=ROOT / corpus.ENGINE, texts=tmp_path,
        voices=["slt"], hours=1.0, workers=2, shards=None,
    )  # fmt: skip
    assert corpus.run(options) == 0  # type: ignore[arg-type]
    clips = corpus.read_clips(tmp_path / "corpus")
    assert [clip.text for clip in clips] == texts
    np.testing.assert_array_equal(
        corpus.audio(tmp_path / "corpus", clips[130]), corpus.trim(rhvoice.speak(texts[130])).samples
    )

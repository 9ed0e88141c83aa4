"""The demo's corpus: what is said, how phones are timed, how clips are cut, kept and taken up again."""

from __future__ import annotations

import re
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import yaml

from appliance.contract.mel import log_mel
from appliance.text.languages.numbers import english, english_ordinal
from appliance.text.phones import alphabet
from export.demo.commands import main
from export.demo.corpus import coverage, make, sentences, store, teachers
from export.demo.corpus.sentences import FORTUNES, Sentence
from export.demo.corpus.store import MARGIN_S, PERIODIC_WINDOW, Store
from export.demo.corpus.teachers import HEART, PITCH_HOP, SAMPLE_RATE_HZ, Teachers, Utterance
from export.demo.shipping import ship
from tests.export.demo import VOICES, Hums, hum, write_store

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
PLAIN = re.compile(r"[A-Z][A-Za-z .,?!'-]*[.?!]")


# Sentences


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ('"Well," he said -- "no; never!"', "Well, he said, no, never!"),
        ("Wait...  what??", "Wait, what?"),
        ("One, two ... three.", "One, two, three."),
        ("Really?!  Yes!!", "Really! Yes!"),
        ("It\u2019s \u201cfine\u201d \u2014 mostly.", "It's fine, mostly."),
        ("the boys' 'secret' plan, don't", "the boys secret plan, don't"),
        ("I have 3 cats & 1 dog.", "I have three cats and one dog."),
        ("It costs $1.50 or 50 %.", "It costs one dollar and fifty cents or fifty percent."),
        ("in 1984, the 21st, -5 of 1,115", "in nineteen eighty-four, the twenty-first, minus five of one "
         "thousand one hundred fifteen"),
    ],
)  # fmt: skip
def test_text_is_made_plain_and_its_numbers_words(raw: str, text: str) -> None:
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
The river, the lake, etc. and all that. So said the wise old Mr. Fox.
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
            f"In the {english_ordinal(number + 1)} year the {animal} of house {english(i)} "
            f"sang about {english(100 * number + i)} quiet lamps."
            for i, animal in enumerate(animals)
        ]
        (folder / name).write_text(PROSE + "\n%\n".join(lines) + "\n")
    return folder


@pytest.fixture
def collected(fortunes: Path) -> list[Sentence]:
    return sentences.collect(fortunes, None)


def test_prose_is_kept_and_all_is_plain(fortunes: Path, collected: list[Sentence]) -> None:
    texts = {sentence.text for sentence in collected}
    assert "The old clock on the wall has been wrong for seven years now." in texts
    assert "The man said walk on and they walked on." in texts
    together = " ".join(texts)
    for absent in ("Xerxes", "verse", "grep", "SHOUTED", "stupid", "etc.", "Mr."):
        assert absent not in together
    assert all(map(PLAIN.fullmatch, texts))
    assert all(len(s.text.split()) >= 3 for s in collected if not s.id.startswith("mini"))
    assert all(len(text.split()) <= 24 and len(text) <= sentences.CHARACTERS for text in texts)
    assert len({sentence.id for sentence in collected}) == len(collected)
    assert sentences.collect(fortunes, None) == collected, "the same every time"
    sentences.write(collected, fortunes / "deep" / "sentences.jsonl")
    assert sentences.read(fortunes / "deep" / "sentences.jsonl") == collected


def test_a_dictionary_keeps_strangers_out(fortunes: Path, tmp_path: Path) -> None:
    words = tmp_path / "few words"
    words.write_text("the\nold\nclock\non\nwall\nhas\nbeen\nwrong\nfor\nseven\nyears\nnow\n")
    quoted = [s.text for s in sentences.collect(fortunes, words) if s.id.startswith("fort")]
    assert quoted == ["The old clock on the wall has been wrong for seven years now."]


def runs(text: str) -> set[str]:
    """Six words in a row."""
    words = re.findall(r"[a-z']+", text.lower())
    return {" ".join(words[i : i + 6]) for i in range(len(words) - 5)}


def test_held_out_sentences_are_long_apart_and_first(collected: list[Sentence]) -> None:
    splits = [sentence.split for sentence in collected]
    assert splits == sorted(splits, key=["test", "train"].index)
    test = [s for s in collected if s.split == "test"]
    assert all(len(re.findall(r"[\w']+", s.text)) >= sentences.HELD_OUT_WORDS for s in test)
    assert Counter(s.id[:4] for s in test)["live"] == sentences.HELD_OUT * sentences.LIVESTREAM_SHARE
    held = set().union(*(runs(s.text) for s in test))
    assert all(held.isdisjoint(runs(s.text)) for s in collected if s.split == "train")
    assert {s.split for s in collected if s.id.startswith("chat")} == {"train"}


def test_templates_are_held_out_whole(collected: list[Sentence]) -> None:
    template_of = dict(sentences.livestream(sentences.LIVESTREAM_LINES))
    used: dict[str, set[str]] = {}
    for sentence in collected:
        if sentence.id.startswith("live"):
            used.setdefault(template_of[sentence.text], set()).add(sentence.split)
    assert {"test"} in used.values()
    assert all(len(splits) == 1 for splits in used.values())


def test_what_the_demo_is_judged_by_is_new_to_it(collected: list[Sentence]) -> None:
    train = [s.text for s in collected if s.split == "train"]
    trained = set().union(*map(runs, train))
    names = ("lines.txt", "chat-lines.txt", "short-lines.txt")
    lines, chat, rows = ((ROOT / "tests/quality" / name).read_text().splitlines() for name in names)
    assert (len(lines), len(set(chat))) == (20, 100)
    assert set(lines) <= {s.text for s in collected if s.split == "test"}
    spoken = [text for _, text in ship.REFERENCES.values()]
    for line in (*chat, *spoken, sentences.UNSEEN):
        assert trained.isdisjoint(runs(line)), line
    assert set(chat).isdisjoint(train) and all(map(PLAIN.fullmatch, chat))
    short = [row.split(" | ")[0] for row in rows]
    assert len(set(short)) == 60 and max(len(text.split()) for text in short) == 3
    # Which short ones are drawn depends on the fortunes, of which there are few here.
    whole = [s.text for s in collected if s.split == "train" and not s.id.startswith("mini")]
    assert set(short).isdisjoint(" ".join(re.findall("[a-z']+", text.lower())) for text in whole)


def test_livestream_lines_fill_every_slot_and_are_plain() -> None:
    data = yaml.safe_load(sentences.LIVESTREAM.read_text())
    assert len(data["templates"]) == len(set(data["templates"])) > 150
    asked, chatted = (
        {slot for template in templates for slot in re.findall(r"\{(\w+)\}", template)}
        for templates in (data["templates"], data["chat"]["templates"])
    )
    assert asked == set(data["slots"])
    assert set(data["chat"]["slots"]) <= chatted <= asked | set(data["chat"]["slots"])
    for lines in ([line for line, _ in sentences.livestream(3_000)], sentences.chat(2_000)):
        assert len(set(lines)) == len(lines) >= 2_000
        assert all(map(PLAIN.fullmatch, lines))


def test_rare_and_short_texts_are_of_what_the_others_lack_or_have() -> None:
    others = [
        "The cat sat, as cats do.",
        "The cat saw the dog run away, and the moon rose over it.",
        "No!",
    ] * 2
    words = [f"{a}{b}ing" for a in "bdfgklm" for b in ("ell", "unn", "ast", "erk")]
    words += ["Norway", "cat's", "cat"]
    lines = sentences.rare(words, others * 2)
    assert len(lines) == sentences.RARE_LINES and all(map(PLAIN.fullmatch, lines))
    said = {word for line in lines for word in re.findall(r"[a-z']+", line.lower())} - {"and"}
    assert said == {word.lower() for word in words} - {"cat's", "cat"}
    short = sentences.brief(others)
    assert sentences.brief(others[::-1]) == short
    texts = {line.rstrip(".?!").lower() for line in short}
    assert {"the cat sat", "as cats do", "no"} <= texts and all(map(PLAIN.fullmatch, short))
    assert all(len(text.split()) <= sentences.BRIEF_WORDS[1] for text in texts)


def test_sentences_that_add_most_pairs_of_phones_are_first_of_their_source() -> None:
    texts = [("bi", "test"), ("bɪbɪbɪ", "train"), ("bɪdA", "train"), ("bɪ", "train")]
    lines = [Sentence(f"{of}-{n}", *text) for of in ("fort", "mini") for n, text in enumerate(texts)]
    found = coverage.ordered(lines, str)
    assert sorted(found, key=lines.index) == lines
    for source in ("fort", "mini"):
        own = [s.text for s in found if s.id[:4] == source and s.split == "train"]
        assert own == ["bɪbɪbɪ", "bɪdA", "bɪ"]
    assert [s.split for s in found][-2:] == ["test", "test"]
    more = coverage.greedy([lines[1], lines[1], lines[2]], str)
    assert [s.text for s in more] == ["bɪbɪbɪ", "bɪdA", "bɪbɪbɪ"], "a pair that was had counts less"


# Teachers


def test_phones_are_timed_by_their_frames() -> None:
    #                   pad  h  ˈ  I  —  t  ˈ  u  .  pad
    lasting = np.array([7, 10, 20, 5, 3, 30, 40, 2, 50, 60])
    assert teachers.timed("hˈI—tˈu.", lasting) == [
        ("h", 7, 17), ("ˈI", 17, 42), (",", 42, 45), ("t", 45, 75), ("ˈu", 75, 117), (".", 117, 167),
    ]  # fmt: skip


def test_a_teacher_is_asked_for_phonemes_it_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inputs and outputs of the session are those of hibari-tts 0.2.1, which the next test asks itself."""

    class Hibari:
        vocab: ClassVar[dict[str, int]] = {" ": 1, "a": 2, "b": 3}
        model_path = str(tmp_path / "model.onnx")

        def __init__(self, threads: int) -> None:
            self.g2p = str.lower

    class Session:
        def run(self, _: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            assert inputs["ids"].tolist() == [[0, 2, 1, 3, 0]]
            frames = np.array([[1, 2, 1, 3, 1]]) / inputs["speed"]
            count = int(frames.sum() * 2)
            pitch = np.where(np.arange(count) < 4, 30.0, 120.0)[None]
            return [*np.zeros((5, 1, 1)), pitch, frames]

    dsp = SimpleNamespace(synth=lambda *parts: np.full(PITCH_HOP * len(parts[5]), -0.5))
    module = ModuleType("hibari")
    module.__dict__.update(Hibari=Hibari, dsp=dsp)
    monkeypatch.setitem(sys.modules, "hibari", module)
    (tmp_path / "model.onnx").write_bytes(b"")
    monkeypatch.setattr(teachers, "_session", lambda *_: Session())
    teacher = Teachers(tmp_path)
    assert teacher.speak(HEART, "A c") is None
    spoken = teacher.speak(HEART, "A B")
    assert spoken is not None
    assert spoken.phones == [("æ", 600, 1800), (" ", 1800, 2400), ("b", 2400, 4200)]
    assert spoken.pitch.tolist() == [0.0] * 4 + [120.0] * 12
    assert len(spoken.samples) == 8 * 600 and (spoken.samples == -16384).all()


def test_the_teacher_speaks_the_same_twice_and_its_phones_in_their_order(tmp_path: Path) -> None:
    pytest.importorskip("hibari", reason="the teachers are not installed (scripts/requirements/voice.txt)")
    text = "Thanks for the follow, and welcome to the stream."
    teacher = Teachers(tmp_path)
    one, other = teacher.speak(HEART, text), teacher.speak(HEART, text)
    assert one is not None and other is not None
    np.testing.assert_array_equal(one.samples, other.samples)
    assert [token for token, _, _ in one.phones] == alphabet.tokens(teacher.hibari.g2p(text))
    times = [time for _, begin, end in one.phones for time in (begin, end)]
    assert times == sorted(times) and times[-1] <= len(one.samples)
    assert abs(len(one.pitch) * PITCH_HOP - len(one.samples)) <= 2 * PITCH_HOP
    clip = store._clip(store.trimmed(one), True)
    voiced = clip["pitch"][clip["pitch"] > 0]
    assert 0.3 < len(voiced) / len(clip["pitch"]) < 0.95 and 120 < np.median(voiced) < 300


# Clips


@pytest.mark.parametrize("period", [60, 107, 251])
def test_pitch_is_that_at_which_the_sound_repeats(period: int) -> None:
    rng = np.random.default_rng(period)
    wave = np.tile(rng.standard_normal(period), 24_000 // period).astype(np.float32)
    wave[12_000:] = rng.standard_normal(len(wave) - 12_000)
    at = np.arange(20, 70) * 256
    asked = np.full(len(at), SAMPLE_RATE_HZ / period * 1.08, np.float32)
    found = store.refined(wave, asked, at)
    inside = at < 12_000 - 2 * PERIODIC_WINDOW - period
    step = 0.5 * np.log(2) * store.NEAR_OCTAVES / store.NEAR_STEPS + 0.5 / period
    assert np.abs(np.log(found[inside] * period / SAMPLE_RATE_HZ)).max() <= step
    assert not found[at > 12_000 + PERIODIC_WINDOW + period].any()
    assert not store.refined(wave, 0 * asked, at).any()


def test_silence_is_trimmed_and_phones_and_pitch_move_with_it() -> None:
    tone = hum(np.random.default_rng(0), 24_000, "bɪdA")
    silence = np.zeros(12_000, np.int16)
    phones = [(token, begin + 12_000, end + 12_000) for token, begin, end in tone.phones]
    pitch = np.concatenate([np.zeros(40), tone.pitch, np.zeros(40)])
    trimmed = store.trimmed(Utterance(np.concatenate([silence, tone.samples, silence]), phones, pitch))
    first, margin = trimmed.phones[0][1], round(SAMPLE_RATE_HZ * MARGIN_S)
    assert margin <= first < margin + PITCH_HOP and (12_000 - first) % PITCH_HOP == 0
    np.testing.assert_array_equal(trimmed.samples[first : first + 24_000], tone.samples)
    assert [end - begin for _, begin, end in trimmed.phones] == [e - b for _, b, e in tone.phones]
    np.testing.assert_array_equal(trimmed.pitch[first // PITCH_HOP :][:80], tone.pitch)
    assert len(trimmed.samples) == first + 24_000 + margin


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = write_store(tmp_path)
    assert {clip.voice for clip in made.clips} == set(VOICES)
    assert sum(clip.samples for clip in made.clips) == len(made.audio)
    assert sum(clip.frames for clip in made.clips) == len(made.mels) == len(made.spoken) == len(made.pitch)
    for clip in made.clips[::7]:
        wave = made.audio[clip.begin : clip.begin + clip.samples] / store.FULL_SCALE
        own = slice(clip.start, clip.start + clip.frames)
        heard = log_mel(wave.astype(np.float32), store.SPEC)
        assert np.abs(made.mels[own] - heard).mean() < 1e-3 and heard.std() > 1
        assert np.sqrt(np.mean(wave**2)) == pytest.approx(store.TARGET_RMS, rel=1e-3)
        said, spoken = alphabet.tokens(clip.phones), made.spoken[own]
        assert spoken[0] == 0 and (np.diff(spoken) >= 0).all() and spoken[-1] == len(said) - 1
        wanted = np.arange(clip.frames) * len(said) // clip.frames
        assert np.abs(spoken - wanted).max() <= 1
        assert 95 < made.pitch[own][made.pitch[own] > 0].mean() < 235
    test = [clip.id for clip in made.clips if clip.split == "test"]
    assert test == [f"live-{n}-{voice}" for voice in sorted(VOICES) for n in (0, 8, 16)]
    with pytest.raises(ValueError, match="has no clips"):
        Store(tmp_path / "nothing")


def test_a_corpus_is_made_until_it_is_long_enough_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SHARD", 4), ("Teachers", Hums), ("_teachers", None)):
        monkeypatch.setattr(make, name, value)
    pool = SimpleNamespace(imap_unordered=map, terminate=lambda: None)
    context = SimpleNamespace(Pool=lambda _: nullcontext(pool))
    monkeypatch.setattr(make.multiprocessing, "get_context", lambda _: context)
    monkeypatch.setattr(Hums, "asked", [])
    lines = [Sentence(f"live-{n:010x}", f"number {english(n)}.", "train") for n in range(40)]
    spoken = [line.text for line in lines if "x" not in line.text]
    for hours, clips, asked in ((8 / 3600, 7, 8), (1.0, len(spoken), len(lines))):
        make.make(tmp_path, lines, HEART, hours, 1, tmp_path, pitch=False)
        assert [clip.text for clip in Store(tmp_path).clips] == spoken[:clips]
        assert len(Hums.asked) == asked


def test_a_missing_corpus_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "nothing")
    assert main(["train", "--corpus", missing, "--folder", missing, "--steps", "1", "--cooldown", "1"]) == 1
    assert capsys.readouterr().err.startswith(f"export.demo: {missing}: has no clips")

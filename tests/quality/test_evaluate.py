"""The scores and sentences of the quality measurement, with metrics that read marks instead of speech."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml

from appliance.contract.bundle import MANIFEST, Sampling
from appliance.request import FloatArray, Segmentation
from export.demo.corpus import sentences
from export.demo.corpus.sentences import Sentence
from export.demo.corpus.teachers import HEART, MICHAEL, Utterance
from tests.daemons import BUNDLE, reference_wav
from tests.quality import evaluate
from tests.quality.broken import BROKEN
from tests.quality.evaluate import Line, Record
from tests.quality.judges import Errors, Silence, Sound
from tests.quality.mouth import Mouth, Reference, references_in
from tests.quality.scoring import Reply, score

pytestmark = pytest.mark.torch

RATE_HZ = 24_000
VOICES = {"heart": np.array([1.0, 0.0], np.float32), "michael": np.array([0.0, 1.0], np.float32)}


class Marks:
    """Metrics read off the first samples: wrong words, share of heart in the voice, naturalness, pause."""

    def errors(self, reply: Reply) -> Errors:
        return Errors(int(reply.samples[0]), len(reply.text.split()))

    def embed(self, sound: Sound, rate_hz: int) -> FloatArray:
        return np.array([sound[1], 1.0 - sound[1]], np.float32)

    def naturalness(self, reply: Reply) -> float:
        return float(reply.samples[2])

    def silence(self, reply: Reply) -> Silence:
        return Silence(0.1, 0.2, float(reply.samples[3]), 1.0)


def reply(wrong: int, heart: float, voice: str = "heart", wall_s: float | None = None) -> Reply:
    samples = np.zeros(RATE_HZ, np.float32)
    samples[:4] = wrong, heart, 3.0, wrong
    return Reply("four words are here", voice, samples, RATE_HZ, wall_s)


def test_scores_pool_words_and_compare_voices() -> None:
    replies = [reply(0, 0.9, wall_s=0.3), reply(3, 0.8, wall_s=0.1), reply(1, 0.7, "michael", wall_s=0.2)]
    scores = score(replies, VOICES, Marks())
    assert (scores.replies, scores.words, scores.wer) == (3, 12, pytest.approx(4 / 12))
    assert scores.own_voice == pytest.approx(2 / 3)  # the third speaks with heart's voice
    assert scores.similarity == pytest.approx((0.9 + 0.8 + 0.3) / 3, abs=1e-6)
    assert scores.similarity_other == pytest.approx((0.1 + 0.2 + 0.7) / 3, abs=1e-6)
    assert scores.longest_pause == 3.0
    assert scores.rtf == pytest.approx(0.2)
    assert score([reply(0, 1.0)], VOICES, Marks()).rtf is None


def held_out(folder: Path, count: int) -> Path:
    """`count` sentences to test and as many to validate, as a corpus has them."""
    texts = [Sentence(f"live-{n:010x}", f"test sentence {n}", "test") for n in reversed(range(count))]
    texts += [Sentence(f"fort-{n:010x}", f"valid sentence {n}", "valid") for n in range(count)]
    sentences.write(texts, folder / "sentences.jsonl")
    return folder / "sentences.jsonl"


def test_each_held_out_sentence_is_spoken_once_and_the_voices_take_turns(tmp_path: Path) -> None:
    chosen = evaluate.alternating(held_out(tmp_path, 6), ["heart", "michael"])
    assert [line.text for line in chosen] == [f"test sentence {n}" for n in range(6)]
    assert [line.voice for line in chosen] == ["heart", "michael"] * 3


def test_lines_of_a_file_are_spoken_by_every_voice_and_stand_in_for_a_corpus(
    tmp_path: Path, references: Mapping[str, Reference]
) -> None:
    def prepared(**options: Path | int) -> evaluate.Evaluation:
        record = Record(tmp_path / "record.json")
        return evaluate.prepare(tmp_path / "voices", Marks(), record, **options)  # type: ignore[arg-type]

    lines = tmp_path / "some.txt"
    lines.write_text("one\ntwo\n")
    chosen = prepared(lines=lines)
    both = [Line(text, voice) for text in ("one", "two") for voice in ("heart", "michael")]
    assert (chosen.lines, chosen.texts) == (both, "some.txt")
    assert prepared(lines=lines, most=3).lines == both[:3]
    ours = prepared(held_out=tmp_path / "no corpus")
    assert (len(ours.lines), ours.texts) == (40, "lines.txt")
    assert prepared(held_out=held_out(tmp_path, 6)).texts == evaluate.IN_TURN
    (tmp_path / "voices" / "michael.txt").unlink()
    with pytest.raises(ValueError, match="another to tell it from"):
        prepared(lines=lines)


class Taught:
    """In the place of the teachers: marks of what each is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def speak(self, voice: str, text: str) -> Utterance:
        self.asked.append((voice, text))
        samples = np.tile(np.array([1, 0, 3, 2], np.int16), RATE_HZ // 4)
        return Utterance(samples, [], np.zeros(RATE_HZ // 300, np.float32))


def test_the_teachers_are_the_ceiling_and_are_asked_once(tmp_path: Path) -> None:
    record, teachers = Record(tmp_path / "record.json"), Taught()
    lines = [Line("four words are here", voice) for voice in ("heart", "michael")]
    evaluation = evaluate.Evaluation(lines, {}, VOICES, Marks(), record, teachers=teachers)  # type: ignore[arg-type]
    row = evaluation.teacher()
    assert [voice for voice, _ in teachers.asked] == [HEART, MICHAEL]
    assert (row.scores.wer, row.scores.naturalness, row.scores.over_teacher) == (0.25, 3.0, None)
    assert evaluation.teacher() == row and len(teachers.asked) == 2
    assert Record(tmp_path / "record.json").rows == [row]


def test_teachers_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.installed(["heart", "somebody"], tmp_path) is None
    assert "somebody" in capsys.readouterr().err
    assert evaluate.installed(["heart", "michael"], tmp_path / "none") is None
    assert "none: python -m export.demo corpus fetches them" in capsys.readouterr().err


@pytest.fixture
def references(tmp_path: Path) -> Mapping[str, Reference]:
    folder = tmp_path / "voices"
    folder.mkdir()
    for name, level in (("heart", 0.3), ("michael", 0.2)):
        (folder / f"{name}.wav").write_bytes(reference_wav(level=level))
        (folder / f"{name}.txt").write_text("These are tones and pauses, not words.\n")
    (folder / "silent.txt").write_text("no recording")
    return references_in(folder)


def test_a_mouth_speaks_the_same_twice_and_differently_when_broken(
    tmp_path: Path, references: Mapping[str, Reference]
) -> None:
    def said(damage: str | None = None, sampling: Sampling = "exact") -> FloatArray:
        breaks = None if damage is None else BROKEN[damage]
        how = {"nfe": 5, "seed": 1, "segmentation": Segmentation.UPSTREAM, "sampling": sampling}
        with Mouth(BUNDLE, references, tmp_path / "work", threads=1, damage=breaks) as mouth:
            mouth.speak("hello there", "heart", **how)
            return mouth.speak("hello there", "heart", **how).samples

    whole = said()
    np.testing.assert_array_equal(whole, said())
    for damage in BROKEN:
        assert np.abs(said(damage) - whole).max() > 1e-4, damage
    short, keys_kept = said(sampling="short"), said(sampling="short-kv")
    assert np.abs(short - whole).max() > 1e-4
    assert np.abs(keys_kept - short).max() > 1e-4


def test_a_bundle_of_few_steps_takes_those(tmp_path: Path, references: Mapping[str, Reference]) -> None:
    student = tmp_path / "student"
    shutil.copytree(BUNDLE, student)
    raw = yaml.safe_load((student / MANIFEST).read_text())
    (student / MANIFEST).write_text(yaml.safe_dump({**raw, "sampler": {"steps": [2, 3]}}))
    how = {"seed": 1, "segmentation": Segmentation.UPSTREAM}
    with Mouth(student, references, tmp_path / "work", threads=1) as mouth:
        segments, _, samples = mouth.parts("hello there", "heart", **how)
        assert [len(segment.times) - 1 for segment in segments] == [3]
        np.testing.assert_array_equal(samples, mouth.speak("hello there", "heart", nfe=3, **how).samples)
        with pytest.raises(ValueError, match="must be 2 or 3 with this bundle, not 7"):
            mouth.speak("hello there", "heart", nfe=7, **how)

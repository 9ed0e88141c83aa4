"""The scores and sentences of the quality measurement, with metrics that read marks instead of speech."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from appliance.contract.bundle import MANIFEST, Sampling
from appliance.request import FloatArray, Segmentation
from export.recogniser import Sound
from tests.harness.daemons import BUNDLE, reference_wav
from tests.measure.quality import evaluate
from tests.measure.quality.broken import BROKEN
from tests.measure.quality.evaluate import Line, Record, table
from tests.measure.quality.judges import Silence
from tests.measure.quality.mouth import Mouth, Reference, references_in
from tests.measure.quality.scoring import Reply, pooled, score

pytestmark = pytest.mark.torch

RATE_HZ = 24_000
TEXT = "four words are here"
VOICES = {"heart": np.array([1.0, 0.0], np.float32), "michael": np.array([0.0, 1.0], np.float32)}


class Marks:
    """Judges that read the first samples: words left out, share of heart in the voice, naturalness, pause."""

    def transcript(self, sound: Sound, rate_hz: int) -> str:
        return " ".join(TEXT.split()[int(sound[0]) :])

    def embed(self, sound: Sound, rate_hz: int) -> FloatArray:
        return np.array([sound[1], 1.0 - sound[1]], np.float32)

    def naturalness(self, sound: Sound, rate_hz: int) -> float:
        return float(sound[2])

    def silence(self, sound: Sound, rate_hz: int) -> Silence:
        return Silence(0.1, 0.2, float(sound[3]), 1.0)


def marked(wrong: int, heart: float, seconds: float = 1.0) -> FloatArray:
    samples = np.zeros(round(seconds * RATE_HZ), np.float32)
    samples[:4] = wrong, heart, 3.0, wrong
    return samples


def reply(wrong: int, heart: float, voice: str = "heart", seconds: float = 1.0) -> Reply:
    return Reply(TEXT, voice, marked(wrong, heart, seconds), RATE_HZ)


def test_scores_pool_words_and_compare_voices() -> None:
    # The last is too short to tell whose voice it is.
    replies = [reply(0, 0.9), reply(3, 0.8), reply(1, 0.7, "michael"), reply(0, 0.0, seconds=0.3)]
    scores = score(replies, VOICES, Marks())
    assert (scores.replies, scores.wrong, scores.words) == (4, 4, 16)
    assert scores.own_voice == pytest.approx(2 / 3)  # the third speaks with heart's voice
    assert scores.similarity == pytest.approx((0.9 + 0.8 + 0.3) / 3, abs=1e-6)
    assert scores.similarity_other == pytest.approx((0.1 + 0.2 + 0.7) / 3, abs=1e-6)
    assert scores.longest_pause == 3.0
    parts = [score(some, VOICES, Marks()) for some in (replies[:1], replies[1:])]
    assert asdict(pooled(parts)) == pytest.approx(asdict(scores), abs=1e-6)


def test_a_row_counts_each_draw_is_kept_and_not_measured_again(tmp_path: Path) -> None:
    asked: list[tuple[str, str, int]] = []

    def say(line: Line, seed: int) -> tuple[Sound, int]:
        asked.append((line.text, line.voice, seed))
        return marked(seed // evaluate.SEEDS, 0.9), RATE_HZ

    lines = [Line(TEXT, voice, number) for number in (0, 1) for voice in VOICES]
    record = Record(tmp_path / "record.json")
    evaluation = evaluate.Evaluation(VOICES, Marks(), record, 3)
    model = evaluate.Model("some", "fp32", "", "abc", say)
    rows = [evaluation.row(model, "lines", lines, voice) for voice in VOICES]
    assert asked[:6] == [(TEXT, "heart", s + n) for n in (0, 10_000, 20_000) for s in (0, 1)]
    assert rows[0].draws == [[0, 8], [2, 8], [4, 8]] and rows[0].scores.wer == 0.25
    _, heart, _, both = table(rows).splitlines()
    assert "25.0" in heart and "0.0–50.0" in heart and "100.0" in heart
    assert both.split()[3:6] == ["all", "12", "48"] and "50.0" in both
    assert evaluation.row(model, "lines", lines, "heart") == rows[0] and len(asked) == 12
    assert Record(tmp_path / "record.json").rows == rows
    # Another bundle of the name takes the row's place.
    newest = evaluation.row(replace(model, fingerprint="new"), "lines", lines, "heart")
    assert record.rows == [rows[1], newest]


def test_the_command_measures_a_bundle_and_names_what_is_missing(
    tmp_path: Path, references: Mapping[str, Reference], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.txt").write_text("hello there\n")
    folders = ["--voices", str(tmp_path / "voices"), "--record", str(tmp_path / "record.json")]
    command = [str(BUNDLE), "--sets", str(tmp_path / "some.txt"), *folders, "--threads", "1"]
    assert evaluate.main(command, Marks) == 0
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "heart",
        "michael",
        "all",
    ]
    (tmp_path / "voices" / "michael.txt").unlink()
    assert evaluate.main(command, Marks) == 1
    assert "another to tell it from" in capsys.readouterr().err
    (tmp_path / "record.json").write_text('{"rows": [{"model": "demo", "scores": {"wer": 0.1}}]}')
    with pytest.raises(ValueError, match="not a record of this version"):
        Record(tmp_path / "record.json")


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
            return mouth.speak("hello there", "heart", **how)

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
        np.testing.assert_array_equal(samples, mouth.speak("hello there", "heart", nfe=3, **how))
        with pytest.raises(ValueError, match="must be 2 or 3 with this bundle, not 7"):
            mouth.speak("hello there", "heart", nfe=7, **how)

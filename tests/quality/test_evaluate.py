"""The scores and sentences of the quality measurement, with metrics that read marks instead of speech."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile

from appliance.contract.bundle import Sampling
from appliance.request import FloatArray, Segmentation
from export.demo import corpus as corpora
from export.demo.corpus import Clip, CorpusError
from export.demo.sentences import Split
from export.demo.speech_metrics import Errors, Sound
from tests.daemons import BUNDLE, reference_wav
from tests.quality import evaluate
from tests.quality.broken import BROKEN
from tests.quality.judges import Silence
from tests.quality.mouth import Mouth, Reference, references_in
from tests.quality.scoring import Reply, score

pytestmark = pytest.mark.torch

RATE_HZ = 24_000
VOICES = {"bdl": np.array([1.0, 0.0], np.float32), "slt": np.array([0.0, 1.0], np.float32)}


class Marks:
    """Metrics read off the first samples: wrong words, share of bdl in the voice, naturalness, pause."""

    def errors(self, reply: Reply) -> Errors:
        return Errors(int(reply.samples[0]), len(reply.text.split()))

    def embed(self, sound: Sound, rate_hz: int) -> FloatArray:
        return np.array([sound[1], 1.0 - sound[1]], np.float32)

    def naturalness(self, reply: Reply) -> float:
        return float(reply.samples[2])

    def silence(self, reply: Reply) -> Silence:
        return Silence(0.1, 0.2, float(reply.samples[3]), 1.0)


def reply(wrong: int, bdl: float, voice: str = "bdl", wall_s: float | None = None) -> Reply:
    samples = np.zeros(RATE_HZ, np.float32)
    samples[:4] = wrong, bdl, 3.0, wrong
    return Reply("four words are here", voice, samples, RATE_HZ, wall_s)


def test_scores_pool_words_and_compare_voices() -> None:
    replies = [reply(0, 0.9, wall_s=0.3), reply(3, 0.8, wall_s=0.1), reply(1, 0.7, "slt", wall_s=0.2)]
    scores = score(replies, VOICES, Marks())
    assert (scores.replies, scores.words, scores.wer) == (3, 12, pytest.approx(4 / 12))
    assert scores.own_voice == pytest.approx(2 / 3)  # the third speaks with bdl's voice
    assert scores.similarity == pytest.approx((0.9 + 0.8 + 0.3) / 3, abs=1e-6)
    assert scores.similarity_other == pytest.approx((0.1 + 0.2 + 0.7) / 3, abs=1e-6)
    assert scores.longest_pause == 3.0
    assert scores.rtf == pytest.approx(0.2)
    assert score([reply(0, 1.0)], VOICES, Marks()).rtf is None


def write_corpus(folder: Path, clips: Sequence[Clip]) -> None:
    """A corpus of tones, as `corpus make` lays it out."""
    for voice in ("bdl", "slt"):
        chosen = [clip for clip in clips if clip.voice == voice]
        (folder / "audio" / voice).mkdir(parents=True)
        wave = np.arange(sum(clip.samples for clip in chosen)) % 200 * 100
        np.save(folder / "audio" / voice / "00000.npy", wave.astype(np.int16))
    lines = (json.dumps({**vars(clip)}) + "\n" for clip in clips)
    (folder / "clips.jsonl").write_text("".join(lines))


def clips(count: int, seconds: float = 5.0) -> list[Clip]:
    """`count` held-out sentences and as many for validation, each by both voices."""
    made = []
    splits: tuple[Split, ...] = ("test", "valid")
    for voice in ("bdl", "slt"):
        for n, (split, i) in enumerate((s, i) for s in splits for i in range(count)):
            size = round(seconds * RATE_HZ)
            name = f"live-{n:010x}-{voice}"
            made.append(Clip(name, voice, f"{split} sentence {i}", split, 0, n * size, size))
    return made


def test_each_sentence_is_spoken_once_and_the_voices_take_turns() -> None:
    chosen = list(evaluate.alternating(clips(6), ["bdl", "slt"]))
    assert sorted(clip.text for clip in chosen) == [f"test sentence {i}" for i in range(6)]
    assert [clip.voice for clip in chosen] == ["bdl", "slt"] * 3


def test_lines_are_held_out_and_spoken_by_every_voice(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("test sentence 4\ntest sentence 1\n")
    chosen = list(evaluate.spoken_by_each(clips(6), ["bdl", "slt"], lines))
    assert [(clip.text[-1], clip.voice) for clip in chosen] == [
        ("4", "bdl"),
        ("4", "slt"),
        ("1", "bdl"),
        ("1", "slt"),
    ]
    lines.write_text("valid sentence 4\n")
    with pytest.raises(CorpusError, match="'valid sentence 4' is not held out"):
        list(evaluate.spoken_by_each(clips(6), ["bdl", "slt"], lines))


def test_references_come_from_validation_and_our_own_text(tmp_path: Path) -> None:
    write_corpus(tmp_path, clips(2))
    made = evaluate.references_from(tmp_path, corpora.read_clips(tmp_path), tmp_path / "references")
    assert sorted(made) == ["bdl", "slt"]
    assert made["bdl"].transcript.startswith("valid sentence")
    assert soundfile.info(made["bdl"].audio).duration == 5.0


@pytest.fixture
def references(tmp_path: Path) -> Mapping[str, Reference]:
    folder = tmp_path / "voices"
    folder.mkdir()
    for name, level in (("bdl", 0.3), ("slt", 0.2)):
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
            mouth.speak("hello there", "bdl", **how)
            return mouth.speak("hello there", "bdl", **how).samples

    whole = said()
    np.testing.assert_array_equal(whole, said())
    for damage in BROKEN:
        assert np.abs(said(damage) - whole).max() > 1e-4, damage
    short, keys_kept = said(sampling="short"), said(sampling="short-kv")
    assert np.abs(short - whole).max() > 1e-4
    assert np.abs(keys_kept - short).max() > 1e-4

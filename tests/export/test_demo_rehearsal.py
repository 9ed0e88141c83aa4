"""The demo voice rehearsed: the script that trains it, at a small size, then a bundle that the engine speaks
with, and back into upstream's layout.

The teachers speak where `python -m export.demo corpus` has fetched them, else hums are their stand-in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle
from appliance.contract.tokens import read_vocabulary
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.plan import Planner
from appliance.request import Reference, Request, Segmentation
from appliance.text.phones.alphabet import TOKENS
from appliance.text.tokens.tokenizers import maker
from appliance.voices.reference import prepare
from appliance.voices.rules import complete_transcript
from export.demo import commands
from export.demo.commands import main
from export.demo.corpus import sentences, store
from export.demo.corpus.sentences import Sentence
from export.demo.shipping import rebuild, ship
from export.demo.training import loop, train
from export.families import family
from export.graphs.condition import Condition
from export.graphs.modulation import Modulation
from export.graphs.step import Step
from export.model.dit import DiT
from export.model.redraw import redraw
from export.proof import parity
from export.sources.checkpoint import load_dit
from tests.export.demo import PASSES, STAND_IN, Hums
from tests.export.small import ARCHS, MELS, Workshop, brief_gate

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.thorough]
ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / commands.TEACHERS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a dozen sentences, and the teachers or their stand-in."""
    made = tmp_path_factory.mktemp("rehearsal")
    lines = [line for line in sentences.chat(40) if "x" not in line][:12]
    chat = [Sentence(f"chat-{number:010x}", line, "train") for number, line in enumerate(lines)]
    sentences.write(chat, made / "work/corpus/sentences.jsonl")
    if FETCHED.is_dir():
        (made / "work/teachers").symlink_to(FETCHED)
    else:
        (made / "work/teachers").mkdir()
        (made / "work/teachers" / STAND_IN).touch()
    return made


@pytest.fixture(scope="module", autouse=True)
def _quick(workshop: Workshop) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, workshop.reusing_traces(), brief_gate():
        # After four steps of training no sampling is near the exact one.
        patch.setattr(parity, "SAMPLING_BOUND", 100.0)
        if not FETCHED.is_dir():
            patch.setattr(ship, "Teachers", Hums)
        yield


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """Output of `scripts/train-demo-on-gpu`, whose every command runs, on the CPU."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.export.demo "$@"\n')
    python.chmod(0o755)
    script = [ROOT / "scripts/train-demo-on-gpu", "3600", folder / "out", "--work", folder / "work"]
    sizes = ["--device", "cpu", "--student", "10", "--heart", "0.001", "--michael", "0.001"]
    environment = {**os.environ, "PYTHON": str(python), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*script, *sizes], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def command(trained: Path, out: Path) -> list[str]:
    paths = ["--vocoder", str(trained / "vocoder"), "--weights", str(trained / "student"), "--out", str(out)]
    teachers = trained.parent / "work/teachers"
    return ["ship", *paths, "--teachers", str(teachers), "--licence", "Apache-2.0"]


@pytest.fixture(scope="module")
def shipped(folder: Path, trained: Path) -> Bundle:
    assert main(command(trained, folder / "voice")) == 0
    return contract.read(folder / "voice" / "bundle")


@pytest.fixture(scope="module")
def rebuilt(folder: Path, shipped: Bundle) -> Path:
    assert main(["rebuild", str(shipped.folder), "--out", str(folder / "rebuilt")]) == 0
    return folder / "rebuilt"


def test_the_script_trains_both_voices_and_logs(folder: Path, trained: Path) -> None:
    corpus = store.Store(folder / "work/corpus")
    assert {clip.voice for clip in corpus.clips} == {name for name, _ in ship.REFERENCES.values()}
    learned, student = (train.read_average(trained / stage) for stage in ("learned", "student"))
    assert (learned[0].stage, student[0].stage, student[0].passes) == ("learn", "student", PASSES)
    assert learned[1].keys() == student[1].keys()
    assert any(not torch.equal(value, student[1][name]) for name, value in learned[1].items())
    for part, steps in (("train", 4), ("student", 4), ("vocoder", 3)):
        state = loop.read(folder / "work" / part / loop.CHECKPOINT)
        assert state["place"]["step"] == steps
        assert (trained / f"{part}.jsonl").read_text()


def test_what_is_shipped_is_small_measured_licensed_and_a_student(shipped: Bundle) -> None:
    manifest = shipped.manifest
    assert (manifest.family, manifest.precision, manifest.licence.weights) == ("demo", "fp16", "Apache-2.0")
    assert manifest.parity["rows"]
    assert manifest.vocab_size == len(TOKENS)
    assert (manifest.sampler.guidance, manifest.sampler.steps, manifest.defaults.guidance) == (
        "none",
        (PASSES,),
        0,
    )
    assert manifest.vocoder.name == "source-filter"
    steps = 1 - np.cos(np.pi / 2 * np.arange(PASSES + 1) / PASSES)
    np.testing.assert_allclose(manifest.times(PASSES), steps, atol=1e-12)


def test_a_second_or_too_large_a_voice_is_refused(
    folder: Path,
    trained: Path,
    shipped: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(command(trained, shipped.folder.parent)) == 1
    assert "exists; remove it" in capsys.readouterr().err
    monkeypatch.setattr(ship, "LARGEST_BYTES", 1000)
    monkeypatch.setattr(
        ship, "make_bundle", lambda *_: (_[-1].mkdir(), (_[-1] / "x").write_bytes(b" " * 1001))
    )
    assert main(command(trained, folder / "no")) == 1
    assert "train a smaller model" in capsys.readouterr().err and not (folder / "no").exists()


def test_reference_voices_are_levelled_and_have_their_text(folder: Path, shipped: Bundle) -> None:
    for voice, (name, text) in ship.REFERENCES.items():
        path = folder / "voice" / "voices" / f"{voice}.wav"
        wave, rate = soundfile.read(path)
        assert rate == 24_000
        assert np.sqrt(np.mean(wave**2)) == pytest.approx(0.1, rel=0.02)
        assert path.with_suffix(".txt").read_text().strip() == text
        if not FETCHED.is_dir():
            lasts = 1.25 / ship.REFERENCE_RATE + 2 * store.MARGIN_S
            assert len(wave) / rate == pytest.approx(lasts, abs=0.03)
            assert (name, text, ship.REFERENCE_RATE) in Hums.asked


def test_the_rebuilt_checkpoint_is_the_trained_one_in_half_precision(rebuilt: Path, trained: Path) -> None:
    read, vocabulary = family(str(rebuilt / ship.FAMILY)), read_vocabulary(rebuilt / ship.VOCAB)
    recipe, average = train.read_average(trained / "student")
    assert read.arch == recipe.arch
    found = load_dit(rebuilt / ship.CHECKPOINT, read.arch, vocabulary.size)
    for name, wanted in average.items():
        torch.testing.assert_close(
            found[name], wanted, rtol=1e-3, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_training_begins_with_rebuilt_weights(
    rebuilt: Path, trained: Path, folder: Path, tmp_path: Path
) -> None:
    recipe, average = train.read_average(trained / "student")
    trainer = train.Trainer(recipe, store.Store(folder / "work/corpus"), tmp_path)
    trainer.initialise_from(rebuilt)
    for name, weight in trainer.dit.state_dict().items():
        torch.testing.assert_close(weight, average[name], rtol=1e-3, atol=2e-6)
    wider = train.Trainer(replace(recipe, dim=2 * recipe.dim), store.Store(folder / "work/corpus"), tmp_path)
    with pytest.raises(ValueError, match="shape"):
        wider.initialise_from(rebuilt)


def test_a_bundle_of_the_rebuilt_checkpoint_is_the_shipped_bundle(
    rebuilt: Path, shipped: Bundle, folder: Path
) -> None:
    ship.make_bundle(rebuilt, "Apache-2.0", PASSES, folder / "again")
    again = contract.read(folder / "again").manifest
    assert again.text == shipped.manifest.text and again.text.durations
    for name, file in shipped.manifest.files.items():
        assert again.files[name] == file, f"{name} differs"


def test_the_shipped_bundle_speaks_through_the_engine(folder: Path, shipped: Bundle) -> None:
    voice = folder / "voice" / "voices" / "heart.wav"
    manifest = shipped.manifest
    transcript = complete_transcript(voice.with_suffix(".txt").read_text().strip())
    reference = Reference(transcript, prepare(voice.read_bytes(), manifest.mel, 0.1))
    request = Request("Thanks for the follow!", "heart", PASSES, 1, 0.0, Segmentation.UPSTREAM)
    planner = Planner(
        manifest, read_vocabulary(shipped.vocab), lambda name, style: reference, maker("phones")
    )
    [segment] = planner.plan(request)
    engine = Synthesizer(shipped, OrtBackend(1), lanes=1)
    lane = engine.open(segment)
    for _ in range(request.nfe):
        engine.step([lane.id])
    samples = engine.finish(lane.id)
    assert len(samples) == (segment.frames - segment.reference_frames - 1) * manifest.mel.hop
    assert np.isfinite(samples).all() and samples.std() > 0


@pytest.mark.parametrize("compute", [torch.float32, torch.float16])
@pytest.mark.parametrize("arch", ARCHS.values(), ids=ARCHS)
def test_weights_of_every_option_are_recovered(arch: contract.Arch, compute: torch.dtype) -> None:
    dit = DiT(arch, 30, MELS)
    redraw(dit, 1)
    wanted = dit.state_dict()
    found = {name: torch.zeros_like(value) for name, value in wanted.items()} | dict(dit.named_buffers())
    # Unrounded, float16's weights are scaled like those of any other type but float32.
    alike = compute if compute == torch.float32 else torch.float64
    for made, probe in zip(*(
        [
            lambda w, c=c: Modulation(w, arch, c),
            lambda w, c=c: Condition(w, arch, MELS, 1, c),
            lambda w, c=c: Step(w, arch, MELS, 1, c),
        ]
        for c in (compute, alike)
    ), strict=True):  # fmt: skip
        rebuild.recover(probe, found, dict(dit.named_parameters()), made(wanted).state_dict())
    for name, tensor in wanted.items():
        close = 1e-6 if compute == torch.float32 else 2e-3
        torch.testing.assert_close(found[name], tensor, rtol=close, atol=close * 1e-2, msg=name)

"""Shipping the demo voice: into a bundle that the engine speaks with, and back into upstream's layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
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
from appliance.text.chinese import to_tokens
from appliance.voices.reference import complete_transcript, prepare
from export.checkpoint import load_dit
from export.demo.commands import main
from export.demo.corpus import alphabet, store
from export.demo.shipping import ship
from export.demo.shipping.recover import step_weights
from export.demo.training import vocoder
from export.demo.training.train import Trainer
from export.families import family
from export.model.redraw import redraw
from export.model.source import Source
from tests.export.demo import RECIPE, Hums, write_store
from tests.export.small import MELS, TRACED, VOCABULARY, VOCOS, Workshop, brief_gate

pytestmark = [pytest.mark.torch, pytest.mark.slow]
STUDENT = dataclasses.replace(RECIPE, depth=1, stage="student", passes=3)
SOURCE = dataclasses.replace(VOCOS, head="SourceFilterHead")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ship")


@pytest.fixture(scope="module", autouse=True)
def _quick(workshop: Workshop) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, workshop.reusing_traces(), brief_gate():
        patch.setattr(ship, "Teachers", Hums)
        patch.setattr(vocoder, "CONFIG", SOURCE)
        yield


@pytest.fixture(scope="module")
def trainer(folder: Path, _quick: None) -> Trainer:
    """Weights that were not trained, but under which every path matters."""
    made = Trainer(STUDENT, write_store(folder / "corpus"), folder / "train")
    redraw(made.dit, 5)
    made.average.load_state_dict(made.dit.state_dict())
    made.save()
    model = Source(SOURCE)
    redraw(model, 5)
    vocoder.write_official(model.state_dict(), folder / "vocoder")
    return made


def command(folder: Path, out: Path) -> list[str]:
    weights = [str(folder / "train" / "checkpoint.pt")] * 2
    paths = ["--vocoder", str(folder / "vocoder"), "--out", str(out), "--licence", "Apache-2.0"]
    return ["ship", *paths, "--weights", *weights]


@pytest.fixture(scope="module")
def shipped(folder: Path, trainer: Trainer) -> Bundle:
    assert main(command(folder, folder / "voice")) == 0
    return contract.read(folder / "voice" / "bundle")


@pytest.fixture(scope="module")
def rebuilt(folder: Path, shipped: Bundle) -> Path:
    assert main(["rebuild", str(shipped.folder), "--out", str(folder / "rebuilt")]) == 0
    return folder / "rebuilt"


def test_what_is_shipped_is_small_measured_licensed_and_a_student(shipped: Bundle) -> None:
    manifest = shipped.manifest
    assert (manifest.family, manifest.precision, manifest.licence.weights) == ("demo", "fp16", "Apache-2.0")
    assert manifest.parity["rows"]
    assert manifest.vocab_size == len(alphabet.vocabulary())
    assert (manifest.sampler.guidance, manifest.sampler.steps, manifest.defaults.guidance) == (
        "none",
        (3,),
        0,
    )
    assert manifest.vocoder.name == "source-filter"
    steps = 1 - np.cos(np.pi / 2 * np.arange(4) / 3)
    np.testing.assert_allclose(manifest.times(3), steps, atol=1e-12)


def test_a_second_or_too_large_a_voice_is_refused(
    folder: Path, shipped: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(folder, shipped.folder.parent)) == 1
    assert "exists; remove it" in capsys.readouterr().err
    monkeypatch.setattr(ship, "LARGEST_BYTES", 1000)
    monkeypatch.setattr(
        ship, "make_bundle", lambda *_: (_[-1].mkdir(), (_[-1] / "x").write_bytes(b" " * 1001))
    )
    assert main(command(folder, folder / "no")) == 1
    assert "train a smaller model" in capsys.readouterr().err and not (folder / "no").exists()


def test_reference_voices_are_levelled_and_have_their_text(folder: Path, shipped: Bundle) -> None:
    for voice, (name, text) in ship.REFERENCES.items():
        path = folder / "voice" / "voices" / f"{voice}.wav"
        wave, rate = soundfile.read(path)
        assert rate == 24_000
        assert len(wave) / rate == pytest.approx(1.25 / ship.REFERENCE_RATE + 2 * store.MARGIN_S, abs=0.03)
        assert np.sqrt(np.mean(wave**2)) == pytest.approx(0.1, rel=0.02)
        assert path.with_suffix(".txt").read_text().strip() == text
        assert (name, text, ship.REFERENCE_RATE) in Hums.asked


def test_the_rebuilt_checkpoint_is_the_trained_one_in_half_precision(rebuilt: Path, trainer: Trainer) -> None:
    read, vocabulary = family(str(rebuilt / ship.FAMILY)), read_vocabulary(rebuilt / ship.VOCAB)
    assert read.arch == STUDENT.arch
    found = load_dit(rebuilt / ship.CHECKPOINT, read.arch, vocabulary.size)
    for name, wanted in trainer.average.state_dict().items():
        got = found[name][: len(wanted)]  # the embedding has more rows than were trained
        torch.testing.assert_close(
            got, wanted, rtol=1e-3, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
    for pair in ("Aa", "Qq", ":,", '" '):
        one, other = (found[ship.EMBEDDING][1:][vocabulary.index[character]] for character in pair)
        assert torch.equal(one, other)


def test_a_bundle_of_the_rebuilt_checkpoint_is_the_shipped_bundle(
    rebuilt: Path, shipped: Bundle, folder: Path
) -> None:
    read = family(str(rebuilt / ship.FAMILY))
    again = ship.make_bundle(rebuilt, read, "fp16", "Apache-2.0", STUDENT.passes, folder / "again")
    for name, file in shipped.manifest.files.items():
        assert again.manifest.files[name] == file, f"{name} differs"


def test_the_shipped_bundle_speaks_through_the_engine(folder: Path, shipped: Bundle) -> None:
    voice = folder / "voice" / "voices" / "heart.wav"
    manifest = shipped.manifest
    transcript = complete_transcript(voice.with_suffix(".txt").read_text().strip())
    reference = Reference(transcript, prepare(voice.read_bytes(), manifest.mel, 0.1))
    request = Request("Thanks for the follow!", "heart", STUDENT.passes, 1, 0.0, Segmentation.UPSTREAM)
    planner = Planner(manifest, read_vocabulary(shipped.vocab), lambda name: reference, to_tokens)
    [segment] = planner.plan(request)
    engine = Synthesizer(shipped, OrtBackend(1), lanes=1)
    lane = engine.open(segment)
    for _ in range(request.nfe):
        engine.step([lane.id])
    samples = engine.finish(lane.id)
    assert len(samples) == (segment.frames - segment.reference_frames - 1) * manifest.mel.hop
    assert np.isfinite(samples).all() and samples.std() > 0


def test_weights_of_every_option_are_recovered_from_a_step_graph(workshop: Workshop) -> None:
    made = workshop.make(TRACED[-1])
    found = step_weights(made.bundle.graph("step"), made.arch)
    wanted = load_dit(made.files.checkpoint, made.arch, len(VOCABULARY))
    for name, tensor in found.items():
        part = wanted[name][:, :MELS] if name == ship.PROJECTION else wanted[name]
        torch.testing.assert_close(tensor, part, rtol=1e-5, atol=1e-7)
    steps = ("transformer_blocks", "long_skip", "proj_out", "input_embed.conv")
    assert {n for n in wanted if n.startswith(steps) and "attn_norm" not in n} <= found.keys()

"""Shipping the demo voice: into a bundle that the engine speaks with, and back into upstream's layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

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
from export.checkpoint import load_dit, load_vocos
from export.demo import alphabet, averaging, dataset, ship, vocoder_train
from export.demo.commands import main
from export.demo.corpus import MARGIN_S
from export.demo.engines import Utterance
from export.demo.recover import step_weights
from export.demo.train import Trainer
from export.families import family
from export.model.redraw import redraw
from tests.export.demo import RECIPE, VOICES, hum, write_corpus, write_store
from tests.export.random_checkpoint import write_random_vocos
from tests.export.small import MELS, TRACED, VOCABULARY, VOCOS, Workshop, brief_gate

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ONE_BLOCK = dataclasses.replace(RECIPE, depth=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ship")


@pytest.fixture(scope="module")
def trainer(folder: Path) -> Trainer:
    """Weights that were not trained, but under which every path matters."""
    corpus = write_corpus(folder / "corpus", seconds=2.5)
    made = Trainer(ONE_BLOCK, write_store(corpus, folder / "mels"), folder / "train")
    redraw(made.dit, 5)
    made.average.load_state_dict(made.dit.state_dict())
    made.save()
    write_random_vocos(folder / "vocos", VOCOS, 5)
    return made


class Speaker:
    """In the place of the engine, which is fetched: hums for as long as it was told to."""

    asked: ClassVar[list[tuple[str, str, float]]] = []

    def __init__(self, folder: Path, voice: str, rate: float = 1.0) -> None:
        self._voice, self._rate = voice, rate

    def speak(self, text: str) -> Utterance:
        self.asked.append((self._voice, text, self._rate))
        rng = np.random.default_rng(len(text))
        silence = np.zeros(4_800, np.int16)
        return Utterance(np.concatenate([silence, hum(rng, round(60_000 / self._rate)), silence]), [])


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ship, "RHVoice", Speaker)
        yield


@pytest.fixture(scope="module", autouse=True)
def _traced_once(workshop: Workshop) -> Iterator[None]:
    with workshop.reusing_traces(), brief_gate():
        yield


@pytest.fixture(scope="module")
def shipped(folder: Path, trainer: Trainer) -> Bundle:
    arguments = ["--weights", str(folder / "train" / "checkpoint.pt"), "--vocoder", str(folder / "vocos")]
    command = ["ship", *arguments, "--corpus", str(folder / "corpus"), "--licence", "Apache-2.0"]
    assert main([*command, "--out", str(folder / "voice")]) == 0
    return contract.read(folder / "voice" / "bundle")


@pytest.fixture(scope="module")
def rebuilt(folder: Path, shipped: Bundle) -> Path:
    assert main(["rebuild", str(shipped.folder), "--out", str(folder / "rebuilt")]) == 0
    return folder / "rebuilt"


def test_what_is_shipped_is_small_measured_and_licensed(shipped: Bundle) -> None:
    manifest = shipped.manifest
    assert manifest.family == "demo" and manifest.precision == "fp16"
    assert manifest.licence.weights == "Apache-2.0"
    assert manifest.parity["rows"]
    assert manifest.vocab_size == len(alphabet.vocabulary())
    assert manifest.arch.text_embedding_average_upsampling


def test_of_several_weights_their_mean_is_shipped(folder: Path, shipped: Bundle) -> None:
    state = torch.load(folder / "train" / "checkpoint.pt", weights_only=True)
    for name, factor in (("twice", 2.0), ("nothing", 0.0)):
        average = {key: factor * value for key, value in state["average"].items()}
        torch.save({**state, "average": average}, folder / f"{name}.pt")
    paths = (
        f"--weights {folder}/twice.pt {folder}/nothing.pt --vocoder {folder}/vocos --corpus {folder}/corpus"
    )
    assert main(["ship", *paths.split(), "--licence", "Apache-2.0", "--out", str(folder / "mean")]) == 0
    made = contract.read(folder / "mean" / "bundle")
    for name in ("modulation", "condition", "step", "vocoder"):
        data = made.graph(name).with_suffix(".onnx.data")
        assert data.read_bytes() == shipped.graph(name).with_suffix(".onnx.data").read_bytes()


def test_weights_of_different_models_have_no_mean() -> None:
    with pytest.raises(ValueError, match="no mean"):
        averaging.mean([{"a": torch.zeros(2)}, {"a": torch.zeros(3)}])


def test_a_second_voice_does_not_overwrite_the_first(
    folder: Path, shipped: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = f"--weights {folder}/train/checkpoint.pt --vocoder {folder}/vocos --corpus {folder}/corpus"
    assert main(["ship", *paths.split(), "--licence", "x", "--out", str(shipped.folder.parent)]) == 1
    assert "exists; remove it" in capsys.readouterr().err


def test_too_large_a_voice_is_refused(
    folder: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship, "LARGEST_BYTES", 1000)
    monkeypatch.setattr(
        ship, "make_bundle", lambda *_: (_[-1].mkdir(), (_[-1] / "x").write_bytes(b" " * 1001))
    )
    with pytest.raises(ValueError, match="train a smaller model"):
        ship.ship(
            trainer.average.state_dict(),
            ONE_BLOCK.arch,
            folder / "vocos",
            folder / "corpus",
            folder / "engine",
            "x",
            folder / "no",
        )
    assert not (folder / "no").exists()


def test_capitals_sound_like_small_letters(rebuilt: Path) -> None:
    vocabulary = read_vocabulary(rebuilt / ship.VOCAB)
    table = load_dit(rebuilt / ship.CHECKPOINT, ONE_BLOCK.arch, vocabulary.size)[ship.EMBEDDING][1:]
    for pair in ("Aa", "Qq", ":,", '" '):
        one, other = (table[vocabulary.index[character]] for character in pair)
        assert torch.equal(one, other)
    assert not torch.equal(table[vocabulary.index["a"]], table[vocabulary.index["b"]])


def test_the_rebuilt_checkpoint_is_the_trained_one_in_half_precision(rebuilt: Path, trainer: Trainer) -> None:
    read = family(str(rebuilt / ship.FAMILY))
    assert read.arch == ONE_BLOCK.arch
    found = load_dit(rebuilt / ship.CHECKPOINT, read.arch, len(alphabet.vocabulary()))
    for name, wanted in trainer.average.state_dict().items():
        got = found[name][: len(wanted)]  # the embedding has more rows than were trained
        torch.testing.assert_close(
            got, wanted, rtol=1e-3, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_training_goes_on_from_what_was_rebuilt(
    rebuilt: Path, folder: Path, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocoder_train, "CONFIG", VOCOS)
    again = Trainer(ONE_BLOCK, trainer.store, tmp_path / "again")
    again.initialise_from(ship.read_trained_dit(rebuilt, ONE_BLOCK.arch))
    for name, wanted in trainer.dit.state_dict().items():
        torch.testing.assert_close(again.dit.state_dict()[name], wanted, rtol=1e-3, atol=2e-6)
    vocoder = vocoder_train.Trainer(vocoder_train.Recipe(1, 1), folder / "corpus", tmp_path / "vocoder")
    vocoder.initialise_from(rebuilt / ship.VOCODER)
    found = vocoder.vocos.state_dict()["head.out.weight"]
    torch.testing.assert_close(found, load_vocos(rebuilt / ship.VOCODER)[1]["head.out.weight"])
    monkeypatch.setattr(vocoder_train, "CONFIG", dataclasses.replace(VOCOS, layers=7))
    with pytest.raises(ValueError, match="is trained here"):
        vocoder.initialise_from(rebuilt / ship.VOCODER)


def test_the_rebuilt_vocoder_reads_mels_alike(rebuilt: Path, folder: Path) -> None:
    config, weights = load_vocos(rebuilt / ship.VOCODER)
    wanted_config, wanted = load_vocos(folder / "vocos")
    assert config == wanted_config
    for i in range(config.layers):
        name = f"backbone.convnext.{i}"
        folded = wanted[f"{name}.pwconv2.weight"] * wanted[f"{name}.gamma"][:, None]
        torch.testing.assert_close(weights[f"{name}.pwconv2.weight"], folded, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(weights["head.out.weight"], wanted["head.out.weight"])


def test_a_bundle_of_the_rebuilt_checkpoint_is_the_shipped_bundle(
    rebuilt: Path, shipped: Bundle, folder: Path
) -> None:
    again = ship.make_bundle(
        rebuilt, family(str(rebuilt / ship.FAMILY)), "fp16", "Apache-2.0", folder / "again"
    )
    for name, file in shipped.manifest.files.items():
        assert again.manifest.files[name] == file, f"{name} differs"


def test_reference_voices_are_unheard_sentences_with_their_text(folder: Path, shipped: Bundle) -> None:
    unheard = {clip["text"] for clip in dataset.read_corpus(folder / "corpus") if clip["split"] == "valid"}
    for voice in VOICES:
        path = folder / "voice" / "voices" / f"{voice}.wav"
        wave, rate = soundfile.read(path)
        assert rate == 24_000
        assert len(wave) / rate == pytest.approx(2.5 / ship.REFERENCE_RATE + 2 * MARGIN_S, abs=0.03)
        assert np.sqrt(np.mean(wave**2)) == pytest.approx(0.1, rel=0.02)
        text = path.with_suffix(".txt").read_text().strip()
        assert text in unheard
        assert (voice, text, ship.REFERENCE_RATE) in Speaker.asked


def test_the_shipped_bundle_speaks_through_the_engine(folder: Path, shipped: Bundle) -> None:
    voice = folder / "voice" / "voices" / "slt.wav"
    manifest = shipped.manifest
    transcript = complete_transcript(voice.with_suffix(".txt").read_text().strip())
    reference = Reference(transcript, prepare(voice.read_bytes(), manifest.mel, 0.1))
    request = Request("Thanks for the follow!", "slt", 5, 1, 2.0, Segmentation.UPSTREAM)
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


def test_the_demo_vocoder_is_a_vocos(tmp_path: Path) -> None:
    made = vocoder_train.Vocos(vocoder_train.CONFIG)
    vocoder_train.write_official(made.state_dict(), tmp_path)
    config, weights = load_vocos(tmp_path)
    assert config == vocoder_train.CONFIG
    assert set(weights) == set(made.state_dict())

"""The flow-matching loss shows how weights were trained: on the demo voice, and on random weights."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.contract.bundle import Arch, Text
from appliance.contract.mel import MelSpec, log_mel
from appliance.engine.cases import FEMALE, samples
from appliance.text.tokens.tokenizers import maker
from export import assemble, evidence
from export.evidence import GIVEN, WITHOUT_TEXT, Verdict, recording_of, settle, weigh
from export.families import f5, family
from export.sources.header import CheckpointError
from tests.harness import small
from tests.harness.daemons import ROOT, SPEECH

pytestmark = pytest.mark.torch

WITH = "text_mask_padding: true, text_embedding_average_upsampling: true"
OTHER_FLAGS = f"pe_attn_head: 1, {WITH}"
RIGHT_FLAGS = f"pe_attn_head: null, {WITH}"
WORDS = SPEECH.with_suffix(".txt").read_text("utf-8").strip()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo voice's checkpoint."""
    out = tmp_path_factory.mktemp("demo") / "rebuilt"
    subprocess.run([sys.executable, "-m", "export.demo", "rebuild", "--out", out], check=True, cwd=ROOT)
    return out


@pytest.fixture(scope="module")
def loaded(demo: Path) -> assemble.Loaded:
    files = (demo / "model.safetensors", demo / "vocab.txt", "vocos", demo / "vocos")
    named = family(str(demo / "family.yaml"))
    return assemble.load(assemble.Sources(named, *files, languages=("en",)))  # type: ignore[arg-type]


def tokens_of(loaded: assemble.Loaded) -> Sequence[str]:
    """Tokens of WORDS."""
    return loaded.vocabulary.split(WORDS, maker(loaded.vocabulary.tokenizer))


def read_as(loaded: assemble.Loaded, **flags: Any) -> assemble.Loaded:
    """The same weights, loaded with a family of other flags."""
    named = loaded.sources.family
    other = dataclasses.replace(named, arch=dataclasses.replace(named.arch, **flags))
    return assemble.load(dataclasses.replace(loaded.sources, family=other))


def test_right_weights_fit_and_use_the_text(loaded: assemble.Loaded) -> None:
    found = weigh(loaded)
    assert found.verdict is Verdict.FITS and found.advice == []
    losses = found.losses
    assert losses[GIVEN] < 0.6 * losses[OTHER_FLAGS] and losses[GIVEN] < 0.2 * losses["mels of bigvgan"]
    assert losses[GIVEN] < 0.94 * losses[WITHOUT_TEXT]
    assert json.loads(json.dumps(found.record()))["verdict"] == "fits"


def test_the_loss_is_upstreams(loaded: assemble.Loaded) -> None:
    """A single pass agrees with upstream's DiT."""
    [one] = [r for r in evidence.DEMO if r.name == FEMALE]
    mine = evidence.Trial.unchanged(loaded).loss(dataclasses.replace(loaded, text=Text()), [one], (0.5,))
    arch = loaded.sources.family.arch
    theirs = small.upstream_dit(arch, loaded.vocabulary.size, loaded.weights())
    mel = torch.from_numpy(log_mel(samples(FEMALE, 24_000), MelSpec("vocos")))[None]
    known, errors = int(mel.shape[1] / 3), []
    cond = mel.clone()
    cond[:, known:] = 0
    ids = torch.from_numpy(loaded.vocabulary.ids(tokens_of(loaded))).long()[None]
    for seed in evidence.SEEDS:
        noise = torch.randn(mel.shape[1:], generator=torch.Generator().manual_seed(seed))[None]
        with torch.no_grad():
            velocity = theirs(0.5 * noise + 0.5 * mel, cond, ids, time=torch.tensor([0.5]))
        errors.append(float((velocity - (mel - noise))[:, known:].square().mean()))
    assert mine == pytest.approx(np.mean(errors), rel=1e-3)


def test_tokens_are_placed_as_the_weights_were_trained(loaded: assemble.Loaded) -> None:
    """Equal durations spread tokens evenly. A table that gives the first token most frames makes the text
    useless."""
    [one] = [r for r in evidence.DEMO if r.name == FEMALE]
    given, [first, *_] = evidence.Trial.unchanged(loaded), tokens_of(loaded)
    even, long = dict.fromkeys(loaded.vocabulary.tokens, (4.0,) * 3), {first: (900.0,) * 3}
    tables = (Text(duration="tokens", durations=table) for table in ({}, even, even | long))
    placed = (dataclasses.replace(loaded, text=table) for table in tables)
    plain, alike, astray = (given.loss(one_placed, [one], (0.3,)) for one_placed in placed)
    assert alike == pytest.approx(plain, rel=0.02) and astray > 1.05 * plain


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> evidence.EvidenceRecording:
    """A single recording, with half as many passes."""
    monkeypatch.setattr(evidence, "SEEDS", (1,))
    return evidence.DEMO[0]


OTHERS = "Nobody checks the tickets on my way back."
TOLD = f"with {RIGHT_FLAGS}: pass"
HEADS = {"pe_attn_head": 1}
MASKS = {"text_mask_padding": False, "text_embedding_average_upsampling": False}


@pytest.mark.parametrize(("flags", "words", "told"), [
    (HEADS, "", rf"1\.\d\d as demo, and 0\.\d\d {TOLD} a YAML file with {RIGHT_FLAGS}"),
    # The words differ from the recording's, like English for weights of another language.
    pytest.param(HEADS, OTHERS, TOLD, marks=pytest.mark.thorough),
    pytest.param(MASKS, "", TOLD, marks=pytest.mark.thorough),
])  # fmt: skip
def test_a_refusal_of_wrong_flags_names_the_right_flags(
    flags: dict[str, Any], words: str, told: str, loaded: assemble.Loaded, alone: evidence.EvidenceRecording
) -> None:
    with pytest.raises(assemble.BundleFailed, match=told):
        weigh(read_as(loaded, **flags), [dataclasses.replace(alone, words=words or alone.words)])


def test_wrong_flags_may_be_accepted(loaded: assemble.Loaded, alone: evidence.EvidenceRecording) -> None:
    record = weigh(read_as(loaded, **HEADS), [alone], accept="an experiment").record()
    assert (record["verdict"], record["accepted_by"]) == ("misfit", "an experiment")


@pytest.mark.parametrize(("words", "order", "told"), [
    (OTHERS, 1, "do not use the text.*--transcript TEXT"),
    pytest.param("", -1, "look at the vocabulary", marks=pytest.mark.thorough),
])  # fmt: skip
def test_other_words_and_a_vocabulary_in_another_order_feign_no_wrong_flags(
    words: str, order: int, told: str, loaded: assemble.Loaded, alone: evidence.EvidenceRecording
) -> None:
    first, *rest = loaded.vocabulary.tokens
    turned = dataclasses.replace(loaded.vocabulary, tokens=(first, *rest[::order]))
    given = dataclasses.replace(alone, words=words or alone.words)
    found = weigh(dataclasses.replace(loaded, vocabulary=turned), [given])
    assert found.verdict is Verdict.FITS and re.search(told, found.advice[-1])
    assert not found.order_proved


def test_wrong_mels_name_the_vocoder(loaded: assemble.Loaded, alone: evidence.EvidenceRecording) -> None:
    named = dataclasses.replace(loaded.sources.family, mel=MelSpec("bigvgan"))
    other = dataclasses.replace(loaded, sources=dataclasses.replace(loaded.sources, family=named))
    with pytest.raises(assemble.BundleFailed, match="with mels of vocos: pass --vocoder vocos"):
        weigh(other, [alone])


@pytest.mark.usefixtures("alone")
def test_a_recording_of_ones_own_is_measured_with_its_words(loaded: assemble.Loaded) -> None:
    own = recording_of(SPEECH, WORDS)
    found = weigh(loaded, [own])
    assert found.recordings == (SPEECH.name,) and found.record()["order"] == "proved"
    assert 0.1 < found.losses[evidence.COPY] < 0.4 and not found.speechless
    recordings = own, dataclasses.replace(own, words=OTHERS)
    given = evidence.Trial.unchanged(loaded)
    said, other = (given.loss(loaded, [one]) for one in recordings)
    assert found.losses[GIVEN] == pytest.approx(said, rel=1e-3) and other > said


def test_random_weights_prove_nothing_and_are_written_if_accepted(tmp_path: Path) -> None:
    found = weigh(small.load(small.write_files(tmp_path / "weights", small.V1)))
    assert found.verdict is Verdict.UNTRAINED and "proves nothing" in found.advice[0]
    with pytest.raises(assemble.BundleFailed, match=r"nepers.*predict no speech.*--accept REASON"):
        settle(found, "")
    settle(found, "a rehearsal")
    assert (found.record()["accepted_by"], found.record()["order"]) == ("a rehearsal", "not proved")


EMBEDDING, FF = "text_embed.text_embed.weight", "transformer_blocks.1.ff.ff.2."


@pytest.mark.parametrize(("name", "row", "value", "told"), [
    (EMBEDDING, 3, math.nan, r"1 tensors contain NaN or infinities: text_embed\S+ \(token '\S'\)"),
    (FF + "weight", 3, math.inf, r"contain NaN or infinities: transformer_blocks\.1\.ff\.ff\.2\.weight;"),
    (FF + "weight", slice(None), 0.0, r"1 tensors contain only zeros: transformer_blocks\.1\.ff"),
    (FF + "weight", slice(9, None), 0.0, r"1 tensors end with zeros, .* stopped: transformer_blocks\.1\.ff"),
    (EMBEDDING, -1, 0.0, ""), (FF + "bias", slice(None), 0.0, ""),
    ("transformer_blocks.1.attn_norm.linear.weight", slice(None), 0.0, ""),
])  # fmt: skip
def test_broken_weights_are_refused_by_name(
    name: str, row: Any, value: float, told: str, tmp_path: Path
) -> None:
    """Biases, gates and unused tokens may be zero in good weights."""
    files = small.write_files(tmp_path, small.V1)
    weights = load_file(files.checkpoint)
    [whole] = [one for one in weights if one.endswith(name)]
    weights[whole][row] = value
    save_file(weights, files.checkpoint)
    with pytest.raises(CheckpointError, match=told) if told else nullcontext():
        small.load(files)


def blurred(name: str, value: torch.Tensor) -> torch.Tensor:
    if "inv_freq" in name or value.numel() < 2:
        return value
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel()))
    return value + 0.05 * value.std() * noise


@pytest.mark.parametrize(("kind", "advised"), [
    ("ema", r"--weights raw uses the others, with a loss of 0\."),
    pytest.param("raw", "--weights ema", marks=pytest.mark.thorough),
])  # fmt: skip
def test_average_and_raw_weights_are_compared(
    kind: Any, advised: str, loaded: assemble.Loaded, tmp_path: Path, alone: evidence.EvidenceRecording
) -> None:
    weights = {f"transformer.{name}": value.clone() for name, value in loaded.weights().items()}
    average = {f"ema_model.{name}": blurred(name, value) for name, value in weights.items()}
    path = tmp_path / "model_last.pt"
    torch.save({"ema_model_state_dict": average, "model_state_dict": weights}, path)
    sources = dataclasses.replace(loaded.sources, checkpoint=path, weights=kind)
    found = weigh(assemble.load(sources), [alone], accept="compared")
    [told] = [line for line in found.advice if "averaged and raw" in line]
    assert re.search(advised, told) and ("which fit better" in told) == (kind == "ema")


def test_an_adapter_is_compared_with_its_base(
    loaded: assemble.Loaded, alone: evidence.EvidenceRecording, tmp_path: Path
) -> None:
    module = "base_model.model.transformer.transformer_blocks.0.attn.to_v"
    shape = loaded.weights().entry("transformer_blocks.0.attn.to_v.weight").shape
    factors = {"lora_A": torch.ones(1, shape[1]), "lora_B": torch.full((shape[0], 1), 1e-3)}
    save_file(
        {f"{module}.{part}.weight": v for part, v in factors.items()}, tmp_path / "adapter_model.safetensors"
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    sources = dataclasses.replace(loaded.sources, adapter=tmp_path)
    found = weigh(dataclasses.replace(loaded, sources=sources), [alone])
    base = evidence.Trial.unchanged(loaded).loss(loaded, [alone])
    assert found.losses[evidence.UNADAPTED] == base != found.losses[GIVEN]
    assert f"{base:.3g} without it" in found.advice[-1]
    assert re.match(r".*: LoRA, rank 1, alpha 1, sha256 [0-9a-f]{64}", found.record()["adapter"])


def test_masks_and_heads_of_a_family_are_all_tried() -> None:
    arch = Arch(dim=64, depth=1, heads=2, conv_layers=1)
    assert len(f5.other_flags(arch)) == 5
    upsampling = dataclasses.replace(arch, text_embedding_average_upsampling=True)
    assert OTHER_FLAGS in map(f5.flags, f5.other_flags(upsampling))
    # A rotation of one head rotates all heads if there is one; masks act in text convolutions alone.
    plain = dataclasses.replace(arch, heads=1, conv_layers=0)
    assert [f5.flags(other) for other in f5.other_flags(plain)] == [f"pe_attn_head: null, {WITH}"]
    assert evidence.named(family("F5TTS_Base").arch) == "F5TTS_Base"

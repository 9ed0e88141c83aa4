"""Folders as trainers leave them: the output of `look`, and its command, which `bundle` accepts."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PosixPath
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from appliance.contract.sampler import Sampler
from export import assemble
from export.cli import main
from export.sources import look
from export.sources.header import CheckpointError
from tests.export.random_checkpoint import write_random_zipvoice
from tests.export.zipvoice import TRACED
from tests.harness import small

pytestmark = pytest.mark.torch

LETTERS = [" ", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *"!',.?"]
PHONES = [" ", *"abdeis.", "zh0", "ao3"]


def f5(folder: Path, update: int = 12_000, last: str = "model_last.pt") -> Path:
    """`ckpts/NAME` of f5-tts, next to its `data/NAME_pinyin`."""
    made = small.write_files(folder / "made", small.V1)
    stored = {n: v for n, v in load_file(made.checkpoint).items() if "transformer" in n}
    place, data = folder / "ckpts/stimme", folder / "data/stimme_pinyin"
    place.mkdir(parents=True)
    data.mkdir(parents=True)
    shutil.copy(made.vocab, data / "vocab.txt")
    shutil.copy(made.family, place / "small.yaml")
    shutil.copytree(made.vocoder_path, place / "vocos")
    whole = {
        "model_state_dict": {n.removeprefix("ema_model."): v + 1 for n, v in stored.items()},
        "ema_model_state_dict": {**stored, "initted": torch.tensor(True), "step": torch.tensor(update)},
        "optimizer_state_dict": {"state": {}, "param_groups": []},
        "scheduler_state_dict": {},
    }
    torch.save({**whole, "update": update}, place / last)
    torch.save({**whole, "update": 10_000}, place / "model_10000.pt")
    shutil.copy(made.checkpoint, place / "pretrained_model_1250000.safetensors")
    (place / "samples").mkdir()
    return place


def zipvoice(folder: Path, tokenizer: str, tokens: list[str], *, distilled: bool = False) -> Path:
    """`exp/NAME` of ZipVoice, its checkpoints as `save_checkpoint` writes them."""
    place = write_random_zipvoice(folder / "exp/zv", TRACED, tokens, embeds_guidance=distilled)
    small.write_vocoder(place / "vocos", "vocos")
    state = torch.load(place / "model.pt", weights_only=True)["model"]
    (place / "model.pt").unlink()
    whole = {
        "model": state,
        "model_avg": {name: value + 1 for name, value in state.items()},
        **{"optimizer": {"state": {}, "param_groups": []}, "scheduler": {"epoch": 0, "batch": 9}},
        **{"grad_scaler": None, "sampler": {"epoch": 0}, "exp_dir": PosixPath("exp/zv")},
        **{"device": torch.device("cpu"), "tokenizer": tokenizer, "lang": "de"},
    }
    torch.save({**whole, "batch_idx_train": 9000}, place / "checkpoint-9000.pt")
    torch.save({**whole, "batch_idx_train": 10_000}, place / "checkpoint-10000.pt")
    torch.save(whole, place / "bad-model-0.pt")
    return place


def averaged(folder: Path) -> Path:
    """A folder of checkpoints that contains the average alone."""
    place = zipvoice(folder, "espeak", PHONES)
    state = torch.load(place / "checkpoint-10000.pt", weights_only=False)["model_avg"]
    for path in place.glob("*.pt"):
        path.unlink()
    torch.save({"model": state}, place / "iter-10000-avg-2.pt")
    return place


def lightning(folder: Path) -> Path:
    """`lightning_logs/version_0` of Vocos: its configuration above, the checkpoints in a folder."""
    made = small.write_vocoder(folder / "made", "vocos")
    place = folder / "version_0"
    (place / "checkpoints").mkdir(parents=True)
    state = torch.load(made / "pytorch_model.bin", weights_only=True)
    others = ("multiperioddisc.discriminators.0.convs.0.weight", "melspec_loss.mel_spec.mel_scale.fb")
    whole = {"state_dict": state | {name: torch.zeros(1) for name in others}, "epoch": 3, "global_step": 900}
    torch.save(whole, place / "checkpoints/last.ckpt")
    torch.save(whole, place / "checkpoints/vocos_checkpoint_epoch=2_step=600_val_loss=3.1.ckpt")
    arguments = {"sample_rate": 24_000, **small.VOCOS.sections()}
    config = {"model": {"class_path": "vocos.experiment.VocosExp", "init_args": arguments}, "trainer": {}}
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    return place


def bigvgan(folder: Path) -> Path:
    place = small.write_vocoder(folder / "bigvgan", "bigvgan")
    (place / "bigvgan_generator.pt").rename(place / "g_05000000")
    torch.save({"mpd": {}, "steps": 5_000_000}, place / "do_05000000")
    (place / "g_00100000").write_bytes(b"older")
    return place


VOICES: Mapping[str, tuple[Callable[[Path], Path], list[str], str]] = {
    "f5": (
        f5,
        [
            *("training of F5-TTS", "small, of ", "pe_attn_head: null, text_mask_padding: true; 64 × 2"),
            *("stimme_pinyin/vocab.txt", "averaged and raw; averaged are used", "update 12000"),
            *("model_10000.pt", "SWivid/F5-TTS's, CC-BY-NC-4.0"),
        ],
        "model_last.pt",
    ),
    "f5 whose last file is old": (lambda at: f5(at, update=9000), ["update 10000"], "model_10000.pt"),
    "f5 pruned": (
        lambda at: f5(at, last="model_last.safetensors"),  # the name lies
        ["averaged and raw"],
        "model_last.safetensors",
    ),
    "zipvoice of letters": (
        lambda at: zipvoice(at, "libritts", LETTERS),
        ["letters, recorded in checkpoint-10000.pt", "en, of", "raw are used", "update 10000", "24000 Hz"],
        "checkpoint-10000.pt",
    ),
    "distilled": (lambda at: zipvoice(at, "libritts", LETTERS, distilled=True),
        ["ZipVoice-Distill", '"sampler": {"guidance": "embedded"}}'], "checkpoint-10000.pt"),
}  # fmt: skip


@pytest.mark.parametrize("name", VOICES)
def test_look_describes_a_folder_and_bundle_accepts_its_command(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, told, checkpoint = VOICES[name]
    place = make(tmp_path)
    assert main(["look", str(place)]) == 0
    said = capsys.readouterr().out
    assert [text for text in told if text not in said] == []
    assert "missing" not in said
    command = shlex.split(said.splitlines()[-1])
    assert command[:4] == ["python", "-m", "export", "bundle"]
    loaded = small.opened_by(command[3:])
    assert loaded.sources.checkpoint == place / checkpoint
    assert loaded.weights().averaged == name.startswith("f5")
    # `bundle` with the folder alone does the same and prints the command; options work as usual.
    other = small.opened_by(["bundle", str(place), "--weights", "ema"])
    assert "python -m export bundle --family" in capsys.readouterr().out
    assert other.weights().averaged
    with (place / checkpoint).open("rb") as stream:  # torch decides by the suffix .safetensors
        raw = torch.load(stream, weights_only=False)
    if "model_avg" in raw:
        key = "fm_decoder.in_proj.weight"
        assert torch.equal(loaded.weights()[key], raw["model"][key])
        assert torch.equal(other.weights()[key], raw["model_avg"][key])


def test_a_students_folder_is_sampled_as_dmospeech_2(tmp_path: Path) -> None:
    place = f5(tmp_path)
    state = torch.load(place / "model_last.pt", weights_only=True)["ema_model_state_dict"]
    for path in place.glob("*model_*"):
        path.unlink()
    names = (name for name in state if "transformer." in name)
    own = {f"feedforward_model.{name.partition('transformer.')[2]}": state[name] for name in names}
    torch.save({"model_state_dict": own, "scale": torch.tensor(2.5), "step": 85000}, place / "model_85000.pt")
    sampler = Sampler("renoise", "none", (4,))
    for arguments in (shlex.split(look.describe(place).splitlines()[-1])[3:], ["bundle", str(place)]):
        sources = small.opened_by(arguments).sources
        assert (sources.checkpoint, sources.sampler) == (place / "model_85000.pt", sampler)
        assert (sources.defaults.grid, sources.defaults.guidance) == ("uniform", 0.0)


def test_zipvoices_tokenizer_is_recorded_or_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = zipvoice(tmp_path / "a", "espeak", PHONES)
    assert "--tokenizer espeak:de --language de" in look.describe(place)
    # The newest checkpoint counts more than an average, which records nothing, and more than a log.
    shutil.copy(averaged(tmp_path / "average") / "iter-10000-avg-2.pt", place)
    (place / "log").mkdir()
    (place / "log/log-train-2026").write_text('INFO {"tokenizer": "libritts"}')
    assert "espeak:de, recorded in checkpoint-10000.pt" in look.describe(place)
    simple = zipvoice(tmp_path / "b", "simple", ["a", "あ"])
    assert "--tokenizer simple --language ja" in look.describe(simple)
    left = averaged(tmp_path / "c")
    said = look.describe(left)
    assert "averaged over checkpoints" in said and "--tokenizer TOKENIZER" in said
    assert "missing: --tokenizer: emilia for English and Chinese, espeak:LANG" in said
    assert main(["bundle", str(left), "--out", str(tmp_path / "out")]) == 1
    assert "missing: --tokenizer: emilia for" in capsys.readouterr().err
    assert "missing" not in look.describe(left, {"--tokenizer": "emilia"})
    # Upstream's log records the settings, too.
    (left / "log").mkdir()
    (left / "log/log-train-2026").write_text('INFO {\n "lang": "pt-br",\n "tokenizer": "espeak"\n}')
    assert "--tokenizer espeak:pt-br --language pt " in look.describe(left)


def test_the_family_of_f5_is_recorded_or_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f5(tmp_path)
    for name, arch in look.F5TTS.items():
        monkeypatch.setitem(look.F5TTS, name, replace(arch, dim=64, depth=2))
    (place / "small.yaml").unlink()
    assert "F5TTS_v1_Base, from the name of the pretrained file" in look.describe(place)
    (place / "pretrained_model_1250000.safetensors").unlink()
    assert (
        "missing: --family: no YAML file, setting.json, pretrained_* or tensor determines it"
        in look.describe(place)
    )
    (place / "setting.json").write_text(json.dumps({"exp_name": "F5TTS_Base", "tokenizer_type": "char"}))
    said = look.describe(place)
    assert "F5TTS_Base, from setting.json; pe_attn_head: 1, text_mask_padding: false" in said
    assert "--tokenizer char" in said
    (tmp_path / "data/stimme_pinyin/vocab.txt").write_text(" \na\n")
    assert "missing: --vocab: no vocab.txt with 33 tokens exists (" in look.describe(place)
    said = look.describe(place, {"--vocab": "own.txt"})
    assert "missing" not in said and said.count("--vocab") == 1
    monkeypatch.undo()
    wrong = "missing: --family: F5TTS_Base does not have the weights' width and depth, 64 × 2"
    assert wrong in look.describe(place)


def test_mels_of_an_unknown_vocoder_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f5(tmp_path)
    family = yaml.safe_load((place / "small.yaml").read_text("utf-8"))
    family["model"]["mel_spec"]["mel_spec_type"] = "sbhifigan16k"
    (place / "small.yaml").write_text(yaml.safe_dump(family))
    assert main(["bundle", str(place), "--out", str(tmp_path / "out")]) == 1
    assert "--vocoder: mels of sbhifigan16k are not supported; supported: vocos, bigvgan" in (
        capsys.readouterr().err
    )


VOCODERS = {
    "vocos": (lightning, "a Vocos, a vocoder", "raw, step 900"),
    "bigvgan": (bigvgan, "a BigVGAN, a vocoder", "raw, update 5000000"),
}


@pytest.mark.parametrize("kind", VOCODERS)
def test_a_vocoders_training_is_read(kind: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, called, weights = VOCODERS[kind]
    torch.manual_seed(0)
    place = make(tmp_path)
    said = look.describe(place)
    assert called in said and weights in said and f"--vocoder {kind} --vocoder-path {place}" in said
    torch.manual_seed(0)
    _, expected = assemble.LOADERS[kind](small.write_vocoder(tmp_path / "published", kind), "ema")
    files = [path for path in place.rglob("*") if path.name in ("last.ckpt", "g_05000000")]
    for given in (place, files[0], files[0].parent):
        _, actual = assemble.LOADERS[kind](given, "ema")
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[name], expected[name]) for name in expected)
    assert main(["bundle", str(place)]) == 1
    assert "is a vocoder" in capsys.readouterr().err


def test_folders_without_a_training_are_named(tmp_path: Path) -> None:
    def refused(message: str, place: Path = tmp_path) -> None:
        with pytest.raises(CheckpointError, match=message):
            look.look(place)

    refused("no such folder", tmp_path / "nothing")
    refused("has no checkpoint of a training")
    (tmp_path / "pretrained_model_1250000.safetensors").write_bytes(b"")
    refused("only its base")
    torch.save({"base_model.model.attn.to_q.lora_A.weight": torch.zeros(1)}, tmp_path / "adapter.pt")
    refused(r"LoRA .*merge_and_unload")
    (tmp_path / "adapter.pt").unlink()
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03")
    refused("is a GGUF file")


def test_looking_imports_no_torch(root: Path, tmp_path: Path) -> None:
    code = "import sys; from export.__main__ import _run; assert _run(sys.argv[1:]) == 0; "
    code += "assert 'torch' not in sys.modules"
    place = f5(tmp_path)
    for command in (
        ["look", place],
        ["inspect", place / "model_last.pt"],
        ["inspect", root / "tests/tiny/bundle"],
    ):
        subprocess.run([sys.executable, "-c", code, *map(str, command)], check=True, capture_output=True)

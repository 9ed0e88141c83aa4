"""Reading official layouts: what is written in each of them comes back, and what is wrong is named."""

from __future__ import annotations

import argparse
import dataclasses
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from safetensors.torch import load_file, save_file
from torch import Tensor

from appliance.contract.bundle import Arch
from export.graphs.condition import rates
from export.model.dit import DiT
from export.model.redraw import redraw
from export.model.vocos import VocosConfig
from export.sources import checkpoint
from export.sources.checkpoint import (
    ROTARY,
    CheckpointError,
    load_bigvgan,
    load_dit,
    load_vocos,
    save_official,
)
from export.sources.header import read_header
from tests import upstream
from tests.export import small
from tests.export.random_checkpoint import write_random, write_random_bigvgan, write_random_vocos

pytestmark = pytest.mark.torch

TINY = Arch(dim=32, depth=2, heads=2, ff_mult=2, text_dim=16, conv_layers=1, dim_head=16)
VOCAB = [" ", "a", "b", "c"]
MELS = 8
VOCOS = VocosConfig(MELS, 16, 32, 2, n_fft=64, hop=16, padding="center")
BIGVGAN = dataclasses.replace(
    small.BIGVGAN,
    num_mels=MELS,
    upsample_rates=(4, 2),
    upsample_kernel_sizes=(8, 4),
    upsample_initial_channel=16,
    resblock_dilation_sizes=((1, 3, 5),),
)


@pytest.fixture
def state() -> dict[str, Tensor]:
    """A tiny DiT's state dict."""
    model = DiT(TINY, len(VOCAB), MELS)
    redraw(model, 7)
    return {name: value.clone() for name, value in model.state_dict().items()}


def load(
    path: Path, arch: Arch = TINY, vocab_size: int = len(VOCAB), kind: checkpoint.WeightsKind = "ema"
) -> checkpoint.Weights:
    return load_dit(path, arch, vocab_size, MELS, kind)


def assert_same(found: checkpoint.Weights, wanted: dict[str, Tensor]) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize(
    ("format", "suffix"), [("safetensors", ".safetensors"), ("pt", ".pt"), ("pruned_pt", ".pt")]
)
def test_every_official_layout_comes_back(
    format: checkpoint.Format, suffix: str, state: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / f"model{suffix}"
    save_official(state, path, format, raw={name: value + 1 for name, value in state.items()})
    assert_same(load(path), state)


def test_a_file_with_only_unaveraged_weights_is_read(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"model_state_dict": {f"transformer.{name}": v for name, v in state.items()}}, path)
    assert_same(load(path), state)


def test_bare_names_are_read(state: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(state, tmp_path / "model.safetensors")
    assert_same(load(tmp_path / "model.safetensors"), state)


def test_torchs_oldest_format_is_read(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    whole = {"ema_model_state_dict": {f"ema_model.transformer.{name}": v for name, v in state.items()}}
    torch.save(whole, path, _use_new_zipfile_serialization=False)
    assert_same(load(path), state)


def test_keys_of_an_old_mel_module_are_dropped(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    old = {
        "ema_model.mel_spec.mel_stft.mel_scale.fb": torch.zeros(513, 100),
        "ema_model.mel_spec.mel_stft.spectrogram.window": torch.zeros(1024),
        "initted": torch.tensor(True),
        "step": torch.tensor(1_250_000),
    }
    save_file({f"ema_model.transformer.{name}": value for name, value in state.items()} | old, path)
    assert_same(load(path), state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_become_float32(dtype: torch.dtype, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_official(state, path, dtype=dtype)
    assert load_file(path)["ema_model.transformer.proj_out.weight"].dtype == dtype
    rounded = {name: value.to(dtype).float() for name, value in state.items()}
    assert_same(load(path), rounded | {ROTARY: rates(TINY.dim_head)})


@pytest.mark.parametrize("dim_head", [16, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_rotary_table_is_exact_however_it_was_stored(
    dim_head: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    arch = dataclasses.replace(TINY, dim_head=dim_head)
    path, _ = write_random(tmp_path, arch, VOCAB, mels=MELS, dtype=dtype)
    weights = load(path, arch)
    assert torch.equal(weights[ROTARY], rates(dim_head))
    model = checkpoint.build_dit(weights, arch, len(VOCAB), MELS)
    assert torch.equal(model.rotary_embed.inv_freq, rates(dim_head))


@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        (torch.float32, 1 + 3e-6),
        (torch.float16, 1 + 2e-3),
        (torch.bfloat16, 1 + 2e-2),
        (torch.float16, float("nan")),
    ],
)
def test_a_rotary_table_that_is_no_rounding_is_refused(
    dtype: torch.dtype, change: float, state: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    save_official({**state, ROTARY: state[ROTARY] * change}, path, dtype=dtype)
    with pytest.raises(CheckpointError, match=r"rotary_embed\.inv_freq differs .* by up to [\d.e-]+|nan"):
        load(path)


def test_a_rotary_table_of_another_base_is_refused(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    other = 1.0 / 20000 ** (torch.arange(0, 16, 2).float() / 16)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        save_official({**state, ROTARY: other}, path, dtype=dtype)
        with pytest.raises(CheckpointError, match=r"inv_freq differs from .* by up to 4\.5e-01"):
            load(path)


def test_raw_weights_are_taken_where_they_are_asked_for(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    raw = {name: value if name == ROTARY else value + 1 for name, value in state.items()}
    save_official(state, path, "pt", raw=raw)
    assert_same(load(path, kind="raw"), raw)
    save_official(state, path, "pruned_pt")
    with pytest.raises(CheckpointError, match=r"has no raw weights, only .*: ema_model\.transformer\."):
        load(path, kind="raw")
    save_official(state, path.with_suffix(".safetensors"))
    with pytest.raises(CheckpointError, match=r"has no raw weights, only .*: ema_model\.transformer\."):
        load(path.with_suffix(".safetensors"), kind="raw")


@pytest.mark.parametrize(
    "prefix",
    [
        "ema_model._orig_mod.transformer.",  # IndicF5's
        "_orig_mod.ema_model.transformer.",
        "module.ema_model.transformer.",
        "ema_model.module._orig_mod.transformer.",
        "module.transformer.",
        "model.transformer.",
        "_orig_mod.module.model.",
        "tts.backbone.net.",
    ],
)
def test_wrappers_before_a_name_are_ignored(prefix: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    vocoder = {
        f"vocoder._orig_mod.{name}": torch.zeros(3) for name in ("backbone.norm.bias", "head.out.bias")
    }
    save_file({prefix + name: value for name, value in state.items()} | vocoder, path)
    found = load(path)
    assert_same(found, state)
    assert found.averaged == ("ema_model" in prefix)


def test_blocks_compiled_one_by_one_are_read(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    names = {re.sub(r"(blocks\.\d+)", r"\1._orig_mod", name): value for name, value in state.items()}
    torch.save({"state_dict": {f"model.{name}": value for name, value in names.items()}}, path)
    assert_same(load(path), state)


def test_a_mixed_file_holds_the_average_and_the_raw(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    raw = {name: value.clone() if name == ROTARY else value + 1 for name, value in state.items()}
    average = {f"ema_model.transformer.{name}": value for name, value in state.items()}
    save_file(average | {f"online_model.transformer.{name}": value for name, value in raw.items()}, path)
    assert_same(load(path), state)
    assert_same(load(path, kind="raw"), raw)
    other = {f"teacher.transformer.{name}": value for name, value in state.items()}
    save_file(other | {f"student.transformer.{name}": value for name, value in raw.items()}, path)
    with pytest.raises(CheckpointError, match=r"holds several models: (teacher, student|student, teacher)"):
        load(path)


def test_raw_weights_pruned_by_upstreams_page_are_raw(state: dict[str, Tensor], tmp_path: Path) -> None:
    """Its page writes them under the average's key, without the average's prefix."""
    path = tmp_path / "model.pt"
    torch.save({"ema_model_state_dict": {f"transformer.{name}": v for name, v in state.items()}}, path)
    for kind in ("ema", "raw"):
        found = load(path, kind=kind)
        assert_same(found, state)
        assert not found.averaged


def test_a_tensor_too_many_is_named_under_any_wrapper(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    wrapped = {f"ema_model._orig_mod.transformer.{name}": value for name, value in state.items()}
    for extra in ("ema_model._orig_mod.transformer.pitch_embed.weight", "pitch_embed.weight"):
        save_file({**wrapped, extra: torch.zeros(3)}, path)
        with pytest.raises(CheckpointError, match=r"1 are not known: pitch_embed\.weight"):
            load(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("base_model.model.transformer_blocks.0.attn.to_q.lora_A.default.weight", "LoRA .*merge_and_unload"),
        ("base_model.model.transformer_blocks.0.attn.to_q.base_layer.weight", "LoRA .*merge_and_unload"),
        ("transformer_blocks.0.attn.to_k.lora_down.weight", "LoRA .*merge_and_unload"),
        ("transformer_blocks.0.attn.to_k.hada_w1_a", "PEFT adapters .*merge_and_unload"),
        (
            "feedforward_model.time_embed2.time_mlp.0.weight",
            r"distilled student \(DMOSpeech 2.*: --sampler renoise --guidance none --steps 4 --grid sway",
        ),
        ("ema_model.transformer.layers.0.1.weight", "E2-TTS checkpoint .* only F5-TTS's DiT"),
        ("transformer.transformer_blocks.0.attn.to_q_c.weight", "MMDiT backbone"),
    ],
)
def test_what_is_no_plain_dit_is_named_with_the_remedy(name: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"model_state_dict": {name: torch.zeros(2, 2)}}, path)
    for kind in ("ema", "raw"):
        with pytest.raises(CheckpointError, match=message):
            load(path, kind=kind)


def test_a_folder_is_no_checkpoint_and_an_adapters_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a folder; name the file in it"):
        load(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"LoRA .*merge_and_unload"):
        load(tmp_path)


def test_a_vocoder_beside_a_model_is_read_from_the_same_file(
    state: dict[str, Tensor], tmp_path: Path
) -> None:
    folder = write_random_vocos(tmp_path / "vocos", VOCOS, seed=3)
    config, weights = load_vocos(folder)
    stored = torch.load(folder / "pytorch_model.bin", weights_only=True)
    path = tmp_path / "model.safetensors"
    names = {f"vocoder._orig_mod.{name}": value for name, value in stored.items()}
    save_file(names | {f"ema_model._orig_mod.transformer.{name}": v for name, v in state.items()}, path)
    found, read = load_vocos(path)
    assert found == config
    assert_same(read, dict(weights))
    assert_same(load(path), state)
    save_official(state, path)
    with pytest.raises(CheckpointError, match="holds no Vocos; give a folder"):
        load_vocos(path)


def test_our_safetensors_are_what_the_library_writes(state: dict[str, Tensor], tmp_path: Path) -> None:
    save_official(state, tmp_path / "ours.safetensors")
    found = load_file(tmp_path / "ours.safetensors")
    assert found.pop("initted").item() is True and found.pop("step").item() == 1
    assert {name.removeprefix("ema_model.transformer.") for name in found} == set(state)
    for name, value in state.items():
        assert torch.equal(found[f"ema_model.transformer.{name}"], value)


def test_a_random_checkpoint_loads_into_upstreams_model(tmp_path: Path) -> None:
    path, vocab = write_random(tmp_path, TINY, VOCAB, seed=4, mels=MELS)
    stored, prefix = load_file(path), "ema_model.transformer."
    weights = {n.removeprefix(prefix): v for n, v in stored.items() if n.startswith(prefix)}
    oracle = small.upstream_dit(TINY, len(VOCAB), weights, MELS)
    assert vocab.read_bytes() == b" \na\nb\nc\n"
    assert_same(load(path), {name: value for name, value in oracle.state_dict().items()})
    model = DiT(TINY, len(VOCAB), MELS)
    redraw(model, 4)
    assert_same(load(path), dict(model.state_dict()))


def test_a_built_model_shares_the_files_memory(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_official(state, path)
    model = checkpoint.build_dit(load(path), TINY, len(VOCAB), MELS)
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]) and not value.is_meta


def test_another_vocabulary_is_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_official(state, path)
    with pytest.raises(CheckpointError, match=r"trained with 4 vocabulary entries .* vocabulary has 5; give"):
        load(path, vocab_size=5)


def test_another_architecture_is_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_official(state, path)
    with pytest.raises(CheckpointError, match=r"14 tensors are missing: transformer_blocks\.2\..* 10 more"):
        load(path, dataclasses.replace(TINY, depth=3))
    with pytest.raises(CheckpointError, match=r"are not known: transformer_blocks\.1\."):
        load(path, dataclasses.replace(TINY, depth=1))
    with pytest.raises(CheckpointError, match=r"ff\.ff\.0\.0\.weight is \(64, 32\), not \(96, 32\)"):
        load(path, dataclasses.replace(TINY, ff_mult=3))


class Sneaky:
    """Pickles as a call of `print`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


def test_a_file_that_would_run_code_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zipped, old, plain = tmp_path / "zipped.pt", tmp_path / "old.pt", tmp_path / "plain.pt"
    whole = {"ema_model_state_dict": {"x": Sneaky(), "y": torch.zeros(1)}}
    torch.save(whole, zipped)
    torch.save(whole, old, _use_new_zipfile_serialization=False)
    plain.write_bytes(pickle.dumps(Sneaky(), protocol=2))
    for path in (zipped, old, plain):
        with pytest.raises(
            CheckpointError, match=r"holds more than weights: [\w.]*print, .* save the weights"
        ):
            load(path)
    for path in (zipped, old):
        assert list(read_header(path).names) == ["y"]
    assert capsys.readouterr().out == ""


def test_settings_of_a_training_are_read_as_they_are(state: dict[str, Tensor], tmp_path: Path) -> None:
    """ZipVoice's hold paths, others a namespace; a path of another system or Python is one, too."""
    path = tmp_path / "model.pt"
    settings = argparse.Namespace(out=Path("exp/de"), steps=3)
    torch.save({"model": state, "args": settings, "exp_dir": Path("exp/de")}, path)
    assert_same(load(path), state)
    ours = type(Path()).__module__.encode() + b"\nPosixPath"
    for theirs in (b"pathlib\nPosixPath", b"pathlib\nWindowsPath", b"pathlib._local\nPosixPath"):
        other = tmp_path / "other.pt"
        with zipfile.ZipFile(path) as made, zipfile.ZipFile(other, "w", zipfile.ZIP_STORED) as changed:
            for name in made.namelist():
                changed.writestr(name, made.read(name).replace(ours, theirs))
        assert_same(load(other), state)


@pytest.mark.parametrize("written", ["zip", "legacy", "safetensors", "safetensors named .pt", "pt named so"])
def test_a_header_has_what_the_tensors_have(written: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / ("m.pt" if written in ("zip", "legacy", "safetensors named .pt") else "m.safetensors")
    wanted = {**state, "half": torch.zeros(2, dtype=torch.bfloat16), "count": torch.tensor(3)}
    if written.startswith("safetensors"):
        save_file(wanted, path)
    else:
        whole = {
            "model_state_dict": {n: torch.nn.Parameter(v, v.is_floating_point()) for n, v in wanted.items()}
        }
        with path.open("wb") as stream:
            torch.save({**whole, "step": 7}, stream, _use_new_zipfile_serialization=written != "legacy")
    header, found = read_header(path), checkpoint.read(path)
    assert {name: one.shape for name, one in header.names.items()} == {
        n: tuple(v.shape) for n, v in wanted.items()
    }
    assert all(torch.equal(found.entry(name).read(), value) for name, value in wanted.items())
    assert header.progress == ("" if written.startswith("safetensors") else "step 7")
    assert header.kinds(checkpoint.EMBEDDING) == ("raw",)


def onnx_file(path: Path) -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    ends = [helper.make_tensor_value_info(name, 1, [1]) for name in "ab"]
    onnx.save(helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:])), path)


WRONG: dict[str, tuple[Callable[[Path, dict[str, Tensor]], object], str]] = {
    "gguf": (lambda path, _: path.write_bytes(b"GGUF\x03\0\0\0"), "GGUF file .* from which it was made"),
    "pointer": (
        lambda path, _: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "pointer of Git LFS, .*`git lfs pull`",
    ),
    "onnx": (lambda path, _: onnx_file(path), "ONNX graph, .* from which it was made"),
    "page": (lambda path, _: path.write_text("<!doctype html>"), "web page, .* download it again"),
    "empty": (lambda path, _: path.write_bytes(b""), "is empty"),
    "mlx arrays": (lambda path, state: npz_file(path, state), r"\.npz.* Apple's MLX, "),
    "mlx metadata": (
        lambda path, state: save_file(state, path, {"format": "mlx"}),
        "Apple's MLX, .* give the checkpoint of torch",
    ),
    "mlx names": (
        lambda path, state: save_file(
            {n.replace(".to_out", ".to_out.layers"): v for n, v in state.items()}, path
        ),
        "Apple's MLX, .* give the checkpoint of torch",
    ),
    "mlx shapes": (
        lambda path, state: save_file(
            {n: v.mT.contiguous() if v.ndim == 3 else v for n, v in state.items()}, path
        ),
        "convolutions, transposed as in MLX",
    ),
    "fp8": (
        lambda path, state: save_file({n: v.to(torch.float8_e4m3fn) for n, v in state.items()}, path),
        "tensors of F8_E4M3 .*: fp8 .* not supported; give the float32",
    ),
    "fp8 of torch": (
        lambda path, state: torch.save({n: v.to(torch.float8_e5m2) for n, v in state.items()}, path),
        "tensors of float8_e5m2 .*: fp8 .* not supported; give the float32",
    ),
    "program": (
        lambda path, _: torch.jit.script(torch.nn.Linear(2, 2)).save(str(path)),
        "TorchScript program, .* from which it was made",
    ),
    "text": (lambda path, _: path.write_text('{"error": 404}'), "no torch checkpoint, nor safetensors"),
}


def npz_file(path: Path, state: dict[str, Tensor]) -> None:
    with path.open("wb") as stream:
        np.savez(stream, **{name: value.numpy() for name, value in state.items()})  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("wrong", WRONG)
def test_other_files_are_named_by_their_first_bytes(
    wrong: str, state: dict[str, Tensor], tmp_path: Path
) -> None:
    write, message = WRONG[wrong]
    path = tmp_path / "model.pt"
    write(path, state)
    with pytest.raises(CheckpointError, match=f"model\\.pt: .*{message}"):
        load(path)


def test_files_that_are_no_checkpoints_are_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with pytest.raises(CheckpointError, match=r"model\.pt: no such file"):
        load(path)
    torch.save({"epoch": 3}, path)
    with pytest.raises(CheckpointError, match=r"holds no weights under .* or .*; its keys: epoch"):
        load(path)
    torch.save([state], path)
    with pytest.raises(CheckpointError, match="must hold a dictionary of weights, not list"):
        load(path)
    torch.save({"ema_model_state_dict": {"linear.weight": torch.zeros(1)}}, path)
    with pytest.raises(CheckpointError, match=r"no F5-TTS checkpoint, .* it has linear\.weight"):
        load(path)
    save_official(state, path, "pt")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(CheckpointError, match=r"model\.pt: (no torch checkpoint|holds more than)"):
        load(path)
    whole = tmp_path / "model.safetensors"
    save_official(state, whole)
    whole.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="no safetensors file"):
        load(whole)
    save_file({"transformer.a": torch.zeros(1), "a": torch.zeros(1)}, whole)
    with pytest.raises(CheckpointError, match="holds a twice"):
        load(whole)


def test_vocos_comes_back_without_its_feature_extractor(tmp_path: Path) -> None:
    folder = write_random_vocos(tmp_path / "vocos", VOCOS, seed=3)
    config, weights = load_vocos(folder)
    stored = torch.load(folder / "pytorch_model.bin", weights_only=True)
    assert config == VOCOS
    assert "feature_extractor.mel_spec.mel_scale.fb" in stored
    assert_same(weights, {n: v for n, v in stored.items() if not n.startswith("feature_extractor.")})
    model = checkpoint.build_vocos(config, weights)
    assert model(torch.randn(5, MELS)).shape == (4 * 16,)


def test_vocos_may_be_stored_as_safetensors(tmp_path: Path) -> None:
    folder = write_random_vocos(tmp_path / "vocos", VOCOS, seed=3)
    stored = torch.load(folder / "pytorch_model.bin", weights_only=True)
    save_file(stored, folder / "model.safetensors")
    (folder / "pytorch_model.bin").unlink()
    assert_same(load_vocos(folder)[1], {n: v for n, v in stored.items() if not n.startswith("feature")})


def test_a_random_vocos_loads_into_upstreams(tmp_path: Path) -> None:
    folder = write_random_vocos(tmp_path / "vocos", VOCOS, seed=3)
    oracle = upstream.vocos_module().Vocos.from_hparams(str(folder / "config.yaml")).eval()
    oracle.load_state_dict(torch.load(folder / "pytorch_model.bin", weights_only=True), strict=True)
    log_mel = torch.randn(9, MELS)
    wanted = oracle.decode(log_mel.T[None])[0]
    found = checkpoint.build_vocos(*load_vocos(folder))(log_mel)
    assert float((found - wanted).norm() / wanted.norm()) <= 1e-5


def test_bigvgan_comes_back_folded(tmp_path: Path) -> None:
    folder = write_random_bigvgan(tmp_path / "bigvgan", BIGVGAN, seed=3)
    config, weights = load_bigvgan(folder)
    assert config == BIGVGAN
    assert not any(name.endswith(("weight_g", "weight_v")) for name in weights)
    raw = {**dataclasses.asdict(BIGVGAN), "resblock_dilation_sizes": [[1, 3, 5]]}
    oracle = upstream.make_bigvgan(raw)
    oracle.load_state_dict(torch.load(folder / "bigvgan_generator.pt", weights_only=True)["generator"])
    log_mel = torch.randn(9, MELS)
    with torch.inference_mode():
        wanted = oracle(log_mel.T[None])[0, 0]
        found = checkpoint.build_bigvgan(config, weights)(log_mel)
    assert float((found - wanted).norm() / wanted.norm()) <= 1e-5


def test_bigvgan_without_stored_filters_gets_them(tmp_path: Path) -> None:
    folder = write_random_bigvgan(tmp_path / "bigvgan", BIGVGAN, seed=3)
    whole = {name: value.clone() for name, value in load_bigvgan(folder)[1].items()}
    path = folder / "bigvgan_generator.pt"
    stored = torch.load(path, weights_only=True)["generator"]
    torch.save({"generator": {n: v for n, v in stored.items() if not n.endswith("filter")}}, path)
    assert_same(load_bigvgan(folder)[1], whole)


def test_a_vocoders_folder_without_its_parts_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.yaml: no such file; the folder must have"):
        load_vocos(tmp_path)
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        load_bigvgan(tmp_path)
    write_random_vocos(tmp_path, VOCOS)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors or pytorch_model\.bin"):
        load_vocos(tmp_path)
    (tmp_path / "config.yaml").write_text("head: {}")
    with pytest.raises(CheckpointError, match=r"config\.yaml: missing section feature_extractor"):
        load_vocos(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        load_bigvgan(tmp_path)


def test_a_null_in_a_vocoders_config_is_one_line(tmp_path: Path) -> None:
    folder = write_random_vocos(tmp_path / "vocos", VOCOS)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("num_layers: 2", "num_layers: null"))
    with pytest.raises(
        CheckpointError, match=r"config\.yaml: backbone\.init_args: num_layers: must be int, not None"
    ):
        load_vocos(folder)
    folder = write_random_bigvgan(tmp_path / "bigvgan", BIGVGAN)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"num_mels": 8', '"num_mels": null'))
    with pytest.raises(CheckpointError, match=r"config\.json: .*num_mels: must be int, not NoneType"):
        load_bigvgan(folder)


MEASURE = """
import resource, sys
from pathlib import Path
from appliance.contract.bundle import Arch
from export.sources.checkpoint import load_dit
from tests.export.random_checkpoint import write_random

arch = Arch(dim=1024, depth=3, heads=16, ff_mult=2)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
path, _ = write_random(Path(sys.argv[1]), arch, [str(n) for n in range(99)])
written = peak()
weights = load_dit(path, arch, 99)
print(path.stat().st_size / 2**20, written - before, peak() - written)
"""


def test_writing_and_opening_hold_no_whole_model(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    size, writing, opening = (float(number) for number in run.stdout.split())
    assert size > 170  # MiB
    assert writing < 110  # a few copies of the largest tensor, 24 MiB
    assert opening < 20

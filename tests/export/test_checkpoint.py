"""Reading official layouts: weights come back from each layout, and errors name the fault."""

import argparse
import dataclasses
import json
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import helper
from safetensors.torch import load_file, save_file
from torch import Tensor

from appliance.contract.bundle import Arch
from export.graphs.condition import rates
from export.model.dit import DiT
from export.model.vocos import VocosConfig
from export.sources import checkpoint
from export.sources.checkpoint import ROTARY, CheckpointError, load_bigvgan, load_dit, load_vocos
from export.sources.header import read_header
from tests.export.random_checkpoint import redraw, write_random, write_random_bigvgan, write_random_vocos
from tests.harness import small
from tests.harness.daemons import finished
from tests.harness.rows import rows

pytestmark = pytest.mark.torch

TINY = Arch(dim=32, depth=2, heads=2, ff_mult=2, text_dim=16, conv_layers=1, dim_head=16)
VOCAB = [" ", "a", "b", "c"]
MELS = 8
VOCOS = VocosConfig(MELS, 16, 32, 2, n_fft=64, hop=16, padding="center")
BLOCKS = {"upsample_rates": (4, 2), "upsample_kernel_sizes": (8, 4), "resblock_dilation_sizes": ((1, 3, 5),)}
BIGVGAN = dataclasses.replace(small.BIGVGAN, num_mels=MELS, upsample_initial_channel=16, **BLOCKS)


Write = Callable[[Path, dict[str, Tensor]], object]
"""Writes a file with, or derived from, a state dict."""


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


def assert_same(actual: Mapping[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        assert actual[name].dtype == torch.float32
        assert torch.equal(actual[name], value), name


def named(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def compiled(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of a model whose blocks were compiled one by one."""
    return {re.sub(r"(blocks\.\d+)", r"\1._orig_mod", name): value for name, value in state.items()}


AVERAGE, WRAPPED = "ema_model.transformer.", "ema_model._orig_mod.transformer."
OLD_MELS = {
    "ema_model.mel_spec.mel_stft.mel_scale.fb": torch.zeros(513, 100),
    "ema_model.mel_spec.mel_stft.spectrogram.window": torch.zeros(1024),
    "initted": torch.tensor(True),
    "step": torch.tensor(1_250_000),
}
VOCODER = {f"vocoder._orig_mod.{name}": torch.zeros(3) for name in ("backbone.norm.bias", "head.out.bias")}
LAYOUTS: dict[str, Callable[[dict[str, Tensor]], dict[str, Any]]] = {
    "averaged": lambda state: {"ema_model_state_dict": named(AVERAGE, state)},
    "averaged, with an old mel module": lambda state: named(AVERAGE, state) | OLD_MELS,
    "unaveraged": lambda state: {"model_state_dict": named("transformer.", state)},
    # Upstream's page writes the tensors under the average's key, without the average's prefix.
    "unaveraged, pruned": lambda state: {"ema_model_state_dict": named("transformer.", state)},
    **{
        f"unaveraged, {key}": lambda state, key=key: {key: named("transformer.", state), "step": 3}  # type: ignore[misc]
        for key in ("params", "net")
    },
    "unaveraged, compiled": lambda state: {"state_dict": named("model.", compiled(state))},
    "bare names": dict,
    **{
        f"after {prefix}": lambda state, prefix=prefix: named(prefix, state) | VOCODER  # type: ignore[misc]
        for prefix in rows(__file__, "prefixes.jsonl")
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layouts_are_read(layout: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    """Every format that can hold the layout is read, including torch's oldest."""
    stored, paths = LAYOUTS[layout](state), [tmp_path / f"model.{n}" for n in ("pt", "old.pt", "safetensors")]
    for path, zips in zip(paths, (True, False), strict=False):
        torch.save(stored, path, _use_new_zipfile_serialization=zips)
    if not any(isinstance(value, dict) for value in stored.values()):
        save_file(stored, paths[2])
    averaged = layout.startswith("averaged") or "ema_model" in layout
    for path in filter(Path.exists, paths):
        for kind in ("ema",) if averaged else ("ema", "raw"):
            found = load(path, kind=kind)  # type: ignore[arg-type]
            assert_same(found, state)
            assert found.averaged == averaged


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_become_float32(dtype: torch.dtype, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({name: value.to(dtype) for name, value in named(AVERAGE, state).items()}, path)
    rounded = {name: value.to(dtype).float() for name, value in state.items()}
    assert_same(load(path), rounded | {ROTARY: rates(TINY.dim_head)})


@pytest.mark.parametrize("dim_head", [16, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_rotary_table_is_exact_however_stored(dim_head: int, dtype: torch.dtype, tmp_path: Path) -> None:
    arch = dataclasses.replace(TINY, dim_head=dim_head)
    path, _ = write_random(tmp_path, arch, VOCAB, mels=MELS, dtype=dtype)
    weights = load(path, arch)
    assert torch.equal(weights[ROTARY], rates(dim_head))
    model = checkpoint.build_dit(weights, arch, len(VOCAB), MELS)
    assert torch.equal(model.rotary_embed.inv_freq, rates(dim_head))


def test_raw_weights_are_read_on_request(state: dict[str, Tensor], tmp_path: Path) -> None:
    path, tensors = tmp_path / "model.pt", tmp_path / "model.safetensors"
    raw = {name: value.clone() if name == ROTARY else value + 1 for name, value in state.items()}
    both = {"ema_model_state_dict": named(AVERAGE, state), "model_state_dict": named("transformer.", raw)}
    torch.save({**both, "optimizer_state_dict": {"state": {}, "param_groups": []}, "update": 1}, path)
    save_file(named(AVERAGE, state) | named("online_model.transformer.", raw), tensors)
    for mixed in (path, tensors):
        assert_same(load(mixed), state)
        assert_same(load(mixed, kind="raw"), raw)
    torch.save({"ema_model_state_dict": named(AVERAGE, state)}, path)
    save_file(named(AVERAGE, state), tensors)
    for alone in (path, tensors):
        with pytest.raises(CheckpointError, match=r"has no raw weights, only .*: ema_model\.transformer\."):
            load(alone, kind="raw")
    save_file(named("teacher.transformer.", state) | named("student.transformer.", raw), tensors)
    with pytest.raises(CheckpointError, match=r"several models: (teacher, student|student, teacher)"):
        load(tensors)


@pytest.mark.parametrize(("name", "message"), rows(__file__, "no_plain_dit.jsonl"))
def test_other_models_than_a_dit_are_named_with_the_remedy(name: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"model_state_dict": {name: torch.zeros(2, 2)}}, path)
    for kind in ("ema", "raw"):
        with pytest.raises(CheckpointError, match=message):
            load(path, kind=kind)


def test_a_vocoder_is_read_from_a_folder_or_the_models_file(state: dict[str, Tensor], tmp_path: Path) -> None:
    """The loader drops the feature extractor, which a library may have stored."""
    folder = write_random_vocos(tmp_path / "vocos", VOCOS, seed=3)
    stored = torch.load(folder / "pytorch_model.bin", weights_only=True)
    assert "feature_extractor.mel_spec.mel_scale.fb" in stored
    expected = {n: v for n, v in stored.items() if not n.startswith("feature_extractor.")}
    config, weights = load_vocos(folder)
    assert config == VOCOS
    assert_same(weights, expected)
    assert checkpoint.build_vocoder(config, weights)(torch.randn(5, MELS)).shape == (4 * 16,)
    save_file(stored, folder / "model.safetensors")
    (folder / "pytorch_model.bin").unlink()
    path = tmp_path / "model.safetensors"
    save_file(named("vocoder._orig_mod.", stored) | named(WRAPPED, state), path)
    for place in (folder, path):
        config, weights = load_vocos(place)
        assert config == VOCOS
        assert_same(weights, expected)
    assert_same(load(path), state)
    save_file(named(AVERAGE, state), path)
    with pytest.raises(CheckpointError, match="no Vocos in it; pass a folder"):
        load_vocos(path)


def test_a_random_checkpoint_loads_into_upstreams_model(tmp_path: Path) -> None:
    path, vocab = write_random(tmp_path, TINY, VOCAB, seed=4, mels=MELS)
    stored, prefix = load_file(path), "ema_model.transformer."
    weights = {n.removeprefix(prefix): v for n, v in stored.items() if n.startswith(prefix)}
    oracle = small.upstream_dit(TINY, len(VOCAB), weights, MELS)
    assert vocab.read_bytes() == b" \na\nb\nc\n"
    assert_same(load(path), oracle.state_dict())
    model = DiT(TINY, len(VOCAB), MELS)
    redraw(model, 4)
    assert_same(load(path), dict(model.state_dict()))


def test_a_built_model_shares_the_files_memory(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(named(AVERAGE, state), path)
    model = checkpoint.build_dit(load(path), TINY, len(VOCAB), MELS)
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert_same(model.state_dict(), state)


class Sneaky:
    """An object that calls `print` when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


def test_a_file_that_would_run_code_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zipped, old, plain = tmp_path / "zipped.pt", tmp_path / "old.pt", tmp_path / "plain.pt"
    whole = {"ema_model_state_dict": {"x": Sneaky(), "y": torch.zeros(1)}}
    torch.save(whole, zipped)
    torch.save(whole, old, _use_new_zipfile_serialization=False)
    plain.write_bytes(pickle.dumps(Sneaky(), protocol=2))
    for path in (zipped, old, plain):
        with pytest.raises(CheckpointError, match=r"holds more than weights: [\w.]*print, .* save only"):
            load(path)
    for path in (zipped, old):
        assert list(read_header(path).names) == ["y"]
    assert capsys.readouterr().out == ""


def test_settings_of_a_training_are_read_as_they_are(state: dict[str, Tensor], tmp_path: Path) -> None:
    """ZipVoice's settings hold paths, others a namespace; the path may come from another system or Python."""
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
def test_a_header_agrees_with_the_tensors(written: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / ("m.pt" if written in ("zip", "legacy", "safetensors named .pt") else "m.safetensors")
    expected = {**state, "half": torch.zeros(2, dtype=torch.bfloat16), "count": torch.tensor(3)}
    if written.startswith("safetensors"):
        save_file(expected, path)
    else:
        parameters = {n: torch.nn.Parameter(v, v.is_floating_point()) for n, v in expected.items()}
        with path.open("wb") as stream:
            whole = {"model_state_dict": parameters, "step": 7}
            torch.save(whole, stream, _use_new_zipfile_serialization=written != "legacy")
    header, actual = read_header(path), checkpoint.read(path)
    shapes = {name: tuple(value.shape) for name, value in expected.items()}
    assert {name: one.shape for name, one in header.names.items()} == shapes
    assert all(torch.equal(actual.entry(name).read(), value) for name, value in expected.items())
    assert header.progress == ("" if written.startswith("safetensors") else "step 7")
    assert header.kinds(checkpoint.EMBEDDING) == ("raw",)


def onnx_file(path: Path) -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    ends = [helper.make_tensor_value_info(name, 1, [1]) for name in "ab"]
    onnx.save(helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:])), path)


def adapter(path: Path, _: object) -> None:
    path.mkdir()
    (path / "adapter_config.json").write_text("{}")


def unpacked(path: Path, name: str = "data.pkl") -> None:
    path.mkdir()
    (path / name).write_bytes(b"\x80")


def npz_file(path: Path, state: dict[str, Tensor]) -> None:
    with path.open("wb") as stream:
        np.savez(stream, **{name: value.numpy() for name, value in state.items()})  # type: ignore[arg-type]


def rotary(table: Tensor, dtype: torch.dtype = torch.float32) -> Write:
    return lambda path, state: save_file(named(AVERAGE, state | {ROTARY: table.to(dtype)}), path)


def halved(save: Callable[..., object]) -> Write:
    """The first half of a file."""

    def write(path: Path, state: dict[str, Tensor]) -> None:
        save(named(AVERAGE, state), path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return write


def saved(content: Callable[[dict[str, Tensor]], Any]) -> Write:
    """Write safetensors, or a file of torch if the content is not tensors alone."""

    def write(path: Path, state: dict[str, Tensor]) -> None:
        made = content(state)
        plain = isinstance(made, dict) and all(isinstance(value, Tensor) for value in made.values())
        (save_file if plain else torch.save)(made, path)

    return write


BASE = 1.0 / 20000 ** (torch.arange(0, 16, 2).float() / 16)
"""A rotary table of another base."""
FLOAT8 = "fp8 .* not supported; pass the float32"
WRONG: dict[str, tuple[Write, str]] = {
    "gguf": (lambda path, _: path.write_bytes(b"GGUF\x03\0\0\0"), "GGUF file .* that it came from"),
    "pointer": (lambda path, _: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "Git LFS pointer, .*`git lfs pull`"),
    "onnx": (lambda path, _: onnx_file(path), "ONNX graph, .* that it came from"),
    "page": (lambda path, _: path.write_text("<!doctype html>"), "web page, .* download it again"),
    "empty": (lambda path, _: path.write_bytes(b""), "is empty"),
    "program": (lambda path, _: torch.jit.script(torch.nn.Linear(2, 2)).save(str(path)),
        "TorchScript program, .* that it came from"),
    "text": (lambda path, _: path.write_text('{"error": 404}'), 'is text, not weights: .{"error": 404}'),
    "text of one word": (lambda path, _: path.write_text("Entry not found"), "is text.*: 'Entry not found'"),
    "page after a mark": (lambda path, _: path.write_text("\ufeff\n <!doctype html>"), "is a web page"),
    "tar": (lambda path, _: path.write_bytes(bytes(257) + b"ustar"), r"archive \(tar\); unpack it"),
    "int8": (saved(lambda state: {n: v.to(torch.int8) for n, v in state.items()}),
        r"weights of I8 \(.*\): quantised weights are not supported; pass the float32"),
    "bitsandbytes": (saved(lambda state: state | {"transformer.a.absmax": torch.ones(2)}),
        "holds weights that bitsandbytes quantised"),
    "a shard alone": (lambda path, state: save_file(state, path), "is one shard of several, but their index"),
    "unpacked": (lambda path, _: unpacked(path), "unpacked .pt; pack its folder again: zip -0"),
    "distributed": (lambda path, _: unpacked(path, "__0_0.distcp"), "dcp_to_torch FOLDER"),
    "mlx arrays": (npz_file, r"\.npz.* Apple's MLX, "),
    "mlx metadata": (lambda path, state: save_file(state, path, {"format": "mlx"}),
        "Apple's MLX, .* pass the checkpoint of torch"),
    "mlx names": (saved(lambda state: {n.replace(".to_out", ".to_out.layers"): v for n, v in state.items()}),
        "Apple's MLX, .* pass the checkpoint of torch"),
    "mlx shapes": (
        saved(lambda state: {n: v.mT.contiguous() if v.ndim == 3 else v for n, v in state.items()}),
        "convolutions, transposed as in MLX",
    ),
    "fp8": (saved(lambda state: {n: v.to(torch.float8_e4m3fn) for n, v in state.items()}),
        f"tensors of F8_E4M3 .*: {FLOAT8}"),
    "fp8 of torch": (
        lambda path, state: torch.save({n: v.to(torch.float8_e5m2) for n, v in state.items()}, path),
        f"tensors of float8_e5m2 .*: {FLOAT8}",
    ),
    "nothing": (lambda path, _: None, "no such file"),
    "a folder": (lambda path, _: path.mkdir(), "is a folder; pass the file in it"),
    "an adapter's folder": (adapter, r"LoRA .*merge_and_unload"),
    "no weights": (saved(lambda _: {"epoch": 3}), "has no weights under .* or .*; its keys: epoch"),
    "a list": (saved(lambda state: [state]), "must contain a dictionary of weights, not list"),
    "another model": (saved(lambda _: {"ema_model_state_dict": {"linear.weight": torch.zeros(1)}}),
        r"not a checkpoint of F5-TTS: .* has linear\.weight"),
    "half a zip": (halved(torch.save), "(not a torch checkpoint|holds more than)"),
    "half of safetensors": (halved(save_file), "not a safetensors file"),
    "twice": (saved(lambda _: {"transformer.a": torch.zeros(1), "a": torch.zeros(1)}), "contains a twice"),
    "a tensor too many": (
        saved(lambda state: named(WRAPPED, state) | {f"{WRAPPED}pitch_embed.weight": torch.zeros(3)}),
        r"1 are unknown: pitch_embed\.weight",
    ),
    "a bare tensor too many": (
        saved(lambda state: named(WRAPPED, state) | {"pitch_embed.weight": torch.zeros(3)}),
        r"1 are unknown: pitch_embed\.weight",
    ),
    **{
        f"rotary table of {dtype}, times {change}": (
            rotary(rates(TINY.dim_head) * change, dtype),
            r"rotary_embed\.inv_freq differs .* by up to [\d.e-]+|nan",
        )
        for dtype, change in (
            (torch.float32, 1 + 3e-6),
            (torch.float16, 1 + 2e-3),
            (torch.bfloat16, 1 + 2e-2),
            (torch.float16, float("nan")),
        )
    },
    **{
        f"rotary table of another base, {dtype}": (rotary(BASE, dtype), r"inv_freq differs .* 4\.5e-01")
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    },
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_cannot_be_read_is_named(wrong: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    write, message = WRONG[wrong]
    path = tmp_path / ("model-00001-of-00002.pt" if wrong == "a shard alone" else "model.pt")
    write(path, state)
    with pytest.raises(CheckpointError, match=f"model.*\\.pt: .*{message}"):
        load(path)


@pytest.mark.parametrize(("vocab_size", "change", "message"), [
    (5, {}, r"trained with 4 vocabulary entries .* vocabulary has 5; pass"),
    (4, {"depth": 3}, r"14 tensors are missing: transformer_blocks\.2\..* 10 more"),
    (4, {"depth": 1}, r"are unknown: transformer_blocks\.1\."),
    (4, {"ff_mult": 3}, r"ff\.ff\.0\.0\.weight is \(64, 32\), not \(96, 32\)"),
])  # fmt: skip
def test_another_vocabulary_or_architecture_is_named(
    vocab_size: int, change: dict[str, int], message: str, state: dict[str, Tensor], tmp_path: Path
) -> None:
    save_file(named(AVERAGE, state), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "model.safetensors", dataclasses.replace(TINY, **change), vocab_size)


def test_bigvgan_comes_back_folded_and_gets_filters_that_are_not_stored(tmp_path: Path) -> None:
    folder = write_random_bigvgan(tmp_path / "bigvgan", BIGVGAN, seed=3)
    config, weights = load_bigvgan(folder)
    assert config == BIGVGAN
    assert not any(name.endswith(("weight_g", "weight_v")) for name in weights)
    whole = {name: value.clone() for name, value in weights.items()}
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
    for content, message in (
        ("head: {}", "missing section feature_extractor"),
        ("Entry not found", "is text, not a configuration: 'Entry not found'"),
    ):
        (tmp_path / "config.yaml").write_text(content)
        with pytest.raises(CheckpointError, match=rf"config\.yaml: {message}"):
            load_vocos(tmp_path)
    write_random_vocos(tmp_path, VOCOS)
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    config["feature_extractor"]["init_args"] |= {"f_min": 0, "f_max": 8000}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(CheckpointError, match=r"f_max: 8000 makes other mels .* allowed are sample_rate"):
        load_vocos(tmp_path)
    write_random_vocos(tmp_path, VOCOS)
    stored = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    torch.save(
        stored | {checkpoint.FILTERS: stored[checkpoint.FILTERS] * 0.99}, tmp_path / "pytorch_model.bin"
    )
    with pytest.raises(CheckpointError, match="the filters of its mels, are not those of"):
        load_vocos(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        load_bigvgan(tmp_path)


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
    run = finished(sys.executable, "-c", MEASURE, tmp_path)
    size, writing, opening = (float(number) for number in run.stdout.split())
    assert size > 170  # MiB
    assert writing < 110  # a few copies of the largest tensor, 24 MiB
    assert opening < 20


def shards(path: Path, state: dict[str, Tensor]) -> None:
    """The tensors in two files, and the index in place of one."""
    names = list(state)
    parts = {f"model-0000{n}-of-00002.safetensors": names[n - 1 :: 2] for n in (1, 2)}
    for file, own in parts.items():
        save_file({name: state[name] for name in own}, path.with_name(file))
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    path.with_name("model.safetensors.index.json").write_text(json.dumps(index))


def compressed(path: Path, state: dict[str, Tensor]) -> None:
    torch.save(state, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def pruned(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The numbers of the blocks with a gap."""
    return {name.replace("transformer_blocks.1.", "transformer_blocks.4."): v for name, v in state.items()}


BESIDE = {"duration_predictor.out.weight": torch.ones(2), "feats_extract.melmat": torch.ones(2)}


@pytest.mark.parametrize(("name", "write", "note"), [
    ("model.safetensors.index.json", shards, ""),
    ("model-00002-of-00002.safetensors", shards, ""),
    ("model.pt", compressed, ""),
    ("model.pt", saved(lambda state: {n: v for n, v in state.items() if n != ROTARY}), ""),
    ("model.pt", saved(lambda state: state | {checkpoint.POSITIONS: torch.ones(4, 4)}), ""),
    ("model.pt", saved(pruned), "get new numbers"),
    ("model.pt", saved(lambda state: state | BESIDE), "duration_predictor.*feats_extract.* are ignored"),
])  # fmt: skip
def test_weights_in_other_forms_are_the_same(
    name: str, write: Write, note: str, state: dict[str, Tensor], tmp_path: Path
) -> None:
    write(tmp_path / name, state)
    weights = load(tmp_path / name)
    assert_same(weights, state)
    assert re.search(note, " ".join(weights.notes)) if note else not weights.notes

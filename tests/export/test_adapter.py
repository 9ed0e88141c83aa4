"""Adapters that PEFT 0.21.2 wrote, against PEFT's own merge."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from export.sources import checkpoint, look
from export.sources.checkpoint import CheckpointError, Weights
from export.sources.stored import StoredTensor
from tests.export.test_look import f5
from tests.harness import small
from tests.harness.rows import rows

pytestmark = pytest.mark.torch

MERGED = {row[0]: row[1:] for row in rows(__file__, "merged_by_peft.jsonl")}
"""Name → configuration, base, adapter, and the changes of the base by PEFT's merge."""
PLAIN = MERGED["plain"][0]


def tensors(values: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in values.items()}


def stored(folder: Path, config: dict[str, Any], changes: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(changes, folder / "adapter_model.safetensors")
    return folder


def merge(folder: Path, base: dict[str, Tensor]) -> Weights:
    entries = {name: StoredTensor(tuple(value.shape), lambda v=value: v) for name, value in base.items()}  # type: ignore[misc]
    return checkpoint.unwrapped(folder, Weights(entries), "raw", checkpoint.DIT, folder)


def wrapped(base: dict[str, Tensor], changes: dict[str, Tensor]) -> dict[str, Tensor]:
    """Base and adapter in one file, in the form of a trainer that stores its whole model."""
    modules = {name.rsplit(".lora", 1)[0] for name in changes if ".lora" in name}
    inner = {}
    for name, value in base.items():
        module, _, last = f"base_model.model.{name}".rpartition(".")
        inner[f"{module}.base_layer.{last}" if module in modules else f"{module}.{last}"] = value
    return inner | {name.replace(".weight", ".default.weight"): value for name, value in changes.items()}


@pytest.mark.parametrize("name", MERGED)
def test_an_adapter_is_merged_as_peft_does(name: str, tmp_path: Path) -> None:
    config, base, changes, changed = MERGED[name]
    base, changes = tensors(base), tensors(changes)
    folder = stored(tmp_path, config, changes)
    expected = {n.removeprefix("transformer."): v for n, v in (base | tensors(changed)).items()}
    for given in (base, wrapped(base, changes)) if name == "plain" else (base,):
        actual = merge(folder, given)
        assert set(actual) == set(expected)
        for own, value in expected.items():
            torch.testing.assert_close(actual[own], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("config", "other", "message"), rows(__file__, "refused_adapters.jsonl"))
def test_unmergeable_adapters_are_refused(
    config: dict[str, Any], other: dict[str, Any], message: str, tmp_path: Path
) -> None:
    _, base, changes, _ = MERGED["plain"]
    folder = stored(tmp_path, PLAIN | config, tensors(changes | other))
    if "without adapter_model" in message:
        (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=message):
        merge(folder, tensors(base))


def test_a_folder_with_an_adapter_and_its_base_is_merged(tmp_path: Path) -> None:
    place, name = f5(tmp_path), "transformer_blocks.0.attn.to_q.weight"
    for path in place.glob("model_*"):
        path.unlink()
    module = f"base_model.model.transformer.{name.removesuffix('.weight')}"
    for step, value in ((90, 1.0), (500, 2.0)):
        factors = {f"{module}.lora_A.weight": torch.ones(2, 64), f"{module}.lora_B.weight": torch.ones(64, 2)}
        stored(place / f"lora_{step}", PLAIN | {"lora_alpha": value}, factors)
    (place / "lora_last").symlink_to("lora_90")
    base = place / "pretrained_model_1250000.safetensors"
    family, vocab = place / "small.yaml", tmp_path / "data/stimme_pinyin/vocab.txt"
    plain = ["bundle", "--family", str(family), "--checkpoint", str(base), "--vocab", str(vocab)]
    plain += ["--vocoder-path", str(place / "vocos"), "--out", str(tmp_path / "out")]
    whole = small.opened_by(plain).weights()[name]
    for arguments, change in (
        ([*plain, "--adapter", str(place / "lora_500")], 2.0),
        (["bundle", str(place / "lora_500")], 2.0),
        (["bundle", str(place)], 1.0),
    ):
        loaded = small.opened_by(arguments)
        torch.testing.assert_close(loaded.weights()[name], whole + change)
        assert loaded.sources.checkpoint == base
    # A trainer that stores its whole model names the base's tensors as PEFT does.
    state = checkpoint.read(base, "ema")
    both = wrapped({n.removeprefix("ema_model."): v for n, v in state.items() if "transformer" in n}, factors)
    torch.save({"model_state_dict": both}, place / "model_500.pt")
    more = ["--checkpoint", str(place / "model_500.pt"), "--adapter", str(place / "lora_500")]
    loaded = small.opened_by([*plain, *more])
    torch.testing.assert_close(loaded.weights()[name], whole + 2.0)
    assert "averaged" not in look.describe(place / "lora_500", {"--checkpoint": str(place / "model_500.pt")})
    said = look.describe(place / "lora_500")
    assert f"lora_500: LoRA, rank 2, alpha 2, merged into {base}" in said and "missing" not in said
    base.unlink()
    (place / "model_500.pt").unlink()
    with pytest.raises(CheckpointError, match=r"lora_500: LoRA.* trained on \(pretrained_\*\) are missing"):
        look.look(place / "lora_500")

"""Adapters as PEFT stores them: LoRA (also with DoRA) and LoHa. Finds them and tells which can be merged.

Does not import torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from appliance.fields import AtLeast, Count, Ranged, from_mapping
from export.sources.header import CheckpointError, numbers

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
NAMES = {"LORA": "LoRA", "LOHA": "LoHa"}
UNREAD = frozenset(
    ("auto_mapping", "exclude_modules", "inference_mode", "layers_to_transform", "modules_to_save")
) | {"target_modules"}
"""Keys of the configuration that do not change the result of a merge."""
OWN = re.compile(r"\.(?:(?:lora|hada|lokr|ia3|oft|vera|trainable_tokens)_|modules_to_save\.)")
"""Matches the names of an adapter's tensors."""
WRAPPED = re.compile(r"\.(?:base_layer|original_module|modules_to_save(?:\.default)?)(?=\.)")
"""Matches what PEFT inserts into the names of the base model's tensors."""


class Unmergeable(CheckpointError):
    """An adapter that only PEFT itself can merge."""

    def __init__(self, reason: str) -> None:
        elsewhere = "PeftModel.from_pretrained(model, FOLDER).merge_and_unload()"
        super().__init__(f"{reason}; merge it where it was trained, by {elsewhere}")


@dataclass(frozen=True)
class AdapterConfig(Ranged):
    """Keys of `adapter_config.json` that the merge depends on."""

    peft_type: Literal["LORA", "LOHA"]
    r: Count
    alpha: Annotated[float, AtLeast(1e-9)]
    """`lora_alpha` in the file of a LoRA."""
    rank_pattern: dict[str, Count] = field(default_factory=dict)
    """Expression of a module's name → rank."""
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    use_dora: bool = False
    use_rslora: bool = False
    init_lora_weights: Literal[True, False, "gaussian"] = True
    """Initialisations that leave the base weights unchanged. Others, such as pissa, change them too."""
    init_weights: Literal[True, False] = True
    base_model_name_or_path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern in self.alpha_pattern:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"alpha_pattern: {pattern}: is not a regular expression: {error}") from error


@dataclass(frozen=True)
class Adapter:
    folder: Path
    """Folder that has `adapter_config.json`."""
    file: Path
    config: AdapterConfig

    def __str__(self) -> str:
        name = NAMES[self.config.peft_type] + " with DoRA" * self.config.use_dora
        return f"{self.folder.resolve().name}: {name}, rank {self.config.r}, alpha {self.config.alpha:g}"

    def scale(self, module: str, rank: int) -> float:
        """Factor of a module's product, α/r or α/√r.

        Raises CheckpointError if the configuration lacks `rank`.
        """
        config = self.config
        if rank not in (config.r, *config.rank_pattern.values()):
            raise CheckpointError(f"{self.file}: {module} has rank {rank}, {CONFIG} has {config.r}")
        patterns = config.alpha_pattern.items()
        fit = (alpha for pattern, alpha in patterns if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module))
        return next(fit, config.alpha) / rank ** (0.5 if config.use_rslora else 1.0)


def read(folder: Path) -> Adapter:
    """Read an adapter. Raises CheckpointError if the folder has none, Unmergeable for an unsupported kind."""
    path = folder / CONFIG
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{folder}: contains no adapter of PEFT, because it has no {CONFIG}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: must be JSON: {error}") from error
    if isinstance(raw, dict):
        raw = {key: value for key, value in raw.items() if value is not None}
        raw = {"alpha": raw.get("lora_alpha"), **raw}
    config = from_mapping(AdapterConfig, raw, where=str(path), error=Unmergeable, ignore_unknown=True)
    keys = UNREAD | {one.name for one in fields(AdapterConfig)}
    on = [key for key, value in raw.items() if value is True or (value and isinstance(value, (dict, list)))]
    if unknown := [key for key in on if key not in keys]:
        raise Unmergeable(f"{path}: {', '.join(unknown)}: is not supported")
    for name in FILES:
        if (folder / name).is_file():
            return Adapter(folder, folder / name, config)
    raise CheckpointError(f"{folder}: has {CONFIG} without {' or '.join(FILES)}")


def of_base(names: Iterable[str]) -> dict[str, str]:
    """Names of the base model's weights → their names in the file, which may contain an adapter as well."""
    return {WRAPPED.sub("", name): name for name in names if not OWN.search(name)}


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def newest_in(folder: Path) -> Path | None:
    """The folder, or the last update's adapter in it: `adapter_STEP`, `lora_N`, or a link `lora_last`."""
    folders = [folder] if is_adapter(folder) else [path for path in folder.glob("*") if is_adapter(path)]
    return max(folders, key=lambda path: ("last" in path.name, numbers(path)), default=None)

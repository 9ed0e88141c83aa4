"""Adapters as PEFT stores them, LoRA (also DoRA) and LoHa: where they lie, and which can be merged.

torch is not imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.durable import sha256
from appliance.fields import shown
from export.sources.header import CheckpointError, numbers, text_in

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
KINDS = {"LORA": ("LoRA", "lora_alpha"), "LOHA": ("LoHa", "alpha")}
"""Value of `peft_type` → name, and the key of its strength."""
UNMOVED = (True, False, "gaussian")
"""Beginnings of a training that leave the base as it is: others, as pissa, move a part of it."""
SUPPORTED = frozenset(
    (
        *("auto_mapping", "exclude_modules", "inference_mode", "layers_to_transform", "modules_to_save"),
        *("target_modules", "rank_pattern", "alpha_pattern", "init_lora_weights", "init_weights"),
        *("use_dora", "use_rslora"),
    )
)
"""Switches and lists that may have a value."""
OWN = re.compile(r"\.(?:(?:lora|hada|lokr|ia3|oft|vera|trainable_tokens)_|modules_to_save\.)")
"""In the names of an adapter's tensors."""
WRAPPED = re.compile(r"\.(?:base_layer|original_module|modules_to_save(?:\.default)?)(?=\.)")
"""What PEFT puts into the names of a model's own tensors."""
ELSEWHERE = "merge it where it was trained, by PeftModel.from_pretrained(model, FOLDER).merge_and_unload()"


@dataclass(frozen=True)
class Adapter:
    folder: Path
    file: Path
    name: str
    rank: int
    alpha: float
    config: Mapping[str, Any]

    def __str__(self) -> str:
        dora = " with DoRA" if self.config.get("use_dora") else ""
        return f"{self.folder}: {self.name}{dora}, rank {self.rank}, alpha {self.alpha:g}"

    def record(self) -> dict[str, Any]:
        """What a manifest says of it."""
        said = {"name": self.folder.resolve().name, "kind": self.name, "rank": self.rank, "alpha": self.alpha}
        return said | {"sha256": sha256(self.file)}

    def scale(self, module: str, rank: int) -> float:
        """Factor of a module's product. Raises CheckpointError for a rank that the configuration lacks."""
        if rank not in (self.rank, *self.config.get("rank_pattern", {}).values()):
            raise CheckpointError(f"{self.file}: {module} has rank {rank}, {CONFIG} has {self.rank}")
        patterns = self.config.get("alpha_pattern", {}).items()
        fit = (alpha for pattern, alpha in patterns if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module))
        root = 0.5 if self.config.get("use_rslora") else 1.0
        return float(next(fit, self.alpha)) / rank**root


def read(folder: Path) -> Adapter:
    """Raises CheckpointError for a folder without an adapter, and for one that no product merges."""
    path = folder / CONFIG
    try:
        content = path.read_bytes()
        config = {key: value for key, value in json.loads(content).items() if value is not None}
    except OSError as error:
        raise CheckpointError(f"{folder}: holds no adapter of PEFT, it has no {CONFIG}") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: {text_in(content) or 'must be a mapping in JSON'}") from error
    if (kind := str(config.get("peft_type"))) not in KINDS:
        raise CheckpointError(f"{path}: peft_type: must be {' or '.join(KINDS)}, not {kind}; {ELSEWHERE}")
    name, strength = KINDS[kind]
    begun = config.get("init_lora_weights", config.get("init_weights", True))
    if begun not in UNMOVED:
        raise CheckpointError(
            f"{path}: init_lora_weights: {shown(begun)} can move weights of the base into the adapter before "
            f"the training; only true, false and gaussian leave the base as it is; {ELSEWHERE}"
        )
    values = config.items()
    if on := [key for key, value in values if key not in SUPPORTED and (value is True or _holds(value))]:
        raise CheckpointError(f"{path}: {', '.join(on)}: is not supported; {ELSEWHERE}")
    for key in ("r", strength):
        if type(config.get(key)) not in (int, float) or config[key] <= 0:
            raise CheckpointError(f"{path}: {key}: must be a number above 0, not {shown(config.get(key))}")
    _check_patterns(path, config)
    file = next((folder / one for one in FILES if (folder / one).is_file()), None)
    if file is None:
        raise CheckpointError(f"{folder}: has {CONFIG} without {' or '.join(FILES)}")
    return Adapter(folder, file, name, int(config["r"]), config[strength], config)


def _holds(value: object) -> bool:
    return isinstance(value, (dict, list)) and bool(value)


def _check_patterns(path: Path, config: Mapping[str, Any]) -> None:
    for key in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(key, {})
        try:
            for pattern, value in patterns.items():
                re.compile(pattern)
                float(value)
        except (AttributeError, TypeError, ValueError, re.error) as error:
            raise CheckpointError(
                f"{path}: {key}: must be expressions and their numbers, not {shown(patterns)}"
            ) from error


def of_base(names: Iterable[str]) -> dict[str, str]:
    """Names of the base's weights, in a file that may hold an adapter too → their stored names."""
    return {WRAPPED.sub("", name): name for name in names if not OWN.search(name)}


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def newest_in(folder: Path) -> Path | None:
    """The adapter of a training's last update: `adapter_STEP`, `lora_N`, or `lora_last`, a link to one."""
    found = [path for path in folder.glob("*") if is_adapter(path)]
    return max(found, key=lambda path: ("last" in path.name, numbers(path)), default=None)

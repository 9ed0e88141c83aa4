"""Names, types and shapes of a checkpoint's tensors, and the format of a file by its first bytes.

Takes milliseconds: reads no tensor, and does not import torch, which costs 1.4 s and 280 MB.
"""

from __future__ import annotations

import codecs
import io
import pickle
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from safetensors import SafetensorError, safe_open

from appliance.contract.mel import Kind
from appliance.fields import shown
from export.sources import shards

T = TypeVar("T")
Format = Literal["safetensors", "zip", "pickle"]
WeightsKind = Literal["ema", "raw"]
Others = Sequence[tuple[re.Pattern[str], str]]
"""Other models: a pattern of their tensors' names, and the end of the error message."""

RAW_DICTS = ("model_state_dict", "state_dict", "model", "module", "generator", "params", "net")
"""Keys of weights in a checkpoint: upstream's, Lightning's, ZipVoice's, DeepSpeed's, a vocoder's."""
NAMED_AVERAGES = ("ema_model_state_dict", "ema_state_dict", "ema")
"""Keys of averaged weights, if the tensors' names have the prefix `ema_model`.

Without it, the weights are raw: upstream's fine-tuning page wrote such files.
"""
AVERAGES = ("model_avg", "model_ema", "generator_ema", "g_ema", "params_ema", "net_ema")
"""Keys of averaged weights, regardless of the tensors' names: of ZipVoice, of its teacher, and of vocoders.
"""
AVERAGING = frozenset(("ema_model", "ema"))
"""Components of a name that mark averaged weights."""
DICTS = frozenset(RAW_DICTS + NAMED_AVERAGES + AVERAGES)
PROGRESS = {
    "update": "update",
    "batch_idx_train": "update",
    "global_step": "step",
    "steps": "step",
    "step": "step",
    "cur_epoch": "epoch",
    "epoch": "epoch",
}
"""Keys that record the training's progress, the most precise first, and the unit of their number."""

VOCODER_FILES: Mapping[Kind, tuple[str, ...]] = {
    "vocos": ("model.safetensors", "pytorch_model.bin"),
    "bigvgan": ("bigvgan_generator.pt",),
}
"""File names of published vocoders."""
TRAINED_VOCODERS: Mapping[Kind, tuple[str, ...]] = {
    "vocos": tuple(f"{folder}{name}.ckpt" for name in ("last*", "*") for folder in ("", "checkpoints/")),
    "bigvgan": ("g_*[0-9]", "g_*[0-9].pt", "g_*[0-9].pth"),
}
"""Patterns of trainers' files: Lightning's for Vocos, `g_NNNNNNNN` (number of updates) for BigVGAN."""

_WHERE = "pass the .safetensors or .pt that it came from"
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"GGUF", f"is a GGUF file (quantised, for ggml programs), which cannot be converted back; {_WHERE}"),
    (b"\x93NUMPY", f"is a NumPy array, not a checkpoint; {_WHERE}"),
    (b"\x89HDF", f"is an HDF5 file, not a checkpoint of torch; {_WHERE}"),
    (b"\x1f\x8b", "is compressed (gzip); unpack it"),
    (b"(\xb5/\xfd", "is compressed (zstd); unpack it"),
    (b"7z\xbc\xaf", "is an archive (7z); unpack it"),
    (b"Rar!", "is an archive (rar); unpack it"),
)
"""First bytes of files that are no torch checkpoint, and the end of the error message."""
_ONNX = re.compile(rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]")
"""Matches a ModelProto: the field ir_version, then the tag of a later field."""
_TAR_AT, _FIRST = 257, 512
_DISTRIBUTED = (
    "is a checkpoint of torch.distributed; merge its folder into one file: "
    "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt"
)
_UNPACKED = "is part of an unpacked .pt; pack its folder again: zip -0 -r model.pt FOLDER"
_PICKLED = b"\x80"
_ZIPPED = b"PK\x03\x04"
_FLOATS = re.compile(r"float[48]_|float6_|F[468]_|F4$|F8$")
"""Matches float types of less than 16 bits, as torch or safetensors names them."""
_INTEGERS = re.compile(r"u?int8|[IU]8|Char|Byte")
"""Matches integer types, as torch or safetensors names them."""
_NAMED_IN_ERRORS = 4
_LEGACY = 0x1950A86A20F9469CFC6C
"""First pickle in a file of torch before 1.6: a magic number. Two more pickles precede the object."""


class CheckpointError(ValueError):
    """A file is not a checkpoint, or has an unsupported architecture."""


MLX = (
    "holds weights converted for Apple's MLX, with other names and transposed convolutions; pass the "
    "checkpoint of torch that they came from"
)


STUDENT = "feedforward_model."
"""Prefix of DMOSpeech 2's generator. Its teacher and critic have other prefixes."""
UNMERGED = (
    "holds LoRA or other PEFT adapters that are not merged: --adapter FOLDER, the folder of their "
    "adapter_config.json, merges LoRA and LoHa into the weights of --checkpoint; merge others where they "
    "were trained, PeftModel.from_pretrained(model, FOLDER).merge_and_unload(), and save its state_dict()"
)
NO_DIT: Others = (
    (re.compile(r"\.(?:lora_|hada_|lokr_|ia3_|oft_|vera_|base_layer\.|modules_to_save\.)"), UNMERGED),
    (re.compile(r"\.(?:to_out|text_blocks|ff|time_mlp|conv1d)\.layers\.\d+\."), MLX),
    (
        re.compile(r"(?:^|\.)layers\.\d+\.\d+\."),
        "is an E2-TTS checkpoint (UNetT backbone); only F5-TTS's DiT is supported, such as F5TTS_v1_Base",
    ),
    (
        re.compile(r"(?:^|\.)(?:audio_embed\.|transformer_blocks\.\d+\.attn\.to_q_c\.)"),
        "has an MMDiT backbone; only F5-TTS's DiT is supported, such as F5TTS_v1_Base",
    ),
)
"""Models that are not a plain DiT."""
_QUANTISED: Others = tuple(
    (re.compile(rf"\.(?:{names})$"), f"holds weights that {maker} quantised; {_WHERE}")
    for names, maker in (
        (r"absmax|quant_map|nested_absmax|SCB|quant_state\..*", "bitsandbytes"),
        (r"scale_weight|weight_scale(?:_inv)?|input_scale", "a program with scales beside them (fp8, int8)"),
        (r"scales", "Apple's MLX or GPTQ"),
    )
)


@dataclass(frozen=True)
class Shaped:
    """Shape and type of a tensor that was not read."""

    shape: tuple[int, ...]
    dtype: str


Names = Mapping[str, Shaped]


@dataclass(frozen=True)
class Header:
    """Tensors of a file by the key of their dictionary ("" if the file is flat), and the other content."""

    path: Path
    dicts: Mapping[str, Names]
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Other keys of a checkpoint, such as its step."""

    @property
    def names(self) -> Names:
        """The trained weights; if the file has none, the averaged ones."""
        key = choose(self.dicts, "raw")
        return {} if key is None else self.dicts[key]

    def named(self, name: str) -> Shaped:
        """The tensor with this name under any wrappers. Raises CheckpointError if there is no such matrix."""
        tensors = [one for whole, one in self.names.items() if f".{whole}".endswith(f".{name}")]
        if not tensors or len(tensors[0].shape) < 2:
            raise CheckpointError(f"{self.path}: not a whole checkpoint: it has no matrix {name}")
        return tensors[0]

    @property
    def progress(self) -> str:
        """Updates or epochs of the training, such as "update 12000"; "" if the file does not record them."""
        for key, called in PROGRESS.items():
            number = self.settings.get(key)
            if isinstance(number, int) and not isinstance(number, bool):
                return f"{called} {number}"
        return ""

    def kinds(self, mark: str) -> tuple[WeightsKind, ...]:
        """Kinds of weights that the file has for the model that has `mark` in its names."""
        kinds: list[WeightsKind] = []
        for kind in ("ema", "raw"):
            key = choose(self.dicts, kind)
            averaged = {
                key in AVERAGES or is_averaged(name) for name in self.dicts.get(key or "", ()) if mark in name
            }
            if (kind == "ema") in averaged:
                kinds.append(kind)
        return tuple(kinds)


def choose(dicts: Mapping[str, Collection[str]], kind: WeightsKind) -> str | None:
    """Key of the weights of this kind; if they are missing, of the others. None if there are none."""
    raw = [key for key in RAW_DICTS if key in dicts]
    # ZipVoice's first stage of distillation stores its teacher, a different model, under the key of an
    # average.
    averages = [
        key for key in AVERAGES if key in dicts and (not raw or set(dicts[key]) == set(dicts[raw[0]]))
    ]
    named = [key for key in NAMED_AVERAGES if key in dicts]
    order = [*named, *averages, *raw] if kind == "ema" else [*raw, *named, *averages]
    return next((key for key in (*order, "") if key in dicts), None)


def is_averaged(name: str) -> bool:
    return not AVERAGING.isdisjoint(name.split("."))


def format_of(path: Path) -> Format:
    """Format of a file by its first bytes. Raises CheckpointError with a remedy for an unsupported format."""
    if path.is_dir():
        raise CheckpointError(f"{path}: {folder_of(path) or 'is a folder; pass the file in it'}")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    if path.suffix == ".distcp":
        raise CheckpointError(f"{path}: {_DISTRIBUTED}")
    if path.name == "data.pkl":
        raise CheckpointError(f"{path}: {_UNPACKED}")
    try:
        with path.open("rb") as stream:
            first = stream.read(_FIRST)
    except OSError as error:
        raise CheckpointError(f"{path}: unreadable: {error.strerror}") from error
    if not first:
        raise CheckpointError(f"{path}: is empty; the copy or download was cut short")
    for magic, sentence in _MAGIC:
        if first.startswith(magic):
            raise CheckpointError(f"{path}: {sentence}")
    if first[_TAR_AT:].startswith(b"ustar"):
        raise CheckpointError(f"{path}: is an archive (tar); unpack it")
    if text := text_in(first):
        raise CheckpointError(f"{path}: {text}")
    if _ONNX.match(first):
        raise CheckpointError(f"{path}: is an ONNX graph, the exporter's output; {_WHERE}")
    if first.startswith(_ZIPPED):
        _check_archive(path)
        return "zip"
    if first[8:9] == b"{" or (path.suffix == ".safetensors" and not first.startswith(_PICKLED)):
        return "safetensors"
    if not first.startswith(_PICKLED):
        raise CheckpointError(f"{path}: not a torch checkpoint or safetensors; copy or download it again")
    return "pickle"


def folder_of(folder: Path) -> str:
    """End of the error message for a folder that is one checkpoint in several files; "" for others."""
    if any(folder.glob("*.distcp")):
        return _DISTRIBUTED
    return _UNPACKED if (folder / "data.pkl").is_file() else ""


def text_in(first: bytes, expected: str = "weights") -> str:
    """End of the error message for a file that begins with text; "" for other files."""
    marked = first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    text = first.decode("utf-16" if marked else "utf-8-sig", errors="ignore").strip()
    if not text or not all(one.isprintable() or one.isspace() for one in text):
        return ""
    if text.startswith("<"):
        return "is a web page, not the file; download it again from the link to the raw file"
    if text.startswith("version https://git-lfs"):
        return "is a Git LFS pointer, not the file; run `git lfs pull` in its repository, or download it"
    return f"is text, not {expected}: {shown(text)}; download it again"


def stray(raw: bytes) -> str:
    """End of the error message for text in the place of a configuration; "" for a configuration."""
    text = raw.decode("utf-8-sig", errors="ignore").strip()
    if re.match(r'(?!<|version https://git-lfs|\{"error")(?:[-\[]|[^:]*:)', text):
        return ""
    return text_in(raw[:_FIRST], "a configuration")


def section(raw: object, *keys: str) -> Mapping[str, Any]:
    """Nested section of a configuration; empty if there is none."""
    for key in keys:
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw if isinstance(raw, Mapping) else {}


def shards_of(path: Path) -> tuple[Path, ...]:
    """Shards of a checkpoint; none if it is one file. Raises CheckpointError."""
    try:
        return shards.files(path)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def read_header(path: Path) -> Header:
    """Header of a file, or of all shards together. Raises CheckpointError."""
    if parts := shards_of(path):
        return Header(path, {"": {name: one for part in parts for name, one in _header(part).names.items()}})
    return _header(path)


def _header(path: Path) -> Header:
    format = format_of(path)
    if format == "safetensors":
        return _safetensors(path)
    try:
        whole = _zipped(path) if format == "zip" else _legacy(path)
    except Exception as error:  # a damaged pickle raises exceptions of any type
        line = str(error).strip().split("\n", 1)[0]
        raise CheckpointError(f"{path}: not a torch checkpoint, or a damaged one: {line}") from error
    dicts, settings = parts_of(path, whole, _tensors)
    for names in dicts.values():
        check_types(path, ((name, one.dtype) for name, one in names.items()))
    return Header(path, dicts, settings)


def parts_of(
    path: Path, whole: object, tensors: Callable[[object], T | None]
) -> tuple[dict[str, T], dict[str, Any]]:
    """Tensors of a checkpoint by the key of their dictionary ("" if the file is flat), and its other keys.

    `tensors` returns the tensors in a value, or None. Raises CheckpointError if `whole` is no dictionary.
    """
    if not isinstance(whole, Mapping):
        raise CheckpointError(f"{path}: must contain a dictionary of weights, not {type(whole).__name__}")
    dicts = {str(key): entries for key, value in whole.items() if (entries := tensors(value))}
    if flat := tensors(whole):
        dicts = {**{key: value for key, value in dicts.items() if key in DICTS}, "": flat}
    return dicts, {str(key): value for key, value in whole.items() if str(key) not in dicts}


def _tensors(value: object) -> Names | None:
    if not isinstance(value, dict):
        return None
    return {str(name): one for name, one in value.items() if isinstance(one, Shaped)}


def _safetensors(path: Path) -> Header:
    _, slices = open_safetensors(path, "np")
    names = {name: Shaped(tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()}
    return Header(path, {"": names})


def open_safetensors(path: Path, framework: str) -> tuple[Any, dict[str, Any]]:
    """The library's reader, and its slices by name. Raises CheckpointError."""
    try:
        file = safe_open(path, framework=framework)
        metadata = file.metadata() or {}
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a safetensors file: {error}; copy it again") from error
    if metadata.get("format") == "mlx":
        raise CheckpointError(f"{path}: {MLX}")
    check_types(path, ((name, one.get_dtype()) for name, one in slices.items()))
    return file, slices


def check_names(path: Path, names: Iterable[str], others: Others) -> None:
    """Raise CheckpointError if tensors' names belong to another model, or to a quantised one."""
    for pattern, sentence in (*others, *_QUANTISED):
        if matches := [name for name in names if pattern.search(name)]:
            raise CheckpointError(f"{path}: {sentence} (it has {some(matches)})")


class _Object:
    """Takes the place of objects in a pickle that are no plain values. Nothing is imported or called."""

    def __new__(cls, *arguments: Any, **_: Any) -> Any:
        instance = super().__new__(cls)
        instance.__dict__["arguments"] = arguments
        return instance

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take any arguments."""

    def __setstate__(self, state: object) -> None:
        """Ignore the state."""

    def __setitem__(self, key: object, value: object) -> None:
        """Ignore the item."""

    def append(self, value: object) -> None:
        """Ignore the value."""


def _rebuilt(storage: Any, offset: int, size: Sequence[int], *rest: Any) -> Shaped:
    """Takes the place of `torch._utils._rebuild_tensor_v2` and of v3, which also has the type."""
    kinds = [one for one in rest if isinstance(one, type)]
    kind = kinds[0] if kinds else storage[1]
    return Shaped(tuple(size), kind.__name__.removesuffix("Storage"))


_FUNCTIONS: Mapping[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuilt,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("collections", "OrderedDict"): type("OrderedDict", (dict,), {}),  # may have attributes
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        function = _FUNCTIONS.get((module, name))
        return type(name, (_Object,), {"__module__": module}) if function is None else function

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _zipped(path: Path) -> object:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.split("/")[-1] == "data.pkl")
        return _Reader(io.BytesIO(archive.read(name))).load()


def _legacy(path: Path) -> object:
    with path.open("rb") as stream:
        if (whole := _Reader(stream).load()) != _LEGACY:
            return whole
        return [_Reader(stream).load() for _ in range(3)][-1]


def check_types(path: Path, types: Iterable[tuple[str, str]]) -> None:
    """Raise CheckpointError for floats of 8 bits or fewer, and for integer weights."""
    types = list(types)
    if wrong := [
        (name, kind) for name, kind in types if name.endswith("weight") and _INTEGERS.fullmatch(kind)
    ]:
        name, kind = wrong[0]
        raise CheckpointError(
            f"{path}: has {len(wrong)} weights of {kind} ({name}): quantised weights are not supported; "
            "pass the float32, float16 or bfloat16 checkpoint"
        )
    if wrong := [(name, kind) for name, kind in types if _FLOATS.search(kind)]:
        name, kind = wrong[0]
        raise CheckpointError(
            f"{path}: has {len(wrong)} tensors of {kind} ({name}): fp8 keeps two or three bits of a weight "
            "and is not supported; pass the float32, float16 or bfloat16 checkpoint"
        )


def _check_archive(path: Path) -> None:
    """Raise CheckpointError if a zip file is not a torch checkpoint."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise CheckpointError(
            f"{path}: not a torch checkpoint, or a damaged one: {error}; if it was copied, copy it again"
        ) from error
    if names and all(name.endswith(".npy") for name in names):
        raise CheckpointError(f"{path}: is an archive of NumPy arrays (.npz); as MLX writes it, it {MLX}")
    if any(name.split("/")[-1] == "constants.pkl" for name in names):
        raise CheckpointError(f"{path}: is a TorchScript program, not weights; {_WHERE}")
    if not any(name.split("/")[-1] == "data.pkl" for name in names):
        raise CheckpointError(f"{path}: is a zip archive that torch did not write; unpack it")


def some(names: Sequence[str]) -> str:
    """The first names of a list, and the number of the others."""
    more = len(names) - _NAMED_IN_ERRORS
    return ", ".join(names[:_NAMED_IN_ERRORS]) + (f" and {more} more" if more > 0 else "")


def newest(folder: Path, patterns: Iterable[str]) -> Path | None:
    """The newest file, by the numbers in its name, of the first pattern that matches any."""
    for pattern in patterns:
        if files := [path for path in folder.glob(pattern) if path.is_file()]:
            return max(files, key=numbers)
    return None


def numbers(path: Path) -> tuple[int, ...]:
    """The numbers in a file's name: `epoch=12-step=340.ckpt` → (12, 340)."""
    return tuple(map(int, re.findall(r"\d+", path.stem)))


def vocoder_file(place: Path, kind: Kind) -> Path:
    """File of a vocoder's weights: `place`, or the published file in that folder, or its trainer's newest.

    Raises CheckpointError.
    """
    if place.is_file():
        return place
    published = VOCODER_FILES[kind]
    path = newest(place, (*published, *TRAINED_VOCODERS[kind]))
    if path is None:
        example = "last.ckpt" if kind == "vocos" else "g_NNNNNNNN"
        raise CheckpointError(
            f"{place}: has no {' or '.join(published)} and no file of a training ({example})"
        )
    return path


def config_beside(file: Path, name: str) -> Path:
    """The configuration in a file's folder. For Lightning's folder `checkpoints`, in its parent."""
    folders = (file.parent, file.parent.parent) if file.parent.name == "checkpoints" else (file.parent,)
    beside = [folder / name for folder in folders]
    return next((path for path in beside if path.is_file()), beside[0])

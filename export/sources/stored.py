"""Tensors of a file, memory-mapped. The first bytes decide its format, whatever its name is."""

from __future__ import annotations

import argparse
import pathlib
import pickle
import re
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from export.sources.header import (
    AVERAGES,
    NAMED_AVERAGES,
    RAW_DICTS,
    CheckpointError,
    WeightsKind,
    check_types,
    choose,
    format_of,
    open_safetensors,
    parts_of,
    shards_of,
    some,
)

SAFE_TYPES: tuple[tuple[type[Any], str], ...] = (
    (argparse.Namespace, "argparse.Namespace"),
    *(
        (getattr(pathlib, f"Pure{system}Path"), f"{module}.{pure}{system}Path")
        for module in ("pathlib", "pathlib._local")  # in Python 3.13
        for pure in ("", "Pure")
        for system in ("Posix", "Windows")
    ),
)
"""Types that a pickle may contain besides torch's own, and their names there.

A path is read as a pure path, because that accesses no disk and may come from another system.
"""

_REFUSED = re.compile(r"GLOBAL ([\w.]+)")
"""Matches a type in torch's message about a pickle that it refused."""


@dataclass(frozen=True)
class StoredTensor:
    """Shape of a stored tensor, and a function that reads it."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    def rows(self, order: Sequence[int]) -> StoredTensor:
        """The matrix with its rows in another order."""
        return StoredTensor((len(order), *self.shape[1:]), lambda: self.read()[order])


class Weights(Mapping[str, Tensor]):
    """Tensors by name. Each access reads the file; floats become float32."""

    def __init__(
        self, entries: Mapping[str, StoredTensor], *, averaged: bool = False, notes: Sequence[str] = ()
    ) -> None:
        self._entries = dict(entries)
        self.averaged = averaged
        """True if these weights are a moving average."""
        self.notes = notes
        """Notes for the user about each difference from the stored weights."""

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._entries[name].read()
        return tensor.float() if tensor.is_floating_point() else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> StoredTensor:
        return self._entries[name]

    def replaced(self, name: str, entry: StoredTensor) -> Weights:
        """The weights with one tensor replaced."""
        return Weights(self._entries | {name: entry}, averaged=self.averaged, notes=self.notes)


@dataclass(frozen=True)
class Stored:
    """Content of a file: tensors by the key of their dictionary ("" if the file is flat), and the rest."""

    path: Path
    dicts: Mapping[str, Weights]
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Other keys of a checkpoint, such as its step."""

    def weights(self, kind: WeightsKind) -> Weights:
        """The weights of this kind; if they are missing, the others.

        Raises CheckpointError if there are none.
        """
        key = choose(self.dicts, kind)
        if key is None:
            have = some([*self.dicts, *self.settings])
            keys = " or ".join(RAW_DICTS + NAMED_AVERAGES + AVERAGES)
            raise CheckpointError(f"{self.path}: has no weights under {keys}; its keys: {have or 'none'}")
        weights = self.dicts[key]
        return Weights({name: weights.entry(name) for name in weights}, averaged=key in AVERAGES)


def read(path: Path) -> Stored:
    """Open a safetensors or torch file, or shards.

    The first bytes decide the format. Raises CheckpointError.
    """
    if parts := shards_of(path):
        whole = [_one(part).weights("raw") for part in parts]
        return Stored(path, {"": Weights({name: part.entry(name) for part in whole for name in part})})
    return _one(path)


def _one(path: Path) -> Stored:
    if (format := format_of(path)) == "safetensors":
        return _safetensors(path)
    return _unpickled(path, mapped=format == "zip" and _is_plain(path))


def _is_plain(path: Path) -> bool:
    """True if no member of a zip file is compressed. torch never compresses them; other programs do."""
    with zipfile.ZipFile(path) as archive:
        return all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())


def _safetensors(path: Path) -> Stored:
    file, slices = open_safetensors(path, "pt")

    def entry(name: str) -> StoredTensor:
        return StoredTensor(tuple(slices[name].get_shape()), lambda: file.get_tensor(name))

    return Stored(path, {"": Weights({name: entry(name) for name in slices})})


def _unpickled(path: Path, *, mapped: bool) -> Stored:
    """Content of a torch file. `mapped` maps it into memory, which needs a zip file, as torch writes since
    1.6.
    """
    try:
        with torch.serialization.safe_globals(list(SAFE_TYPES)), tempfile.TemporaryDirectory() as folder:
            link = Path(folder, "model.pt")  # torch 2.13 also looks at the suffix: .safetensors
            link.symlink_to(path.absolute())
            whole = torch.load(link, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path}: {_refusal(path, error)}") from error
    except Exception as error:  # a damaged pickle raises exceptions of any type
        line = str(error).strip().split("\n", 1)[0]
        raise CheckpointError(f"{path}: not a torch checkpoint, or a damaged one: {line}") from error
    return Stored(path, *parts_of(path, whole, partial(_tensors, path)))


def _tensors(path: Path, value: object) -> Weights | None:
    """Tensors in a dictionary; None if it has none."""
    if not isinstance(value, Mapping):
        return None
    tensors = {str(name): one for name, one in value.items() if isinstance(one, Tensor)}
    check_types(path, ((name, str(one.dtype).removeprefix("torch.")) for name, one in tensors.items()))

    def entry(tensor: Tensor) -> StoredTensor:
        return StoredTensor(tuple(tensor.shape), lambda: tensor)

    return Weights({name: entry(tensor) for name, tensor in tensors.items()}) if tensors else None


def _refusal(path: Path, error: pickle.UnpicklingError) -> str:
    """End of the error message for a pickle that torch refused. It names types if torch does."""
    try:
        with torch.serialization.safe_globals(list(SAFE_TYPES)):  # type: ignore[arg-type]
            names: Collection[str] = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # not zipped, or damaged
        names = _REFUSED.findall(str(error))
    if not names:
        return "not a torch checkpoint, or a damaged one; reading stopped"
    return (
        f"holds more than weights: {some(list(names))}, and reading an unknown type could run code. "
        "In a trusted environment with the training's packages, save only the weights: "
        'w = torch.load(FILE, weights_only=False); torch.save({"model": w["model"]}, "weights.pt"), with the '
        "key of the weights"
    )

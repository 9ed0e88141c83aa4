"""Strict reading of parsed YAML and JSON into frozen dataclasses. Their annotations are the schema.

A range is part of the annotation: `lanes: Annotated[int, Between(1, 64)] = 8`. Only the standard library is
imported, because root's commands read their records with this module.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import os
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

T = TypeVar("T")
MOST_SHOWN = 200
"""Characters of a value, or of a key, in an error message."""
MOST_LISTED = 32
"""Keys in an error message."""
MOST_BITS = 14_000
"""Bits of the largest integer in a message. Of 4,300 digits Python writes none, and reprlib an address."""


class _Shown(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        return "a int of too many digits" if x.bit_length() > MOST_BITS else super().repr_int(x, level)


_SHOWN = _Shown()
_SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxother, _SHOWN.maxlong = 3, MOST_SHOWN, MOST_SHOWN, 40
_SHOWN.maxdict = _SHOWN.maxlist = _SHOWN.maxtuple = 4


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """Lower bound of a number."""

    least: float

    def check(self, name: str, value: float) -> None:
        """Raise ValueError if the value is out of range."""
        if not value >= self.least:
            raise ValueError(f"{name}: must be at least {self.least}, not {shown(value)}")


@dataclasses.dataclass(frozen=True)
class Between:
    """Finite bounds of a number, both inclusive."""

    least: float
    most: float

    def check(self, name: str, value: float) -> None:
        """Raise ValueError if the value is out of range."""
        if not self.least <= value <= self.most:
            raise ValueError(f"{name}: must be between {self.least} and {self.most}, not {shown(value)}")


Count = Annotated[int, AtLeast(1)]


class Ranged:
    """Base of a dataclass that checks the ranges of its fields, including values of dicts. None is always in
    range.

    Raises ValueError, which names the field.
    """

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():  # type: ignore[arg-type]
            values = {name: getattr(self, name)}
            if typing.get_origin(hint) is dict:
                hint = typing.get_args(hint)[1]
                values = {f"{name}.{key}": value for key, value in values[name].items()}
            for bound in getattr(hint, "__metadata__", ()):
                for key, value in values.items():
                    if value is not None:
                        bound.check(key, value)


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    """Field → annotation with its range."""
    return typing.get_type_hints(cls, include_extras=True)


def from_mapping(
    cls: type[T], raw: object, *, where: str, error: type[Exception], ignore_unknown: bool = False
) -> T:
    """Build a dataclass from parsed YAML or JSON. Unknown keys are errors that name the valid ones.

    `ignore_unknown` allows further keys, in nested mappings too, as in files of other programs. Raises
    `error`; the message begins with `where` and the dotted key.
    """
    if not isinstance(raw, Mapping):
        raise error(f"{where}: must be a mapping, not {type(raw).__name__}")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = _hints(cls)  # type: ignore[arg-type]
    unknown = [_key(key) for key in raw if key not in fields]
    if unknown and not ignore_unknown:
        raise error(f"{where}: unknown key {_list(unknown)}; valid keys: {_list(fields)}")
    values = {
        name: _convert(hints[name], raw[name], f"{where}: {name}", error, ignore_unknown)
        for name in fields
        if name in raw
    }
    required = [
        f.name
        for f in fields.values()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in required if name not in values]:
        raise error(f"{where}: missing key {_list(missing)}")
    try:
        return cls(**values)
    except ValueError as invalid:
        raise error(f"{where}: {invalid}") from invalid


def _convert(hint: Any, value: object, where: str, error: type[Exception], ignore_unknown: bool) -> Any:
    """Convert a YAML value to the type of a field, recursively. Raises `error` naming `where`."""

    def convert(part: Any, inner: object, key: str = "") -> Any:
        return _convert(part, inner, f"{where}{key}", error, ignore_unknown)

    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        return convert(args[0], value)
    if dataclasses.is_dataclass(hint):
        cls = typing.cast(type, hint)
        return from_mapping(cls, value, where=where, error=error, ignore_unknown=ignore_unknown)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return convert(next(a for a in args if a is not type(None)), value)
    if origin is Literal:
        if value is False and "off" in args:  # YAML reads a bare off as false
            return "off"
        if value not in args:
            raise error(f"{where}: must be one of {_list(args)}, not {shown(value)}")
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(convert(args[0], item) for item in value)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {_key(k): convert(args[1], v, f".{_key(k)[:MOST_SHOWN]}") for k, v in value.items()}
    if origin is None and isinstance(value, str) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            allowed = _list(member.value for member in hint)
            raise error(f"{where}: must be one of {allowed}, not {shown(value)}") from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise error(f"{where}: is larger than any float") from None
    if hint is Path and isinstance(value, str):
        try:
            check_path(where, value)
        except ValueError as invalid:
            raise error(str(invalid)) from None
        return Path(value)
    if origin is None and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    name = getattr(hint, "__name__", str(hint))
    raise error(f"{where}: must be {name}, not {type(value).__name__} ({shown(value)})")


def check_path(name: str, path: str) -> None:
    """Raise ValueError for a path that no file system can look up: NUL, or half a surrogate pair."""
    try:
        if b"\0" not in os.fsencode(path):
            return
    except UnicodeEncodeError:
        pass
    raise ValueError(f"{name}: must be a path, without NUL and half characters, not {shown(path)}")


def to_plain(value: object) -> object:
    """Dicts and lists in place of dataclasses, mappings and tuples, for a YAML or JSON writer."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    return value


def shown(value: object) -> str:
    """A value for a message, shortened: aliases of YAML can make it longer than memory."""
    return _SHOWN.repr(value)[:MOST_SHOWN]


def _key(key: object) -> str:
    return key if isinstance(key, str) else shown(key)


def _list(names: Iterable[object]) -> str:
    return ", ".join(str(name)[:MOST_SHOWN] for name in itertools.islice(names, MOST_LISTED))

"""A Jetson in a folder; the README of `tests/fakes` describes it. Its programs import little of it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name[0].islower() or name[0] == "_":  # a module
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.board"), name)

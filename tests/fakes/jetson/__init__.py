"""A Jetson in a folder; the README of `tests/fakes` says what it does. Its programs import little of it."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "Jetson":
        raise AttributeError(name)
    from tests.fakes.jetson.board import Jetson

    return Jetson

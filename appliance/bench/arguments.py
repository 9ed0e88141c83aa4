"""Types of command-line arguments. argparse names them in its errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from appliance.bench.arrivals import Weighted
from appliance.client import PRIORITIES


def weighted(kind: Callable[[str], Any]) -> Callable[[str], Weighted[Any]]:
    """Type of a weighted mix of values: "13=3,53". A missing weight is 1."""

    def mix(text: str) -> Weighted[Any]:
        pairs = [part.partition("=") for part in text.split(",")]
        return Weighted(
            tuple(kind(value.strip()) for value, _, _ in pairs),
            tuple(float(weight or 1.0) for _, _, weight in pairs),
        )

    return mix


def priority(text: str) -> str:
    if text not in PRIORITIES:
        raise ValueError
    return text


def positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise ValueError
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise ValueError
    return value

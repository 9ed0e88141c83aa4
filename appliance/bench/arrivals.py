"""Messages of a storm: Poisson arrivals of a mix, or a recorded burst."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Generic, TypeVar

from appliance.bench import BenchError
from appliance.bench.lines import text_of
from appliance.client import PRIORITIES, Priority

Value = TypeVar("Value")
CANCEL_WITHIN_S = 2.0
RAID = Path(__file__).with_name("raid.jsonl")
"""Recorded burst of chat: 400 messages in 20 s."""


@dataclass(frozen=True)
class Message:
    at_s: float
    """Seconds from the start of the storm."""
    text: str
    priority: Priority | None = None
    channel: str = ""
    """Serial channel; "" for a separate one, on which the message sounds at once or is refused."""
    user: str = ""
    supersede: str = ""
    """Key under which a later message replaces this one while it waits."""
    queue_timeout_s: float | None = None
    """Longest accepted delay of the first audio."""
    cancel_after_s: float | None = None
    """Seconds from sending to cancellation; None if the message is not cancelled."""

    def __post_init__(self) -> None:
        if not (self.at_s >= 0.0 and self.text.strip()):
            raise ValueError("at_s must be from 0, and text not empty")
        if self.priority and self.priority not in PRIORITIES:
            raise ValueError(f"priority must be one of {', '.join(PRIORITIES)}, not {self.priority!r}")


@dataclass(frozen=True)
class Weighted(Generic[Value]):
    values: tuple[Value, ...]
    weights: tuple[float, ...]

    def draw(self, random: Random) -> Value:
        return random.choices(self.values, self.weights)[0]


@dataclass(frozen=True)
class Mix:
    """Mix of messages. `cancelled` is a share of them."""

    words: Weighted[int]
    """Number of words in a text."""
    priorities: Weighted[Priority]
    cancelled: float = 0.0
    queue_timeout_s: float | None = None

    def message(self, at_s: float, random: Random) -> Message:
        return Message(
            at_s,
            text_of(self.words.draw(random), random),
            priority=self.priorities.draw(random),
            queue_timeout_s=self.queue_timeout_s,
            cancel_after_s=random.uniform(0, CANCEL_WITHIN_S) if random.random() < self.cancelled else None,
        )


def poisson(mix: Mix, rate_per_s: float, duration_s: float, random: Random) -> list[Message]:
    """Messages with exponential gaps, of mean 1 / rate."""
    messages = []
    at_s = random.expovariate(rate_per_s)
    while at_s < duration_s:
        messages.append(mix.message(at_s, random))
        at_s += random.expovariate(rate_per_s)
    return messages


def read_burst(path: Path) -> list[Message]:
    """Messages in JSON lines with the fields of Message; `raid` stands for RAID. Raises BenchError."""
    path = RAID if path == Path("raid") else path
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}: {error}") from error
    valid = {field.name for field in fields(Message)}
    messages: list[Message] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if unknown := record.keys() - valid:
                raise ValueError(
                    f"unknown key {', '.join(sorted(unknown))}; valid: {', '.join(sorted(valid))}"
                )
            messages.append(Message(**record))
        except (ValueError, TypeError, AttributeError) as error:
            raise BenchError(f"{path}, line {number}: {error}") from error
    if not messages:
        raise BenchError(f"{path}: contains no message")
    return sorted(messages, key=lambda message: message.at_s)

"""Hostile variants of good input, bytes and YAML, drawn from a seeded generator; what becomes of them."""

from __future__ import annotations

import os
import random
from collections import Counter

from hypothesis import HealthCheck, Phase, settings

from tests.harness.daemons import resident

SEED = os.environ.get("F5_SEED", "")
CONTROL_EVERY = 50
GROWTH_BYTES = 48 << 20
"""Of a victim's memory, from when it has seen some of everything: allocators keep what was once needed."""


class Tally:
    """Outcomes of hostile inputs to a process, which from time to time has to speak as it did at first."""

    def __init__(self, process: int) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()
        self.memory: list[int] = []
        self._process, self._said = process, self.speak()
        assert self._said == self.speak() and len(self._said) > 10_000

    def speak(self) -> bytes:
        """What it says to a control request."""
        raise NotImplementedError

    def tried(self, kind: str, outcome: object) -> None:
        """Count an input."""
        self.seen[kind, str(getattr(outcome, "name", outcome))] += 1
        if self.seen.total() % CONTROL_EVERY == 0:
            assert self.speak() == self._said
            self.memory.append(resident(self._process))

    def check(self, least: float) -> None:
        """After no fewer inputs all is as it was; prints what became of them, with F5_HOSTILE."""
        if "F5_HOSTILE" in os.environ:
            for (kind, outcome), count in sorted(self.seen.items()):
                print(f"{kind:<14} {outcome:<20} {count:6}")
            print(f"memory after each {CONTROL_EVERY}, MB: {[size >> 20 for size in self.memory]}")
        assert self.seen.total() >= least and self.speak() == self._said
        settled = self.memory[len(self.memory) // 3 :]
        assert max(settled) - settled[0] < GROWTH_BYTES, self.memory


def many(examples: float, *phases: Phase) -> settings:
    """Settings for so many examples: the same on every run, unless F5_SEED says otherwise."""
    return settings(
        max_examples=max(round(examples), 5),
        derandomize=not SEED,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
    )


def mutated(raw: bytes, dice: random.Random) -> bytes:
    """Bytes with some of them changed, cut, moved or doubled."""
    out = bytearray(raw)
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        at = dice.randrange(len(out) + 1)
        size = dice.choice((1, 1, 2, 4, 8, dice.randrange(1, 200)))
        how = dice.randrange(6)
        if how == 0:
            out[at : at + size] = dice.randbytes(size)
        elif how == 1:
            del out[at : at + size]
        elif how == 2:
            out[at:at] = out[at : at + size]
        elif how == 3:
            out[at : at + 4] = dice.choice((bytes(4), b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x01\x00\x00\x00"))
        elif how == 4 and at < len(out):
            out[at] ^= 1 << dice.randrange(8)
        elif how == 5 and dice.random() < 0.2:
            del out[at:]
    return bytes(out)


ODD_YAML = (
    *("", "-1", "1e999", ".nan", "~", "[]", "{}", "[[", "&a [*a]", "yes", "'", "9" * 400, "\t", "0x10"),
    "12:30",
    "[" * 600,  # deeper than Python's recursion goes; the time that PyYAML takes is quadratic
    *("!!python/object:os.system x", "2026-13-45", "*b", "<<: *c", "? a", "- - -", "\u2028", "é", "|"),
)


def mutated_yaml(text: str, dice: random.Random) -> bytes:
    """YAML with values, keys and lines changed, or its bytes."""
    if dice.random() < 0.4:
        return mutated(text.encode(), dice)
    lines = text.splitlines()
    for _ in range(dice.choice((1, 1, 3))):
        at = dice.randrange(len(lines))
        key, mark, value = lines[at].partition(":")
        odd = dice.choice(ODD_YAML)
        lines[at] = dice.choice(
            (
                f"{key}{mark} {odd}",
                f"{odd}{mark}{value}",
                f"{key}x{mark}{value}",
                f"  {lines[at]}",
                lines[dice.randrange(len(lines))],
                "",
            )
        )
    return "\n".join(lines).encode()

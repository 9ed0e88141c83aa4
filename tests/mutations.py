"""Hostile variants of good input: bytes and YAML, drawn from a seeded generator."""

from __future__ import annotations

import random


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
            out[at : at + 4] = dice.choice(
                (b"\x00" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x01\x00\x00\x00")
            )
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

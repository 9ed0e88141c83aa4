"""`appliance bench run`: replies of known lengths, one at a time, with the time of each stage.

After a warm-up, texts, voices and NFEs alternate, so that a busy minute of the machine affects them all.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from appliance.bench import BenchError
from appliance.bench.lines import text_of
from appliance.bench.load import Load, connected
from appliance.bench.machine import Neighbours, describe, listener, memory_mb
from appliance.bench.outcome import Outcome, check_first_audio
from appliance.bench.output import aligned, conditions, show_progress, write_json
from appliance.box.system import Box
from appliance.client import Credentials

SCHEMA = 1
WORDS = {"short": 13, "medium": 53, "long": 115}
STAGES = ("text", "wait", "condition", "steps", "vocoder", "join", "encode", "other", "rpc")
"""Stages of a reply, in order.

`wait`: from the admission to the engine's first call. `other`: the rest of the daemon's time, mostly between
calls of the engine. `rpc`: the client's time beyond the daemon's.
"""
TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Cell:
    """Combination of text, voice and NFE."""

    length: str
    """Name of the text's length."""
    text: str
    voice: str
    nfe: int | None
    """Number of steps; None: the daemon's default."""

    @property
    def name(self) -> str:
        """Name for tables and errors."""
        return f"{self.length}, {self.voice}, NFE {self.nfe or 'default'}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--voice", action="append", default=[], metavar="NAME", help="repeatable; absent: the first stored"
    )
    parser.add_argument(
        "--nfe", action="append", type=int, default=[], metavar="N", help="repeatable; absent: the daemon's"
    )
    parser.add_argument("--lengths", default=",".join(WORDS), metavar="NAMES", help="(%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="counted replies (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")


def run(options: argparse.Namespace, credentials: Credentials, box: Box) -> int:
    """Measure, print and write. Raises BenchError, CallFailed."""
    lengths = lengths_of(options.lengths)
    if options.repeats < 1:
        raise BenchError("--repeats must be at least 1")
    record = asyncio.run(_measure(options, lengths, credentials, box))
    write_json(options.json, record)
    print(table(record))
    return 0


async def _measure(
    options: argparse.Namespace, lengths: Sequence[str], credentials: Credentials, box: Box
) -> dict[str, Any]:
    voice, *_ = options.voice or [""]
    async with connected(options.address, voice, TIMEOUT_S, credentials=credentials) as load:
        cells = cells_of(lengths, options.voice or [load.voice], options.nfe or [None])
        return await measure(load, cells, options.repeats, options.address, box)


def lengths_of(names: str) -> list[str]:
    """Names of lengths. Raises BenchError for unknown ones."""
    lengths = names.split(",")
    if unknown := [name for name in lengths if name not in WORDS]:
        raise BenchError(f"--lengths: {', '.join(unknown)} is none of {', '.join(WORDS)}")
    return lengths


def cells_of(lengths: Sequence[str], voices: Sequence[str], nfes: Sequence[int | None]) -> list[Cell]:
    """All combinations."""
    texts = [(name, text_of(WORDS[name], Random(WORDS[name]))) for name in lengths]
    return [Cell(*text, voice, nfe) for text in texts for voice in voices for nfe in nfes]


async def measure(load: Load, cells: Sequence[Cell], repeats: int, address: str, box: Box) -> dict[str, Any]:
    """Measure, and return the record. Raises CallFailed."""
    counted: list[list[Outcome]] = [[] for _ in cells]
    pid = listener(address)
    at, before = box.wall(), describe(box)
    total = (repeats + 1) * len(cells)
    count = 0
    warm_up_s = 0.0
    neighbours = Neighbours((pid,) if pid else ())
    for repeat in range(repeats + 1):
        for cell, replies in zip(cells, counted, strict=True):
            reply = await load.speak(cell.text, voice=cell.voice, nfe=cell.nfe, text_handling="verbatim")
            if repeat:
                replies.append(reply)
            else:
                warm_up_s += reply.end_s
            count += 1
            bar = "█" * (30 * count // total)
            show_progress(f"{bar:<30} {count} of {total}" + "\n" * (count == total))
    return {
        "schema": SCHEMA,
        "kind": "run",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
        "machine": {**before, "junction_after_c": describe(box)["junction_c"]},
        "neighbours": neighbours.busiest(),
        "backend": counted[0][0].whole[0].backend,
        "repeats": repeats,
        "warm_up_s": round(warm_up_s, 3),
        "memory_mb": {name: round(value, 1) for name, value in memory_mb(pid).items()},
        "cells": list(map(figures, cells, counted)),
    }


def stages_ms(outcome: Outcome) -> dict[str, float]:
    """Milliseconds of a reply by STAGES. Their sum is its wall time."""
    _, t = outcome.whole
    stages = {
        "text": t.text_ms,
        "wait": max(t.queue_ms - t.text_ms, 0.0),
        "condition": t.condition_ms,
        "steps": t.steps_ms,
        "vocoder": t.vocoder_ms,
        "join": t.join_ms,
        "encode": t.encode_ms,
    }
    other = t.total_ms - sum(stages.values())
    return {**stages, "other": other, "rpc": outcome.end_s * 1e3 - t.total_ms}


def figures(cell: Cell, replies: Sequence[Outcome]) -> dict[str, Any]:
    """Figures of a cell's counted replies, and medians of their stages. Raises BenchError."""
    check_first_audio((reply.pieces[0][1], reply.read_s) for reply in replies)
    split = [stages_ms(reply) for reply in replies]
    header, _ = replies[0].whole
    timings = [reply.whole[1] for reply in replies]
    stages = {name: statistics.median(one[name] for one in split) for name in STAGES}
    whole = sum(stages.values())
    return {
        "length": cell.length,
        "words": WORDS[cell.length],
        "voice": cell.voice,
        "nfe": header.nfe_steps,
        "segments": header.segments,
        "wall_s": summary([reply.end_s for reply in replies]),
        "audio_s": summary([reply.audio_s for reply in replies]),
        "rtf": summary([reply.end_s / reply.audio_s for reply in replies]),
        "first_audio_s": summary([reply.pieces[0][1] for reply in replies]),
        "steps_per_s": summary([t.nfe_steps * t.segments / (t.steps_ms / 1e3) for t in timings]),
        "stages_ms": {name: round(value, 3) for name, value in stages.items()},
        "stages_share": {name: round(value / whole, 4) for name, value in stages.items()},
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
    }


def table(record: Mapping[str, Any]) -> str:
    memory = record["memory_mb"]
    about = [
        *conditions(record),
        ("backend", record["backend"]),
        ("memory", f"{memory['now']:.0f} MB, at most {memory['peak']:.0f} MB" if memory else "not readable"),
        ("warm-up", f"{record['warm_up_s']:.2f} s, not counted; then {record['repeats']} replies of each"),
    ]
    lines = [aligned(about), ""]
    columns = f"{'wall s':>20}{'audio s':>9}{'RTF':>8}{'first s':>9}{'steps/s':>9}"
    lines.append(f"{'text':<18}{'voice':<10}{'NFE':>4}{columns}")
    for cell in record["cells"]:
        wall = cell["wall_s"]
        spread = f"{wall['median']:.3f} ({wall['least']:.3f}–{wall['most']:.3f})"
        lines.append(
            f"{cell['length']:<18}{cell['voice']:<10}{cell['nfe']:>4}{spread:>20}"
            f"{cell['audio_s']['median']:>9.2f}{cell['rtf']['median']:>8.3f}"
            f"{cell['first_audio_s']['median']:>9.3f}{cell['steps_per_s']['median']:>9.1f}"
        )
    lines += ["", f"{'stages, ms':<32}" + "".join(f"{name:>15}" for name in STAGES)]
    for cell in record["cells"]:
        name = f"{cell['length']}, {cell['voice']}, {cell['nfe']}"
        stages = (
            f"{cell['stages_ms'][stage]:.1f} {cell['stages_share'][stage]:>5.1%}".rjust(15)
            for stage in STAGES
        )
        lines.append(f"{name:<32}" + "".join(stages))
    return "\n".join(lines)

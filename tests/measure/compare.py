"""`scripts/bench-daemon compare A B`: two daemons take turns in one run; the result: a ratio of their times.

A block is A B B A, the next B A A B: a drift of the machine that is linear within a block affects both
alike. Each block gives one ratio per figure. The result is their median with the interval of the sign test,
in which the true median lies with at least CONFIDENCE, whatever the ratios' distribution.
"""

import argparse
import contextlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from appliance.bench import BenchError
from appliance.bench.lines import text_of
from appliance.bench.machine import Neighbours, describe
from appliance.bench.output import aligned, conditions, show_progress, write_json
from appliance.bench.run import TIMEOUT_S, WORDS, Cell, lengths_of, summary
from appliance.box.system import Box, open_box
from appliance.client import CallFailed, Client, Reply
from appliance.client.sounding import speak_anew
from tests.measure.contender import NAME, contender, started

SCHEMA = 1
CONFIDENCE = 0.95
LEAST_BLOCKS = 6
"""Fewest blocks that reach this confidence."""
ORDERS = "ABBA", "BAAB"
FIGURES: Mapping[str, Callable[[Reply], float]] = {
    "wall": lambda reply: reply.wall_s,
    "rtf": lambda reply: reply.wall_s / reply.audio_s,
    "first_audio": lambda reply: reply.first_audio_s,
}
SAME_AUDIO = 0.005
"""Largest difference of log durations of equally long replies."""

Speaker = Callable[[Cell], Reply]


@dataclass(frozen=True)
class Interval:
    ratio: float
    """Median of the blocks' ratios."""
    low: float
    high: float
    confidence: float
    """Probability that the interval holds the true median."""

    @property
    def holds_one(self) -> bool:
        return self.low <= 1.0 <= self.high

    @property
    def smallest_difference(self) -> float:
        """Smallest relative difference that a run of this spread would show."""
        return max(self.high / self.ratio, self.ratio / self.low) - 1.0

    def record(self) -> dict[str, Any]:
        shown = "no difference shown" if self.holds_one else "slower" if self.low > 1.0 else "faster"
        return {**vars(self), "smallest_difference": self.smallest_difference, "b_is": shown}


def interval(ratios: Sequence[float]) -> Interval:
    """Median and sign-test interval. Raises ValueError for fewer than LEAST_BLOCKS ratios."""
    ordered, n = sorted(ratios), len(ratios)
    if n < LEAST_BLOCKS:
        raise ValueError(f"{n} blocks are less than {LEAST_BLOCKS}")
    # Both tails beyond the k-th from either end: 2 · P(Binomial(n, ½) < k).
    outside, k = 0.0, 0
    while (more := outside + 2.0 * math.comb(n, k) / 2.0**n) <= 1.0 - CONFIDENCE:
        outside, k = more, k + 1
    return Interval(statistics.median(ordered), ordered[k - 1], ordered[n - k], 1.0 - outside)


@dataclass
class Pairs:
    cell: Cell
    blocks: list[Mapping[str, list[Reply]]] = field(default_factory=list)
    """Two replies each of A and B, for each block."""

    def ratios(self, figure: str) -> list[float]:
        """Ratio B / A of the geometric means of each block."""
        read = FIGURES[figure]
        logs = [{s: [math.log(read(r)) for r in replies] for s, replies in b.items()} for b in self.blocks]
        return [math.exp(statistics.fmean(one["B"]) - statistics.fmean(one["A"])) for one in logs]

    def values(self, side: str, figure: str) -> list[float]:
        return [FIGURES[figure](reply) for block in self.blocks for reply in block[side]]


def interleave(
    speakers: Mapping[str, Speaker], cells: Sequence[Cell], blocks: int, progress: Callable[[int], None]
) -> list[Pairs]:
    """Let A and B speak every text alternately; `progress` gets the number of finished blocks."""
    every = [Pairs(cell) for cell in cells]
    for block in range(blocks):
        for pairs in every:
            replies: dict[str, list[Reply]] = {"A": [], "B": []}
            for side in ORDERS[block % 2]:
                replies[side].append(speakers[side](pairs.cell))
            pairs.blocks.append(replies)
        progress(block + 1)
    return every


def figures(every: Sequence[Pairs]) -> list[dict[str, Any]]:
    rows = [
        {
            "text": pairs.cell.length,
            **{figure: interval(pairs.ratios(figure)).record() for figure in FIGURES},
            **{
                side: {figure: summary(pairs.values(side, figure)) for figure in FIGURES}
                | {"audio_s": statistics.median(r.audio_s for b in pairs.blocks for r in b[side])}
                for side in ("A", "B")
            },
        }
        for pairs in every
    ]
    if len(every) > 1:
        means = statistics.geometric_mean
        together = {
            name: [means(block) for block in zip(*(pairs.ratios(name) for pairs in every), strict=True)]
            for name in FIGURES
        }
        rows.append({"text": "all", **{name: interval(r).record() for name, r in together.items()}})
    return rows


def caveats(record: Mapping[str, Any]) -> list[str]:
    rows, machine = record["rows"], record["machine"]
    shown = len(rows) * len(FIGURES)
    beyond = 1.0 - rows[0]["wall"]["confidence"]
    found = [
        f"this machine, one voice, these texts, one request at a time: nothing about load; of {shown} "
        f"intervals about {shown * beyond:.1f} miss by chance"
    ]
    if record["neighbours"]:
        busy = ", ".join(f"{name} {share:.2f} cores" for name, share in record["neighbours"])
        found.append(f"ratios only, no absolute time: other programs computed meanwhile ({busy})")
    if machine["loose"] or machine["clocks"] not in ("", "pinned"):
        found.append(f"ratios only, no absolute time: clocks are {machine['clocks'] or 'loose'}")
    for row in rows:
        if "A" in row and abs(math.log(row["B"]["audio_s"] / row["A"]["audio_s"])) > SAME_AUDIO:
            found.append(
                f"{row['text']}: B speaks {row['B']['audio_s']:.2f} s where A speaks "
                f"{row['A']['audio_s']:.2f} s: compare RTF, not wall"
            )
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ("A", "B"):
        parser.add_argument(name, help="bundle's folder, configuration's .yaml, or environment's python")
    parser.add_argument("--nfe", type=int, metavar="N", help="absent: each daemon's own")
    parser.add_argument("--lengths", default="short,medium", metavar="NAMES", help="(%(default)s)")
    parser.add_argument("--blocks", type=int, default=10, metavar="N", help="of four replies (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start both daemons, compare, print and write. Raises BenchError, ApplianceError."""
    lengths = lengths_of(options.lengths)
    if options.blocks < LEAST_BLOCKS:
        raise BenchError(f"--blocks must be at least {LEAST_BLOCKS}: fewer give no interval")
    both = {side: contender(getattr(options, side), options.config, options.set) for side in "AB"}
    described = {side: one.description() for side, one in both.items()}
    texts = {name: text_of(WORDS[name], Random(WORDS[name])) for name in lengths}
    cells = [Cell(name, text, NAME, options.nfe) for name, text in texts.items()]
    with contextlib.ExitStack() as stack:
        begun = {side: stack.enter_context(started(one)) for side, one in both.items()}
        speakers = {side: partial(_speak, both[side].given, one.client) for side, one in begun.items()}
        pids = tuple(one.pid for one in begun.values())
        record = measure(speakers, cells, options.blocks, open_box(), pids)
    for side in both:
        record[side] = described[side] | record[side]
    write_json(options.json, record)
    print(table(record))
    return 0


def _speak(given: str, client: Client, cell: Cell) -> Reply:
    try:
        return speak_anew(client, cell.text, NAME, TIMEOUT_S, nfe=cell.nfe, text_handling="verbatim")
    except CallFailed as failure:
        raise BenchError(f"{given}: {cell.name}: {failure}") from failure


def measure(
    speakers: Mapping[str, Speaker], cells: Sequence[Cell], blocks: int, box: Box, pids: tuple[int, ...]
) -> dict[str, Any]:
    """Measure and return the record; `pids` are the daemons'."""

    def show(done: int) -> None:
        show_progress(f"{done} of {blocks} blocks" + "\n" * (done == blocks))

    at, before, neighbours = box.wall(), describe(box), Neighbours(pids)
    warm_up = [(side, speakers[side](cell)) for cell in cells for side in speakers]
    every = interleave(speakers, cells, blocks, show)
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "compare",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
        "machine": {**before, "junction_after_c": describe(box)["junction_c"]},
        "neighbours": neighbours.busiest(),
        "blocks": blocks,
        "warm_up_s": round(sum(reply.wall_s for _, reply in warm_up), 3),
        **{side: {"backend": reply.header.backend, "nfe": reply.header.nfe_steps} for side, reply in warm_up},
        "rows": figures(every),
    }
    return {**record, "caveats": caveats(record)}


def table(record: Mapping[str, Any]) -> str:
    about = [
        (side, f"{one['given']}: {one['version']}, {one['bundle']}, {one['backend']}, NFE {one['nfe']}")
        for side, one in ((side, record[side]) for side in "AB")
    ]
    replies = f"then {record['blocks']} blocks of two replies of each"
    about += [*conditions(record), ("warm-up", f"{record['warm_up_s']:.2f} s, not counted; {replies}")]
    lines = [aligned(about), ""]
    lines.append(f"{'text':<8}{'figure':<13}{'A':>9}{'B':>9}{'B / A (interval)':>24}  finding")
    for row in record["rows"]:
        for name in FIGURES:
            one = row[name]
            sides = [f"{row[side][name]['median']:.3f}" if side in row else "" for side in "AB"]
            ratio = f"{one['ratio']:.3f} ({one['low']:.3f}–{one['high']:.3f})"
            least = f"at {one['smallest_difference']:.1%} one would have been"
            finding = f"{one['b_is']}; {least}" if one["low"] <= 1.0 <= one["high"] else f"B is {one['b_is']}"
            lines.append(f"{row['text']:<8}{name:<13}{sides[0]:>9}{sides[1]:>9}{ratio:>24}  {finding}")
    confidence = record["rows"][0]["wall"]["confidence"]
    lines += ["", f"A and B in seconds, medians; the interval has the true ratio with {confidence:.1%}.", ""]
    return "\n".join([*lines, "Trust it for:", *(f"- {line}" for line in record["caveats"])])

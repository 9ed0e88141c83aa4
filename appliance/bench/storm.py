"""`appliance bench storm`: requests that arrive on a schedule, whether or not the daemon keeps up.

It measures the idle daemon, its capacity in a closed loop, and the storm. Then it requests some replies of
the storm again, alone. They must be equal to the bit.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from appliance.bench import BenchError, report
from appliance.bench.arguments import count, positive, priority, share, weighted
from appliance.bench.arrivals import Message, Mix, poisson, read_burst
from appliance.bench.lines import text_of
from appliance.bench.load import Load, connected
from appliance.bench.outcome import OK, Outcome, set_turns
from appliance.bench.output import write_json, write_text
from appliance.rpc import appliance_pb2 as pb

CLOSED_LOOP_WORKERS = 4
MIX_DRAWS = 500
"""Number of texts that estimate the mean length of a mix."""
SEGMENTATIONS = {pb.UPSTREAM: "upstream", pb.LOW_LATENCY: "low_latency"}


OPTIONS: Sequence[tuple[str, Callable[[str], Any], Any, str | None, str]] = (
    ("--voice", str, "", None, "absent: the first that is stored"),
    ("--load", positive, 1.2, "X", "times capacity (%(default)s)"),
    ("--capacity", positive, None, "X", "seconds of audio per second; absent: measured"),
    ("--duration", positive, 30.0, "S", "of arrivals (%(default)s s)"),
    ("--burst", Path, None, "FILE", 'replay JSON lines instead; "raid" is 400 messages in 20 s'),
    ("--seed", int, 0, None, "of arrivals and texts (%(default)s)"),
    ("--clients", count, 4, "N", "TCP connections (%(default)s)"),
    ("--words", weighted(int), "5=2,13=6,53=1", "MIX", "lengths (%(default)s)"),
    ("--priorities", weighted(priority), "normal=1", "MIX", "(%(default)s)"),
    ("--cancel", share, 0.0, "SHARE", "cancelled within 2 s"),
    ("--serial", count, 0, "K", "on K serial channels; absent: none is serial"),
    ("--queue-timeout", positive, None, "S", "of every request; absent: now or never where none is serial"),
    ("--timeout", positive, 120.0, "S", "of every request (%(default)s s)"),
    ("--target", positive, None, "S", "first audio due where nothing is promised"),
    ("--idle", count, 10, "N", "requests before it (%(default)s)"),
    ("--calibrate", positive, 10.0, "S", "closed loop (%(default)s s)"),
    ("--verify", int, 5, "N", "replies made again (%(default)s)"),
    ("--json", Path, None, "FILE", "write the figures"),
)
"""Name, type, default, placeholder and help of each option."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, kind, default, placeholder, text in OPTIONS:
        parser.add_argument(name, type=kind, default=default, metavar=placeholder, help=text)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, print and write; return 1 if a repeated reply differs. Raises BenchError, CallFailed."""
    write_text(options.json, "")
    figures = asyncio.run(_measure(options))
    write_json(options.json, figures)
    print(report.table(figures))
    return int(figures["verified"]["same"] < figures["verified"]["replies"])


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the idle daemon, send the storm, and return its figures."""
    random = Random(options.seed)
    mix = Mix(options.words, options.priorities, options.cancel, options.queue_timeout)
    address, voice = options.address, options.voice
    async with connected(address, voice, options.timeout, clients=options.clients) as load:
        baseline = await _baseline(load, options, mix, random)
        messages, duration_s = _messages(options, mix, baseline)
        wall, cpu = time.monotonic(), time.process_time()
        outcomes = await load.open(messages)
        client_cpu = (time.process_time() - cpu) / (time.monotonic() - wall)
        set_turns(outcomes)
        figures = report.figures(outcomes, baseline, duration_s, options.target)
        verified = await _verified(load, outcomes, options.verify, random)
    about = {"serial": options.serial, "burst": str(options.burst or "")}
    return {**about, **figures, "client_cpu": client_cpu, "verified": verified}


async def _baseline(load: Load, options: argparse.Namespace, mix: Mix, random: Random) -> report.Baseline:
    """First audio of the idle daemon, and its capacity: measured, if --capacity does not state it."""

    def text() -> str:
        return text_of(mix.words.draw(random), random)

    # The first request of a voice reads its reference, so it does not count.
    _, *idle = [await load.send(Message(0.0, text())) for _ in range(options.idle + 1)]
    if failed := next((one for one in idle if one.failure), None):
        raise BenchError(f"a request to the idle daemon failed: {failed.reason or failed.status}")
    capacity = options.capacity
    if capacity is None:
        audio_s, wall_s = await load.closed(text, CLOSED_LOOP_WORKERS, options.calibrate)
        if not audio_s:
            raise BenchError("the daemon refuses every request of the closed loop; --capacity skips the loop")
        capacity = audio_s / wall_s
    return report.Baseline(idle, capacity)


def _messages(
    options: argparse.Namespace, mix: Mix, baseline: report.Baseline
) -> tuple[Sequence[Message], float]:
    """Messages of the storm, and the seconds within which they arrive. A seed gives the same texts."""
    if options.burst:
        messages = read_burst(options.burst)
        return _shared(messages, options.serial), max(1.0, messages[-1].at_s)
    random = Random(options.seed)
    characters = sum(len(text_of(mix.words.draw(random), random)) for _ in range(MIX_DRAWS)) / MIX_DRAWS
    rate_per_s = options.load * baseline.capacity / (characters * baseline.audio_s_per_character)
    messages = poisson(mix, rate_per_s, options.duration, Random(options.seed))
    return _shared(messages, options.serial), options.duration


def _shared(messages: Sequence[Message], channels: int) -> Sequence[Message]:
    """Spread messages that name no channel over this number of channels; 0 gives each its own."""
    if not channels:
        return messages
    return [
        replace(message, channel=message.channel or f"serial-{number % channels}")
        for number, message in enumerate(messages)
    ]


async def _verified(load: Load, outcomes: Sequence[Outcome], replies: int, random: Random) -> dict[str, int]:
    """Request some complete replies again, alone; count the equal and the different ones."""
    whole = [one for one in outcomes if one.status == OK]
    sample = random.sample(whole, min(replies, len(whole)))
    same = 0
    for one in sample:
        assert one.header is not None
        again = await load.send(
            Message(0.0, one.message.text),
            seed=one.header.seed,
            nfe=one.header.nfe_steps,
            guidance=one.header.guidance,
            segmentation=SEGMENTATIONS[one.header.segmentation],
        )
        same += again.digest.digest() == one.digest.digest()
    return {"replies": len(sample), "same": same}

"""`appliance bench storm`: requests that arrive on a schedule, however the daemon keeps up.

Measured are the idle daemon, its capacity in a closed loop, and the storm; then some of its replies are
requested again, alone, and must be equal to the bit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from appliance.bench import BenchError, report
from appliance.bench.arguments import count, positive, priority, share, weighted
from appliance.bench.arrivals import Message, Mix, poisson, read_burst
from appliance.bench.lines import text_of
from appliance.bench.load import Load
from appliance.bench.outcome import Outcome, set_turns
from appliance.bench.output import write_json, write_text
from appliance.client import AsyncClient
from appliance.client.sounding import NO_VOICE
from appliance.rpc import appliance_pb2 as pb

CLOSED_LOOP_WORKERS = 4
MIX_DRAWS = 500
"""Texts drawn to estimate the mean length of a mix."""
SEGMENTATIONS = {pb.UPSTREAM: "upstream", pb.LOW_LATENCY: "low_latency"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--voice", default="", help="absent: the first that is stored")
    parser.add_argument(
        "--load", type=positive, default=1.2, metavar="X", help="times capacity (%(default)s)"
    )
    parser.add_argument(
        "--capacity", type=positive, metavar="X", help="seconds of audio per second; absent: measured"
    )
    parser.add_argument(
        "--duration", type=positive, default=30.0, metavar="S", help="of arrivals (%(default)s s)"
    )
    parser.add_argument(
        "--burst", type=Path, metavar="FILE", help='replay JSON lines instead; "raid" is 400 messages in 20 s'
    )
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and texts (%(default)s)")
    parser.add_argument("--clients", type=count, default=4, metavar="N", help="TCP connections (%(default)s)")
    parser.add_argument(
        "--words", type=weighted(int), default="5=2,13=6,53=1", metavar="MIX", help="lengths (%(default)s)"
    )
    parser.add_argument(
        "--priorities", type=weighted(priority), default="normal=1", metavar="MIX", help="(%(default)s)"
    )
    parser.add_argument("--cancel", type=share, default=0.0, metavar="SHARE", help="cancelled within 2 s")
    parser.add_argument("--slow", type=share, default=0.0, metavar="SHARE", help="read at or below real time")
    parser.add_argument(
        "--serial",
        type=count,
        default=0,
        metavar="K",
        help="on K serial channels; absent: none is serial",
    )
    parser.add_argument(
        "--queue-timeout",
        type=positive,
        metavar="S",
        help="of every request; absent: now or never where none is serial",
    )
    parser.add_argument("--min-nfe", type=count, metavar="N", help="of every request")
    parser.add_argument(
        "--timeout", type=positive, default=120.0, metavar="S", help="of every request (%(default)s s)"
    )
    parser.add_argument(
        "--target", type=positive, metavar="S", help="first audio due where nothing is promised"
    )
    parser.add_argument(
        "--idle", type=count, default=10, metavar="N", help="requests before it (%(default)s)"
    )
    parser.add_argument(
        "--calibrate", type=positive, default=10.0, metavar="S", help="closed loop (%(default)s s)"
    )
    parser.add_argument("--verify", type=int, default=5, metavar="N", help="replies made again (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write one JSON line for each request")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, print and write; returns 1 if a repeated reply differs. Raises BenchError, CallFailed."""
    for path in (options.json, options.trace):
        write_text(path, "")
    outcomes, figures = asyncio.run(_measure(options))
    write_text(options.trace, "".join(json.dumps(one.record()) + "\n" for one in outcomes))
    write_json(options.json, figures)
    print(report.table(figures))
    return int(figures["verified"]["same"] < figures["verified"]["replies"])


async def _measure(options: argparse.Namespace) -> tuple[list[Outcome], dict[str, Any]]:
    random = Random(options.seed)
    mix = Mix(
        options.words,
        options.priorities,
        options.cancel,
        options.slow,
        options.queue_timeout,
        options.min_nfe,
    )
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient(options.address, own_connection=True))
            for _ in range(options.clients)
        ]
        voice = options.voice or await anext((voice.name async for voice in clients[0].voices()), "")
        if not voice:
            raise BenchError(NO_VOICE)
        load = Load(clients, voice, options.timeout)
        baseline = await _baseline(load, options, mix, random)
        messages, duration_s = _messages(options, mix, baseline, random)
        wall, cpu = time.monotonic(), time.process_time()
        outcomes = await load.open(messages)
        client_cpu = (time.process_time() - cpu) / (time.monotonic() - wall)
        set_turns(outcomes)
        figures = report.figures(outcomes, baseline, duration_s, options.target)
        verified = await _verified(load, outcomes, options.verify, random)
    about = {"serial": options.serial, "burst": str(options.burst or "")}
    return outcomes, {**about, **figures, "client_cpu": client_cpu, "verified": verified}


async def _baseline(load: Load, options: argparse.Namespace, mix: Mix, random: Random) -> report.Baseline:
    def text() -> str:
        return text_of(mix.words.draw(random), random)

    # The first request of a voice reads its reference.
    _, *idle = await load.solo([text() for _ in range(options.idle + 1)])
    if failed := next((one for one in idle if one.status != "OK"), None):
        raise BenchError(f"a request to the idle daemon failed: {failed.reason or failed.status}")
    capacity = options.capacity
    if capacity is None:
        audio_s, wall_s = await load.closed(text, CLOSED_LOOP_WORKERS, options.calibrate)
        if not audio_s:
            raise BenchError("the daemon refuses every request of the closed loop; --capacity leaves it out")
        capacity = audio_s / wall_s
    return report.Baseline(idle, capacity)


def _messages(
    options: argparse.Namespace, mix: Mix, baseline: report.Baseline, random: Random
) -> tuple[Sequence[Message], float]:
    """Messages, and the seconds within which they arrive."""
    if options.burst:
        messages = read_burst(options.burst)
        return _shared(messages, options.serial), max(1.0, messages[-1].at_s)
    characters = sum(len(text_of(mix.words.draw(random), random)) for _ in range(MIX_DRAWS)) / MIX_DRAWS
    rate_per_s = options.load * baseline.capacity / (characters * baseline.audio_s_per_character)
    messages = poisson(mix, rate_per_s, options.duration, random)
    return _shared(messages, options.serial), options.duration


def _shared(messages: Sequence[Message], channels: int) -> Sequence[Message]:
    """Spread messages without a channel over so many; 0: each has its own."""
    if not channels:
        return messages
    return [
        replace(message, channel=message.channel or f"serial-{number % channels}")
        for number, message in enumerate(messages)
    ]


async def _verified(load: Load, outcomes: Sequence[Outcome], replies: int, random: Random) -> dict[str, int]:
    """Request some complete replies again, alone; count those with the same audio."""
    whole = [one for one in outcomes if one.status == "OK"]
    chosen = random.sample(whole, min(replies, len(whole)))
    same = 0
    for one in chosen:
        assert one.header is not None
        [again] = await load.solo(
            [one.message.text],
            seed=one.header.seed,
            nfe=one.header.nfe_steps,
            guidance=one.header.guidance,
            segmentation=SEGMENTATIONS[one.header.segmentation],
        )
        same += again.digest.digest() == one.digest.digest()
    return {"replies": len(chosen), "same": same}

"""Trace of a daemon of the bench's own: started with `serve --trace`, and sent one request or a storm."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

from appliance.bench import BenchError, slices
from appliance.bench.arguments import count, positive, share
from appliance.bench.arrivals import Message, Mix, Weighted, poisson, read_burst
from appliance.bench.lines import text_of
from appliance.bench.load import connected
from appliance.bench.outcome import Outcome
from tests.harness.daemons import SPEECH
from tests.measure.contender import NAME, contender, reference, started

CONNECTIONS = 4
TIMEOUT_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="bundle's folder, configuration's .yaml, or environment's python")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the trace, for ui.perfetto.dev"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary")
    parser.add_argument("--text", help="one request; without --rate and --burst one of 13 words")
    parser.add_argument("--rate", type=positive, metavar="N", help="a storm of N requests a second")
    parser.add_argument("--duration", type=positive, default=10.0, metavar="S", help="of it (%(default)s s)")
    parser.add_argument("--burst", type=Path, metavar="FILE", help='JSON lines instead, or "raid"')
    parser.add_argument("--slow", type=share, default=0.0, metavar="SHARE", help="read at or below real time")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and texts (%(default)s)")
    parser.add_argument(
        "--shown", type=count, default=slices.SHOWN, metavar="N", help="requests (%(default)s)"
    )
    parser.add_argument(
        "--voice", type=Path, default=SPEECH, metavar="FILE", help="reference, its .txt beside it"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Record, sum up, print and write. Raises BenchError, ApplianceError."""
    options.trace = record(options)
    slices.run(options)
    print(f"\n{options.out}: open it at https://ui.perfetto.dev or chrome://tracing")
    return 0


def record(options: argparse.Namespace) -> Path:
    """Trace a daemon of the bench's own; returns the file. Raises BenchError, ApplianceError."""
    messages = messages_of(options)
    reference(options.voice)
    one = contender(options.source, options.config, options.set)
    out = options.out.absolute()
    with started(one, options.voice, "--trace", str(out)) as daemon:
        outcomes = asyncio.run(_send(daemon.address, messages))
    if not any(one.admitted for one in outcomes):
        first = outcomes[0]
        raise BenchError(f"the daemon admitted nothing: {first.status} {first.reason}".rstrip())
    return Path(out)


def messages_of(options: argparse.Namespace) -> Sequence[Message]:
    draw = Random(options.seed)
    if options.burst:
        return read_burst(options.burst)
    if options.rate:
        words = Weighted((5, 13, 53), (2.0, 6.0, 1.0))
        mix = Mix(words, Weighted(("normal",), (1.0,)), slow=options.slow)
        if messages := poisson(mix, options.rate, options.duration, draw):
            return messages
        raise BenchError(f"no request arrives at --rate {options.rate:g} in {options.duration:g} s")
    return [Message(0.0, options.text or text_of(13, draw))]


async def _send(address: str, messages: Sequence[Message]) -> list[Outcome]:
    async with connected(address, NAME, TIMEOUT_S, clients=CONNECTIONS) as load:
        return await load.open(messages)

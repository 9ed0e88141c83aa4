"""`appliance bench trace`: the engine's calls, and the reasons for which requests waited.

Starts a daemon with `serve --trace` and sends it one request or a storm; or sums up a trace that another
daemon has written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from appliance.bench import BenchError
from appliance.bench.arguments import count, positive, share
from appliance.bench.arrivals import Message, Mix, Weighted, poisson, read_burst
from appliance.bench.contender import DEMO_VOICE, NAME, contender, reference, started
from appliance.bench.lines import text_of
from appliance.bench.load import Load
from appliance.bench.outcome import Outcome
from appliance.bench.output import aligned, write_json
from appliance.client import AsyncClient
from appliance.scheduler.trace import CALLS, LANE, REASONS, REQUESTS, TEXT

CONNECTIONS = 4
TIMEOUT_S = 600.0
SHOWN = 10
"""Requests in the table, longest waits first."""
WORK = ("open", "step", "finish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", help="bundle's folder, configuration's .yaml, environment's python, or a trace.json"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the trace, for ui.perfetto.dev")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary")
    parser.add_argument("--text", help="one request; without --rate and --burst one of 13 words")
    parser.add_argument("--rate", type=positive, metavar="N", help="a storm of N requests a second")
    parser.add_argument("--duration", type=positive, default=10.0, metavar="S", help="of it (%(default)s s)")
    parser.add_argument("--burst", type=Path, metavar="FILE", help='JSON lines instead, or "raid"')
    parser.add_argument("--slow", type=share, default=0.0, metavar="SHARE", help="read at or below real time")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and texts (%(default)s)")
    parser.add_argument("--shown", type=count, default=SHOWN, metavar="N", help="requests (%(default)s)")
    parser.add_argument(
        "--voice", type=Path, default=DEMO_VOICE, metavar="FILE", help="reference, its .txt beside it"
    )


def run(options: argparse.Namespace) -> int:
    """Record or read a trace, sum up, print and write. Raises BenchError, ApplianceError."""
    trace = Path(options.source) if options.source.endswith(".json") else record(options)
    found = summary(read(trace))
    write_json(options.json, found)
    print(table(found, options.shown))
    if options.out:
        print(f"\n{options.out}: open it at https://ui.perfetto.dev or chrome://tracing")
    return 0


def record(options: argparse.Namespace) -> Path:
    """Trace a daemon of the bench's own; returns the file. Raises BenchError, ApplianceError."""
    if options.out is None:
        raise BenchError("--out FILE is where the trace goes; only a trace.json is read without")
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
    """Messages to send. Raises BenchError."""
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
    clients = [AsyncClient(address, own_connection=True) for _ in range(CONNECTIONS)]
    try:
        return await Load(clients, NAME, TIMEOUT_S).open(messages)
    finally:
        for client in clients:
            await client.close()


def read(path: Path) -> Mapping[str, Any]:
    """Read a trace. Raises BenchError for other files."""
    try:
        trace: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
        _ = trace["traceEvents"], trace["otherData"]["refused"]
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path}: not a trace that `appliance serve --trace` wrote") from error
    return trace


def summary(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds by call, by reason of waiting, and by request that is complete. Raises BenchError."""
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    if not slices:
        raise BenchError("the trace holds no call: nothing was asked of that daemon")
    begun = min(event["ts"] for event in slices)
    ended = max(event["ts"] + event["dur"] for event in slices)
    calls: dict[str, list[float]] = {name: [] for name in WORK}
    requests: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for event in slices:
        if event["pid"] == CALLS:
            calls[event["name"]].append(event["dur"] / 1e6)
        elif event["pid"] == REQUESTS:
            requests[event["tid"]].append(event)
    whole = [_request(events) for events in requests.values() if any(e["name"] == TEXT for e in events)]
    waits = {reason: sum(one["waits_s"].get(reason, 0.0) for one in whole) for reason in REASONS}
    return {
        "backend": trace["otherData"].get("backend", ""),
        "span_s": (ended - begun) / 1e6,
        "busy": sum(map(sum, calls.values())) * 1e6 / max(ended - begun, 1e-9),
        "calls": {
            name: {"calls": len(took), "s": sum(took), "median_ms": statistics.median(took or [0.0]) * 1e3}
            for name, took in calls.items()
        },
        "lane_steps": sum(event["pid"] == LANE and event["name"] == "step" for event in slices),
        "lanes": len({event["tid"] for event in slices if event["pid"] == LANE}),
        "waits_s": {reason: seconds for reason, seconds in waits.items() if seconds},
        "requests": sorted(whole, key=lambda one: -sum(one["waits_s"].values())),
        "refused": trace["otherData"]["refused"],
        "cut": len(requests) - len(whole),
        "dropped": trace["otherData"]["dropped"],
    }


def _request(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    seconds: dict[str, float] = defaultdict(float)
    for event in events:
        seconds[event["name"]] += event["dur"] / 1e6
    ends = [event["ts"] + event["dur"] for event in events]
    return {
        "request": events[0]["args"]["request"],
        "wall_s": (max(ends) - min(event["ts"] for event in events)) / 1e6,
        "steps": sum(event["name"] == "step" for event in events),
        "work_s": {name: seconds[name] for name in WORK if name in seconds},
        "waits_s": {name: seconds[name] for name in REASONS if name in seconds},
    }


def table(found: Mapping[str, Any], shown: int = SHOWN) -> str:
    calls, requests = found["calls"], found["requests"]
    steps, refused = calls["step"]["calls"], found["refused"]
    about = [
        ("engine", f"{found['backend']}, {found['busy']:.0%} of {found['span_s']:.2f} s busy"),
        ("requests", f"{len(requests)} admitted" + "".join(f", {n} {why}" for why, n in refused.items())),
        ("lanes", f"{found['lanes']}, {found['lane_steps'] / max(steps, 1):.2f} in a step"),
    ]
    if found["dropped"]:
        about.append(("dropped", f"{found['dropped']} slices, the oldest; {found['cut']} requests are cut"))
    lines = [aligned(about), "", f"{'call':<10}{'calls':>8}{'s':>10}{'median ms':>12}"]
    for name, one in calls.items():
        lines.append(f"{name:<10}{one['calls']:>8}{one['s']:>10.3f}{one['median_ms']:>12.2f}")
    whole = sum(one["wall_s"] for one in requests)
    lines += ["", f"{'waits':<10}{'s':>8}{'share':>8}  why"]
    for reason, seconds in sorted(found["waits_s"].items(), key=lambda pair: -pair[1]):
        lines.append(f"{reason:<10}{seconds:>8.3f}{seconds / whole:>8.1%}  {REASONS[reason]}")
    lines += ["", f"{'request':<28}{'wall s':>8}{'steps':>7}{'work s':>8}{'waits s':>9}  for"]
    for one in requests[:shown]:
        work_s, waits_s = (sum(one[name].values()) for name in ("work_s", "waits_s"))
        most = sorted(one["waits_s"].items(), key=lambda pair: -pair[1])[:3]
        reasons = ", ".join(f"{reason} {seconds:.3f}" for reason, seconds in most)
        times = f"{one['wall_s']:>8.3f}{one['steps']:>7}{work_s:>8.3f}{waits_s:>9.3f}"
        lines.append(f"{one['request'][-28:]:<28}{times}  {reasons}")
    return "\n".join(lines)

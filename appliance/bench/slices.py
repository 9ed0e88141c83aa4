"""`appliance bench trace`: engine calls and reasons of waits, from a file that `serve --trace` wrote."""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from appliance.bench import BenchError
from appliance.bench.arguments import count
from appliance.bench.output import aligned, write_json
from appliance.box.show.streams import plain
from appliance.serve.trace import CALLS, LANE, REASONS, REQUESTS, TEXT

SHOWN = 10
"""Number of requests in the table, longest waits first."""
WORK = ("open", "step", "finish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, help="file of `appliance serve --trace`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary")
    parser.add_argument("--shown", type=count, default=SHOWN, metavar="N", help="requests (%(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read a trace, sum up, print and write. Raises BenchError."""
    sums = summary(read(options.trace))
    write_json(options.json, sums)
    print(table(sums, options.shown))
    return 0


def read(path: Path) -> Mapping[str, Any]:
    """Content of a trace. Raises BenchError for other files."""
    try:
        trace: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
        _ = trace["traceEvents"], trace["otherData"]["refused"]
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path}: not a trace that `appliance serve --trace` wrote") from error
    return trace


def summary(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds by call, by reason of waiting, and by complete request. Raises BenchError."""
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    if not slices:
        raise BenchError("the trace has no call, because that daemon got no request")
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
    """Duration, steps, and seconds of work and waits of one request."""
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


def table(sums: Mapping[str, Any], shown: int = SHOWN) -> str:
    calls, requests = sums["calls"], sums["requests"]
    steps, refused = calls["step"]["calls"], sums["refused"]
    about = [
        ("engine", f"{sums['backend']}, {sums['busy']:.0%} of {sums['span_s']:.2f} s busy"),
        ("requests", f"{len(requests)} admitted" + "".join(f", {n} {why}" for why, n in refused.items())),
        ("lanes", f"{sums['lanes']}, {sums['lane_steps'] / max(steps, 1):.2f} in a step"),
    ]
    if sums["dropped"]:
        about.append(("dropped", f"{sums['dropped']} slices, the oldest; {sums['cut']} requests are cut"))
    lines = [aligned(about), "", f"{'call':<10}{'calls':>8}{'s':>10}{'median ms':>12}"]
    for name, one in calls.items():
        lines.append(f"{name:<10}{one['calls']:>8}{one['s']:>10.3f}{one['median_ms']:>12.2f}")
    whole = sum(one["wall_s"] for one in requests)
    lines += ["", f"{'waits':<10}{'s':>8}{'share':>8}  why"]
    for reason, seconds in sorted(sums["waits_s"].items(), key=lambda pair: -pair[1]):
        lines.append(f"{reason:<10}{seconds:>8.3f}{seconds / whole:>8.1%}  {REASONS[reason]}")
    lines += ["", f"{'request':<28}{'wall s':>8}{'steps':>7}{'work s':>8}{'waits s':>9}  for"]
    for one in requests[:shown]:
        work_s, waits_s = (sum(one[name].values()) for name in ("work_s", "waits_s"))
        most = sorted(one["waits_s"].items(), key=lambda pair: -pair[1])[:3]
        reasons = ", ".join(f"{reason} {seconds:.3f}" for reason, seconds in most)
        times = f"{one['wall_s']:>8.3f}{one['steps']:>7}{work_s:>8.3f}{waits_s:>9.3f}"
        lines.append(plain(f"{one['request'][-28:]:<28}{times}  {reasons}"))
    return "\n".join(lines)

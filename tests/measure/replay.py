"""A storm's trace, offered to a scheduler that knows every cost.

    python -m tests.measure.replay TRACE [--bundle DIR] [--voice WAV] [--threads N]

TRACE is what `appliance bench storm --trace` wrote of a real daemon. Its requests are planned again and
offered to a scheduler that knows every cost, with the costs that this machine's warm-up measures, scaled
to the times of the storm's requests. A request that it serves and the daemon refused could have been served.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from appliance.config import EngineConfig
from appliance.contract import bundle as bundles
from appliance.engine.costs import CostTable
from appliance.engine.loading import load_for
from appliance.plan import Planner
from appliance.request import Cost, Priority, Reference, Request, Segment, Segmentation
from appliance.text.tokens.tokenizers import maker
from appliance.voices.reference import prepare
from appliance.voices.rules import RULES
from tests.harness.daemons import SPEECH
from tests.harness.engine import Steps, scaled
from tests.harness.scheduler import Message, refused_by_oracle

DEMO = Path("appliance/demo")


@dataclass(frozen=True)
class Measured:
    """Costs of a bundle on this machine, times a factor."""

    table: CostTable
    max_batch: int
    factor: float = 1.0
    lanes: int = 8

    def step_s(self, steps: Steps) -> float:
        return self.table.together(steps) * self.factor

    def of(self, segment: Segment) -> Cost:
        return scaled(self.table.of(segment), self.factor)


def replay(trace: Path, folder: Path, voice: Path, threads: int) -> dict[str, float]:
    """Compare the refusals of a real daemon in a storm with the refusals of an oracle."""
    read = bundles.read(folder)
    engine = load_for(read, EngineConfig(backend="ort-cpu", threads=threads, lanes=4))
    lines = [json.loads(line) for line in trace.read_text("utf-8").splitlines()]
    nfe = next(line["nfe"] for line in lines if line["nfe"])
    engine.warm_up(nfe)
    rule, m = RULES[read.manifest.reference], read.manifest
    transcript = rule.complete(voice.with_suffix(".txt").read_text("utf-8").strip())
    features = prepare(voice.read_bytes(), m.mel, m.defaults.target_rms, rule=rule)
    planner = Planner(
        read.manifest,
        read.vocabulary(),
        lambda *_: Reference(transcript, features),
        maker(m.text.tokenizer, m.text.voice),
    )

    def planned(line: dict[str, Any]) -> Message:
        whole = Request(
            line["text"], "", nfe, 0, read.manifest.defaults.guidance, Segmentation.UPSTREAM, stream=True
        )
        ways = planner.ways([whole, replace(whole, segmentation=Segmentation.LOW_LATENCY)])
        priority = Priority[(line["priority"] or "normal").upper()]
        segments, channel = tuple(segments for _, segments in ways), line["channel"]
        patience_s = None if channel else 0.0
        return Message(
            line["at_s"], planned=segments, priority=priority, channel=channel, queue_timeout_s=patience_s
        )

    messages = [planned(line) for line in lines]
    taken_s = estimated_s = 0.0
    for line, message in zip(lines, messages, strict=True):
        if line["engine_s"]:
            taken_s += line["engine_s"]
            made = next(way for way in message.planned if len(way) == line["segments"])
            estimated_s += sum(engine.costs.of(segment).whole_s for segment in made)
    refused = sum(line["status"] == "RESOURCE_EXHAUSTED" for line in lines) / len(lines)
    device = Measured(engine.costs, engine.max_batch, taken_s / estimated_s)
    oracle = refused_by_oracle(device, messages)
    return {
        "messages": len(lines),
        "storm's time per estimate": device.factor,
        "refused": refused,
        "refused by the oracle": oracle,
        "refused but serveable": refused - oracle,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--bundle", type=Path, default=DEMO / "bundle", help="of that storm (%(default)s)")
    parser.add_argument("--voice", type=Path, default=SPEECH, help="of that storm (%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of the storm's engine")
    options = parser.parse_args()
    print(json.dumps(replay(options.trace, options.bundle, options.voice, options.threads), indent=2))


if __name__ == "__main__":
    main()

"""Real-time channels that the daemon's scheduler carries with a bundle on a device, on a virtual clock.

    python -m tests.benchmarks.capacity BUNDLE [--device agx-orin-64] [--mode MAXN] [--nfe 4]
    python -m tests.benchmarks.capacity BUNDLE --device this [--threads 2]

A channel speaks four fifths of the time: replies of 1 to 12 s, streamed, each sent a second after the one
before it could have ended. It is carried if C100 is 100 % of all that was sent: every reply is promised,
never runs dry for more than 0.1 s, and begins within that second, so that none falls behind. Costs of `this`
are those of the engine's warm-up, measured now; those of a GPU are ESTIMATES: `reply_model.py`, and a host
that launches kernels, which nothing has measured.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from appliance.config import EngineConfig, SchedulerConfig, SynthesisConfig
from appliance.contract import bundle as bundles
from appliance.contract.bundle import Manifest, Sampling
from appliance.contract.graphs import FRAME_MULTIPLE
from appliance.engine.calls import calls_alone, joined_calls
from appliance.engine.costs import StepCall
from appliance.engine.loading import load_for
from appliance.engine.tensorrt.trt import TrtBackend
from appliance.request import Cost, Segment
from tests.benchmarks import simulator
from tests.benchmarks.devices import DEVICES
from tests.benchmarks.reply_model import ReplyModel
from tests.benchmarks.simulator import FRAMES_PER_S, Measured, Message, Steps, Table, World

BLOCK_LAUNCHES, ENDS = 8, 4
"""Launches of a DiT's block, whose attention is fused, and beside its blocks (`test_tensorrt.py`)."""
LAUNCHES = 1.65
"""Launches for each product, convolution and softmax where attention is not fused, as TensorRT-RTX plans them
for ZipVoice (677 for 418) and for its text encoder; also of the graphs that run once."""
KERNEL_S = 2.8e-6
"""Least distance of two kernels on the device: 0.5 ms of v1_Base's 180."""
HOST_S = 11e-6
"""Time in which the host launches one, where no CUDA graph does: 2 ms of v1_Base's 180."""
REFERENCE_S = 5.0
DRY_S = 0.1
PAUSE_S = 1.0
"""From the end of a reply to the next one's request, and the longest from there to its beginning."""
MOST = 1024
"""Channels above which nothing is tried."""
STEP = 16
"""Part of a number to which it is sought."""


class Modelled:
    def __init__(self, manifest: Manifest, model: ReplyModel, rows: int, *, captured: bool) -> None:
        """`rows` of a call; `captured`: steps are CUDA graphs."""
        self._manifest, self._model = manifest, model
        self._rows, self._captured = rows, captured
        self._costs: dict[tuple[int, int, int, Sampling], Cost] = {}
        self.max_batch = max(rows // self._manifest.sampler.most_rows, 1)

    def step_s(self, steps: Steps) -> float:
        calls = [call for segment, step in steps for call in self._calls(segment, step)]
        total_s = 0.0
        for shared in joined_calls(calls, self._rows):
            frames = max(calls[i].frames for i in shared)
            call = replace(calls[shared[0]], frames=frames, rows=sum(calls[i].rows for i in shared))
            launches = self._launches("step")
            device_s = self._model.step_s(call) + launches * KERNEL_S
            total_s += device_s if self._captured else max(device_s, launches * HOST_S)
        return total_s

    def of(self, segment: Segment) -> Cost:
        key = (segment.frames, segment.reference_frames, segment.nfe, segment.sampling)
        if key not in self._costs:
            steps = tuple(self.step_s([(segment, step)]) for step in range(segment.nfe))
            made = segment.frames - segment.reference_frames
            self._costs[key] = Cost(
                self._once_s("condition", segment.frames), steps, self._once_s("vocoder", made)
            )
        return self._costs[key]

    def _once_s(self, graph: str, frames: int) -> float:
        launches = self._launches(graph)
        return max(self._model.other_s(graph, frames) + launches * KERNEL_S, launches * HOST_S)

    def _launches(self, graph: str) -> float:
        if graph == "step" and self._manifest.arch:
            return BLOCK_LAUNCHES * self._manifest.arch.depth + ENDS
        return LAUNCHES * self._model.kernels(graph)

    def _calls(self, segment: Segment, step: int) -> list[StepCall]:
        m = self._manifest
        return calls_alone(segment, step, FRAME_MULTIPLE, self._rows, m.sampler, m.dimensions)


@dataclass(frozen=True)
class Speaking:
    manifest: Manifest
    nfe: int
    sampling: Sampling
    seconds: float
    reference_s: float = REFERENCE_S

    def messages(self, channels: int, seed: int = 0) -> list[Message]:
        draw = random.Random(seed)
        found = []
        for channel in range(channels):
            at = draw.uniform(0.0, 4.0)
            while at < self.seconds:
                length_s = simulator.line_s(draw)
                found.append(self.message(at, length_s, f"channel {channel}"))
                at += length_s + PAUSE_S
        return sorted(found, key=lambda message: message.at)

    def message(self, at: float, length_s: float, channel: str) -> Message:
        message = Message(
            at, simulator.cut(length_s), reference_s=self.reference_s, nfe=self.nfe, channel=channel
        )
        given = {
            "sampling": self.sampling,
            "guidance": self.manifest.defaults.guidance,
            "times": self.manifest.times(self.nfe),
            "reference_log_mel": np.zeros((round(self.reference_s * FRAMES_PER_S), 1), np.float32),
        }
        message.planned = tuple(
            [replace(segment, **given) for segment in simulator.segments_of(message, pieces)]
            for pieces in message.pieces
        )
        return message


@dataclass(frozen=True)
class Run:
    channels: int
    c100: float
    """Share of what was sent."""
    first_p95_s: float
    utilisation: float


def run(table: Table, speaking: Speaking, channels: int, lanes: int) -> Run:
    world, messages = World(table, SchedulerConfig(), lanes=lanes), speaking.messages(channels)
    world.run(messages)
    found = simulator.report(world, messages, speaking.seconds)
    good = sum(m.promised and m.underrun_s <= DRY_S and m.first_s <= PAUSE_S for m in messages)
    return Run(channels, good / len(messages), found["first audio P95 s"], found["utilisation"])


def most(carried: Callable[[int], bool], first: int = 1, limit: int = MOST) -> int:
    """Greatest number that is carried, sought by doubling and halving from `first` on."""
    low, high = 0, first
    while high <= limit and carried(high):
        low, high = high, 2 * high
    while high - low > max(low // STEP, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if carried(middle) else (low, middle)
    return low


def main() -> None:
    """Print a line of JSON for each number of channels that was tried, and the answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--device", choices=("this", *DEVICES), default="agx-orin-64")
    parser.add_argument("--mode", default="MAXN")
    parser.add_argument("--rows", type=int, default=TrtBackend.max_batch, help="of a call (%(default)s)")
    parser.add_argument("--one-by-one", action="store_true", help="steps are no CUDA graphs")
    parser.add_argument("--nfe", type=int, help="absent: as many as the daemon takes")
    parser.add_argument("--sampling", choices=("exact", "short", "short-kv"), default="exact")
    parser.add_argument("--from", type=int, default=1, dest="first", help="channels that are tried first")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--lanes", type=int, default=EngineConfig.lanes)
    parser.add_argument("--threads", type=int, default=0, help="of this machine")
    options = parser.parse_args()
    bundle = bundles.read(options.bundle, verify=False)
    nfe = SynthesisConfig().steps_with(bundle.manifest.sampler) if options.nfe is None else options.nfe
    speaking = Speaking(bundle.manifest, nfe, options.sampling, options.seconds)
    table: Table
    if options.device == "this":
        engine = load_for(
            bundle, EngineConfig(backend="ort-cpu", threads=options.threads, lanes=options.lanes)
        )
        engine.warm_up(nfe)
        table = Measured(engine.costs, engine.max_batch)
    else:
        if options.mode not in DEVICES[options.device]:
            parser.error(f"--mode: {options.device} has {', '.join(DEVICES[options.device])}")
        mode = DEVICES[options.device][options.mode]
        captured = not options.one_by_one
        table = Modelled(bundle.manifest, ReplyModel(bundle, mode), options.rows, captured=captured)

    def carried(channels: int) -> bool:
        found = run(table, speaking, channels, options.lanes)
        print(json.dumps(vars(found)), flush=True)
        return found.c100 == 1.0

    print(json.dumps({"bundle": bundle.manifest.family, "channels": most(carried, options.first)}))


if __name__ == "__main__":
    main()

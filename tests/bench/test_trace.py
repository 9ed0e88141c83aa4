"""The trace against the format's published rules, the engine's counts and the clients' measurements.

The document "Trace Event Format" states the rules; chrome://tracing and Perfetto's JSON importer refer to it.
"""

import itertools
import json
import math
import re
import threading
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance import cli
from appliance.bench.slices import read, summary
from appliance.client import CallFailed, Client, End, Header, Reply
from appliance.errors import Cancelled, EngineFault
from appliance.request import Priority
from appliance.serve import trace as recording
from appliance.serve.trace import CALLS, LANE, REASONS, REQUESTS, Recorder
from tests.harness.daemons import Running, followed, start, write_config
from tests.harness.engine import CALL_S, EVEN, LAUNCH_BOUND
from tests.harness.scheduler import Bench, chat

pytestmark = [pytest.mark.slow, pytest.mark.once]

Event = Mapping[str, Any]
TICK_US = 0.002
"""Two roundings of a nanosecond."""

METADATA = {
    "process_name": {"name": str},
    "process_labels": {"labels": str},
    "process_sort_index": {"sort_index": int},
    "thread_name": {"name": str},
    "thread_sort_index": {"sort_index": int},
}


def check_format(trace: Mapping[str, Any]) -> None:
    """JSON object format: `traceEvents`, known phases, the keys that each phase requires, microseconds."""
    assert isinstance(trace["traceEvents"], list)
    assert trace.get("displayTimeUnit", "ms") in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["name"], str) and event["name"]
        for key in ("pid", "tid"):
            assert type(event[key]) is int and 0 <= event[key] < 2**31
        if event["ph"] == "M":
            [(key, kind)] = METADATA[event["name"]].items()
            assert type(event["args"][key]) is kind
            continue
        assert isinstance(event.get("cat", ""), str) and isinstance(event.get("args", {}), dict)
        for key in ("ts", "dur"):
            assert type(event[key]) in (int, float) and math.isfinite(event[key]) and event[key] >= 0.0
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert named == {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "X"}


def tracks(trace: Mapping[str, Any], process: int) -> dict[int, list[Event]]:
    slices_of: dict[int, list[Event]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == process:
            slices_of[event["tid"]].append(event)
    return {thread: sorted(slices, key=lambda e: e["ts"]) for thread, slices in slices_of.items()}


def end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


def check_consistent(trace: Mapping[str, Any]) -> None:
    """No track overlaps, requests have no gaps, and each slice of a lane lies in a call of the engine."""
    check_format(trace)
    for process in (CALLS, LANE, REQUESTS):
        for slices in tracks(trace, process).values():
            for before, after in itertools.pairwise(slices):
                assert after["ts"] >= end(before) - TICK_US, (before, after)
                if process == REQUESTS:
                    assert after["ts"] <= end(before) + TICK_US, (before, after)
    [calls] = tracks(trace, CALLS).values()
    spans = {(call["ts"], call["dur"], call["name"]): call["args"]["lanes"] for call in calls}
    for slices in tracks(trace, LANE).values():
        for one in slices:
            assert spans[one["ts"], one["dur"], one["name"]] == one["args"]["together"]
    for one in summary(trace)["requests"]:
        spent = sum(one["work_s"].values()) + sum(one["waits_s"].values())
        assert spent == pytest.approx(one["wall_s"], abs=1e-6)


def waits(trace: Mapping[str, Any], request: str) -> dict[str, float]:
    [row] = [one for one in summary(trace)["requests"] if one["request"] == request]
    return dict(row["waits_s"])


class Traced(Bench):
    def __init__(self, *, limit: int = 10_000, **settings: Any) -> None:
        self.recorder = Recorder(lambda: 0.0, limit=limit)
        super().__init__(observer=self.recorder, **settings)

    def trace(self, folder: Path) -> Mapping[str, Any]:
        self.recorder.write(folder / "trace.json")
        return read(folder / "trace.json")

    def served(self, folder: Path) -> Mapping[str, Any]:
        """Serve all requests; return their trace, which must be consistent."""
        self.serve()
        trace = self.trace(folder)
        check_consistent(trace)
        return trace


def test_calls_and_the_turns_of_others(tmp_path: Path) -> None:
    bench = Traced()
    jobs = [bench.admit(name, 2) for name in "ab"]
    trace = bench.served(tmp_path)
    sums = summary(trace)
    assert {name: c["calls"] for name, c in sums["calls"].items()} == {"open": 4, "step": 16, "finish": 4}
    assert sums["calls"]["step"]["median_ms"] == pytest.approx(CALL_S * 1e3)
    assert sums["busy"] == pytest.approx(1.0)
    for job, request in zip(jobs, sorted(sums["requests"], key=lambda one: one["request"]), strict=True):
        assert request["work_s"]["step"] == pytest.approx(job.timings.steps_s)
        assert request["work_s"]["open"] == pytest.approx(job.timings.condition_s)
    assert waits(trace, "a") == {} or set(waits(trace, "a")) <= {"text", "turn"}
    assert set(waits(trace, "b")) <= {"text", "queue", "turn"} and waits(trace, "b")["queue"] > 5 * CALL_S


def test_a_paused_channel_and_a_slow_reader(tmp_path: Path) -> None:
    bench = Traced()
    bench.admit("p", 1, channel="music")
    bench.scheduler.queue.pause("music")
    slow = bench.admit("s", 3, buffer_s=0.1)
    while bench.scheduler.run_once():
        pass
    bench.scheduler.run_once()
    bench.now += 2.0
    bench.scheduler.queue.sent(slow, 10.0)
    bench.scheduler.run_once()
    bench.now += 1.0
    bench.scheduler.queue.resume("music")
    trace = bench.served(tmp_path)
    # The other reply is synthesised while this one waits: six calls.
    assert waits(trace, "s")["reader"] == pytest.approx(2.0 + 6 * CALL_S)
    assert waits(trace, "p")["paused"] >= 3.0


def test_a_wait_for_a_lane_is_traced(tmp_path: Path) -> None:
    bench = Traced(lanes=1)
    bench.admit("long", 1, nfe=16, frames=400)
    for _ in range(3):
        bench.scheduler.run_once()
    bench.admit("hello", priority=Priority.REALTIME)
    trace = bench.served(tmp_path)
    assert waits(trace, "hello")["lanes"] == pytest.approx(15 * CALL_S, abs=CALL_S / 2)


def test_a_lane_that_is_opened_to_share_steps(tmp_path: Path) -> None:
    bench = Traced(device=replace(EVEN, max_batch=4))
    bench.admit("a", 1, nfe=8)
    bench.scheduler.run_once()
    bench.admit("b", 1, nfe=8)
    trace = bench.served(tmp_path)
    assert waits(trace, "a")["batch"] == pytest.approx(CALL_S)
    sums = summary(trace)
    assert sums["lane_steps"] == 16 > sums["calls"]["step"]["calls"] and sums["lanes"] == 2


@pytest.mark.parametrize("how", ["failed", "cancelled", "interrupted"])
def test_calls_that_end_otherwise(tmp_path: Path, how: str) -> None:
    bench = Traced()
    job = bench.admit("x", priority=Priority.BULK)
    bench.scheduler.run_once()

    def fail() -> None:
        raise EngineFault("no")

    acts: dict[str, Callable[[], None]] = {
        "failed": fail,
        "cancelled": lambda: bench.scheduler.queue.cancel(job, Cancelled("gone")),
        "interrupted": lambda: bench.engine.interrupt(True),
    }
    bench.engine.can_interrupt = True
    bench.engine.on_step = acts[how]
    bench.scheduler.run_once()
    bench.engine.on_step = lambda: None
    bench.admit("y")
    trace = bench.served(tmp_path)
    [calls] = tracks(trace, CALLS).values()
    assert [call["args"].get("ended", "") for call in calls][1] == ("" if how == "cancelled" else how)
    assert summary(trace)["calls"]["step"]["calls"] == {"failed": 5, "cancelled": 5, "interrupted": 9}[how]


def test_the_newest_slices_are_kept_and_take_little(tmp_path: Path) -> None:
    """The module's constant bounds the bytes of a slice."""
    bench = Traced(limit=2_000)
    tracemalloc.start()
    try:
        for number in range(150):
            bench.admit(f"r{number}", nfe=7)
            while bench.scheduler.run_once():
                pass
        # "<string>" is the file of the constructor that dataclass generates.
        own = [tracemalloc.Filter(True, name) for name in (recording.__file__, "<string>")]
        snapshot = tracemalloc.take_snapshot().filter_traces(own)
        took = sum(one.size for one in snapshot.statistics("filename"))
        assert took < 500 * 2_000
    finally:
        tracemalloc.stop()
    trace = bench.trace(tmp_path)
    check_format(trace)
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 2_000 and slices[-1]["args"]["request"] == "r149"
    assert summary(trace)["dropped"] > 100 and summary(trace)["cut"] <= 1


def test_chat_on_a_simulated_device_that_batches(tmp_path: Path) -> None:
    """The fake engine counts its calls and seconds itself."""
    recorder = Recorder(lambda: 0.0)
    world = Bench(LAUNCH_BOUND, noise=0.1, observer=recorder)
    messages = chat(20.0, 2.0, LAUNCH_BOUND)
    for message in messages[::7]:
        message.cancel_after_s = 0.3
    world.run(messages)
    path = tmp_path / "trace.json"
    recorder.write(path)
    trace = read(path)
    check_consistent(trace)
    sums = summary(trace)
    steps = world.engine.calls.count("step")
    assert sums["calls"]["step"]["calls"] == steps
    assert sums["lane_steps"] == world.engine.lane_steps > steps
    assert sum(one["s"] for one in sums["calls"].values()) == pytest.approx(world.engine.busy_s, rel=1e-6)
    assert sum(sums["refused"].values()) == sum(bool(m.refused) for m in messages) > 0
    assert len(sums["requests"]) == sum(not m.refused for m in messages)
    assert sums["waits_s"]["batch"] > 0.0 and sums["dropped"] == sums["cut"] == 0


TEXT = "Thanks for the follow, and welcome to the stream. It is a long one today, so get some water first. "


def test_a_daemons_trace_is_what_clients_received(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, replies = tmp_path / "trace.json", dict[str, Reply]()
    config = write_config(tmp_path)
    program = start("-m", "appliance", "serve", "--config", config, "--trace", out)
    daemon = Running(program, yaml.safe_load(config.read_text()), tmp_path)
    with followed(daemon), Client(daemon.address) as client:
        daemon.add_voice()

        def speak(name: str, **options: Any) -> None:
            stream = client.stream(TEXT, "ann", request_id=name, encoding="pcm16", **options)
            replies[name] = stream.reply()

        client.pause("music")
        paused = iter(client.stream(TEXT, "ann", request_id="paused", channel="music", nfe=2))
        assert isinstance(next(paused), Header)
        threads = [
            threading.Thread(target=speak, args=("a",), kwargs={"nfe": 3}),
            threading.Thread(target=speak, args=("b",), kwargs={"nfe": 5, "queue_timeout": 30.0}),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.resume("music")
        *_, last = paused
        assert isinstance(last, End)
        with pytest.raises(CallFailed):
            client.speak(TEXT, "nobody")
        assert daemon.stop() == 0
    assert cli.main(["bench", "trace", str(out), "--json", str(tmp_path / "summary.json")]) == 0
    assert "3 admitted" in capsys.readouterr().out
    trace = read(out)
    check_consistent(trace)
    whole = json.loads((tmp_path / "summary.json").read_text())
    assert whole == summary(trace)
    rows = {one["request"]: one for one in whole["requests"]}
    timings = {"paused": last.timings, **{name: reply.timings for name, reply in replies.items()}}
    assert rows.keys() == timings.keys() == {"a", "b", "paused"}
    for name, timing in timings.items():
        row = rows[name]
        assert row["steps"] == timing.nfe_steps * timing.segments
        work = [row["work_s"][kind] * 1e3 for kind in ("open", "step", "finish")]
        assert work == pytest.approx([timing.condition_ms, timing.steps_ms, timing.vocoder_ms], abs=0.01)
        assert row["work_s"].keys() == {"open", "step", "finish"}
    assert all(rows[name]["wall_s"] <= reply.wall_s for name, reply in replies.items())
    assert 0.0 < rows["paused"]["waits_s"]["paused"] < rows["paused"]["wall_s"]
    assert trace["otherData"]["backend"] == "ort-cpu"


def test_invalid_traces_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "OTHER.json").write_text('{"traceEvents": []}')
    Traced().recorder.write(tmp_path / "EMPTY.json")
    for name, message in (
        ("NONE.json", "NONE.json: No such file"),
        ("OTHER.json", "not a trace that `appliance serve --trace` wrote"),
        ("EMPTY.json", "that daemon got no request"),
    ):
        assert cli.main(["bench", "trace", str(tmp_path / name)]) == 1
        assert message in capsys.readouterr().err


def test_the_readme_lists_every_reason() -> None:
    page = (Path(cli.__file__).parents[1] / "bench" / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE))
    assert rows == REASONS

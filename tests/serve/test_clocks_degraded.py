"""Clocks that are not pinned: the daemon still speaks, and reports them in health, metrics, trailers and
log."""

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from appliance.box.clocks import clocks_json, pinning
from appliance.box.clocks.clocks_json import Clocks, Unpin
from appliance.box.paths import CLOCKS
from appliance.box.root import Root
from appliance.box.system import Box
from appliance.serve.clockwatch import STATES, ClockWatch
from tests.fakes.jetson.board import Jetson
from tests.harness.boxes import quick
from tests.harness.daemons import Running, request, running
from tests.harness.patience import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.once]

LAST = Unpin(at=60.0, what=("gpu", "cpu0"), who=("nvpmodel.service ran again",))
UNPINNED = Clocks("unpinned", why="gpu: min 306000000 is under 1300500000", repins=1, last_unpin=LAST)


@pytest.fixture
def jetson(tmp_path: Path) -> Jetson:
    return Jetson(tmp_path, "jp6-0005")


def watch(box: Box) -> ClockWatch:
    return ClockWatch(box, CLOCKS)


@pytest.mark.parametrize(("state", "degraded"), [
    ("pinned", ""),
    ("unpinned", "clocks-unpinned"),
    ("reboot_pending", "clocks-reboot-pending"),
    ("unsupported", "clocks-unknown"),
])  # fmt: skip
def test_a_published_state_on_a_jetson(jetson: Jetson, state: clocks_json.State, degraded: str) -> None:
    clocks_json.publish(jetson.box(), Clocks(state, why="told by root"))
    status = watch(jetson.box()).status
    assert (status.clocks.state, status.degraded) == (state, degraded)
    assert ("told by root" in status.message) == bool(degraded)


@pytest.mark.parametrize("text", ["", "{", '{"schema": 1}', '{"schema": 2, "state": "pinned"}'])
def test_no_file_or_a_damaged_one_is_not_knowing(jetson: Jetson, text: str) -> None:
    if text:
        jetson.box().root.replace(CLOCKS, text)
    status = watch(jetson.box()).status
    assert (status.clocks.state, status.degraded) == ("unknown", "clocks-unknown")
    assert text or "f5-clocks.service" in status.message


def test_a_file_that_is_old_or_from_another_boot_is_not_believed(jetson: Jetson) -> None:
    clocks_json.publish(jetson.box(), Clocks("pinned"))
    now = jetson.box().uptime()
    assert watch(jetson.box(uptime=lambda: now + 59.0)).status.degraded == ""
    assert watch(jetson.box(uptime=lambda: now + 61.0)).status.degraded == "clocks-unknown"
    kept = jetson.read(CLOCKS)
    jetson.boot()
    jetson.box().root.replace(CLOCKS, kept)
    assert watch(jetson.box()).status.degraded == "clocks-unknown"


def test_a_laptop_without_the_file_is_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    status = watch(Box(Root(tmp_path))).status
    assert (status.clocks.state, status.degraded, status.message) == ("unsupported", "", "")
    assert status.clocks.state in STATES
    assert not caplog.records


def test_changes_are_logged_once_with_why_and_who(jetson: Jetson, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seconds = itertools.count(jetson.box().uptime())
    box = jetson.box(uptime=lambda: next(seconds))
    clocks_json.publish(box, Clocks("pinned"))
    clocks = watch(box)
    assert not clocks.refresh() and not caplog.records
    changes = [clocks.refresh() for _ in range(3) if clocks_json.publish(box, UNPINNED)]
    assert changes == [True, False, False], "the time of a check is no change of the clocks"
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    for words in ("clocks are unpinned", "gpu: min 306000000", "cpu0", "nvpmodel.service ran again"):
        assert words in warning.getMessage()
    clocks_json.publish(box, Clocks("pinned", repins=1, last_unpin=UNPINNED.last_unpin))
    clocks.refresh()
    assert (caplog.records[-1].levelno, len(caplog.records)) == (logging.INFO, 2)


def test_a_repin_between_two_looks_is_logged_too(jetson: Jetson, caplog: pytest.LogCaptureFixture) -> None:
    box = jetson.box()
    clocks = watch(box)
    # The first repin is older than the watch's memory; a new mode is no repin.
    for mode, repins in (("", 1), ("", 2), ("MAXN", 2)):
        clocks_json.publish(box, Clocks("pinned", mode=mode, repins=repins, last_unpin=UNPINNED.last_unpin))
        assert clocks.refresh()
    (warning,) = [text for text in caplog.messages if "pinned again" in text]
    assert "nvpmodel.service ran again" in warning


@dataclass
class Seen:
    """A daemon on a box that is a fake Jetson."""

    jetson: Jetson
    daemon: Running

    def health(self, name: str) -> str:
        with self.daemon.channel() as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            reply = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE_S)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))

    def metric(self, name: str) -> float:
        page = self.daemon.http("/metrics")[1]
        (line,) = [line for line in page.splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[-1])

    def trailers(self) -> tuple[str | None, str | None]:
        """Trailer x-degraded of a call and of a stream."""
        with self.daemon.channel() as channel:
            stub = self.daemon.synthesizer(channel)
            audio, unary = stub.Synthesize.with_call(request(), timeout=PATIENCE_S)
            assert audio.audio
            stream = stub.StreamSynthesize(request(), timeout=PATIENCE_S)
            list(stream)
            return degraded_of(unary), degraded_of(stream)

    def await_state(self, state: str) -> None:
        self.await_true(lambda: self.metric(f'f5_clocks_state{{state="{state}"}}') == 1.0)

    def await_true(self, true: Callable[[], bool]) -> None:
        until(true, lambda: self.daemon.log)


def degraded_of(call: grpc.Call) -> str | None:
    values = [str(value) for key, value in call.trailing_metadata() or () if key == "x-degraded"]
    assert len(values) <= 1
    return values[0] if values else None


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    jetson = Jetson(tmp_path_factory.mktemp("box"), "jp7-0005")
    folder = tmp_path_factory.mktemp("daemon")
    with running(folder, device={"sysroot": str(jetson.root)}) as daemon:
        daemon.add_voice()
        yield Seen(jetson, daemon)


def test_states_as_they_are_published(seen: Seen) -> None:
    box = seen.jetson.box()
    repins = seen.metric("f5_clocks_repins_total")
    for clocks, word in (
        (Clocks("pinned"), None),
        (UNPINNED, "clocks-unpinned"),
        (Clocks("reboot_pending", why="MAXN waits for a reboot", repins=1), "clocks-reboot-pending"),
        (Clocks("pinned", repins=1), None),
    ):
        clocks_json.publish(box, clocks)
        seen.await_state(clocks.state)
        serving = "NOT_SERVING" if word else "SERVING"
        seen.await_true(lambda serving=serving: seen.health("clocks") == serving)  # type: ignore[misc]
        assert seen.trailers() == (word, word)
        assert seen.metric("f5_degraded") == float(word is not None)
        assert sum(seen.metric(f'f5_clocks_state{{state="{state}"}}') for state in STATES) == 1.0
        for name in ("", "appliance.v1.Synthesizer", "appliance.v1.Voices"):
            assert seen.health(name) == "SERVING", "slower speech is speech"
        assert seen.daemon.http("/readyz")[0] == 200
    assert seen.metric("f5_clocks_repins_total") == repins + 1.0
    assert any("unpinned" in line and "nvpmodel.service ran again" in line for line in seen.daemon.lines)


def test_the_box_unpinned_behind_its_back_and_pinned_again(seen: Seen) -> None:
    """Root's real lock and check share the real file with the daemon."""
    jetson = seen.jetson
    box = quick(jetson, sleep=lambda seconds: None)
    # The daemon reads UNPINNED first, so that `pinned` below comes from this box, with its count of re-pins.
    clocks_json.publish(box, UNPINNED)
    seen.await_state("unpinned")
    if pinning.lock(box, allow_reboot=True).state == "reboot_pending":
        jetson.boot()
    assert pinning.lock(box).state == "pinned"
    seen.await_state("pinned")
    repins = seen.metric("f5_clocks_repins_total")
    assert seen.trailers() == (None, None)
    jetson.unpin()
    assert pinning.check(box).state == "pinned"
    seen.await_true(lambda: seen.metric("f5_clocks_repins_total") > repins)
    assert seen.health("clocks") == "SERVING"
    assert any("clocks were unpinned and have been pinned again" in line for line in seen.daemon.lines)
    pinning.unlock(box)
    seen.await_state("unpinned")
    assert seen.trailers() == ("clocks-unpinned", "clocks-unpinned")

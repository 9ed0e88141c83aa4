"""Times at which the watchdog is fed, on a virtual clock."""

import contextlib
import logging
import socket
from collections.abc import Iterator

import pytest

from appliance.scheduler.loop import IDLE_WAIT_S
from appliance.serve.notify import Notifier
from appliance.serve.supervision import EXTENSION_S, LEAST_SILENCE_S, START_LIMIT_S, Supervision


class Bench:
    """A supervision, its supervisor's socket, and the two figures that it supervises."""

    def __init__(self, watchdog_s: float = 30.0) -> None:
        self.silence_s = 0.0
        self.now = 1000.0
        self.supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.supervisor.bind("")  # Linux finds a free abstract address
        address = f"@{self.supervisor.getsockname()[1:].decode()}"
        notifier = Notifier(address, watchdog_s=watchdog_s)
        self.supervision = Supervision(notifier, lambda: self.silence_s, lambda: self.now)

    def close(self) -> None:
        self.supervisor.close()

    def received(self) -> list[str]:
        """Messages since the last call."""
        messages = []
        with contextlib.suppress(BlockingIOError):
            while True:
                messages.append(self.supervisor.recv(4096).decode())
        return messages


@pytest.fixture
def bench() -> Iterator[Bench]:
    with contextlib.closing(Bench()) as made:
        yield made


def test_the_numbers_that_its_docstring_promises(bench: Bench) -> None:
    """A call of 40 s survives at any phase of the looks; a call of 45 s does not."""
    limit_s, period_s = bench.supervision.limit_s, bench.supervision.period_s
    assert (limit_s, period_s) == (15.0, 2.0)
    for offset_s in (0.0, 0.5, 1.0, 1.5, 1.999):
        fed = offset_s
        while fed + period_s < limit_s:
            fed += period_s
        # The first look after a call of 40 s comes within systemd's 30 s; after 45 s they are over.
        first_after_40_s = next(offset_s + n * period_s for n in range(99) if offset_s + n * period_s >= 40.0)
        assert first_after_40_s < fed + 30.0 <= 45.0


def test_starting_asks_for_time_and_feeds_nothing(bench: Bench) -> None:
    bench.supervision.set_status("loading the bundle")
    bench.supervision.tick("not yet")
    assert bench.received() == ["STATUS=loading the bundle", f"EXTEND_TIMEOUT_USEC={EXTENSION_S:.0f}000000"]
    bench.now += START_LIMIT_S - 1.0
    bench.supervision.set_status("building the engine of step, 1 of 6: Building 1 of 2")
    bench.now += START_LIMIT_S - 1.0
    bench.supervision.tick("not yet")
    assert bench.received()[1:] == [f"EXTEND_TIMEOUT_USEC={EXTENSION_S:.0f}000000"], "it gets on"
    bench.now += START_LIMIT_S
    bench.supervision.tick("not yet")
    assert bench.received() == [], "a start that takes for ever is ended by systemd"


def test_ready_feeds_while_the_heart_beats(bench: Bench) -> None:
    bench.supervision.ready("ready: 0 spoken")
    assert bench.received() == ["READY=1", "STATUS=ready: 0 spoken"]
    bench.silence_s = 14.9
    bench.supervision.tick("ready: 0 spoken")
    bench.supervision.tick("ready: 1 spoken")
    assert bench.received() == ["WATCHDOG=1", "WATCHDOG=1", "STATUS=ready: 1 spoken"]


def test_silence_stops_the_feeding_and_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.supervision.ready("ready")
    bench.received()
    bench.silence_s = 15.0
    assert not bench.supervision.alive()
    bench.supervision.tick("ready")
    bench.supervision.tick("ready")
    (status,) = bench.received()
    assert status == "STATUS=wedged: no heartbeat from the engine for over 15 s"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and "the watchdog is not fed" in record.getMessage()
    bench.silence_s = 0.1
    bench.supervision.tick("ready")
    assert bench.received() == ["WATCHDOG=1", "STATUS=ready"]
    assert "answers again" in caplog.records[-1].getMessage()


def test_an_event_loop_that_hangs_is_not_alive(bench: Bench) -> None:
    bench.supervision.ready("ready")
    bench.now += 14.9
    assert bench.supervision.alive()
    bench.now += 0.1
    assert not bench.supervision.alive()
    bench.supervision.tick("ready")
    assert bench.supervision.alive() and "WATCHDOG=1" in bench.received()


def test_a_drain_is_fed_by_the_same_rule(bench: Bench) -> None:
    bench.supervision.ready("ready")
    bench.supervision.stopping("draining", within_s=35.0)
    assert bench.received()[2:] == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=35000000", "STATUS=draining"]
    bench.supervision.tick("draining")
    assert bench.received() == ["WATCHDOG=1"]
    bench.silence_s = 60.0
    bench.supervision.tick("draining")
    assert "WATCHDOG=1" not in bench.received()


@pytest.mark.parametrize("watchdog_s", [0.0, 0.5, 2.0, 4.0, 30.0, 600.0])
def test_an_idle_engine_is_never_silent_for_too_long(watchdog_s: float) -> None:
    with contextlib.closing(Bench(watchdog_s)) as bench:
        assert bench.supervision.limit_s >= LEAST_SILENCE_S >= 2 * IDLE_WAIT_S
        assert bench.supervision.period_s <= 2.0

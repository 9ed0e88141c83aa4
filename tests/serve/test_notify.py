"""Notifier: datagrams at a real socket, and nothing without one."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.serve.notify import Notifier
from tests.harness.patience import PATIENCE_S


@pytest.fixture(params=["path", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """An address as systemd writes it into the environment, and the socket behind it."""
    abstract = request.param == "abstract"
    address = f"@f5-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{address[1:]}" if abstract else address)
        listening.settimeout(PATIENCE_S)
        yield address, listening


def test_messages_follow_the_protocol(supervisor: tuple[str, socket.socket]) -> None:
    address, listening = supervisor
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address})
    notifier.status("loading\nthe bundle ü")
    notifier.extend(60.0)
    notifier.ready()
    notifier.watchdog()
    notifier.stopping()
    sent = ["STATUS=loading the bundle ü", "EXTEND_TIMEOUT_USEC=60000000"]
    sent += ["READY=1", "WATCHDOG=1", "STOPPING=1"]
    assert [listening.recv(4096).decode() for _ in range(5)] == sent


def test_a_long_status_arrives_cut(supervisor: tuple[str, socket.socket]) -> None:
    address, listening = supervisor
    Notifier(address).status("語" * 10_000)
    data = listening.recv(1 << 20)
    assert len(data) <= 4096
    assert data.decode().startswith("STATUS=語語")


def test_nothing_is_sent_or_logged_without_a_socket(caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier.from_environment({})
    for tell in (notifier.ready, notifier.watchdog, notifier.stopping):
        tell()
    notifier.status("ready")
    assert not caplog.records


def test_a_supervisor_that_is_gone_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(str(tmp_path / "gone"))
    for _ in range(3):
        notifier.watchdog()
    notifier.status("ready")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "WATCHDOG" in record.getMessage() and "No such file" in record.getMessage()


@pytest.mark.parametrize("address", ["/" + "a" * 200, "vsock:2:1"])
def test_an_invalid_address_is_logged_and_not_raised(address: str, caplog: pytest.LogCaptureFixture) -> None:
    Notifier(address).ready()
    assert len(caplog.records) == 1


def test_a_deaf_supervisor_holds_nobody_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        # A single sender may fill its send buffer before the queue: senders are added until a new one cannot
        # send at all.
        with contextlib.ExitStack() as senders:
            sent = 1
            while sent:
                filler = senders.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                filler.setblocking(False)
                sent = 0
                with contextlib.suppress(BlockingIOError):
                    while True:
                        filler.sendto(b"full", address)
                        sent += 1
        Notifier(address).watchdog()
    assert "timed out" in caplog.text


@pytest.mark.parametrize(("environment", "watchdog_s"), [
    ({}, 0.0),
    ({"WATCHDOG_USEC": "30000000"}, 30.0),
    ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
    ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getppid())}, 0.0),
    ({"WATCHDOG_USEC": "soon"}, 0.0),
])  # fmt: skip
def test_the_watchdog_is_ours_or_nobodys(environment: dict[str, str], watchdog_s: float) -> None:
    assert Notifier.from_environment(environment).watchdog_s == watchdog_s

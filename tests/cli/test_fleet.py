"""Two daemons behind Debian's haproxy with configs/haproxy.cfg."""

import contextlib
import csv
import io
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.client import Client, Piece
from tests.harness.daemons import ROOT, Running, finished, free_port, running
from tests.harness.patience import until

pytestmark = [pytest.mark.slow, pytest.mark.once]

CONFIGURATION = ROOT / "configs" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")


@needs_haproxy
def test_haproxy_takes_the_configuration() -> None:
    checked = finished(HAPROXY, "-c", "-f", CONFIGURATION)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr, checked.stderr


def configuration(members: list[Running], port: int, control: Path) -> str:
    """The committed configuration with these addresses."""
    # User, log and socket belong to the service and are removed.
    text = re.sub(r"^    (user|group|log /dev/log).*\n", "", CONFIGURATION.read_text(), flags=re.MULTILINE)
    text = re.sub(r"stats socket \S+", f"stats socket {control}", text)
    text = text.replace("bind :50051 proto", f"bind 127.0.0.1:{port} proto")
    for number, box in enumerate(members, 1):
        ports = {key: box.config["server"][key].rpartition(":")[2] for key in ("metrics", "agent")}
        own = f"{box.address} port {ports['metrics']} agent-port {ports['agent']}"
        text = re.sub(rf"(server box{number}) \S+$", rf"\1 {own}", text, flags=re.MULTILINE)
        text = re.sub(rf"(server box{number}) \S+ track", rf"\1 {box.address} track", text)
    # The boxes of this test share a machine, so that they cannot share one port.
    return text.replace("connect port 9464 proto", "connect proto")


@dataclass(frozen=True)
class Front:
    """A running haproxy."""

    address: str
    control: Path

    def boxes(self, backend: str) -> list[dict[str, str]]:
        """haproxy's statistics of each box."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.control))
            connection.sendall(b"show stat\n")
            with connection.makefile("r") as answer:
                rows = list(csv.DictReader(io.StringIO(answer.read().removeprefix("# "))))
        return [row for row in rows if row["pxname"] == backend and row["svname"].startswith("box")]

    def calls(self, backend: str) -> tuple[int, ...]:
        """Number of calls that haproxy has sent to each box so far."""
        return tuple(int(row["stot"]) for row in self.boxes(backend))

    def are_up(self) -> list[bool]:
        return [row["status"].startswith("UP") for row in self.boxes("by_load")]


@contextlib.contextmanager
def front(members: list[Running], folder: Path) -> Iterator[Front]:
    """Start haproxy, and wait until its checks find all boxes ready."""
    path, proxy = folder / "haproxy.cfg", Front(f"127.0.0.1:{free_port()}", folder / "control.sock")
    path.write_text(configuration(members, int(proxy.address.rpartition(":")[2]), proxy.control))
    with subprocess.Popen([str(HAPROXY), "-db", "-f", path], stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: proxy.control.exists() or process.poll() is not None)
            assert process.poll() is None, process.communicate()[1]
            until(lambda: all(proxy.are_up()))
            yield proxy
        finally:
            process.terminate()


@needs_haproxy
def test_two_boxes_behind_haproxy(tmp_path: Path) -> None:
    """The daemons start once for all checks, since their start takes longest."""
    with contextlib.ExitStack() as stack:
        members = []
        for name in ("box1", "box2"):
            (folder := tmp_path / name).mkdir()
            # The daemons see all calls from haproxy's address.
            server = {"agent": f"127.0.0.1:{free_port()}", "max_calls_of_peer": 256}
            members.append(stack.enter_context(running(folder, server=server)))
            members[-1].add_voice()
        proxy = stack.enter_context(front(members, tmp_path))
        check_channels_stay(proxy)
        check_a_cancelled_call_ends(members, proxy)
        check_a_box_that_is_gone_gets_no_call(members, proxy)


def check_channels_stay(proxy: Front) -> None:
    used = set()
    with Client(proxy.address) as client:
        for channel in (f"stage {number}" for number in range(8)):
            before = proxy.calls("by_channel")
            for _ in range(3):
                client.speak("Hello, chat.", "ann", channel=channel)
            after = proxy.calls("by_channel")
            used.add(tuple(now - then for now, then in zip(after, before, strict=True)))
    assert used == {(3, 0), (0, 3)}


def check_a_cancelled_call_ends(members: list[Running], proxy: Front) -> None:
    """The box counts it as cancelled."""
    with Client(proxy.address) as client:
        for event in client.stream("That was a great round, well played everyone. " * 12, "ann", nfe=16):
            if isinstance(event, Piece):
                break
        counted = 'f5_requests_total{method="StreamSynthesize",status="CANCELLED"} 1.0'
        until(lambda: any(counted in box.http("/metrics")[1] for box in members))


def check_a_box_that_is_gone_gets_no_call(members: list[Running], proxy: Front) -> None:
    members[0].stop(signal.SIGKILL)
    until(lambda: proxy.are_up() == [False, True])
    before, calls = proxy.calls("by_load"), 4
    with Client(proxy.address) as client:
        for _ in range(calls):
            client.speak("Hello, chat.", "ann")
    assert proxy.calls("by_load") == (before[0], before[1] + calls)

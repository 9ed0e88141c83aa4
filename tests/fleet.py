"""Several daemons behind haproxy with the committed configuration: `python -m tests.fleet` shows what it keeps.

Two boxes speak a storm of requests. One is made fuller than the other by speech that does not come through the
front; it is killed in the middle and started again; then the other is drained and started again. Exits with 1
when a request that had not begun to sound was lost, when the fuller box did not get less, when a drain cut a
stream, or when haproxy did not see it all.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.bench.report import aligned
from appliance.client import CallFailed, Client, Header, Piece
from tests.daemons import BUNDLE, PATIENCE_S, ROOT, Running, free_port, reference_wav, running

CONFIGURATION = ROOT / "configs" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
LOOK_S = 0.05
"""Between two looks at haproxy's own numbers."""
RETRIES = 8
TEXTS = (
    "Thanks for the follow, welcome to the stream.",
    "That was a great round, well played everyone.",
    "Hello from the other side of the world.",
)
LONG = " ".join(TEXTS * 2)


# Boxes.


@dataclass
class Box:
    """A daemon that may end and start again at the same addresses."""

    folder: Path
    bundle: Path
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    daemon: Running | None = None
    lives: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        ports = {key: f"127.0.0.1:{free_port()}" for key in ("listen", "metrics", "agent")}
        # All calls come from haproxy's one address.
        self.sections = {"server": ports | {"max_calls_of_peer": 256}, "bundle": {"path": str(self.bundle)}}

    @property
    def address(self) -> str:
        return str(self.sections["server"]["listen"])

    def start(self) -> Running:
        self.lives.close()
        self.daemon = self.lives.enter_context(running(self.folder, **self.sections))
        return self.daemon

    def end(self, number: int) -> int:
        """Send a signal and wait for the end; its exit status."""
        assert self.daemon is not None
        return self.daemon.stop(number)


@contextlib.contextmanager
def boxes(folder: Path, bundle: Path = BUNDLE) -> Iterator[list[Box]]:
    """Two, warm."""
    made = [Box(folder / name, bundle) for name in ("box1", "box2")]
    try:
        for box in made:
            box.start()
        yield made
    finally:
        for box in made:
            box.lives.close()


# haproxy.


def configuration(members: list[Box], port: int, control: Path) -> str:
    """The committed configuration with these addresses instead of its own."""
    text = CONFIGURATION.read_text()
    # Of a service only: its user, and the socket that is the package's.
    text = re.sub(r"^    (user|group|log /dev/log).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"stats socket \S+", f"stats socket {control}", text)
    text = text.replace("bind :50051 proto", f"bind 127.0.0.1:{port} proto")
    for number, box in enumerate(members, 1):
        ports = {key: box.sections["server"][key].rpartition(":")[2] for key in ("metrics", "agent")}
        own = f"{box.address} port {ports['metrics']} agent-port {ports['agent']}"
        text = re.sub(rf"(server box{number}) \S+$", rf"\1 {own}", text, flags=re.MULTILINE)
        text = re.sub(rf"(server box{number}) \S+ track", rf"\1 {box.address} track", text)
    # One port for all boxes, which here share a machine.
    return text.replace("connect port 9464 proto", "connect proto")


@dataclass
class Seen:
    """What haproxy said of a server at one time."""

    at: float
    status: str
    weight: int
    calls: int
    """Since it started."""


@dataclass
class Front:
    """A running haproxy."""

    address: str
    control: Path
    seen: dict[str, list[Seen]] = field(default_factory=dict)
    """By backend/server, oldest first."""

    def ask(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.control))
            connection.sendall(f"{command}\n".encode())
            with connection.makefile("r") as answer:
                return answer.read()

    def look(self) -> None:
        """Add what it says now to `seen`."""
        rows = csv.DictReader(io.StringIO(self.ask("show stat").removeprefix("# ")))
        now = time.monotonic()
        for row in rows:
            if row["svname"] not in ("FRONTEND", "BACKEND"):
                seen = Seen(now, row["status"], int(row["weight"]), int(row["stot"]))
                self.seen.setdefault(f"{row['pxname']}/{row['svname']}", []).append(seen)

    def until(self, server: str, state: Callable[[Seen], bool], since: float) -> float:
        """Wait until a server is in a state; returns the seconds from `since`."""
        end = time.monotonic() + PATIENCE_S
        while True:
            self.look()
            last = self.seen[server][-1]
            if state(last):
                return last.at - since
            assert time.monotonic() < end, f"{server} stays {last.status}"
            time.sleep(LOOK_S)


@contextlib.contextmanager
def front(members: list[Box], folder: Path) -> Iterator[Front]:
    """Start haproxy and wait until it has seen all boxes ready."""
    assert HAPROXY is not None
    path, control, port = folder / "haproxy.cfg", folder / "control.sock", free_port()
    path.write_text(configuration(members, port, control))
    begun = time.monotonic()
    process = subprocess.Popen([HAPROXY, "-db", "-f", str(path)], stderr=subprocess.PIPE, text=True)
    try:
        end = begun + PATIENCE_S
        while not control.exists():
            assert process.poll() is None and time.monotonic() < end, process.communicate()[1]
            time.sleep(LOOK_S)
        made = Front(f"127.0.0.1:{port}", control)
        for number in range(1, len(members) + 1):
            made.until(f"by_load/box{number}", lambda seen: seen.status == "UP", begun)
        yield made
    finally:
        process.terminate()
        process.communicate()

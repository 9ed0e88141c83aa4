"""Two daemons behind haproxy with the committed configuration: `python -m tests.fleet` shows what that keeps.

They speak a storm of requests. One is made fuller than the other by speech that does not come through the
front; it is killed in the middle and started again; then the other is drained and started again. Exits with 1
when a request that had not begun to sound was lost, when the fuller box did not get less, when a drain cut a
stream, or when a box that came back got nothing.
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

from appliance import cli
from appliance.bench.output import aligned
from appliance.client import CallFailed, Client, Piece
from tests.daemons import BUNDLE, PATIENCE_S, ROOT, Running, free_port, running

CONFIGURATION = ROOT / "configs" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
LOOK_S = 0.05
"""Between two looks at haproxy's own numbers."""
RETRIES = 12
TEXTS = (
    "Thanks for the follow, welcome to the stream.",
    "That was a great round, well played everyone.",
    "Hello from the other side of the world.",
)
LONG = " ".join(TEXTS)
NFE = 3
"""Fewer steps than one would listen to: who gets a request is the same."""


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
        self.sections = {"server": ports | {"max_calls_of_peer": 256}}

    @property
    def address(self) -> str:
        return str(self.sections["server"]["listen"])

    def start(self) -> Running:
        self.lives.close()
        life = running(self.folder, speaks_from=self.bundle, **self.sections)
        self.daemon = self.lives.enter_context(life)
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


def configuration(members: list[Box], port: int, control: Path, balance: str = "") -> str:
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
    if balance:
        text = re.sub(r"balance (?!hdr).*", f"balance {balance}", text)
    # One port for all boxes, which here share a machine.
    return text.replace("connect port 9464 proto", "connect proto")


@dataclass
class Seen:
    """What haproxy said of a server at one time."""

    at: float
    status: str
    weight: int
    calls: int
    """Given to it since haproxy started."""
    now: int
    """Under way."""


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
                seen = Seen(now, row["status"], int(row["weight"]), int(row["stot"]), int(row["scur"]))
                self.seen.setdefault(f"{row['pxname']}/{row['svname']}", []).append(seen)

    def calls(self, backend: str = "by_load") -> list[int]:
        """Given to each box so far."""
        self.look()
        return [seen[-1].calls for server, seen in sorted(self.seen.items()) if server.startswith(backend)]

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
def front(members: list[Box], folder: Path, balance: str = "") -> Iterator[Front]:
    """Start haproxy and wait until it has seen all boxes ready."""
    assert HAPROXY is not None
    path, control, port = folder / "haproxy.cfg", folder / "control.sock", free_port()
    path.write_text(configuration(members, port, control, balance))
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


# The storm.


@dataclass
class Outcome:
    """What became of one request."""

    sounded: bool = False
    tries: int = 0
    ended: float = 0.0
    error: CallFailed | None = None


class Storm:
    """Requests through the front at a steady rate, until it is stopped; each fifth is longer."""

    def __init__(self, address: str, voice: str, rate_hz: float) -> None:
        self.outcomes: list[Outcome] = []
        self._address, self._voice, self._rate_hz = address, voice, rate_hz
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def until_more(self, requests: int) -> None:
        """Wait until so many more have been sent."""
        wanted = len(self.outcomes) + requests
        while len(self.outcomes) < wanted:
            assert self._thread.is_alive()
            time.sleep(LOOK_S)

    def until_long_ones_sound(self, requests: int) -> None:
        """Send so many that take long, and wait until they have begun to sound."""
        sent = [Outcome() for _ in range(requests)]
        for outcome in sent:
            self._send(" ".join([LONG] * 4), outcome)
        while not all(outcome.sounded or outcome.error for outcome in sent):
            time.sleep(LOOK_S)

    def _run(self) -> None:
        with Client(self._address, retries=RETRIES) as self._client, ThreadPoolExecutor(64) as self._pool:
            due = time.monotonic()
            while not self._stop.wait(max(due - time.monotonic(), 0.0)):
                due += 1 / self._rate_hz
                number = len(self.outcomes)
                self._send(LONG if number % 5 == 4 else TEXTS[number % len(TEXTS)], Outcome())

    def _send(self, text: str, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._pool.submit(self._speak, text, outcome)

    def _speak(self, text: str, outcome: Outcome) -> None:
        stream = self._client.stream(
            text, self._voice, playout="overlap", nfe=NFE, queue_timeout=30.0, timeout=60.0
        )
        try:
            for event in stream:
                outcome.sounded = outcome.sounded or isinstance(event, Piece)
        except CallFailed as error:
            outcome.error = error
        outcome.tries, outcome.ended = stream._attempts.tried, time.monotonic()


@contextlib.contextmanager
def filled(box: Box, voice: str, weight: int) -> Iterator[None]:
    """Keep a box so busy with BULK speech of its own that its agent says at most this weight."""
    stop = threading.Event()
    host, port = str(box.sections["server"]["agent"]).split(":")

    def said() -> int:
        with socket.create_connection((host, int(port))) as connection, connection.makefile() as answer:
            found = re.search(r"(\d+)%", answer.read())
            return int(found[1]) if found else 0

    def speak(client: Client) -> None:
        with contextlib.suppress(CallFailed, ValueError):  # the client was closed
            client.stream(LONG, voice, priority="bulk", nfe=16).reply()

    def fill() -> None:
        # The client ends first, and with it what the pool waits for.
        with ThreadPoolExecutor(60) as pool, Client(f"unix:{box.folder / 'grpc.sock'}") as client:
            tasks: list[Any] = []
            while not stop.wait(LOOK_S):
                if said() > weight and sum(not task.done() for task in tasks) < 60:
                    tasks.append(pool.submit(speak, client))
            for task in tasks:
                task.cancel()

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def share(calls: list[int], before: list[int]) -> float:
    """Of the first box in the calls that were given out since."""
    first, second = (now - then for now, then in zip(calls, before, strict=True))
    return first / max(first + second, 1)


def add_voice(box: Box, bundle: Path) -> str:
    """Store a voice that suits the bundle; its name."""
    assert box.daemon is not None
    if bundle == BUNDLE:
        return str(box.daemon.add_voice().name)
    recording = bundle.parent / "voices" / "slt.wav"
    with Client(box.address) as client:
        client.add_voice("slt", recording.read_bytes(), recording.with_suffix(".txt").read_text().strip())
    return "slt"


def rate_of(address: str, voice: str, load: float) -> float:
    """Requests a second that keep one box this busy, within what a demonstration has time for."""
    with Client(address, retries=RETRIES) as client:
        for text in TEXTS:
            client.stream(text, voice, nfe=NFE).reply()
        begun = time.monotonic()
        for text in (*TEXTS, TEXTS[0], LONG):
            client.stream(text, voice, nfe=NFE).reply()
        return min(max(load * 5 / (time.monotonic() - begun), 1.5), 10.0)


@dataclass
class Shown:
    """What the storm showed."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Claims that do not hold."""

    def add(self, name: str, value: str, holds: bool = True) -> None:
        self.rows.append((name, value if holds else f"{value}  <-- NOT AS CLAIMED"))
        if not holds:
            self.broken.append(name)
        print(f"  {name}: {self.rows[-1][1]}", flush=True)


def show(members: list[Box], proxy: Front, bundle: Path, requests: int) -> Shown:
    """Play the storm: `requests` in each of its seven stretches."""
    shown = Shown()
    first, second = members
    voice = add_voice(first, bundle)
    synced = cli.main(["voices", "sync", second.address, "--folder", str(first.folder / "voices")])
    shown.add("voices sync", f"exit status {synced}", synced == 0)
    rate_hz = rate_of(proxy.address, voice, 0.5)
    shown.add("rate of requests", f"{rate_hz:.1f}/s")
    with Storm(proxy.address, voice, rate_hz) as storm:
        before = proxy.calls()
        storm.until_more(requests)
        shown.add("calls to box1, both idle", f"{share(proxy.calls(), before):.0%}")
        with filled(first, voice, 25):
            proxy.until("by_load/box1", lambda seen: seen.weight <= 40, time.monotonic())
            before, since = proxy.calls(), len(proxy.seen["by_load/box1"])
            storm.until_more(2 * requests)
            part = share(proxy.calls(), before)
            weights = [seen.weight for seen in proxy.seen["by_load/box1"][since:]]
            others = [seen.weight for seen in proxy.seen["by_load/box2"][since:]]
            mean = [sum(known) / len(known) for known in (weights, others)]
            told = f"{part:.0%}, at weight {mean[0]:.0f} against {mean[1]:.0f}"
            shown.add("calls to box1, fuller", told, part < 0.45)
        storm.until_long_ones_sound(4)
        killed = time.monotonic()
        first.end(signal.SIGKILL)
        took_s = proxy.until("by_load/box1", lambda seen: not seen.status.startswith("UP"), killed)
        shown.add("box1 killed: seen after", f"{took_s:.2f} s")
        before = proxy.calls()
        storm.until_more(requests)
        shown.add(
            "calls to box1, dead",
            f"{share(proxy.calls(), before):.0%}",
            share(proxy.calls(), before) == 0,
        )
        first.start()
        back = time.monotonic()
        took_s = proxy.until("by_load/box1", lambda seen: seen.status.startswith("UP"), back)
        shown.add("box1 ready again: seen after", f"{took_s:.2f} s")
        before = proxy.calls()
        storm.until_more(requests)
        shown.add(
            "calls to box1, back", f"{share(proxy.calls(), before):.0%}", share(proxy.calls(), before) > 0
        )
        drained = time.monotonic()
        status = second.end(signal.SIGTERM)
        shown.add(
            "box2 drained: exit status", f"{status} after {time.monotonic() - drained:.2f} s", status == 0
        )
        storm.until_more(requests)
        second.start()
        back = time.monotonic()
        took_s = proxy.until("by_load/box2", lambda seen: seen.status == "UP", back)
        shown.add("box2 ready again: seen after", f"{took_s:.2f} s")
        before = proxy.calls()
        storm.until_more(requests)
        part = 1 - share(proxy.calls(), before)
        shown.add("calls to box2, back", f"{part:.0%}", part > 0)
    outcomes = storm.outcomes
    lost = [o for o in outcomes if o.error and not o.sounded]
    cut = [o for o in outcomes if o.error and o.sounded]
    by_kill = [o for o in cut if killed <= o.ended < killed + 5.0]
    shown.add("requests", f"{len(outcomes)}, {sum(o.tries > 1 for o in outcomes)} of them tried again")
    shown.add("lost before their first sound", f"{len(lost)} {[str(o.error) for o in lost[:3]]}", not lost)
    shown.add("cut by the kill", f"{len(by_kill)} {sorted({o.error.status for o in by_kill if o.error})}")
    shown.add("cut otherwise", str(len(cut) - len(by_kill)), len(cut) == len(by_kill))
    return shown


def main() -> int:
    """Show it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="fleet-demo", description=__doc__)
    parser.add_argument("--bundle", type=Path, default=ROOT / "appliance" / "demo" / "bundle")
    parser.add_argument("--requests", type=int, default=4, help="in each of seven stretches (%(default)s)")
    parser.add_argument("--balance", default="", help="instead of the configuration's, to compare")
    options = parser.parse_args()
    if HAPROXY is None:
        print("haproxy is missing: apt-get install haproxy", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory() as folder,
        boxes(Path(folder), options.bundle) as members,
        front(members, Path(folder), options.balance) as proxy,
    ):
        shown = show(members, proxy, options.bundle, options.requests)
    print(aligned(shown.rows))
    for claim in shown.broken:
        print(f"not as claimed: {claim}", file=sys.stderr)
    return 1 if shown.broken else 0


if __name__ == "__main__":
    sys.exit(main())

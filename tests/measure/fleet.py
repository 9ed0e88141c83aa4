"""Two daemons behind haproxy with the committed configuration: `python -m tests.measure.fleet`.

They serve a storm of requests. One has more to do than the other, from requests that bypass haproxy; it is
killed in the middle and started again; then the other is drained and started again. Exits with 1 if a
request was lost before its first audio, if the busier box did not get fewer requests, if a drain cut a
stream, or if a restarted box got no requests.
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
from appliance.engine.cases import FEMALE
from tests.harness.daemons import BUNDLE, ROOT, Running, free_port, running
from tests.harness.patience import PATIENCE_S, scaled, until

CONFIGURATION = ROOT / "configs" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
POLL_S = 0.05
"""Time between two readings of haproxy's statistics."""
RETRIES = 12
TEXTS = (
    "Thanks for the follow, welcome to the stream.",
    "That was a great round, well played everyone.",
    "Hello from the other side of the world.",
)
LONG = " ".join(TEXTS)
NFE = 4
"""Few steps, which a student of four takes too; the balance does not depend on them."""


@dataclass
class Box:
    """A daemon that can be ended and started again at the same addresses."""

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

    def running(self) -> Running:
        assert self.daemon is not None
        return self.daemon


@contextlib.contextmanager
def boxes(folder: Path, bundle: Path = BUNDLE) -> Iterator[list[Box]]:
    """Two running boxes."""
    members = [Box(folder / name, bundle) for name in ("box1", "box2")]
    with members[0].lives, members[1].lives:
        for box in members:
            box.start()
        yield members


def configuration(members: list[Box], port: int, control: Path, balance: str = "") -> str:
    """The committed configuration with these addresses."""
    text = CONFIGURATION.read_text()
    # User, log and socket are those of the service.
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
class ServerState:
    """haproxy's statistics of a server at one time; `calls` given to it since haproxy started."""

    at: float
    status: str
    weight: int
    calls: int

    @property
    def is_up(self) -> bool:
        return self.status.startswith("UP")


@dataclass
class Front:
    """A running haproxy."""

    address: str
    control: Path
    states: dict[str, list[ServerState]] = field(default_factory=dict)
    """States by backend/server, oldest first."""

    def ask(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.control))
            connection.sendall(f"{command}\n".encode())
            with connection.makefile("r") as answer:
                return answer.read()

    def poll(self) -> None:
        """Add the current statistics to `states`."""
        rows = csv.DictReader(io.StringIO(self.ask("show stat").removeprefix("# ")))
        now = time.monotonic()
        for row in rows:
            if row["svname"] not in ("FRONTEND", "BACKEND"):
                state = ServerState(now, row["status"], int(row["weight"]), int(row["stot"]))
                self.states.setdefault(f"{row['pxname']}/{row['svname']}", []).append(state)

    def calls(self, backend: str = "by_load") -> list[int]:
        """Calls given to each box so far."""
        self.poll()
        servers = [states for name, states in sorted(self.states.items()) if name.startswith(backend)]
        return [states[-1].calls for states in servers]

    def until(self, server: str, condition: Callable[[ServerState], bool], since: float) -> float:
        """Wait until a server's state fulfils a condition; returns the seconds from `since`."""

        def is_so() -> bool:
            self.poll()
            return condition(self.states[server][-1])

        until(is_so, lambda: f"{server} stays {self.states[server][-1].status}")
        return self.states[server][-1].at - since


@contextlib.contextmanager
def front(members: list[Box], folder: Path, balance: str = "") -> Iterator[Front]:
    """Start haproxy and wait until its checks find all boxes ready."""
    assert HAPROXY is not None
    path, control, port = folder / "haproxy.cfg", folder / "control.sock", free_port()
    path.write_text(configuration(members, port, control, balance))
    begun = time.monotonic()
    process = subprocess.Popen([HAPROXY, "-db", "-f", str(path)], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: control.exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()[1]
        proxy = Front(f"127.0.0.1:{port}", control)
        for number in range(1, len(members) + 1):
            proxy.until(f"by_load/box{number}", lambda state: state.status == "UP", begun)
        yield proxy
    finally:
        process.terminate()
        process.communicate()


@dataclass
class Outcome:
    """Outcome of one request."""

    has_audio: bool = False
    ended: float = 0.0
    error: CallFailed | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    """Set at the first audio or a failure."""


class Storm:
    """Requests through haproxy at a steady rate until the exit; every fifth is longer."""

    def __init__(self, address: str, voice: str, rate_hz: float) -> None:
        self.outcomes: list[Outcome] = []
        self._address, self._voice, self._rate_hz = address, voice, rate_hz
        self._stop = threading.Event()
        self._sent = threading.Condition()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def until_more(self, requests: int) -> None:
        """Wait until so many more have been sent."""
        total = len(self.outcomes) + requests
        with self._sent:
            assert self._sent.wait_for(lambda: len(self.outcomes) >= total, PATIENCE_S), "no request is sent"

    def begin_long(self, requests: int) -> None:
        """Send so many long requests, and wait until they have audio."""
        sent = [Outcome() for _ in range(requests)]
        for outcome in sent:
            self._send(" ".join([LONG] * 4), outcome)
        for outcome in sent:
            assert outcome.begun.wait(PATIENCE_S), "a long request has no audio"

    def _run(self) -> None:
        with Client(self._address, retries=RETRIES) as self._client, ThreadPoolExecutor(64) as self._pool:
            due = time.monotonic()
            while not self._stop.wait(max(due - time.monotonic(), 0.0)):
                due += 1 / self._rate_hz
                number = len(self.outcomes)
                self._send(LONG if number % 5 == 4 else TEXTS[number % len(TEXTS)], Outcome())

    def _send(self, text: str, outcome: Outcome) -> None:
        with self._sent:
            self.outcomes.append(outcome)
            self._sent.notify_all()
        self._pool.submit(self._speak, text, outcome)

    def _speak(self, text: str, outcome: Outcome) -> None:
        stream = self._client.stream(
            text, self._voice, playout="overlap", nfe=NFE, queue_timeout=scaled(30.0), timeout=PATIENCE_S
        )
        try:
            for event in stream:
                if isinstance(event, Piece):
                    outcome.has_audio = True
                    outcome.begun.set()
        except CallFailed as error:
            outcome.error = error
        outcome.ended = time.monotonic()
        outcome.begun.set()


@contextlib.contextmanager
def loaded(box: Box, voice: str, weight: int) -> Iterator[None]:
    """Load a box with bulk requests of its own until its agent reports at most this weight."""
    stop = threading.Event()
    host, port = str(box.sections["server"]["agent"]).split(":")

    def weight_now() -> int:
        with socket.create_connection((host, int(port))) as connection, connection.makefile() as answer:
            found = re.search(r"(\d+)%", answer.read())
            return int(found[1]) if found else 0

    def speak(client: Client) -> None:
        with contextlib.suppress(CallFailed, ValueError):  # the client was closed
            client.stream(LONG, voice, priority="bulk").reply()

    def load() -> None:
        # The client closes first, which ends the calls that the pool waits for.
        with ThreadPoolExecutor(60) as pool, Client(f"unix:{box.folder / 'grpc.sock'}") as client:
            tasks: list[Any] = []
            while not stop.wait(POLL_S):
                if weight_now() > weight and sum(not task.done() for task in tasks) < 60:
                    tasks.append(pool.submit(speak, client))
            for task in tasks:
                task.cancel()

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def share(calls: list[int], before: list[int]) -> float:
    """Share of the first box in the calls since `before`."""
    first, second = (now - then for now, then in zip(calls, before, strict=True))
    return first / max(first + second, 1)


def add_voice(box: Box, bundle: Path) -> str:
    """Store a voice for the bundle; returns its name."""
    if bundle == BUNDLE:
        return str(box.running().add_voice().name)
    recording = bundle.parent / "voices" / f"{FEMALE}.wav"
    with Client(box.address) as client:
        client.add_voice(FEMALE, recording.read_bytes(), recording.with_suffix(".txt").read_text().strip())
    return FEMALE


def rate_of(address: str, voice: str, load: float) -> float:
    """Requests a second that keep one box busy for this share of the time, from 1.5 to 10."""
    with Client(address, retries=RETRIES) as client:
        for text in TEXTS:
            client.stream(text, voice, nfe=NFE).reply()
        begun = time.monotonic()
        for text in (*TEXTS, TEXTS[0], LONG):
            client.stream(text, voice, nfe=NFE).reply()
        return min(max(load * 5 / (time.monotonic() - begun), 1.5), 10.0)


@dataclass
class Report:
    """Figures of the storm, and the claims that do not hold."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def add(self, name: str, value: str, holds: bool = True) -> None:
        self.rows.append((name, value if holds else f"{value}  <-- NOT AS CLAIMED"))
        if not holds:
            self.broken.append(name)
        print(f"  {name}: {self.rows[-1][1]}", flush=True)


def demonstrate(members: list[Box], proxy: Front, bundle: Path, requests: int) -> Report:
    """Run the storm, with `requests` in each of its seven stretches."""
    report = Report()
    first, second = members
    voice = add_voice(first, bundle)
    synced = cli.main(["voices", "sync", second.address, "--folder", str(first.folder / "voices")])
    report.add("voices sync", f"exit status {synced}", synced == 0)
    rate_hz = rate_of(proxy.address, voice, 0.5)
    report.add("rate of requests", f"{rate_hz:.1f}/s")
    begun = sum(proxy.calls())
    with Storm(proxy.address, voice, rate_hz) as storm:

        def part(stretches: int = 1) -> float:
            before = proxy.calls()
            storm.until_more(stretches * requests)
            return share(proxy.calls(), before)

        def seen(name: str, server: str, is_up: bool) -> None:
            took_s = proxy.until(server, lambda state: state.is_up is is_up, time.monotonic())
            report.add(f"{name}: seen after", f"{took_s:.2f} s")

        report.add("calls to box1, both idle", f"{part():.0%}")
        with loaded(first, voice, 25):
            proxy.until("by_load/box1", lambda state: state.weight <= 40, time.monotonic())
            since = len(proxy.states["by_load/box1"])
            fuller = part(2)
            means = []
            for name in ("by_load/box1", "by_load/box2"):
                weights = [state.weight for state in proxy.states[name][since:]]
                means.append(sum(weights) / len(weights))
            value = f"{fuller:.0%}, at weight {means[0]:.0f} against {means[1]:.0f}"
            report.add("calls to box1, fuller", value, fuller < 0.45)
        storm.begin_long(4)
        killed = time.monotonic()
        first.running().stop(signal.SIGKILL)
        seen("box1 killed", "by_load/box1", is_up=False)
        dead = part()
        report.add("calls to box1, dead", f"{dead:.0%}", dead == 0)
        first.start()
        seen("box1 ready again", "by_load/box1", is_up=True)
        back = part()
        report.add("calls to box1, back", f"{back:.0%}", back > 0)
        drained = time.monotonic()
        status = second.running().stop()
        took = f"{status} after {time.monotonic() - drained:.2f} s"
        report.add("box2 drained: exit status", took, status == 0)
        storm.until_more(requests)
        second.start()
        seen("box2 ready again", "by_load/box2", is_up=True)
        back = 1 - part()
        report.add("calls to box2, back", f"{back:.0%}", back > 0)
    outcomes = storm.outcomes
    lost = [o for o in outcomes if o.error and not o.has_audio]
    cut = [o for o in outcomes if o.error and o.has_audio]
    by_kill = [o for o in cut if killed <= o.ended < killed + 5.0]
    report.add("requests", f"{len(outcomes)}, in {sum(proxy.calls()) - begun} calls")
    report.add("lost before their first sound", f"{len(lost)} {[str(o.error) for o in lost[:3]]}", not lost)
    report.add("cut by the kill", f"{len(by_kill)} {sorted({o.error.status for o in by_kill if o.error})}")
    report.add("cut otherwise", str(len(cut) - len(by_kill)), len(cut) == len(by_kill))
    return report


def main() -> int:
    """Run the demonstration; returns the exit status."""
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
        report = demonstrate(members, proxy, options.bundle, options.requests)
    print(aligned(report.rows))
    for claim in report.broken:
        print(f"not as claimed: {claim}", file=sys.stderr)
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())

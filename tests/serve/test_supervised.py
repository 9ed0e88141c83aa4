"""The daemon under a supervisor that speaks systemd's notify protocol over a real socket."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from appliance.box.checks import readiness
from appliance.serve.daemon import Exit
from tests.fakes.jetson.board import Jetson
from tests.harness.daemons import BUNDLE, Running, finished, followed, request, start, write_config
from tests.harness.patience import PATIENCE_S, scaled, until

pytestmark = [pytest.mark.slow, pytest.mark.once]

WATCHDOG_S = scaled(6.0)
PERIOD_S = WATCHDOG_S / 10
"""Time between two messages to the watchdog."""
LONG = ("Thanks for the follow, welcome to the stream. " * 12).strip()


@dataclass
class Supervised(Running):
    """A daemon, and its messages to the supervisor with their times."""

    received: list[tuple[float, str]] = field(default_factory=list)

    def messages(self, kind: str, since: float = 0.0) -> list[str]:
        texts = (text.partition("=") for at, text in self.received if at >= since)
        return [value for name, _, value in texts if name == kind]

    def await_true(self, true: Callable[[], bool]) -> None:
        until(true, lambda: f"{self.received}\n{self.log}")

    def await_message(self, kind: str, since: float = 0.0, count: int = 1) -> None:
        self.await_true(lambda: len(self.messages(kind, since)) >= count)

    def is_fed(self) -> bool:
        """True if the watchdog is fed within a few periods from now."""
        now = time.monotonic()
        while not (fed := self.messages("WATCHDOG", now)) and time.monotonic() < now + 3 * PERIOD_S:
            time.sleep(0.02)
        return bool(fed)

    def health(self) -> str:
        with self.channel() as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S, wait_for_ready=True)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))

    def wedge(self, name: str) -> None:
        (self.folder / name).touch()

    def release(self, name: str) -> None:
        (self.folder / name).unlink()


asked = partial(request, LONG, nfe_steps=16)


@contextlib.contextmanager
def supervised(
    folder: Path,
    *,
    bundle: Path = BUNDLE,
    wedged: str = "",
    within: tuple[str, ...] = (),
    **sections: dict[str, Any],
) -> Iterator[Supervised]:
    """Start a daemon as systemd would; it hangs at the place `wedged` from the beginning.

    `within`: a command that becomes the one after it, in other surroundings.
    """
    path = write_config(folder, bundle, **sections)
    if wedged:
        (folder / wedged).touch()
    address = str(folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(address)
        command = ("-X", "faulthandler", "-m", "tests.harness.wedging", folder, path)
        of_systemd = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": f"{WATCHDOG_S * 1e6:.0f}"}
        process = start(*command, within=within, **of_systemd)
        daemon = Supervised(process, yaml.safe_load(path.read_text()), folder)
        listener = threading.Thread(target=_listen, args=(daemon, supervisor))
        listener.start()
        try:
            with followed(daemon, ready=False):
                yield daemon
        finally:
            listener.join()


def _listen(daemon: Supervised, supervisor: socket.socket) -> None:
    """Receive messages until the daemon has ended and the socket is empty."""
    supervisor.settimeout(0.1)
    while True:
        ended = daemon.process.poll() is not None
        try:
            daemon.received.append((time.monotonic(), supervisor.recv(4096).decode()))
        except TimeoutError:
            if ended:
                return


def test_ready_only_once_warm_and_serving_then_fed_in_time(tmp_path: Path) -> None:
    """Nobody has checked the clocks of this Jetson, and the status says so."""
    jetson = Jetson(tmp_path / "jetson", "jp6-0004")
    with supervised(tmp_path, wedged="warm_up", device={"sysroot": str(jetson.root)}) as box:
        box.await_true(lambda: any("warming up" in text for text in box.messages("STATUS")))
        assert box.health() == "NOT_SERVING"
        step, metrics = "warming up tiny fp32 on ort-cpu", box.config["server"]["metrics"]
        told = readiness.read_state(metrics)
        assert (told.state, told.step, told.backend, told.on_cpu) == ("starting", step, "", "")
        with box.channel() as channel:
            with pytest.raises(grpc.RpcError) as caught:
                box.synthesizer(channel).Synthesize(request(), timeout=PATIENCE_S)
            assert caught.value.code().name == "UNAVAILABLE"
            assert caught.value.details() == f"the daemon is starting: {step}"
        box.add_voice()  # voices need no engine
        begun = time.monotonic()
        box.await_message("EXTEND_TIMEOUT_USEC", begun)
        assert box.http("/livez")[0] == 200, "warming up is no sign of death, however long it takes"
        assert not box.messages("READY") and not box.messages("WATCHDOG")
        box.release("warm_up")
        box.await_message("READY")
        assert box.health() == "SERVING"
        told = readiness.read_state(metrics)
        assert (told.state, told.step, told.backend) == ("running", "", "ort-cpu")
        assert told.on_cpu.startswith("ort-cpu, ")
        box.await_message("WATCHDOG")
        order = [text for _, text in box.received]
        loading = next(n for n, text in enumerate(order) if text.startswith("STATUS=loading the bundle"))
        warming = next(n for n, text in enumerate(order) if text.startswith("STATUS=warming up"))
        ready = order.index("READY=1")
        assert loading < warming < ready < order.index("WATCHDOG=1")
        status = "STATUS=ready: 0 speaking, 0 waiting, 0 spoken; clocks are unknown: /run/f5-app"
        assert order[ready + 1].startswith(status)
        assert order[ready + 1].endswith("; passed over: tensorrt, ort-cuda")
        idle = time.monotonic()
        box.await_message("WATCHDOG", idle, count=4)
        assert not box.messages("EXTEND_TIMEOUT_USEC", idle)
        fed = [at for at, text in box.received if text == "WATCHDOG=1" and at >= idle]
        assert max(after - before for before, after in itertools.pairwise([idle, *fed])) < WATCHDOG_S


@pytest.mark.parametrize("place", ["step", pytest.param("spoken", marks=pytest.mark.thorough)])
def test_a_hang_stops_the_feeding_and_is_in_the_trace_of_an_abort(tmp_path: Path, place: str) -> None:
    """The engine's thread hangs in a step, or the event loop when speech has ended."""
    with supervised(tmp_path) as box:
        box.await_message("READY")
        box.add_voice()
        box.wedge(place)
        with box.channel() as channel:
            call = box.synthesizer(channel).Synthesize.future(asked(), timeout=PATIENCE_S)
            box.await_true(lambda: box.http("/livez")[0] == 503)
            if place == "step":
                box.await_true(lambda: any(text.startswith("wedged") for text in box.messages("STATUS")))
                assert box.health() == "SERVING", "the event loop itself is well"
                assert any("no heartbeat from the engine" in line for line in box.lines)
            assert not box.is_fed() and box.http("/livez")[0] == 503
            box.release(place)
            assert call.result().audio
            box.await_true(box.is_fed)
            box.await_true(lambda: box.http("/livez")[0] == 200)
            box.wedge(place)
            call = box.synthesizer(channel).Synthesize.future(asked(seed=2), timeout=PATIENCE_S)
            box.await_true(lambda: box.http("/livez")[0] == 503)
            box.process.send_signal(signal.SIGABRT)
            assert box.process.wait(PATIENCE_S) == -signal.SIGABRT
            with pytest.raises(grpc.RpcError):
                call.result()
        box.await_true(lambda: "in hang" in box.log and (place != "step" or "in _make" in box.log))


def test_a_signal_reports_stopping_and_finishes_begun_speech(tmp_path: Path) -> None:
    with supervised(tmp_path) as box:
        box.await_message("READY")
        box.add_voice()
        # The engine stops until the daemon has handled the signal: a quick machine would have finished by
        # then.
        box.wedge("step")
        with box.channel() as channel:
            call = box.synthesizer(channel).StreamSynthesize(asked(), timeout=PATIENCE_S)
            admitted = next(call)
            assert admitted.WhichOneof("message") == "header"
            box.process.send_signal(signal.SIGTERM)
            box.await_message("STOPPING")
            assert box.health() == "NOT_SERVING"
            with pytest.raises(grpc.RpcError) as caught:
                box.synthesizer(channel).Synthesize(request(), timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            box.release("step")
            messages = list(call)
        assert messages[-1].WhichOneof("message") == "end"
        assert messages[-1].end.samples > 24_000
        assert box.process.wait(PATIENCE_S) == Exit.OK
        assert [text for text in box.messages("STATUS") if re.match("draining: 1 speaking", text)]
        assert box.messages("STOPPING") == ["1"]
        assert "Traceback" not in box.log


NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""A separate network with loopback addresses alone."""


@pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run([*NETWORK, "true"], capture_output=True).returncode != 0,
    reason="no network of its own can be made: needs root, unshare and ip",
)
def test_an_address_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    listen = {"listen": "192.0.2.1:50051", "open_to_network": True}
    with supervised(tmp_path, server=listen, within=NETWORK) as box:
        box.await_true(lambda: any("has no address 192.0.2.1" in text for text in box.messages("STATUS")))
        box.await_message("EXTEND_TIMEOUT_USEC")
        inside = ["nsenter", "--net", "--target", str(box.process.pid)]
        assert finished(*inside, "ip", "address", "add", "192.0.2.1/32", "dev", "lo").returncode == 0
        box.await_message("READY")


@pytest.mark.parametrize(("section", "values", "code", "words"), [
    ("synthesis", {"nef": 5}, Exit.CONFIG, "unknown key nef"), ("log", {}, Exit.BUNDLE, "damaged"),
])  # fmt: skip
def test_a_start_that_fails_is_never_ready_and_its_last_line_says_why(
    section: str, values: dict[str, Any], code: Exit, words: str, tmp_path: Path
) -> None:
    damaged = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    path = max(damaged.rglob("*.*"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with supervised(tmp_path, bundle=damaged, **{section: values}) as box:
        assert box.process.wait(PATIENCE_S) == code
    assert not box.messages("READY") and not box.messages("WATCHDOG")
    assert not any(text.startswith("ready") for text in box.messages("STATUS"))
    assert words in box.messages("STATUS")[-1] and words in box.lines[-1]
    assert box.lines[-1].startswith("appliance serve: ")

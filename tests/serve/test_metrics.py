"""The page that Prometheus reads."""

import contextlib
import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.box.checks.finding import Finding, Level
from appliance.box.checks.health_json import last_run, publish
from appliance.box.checks.readiness import read_state
from appliance.box.paths import HEALTH
from appliance.engine.costs import CostTable
from appliance.request import PassedOver, RequestCounts, Timings
from appliance.serve import probes
from appliance.serve.metrics import Metrics
from appliance.serve.probes import MAX_CONNECTIONS, MetricsServer
from tests.fakes.jetson.board import Clock, Jetson
from tests.harness.engine import FakeEngine
from tests.harness.patience import PATIENCE_S, until


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """(name, label values …) → value."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_speech_is_counted() -> None:
    metrics = Metrics()
    load = RequestCounts(waiting=3, running=2, parked=1)
    metrics.watch(lambda: load, lambda: True, planning=lambda: 4, sending=lambda: 5, resting=lambda: True)
    metrics.observe("Synthesize", "OK", "")
    metrics.observe("Synthesize", "RESOURCE_EXHAUSTED", "QUEUE_FULL")
    stages = {"condition_s": 0.1, "steps_s": 0.5, "vocoder_s": 0.2, "total_s": 1.0}
    metrics.spoken(Timings(queue_s=0.25, first_audio_s=0.5, audio_s=4.0, segments=2, nfe=5, **stages))  # type: ignore[arg-type]
    read = samples(metrics)
    assert read["f5_resting",] == 1.0
    assert read["f5_requests_total", "Synthesize", "OK"] == 1.0
    assert read["f5_requests_total", "Synthesize", "RESOURCE_EXHAUSTED"] == 1.0
    assert read["f5_rejects_total", "QUEUE_FULL"] == 1.0
    assert ("f5_rejects_total", "") not in read
    assert read["f5_audio_seconds_total",] == 4.0
    now = {"planning": 4.0, "waiting": 3.0, "running": 2.0, "parked": 1.0, "sending": 5.0}
    assert {state: read["f5_requests_now", state] for state in now} == now
    assert read["f5_ready",] == 1.0
    assert read["f5_stage_seconds_total", "steps"] == 0.5
    for name, sum_ in (("first_audio_seconds", 0.5), ("queue_seconds", 0.25), ("rtf", 0.25)):
        assert (read[f"f5_{name}_count",], read[f"f5_{name}_sum",]) == (1.0, sum_)
    assert (read["f5_rtf_bucket", "0.2"], read["f5_rtf_bucket", "0.3"]) == (0.0, 1.0)


def test_ratios_need_audio_and_a_promise() -> None:
    metrics = Metrics()
    metrics.spoken(Timings())
    metrics.spoken(Timings(first_audio_s=0.5), 2.0)
    read = samples(metrics)
    ratios = "f5_rtf_count", "f5_first_audio_of_promised_count", "f5_first_audio_of_promised_sum"
    assert [read[name,] for name in ratios] == [0.0, 1.0, 0.25]


def test_backends_passed_over_ones_and_estimates() -> None:
    metrics, engine = Metrics(), FakeEngine()
    costs = engine.costs = CostTable(lambda steps: [])  # type: ignore[assignment]
    engine.passed_over = (PassedOver("tensorrt", "broken"),)
    metrics.watch_engine(engine)  # type: ignore[arg-type]
    costs.predicted_s, costs.measured_s = 3.0, 4.0
    read = samples(metrics)
    assert (read["f5_engine_predicted_seconds",], read["f5_engine_measured_seconds",]) == (3.0, 4.0)
    assert (read["f5_backend", "fake (f64)"], read["f5_backend", "tensorrt"]) == (1.0, 0.0)
    engine.backend, engine.passed_over = "tensorrt", ()
    metrics.watch_engine(engine)  # type: ignore[arg-type]
    backends = {key[1]: value for key, value in samples(metrics).items() if key[0] == "f5_backend"}
    assert backends == {"tensorrt": 1.0}


def test_the_clocks_have_one_state_at_a_time() -> None:
    metrics, states = Metrics(), ("pinned", "unpinned", "unknown")
    for state in ("pinned", "unknown", "unpinned"):
        metrics.clocks(states, state, repins=0, degraded=state != "pinned")
        read = samples(metrics)
        assert [read["f5_clocks_state", name] for name in states] == [name == state for name in states]
        assert read["f5_degraded",] == float(state != "pinned")


@pytest.mark.parametrize(("counts", "total"), [
    ((0, 0), 0), ((2,), 2), ((1, 3, 3), 3), ((1, None, 1), 1), ((3, None, 4), 4), ((2, 0, 1), 3),
])  # fmt: skip
def test_repins_count_through_unknowns_and_new_boots(counts: tuple[int | None, ...], total: int) -> None:
    metrics = Metrics()
    for repins in counts:
        metrics.clocks(("pinned",), "pinned", repins=repins, degraded=False)
    assert samples(metrics)["f5_clocks_repins_total",] == total


def test_metrics_show_the_last_health_run_and_its_age(tmp_path: Path) -> None:
    """f5-health writes the result as root, and the daemon reads it."""
    clock, metrics = Clock(), Metrics()
    box = Jetson(tmp_path / "box", "jp6-0005").box(**clock.arguments)
    metrics.watch_health(lambda: last_run(box))
    assert not [name for name in samples(metrics) if name[0].startswith("f5_health")]
    findings = [
        Finding("disk", Level.PASS, "half free", figures={"free_bytes": 5, "mount": "/", "read_only": False}),
        Finding("power", Level.WARN, "61 W", "", "look", figures={"rails_mw": {"VIN": 61_000.0}}),
        Finding("speed", Level.FAIL, "slow", "", "measure"),
        Finding("gpu", Level.SKIP, "absent"),
    ]
    publish(box, findings)
    clock.advance(300)
    read = samples(metrics)
    levels = {"disk": 0.0, "power": 1.0, "speed": 2.0}
    assert {check: read["f5_health_level", check] for check in levels} == levels
    assert ("f5_health_level", "gpu") not in read
    assert read["f5_health_figure", "disk", "free_bytes"] == 5.0
    assert read["f5_health_figure", "power", "rails_mw.VIN"] == 61_000.0
    assert read["f5_health_age_seconds",] == pytest.approx(300.0)
    for damaged in ("", "[]", "{}", "nan", "[" * 100_000):
        box.root.replace(HEALTH, damaged)
        assert ("f5_health_age_seconds",) not in samples(metrics)


def test_a_health_run_of_another_boot_is_not_shown(tmp_path: Path) -> None:
    jetson, metrics = Jetson(tmp_path / "box", "jp6-0005"), Metrics()
    publish(jetson.box(), [Finding("disk", Level.PASS, "half free")])
    kept = jetson.read(HEALTH)
    jetson.boot()
    jetson.write(HEALTH, kept)
    metrics.watch_health(lambda: last_run(jetson.box()))
    assert ("f5_health_level", "disk") not in samples(metrics)


@contextlib.contextmanager
def served(address: str = "127.0.0.1:0", good: Callable[[], bool] = lambda: True) -> Iterator[MetricsServer]:
    state = {"state": "running"}
    server = MetricsServer(address, Metrics(), names=["box"], alive=good, ready=good, state=lambda: state)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def serving() -> Iterator[MetricsServer]:
    with served() as server:
        yield server


@pytest.mark.parametrize(("good", "status"), [(True, 200), (False, 503)])
def test_pages(good: bool, status: int) -> None:
    with served(good=lambda: good) as server:
        for page in ("livez", "readyz", "readyz?verbose"):
            assert status_of(server.port, page) == status
            assert status_of(server.port, page, "HEAD") == status
        assert status_of(server.port, "metrics") == status_of(server.port, "state") == 200
        assert status_of(server.port, "else") == 404
        for page, named, answered in (
            ("livez", "evil.example", status),
            *(("state", host, 200) for host in ("box:1", "a.localhost", "[::1]")),
            *(
                ("metrics", host, 421)
                for host in ("evil.example", "192.0.2.1", "0.0.0.0", "box\r\nHost: x", "")
            ),
        ):
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as client:
                client.sendall(f"HEAD /{page} HTTP/1.0\r\nHost: {named}\r\n\r\n".encode())
                answer = b"".join(iter(partial(client.recv, 4096), b""))
                # The test reads a raw socket, because HTTP clients drop a body after HEAD.
                assert answer.split()[1] == b"%d" % answered and answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::]"])
def test_a_daemon_on_all_addresses_tells_this_machine_its_state(host: str) -> None:
    with served(f"{host}:0") as server:
        assert read_state(f"{host}:{server.port}").state == "running"


def status_of(port: int, page: str, method: str = "GET", host: str = "127.0.0.1") -> int:
    """Status of a page; a reply to HEAD has no body."""
    request = urllib.request.Request(f"http://{host}:{port}/{page}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            assert bool(reply.read()) is (method == "GET")
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_busy_address(serving: MetricsServer) -> None:
    with pytest.raises(OSError, match="in use"), served(f"127.0.0.1:{serving.port}"):
        pass


def threads() -> int:
    return sum("process_request" in thread.name for thread in threading.enumerate())


def test_half_sent_requests_are_bounded_and_cost_other_addresses_nothing(serving: MetricsServer) -> None:
    before, address = threads(), ("127.0.0.1", serving.port)
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(socket.create_connection(address, PATIENCE_S))
        for _ in range(100):
            client = stack.enter_context(socket.create_connection(address, source_address=("127.0.0.2", 0)))
            client.sendall(b"GET /livez HT")
        other.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert other.recv(12).endswith(b" 200")
        # The thread of a closed connection ends when it is its turn.
        until(lambda: threads() - before <= MAX_CONNECTIONS + 1)


def test_a_half_sent_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PAUSE_S", 0.2)
    with served() as server, socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as client:
        client.sendall(b"GET /livez HT")
        assert client.recv(100) == b""


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_an_ipv6_address() -> None:
    with served("[::1]:0") as server:
        assert status_of(server.port, "livez", host="[::1]") == 200


def test_a_fault_in_an_answer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with served(good=lambda: bool(1 / 0)) as server, pytest.raises(http.client.RemoteDisconnected):
        status_of(server.port, "livez")
    assert "ZeroDivisionError" in caplog.text

"""What Prometheus reads."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.job import Timings
from appliance.metrics import Metrics, MetricsServer


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """(name, label values …) → value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_what_was_spoken_is_counted() -> None:
    metrics = Metrics()
    metrics.watch(lambda: 3, lambda: True)
    metrics.observe("Synthesize", "OK", "")
    metrics.observe("Synthesize", "RESOURCE_EXHAUSTED", "QUEUE_FULL")
    metrics.spoken(
        Timings(
            queue_s=0.25,
            first_audio_s=0.5,
            condition_s=0.1,
            steps_s=0.5,
            vocoder_s=0.2,
            total_s=1.0,
            audio_s=4.0,
            segments=2,
            nfe=5,
        )
    )
    read = samples(metrics)
    assert read["f5_requests_total", "Synthesize", "OK"] == 1.0
    assert read["f5_requests_total", "Synthesize", "RESOURCE_EXHAUSTED"] == 1.0
    assert read["f5_rejects_total", "QUEUE_FULL"] == 1.0
    assert ("f5_rejects_total", "") not in read
    assert read["f5_audio_seconds_total",] == 4.0
    assert read["f5_queue_depth",] == 3.0
    assert read["f5_ready",] == 1.0
    assert read["f5_stage_seconds_total", "steps"] == 0.5
    for name, sum_ in (("first_audio_seconds", 0.5), ("queue_seconds", 0.25), ("rtf", 0.25)):
        assert (read[f"f5_{name}_count",], read[f"f5_{name}_sum",]) == (1.0, sum_)
    assert (read["f5_rtf_bucket", "0.2"], read["f5_rtf_bucket", "0.3"]) == (0.0, 1.0)


def test_a_request_without_audio_has_no_real_time_factor() -> None:
    metrics = Metrics()
    metrics.spoken(Timings())
    assert samples(metrics)["f5_rtf_count",] == 0.0


def test_one_state_of_the_clocks_at_a_time() -> None:
    metrics, states = Metrics(), ("pinned", "unpinned", "unknown")
    for state in ("pinned", "unknown", "unpinned"):
        metrics.clocks(states, state, repins=0, degraded=state != "pinned")
        read = samples(metrics)
        assert {name: read["f5_clocks_state", name] for name in states} == {
            s: float(s == state) for s in states
        }
        assert read["f5_degraded",] == float(state != "pinned")


@pytest.mark.parametrize(
    ("counts", "total"),
    [((0, 0), 0), ((2,), 2), ((1, 3, 3), 3), ((1, None, 1), 1), ((3, None, 4), 4), ((2, 0, 1), 3)],
)
def test_repins_are_counted_through_unknowns_and_new_boots(
    counts: tuple[int | None, ...], total: int
) -> None:
    metrics = Metrics()
    for repins in counts:
        metrics.clocks(("pinned",), "pinned", repins=repins, degraded=False)
    assert samples(metrics)["f5_clocks_repins_total",] == total


@pytest.mark.parametrize(("good", "status"), [(True, 200), (False, 503)])
def test_pages(good: bool, status: int) -> None:
    server = MetricsServer("127.0.0.1:0", Metrics(), alive=lambda: good, ready=lambda: good)
    try:
        for page in ("livez", "readyz", "readyz?verbose"):
            assert status_of(server.port, page) == status
        assert status_of(server.port, "metrics") == 200
        assert status_of(server.port, "else") == 404
    finally:
        server.close()


def status_of(port: int, page: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_an_address_that_is_taken() -> None:
    server = MetricsServer("127.0.0.1:0", Metrics(), alive=lambda: True, ready=lambda: True)
    try:
        with pytest.raises(OSError, match="in use"):
            MetricsServer(f"127.0.0.1:{server.port}", Metrics(), alive=lambda: True, ready=lambda: True)
    finally:
        server.close()

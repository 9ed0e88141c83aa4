"""Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from appliance.box.checks.health_json import HealthRun
from appliance.engine.engine import Synthesizer
from appliance.request import RequestCounts, Timings

SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
LEVELS = {"PASS": 0.0, "WARN": 1.0, "FAIL": 2.0}
"""Value of a check's level; SKIP has no value."""
RATIOS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)


class HealthCollector:
    """Collector for the last run of f5-health, which every scrape reads again."""

    def __init__(self, last: Callable[[], HealthRun | None]) -> None:
        self._last = last

    def collect(self) -> Iterator[Metric]:
        """Yield levels, figures and their age; nothing before the first run."""
        if (run := self._last()) is None:
            return
        level = GaugeMetricFamily("f5_health_level", "Of a check: 0 PASS, 1 WARN, 2 FAIL.", labels=("check",))
        for check, name in run.levels.items():
            if name in LEVELS:
                level.add_metric((check,), LEVELS[name])
        figure = GaugeMetricFamily("f5_health_figure", "A number of a check.", labels=("check", "figure"))
        for names, value in run.numbers.items():
            figure.add_metric(names, value)
        age = GaugeMetricFamily("f5_health_age_seconds", "Since the checks.", value=run.age_s)
        yield from (level, figure, age)


class Metrics:
    """Metrics for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._requests = counter("f5_requests", "Finished calls.", ("method", "status"))
        self._rejects = counter("f5_rejects", "Refused calls, by reason.", ("reason",))
        self._first_audio = histogram(
            "f5_first_audio_seconds", "From arrival to the first audio.", buckets=SECONDS
        )
        self._queue = histogram("f5_queue_seconds", "From arrival to the engine.", buckets=SECONDS)
        self._rtf = histogram("f5_rtf", "Wall time per second of audio, per request.", buckets=RATIOS)
        self._skips = counter("f5_skipped", "Requests of which nothing can be spoken.")
        self._audio = counter("f5_audio_seconds", "Seconds of audio made.")
        self._stages = counter("f5_stage_seconds", "Seconds of engine time, by stage.", ("stage",))
        self._requests_now = gauge(
            "f5_requests_now",
            "Requests that are planned, wait for the engine, are worked on, or are made and being sent; "
            "parked of the running wait for their readers.",
            ("state",),
        )
        promised = "Time to first audio, as a share of what was promised."
        self._late = histogram("f5_first_audio_of_promised", promised, buckets=RATIOS)
        passed_over = "1 for what computes, 0 for each backend that engine.backend: auto could not use."
        self._backend = gauge("f5_backend", passed_over, ("backend",))
        self._clocks = gauge("f5_clocks_state", "1 for the clocks' state.", ("state",))
        again = "How often clocks were pinned again after something had unpinned them."
        self._repins = counter("f5_clocks_repins", again)
        self._degraded = gauge("f5_degraded", "1 when requests are served worse than they should be.")
        self._repins_seen = 0
        self.spoken_requests = 0

    def show(self, name: str, about: str, read: Callable[[], float]) -> None:
        """Register a gauge that each scrape reads with this function."""
        Gauge(name, about, registry=self.registry).set_function(read)

    def observe(self, method: str, status: str, reason: str) -> None:
        self._requests.labels(method, status).inc()
        if reason:
            self._rejects.labels(reason).inc()

    def skipped(self) -> None:
        """Count a request whose text has nothing to speak."""
        self._skips.inc()

    def spoken(self, timings: Timings, promised_s: float = 0.0) -> None:
        """Count a reply that was delivered to its end; `promised_s` is 0 without a promise."""
        if promised_s:
            self._late.observe(timings.first_audio_s / promised_s)
        self.spoken_requests += 1
        self._first_audio.observe(timings.first_audio_s)
        self._queue.observe(timings.queue_s)
        self._audio.inc(timings.audio_s)
        if timings.audio_s:
            self._rtf.observe(timings.rtf)
        for stage in ("condition", "steps", "vocoder"):
            self._stages.labels(stage).inc(getattr(timings, f"{stage}_s"))

    def spoken_so_far(self) -> list[float]:
        """Totals since the start: seconds of speech, requests with first audio within each of SECONDS, all
        requests.
        """
        [audio], [first_audio] = self._audio.collect(), self._first_audio.collect()
        counts = [one.value for one in first_audio.samples if one.name.endswith("_bucket")]
        return [audio.samples[0].value, *counts]

    def watch(
        self,
        load: Callable[[], RequestCounts],
        ready: Callable[[], bool],
        *,
        planning: Callable[[], int],
        sending: Callable[[], int],
        resting: Callable[[], bool],
    ) -> None:
        """Register the functions that the gauges of load and readiness read."""
        self._requests_now.labels("planning").set_function(planning)
        self._requests_now.labels("sending").set_function(sending)
        for state in ("waiting", "running", "parked"):
            self._requests_now.labels(state).set_function(partial(lambda name: getattr(load(), name), state))
        self.show("f5_ready", "1 when every path is warm and requests are taken.", ready)
        self.show("f5_resting", "1 while the engine has given its memory back.", resting)

    def watch_engine(self, engine: Synthesizer) -> None:
        """Show an engine's backend and its seconds. Call it again for another engine."""
        for name, gauge in self._engine_seconds.items():
            gauge.set_function(partial(getattr, engine.costs, f"{name}_s"))
        self._backend.clear()
        self._backend.labels(engine.backend).set(1.0)
        for one in engine.passed_over:
            self._backend.labels(one.backend).set(0.0)

    @cached_property
    def _engine_seconds(self) -> dict[str, Gauge]:
        return {
            name: Gauge(
                f"f5_engine_{name}_seconds", f"Seconds of engine calls, {how}.", registry=self.registry
            )
            for name, how in (("predicted", "estimated"), ("measured", "taken"))
        }

    def watch_health(self, last: Callable[[], HealthRun | None]) -> None:
        self.registry.register(HealthCollector(last))

    def clocks(self, states: Iterable[str], state: str, *, repins: int | None, degraded: bool) -> None:
        """Count `repins`, which begins at 0 with each boot; None if unknown."""
        for name in states:
            self._clocks.labels(name).set(name == state)
        self._degraded.set(degraded)
        if repins is not None:
            # A smaller number than before was counted from a new boot.
            self._repins.inc(repins - self._repins_seen if repins >= self._repins_seen else repins)
            self._repins_seen = repins

    def text(self) -> bytes:
        """All metrics in Prometheus's exposition format."""
        return generate_latest(self.registry)

"""Prometheus metrics, and the small HTTP server for them and for liveness and readiness."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from appliance.config import split_address
from appliance.job import Load, Timings

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
REQUEST_S = 5.0
"""How long a client of the HTTP server may pause within its request or answer."""

SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
RATIOS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)


class Costs(Protocol):
    """Estimates of the engine's time, and what it took."""

    predicted_s: float
    measured_s: float


class Phrases(Protocol):
    """Replies that are kept."""

    size_bytes: int
    hits: int
    misses: int


class Metrics:
    """What one daemon counts, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter("f5_requests", "Finished calls.", ("method", "status"), registry=registry)
        self._rejects = Counter("f5_rejects", "Refused calls, by reason.", ("reason",), registry=registry)
        self._first_audio = Histogram(
            "f5_first_audio_seconds", "From arrival to the first audio.", buckets=SECONDS, registry=registry
        )
        self._queue = Histogram(
            "f5_queue_seconds", "From arrival to the engine.", buckets=SECONDS, registry=registry
        )
        self._rtf = Histogram(
            "f5_rtf", "Wall time per second of audio, per request.", buckets=RATIOS, registry=registry
        )
        self._skips = Counter("f5_skipped", "Requests of which nothing can be spoken.", registry=registry)
        self._audio = Counter("f5_audio_seconds", "Seconds of audio made.", registry=registry)
        self._stages = Counter(
            "f5_stage_seconds", "Seconds of engine time, by stage.", ("stage",), registry=registry
        )
        self._requests_now = Gauge(
            "f5_requests_now",
            "Requests that are planned, wait for the engine, are worked on, or are made and being sent; "
            "parked of the running wait for their readers.",
            ("state",),
            registry=registry,
        )
        self._late = Histogram(
            "f5_first_audio_of_promised",
            "Time to first audio, as a share of what was promised.",
            buckets=RATIOS,
            registry=registry,
        )
        self._ready = Gauge(
            "f5_ready", "1 when every path is warm and requests are taken.", registry=registry
        )
        self._clocks = Gauge("f5_clocks_state", "1 for the clocks' state.", ("state",), registry=registry)
        self._repins = Counter(
            "f5_clocks_repins",
            "How often clocks were pinned again after something had unpinned them.",
            registry=registry,
        )
        self._degraded = Gauge(
            "f5_degraded", "1 when requests are served worse than they should be.", registry=registry
        )
        self._repins_seen = 0
        self.spoken_requests = 0
        """Requests spoken to their end."""

    def observe(self, method: str, status: str, reason: str) -> None:
        """A call has ended."""
        self._requests.labels(method, status).inc()
        if reason:
            self._rejects.labels(reason).inc()

    def skipped(self) -> None:
        """Nothing of a request can be spoken."""
        self._skips.inc()

    def spoken(self, timings: Timings, promised_s: float = 0.0) -> None:
        """A request was spoken to its end; `promised_s` is 0 where nothing was promised."""
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

    def watch(
        self,
        load: Callable[[], Load],
        ready: Callable[[], bool],
        *,
        planning: Callable[[], int],
        sending: Callable[[], int],
    ) -> None:
        """Register callbacks for the gauges of load and readiness."""
        self._requests_now.labels("planning").set_function(planning)
        self._requests_now.labels("sending").set_function(sending)
        for state in ("waiting", "running", "parked"):
            self._requests_now.labels(state).set_function(partial(lambda name: getattr(load(), name), state))
        self._ready.set_function(lambda: float(ready()))

    def watch_costs(self, costs: Costs) -> None:
        """Register callbacks for the engine's predicted and measured seconds."""
        for name, gauge in self._engine_seconds.items():
            gauge.set_function(partial(getattr, costs, f"{name}_s"))

    @cached_property
    def _engine_seconds(self) -> dict[str, Gauge]:
        return {
            name: Gauge(
                f"f5_engine_{name}_seconds", f"Seconds of engine calls, {what}.", registry=self.registry
            )
            for name, what in (("predicted", "estimated"), ("measured", "taken"))
        }

    def watch_phrases(self, phrases: Phrases) -> None:
        """Register callbacks for the cache of phrases."""
        for name, attribute, what in (
            ("hits", "hits", "Requests that were answered from the cache of phrases."),
            ("misses", "misses", "Requests that it could have answered, and did not have."),
            ("bytes", "size_bytes", "Samples that it holds."),
        ):
            gauge = Gauge(f"f5_phrases_{name}", what, registry=self.registry)
            gauge.set_function(partial(getattr, phrases, attribute))

    def clocks(self, states: Iterable[str], state: str, *, repins: int | None, degraded: bool) -> None:
        """How the clocks are: one of `states`. Root counts `repins`, anew at each boot; None: not known."""
        for name in states:
            self._clocks.labels(name).set(name == state)
        self._degraded.set(degraded)
        if repins is not None:
            # Fewer than before: root has begun to count anew.
            self._repins.inc(repins - self._repins_seen if repins >= self._repins_seen else repins)
            self._repins_seen = repins

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class MetricsServer:
    """/metrics, /livez and /readyz on threads of their own, which answer while all else is busy."""

    def __init__(
        self, address: str, metrics: Metrics, *, alive: Callable[[], bool], ready: Callable[[], bool]
    ) -> None:
        """Listens at once. Raises OSError when the address is taken."""

        def answer(path: str) -> tuple[int, str, bytes]:
            if path == "/metrics":
                return 200, CONTENT_TYPE_LATEST, metrics.text()
            if path in ("/livez", "/readyz"):
                good = alive() if path == "/livez" else ready()
                return (200 if good else 503), "text/plain", b"ok\n" if good else b"no\n"
            return 404, "text/plain", b"try /metrics, /livez or /readyz\n"

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_S

            def do_GET(self) -> None:
                status, kind, body = answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """A scrape every few seconds would fill the journal."""

        host, port = split_address("metrics", address)
        self._server = _Server((host.strip("[]"), port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and release the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """A thread for each of at most MAX_CONNECTIONS; one more closes the oldest, so probes get an answer."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.append(request)
            if len(self._connections) > MAX_CONNECTIONS:
                with contextlib.suppress(OSError):
                    self._connections.pop(0).shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that goes away in the middle is no news.
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("request from %s failed", client_address)

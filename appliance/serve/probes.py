"""Servers for probes: metrics, health, haproxy's check.

They answer even if the rest of the daemon is busy.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from appliance.access.names import AUTHORITY, OwnNames
from appliance.access.places import CallerPlace, CallerPlaces
from appliance.config import split_address
from appliance.serve.metrics import Metrics

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
PAUSE_S = 5.0
"""Longest pause of a client while it sends its request or reads the answer."""


class ProbeServer(socketserver.ThreadingTCPServer):
    """Server with at most MAX_CONNECTIONS threads.

    At the limit, the oldest connection of the busiest address is closed.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, name: str, address: str, handler: type[socketserver.StreamRequestHandler]) -> None:
        """Listen at host:port from now on. Raises OSError."""
        host, port = split_address(name, address)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._connections, self._places = dict[socket.socket, CallerPlace](), CallerPlaces(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        super().__init__((host.strip("[]"), port), handler)
        self.port: int = self.server_address[1]
        self._thread = threading.Thread(target=self.serve_forever, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        place = CallerPlace(client_address[0], lambda: True, partial(_shut_down, request))
        with self._lock:
            self._connections[request] = place
            self._places.take(place)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._places.leave(self._connections.pop(request))
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # OSError: the client went away.
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("request from %s failed", client_address)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class MetricsServer(ProbeServer):
    """HTTP server of /metrics, /livez, /readyz and /state."""

    def __init__(
        self,
        address: str,
        metrics: Metrics,
        *,
        names: Iterable[str],
        alive: Callable[[], bool],
        ready: Callable[[], bool],
        state: Callable[[], Mapping[str, object]],
    ) -> None:
        """`names`: host names of this server, besides its own. `state`: content of /state. Raises OSError."""
        own = OwnNames(address, names)

        def answer(path: str, sent_to: Iterable[str]) -> tuple[int, str, bytes]:
            if path in ("/livez", "/readyz"):
                good = alive() if path == "/livez" else ready()
                return (200 if good else 503), "text/plain", b"ok\n" if good else b"no\n"
            # A page of another site may use a host name that resolves to this machine.
            if not all((host := AUTHORITY.fullmatch(one)) and host[1] in own for one in sent_to):
                return 421, "text/plain", b"Host: is no name of this daemon; gateway.names adds to them\n"
            if path == "/metrics":
                return 200, CONTENT_TYPE_LATEST, metrics.text()
            if path == "/state":
                return 200, "application/json", json.dumps(state()).encode() + b"\n"
            return 404, "text/plain", b"try /metrics, /livez, /readyz or /state\n"

        class MetricsHandler(BaseHTTPRequestHandler):
            timeout = PAUSE_S

            def do_GET(self) -> None:
                status, kind, body = answer(self.path.partition("?")[0], self.headers.get_all("host", ()))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: a scrape every few seconds would fill the journal."""

        super().__init__("metrics", address, MetricsHandler)


class AgentServer(ProbeServer):
    """Server for haproxy's `agent-check`. Each connection gets one `agent_line`."""

    def __init__(self, address: str, *, state: Callable[[], str], busy: Callable[[], float]) -> None:
        """Listen at host:port from now on. Raises OSError."""

        class AgentHandler(socketserver.StreamRequestHandler):
            timeout = PAUSE_S

            def handle(self) -> None:
                self.wfile.write(agent_line(state(), busy()).encode())

        super().__init__("agent", address, AgentHandler)


def agent_line(state: str, busy: float) -> str:
    """Line of haproxy's agent check. `busy`: busy share of the engine's next seconds.

        up ready 63%       takes requests; 37 % of the engine's next seconds are taken
        drain              finishes its requests, takes no new ones
        down # starting    takes no requests; the reason

    haproxy stays at `down` or `drain` until it reads `up` and `ready`. It reads 0 % as `drain`, so a full box
    reports 1 %.
    """
    if state == "draining":
        return "drain\n"
    if state != "running":
        return f"down # {state}\n"
    return f"up ready {min(max(round(100 * (1 - busy)), 1), 100)}%\n"

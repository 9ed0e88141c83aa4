"""Base of the servers for probes, which answer while the rest of the daemon is busy."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import sys
import threading
from typing import Any

from appliance.config import split_address

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
PAUSE_S = 5.0
"""Longest pause of a client within its request or answer."""


class ProbeServer(socketserver.ThreadingTCPServer):
    """At most MAX_CONNECTIONS threads; one more connection closes the oldest, so probes get an answer."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, name: str, address: str, handler: type[socketserver.StreamRequestHandler]) -> None:
        """Listen at once at host:port. Raises OSError."""
        host, port = split_address(name, address)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._connections: list[socket.socket] = []
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
        # OSError: the client went away.
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("request from %s failed", client_address)

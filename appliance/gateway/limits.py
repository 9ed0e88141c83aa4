"""Limits of a connection. Subclasses of uvicorn's protocols replace some of their methods."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.events import BytesMessage, TextMessage

from appliance.access.places import CallerPlaces, HttpConnection
from appliance.config import GatewayConfig
from appliance.errors import ConfigError
from appliance.gateway.stream_input import RESTART

TRIED = "0.54.0"
"""Version of uvicorn that the classes were written for."""
MAX_HEAD_BYTES = 64 << 10
"""Longest request line and headers: a text of 4,096 Chinese characters in a URL takes 37 KB."""
MAX_MESSAGE_BYTES = 64 << 10
"""Longest message of a WebSocket: a text of 4,096 characters with escapes in JSON."""
MAX_MESSAGES = 4_096
"""Most messages of a WebSocket that may wait."""
HANDSHAKE = (b"host", b"connection", b"upgrade", b"sec-websocket-")
POLICY_VIOLATION = 1008
KEEP_ALIVE_S = 30
EVENTS = "/api/"
"""Paths of streams that never end."""


def limited(limits: GatewayConfig) -> dict[str, Any]:
    """Settings for uvicorn. Raises ConfigError if uvicorn lacks a method that is replaced here."""
    for ours in (LimitedProtocol, LimitedSocket):
        (theirs,) = ours.__bases__
        for name in vars(ours):
            if not (name.startswith("_") or hasattr(theirs, name)):
                raise ConfigError(
                    f"uvicorn {uvicorn.__version__} does not fit: {theirs.__name__} has no {name}; "
                    f"the gateway was written for {TRIED}"
                )
    own = {"_limits": limits, "_places": CallerPlaces(limits.max_connections)}
    return {
        "http": type("Protocol", (LimitedProtocol,), own),
        "ws": LimitedSocket,
        "ws_max_size": MAX_MESSAGE_BYTES,
        "ws_per_message_deflate": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
    }


class LimitedProtocol(H11Protocol):
    """A connection, counted against the limit, and closed if it makes no progress for `stall_s`."""

    _limits = GatewayConfig()
    _places = CallerPlaces(_limits.max_connections)
    _timer: asyncio.TimerHandle
    _last_cycle: object = None
    _last_unsent = 0
    _is_socket = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address, _ = self.client or ("unknown", 0)
        self._connection = HttpConnection(address, self._is_arriving, transport.abort, self._leave)
        self.app_state = {**self.app_state, "connection": self._connection}
        self._timer = self.loop.call_later(self._limits.stall_s, self._check_progress)
        if not self._places.take(self._connection):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Accept letters in the address: scripts for GPT-SoVITS do not percent-encode a text."""
        is_head = self.cycle is None or self.cycle.response_complete
        line, end, rest = data.partition(b"\r\n")
        if is_head and end and line.startswith(b"GET ") and not line.isascii():
            line = b"".join(b"%%%02X" % byte if byte >= 0x80 else bytes((byte,)) for byte in line)
        super().data_received(line + end + rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        # wsproto decodes these headers as ASCII, even if they are not.
        if not all(value.isascii() for name, value in self.headers if name.startswith(HANDSHAKE)):
            self.send_400_response("A WebSocket begins with headers in ASCII.")
            return
        self._is_socket = True
        super().handle_websocket_upgrade(event)

    def _is_arriving(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    def _leave(self) -> None:
        self._timer.cancel()
        self._places.leave(self._connection)

    def _check_progress(self) -> None:
        """Close the connection if, since the last check, it completed no request and the client took no byte.

        A connection that has become a WebSocket completes no requests.
        """
        cycle, unsent = self.cycle, self.transport.get_write_buffer_size()
        idle = not self._is_socket and (cycle is None or cycle.response_complete)
        if (idle and cycle is self._last_cycle) or (unsent and unsent >= self._last_unsent > 0):
            # close() would wait until the client has read the rest.
            self.transport.abort()
            return
        self._last_cycle, self._last_unsent = cycle if idle else object(), unsent
        self._timer = self.loop.call_later(self._limits.stall_s, self._check_progress)

    def shutdown(self) -> None:
        """Let a reply finish. A stream of events never ends, so close it."""
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if is_busy and self.scope["path"].startswith(EVENTS):
            self.transport.close()
        else:
            super().shutdown()


class LimitedSocket(WSProtocol):
    """Takes over the connection of a LimitedProtocol. Finishes its speech at a shutdown."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.app_state["connection"].leave()
        super().connection_lost(exc)

    def handle_message(self, event: TextMessage | BytesMessage) -> None:
        super().handle_message(event)
        if self.queue.qsize() > MAX_MESSAGES and not self.close_sent:
            self._disconnect(POLICY_VIOLATION)
            self.transport.close()

    async def send(self, message: Any) -> None:
        """Send a message. Raises ClientDisconnected if uvicorn has closed, as after too long a message."""
        await self.writable.wait()
        if self.close_sent and message["type"] in ("websocket.send", "websocket.close"):
            raise ClientDisconnected
        await super().send(message)

    def shutdown(self) -> None:
        """Ask the application to finish; it then closes the connection."""
        if self.handshake_complete and not self.close_sent:
            self._disconnect(RESTART)
        else:
            super().shutdown()

    def _disconnect(self, code: int) -> None:
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})

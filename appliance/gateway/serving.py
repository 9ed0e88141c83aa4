"""The gateway's process: listen → serve until SIGTERM or SIGINT → let replies finish; statuses: errors.py."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.events import BytesMessage, TextMessage

from appliance.access.certificates import tls_context
from appliance.box.show.streams import plain
from appliance.config import Config, GatewayConfig, WyomingConfig, is_loopback, load, split_address
from appliance.errors import AddressInUse, AddressNotOurs, ConfigError, Exit, StorageError, cannot_listen
from appliance.gateway.app import daemon_address, make_app
from appliance.gateway.stream_input import RESTART
from appliance.serve.network import await_addresses
from appliance.serve.notify import Notifier

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers: a text of 4,096 Chinese characters in a URL takes 37 KB."""
MAX_MESSAGE_BYTES = 64 << 10
"""Message of a WebSocket, as a text of 4,096 characters with escapes in JSON."""
MAX_MESSAGES = 4_096
"""Messages of a WebSocket that have come and are not worked on."""
HANDSHAKE = (b"host", b"connection", b"upgrade", b"sec-websocket-")
POLICY_VIOLATION = 1008
KEEP_ALIVE_S = 30
BEAT_S = 5
"""Period of watchdog messages, less than half of f5-gateway.service's WatchdogSec."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
EXHAUSTED_AGAIN_S = 60.0
"""Seconds after which it is said again that no connection can be taken."""
EVENTS = "/api/"
"""Paths of endless streams."""


def main(path: Path | None, overrides: Iterable[str]) -> int:
    """Serve until stopped; returns the exit status."""
    return exit_status("gateway", lambda notifier: _serve(path, overrides, notifier))


def exit_status(command: str, run: Callable[[Notifier], int]) -> int:
    """Status of a program that serves; what keeps it from starting is printed."""
    try:
        return run(Notifier.from_environment(os.environ))
    except ConfigError as error:
        status, why = Exit.CONFIG, str(error)
    except StorageError as error:
        status, why = Exit.STORAGE, str(error)
    except AddressInUse as error:
        status, why = Exit.ADDRESS_IN_USE, str(error)
    except AddressNotOurs as error:
        status, why = Exit.ADDRESS_NOT_OURS, str(error)
    print(plain(f"appliance {command}: {why}"), file=sys.stderr)
    return status


def configured(path: Path | None, overrides: Iterable[str]) -> Config:
    """Read the configuration, and log as it says. Raises ConfigError."""
    config = load(path, overrides)
    logging.basicConfig(
        stream=sys.stderr,
        level=config.log.level.upper(),
        format="%(levelname)s %(name)s: %(message)s",
        force=True,
    )
    return config


def _serve(path: Path | None, overrides: Iterable[str], notifier: Notifier) -> int:
    config = configured(path, overrides)
    app, context, address = (
        make_app(config),
        tls_context(config.server) if config.server.tls_certificate else None,
        daemon_address(config),
    )
    listener = listen(config, "gateway", notifier)
    # Invalid requests are not logged.
    log = logging.getLogger("uvicorn.error")
    log.setLevel(logging.ERROR)
    log.addFilter(_is_a_fault)
    if config.server.tls_certificate and not config.server.tokens:
        logger.warning(
            "server.tokens: none is needed, so whoever reaches %s may speak", config.gateway.listen
        )

    async def beat() -> None:
        notifier.watchdog()

    server = Server(
        uvicorn.Config(
            app,
            http=type("Protocol", (LimitedProtocol,), {"limits": config.gateway}),
            ws=type("Socket", (LimitedSocket,), {"limits": config.gateway}),
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=round(config.gateway.drain_s),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            backlog=config.gateway.max_connections,
            callback_notify=beat,
            timeout_notify=BEAT_S,
            # uvicorn would make its context of these files after it listens; this one is already checked.
            ssl_context_factory=(lambda *_: context) if context else None,
            ssl_certfile=config.server.tls_certificate or None,
        ),
        config,
        notifier,
        address,
    )
    # uvicorn raises the signal that ended it once more when all is over.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.run(sockets=[listener])
    return Exit.OK


def listen(config: Config, section: Literal["gateway", "wyoming"], notifier: Notifier) -> socket.socket:
    """Listening socket of a section, once this machine has its address.

    Raises ConfigError where it may not be opened to a network, AddressInUse, AddressNotOurs.
    """
    own: GatewayConfig | WyomingConfig = getattr(config, section)
    host, port = split_address("listen", own.listen)
    has_tls = section == "gateway" and config.server.tls_certificate
    if not (has_tls or own.open_to_network or is_loopback(host)):
        tls = "set server.tls_certificate and server.tls_key, or " if section == "gateway" else ""
        raise ConfigError(
            f"{section}.listen: {own.listen} can be reached from the network: {tls}write the line "
            f"`open_to_network: true` in the section {section} to speak in plain text with whoever comes"
        )
    name = f"{section}.listen"
    await_addresses({name: own.listen}, notifier)
    try:
        return socket.create_server(
            (host.strip("[]"), port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=own.max_connections,
        )
    except OSError as error:
        raise cannot_listen(name, own.listen, error) from error


class Server(uvicorn.Server):
    """Notifies systemd."""

    def __init__(
        self, uvicorn_config: uvicorn.Config, config: Config, notifier: Notifier, daemon: str
    ) -> None:
        super().__init__(uvicorn_config)
        self._config, self._notifier, self._daemon = config, notifier, daemon
        self._exhausted_at = -math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._report)
        await super().startup(sockets)
        where = f"{'https' if self.config.ssl else 'http'}://{self._config.gateway.listen}"
        logger.info("ready on %s, for the daemon at %s", where, self._daemon)
        self._notifier.ready()
        self._notifier.status(f"serves {where}, for the daemon at {self._daemon}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._notifier.stopping()
        await super().shutdown(sockets)

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report what asyncio does, but not hundreds of times a second that there are no descriptors."""
        error = context.get("exception")
        if self.should_exit and "_start_serving" in context["message"]:
            return  # asyncio listens again a second after each failed attempt, on the socket closed since
        if not (isinstance(error, OSError) and error.errno in EXHAUSTED):
            loop.default_exception_handler(context)
        elif loop.time() >= self._exhausted_at + EXHAUSTED_AGAIN_S:
            self._exhausted_at = loop.time()
            logger.error("a connection cannot be taken now: %s (ulimit -n, LimitNOFILE)", error.strerror)


class LimitedProtocol(H11Protocol):
    """A connection, limited in number, closed when it makes no progress for `stall_s`."""

    limits = GatewayConfig()
    _timer: asyncio.TimerHandle | None = None
    _last_cycle: object = None
    _last_unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            transport.abort()
            return
        self._timer = self.loop.call_later(self.limits.stall_s, self._check_progress)

    def data_received(self, data: bytes) -> None:
        """Take letters in the address as they are: scripts for GPT-SoVITS do not percent-encode a text."""
        is_head = self.cycle is None or self.cycle.response_complete
        line, end, rest = data.partition(b"\r\n")
        if is_head and end and line.startswith(b"GET ") and not line.isascii():
            line = b"".join(b"%%%02X" % byte if byte >= 0x80 else bytes((byte,)) for byte in line)
        super().data_received(line + end + rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        # wsproto reads these as ASCII, whatever they are.
        if not all(value.isascii() for name, value in self.headers if name.startswith(HANDSHAKE)):
            self.send_400_response("A WebSocket begins with headers in ASCII.")
            return
        # The connection is another protocol's from now on.
        self._stop_timer()
        super().handle_websocket_upgrade(event)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check_progress(self) -> None:
        """Close it if since the last check no request was completed, or no byte taken."""
        cycle, unsent = self.cycle, self.transport.get_write_buffer_size()
        idle = cycle is None or cycle.response_complete
        if (idle and cycle is self._last_cycle) or (unsent and unsent >= self._last_unsent > 0):
            # close() would wait until the rest is read.
            self.transport.abort()
            return
        self._last_cycle, self._last_unsent = cycle if idle else object(), unsent
        self._timer = self.loop.call_later(self.limits.stall_s, self._check_progress)

    def shutdown(self) -> None:
        """Let a reply finish, but not a stream of events, which has no end."""
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if is_busy and self.scope["path"].startswith(EVENTS):
            self.transport.close()
        else:
            super().shutdown()


class LimitedSocket(WSProtocol):
    """A WebSocket, closed when it takes nothing for `stall_s`; what it has begun to say it may finish."""

    limits = GatewayConfig()
    _timer: asyncio.TimerHandle | None = None
    _last_unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.limits.stall_s, self._check_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def handle_message(self, event: TextMessage | BytesMessage) -> None:
        super().handle_message(event)
        if self.queue.qsize() > MAX_MESSAGES and not self.close_sent:
            self._disconnect(POLICY_VIOLATION)
            self.transport.close()

    async def send(self, message: Any) -> None:
        """Raises ClientDisconnected also where uvicorn has closed, as after a message that is too long."""
        await self.writable.wait()
        if self.close_sent and message["type"] in ("websocket.send", "websocket.close"):
            raise ClientDisconnected
        await super().send(message)

    def _check_progress(self) -> None:
        """Close it if since the last check no byte was taken."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and unsent >= self._last_unsent > 0:
            self.transport.abort()
            return
        self._last_unsent = unsent
        self._timer = self.loop.call_later(self.limits.stall_s, self._check_progress)

    def shutdown(self) -> None:
        """Have the application finish, which then closes."""
        if self.handshake_complete and not self.close_sent:
            self._disconnect(RESTART)
        else:
            super().shutdown()

    def _disconnect(self, code: int) -> None:
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})


def _is_a_fault(record: logging.LogRecord) -> bool:
    """False for replies that are cut off on purpose, and what has not ended when the drain is over."""
    is_cancelled = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not is_cancelled and "without completing response" not in str(record.msg)

"""The gateway's process: listen → serve until SIGTERM or SIGINT → let replies finish.

Exit statuses: errors.py.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import signal
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import uvicorn

from appliance.access.certificates import tls_context
from appliance.config import Config, GatewayConfig, WyomingConfig, is_loopback, split_address
from appliance.errors import ConfigError, Exit, cannot_listen
from appliance.gateway.app import address_of, make_app
from appliance.gateway.limits import limited
from appliance.serve.network import await_addresses
from appliance.serve.notify import Notifier
from appliance.serve.process import configured, exit_status

logger = logging.getLogger(__name__)

BEAT_S = 5
"""Seconds between watchdog messages: less than half of WatchdogSec in f5-gateway.service."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
EXHAUSTED_AGAIN_S = 60.0
"""Seconds between two log lines about connections that cannot be accepted."""


def main(path: Path | None, overrides: Iterable[str]) -> int:
    """Serve until stopped; return the exit status."""
    return exit_status("gateway", lambda notifier: _serve(path, overrides, notifier))


def _serve(path: Path | None, overrides: Iterable[str], notifier: Notifier) -> int:
    """Listen, and serve until a signal ends uvicorn."""
    config = configured(path, overrides)
    app = make_app(config)
    context = tls_context(config.server) if config.server.tls_certificate else None
    address = address_of(config)
    listener = listen(config, "gateway", notifier)
    # uvicorn's warnings about invalid requests are not logged.
    log = logging.getLogger("uvicorn.error")
    log.setLevel(logging.ERROR)
    log.addFilter(_is_a_fault)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    if config.server.tls_certificate and not config.server.tokens:
        logger.warning("server.tokens is empty: whoever reaches %s may speak", config.gateway.listen)

    async def beat() -> None:
        notifier.watchdog()

    server = NotifyingServer(
        uvicorn.Config(
            app,
            **limited(config.gateway),
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=round(config.gateway.drain_s),
            backlog=config.gateway.max_connections,
            callback_notify=beat,
            timeout_notify=BEAT_S,
            # uvicorn would read the files again after it has started to listen. This context is checked
            # already.
            ssl_context_factory=(lambda *_: context) if context else None,
            ssl_certfile=config.server.tls_certificate or None,
        ),
        config,
        notifier,
        address,
    )
    # uvicorn raises the signal that ended it again when it has finished.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.run(sockets=[listener])
    return Exit.OK


def listen(config: Config, section: Literal["gateway", "wyoming"], notifier: Notifier) -> socket.socket:
    """Listening socket of a section, once this machine has its address.

    Raises ConfigError if the section may not be open to a network, AddressInUse, AddressNotOurs.
    """
    own: GatewayConfig | WyomingConfig = getattr(config, section)
    host, port = split_address("listen", own.listen)
    has_tls = section == "gateway" and config.server.tls_certificate
    if not (has_tls or own.open_to_network or is_loopback(host)):
        tls = "set server.tls_certificate and server.tls_key, or " if section == "gateway" else ""
        raise ConfigError(
            f"{section}.listen: {own.listen} can be reached from the network: {tls}write the line "
            f"`open_to_network: true` in the section {section} to accept everybody, unencrypted"
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


class NotifyingServer(uvicorn.Server):
    """Reports its stages to systemd."""

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
        """Log asyncio's errors. An error that no descriptor is free occurs hundreds of times a second, and is
        logged once in EXHAUSTED_AGAIN_S.
        """
        error = context.get("exception")
        if self.should_exit and "_start_serving" in context["message"]:
            return  # asyncio listens again a second after each failed attempt, on the socket closed since
        if not (isinstance(error, OSError) and error.errno in EXHAUSTED):
            loop.default_exception_handler(context)
        elif loop.time() >= self._exhausted_at + EXHAUSTED_AGAIN_S:
            self._exhausted_at = loop.time()
            logger.error("a connection cannot be accepted now: %s (ulimit -n, LimitNOFILE)", error.strerror)


def _is_a_fault(record: logging.LogRecord) -> bool:
    """False for replies that are cut off on purpose, and for tasks that outlive the drain."""
    is_cancelled = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not is_cancelled and "without completing response" not in str(record.msg)

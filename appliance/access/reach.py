"""Address at which programs of this box reach its daemon."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.config import ServerConfig
from appliance.errors import ConfigError

NEEDS_ROOT = "needs root, or a member of the group f5-appliance"


def daemon_address(server: ServerConfig) -> str:
    """Address of the Unix socket, which needs neither certificate nor token; else `listen`, if the daemon is
    open there.

    Raises ConfigError if the daemon is closed and its socket cannot be used.
    """
    is_closed = bool(server.tokens or server.tls_certificate)
    is_usable = os.access(server.socket, os.R_OK | os.W_OK)
    if is_closed and not server.socket:
        raise ConfigError("server.socket: is empty, and server.listen asks for TLS or a token: set it")
    if is_closed and not is_usable and os.path.exists(server.socket):
        raise ConfigError(f"server.socket: {server.socket}: {NEEDS_ROOT}") from PermissionError()
    return f"unix:{Path(server.socket).absolute()}" if is_closed or is_usable else server.listen

"""The server's certificate. It is checked at start, and read again at the first handshake after a change."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc

from appliance.access.certificates import tls_context
from appliance.config import ServerConfig
from appliance.durable import version_of
from appliance.errors import ConfigError

logger = logging.getLogger(__name__)

Version = tuple[tuple[int, int, int] | None, ...]


def credentials(config: ServerConfig) -> grpc.ServerCredentials | None:
    """Credentials with the configured certificate; None if none is configured. Raises ConfigError."""
    if not config.tls_certificate:
        return None
    files = _Files(config)
    configuration = files.read()
    return grpc.dynamic_ssl_server_credentials(
        configuration, files.changed, require_client_authentication=bool(config.tls_clients)
    )


class _Files:
    """Certificate files. gRPC asks for them at each connection, so that new files need no restart."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._certificate, self._key = Path(config.tls_certificate), Path(config.tls_key)
        self._clients = Path(config.tls_clients) if config.tls_clients else None
        self._version: Version = ()

    def read(self) -> Any:
        """Read the files into gRPC's configuration. Raises ConfigError."""
        self._version = self._versions()
        chain, key = _bytes("tls_certificate", self._certificate), _bytes("tls_key", self._key)
        clients = None if self._clients is None else _bytes("tls_clients", self._clients)
        tls_context(self._config)
        return grpc.ssl_server_certificate_configuration([(key, chain)], clients)

    def changed(self) -> Any:
        """New configuration for gRPC; None if no file has changed, or the new files cannot be used."""
        if self._versions() == self._version:
            return None
        try:
            configuration = self.read()
        except ConfigError as error:
            logger.error("%s; the previous certificate stays in use", error)
            return None
        logger.info("certificate %s reloaded", self._certificate)
        return configuration

    def _versions(self) -> Version:
        return tuple(version_of(path) for path in (self._certificate, self._key, self._clients) if path)


def _bytes(key: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"server.{key}: {path}: {error.strerror}") from error

"""TLS context of the server's certificate. gRPC's server reads the files itself after this check."""

from __future__ import annotations

import ssl
from pathlib import Path

from appliance.config import ServerConfig
from appliance.errors import ConfigError


def tls_context(server: ServerConfig) -> ssl.SSLContext:
    """Read `tls_certificate`, `tls_key` and, if clients must have one, `tls_clients`. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # OpenSSL would otherwise ask the terminal for the key's password.
        context.load_cert_chain(server.tls_certificate, server.tls_key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(
            f"server.tls_certificate, server.tls_key: {server.tls_certificate} and {server.tls_key} are not "
            f"a PEM certificate and its key: {reason}"
        ) from error
    if server.tls_clients:
        read_authority(context, "server.tls_clients", server.tls_clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def read_authority(context: ssl.SSLContext, key: str, path: str) -> bytes:
    """Read certificates of an authority, and let the context trust them. Raises ConfigError."""
    try:
        context.load_verify_locations(path)
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path} contains no PEM certificate: {error}") from error


def _no_password() -> str:
    raise ValueError("the key has a password; write it without: openssl pkey -in KEY -out NEW")

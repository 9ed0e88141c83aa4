"""The check `listening`: connects as a bot does, at each address that the configuration names."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from appliance.access.names import OwnNames
from appliance.access.token_file import Role, listed
from appliance.box.checks.finding import Finding, Level
from appliance.box.root import error_text
from appliance.box.system import Box, unit
from appliance.client import CallFailed, Client, Credentials
from appliance.config import Config, ServerConfig, is_loopback, split_address

WARN_S = 30 * 86_400.0
TRY_S = 3.0
FAMILIES = (socket.AF_INET, socket.AF_INET6)
NO_CHECK_TIME = 0x200000
"""OpenSSL's flag for reading an expired certificate. Python has no name for it."""
DAEMON, WYOMING = "f5-appliance", "f5-wyoming"
LIMIT = "a bot gets in"
RENEW = 'make a certificate: step 1 of "From the streaming PC"'

Remark = tuple[Level, str, str]
"""Level, message and remedy."""


def examine(config: Config, box: Box) -> Finding:
    remarks = list(_remarks(config, box))
    level, _, remedy = max(remarks, key=lambda remark: remark[0].rank)
    return Finding("listening", level, "; ".join(words for _, words, _ in remarks), LIMIT, remedy)


def _remarks(config: Config, box: Box) -> Iterator[Remark]:
    """Connect to each service that listens, and check that a token allows speaking."""
    server, tokens = config.server, config.server.tokens
    listens = {DAEMON: server.listen, "f5-gateway": config.gateway.listen, WYOMING: config.wyoming.listen}
    for name, address in listens.items():
        if name == DAEMON or ((state := unit(box, f"{name}.service")) and state.active == "active"):
            certificate = "" if name == WYOMING else server.tls_certificate
            yield _tried(name, address, certificate, config, box.wall())
    if tokens and not any(token.allows([Role.SPEAK]) for token in listed(Path(tokens))):
        remedy = f"sudo appliance tokens add NAME --role speak --file {tokens}"
        yield Level.FAIL, f"no token in {tokens} may speak: no bot gets in", remedy


def _tried(name: str, address: str, certificate: str, config: Config, now: float) -> Remark:
    """Connect as a bot does, and call the daemon."""
    host, port = split_address("listen", address)
    restart = f"sudo systemctl restart {name}"
    try:
        with socket.create_connection((host.strip("[]"), port), TRY_S) as connection:
            names, ends_s = _shown(connection, certificate) if certificate else ([""], now + WARN_S)
    except ssl.SSLCertVerificationError:
        return Level.FAIL, f"{address}: another certificate than {certificate} is in use", restart
    except OSError as error:
        why = "it answers without TLS" if isinstance(error, ssl.SSLError) else error_text(error)
        return Level.FAIL, f"{address}: {why}", restart
    last_day = time.strftime("%Y-%m-%d", time.gmtime(ends_s))
    if ends_s < now:
        return Level.FAIL, f"{address}: the certificate expired on {last_day}", RENEW
    if name == DAEMON and (problem := _refusal(config.server, names[0].replace("*", "any"))):
        return Level.FAIL, f"{address}: {problem}", restart
    if ends_s < now + WARN_S:
        return Level.WARN, f"{address}: the certificate ends on {last_day}", RENEW
    if certificate and (foreign := _foreign(names, address, config.gateway.names)):
        remedy = f"{RENEW}; or add the box's other names to gateway.names"
        return Level.WARN, f"{address}: the certificate is for {', '.join(foreign)}, not for this box", remedy
    words = address if is_loopback(host) else f"{address}, beyond loopback"
    return Level.PASS, f"{words}, as {', '.join(names)} until {last_day}" if certificate else words, ""


def _shown(connection: socket.socket, certificate: str) -> tuple[list[str], float]:
    """Names and expiry of a server's certificate.

    Raises SSLCertVerificationError if it is not this file's.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    context.load_verify_locations(certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with context.wrap_socket(connection) as secured:
        fields: Any = secured.getpeercert()
    names = [str(name) for _, name in fields.get("subjectAltName", ())]
    return names or ["nobody"], ssl.cert_time_to_seconds(fields["notAfter"])


def _foreign(names: list[str], address: str, vouched: Sequence[str]) -> list[str]:
    """Names of a certificate that do not belong to this box; all names, if a bot on another machine can use
    none of them.
    """
    if all(map(is_loopback, names)) and not is_loopback(split_address("listen", address)[0]):
        return names
    own = OwnNames("0.0.0.0:0", vouched)  # with this machine's names
    return [name for name in names if name not in vouched and not _is_ours(name, own)]


def _is_ours(name: str, own: OwnNames) -> bool:
    is_six = ":" in name
    if not is_six and not name.rpartition(".")[2].isdigit():
        return name.startswith("*.") or name in own
    with suppress(OSError), socket.create_server((name, 0), family=FAMILIES[is_six]):
        return True
    return False


def _refusal(server: ServerConfig, name: str) -> str:
    """Reason why the daemon refuses a bot at this name; "" if the bot needs nothing but a token."""
    if server.tls_clients:
        return ""  # this check has no client's certificate
    authority = Path(server.tls_certificate).read_bytes() if server.tls_certificate else b""
    try:
        with Client(server.listen, Credentials(authority, name=name)) as client:
            client.queue()
    except CallFailed as error:
        return "" if server.tokens and error.reason == "UNAUTHENTICATED" else error.explained
    return "it requires no token, although server.tokens is set" if server.tokens else ""

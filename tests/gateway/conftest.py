"""A daemon on the tiny bundle with the gateway in front of it, each in a separate process."""

import contextlib
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.access.token_file import Role
from appliance.client import Client
from tests.harness.daemons import Program, Running, Shared, followed, free_port, start
from tests.harness.patience import PATIENCE_S, until
from tests.test_lock import Locked

NAMED = "https://socialstream.ninja"
"""The only other site whose pages may call the fixture's gateway."""
LINE = {"model": "tts-1", "input": "One, two, three.", "voice": "ann", "seed": 7, "nfe": 2}
SAID = "Some call me nature, others call me mother nature."
"""Transcript of a voice."""


@dataclass
class Answer:
    """An HTTP reply."""

    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(
    path: str | bytes, sent: Any = b"", method: str = "POST", headers: Sequence[tuple[str, bytes]] = ()
) -> bytes:
    """Bytes of a request; `sent` is the body, as bytes or as a value for JSON."""
    target = path if isinstance(path, bytes) else path.encode()
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    lines = [method.encode() + b" " + target + b" HTTP/1.1", b"host: localhost", b"connection: close"]
    lines += [f"content-length: {len(body)}".encode()] if body or method == "POST" else []
    lines += [name.encode() + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def read(connection: socket.socket) -> bytes:
    """All bytes until the connection closes."""
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        parts.extend(iter(lambda: connection.recv(65_536), b""))
    return b"".join(parts)


def until_idle(daemon: Running, channel: str = "") -> None:
    """Wait until the daemon speaks for no caller who has left."""
    with Client(daemon.address) as client:
        until(lambda: not client.utterances(channel))


@dataclass
class Doors(Program):
    """A program that serves an API in front of its daemon."""

    daemon: Running
    address: str

    @contextlib.contextmanager
    def connected(self, raw: bytes = b"") -> Iterator[socket.socket]:
        """A connection over which `raw` was sent."""
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
            connection.sendall(raw)
            yield connection


@dataclass
class Gateway(Doors):
    """A running gateway, and its daemon."""

    certificate: Path | None = None
    """Certificate of the authority for its TLS."""

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://{self.address}"

    def ask(self, path: str, sent: Any = None, method: str | None = None, **headers: str) -> Answer:
        """Send a request and return the answer; `sent` is the body, as bytes or as a value for JSON."""
        body = sent if isinstance(sent, bytes) or sent is None else json.dumps(sent).encode()
        given = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        asked = urllib.request.Request(f"{self.url}{path}", body, given, method=method)
        context = ssl.create_default_context(cafile=self.certificate) if self.certificate else None
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE_S, context=context) as reply:
                return Answer(reply.status, reply.headers, reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())


@contextlib.contextmanager
def gateway_of(daemon: Running, /, *, within: Sequence[str] = (), **keys: Any) -> Iterator[Gateway]:
    """Start a gateway with `keys` in its section, and end it after the block; `within` as for `start`."""
    command, address = command_of("gateway", daemon, keys)
    crt = daemon.config["server"].get("tls_certificate")
    with followed(Gateway(start(*command, within=within), daemon, address, crt and Path(crt))) as gateway:
        yield gateway


def command_of(name: str, daemon: Running, keys: dict[str, Any]) -> tuple[tuple[object, ...], str]:
    """Command of a program in front of this daemon with `keys` in its section, and its address."""
    address = keys.setdefault("listen", f"127.0.0.1:{free_port()}")
    path = daemon.folder / f"{name}-{address.rpartition(':')[2]}.yaml"
    path.write_text(yaml.safe_dump({**daemon.config, name: keys}))
    return ("-m", "appliance", name, "--config", path), address


@pytest.fixture(scope="session")
def gateway(shared_box: Shared) -> Iterator[Gateway]:
    """Gateway shared by all files, in front of the daemon with the voice `ann`."""
    with gateway_of(shared_box, voices={"shimmer": "ann"}, origins=[NAMED]) as gateway:
        yield gateway


@dataclass
class Guarded:
    """A gateway with TLS and tokens, and a token of each role."""

    gateway: Gateway
    tokens: Path
    held: dict[Role, str]

    def ask(self, path: str, role: Role | str, sent: Any = None, **more: Any) -> Answer:
        """Send a request with the token of a role, or with this token."""
        token = self.held[role] if isinstance(role, Role) else role
        shown = {"authorization": f"Bearer {token}"} if token else {}
        return self.gateway.ask(path, sent, **shown, **more)


@pytest.fixture(scope="session")
def guarded(locked: Locked) -> Iterator[Guarded]:
    with gateway_of(locked.daemon) as gateway:
        yield Guarded(gateway, locked.file, {role: locked.tokens[role.value] for role in Role})

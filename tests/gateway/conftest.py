"""A daemon on the tiny bundle with the gateway before it, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPMessage
from typing import Any

import pytest
import yaml

from tests.daemons import Program, Running, followed, free_port, running, start
from tests.patience import PATIENCE_S

NAMED = "https://socialstream.ninja"
"""The one other site whose pages may call the fixture's gateway."""


@dataclass
class Answer:
    """An HTTP reply."""

    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Gateway(Program):
    """A gateway that was started, and its daemon."""

    daemon: Running
    address: str

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def ask(self, path: str, sent: Any = None, method: str | None = None, **headers: str) -> Answer:
        """A request; `sent` is the body, as bytes or as what becomes JSON."""
        body = sent if isinstance(sent, bytes) or sent is None else json.dumps(sent).encode()
        given = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        request = urllib.request.Request(f"{self.url}{path}", body, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                return Answer(reply.status, reply.headers, reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())


@contextlib.contextmanager
def gateway_of(daemon: Running, /, *, within: Sequence[str] = (), **keys: Any) -> Iterator[Gateway]:
    """Start a gateway, with these keys in its section, and leave none behind; `within` as for `start`."""
    address = keys.setdefault("listen", f"127.0.0.1:{free_port()}")
    path = daemon.folder / f"gateway-{address.rpartition(':')[2]}.yaml"
    path.write_text(yaml.safe_dump({**daemon.config, "gateway": keys}))
    command = ("-m", "appliance", "gateway", "--config", path)
    gateway = Gateway(start(*command, within=within), daemon, address)
    with followed(gateway):
        yield gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """With one voice, `ann`."""
    with running(tmp_path_factory.mktemp("box")) as daemon:
        daemon.add_voice()
        with gateway_of(daemon, voices={"shimmer": "ann"}, origins=[NAMED]) as gateway:
            yield gateway

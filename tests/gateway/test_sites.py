"""Whose requests are answered: by Host, Origin, Sec-Fetch-Site and Referer, and of whose pages in Chromium."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse

from appliance.client import Client
from appliance.config import GatewayConfig
from appliance.gateway.sites import SitesMiddleware
from tests.daemons import free_port
from tests.gateway.browser import CHROMIUM, Browser, chromium
from tests.gateway.conftest import NAMED, Gateway, gateway_of
from tests.patience import PATIENCE_S, until

SPEAK, READ, VOICES, MODERATE = "/v1/audio/speech", "/api/queue", "/v1/audio/voices", "/api/channels/x/skip"
FOREIGN = "http://evil.example"
Headers = tuple[tuple[str, str], ...]


async def status(config: GatewayConfig, headers: Headers, path: str = SPEAK, *, tls: bool = False) -> int:
    """Status of a request with these headers; 200: it is passed on."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "https" if tls else "http",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }
    await SitesMiddleware(PlainTextResponse("passed on"), config, tls)(scope, receive, send)
    return int(sent[0]["status"])


LOCAL = GatewayConfig(names=("Box.lan", "192.168.1.5"))
OPEN = GatewayConfig(listen="0.0.0.0:8880", open_to_network=True, names=("Box.lan",))
EVERYWHERE = ("127.0.0.1", "127.0.0.1:8880", "127.0.0.1:", "[::1]:9", "localhost", "LocalHost.:80", "a.localhost")
NOWHERE = (
    *("evil.example", "evil.example:8880", "localhost.evil.example", "127.0.0.1.evil.example", "xlocalhost"),
    *("", ":8880", "localhost:x", "localhost:8880:1", "user@localhost", "localhost/", "localhost, evil.example"),
    *("http://localhost", "127.1", "2130706433", "::1", "[::1", "[", "[localhost]", "locälhost", "evil.box.lan"),
    # To these browsers come to this machine as well, from any site, and do not say so.
    *("0.0.0.0:8880", "[::]:8880", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
)


@pytest.mark.parametrize("config", [LOCAL, OPEN])
async def test_own_names(config: GatewayConfig) -> None:
    for host in (*EVERYWHERE, "box.lan", "BOX.LAN.:1"):
        assert await status(config, (("host", host),)) == 200, host
    for host in NOWHERE:
        for path in (SPEAK, READ, VOICES, MODERATE, "/", "/overlay", "/static/api.js", "/none"):
            assert await status(config, (("host", host),), path) == 421, (host, path)
        assert await status(config, (("host", host),), "/livez") == 200
    assert await status(config, ()) == 421


async def test_names_that_only_a_listener_beyond_loopback_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address cannot be rebound. A machine's own name could be, by the network that it is in."""
    monkeypatch.setattr(socket, "gethostname", lambda: "Stage-Box.example.org")
    for host in ("10.0.0.7:8880", "[fd00::7]:8880", "stage-box", "stage-box.local", "stage-box.example.org"):
        assert await status(OPEN, (("host", host),)) == 200, host
        assert await status(LOCAL, (("host", host),)) == 421, host
    assert await status(LOCAL, (("host", "192.168.1.5:8880"),)) == 200
    listens_at_a_name = GatewayConfig(listen="voicebox:8880", open_to_network=True)
    assert await status(listens_at_a_name, (("host", "voicebox:8880"),)) == 200


async def test_with_tls_the_certificate_has_vouched_for_the_name() -> None:
    assert await status(GatewayConfig(), (("host", "voicebox.example.org"),), tls=True) == 200
    own = (("host", "voicebox.example.org"), ("origin", "https://voicebox.example.org"))
    assert await status(GatewayConfig(), own, tls=True) == 200
    assert await status(GatewayConfig(), (*own[:1], ("origin", "http://voicebox.example.org")), tls=True) == 403


async def test_a_target_that_names_its_host_is_held_to_that_too() -> None:
    for target, host in (("localhost", "localhost"), ("127.0.0.1:8880", "localhost")):
        assert await status(LOCAL, (("host", host),), f"http://{target}/tts") == 200
    for target, host in (("evil.example", "localhost"), ("localhost", "evil.example"), ("", "localhost")):
        assert await status(LOCAL, (("host", host),), f"HTTP://{target}/tts") == 421
    foreign = (("host", "localhost"), ("origin", FOREIGN))
    assert await status(LOCAL, foreign, "http://localhost/api/queue") == 403


OWN: tuple[Headers, ...] = (
    (),
    (("origin", "http://localhost:8880"),),
    (("origin", "HTTP://LOCALHOST.:8880"),),
    (("origin", "http://localhost:8880"), ("sec-fetch-site", "same-origin")),
    (("sec-fetch-site", "same-origin"),),
    (("sec-fetch-site", "none"),),
    (("referer", "http://localhost:8880/overlay?channel=x"),),
    (("sec-fetch-site", "none"), ("referer", "http://evil.example/")),
)
OTHERS: tuple[Headers, ...] = (
    (("origin", FOREIGN),),
    (("origin", "null"),),
    (("origin", ""),),
    (("origin", "http://["),),
    (("origin", "http://localhost"),),
    (("origin", "http://localhost:8881"),),
    (("origin", "https://localhost:8880"),),
    (("origin", "http://127.0.0.1:8880"),),
    (("origin", "http://localhost:8880.evil.example"),),
    (("origin", "http://localhost:8880@evil.example"),),
    (("origin", "http://evil.example#http://localhost:8880"),),
    (("origin", FOREIGN), ("sec-fetch-site", "same-origin")),
    (("origin", "http://localhost:8880"), ("origin", FOREIGN)),
    (("sec-fetch-site", "cross-site"),),
    (("sec-fetch-site", "same-site"),),
    (("sec-fetch-site", "what comes"),),
    (("sec-fetch-site", ""),),
    (("sec-fetch-site", "cross-site"), ("referer", "http://localhost:8880/")),
    (("sec-fetch-site", "cross-site"), ("referer", f"{NAMED}/")),
    (("referer", "http://evil.example/http://localhost:8880/"),),
    (("referer", "http://localhost:8880@evil.example/"),),
    (("referer", f"{NAMED}/"),),
    (("referer", "about:blank"),),
)
SITES: tuple[Headers, ...] = ((("origin", NAMED),), (("origin", NAMED), ("sec-fetch-site", "cross-site")))
HOST = (("host", "localhost:8880"),)
PATHS = (SPEAK, "/tts", VOICES, "/v1/models", READ, "/api/listen", "/api/status", MODERATE, "/api/requests/x/cancel")


@pytest.mark.parametrize("origins", [(), (NAMED,), ("*",), ("*", f"{NAMED}:443")])
async def test_pages_by_what_their_requests_carry(origins: tuple[str, ...]) -> None:
    config = GatewayConfig(origins=origins)
    for path in PATHS:
        for_any = "*" in origins and not path.startswith("/api/")
        for headers in OWN:
            assert await status(config, (*HOST, *headers), path) == 200, (path, headers)
        for headers in OTHERS:
            assert await status(config, (*HOST, *headers), path) == (200 if for_any else 403), (path, headers)
        for headers in SITES:
            allowed = for_any or any(NAMED in origin for origin in origins)
            assert await status(config, (*HOST, *headers), path) == (200 if allowed else 403), (path, headers)
    # A link may lead to the pages, and they ask by themselves.
    for path in ("/", "/overlay", "/static/api.js", "/readyz"):
        assert await status(config, (*HOST, ("sec-fetch-site", "cross-site")), path) == 200


PIECES = st.sampled_from(
    ("http", "https", "://", ":", "/", "[", "]", "::1", "localhost", "127.0.0.1", ".", "@", "#", "null", "8880")
)
VALUES = st.lists(PIECES | st.text(st.characters(max_codepoint=255), max_size=3), max_size=6).map("".join)


@given(st.lists(st.tuples(st.sampled_from(("host", "origin", "referer", "sec-fetch-site")), VALUES), max_size=4), VALUES)
async def test_odd_headers_are_refused_or_passed_on(headers: list[tuple[str, str]], path: str) -> None:
    assert await status(GatewayConfig(origins=(NAMED,)), tuple(headers), f"/{path}") in (200, 403, 421)
    assert await status(GatewayConfig(origins=("*",)), (*HOST, *headers), path) in (200, 403, 421)

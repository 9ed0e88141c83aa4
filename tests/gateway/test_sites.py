"""Sites whose requests are answered, by Host, Origin, Sec-Fetch-Site and Referer, and by pages in
Chromium."""

import contextlib
import http.server
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse

from appliance.client import CallFailed, Client
from appliance.config import GatewayConfig
from appliance.gateway.sites import SitesMiddleware
from tests.gateway.browser import CHROMIUM, Browser, chromium
from tests.gateway.conftest import NAMED, Gateway, gateway_of
from tests.harness.patience import until
from tests.harness.rows import rows

SPEAK, READ, VOICES, MODERATE = "/v1/audio/speech", "/api/queue", "/v1/audio/voices", "/api/channels/x/skip"
FOREIGN = "http://evil.example"
Headers = tuple[tuple[str, str], ...]


async def status(config: GatewayConfig, headers: Headers, path: str = SPEAK, *, tls: bool = False) -> int:
    """Status of a request with these headers; 200 if the gateway passes it on."""
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
EVERYWHERE = (
    *("127.0.0.1", "127.0.0.1:8880", "127.0.0.1:", "[::1]:9"),
    *("localhost", "LocalHost.:80", "a.localhost"),
)
NOWHERE = rows(__file__, "hosts_refused.jsonl")


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
    """An address cannot be rebound. The network of a machine could rebind the machine's own name."""
    monkeypatch.setattr(socket, "gethostname", lambda: "Stage-Box.example.org")
    for host in ("10.0.0.7:8880", "[fd00::7]:8880", "stage-box", "stage-box.local", "stage-box.example.org"):
        assert await status(OPEN, (("host", host),)) == 200, host
        assert await status(LOCAL, (("host", host),)) == 421, host
    assert await status(LOCAL, (("host", "192.168.1.5:8880"),)) == 200
    listens_at_a_name = GatewayConfig(listen="voicebox:8880", open_to_network=True)
    assert await status(listens_at_a_name, (("host", "voicebox:8880"),)) == 200


async def test_the_certificate_vouches_for_the_name_with_tls() -> None:
    assert await status(GatewayConfig(), (("host", "voicebox.example.org"),), tls=True) == 200
    own = (("host", "voicebox.example.org"), ("origin", "https://voicebox.example.org"))
    assert await status(GatewayConfig(), own, tls=True) == 200
    plain = ("origin", "http://voicebox.example.org")
    assert await status(GatewayConfig(), (*own[:1], plain), tls=True) == 403


async def test_the_host_in_a_target_counts_too() -> None:
    for target, host in (("localhost", "localhost"), ("127.0.0.1:8880", "localhost")):
        assert await status(LOCAL, (("host", host),), f"http://{target}/tts") == 200
    for target, host in (("evil.example", "localhost"), ("localhost", "evil.example"), ("", "localhost")):
        assert await status(LOCAL, (("host", host),), f"HTTP://{target}/tts") == 421
    foreign = (("host", "localhost"), ("origin", FOREIGN))
    assert await status(LOCAL, foreign, "http://localhost/api/queue") == 403


def by(name: str, *values: str) -> tuple[Headers, ...]:
    return tuple(((name, value),) for value in values)


OWN: tuple[Headers, ...] = rows(__file__, "sites_of_its_own.jsonl")
OTHERS: tuple[Headers, ...] = rows(__file__, "sites_of_others.jsonl")
SITES: tuple[Headers, ...] = ((("origin", NAMED),), (("origin", NAMED), ("sec-fetch-site", "cross-site")))
HOST = (("host", "localhost:8880"),)
PATHS = (
    *(SPEAK, "/tts", VOICES, "/v1/models", READ, "/api/listen", "/api/status", MODERATE),
    "/api/requests/x/cancel",
)


@pytest.mark.parametrize("origins", [(), (NAMED,), ("*",), ("*", f"{NAMED}:443")])
async def test_pages_by_what_their_requests_carry(origins: tuple[str, ...]) -> None:
    config = GatewayConfig(origins=origins)
    is_named = any(NAMED in origin for origin in origins)
    for path in PATHS:
        # All of them are POSTs, which store a voice.
        for_any = "*" in origins and not path.startswith("/api/") and path != VOICES
        for kind, allowed in ((OWN, True), (OTHERS, for_any), (SITES, for_any or is_named)):
            for headers in kind:
                passed = await status(config, (*HOST, *headers), path)
                assert passed == (200 if allowed else 403), (path, headers)
    # A link may lead to the pages, which then send requests themselves.
    for path in ("/", "/overlay", "/static/api.js", "/readyz"):
        assert await status(config, (*HOST, ("sec-fetch-site", "cross-site")), path) == 200


PIECES = st.sampled_from(
    (
        *("http", "https", "://", ":", "/", "[", "]", "::1"),
        *("localhost", "127.0.0.1", ".", "@", "#", "null"),
        "8880",
    )
)
HEADERS = ("host", "origin", "referer", "sec-fetch-site")
VALUES = st.lists(PIECES | st.text(st.characters(max_codepoint=255), max_size=3), max_size=6).map("".join)


@given(st.lists(st.tuples(st.sampled_from(HEADERS), VALUES), max_size=4), VALUES)
async def test_odd_headers_are_refused_or_passed_on(headers: list[tuple[str, str]], path: str) -> None:
    assert await status(GatewayConfig(origins=(NAMED,)), tuple(headers), f"/{path}") in (200, 403, 421)
    assert await status(GatewayConfig(origins=("*",)), (*HOST, *headers), path) in (200, 403, 421)


ATTEMPTS = (Path(__file__).parent / "attempts.js").read_text()
TOOL, EVIL, BOX = "tool.example", "evil.example", "box.example"
NOT_THE_BROWSER = (
    # All names resolve to this machine, so that only the gateway refuses.
    "--host-resolver-rules=MAP *.example 127.0.0.1",
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,IsolateOrigins,site-per-process",
    # The list of a page's frames then includes it.
    "--disable-site-isolation-trials",
)
WITH_ORIGIN = {"form", "blind", "simple", "json", "socket"}
WITHOUT = {"image", "sound", "frame", "link"}
"""Attempts to speak, with and without the page's origin; the text of each is its name."""
UNSEEN = "chrome-error://chromewebdata/"
"""Address of a frame whose page forbids framing."""
OWN_PAGE = Path(__file__).with_name("own_page.js").read_text("utf-8")
READS = ("queue", "listen", "status", "events")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with chromium(tmp_path_factory.mktemp("chromium"), *NOT_THE_BROWSER) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages() -> Iterator[int]:
    """Port of a server of empty pages, which serves any site's name."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><title>Another site</title><body></body>"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


class Spoken:
    """Texts of the requests that reached the daemon."""

    def __init__(self, client: Client) -> None:
        self._client, self._count = client, itertools.count()
        self._texts: dict[str, str] = {}
        self._told: set[str] = set()

    def watch(self) -> None:
        with contextlib.suppress(CallFailed, ValueError):  # the test has ended
            for event in self._client.watch():
                self._texts.update((one.request_id, one.text.strip(" .").lower()) for one in event.utterances)

    def since_last(self) -> set[str]:
        """Texts of all requests before this call."""
        last = f"call-{next(self._count)}"
        self._client.speak("Over.", "ann", nfe=1, request_id=last)
        until(lambda: last in self._texts)
        new = {name: text for name, text in list(self._texts.items()) if name not in self._told}
        self._told |= set(new)
        return {text for name, text in new.items() if not name.startswith("call-")}


@pytest.fixture(scope="module")
def spoken(gateway: Gateway) -> Iterator[Spoken]:
    with Client(gateway.daemon.address) as client:
        spoken = Spoken(client)
        threading.Thread(target=spoken.watch, daemon=True).start()
        spoken.since_last()  # earlier tests' texts
        yield spoken


def in_chromium(test: Any) -> Any:
    return pytest.mark.slow(pytest.mark.once(test))


def attempts(browser: Browser, page_url: str, gateway_url: str) -> dict[str, Any]:
    """Results of a page's attempts: statuses, or "refused" if the browser hides the reply from the page."""
    page = browser.page(page_url)
    done: dict[str, Any] = page.run(f"({ATTEMPTS})({json.dumps(gateway_url)})")
    frames = page.send("Page.getFrameTree")["frameTree"]["childFrames"]
    done["framed"] = [frame["frame"]["url"] for frame in frames if frame["frame"].get("name") == "shown"]
    # The page follows a link.
    page.run(f"void (location.href = '{gateway_url}/tts?text=link&ref_audio_path=ann&nfe=1')")
    page.until(f"location.href.startsWith('{gateway_url}') && document.readyState === 'complete'")
    page.close()
    return done


@in_chromium
def test_another_site_does_nothing(gateway: Gateway, browser: Browser, pages: int, spoken: Spoken) -> None:
    """A page may come from another name, or from this machine at another port, which is the same site to the
    browser."""
    for host in (EVIL, "127.0.0.1"):
        done = attempts(browser, f"http://{host}:{pages}/", gateway.url)
        assert {name: end for name, end in done.items() if end != "refused"} == {"framed": [UNSEEN]}, host
    assert spoken.since_last() == set()
    # The browser names no origin for an address that a person typed.
    browser.page(f"{gateway.url}/tts?text=typed&ref_audio_path=ann&nfe=1").close()
    assert spoken.since_last() == {"typed"}


@in_chromium
def test_a_named_page_does_all_it_may(gateway: Gateway, browser: Browser, pages: int, spoken: Spoken) -> None:
    origin = f"http://{TOOL}:{pages}"
    with gateway_of(gateway.daemon, origins=[origin]) as own:
        done = attempts(browser, f"{origin}/", own.url)
        may = dict.fromkeys(("socket", "simple", "json", "voices", "pause", *READS), 200)
        assert done == {**may, "cancel": 404, "framed": [UNSEEN]}
        # An image may be somebody else's content on that page.
        assert spoken.since_last() == WITH_ORIGIN
        assert gateway.ask("/api/channels/stage/resume", {}).status == 200
        done = attempts(browser, f"http://{EVIL}:{pages}/", own.url)
        assert set(map(str, done.values())) == {"refused", str([UNSEEN])}
        assert spoken.since_last() == set()


@in_chromium
def test_any_page_may_speak_where_any_is_named_and_no_more(
    gateway: Gateway, browser: Browser, pages: int, spoken: Spoken
) -> None:
    with gateway_of(gateway.daemon, origins=["*"]) as own:
        done = attempts(browser, f"http://{EVIL}:{pages}/", own.url)
        may = dict.fromkeys(("socket", "simple", "json", "voices"), 200)
        assert done == {**may, **dict.fromkeys((*READS, "pause", "cancel"), "refused"), "framed": [UNSEEN]}
        assert spoken.since_last() == WITH_ORIGIN | WITHOUT


@in_chromium
def test_a_rebound_name_does_nothing_own_ones_all(gateway: Gateway, browser: Browser, spoken: Spoken) -> None:
    """A rebound name does nothing even if any page may speak: to the browser it is this gateway's page."""
    with gateway_of(gateway.daemon, origins=["*"], names=[BOX]) as own:
        port = own.address.rpartition(":")[2]
        own_names = {BOX: "named", "localhost": "local", "127.0.0.1": "address", "a.localhost": "below"}
        for host, text in {EVIL: "evil", **own_names}.items():
            page = browser.page(f"http://{host}:{port}/overlay?channel=none")
            done = page.run(f"({OWN_PAGE})({json.dumps(text)})")
            assert done == [421 if host == EVIL else 200] * 3, host
            page.close()
        assert spoken.since_last() == set(own_names.values())


@in_chromium
def test_plain_http_requests(gateway: Gateway, browser: Browser, pages: int, spoken: Spoken) -> None:
    """Chromium sends no Sec-Fetch-Site to addresses beyond loopback; a page may suppress Referer too."""
    with gateway_of(gateway.daemon, names=[BOX]) as own:
        url = own.url.replace("127.0.0.1", BOX)
        done = attempts(browser, f"http://{EVIL}:{pages}/", url)
        assert set(map(str, done.values())) == {"refused", str([UNSEEN])}
        assert spoken.since_last() == set()
        page = browser.page(f"http://{EVIL}:{pages}/")
        page.run(f"""new Promise((done) => {{
            const image = new Image();
            image.onload = image.onerror = done;
            image.referrerPolicy = "no-referrer";
            image.src = "{url}/tts?text=hidden&ref_audio_path=ann&nfe=1";
        }})""")
        page.close()
        assert spoken.since_last() == {"hidden"}

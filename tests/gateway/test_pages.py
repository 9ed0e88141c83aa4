"""The pages in headless Chromium, with a daemon and a gateway as processes of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from appliance import access
from appliance.access import Role
from appliance.client import Client, UtteranceAudio
from appliance.config import DeviceConfig
from appliance.device import published, sensors
from appliance.device.box import seconds_since_boot
from appliance.gateway.pages import box_status
from tests.daemons import PATIENCE_S, ROOT, Running, free_port, running
from tests.gateway.browser import CHROMIUM, Browser, Page, chromium
from tests.health.boxes import well

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
TEXT = "Thanks for the follow, welcome to the stream."
LONG = " ".join([TEXT] * 4)
SEED: dict[str, Any] = {"seed": 7, "nfe": 2}


@dataclass
class Gateway:
    """A gateway in front of a daemon."""

    daemon: Running
    address: str
    config: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def start(self) -> None:
        command = [sys.executable, "-m", "appliance", "gateway", "--config", str(self.config)]
        with (self.config.parent / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=log)
        end = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                assert self.get("/livez")
                return
            assert self.process.poll() is None and time.monotonic() < end
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as answer:
            return bytes(answer.read())

    def post(self, path: str, **headers: str) -> int:
        request = urllib.request.Request(self.url + path, b"{}", headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def client(self) -> Client:
        return Client(self.daemon.address)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("pages")
    address = f"127.0.0.1:{free_port()}"
    with running(folder, gateway={"listen": address}) as daemon:
        daemon.add_voice()
        gateway = Gateway(daemon, address, folder / "config.yaml")
        gateway.start()
        try:
            yield gateway
        finally:
            gateway.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


TAP = """(() => {
  window.given = {};
  player.addEventListener("scheduled", ({ detail: { id, offset, samples, when, rate } }) => {
    (given[id] ??= {})[offset] = { samples: [...samples], when, rate };
  });
})()"""


@dataclass
class Given:
    """What Web Audio was given of one utterance."""

    samples: np.ndarray[Any, Any]
    begins: float
    ends: float


def given(page: Page, name: str) -> Given:
    """Its samples, joined; fails where pieces do not follow each other without a gap."""
    pieces = page.run(f"given[{json.dumps(name)}]")
    samples: list[float] = []
    begins = ends = -1.0
    for offset in sorted(pieces, key=int):
        piece = pieces[offset]
        assert int(offset) == len(samples)
        if ends >= 0.0:
            assert abs(piece["when"] - ends) * piece["rate"] < 1e-3
        else:
            begins = piece["when"]
        samples += piece["samples"]
        ends = piece["when"] + len(piece["samples"]) / piece["rate"]
    return Given(np.rint(np.array(samples) * 32_767).astype(np.int16), begins, ends)


def pcm(audio: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(audio, "<i2")


# Without a browser.


def test_assets_are_the_gateways_own_and_name_no_other_address(gateway: Gateway) -> None:
    folder = ROOT / "appliance" / "gateway" / "pages"
    for file in folder.iterdir():
        path = {"status.html": "/", "overlay.html": "/overlay"}.get(file.name, f"/static/{file.name}")
        page = gateway.get(path)
        assert page == file.read_bytes()
        assert b"http://" not in page and b"https://" not in page
    for path in ("/static/..%2fpages.py", "/static/status.html", "/static/none.js"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            gateway.get(path)


def test_status_says_what_machine_it_is(gateway: Gateway) -> None:
    status = json.loads(gateway.get("/api/status"))
    assert status["ready"] and status["voices"] == [{"name": "ann", "display_name": "", "problem": ""}]
    assert status["jetson"] == "" and status["clocks"]["state"] in ("unknown", "unsupported")


def test_a_jetsons_clocks_and_temperatures(tmp_path: Path) -> None:
    jetson = well(tmp_path)
    box = jetson.box()
    now = published.Clocks("pinned", mode="MAXN", domains={"gpu": {"current": 1_300_500_000}})
    published.publish(dataclasses.replace(box, uptime=seconds_since_boot), now)
    status = box_status(DeviceConfig(sysroot=jetson.root))
    assert "Orin" in status["jetson"]
    assert (status["clocks"]["state"], status["clocks"]["mode"]) == ("pinned", "MAXN")
    assert status["domains"]["gpu"]["current"] == 1_300_500_000
    assert status["temperatures"] == sensors.temperatures(box.root) and status["temperatures"]["tj"] > 0


def test_other_sites_do_not_moderate(gateway: Gateway) -> None:
    json_type = {"content-type": "application/json"}
    for path in ("/api/channels/stage/pause", "/api/channels/stage/resume"):
        assert gateway.post(path) == 415
        assert gateway.post(path, **{"content-type": "application/x-www-form-urlencoded"}) == 415
        assert gateway.post(path, **json_type, origin="http://elsewhere.example") == 403
        assert gateway.post(path, **json_type, origin=gateway.url) == 200
        assert gateway.post(path, **json_type) == 200
    assert gateway.post("/api/channels/stage/destroy", **json_type) == 404
    assert gateway.post("/api/requests/none/cancel", **json_type) == 404


def test_a_page_that_is_left_is_forgotten(gateway: Gateway) -> None:
    """The daemon's 64 places for listeners and watchers are enough for one that is loaded again and again."""
    for _ in range(100):
        with urllib.request.urlopen(f"{gateway.url}/api/listen?channel=x", timeout=PATIENCE_S) as events:
            assert events.readline() == b"retry: 1000\n"
            missing = {b"event: paused\n", b"event: queue\n"}
            while missing:
                line = events.readline()
                assert line and line != b"event: fault\n", events.readline()
                missing.discard(line)


# In Chromium.


@needs_chromium
def test_a_line_is_typed_heard_and_skipped(gateway: Gateway, browser: Browser) -> None:
    page = browser.page(gateway.url)
    page.until("document.querySelector('#voice').value === 'ann'")
    page.run(TAP)
    page.type("#text", LONG)
    with gateway.client() as client:
        listener = client.listen("status")
        next(listener)  # from now on it hears
        page.click("#say")
        audio = []
        for event in listener:
            if isinstance(event, UtteranceAudio):
                audio.append(event.data)
                if event.last:
                    name = event.request_id
                    break
    page.until("/s of speech/.test(document.querySelector('#said').innerText)")
    assert page.run("Object.keys(given)") == [name]
    assert np.array_equal(given(page, name).samples, pcm(b"".join(audio)))
    page.until("document.querySelector('.channel .sounds') && player.sounding().length")
    _shots(page, "status")
    page.run(
        "window.stopped = []; player.addEventListener('stopped', ({ detail }) => stopped.push(detail.id))"
    )
    page.click("[aria-label='skip status']")
    page.until("stopped.length")
    assert page.run("stopped") == [name] and page.run("player.sounding().length") == 0
    page.until("/skipped/.test(document.querySelector('#recent').innerText)")
    assert page.run("document.querySelector('#said').innerText") == "Ended: skipped."
    page.close()


@needs_chromium
def test_the_overlay_plays_sample_for_sample_through_a_reconnect_and_a_skip(
    gateway: Gateway, browser: Browser
) -> None:
    page = browser.page(f"{gateway.url}/overlay?channel=stage")
    page.run(TAP)
    page.until("document.querySelector('#problem').hidden")
    with gateway.client() as client:
        plain = client.speak(LONG, "ann", encoding="pcm16", **SEED).audio
        names = ["first", "second"]
        for name in names:
            client.speak(LONG, "ann", channel="stage", user="mo", request_id=name, **SEED)
        page.until("given.second && player.sounding().length")
        heard = [given(page, name) for name in names]
        for one in heard:
            assert np.array_equal(one.samples, pcm(plain))
        assert abs(heard[1].begins - heard[0].ends) * 24_000 < 1e-3
        page.until("document.querySelector('.word.now')")
        assert "mo" in page.run("document.querySelector('.who').innerText")
        page.send("Emulation.setDefaultBackgroundColorOverride", color={"r": 60, "g": 90, "b": 60, "a": 1})
        _shots(page, "overlay")
        # The gateway is killed; what begins meanwhile is heard when it is back, and nothing twice.
        gateway.stop()
        page.until("!document.querySelector('#problem').hidden")
        page.run(
            "window.before = JSON.stringify(Object.keys(given)); window.again = 0; "
            "player.addEventListener('scheduled', ({ detail }) => { if (detail.id !== 'third') again++; })"
        )
        client.speak(LONG, "ann", channel="stage", request_id="third", **SEED)
        gateway.start()
        page.until("given.third")
        page.until("document.querySelector('#problem').hidden")
        assert page.run("again") == 0
        assert np.array_equal(given(page, "third").samples, pcm(plain))
        # What sounds is skipped, and what follows moves up.
        page.run(
            "window.stopped = []; player.addEventListener('stopped', ({ detail }) => stopped.push(detail.id))"
        )
        [skipped] = client.skip("stage")
        page.until("stopped.length")
        assert page.run("stopped") == [skipped.request_id]
        left = [name for name in ("first", "second", "third") if name != skipped.request_id]
        page.until("player.sounding().length")
        assert page.run("player.sounding()[0].id") in left
        client.pause("stage")
        page.until("player.context.state === 'suspended'")
        client.resume("stage")
        page.until("player.context.state === 'running'")
        client.cancel_of(channel="stage")
        page.until("player.sounding().length === 0 && !document.querySelector('.said')")
    page.close()


@needs_chromium
def test_a_page_asks_for_the_token_and_moderates_with_an_admins(
    gateway: Gateway, browser: Browser, tmp_path: Path
) -> None:
    tokens = {role.value: access.add(tmp_path / "tokens.json", role.value, [role]) for role in Role}
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "server": {"tokens": str(tmp_path / "tokens.json")},
        "gateway": {"listen": address, "daemon": gateway.daemon.address},
    }
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**gateway.daemon.config, **settings}))
    closed = Gateway(gateway.daemon, address, config)
    closed.start()
    try:
        for path in ("/api/status", "/api/queue", "/api/listen?channel=stage"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                closed.get(path)
        verb, json_type = "/api/channels/stage/skip", {"content-type": "application/json"}
        assert closed.post(verb, **json_type, authorization=f"Bearer {tokens['speak']}") == 403
        page = browser.page(closed.url)
        page.until("!document.querySelector('#ask-token').hidden")
        page.type("#token", tokens["admin"])
        page.click("#ask-token button")
        page.until("document.querySelector('#voice').value === 'ann'")
        with gateway.client() as client:
            client.pause("stage")
            page.until("document.querySelector('[aria-label=\"resume stage\"]')")
            page.click("[aria-label='resume stage']")
            page.until("document.querySelector('#nothing').hidden === false")
            assert not client.utterances("stage")
        page.close()
    finally:
        closed.stop()


@needs_chromium
def test_a_page_of_another_origin_may_speak(gateway: Gateway, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<title>other</title>")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path))

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page = browser.page(f"http://127.0.0.1:{other.server_port}/")
        body = json.dumps({"model": "tts-1", "input": TEXT, "voice": "ann", "response_format": "wav"})
        fetched = page.run(
            f"fetch('{gateway.url}/v1/audio/speech', {{method: 'POST', body: {json.dumps(body)},"
            " headers: {'content-type': 'application/json', authorization: 'Bearer none'}})"
            ".then(async (a) => [a.status, new TextDecoder().decode((await a.arrayBuffer()).slice(0, 4))])"
        )
        assert fetched == [200, "RIFF"]
        verb = page.run(
            f"fetch('{gateway.url}/api/channels/stage/pause', {{method: 'POST', body: '{{}}',"
            " headers: {'content-type': 'application/json'}}).then((a) => a.status)"
        )
        assert verb == 403
        page.close()
        other.shutdown()


def _shots(page: Page, name: str) -> None:
    """Write pictures at two widths to look at, where F5_SCREENSHOTS names a folder; no page is wider than its
    window."""
    for width, height in ((360, 740), (1280, 800)):
        page.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        assert page.run("document.documentElement.scrollWidth") <= width
        for scheme in ("light", "dark"):
            page.send(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            if folder := os.environ.get("F5_SCREENSHOTS"):
                page.screenshot(Path(folder) / f"{name}-{width}-{scheme}.png")

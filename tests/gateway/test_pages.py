"""The pages in headless Chromium, with a daemon and a gateway as separate processes."""

import dataclasses
import io
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import soundfile as sf
import soxr

from appliance.access import token_file
from appliance.access.token_file import Role
from appliance.box.clocks import clocks_json
from appliance.box.sensors import hwmon as sensors
from appliance.box.system import seconds_since_boot
from appliance.client import Client, UtteranceAudio
from appliance.config import DeviceConfig
from appliance.gateway.pages import box_status
from appliance.serve.metrics import Metrics
from appliance.serve.probes import MetricsServer
from tests.gateway.browser import CHROMIUM, Browser, Page, chromium
from tests.gateway.conftest import LINE, Answer, Gateway, gateway_of
from tests.harness.boxes import well
from tests.harness.daemons import ROOT, free_port, reference_wav
from tests.harness.patience import PATIENCE_S, until

# A single Python is enough: HTTP does not depend on its version.
pytestmark = [pytest.mark.slow, pytest.mark.once]

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
Samples = np.ndarray[Any, Any]
TEXT = "Thanks for the follow, welcome to the stream."
LONG = " ".join([TEXT] * 4)
SEED: dict[str, Any] = {"seed": 7, "nfe": 2}
CONTROLS = ("button", "textbox", "checkbox", "combobox", "slider", "meter")
"""Roles of the accessibility tree whose elements need a name."""
GREEN = {"r": 60, "g": 90, "b": 60, "a": 1}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


TAP, RECORD, WATCH = (Path(__file__).with_name(f"{n}.js").read_text() for n in ("tap", "record", "watch"))
STANDS = "[window.at, window.at = player.sounding()[0]?.at].every((at, _, [before]) => at && at === before)"
"""True if the sounding utterance has not moved since the last look."""


def given(page: Page, name: str) -> tuple[Samples, float, float]:
    """Samples, begin and end of an utterance that the page passed to Web Audio; fails if pieces leave a
    gap."""
    pieces = page.run(f"given[{json.dumps(name)}]")
    samples: list[float] = []
    ends = begins = pieces["0"]["when"]
    for offset in sorted(pieces, key=int):
        piece = pieces[offset]
        assert int(offset) == len(samples)
        assert abs(piece["when"] - ends) * piece["rate"] < 1e-3
        samples += piece["samples"]
        ends = piece["when"] + len(piece["samples"]) / piece["rate"]
    return np.rint(np.array(samples) * 32_767).astype(np.int16), begins, ends


def pcm(audio: bytes) -> Samples:
    return np.frombuffer(audio, "<i2")


def test_assets_are_the_gateways_own_and_name_no_other_address(gateway: Gateway) -> None:
    folder = ROOT / "appliance" / "gateway" / "pages"
    for file in folder.iterdir():
        path = {"status.html": "/", "overlay.html": "/overlay"}.get(file.name, f"/static/{file.name}")
        page = gateway.ask(path).body
        assert page == file.read_bytes()
        assert b"http://" not in page and b"https://" not in page
    for path in ("/static/..%2fpages.py", "/static/status.html", "/static/none.js"):
        assert gateway.ask(path).status == 404


def test_status_says_what_machine_it_is(gateway: Gateway) -> None:
    status = gateway.ask("/api/status").json
    assert status["ready"] and status["voices"] == [
        {"name": "ann", "display_name": "", "problem": "", "styles": []}
    ]
    assert status["jetson"] == "" and status["clocks"]["state"] in ("unknown", "unsupported")
    assert status["slowed"] == {}


def test_a_jetsons_clocks_and_temperatures(tmp_path: Path) -> None:
    jetson = well(tmp_path)
    box = jetson.box()
    gpu = {"current": 1_300_500_000, "pinned": True, "why": ""}
    now = clocks_json.Clocks("pinned", mode="MAXN", domains={"gpu": gpu})
    clocks_json.publish(dataclasses.replace(box, uptime=seconds_since_boot), now)
    status = box_status(DeviceConfig(sysroot=jetson.root))
    assert "Orin" in status["jetson"]
    assert (status["clocks"]["state"], status["clocks"]["mode"]) == ("pinned", "MAXN")
    assert status["domains"]["gpu"]["current"] == 1_300_500_000
    assert status["temperatures"] == sensors.temperatures(box.root) and status["temperatures"]["tj"] > 0


def test_a_form_does_not_moderate(gateway: Gateway) -> None:
    """test_sites.py proves the rights of another site's page."""
    for path in ("/api/channels/stage/pause", "/api/channels/stage/resume"):
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            assert gateway.ask(path, {}, content_type=kind).status == 415
        assert gateway.ask(path, {}).status == 200
    for path in ("/api/channels/stage/destroy", "/api/requests/none/cancel"):
        assert gateway.ask(path, {}).status == 404


def test_a_users_lines_are_ended_and_the_queue_is_read(gateway: Gateway) -> None:
    """A user may have any name; the page gets the same queue as events."""
    lines = {"troll/1": ("club", "hall"), "100% 😈": ("hall",), "mo": ("hall",)}
    with Client(gateway.daemon.address) as client, ThreadPoolExecutor(4) as pool:
        for channel in ("club", "hall"):
            client.pause(channel)
        waiting = [
            pool.submit(gateway.ask, "/v1/audio/speech", {**LINE, "user": user, "channel": channel})
            for user, channels in lines.items()
            for channel in channels
        ]

        def queue(path: str = "/api/queue", **headers: str) -> list[tuple[str, str]]:
            read = gateway.ask(path, **headers).json
            assert set(read) == {"utterances", "paused", "paused_since", "moderated"}
            return sorted((one["user_key"], one["channel"]) for one in read["utterances"])

        def cancel(user: str, query: str = "", **sent: str) -> list[tuple[str, str]]:
            answer = gateway.ask(f"/api/users/{quote(user, safe='')}/cancel{query}", sent or b"")
            assert answer.status == 200
            return [(one["user_key"], one["channel"]) for one in answer.json["ended"]]

        all_lines = sorted((user, channel) for user, channels in lines.items() for channel in channels)
        until(lambda: queue() == all_lines)
        assert queue("/api/queue?channel=club", accept="application/json, */*") == [("troll/1", "club")]
        headers = {"accept": "text/event-stream"}
        asked = urllib.request.Request(f"{gateway.url}/api/queue?channel=club", headers=headers)
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as events:
            assert [events.readline() for _ in range(3)][2] == b"event: queue\n"
            [line] = json.loads(events.readline().removeprefix(b"data: "))["utterances"]
        assert line["user_key"] == "troll/1"
        assert cancel("nobody") == cancel("mo", channel="club") == cancel("mo", "?channel=club") == []
        assert cancel("troll/1", channel="club") == [("troll/1", "club")]
        assert cancel("troll/1") == [("troll/1", "hall")] and cancel("100% 😈") == [("100% 😈", "hall")]
        assert queue() == [("mo", "hall")] and cancel("mo", "?channel=hall") == [("mo", "hall")]
        assert {one.result(PATIENCE_S).status for one in waiting} == {499}
        for path, sent in (("//cancel", {"channel": "hall"}), ("/mo/cancel", {"channel": 1})):
            assert gateway.ask(f"/api/users{path}", sent).status == 400
        assert gateway.ask("/api/users/mo/cancel", {}, content_type="text/plain").status == 415


@contextmanager
def held(gateway: Gateway, names: str) -> Iterator[dict[str, Future[Answer]]]:
    """Lines that wait for approval on the channel "door": the text of "b" is "b."."""
    with (
        Client(gateway.daemon.address) as client,
        ThreadPoolExecutor(len(names)) as pool,
        ExitStack() as ended,
    ):
        client.moderate("door")
        ended.callback(client.clear, "door")
        ended.callback(client.unmoderate, "door")
        waiting = {}
        for name in names:
            line = {**LINE, "input": f"{name}.", "channel": "door", "request_id": name}
            waiting[name] = pool.submit(gateway.ask, "/v1/audio/speech", line)
            until(lambda name=name: name in held_of(gateway))
        yield waiting


def held_of(gateway: Gateway) -> list[str]:
    queue = gateway.ask("/api/queue?channel=door").json
    return [one["request_id"] for one in queue["utterances"] if one["state"] == "HELD"]


def test_held_lines_are_approved_and_rejected(gateway: Gateway) -> None:
    path = "/api/channels/door"
    with held(gateway, "bcde") as waiting:
        assert gateway.ask("/api/queue").json["moderated"] == ["door"]

        def ids(verb: str, sent: object = b"", query: str = "") -> dict[str, list[str]]:
            answer = gateway.ask(f"{path}/{verb}{query}", sent, content_type="application/json")
            assert answer.status == 200
            return {name: [one["request_id"] for one in found] for name, found in answer.json.items()}

        for none in ("nobody", ""):
            assert ids("approve", {"request_id": none}) == {"approved": []}
        preview = f"{path}/preview?request_id=b"
        elsewhere = gateway.ask(preview.replace("door", "hall"))
        assert elsewhere.json["error"]["message"].startswith("'b' is not held on 'hall'")
        until(lambda: gateway.ask(preview).status == 200)
        plain = gateway.ask("/v1/audio/speech", {**LINE, "input": "b.", "response_format": "pcm"}).body
        assert gateway.ask(preview).body[44:].startswith(plain + b"LIST")
        assert ids("reject", {"request_id": "b"}) == {"ended": ["b"]}
        assert ids("approve", query="?request_id=d") == {"approved": ["d"]}
        assert waiting["d"].result(PATIENCE_S).status == 200 and held_of(gateway) == ["c", "e"]
        assert ids("reject") == {"ended": ["c", "e"]}
        for name in "bce":
            refused = waiting[name].result(PATIENCE_S)
            assert (refused.status, refused.json["error"]["code"]) == (409, "rejected")
        assert gateway.ask(f"{path}/approve", {"request_id": 1}).status == 400
        assert gateway.ask(f"{path}/approve", {}, content_type="text/plain").status == 415


def test_a_closed_page_is_forgotten(gateway: Gateway) -> None:
    """The daemon's 64 places for listeners and watchers suffice for a page that reloads again and again."""
    for _ in range(100):
        with urllib.request.urlopen(f"{gateway.url}/api/listen?channel=x", timeout=PATIENCE_S) as events:
            assert events.readline() == b"retry: 1000\n"
            missing = {b"event: paused\n", b"event: queue\n"}
            while missing:
                line = events.readline()
                assert line and line != b"event: fault\n", events.readline()
                missing.discard(line)


@needs_chromium
def test_a_line_is_typed_heard_and_skipped(gateway: Gateway, browser: Browser) -> None:
    page = browser.page(gateway.url)
    page.until("document.querySelector('#voice').value === 'ann'")
    page.until("/not a Jetson.*Temperature/s.test(document.querySelector('#box').innerText)")
    page.run(TAP)
    page.type("#text", LONG)
    with Client(gateway.daemon.address) as client:
        listener = client.listen("status")
        next(listener)  # the listener is connected from here on
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
    assert np.array_equal(given(page, name)[0], pcm(b"".join(audio)))
    page.until("document.querySelector('.channel .sounds') && player.sounding().length")
    assert page.run("document.querySelector('#text').maxLength") == 4_096
    _shots(page, "status")
    for verb, stands in (("pause", STANDS), ("resume", f"!({STANDS})")):
        page.click(labelled(f"{verb} status"))
        page.until(stands)
    page.click("[aria-label='skip status']")
    page.until("stopped.length")
    assert page.run("stopped") == [name] and page.run("player.sounding().length") == 0
    page.until("/skipped/.test(document.querySelector('#recent').innerText)")
    assert page.run("document.querySelector('#said').innerText") == "Ended: skipped."
    page.close()


def labelled(label: str) -> str:
    return f'[aria-label="{label}"]'


def seen(selector: str) -> str:
    return f"document.querySelector('{selector}')"


@needs_chromium
def test_two_moderators_decide_on_what_each_has_aimed_at(gateway: Gateway, browser: Browser) -> None:
    other, page = (browser.page(gateway.url) for _ in range(2))

    def press(*labels: str) -> None:
        for label in labels:
            page.until(seen(labelled(label)))
            page.click(labelled(label))

    def focus(name: str) -> None:
        page.run(f"{seen(f'[data-id={name}]')}.focus()")

    with held(gateway, "bcdefgh") as waiting:
        for one in (page, other):
            one.until(seen(labelled("reject h.")))
        focus("e")
        page.point(labelled("approve c."))
        other.click(labelled("reject b."))
        page.until(f"/rejected/.test({seen('[data-id=b]')}.innerText)")
        page.until(f"!{seen('[data-id=b]')}")
        assert page.run("document.activeElement.dataset.id") == "e"
        page.click()  # at the former place of c
        page.until("/Approved “c[.]”/.test(document.querySelector('#message').innerText)")
        other.until(f"!{seen(labelled('approve c.'))}")
        other.close()
        focus("d")
        for key in "ra":
            page.press(key)
        page.until("document.activeElement.dataset.id === 'e'")
        page.run("document.querySelector('#keys').click()")
        focus("f")
        page.press("r")
        page.run("document.querySelector('#keys').click()")
        page.press("a")
        page.until(f"!{seen('[data-id=f]')}")
        press("pause door", "undo pause door", "pause door", "approve g.", "undo g.")
        ends = {name: waiting[name].result(PATIENCE_S).status for name in "bcdfg"}
        assert ends == {"b": 409, "c": 200, "d": 409, "f": 200, "g": 409}
        _shots(page, "moderated")
        page.run(TAP)
        press("listen e.")
        page.until("played.length")
        whole = sf.info(io.BytesIO(gateway.ask("/api/channels/door/preview?request_id=e").body))
        assert page.run("played") == [pytest.approx(whole.duration, abs=1e-3)]
        press("resume door")
        assert held_of(gateway) == ["e", "h"]
        press("unmoderate door")
        page.until(seen(labelled("moderate door")))
    page.close()


def overlay(gateway: Gateway, browser: Browser, query: str, record: str, **size: int) -> Page:
    page = browser.page(f"{gateway.url}/overlay?{query}", **size)
    page.run(record)
    page.until("document.querySelector('#problem').hidden")
    return page


@needs_chromium
def test_the_overlay_plays_each_sample_through_reconnect_and_skip(gateway: Gateway, browser: Browser) -> None:
    with ExitStack() as gateways, Client(gateway.daemon.address) as client:
        own = gateways.enter_context(gateway_of(gateway.daemon))
        page = overlay(own, browser, "channel=stage&mouth=on", TAP)
        plain = client.speak(LONG, "ann", encoding="pcm16", **SEED).audio
        names = ["first", "second"]
        for name in names:
            client.speak(LONG, "ann", channel="stage", user="mo", request_id=name, **SEED)
        page.until("given.second && player.sounding().length")
        heard = [given(page, name) for name in names]
        for samples, *_ in heard:
            assert np.array_equal(samples, pcm(plain))
        assert abs(heard[1][1] - heard[0][2]) * 24_000 < 1e-3
        page.until("document.querySelector('.word.now')")
        assert "mo" in page.run("document.querySelector('.who').innerText")
        page.send("Emulation.setDefaultBackgroundColorOverride", color=GREEN)
        _shots(page, "overlay")
        # The gateway is killed. Speech that begins before its restart is played afterwards, and nothing
        # twice.
        own.process.kill()
        own.process.wait()
        page.until("!document.querySelector('#problem').hidden")
        page.run(
            "window.before = JSON.stringify(Object.keys(given)); window.again = 0; "
            "player.addEventListener('scheduled', ({ detail }) => { if (detail.id !== 'third') again++; })"
        )
        client.speak(LONG, "ann", channel="stage", request_id="third", **SEED)
        gateways.enter_context(gateway_of(own.daemon, listen=own.address))
        count = "Object.values(given.third ?? {}).reduce((sum, piece) => sum + piece.samples.length, 0)"
        page.until(f"{count} >= {len(pcm(plain))}")
        page.until("document.querySelector('#problem').hidden")
        assert page.run("again") == 0
        assert np.array_equal(given(page, "third")[0], pcm(plain))
        frames = page.run(
            "import('/static/overlay.js').then((it) => [...it.tracks.values()].map((t) => t.length))"
        )
        assert set(frames) == {len(pcm(plain)) // 480}
        # A skip ends the sounding utterance, and the next one moves up.
        [skipped] = client.skip("stage")
        page.until("stopped.length")
        assert page.run("stopped") == [skipped.request_id]
        left = [name for name in ("first", "second", "third") if name != skipped.request_id]
        page.until("player.sounding().length")
        assert page.run("player.sounding()[0].id") in left
        client.cancel_of(channel="stage")
        page.until("player.sounding().length === 0 && !document.querySelector('.said')")
    page.close()


@needs_chromium
def test_a_long_caption_as_written_follows_its_word_a_skip_fades(gateway: Gateway, browser: Browser) -> None:
    page = overlay(gateway, browser, "channel=long", RECORD, width=360, height=160)
    written = "Thanks @mo_99! 4 follows 😂, that is $5 for the stream. " + f"{LONG} {LONG}"
    with Client(gateway.daemon.address) as client:
        client.speak(written, "ann", channel="long", speed=2.0, **SEED)
        page.until("document.querySelector('.text')")
        assert page.run("document.querySelector('.text').textContent") == written.strip()
        marked = page.run("[...document.querySelectorAll('.word')].map((span) => span.textContent)")
        assert marked[:9] == ["Thanks", "@mo_99!", "4", "follows", "😂,", "that", "is", "$5", "for"]
        page.run(WATCH)
        page.until("document.querySelector('.text').scrollTop > 40 && marked.size > 8")
        assert page.run("outside") == []
        page.send("Emulation.setDefaultBackgroundColorOverride", color=GREEN)
        _shots(page, "caption", heights=(160, 200))
        client.skip("long")
        page.until("!document.querySelector('.said')")
    page.until("heard.slice(-2400).every((sample) => sample === 0)")
    heard = np.array(page.run("heard"))
    end = int(np.flatnonzero(heard)[-1]) + 1
    before, fade = np.abs(heard[: end - 720]), np.abs(heard[end - 720 : end])  # 30 ms at 24 kHz
    assert fade[-120:].max() < 0.4 * before.max()  # a sixth of the fade's beginning
    page.close()


@needs_chromium
def test_the_mouth_moves_with_the_voice_and_rests_after_it(gateway: Gateway, browser: Browser) -> None:
    page = overlay(gateway, browser, "channel=mouth&mouth=on&captions=off", TAP)
    opened = "Number(document.querySelector('#mouth ellipse').getAttribute('ry'))"
    assert page.run(opened) == 2
    with Client(gateway.daemon.address) as client:
        client.speak(LONG, "ann", channel="mouth", **SEED)
        page.until(f"{opened} > 6")
        _shots(page, "mouth")
        client.skip("mouth")
        page.until(f"{opened} === 2")
        reduced = [{"name": "prefers-reduced-motion", "value": "reduce"}]
        page.send("Emulation.setEmulatedMedia", features=reduced)
        page.run(
            f"window.seen = new Set(); new MutationObserver(() => seen.add({opened}))"
            ".observe(document.querySelector('#mouth ellipse'), { attributes: true })"
        )
        client.speak(TEXT, "ann", channel="mouth", **SEED)
        page.until(f"seen.size > 1 && {opened} === 2")
    assert sorted(page.run("[...seen]")) == [2, pytest.approx(7.6)]
    assert not page.run("document.querySelector('.said')")
    assert page.problems() == []
    page.close()


@needs_chromium
def test_an_overlay_of_all_channels_falls_silent_on_a_paused_one(gateway: Gateway, browser: Browser) -> None:
    page = overlay(gateway, browser, "", RECORD)
    silent = "heard.length > 2400 && heard.slice(-2400).every((sample) => sample === 0)"
    at = "player.sounding().find(({ id }) => id === 'left').at"
    with Client(gateway.daemon.address) as client:
        client.speak(LONG, "ann", channel="left", request_id="left", **SEED)
        page.until(f"document.querySelector('.word.now') && !({silent})")
        client.pause("left")
        page.until(silent)
        held_at = page.run(at)
        client.speak(LONG, "ann", channel="right", request_id="right", **SEED)
        page.until(f"player.sounding().length === 2 && !({silent})")
        assert page.run(at) == held_at > 0
        page.run(TAP)
        client.resume("left")
        page.until(f"{at} > {held_at}")
        page.until("given.left")
        assert min(map(int, page.run("given.left"))) == round(held_at * 24_000)
        for channel in ("left", "right"):
            client.cancel_of(channel=channel)
    assert page.problems() == []
    page.close()


@needs_chromium
def test_a_page_asks_for_a_token_and_moderates(gateway: Gateway, browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens = {role: token_file.add(path, role.value, [role]) for role in Role}
    server = {**gateway.daemon.config["server"], "tokens": str(path)}
    daemon = dataclasses.replace(gateway.daemon, config={**gateway.daemon.config, "server": server})
    with gateway_of(daemon) as closed:
        for path in ("/api/status", "/api/minutes", "/api/queue", "/api/listen?channel=stage"):
            assert closed.ask(path).status == 401
        verb, bearer = "/api/channels/stage/skip", f"Bearer {tokens[Role.SPEAK]}"
        assert closed.ask(verb, {}, authorization=bearer).status == 403
        assert closed.ask("/api/channels/stage/preview", authorization=bearer).status == 403
        page = browser.page(closed.url)
        page.until("!document.querySelector('#ask-token').hidden")
        page.type("#token", tokens[Role.ADMIN])
        page.click("#ask-token button")
        page.until("document.querySelector('#voice').value === 'ann'")
        with Client(daemon.address) as client:
            client.pause("stage")
            page.until("document.querySelector('[aria-label=\"resume stage\"]')")
            page.click("[aria-label='resume stage']")
            page.until("document.querySelector('#nothing').hidden === false")
        page.close()


@needs_chromium
def test_the_last_hour_of_the_device_is_drawn(gateway: Gateway, browser: Browser) -> None:
    usual = {"clocks": "pinned", "mhz": {"gpu": 1300.0, "cpu": 980.0}, "celsius": 40.0, "engine": "tensorrt"}
    usual |= {"speech_s": 30.0, "first_audio_p50_s": 0.1, "first_audio_p95_s": 0.2}
    still = {**usual, "engine": "resting", "first_audio_p50_s": None, "first_audio_p95_s": None}
    warm = [{**usual, "celsius": 40.0 + n} for n in range(20)]
    rows = [still] * 69 + [{**still, "engine": ""}, *warm, still, usual]
    state = {"state": "running", "minutes": rows}
    told: dict[str, Any] = {"names": (), "alive": bool, "ready": bool, "state": lambda: state}
    server = {**gateway.daemon.config["server"], "metrics": f"127.0.0.1:{free_port()}"}
    daemon = dataclasses.replace(gateway.daemon, config={**gateway.daemon.config, "server": server})
    with closing(MetricsServer(server["metrics"], Metrics(), **told)), gateway_of(daemon) as own:
        page = browser.page(own.url, width=320)
        page.until("document.querySelectorAll('#device svg').length === 4")
        assert page.run("document.documentElement.scrollWidth") <= 320
        tree = page.send("Accessibility.getFullAXTree")["nodes"]
        named = [node["name"]["value"] for node in tree if node.get("role", {}).get("value") == "image"]
        assert [name.replace(" in the last hour", "") for name in named][-4:] == [
            "Clocks: GPU now 1300, lowest 1300, highest 1300 MHz; CPU now 980, lowest 980, highest 980 MHz",
            "Temperature: now 40, lowest 40, highest 59 °C",
            "Speech per minute: now 30, lowest 30, highest 30 s",
            "First sound: P50 now 100, lowest 100, highest 100 ms; P95 now 200, lowest 200, highest 200 ms",
        ]
        engines = page.run("document.querySelector('#device dd').innerText")
        assert engines == "tensorrt; resting for 38 of 60 min; starting for 1 of 60 min"
        boxes = "[...document.querySelectorAll('#device path')].map((path) => path.getBBox())"
        drawn = page.run(f"{boxes}.map(({{ x, y, width, height }}) => [x, x + width, y, y + height])")
        # The figures are 60 x 40; the scales are 0 to 1500, 40 to 60, 0 to 30, 0 to 200.
        right = [[0, 60, 5.33, 5.33], [0, 60, 13.87, 13.87], [0, 60, 2, 40], [0, 60, 0, 0], [38, 60, 20, 20]]
        assert np.abs(np.array(drawn) - [*right, [38, 60, 0, 0]]).max() < 0.01
        assert page.run("document.querySelector('#device figure:last-child path').getTotalLength()") == 21.0
        _shots(page, "device")
        assert page.problems() == []
        page.close()


@needs_chromium
def test_a_voice_is_recorded_cut_stored_heard_and_removed(gateway: Gateway, tmp_path: Path) -> None:
    spoken, rate = sf.read(io.BytesIO(reference_wav()), dtype="float32")
    sf.write(tmp_path / "said.wav", spoken, rate)
    flags = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
    with chromium(tmp_path, *flags, f"--use-file-for-fake-audio-capture={tmp_path}/said.wav") as browser:
        page = browser.page(gateway.url)
        # Elements that appear later move the rest of the page.
        page.until("document.querySelector('[aria-label=\"remove ann\"]')")
        page.click("summary")
        page.click("#record")
        page.until("parseInt(document.querySelector('#told').innerText.match(/\\d+/)) >= 4")
        page.click("#record")
        page.until("!document.querySelector('#cut').hidden")
        whole = float(page.run("document.querySelector('#told').innerText.split(' ')[0]"))
        page.run("document.querySelector('#to').value = 0.75")
        page.run("document.querySelector('#to').dispatchEvent(new Event('input'))")
        cut = float(page.run("document.querySelector('#told').innerText.split(' ')[0]"))
        assert abs(cut - 0.75 * whole) < 0.11
        _shots(page, "voices")
        page.click("#hear")
        page.type("#name", "Mia (page)")
        page.click("#save")
        page.until("document.activeElement.id === 'consent'")  # the browser asks for the missing field
        page.type("#consent", "her own")
        page.click("#save")
        # The recording has two syllables a second, the text takes eight seconds.
        page.until("/^Not stored yet: .*has words too many/.test(document.querySelector('#told').innerText)")
        assert "mia-page" not in [voice["id"] for voice in gateway.ask("/v1/audio/voices").json["voices"]]
        page.click("#save")
        page.until("/is stored/.test(document.querySelector('#told').innerText)")
        with Client(gateway.daemon.address) as client:
            stored = client.voice("mia-page")
        assert (stored.display_name, stored.consent_note) == ("Mia (page)", "her own")
        told = page.run("document.querySelector('#told').innerText")
        assert all(warning in told for warning in stored.warnings)
        kept, kept_rate = sf.read(gateway.daemon.folder / "voices" / "mia-page" / "audio", dtype="float32")
        assert abs(len(kept) / kept_rate - cut) < 0.11
        assert _likeness(soxr.resample(kept, kept_rate, 8_000), soxr.resample(spoken, rate, 8_000)) > 0.9
        page.until("document.querySelector('#voice').value === 'mia-page'")
        page.type("#style", "Happy")
        page.click("#save")
        page.until("document.querySelector('#save').innerText === 'Save anyway'")
        page.click("#save")
        page.until("/happy is stored/.test(document.querySelector('#told').innerText)")
        page.until("document.querySelector('[aria-label=\"remove mia-page [happy]\"]')")
        page.type("#text", TEXT)
        page.click("#say")
        page.until("/s of speech/.test(document.querySelector('#said').innerText)")
        page.run("window.confirm = () => true")
        page.click("[aria-label='remove mia-page']")
        page.until("/is removed/.test(document.querySelector('#told').innerText)")
        page.until("!document.querySelector('[aria-label=\"remove mia-page\"]')")
        page.close()
    assert "mia-page" not in [voice["id"] for voice in gateway.ask("/v1/audio/voices").json["voices"]]


def test_a_daemon_adds_a_row_each_minute(gateway: Gateway) -> None:
    """The last test: the other tests of the file fill that minute."""
    until(lambda: gateway.ask("/api/minutes").json["minutes"])
    assert "cpu" in gateway.ask("/api/minutes").json["minutes"][0]["engine"]


def _likeness(heard: Samples, looped: Samples) -> float:
    """Correlation with the best place of a repeated sound; a quarter of the tenths of a second reach it.

    On a busy machine the browser loses parts of its microphone's input.
    """
    long, size, found = np.tile(looped, 2), 800, []
    energies = np.convolve(long**2, np.ones(size), "valid")
    for start in range(0, len(heard) - size, size):
        piece = heard[start : start + size]
        scores = np.correlate(long, piece, "valid") / np.sqrt(np.maximum(energies * np.sum(piece**2), 1e-9))
        found.append(float(np.max(scores)))
    return float(np.quantile(found, 0.75))


def _shots(page: Page, name: str, heights: tuple[int, int] = (740, 800)) -> None:
    """Check that no page is wider than its window, and that controls have names; F5_SCREENSHOTS gets
    pictures."""
    for width, height in ((320, heights[0]), (390, heights[0]), (1280, heights[1])):
        page.resize(width, height, phone=width < 500)
        assert page.run("document.documentElement.scrollWidth") <= width
        nodes = page.send("Accessibility.getFullAXTree")["nodes"]
        assert [one for one in nodes if one["role"]["value"] in CONTROLS and not one["name"]["value"]] == []
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page.send("Emulation.setEmulatedMedia", features=features)
            if folder := os.environ.get("F5_SCREENSHOTS"):
                page.screenshot(Path(folder) / f"{name}-{width}-{scheme}.png")

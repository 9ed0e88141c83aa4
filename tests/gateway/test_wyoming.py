"""Wyoming: the package's own client with Home Assistant's requests, and invalid bytes."""

import base64
import contextlib
import json
import random
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.client import Client
from appliance.config import load
from appliance.errors import ConfigError, Exit
from appliance.gateway import serving
from appliance.serve.notify import Notifier
from tests.gateway.conftest import Doors, Gateway, command_of, read, until_idle
from tests.harness.daemons import Running, followed, start
from tests.harness.hostile import COUNT, SEED, Victim, mutated
from tests.harness.patience import PATIENCE_S, until
from tests.interop.environments import interpreter, run

pytestmark = [pytest.mark.slow, pytest.mark.once]

START, CHUNK, STOP = "audio-start", "audio-chunk", "audio-stop"


class Wyoming(Doors):
    """`appliance wyoming`, and its daemon."""

    def events(self, raw: bytes) -> list[dict[str, Any]]:
        """Send bytes, and read events until the connection closes."""
        with self.connected(raw) as connection:
            return received(connection)


def received(connection: socket.socket) -> list[dict[str, Any]]:
    events = []
    with contextlib.suppress(ConnectionResetError), connection.makefile("rb") as file:
        while line := file.readline():
            event = json.loads(line)
            event["data"] = json.loads(file.read(event.get("data_length", 0)) or b"{}")
            event["payload"] = file.read(event.get("payload_length", 0))
            events.append(event)
            if event["type"] in ("synthesize-stopped", "pong"):
                break
    return events


def event(kind: str, **data: Any) -> bytes:
    """An event with its data in its line."""
    return json.dumps({"type": kind, "data": data}).encode() + b"\n"


BEGIN, END = event("synthesize-start"), event("synthesize-stop")
BEGIN_SSML = event("synthesize-start", text_format="ssml")


@contextlib.contextmanager
def wyoming_of(daemon: Running, **keys: Any) -> Iterator[Wyoming]:
    """Start Wyoming with `keys` in its section, and end it after the block."""
    command, address = command_of("wyoming", daemon, keys)
    with followed(Wyoming(start(*command), daemon, address)) as program:
        yield program


@pytest.fixture(scope="module")
def wyoming(gateway: Gateway) -> Iterator[Wyoming]:
    with wyoming_of(gateway.daemon) as program:
        yield program


def test_home_assistants_requests_by_the_packages_own_client(wyoming: Wyoming) -> None:
    told = run(interpreter("clients"), "wyoming_says.py", wyoming.address)
    assert (told["pong"], told["streams"]) == ("here", True)
    # The languages of the tiny bundle
    assert told["voices"] == [["ann", ["en", "zh"], True]]
    audio = len(base64.b64decode(told["whole"]["audio"]))
    assert audio > 48_000
    for way in ("whole", "speaker", "default", "language"):
        assert told[way]["types"] == [START, CHUNK, STOP] and told[way]["rate"] == 24_000
        assert len(base64.b64decode(told[way]["audio"])) == audio
    # A tenth of a second of silence
    assert base64.b64decode(told["blank"]["audio"]) == bytes(4_800)
    assert told["written"]["types"] == [START, CHUNK, STOP, "synthesize-stopped"]
    assert len(base64.b64decode(told["written"]["audio"])) == pytest.approx(audio, rel=0.2)
    assert told["nothing"]["types"] == [START, CHUNK, STOP, "synthesize-stopped"]
    assert told["early"]["first"] > 0 and told["early"]["rest"] > 0
    assert told["together"] == [len(told["whole"]["audio"])] * 4
    for way in ("wrong", "wrong written"):
        assert told[way]["types"] == ["error"] and told[way]["error"][0] == "voice_not_found"
        assert "ann" in told[way]["error"][1]
    too_long = "text: has 5000 characters, at most 4096 are allowed"
    assert told["too long"]["error"] == ["invalid_request", too_long]
    # The daemon does not speak for a client who has left.
    assert told["left"] is True
    until_idle(wyoming.daemon)


def test_a_text_sounds_as_from_the_daemon(wyoming: Wyoming) -> None:
    """The samples equal the daemon's, and SSML's marks take effect."""
    text = '<speak>Hello.<break time="1s"/>You.</speak>'
    with Client(wyoming.daemon.address) as client:
        plain = client.speak("Hello. You.", "ann", encoding="pcm16").audio_s
    events = wyoming.events(event("synthesize", text=text, text_format="ssml") + event("ping", text="x"))
    audio = b"".join(one["payload"] for one in events if one["type"] == CHUNK)
    assert len(audio) / 48_000 > plain + 0.5
    stamps = [one["data"]["timestamp"] for one in events if one["type"] in (CHUNK, STOP)]
    assert stamps == sorted(stamps) and stamps[-1] == round(len(audio) / 48)


@pytest.mark.parametrize(("raw", "code"), [
    (b"{\n", "invalid_json"), (b"[]\n", "invalid_json"),
    # A web page can send this.
    (b"POST / HTTP/1.1\r\nhost: localhost\r\n\r\n" + event("synthesize", text="Evil."), "invalid_json"),
    (b"[" * 60_000 + b"\n", "invalid_json"), (b"x" * 70_000, "too_large"),
    (b'{"type": "synthesize", "data_length": 99999999}\n', "invalid_request"),
    (b'{"type": "synthesize", "payload_length": -1}\n', "invalid_request"),
    (b'{"type": "synthesize", "data": []}\n', None), (b'{"type": 5}\n', "invalid_request"),
    (event("synthesize"), "invalid_request"), (event("synthesize", text=5), "invalid_request"),
    (event("synthesize", text="Hi.", voice="ann"), "invalid_request"),
    (event("synthesize", text="Hi.", voice={"name": 5}), "invalid_request"),
    (event("synthesize", text="<speak>", text_format="ssml"), "invalid_request"),
    (BEGIN_SSML + event("synthesize-chunk", text="Hi. "), "invalid_request"),
    (BEGIN + event("synthesize-chunk", text="a" * 5_000) + END, "invalid_request"),
    (BEGIN + event("synthesize-chunk", text=5), "invalid_request"),
])  # fmt: skip
def test_a_wrong_event_gets_an_error_and_the_end(wyoming: Wyoming, raw: bytes, code: str | None) -> None:
    events = wyoming.events(raw)
    assert [one["type"] for one in events] == ["error"]
    assert code is None or events[0]["data"]["code"] == code
    assert events[0]["data"]["text"]


def test_a_client_that_half_closes_gets_answers_but_no_speech(wyoming: Wyoming) -> None:
    """nc asks so in Home Assistant's health checks."""
    for raw, kinds in (
        (event("describe") + event("describe"), ["info", "info"]),
        (event("describe") + event("synthesize", text="A long story. " * 100) + event("describe"), ["info"]),
    ):
        with wyoming.connected(raw) as connection:
            connection.shutdown(socket.SHUT_WR)
            assert [one["type"] for one in received(connection) if one["type"] == "info"] == kinds
        until_idle(wyoming.daemon)


def test_a_silent_connection_gives_way_or_is_closed(wyoming: Wyoming) -> None:
    ping = event("ping", text="x")
    with wyoming_of(wyoming.daemon, max_connections=1, idle_s=0.5) as other, other.connected(ping) as first:
        assert received(first)
        with other.connected(ping) as second:
            assert received(second) and read(first) == read(second) == b""


def test_speech_ends_for_a_client_who_leaves_a_paused_channel(wyoming: Wyoming) -> None:
    long = event("synthesize", text="A long story. " * 100)
    with Client(wyoming.daemon.address) as client:
        for begun in (long, BEGIN + event("synthesize-chunk", text="A story. " * 20)):
            with wyoming.connected(begun):
                until(lambda: bool(client.utterances()))
            until_idle(wyoming.daemon)


def test_wyoming_runs_and_ends_like_the_gateway(wyoming: Wyoming) -> None:
    """A reply is finished, a silent connection does not delay the end, and a hangup ends nothing."""
    with wyoming_of(wyoming.daemon) as other, other.connected() as silent, other.connected() as speaking:
        other.process.send_signal(signal.SIGHUP)
        speaking.sendall(event("synthesize", text="This is said to its end, whatever comes. And this."))
        assert speaking.recv(1) == b"{"
        other.process.terminate()
        assert read(silent) == b""
        assert b'"audio-stop"' in read(speaking) and other.process.wait(PATIENCE_S) == Exit.OK
        assert "Traceback" not in other.log
    with pytest.raises(ConfigError, match=r"wyoming\.listen: 0\.0\.0\.0:10200 can be reached"):
        serving.listen(load(None, ["wyoming.listen=0.0.0.0:10200"]), "wyoming", Notifier())
    opened = load(None, ["wyoming.listen=0.0.0.0:0", "wyoming.open_to_network=true"])
    serving.listen(opened, "wyoming", Notifier()).close()


def test_hostile_bytes_end_a_connection_and_nothing_else(wyoming: Wyoming) -> None:
    """Mutated requests, their parts, noise: F5_HOSTILE=2000 sends that many."""
    dice = random.Random(f"{SEED} wyoming")
    good = [
        event("describe"),
        event("ping", text="x"),
        event("synthesize", text="Hi.", voice={"name": "ann"}),
        BEGIN + event("synthesize-chunk", text="Hi. ") + END,
        b'{"type": "synthesize", "data_length": 15}\n{"text": "Hi."}',
        b'{"type": "audio-chunk", "payload_length": 4}\nabcd',
        b"\x00" * 50,
        b'{"type": "synthesize", "data": {"text": "' + b"\\ud800" * 500 + b'"}}\n',
    ]
    victim = Victim(wyoming, lambda: bytes(_spoken_bytes(wyoming)))
    for _ in range(COUNT):
        raw = b"".join(dice.choices(good, k=dice.randrange(1, 4)))
        if dice.random() < 0.8:
            raw = mutated(raw, dice)
        with wyoming.connected() as connection, contextlib.suppress(OSError):
            connection.sendall(raw)
            if dice.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
                read(connection)
        victim.tried("wyoming", "sent")
    victim.check()


def _spoken_bytes(program: Wyoming) -> int:
    """Number of bytes of a line's audio; it differs by the seed."""
    events = program.events(event("synthesize", text="Hello there.") + event("ping", text="x"))
    return sum(len(one["payload"]) for one in events)

"""Wyoming: by the package's own client with Home Assistant's requests, and by bytes that are none."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.client import Client
from appliance.config import Config
from appliance.errors import ConfigError
from appliance.exits import Exit
from appliance.gateway import serving
from appliance.serve.notify import Notifier
from tests.daemons import Program, Running, followed, free_port, running, start
from tests.interop.environments import interpreter, run
from tests.patience import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.once]

COUNT = int(os.environ.get("F5_HOSTILE", "60"))
GROWTH_BYTES = 48 << 20
START, CHUNK, STOP = "audio-start", "audio-chunk", "audio-stop"


@dataclass
class Wyoming(Program):
    """`appliance wyoming`, and its daemon."""

    daemon: Running
    address: str

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
            yield connection

    def events(self, raw: bytes) -> list[dict[str, Any]]:
        """Send bytes, and read events until the connection is closed."""
        with self.connected() as connection:
            connection.sendall(raw)
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


@contextlib.contextmanager
def wyoming_of(daemon: Running, **keys: Any) -> Iterator[Wyoming]:
    """Start it, with these keys in its section, and leave none behind."""
    address = keys.setdefault("listen", f"127.0.0.1:{free_port()}")
    path = daemon.folder / f"wyoming-{address.rpartition(':')[2]}.yaml"
    path.write_text(yaml.safe_dump({**daemon.config, "wyoming": keys}))
    program = Wyoming(start("-m", "appliance", "wyoming", "--config", path), daemon, address)
    with followed(program):
        yield program


@pytest.fixture(scope="module")
def wyoming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wyoming]:
    with running(tmp_path_factory.mktemp("wyoming")) as daemon:
        daemon.add_voice()
        with wyoming_of(daemon) as program:
            yield program


def test_home_assistants_requests_by_the_packages_own_client(wyoming: Wyoming) -> None:
    told = run(interpreter("clients"), "wyoming_says.py", wyoming.address)
    assert (told["pong"], told["streams"]) == ("here", True)
    # The languages of the tiny bundle.
    assert told["voices"] == [["ann", ["en", "zh"], True]]
    audio = len(base64.b64decode(told["whole"]["audio"]))
    assert audio > 48_000
    for way in ("whole", "speaker", "default", "language"):
        assert told[way]["types"] == [START, CHUNK, STOP] and told[way]["rate"] == 24_000
        assert len(base64.b64decode(told[way]["audio"])) == audio
    # A tenth of a second of silence.
    assert base64.b64decode(told["blank"]["audio"]) == bytes(4_800)
    assert told["written"]["types"] == [START, CHUNK, STOP, "synthesize-stopped"]
    assert len(base64.b64decode(told["written"]["audio"])) == pytest.approx(audio, rel=0.2)
    assert told["nothing"]["types"] == [START, CHUNK, STOP, "synthesize-stopped"]
    assert told["early"]["first"] > 0 and told["early"]["rest"] > 0
    assert told["together"] == [len(told["whole"]["audio"])] * 4
    for way, code in (("wrong", "voice_not_found"), ("wrong written", "voice_not_found")):
        assert told[way]["types"] == ["error"] and told[way]["error"][0] == code
        assert "ann" in told[way]["error"][1]
    assert told["too long"]["error"] == [
        "invalid_request",
        "text: has 5000 characters, at most 4096 are allowed",
    ]
    # Who has left is not spoken for.
    assert told["left"] is True
    with Client(wyoming.daemon.address) as client:
        until(lambda: not client.utterances())


def test_a_text_is_said_as_the_daemon_says_it(wyoming: Wyoming) -> None:
    """Sample for sample, the marks of SSML obeyed."""
    text = '<speak>Hello.<break time="1s"/>You.</speak>'
    with Client(wyoming.daemon.address) as client:
        plain = client.speak("Hello. You.", "ann", encoding="pcm16").audio_s
    with wyoming.connected() as connection:
        connection.sendall(event("synthesize", text=text, text_format="ssml") + event("ping", text="x"))
        events = received(connection)
    audio = b"".join(one["payload"] for one in events if one["type"] == CHUNK)
    assert len(audio) / 48_000 > plain + 0.5
    stamps = [one["data"]["timestamp"] for one in events if one["type"] in (CHUNK, STOP)]
    assert stamps == sorted(stamps) and stamps[-1] == round(len(audio) / 48)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{\n", "invalid_json"),
        (b"[]\n", "invalid_json"),
        # What a web page can send.
        (b"POST / HTTP/1.1\r\nhost: localhost\r\n\r\n" + event("synthesize", text="Evil."), "invalid_json"),
        (b"[" * 60_000 + b"\n", "invalid_json"),
        (b"x" * 70_000, "too_large"),
        (b'{"type": "synthesize", "data_length": 99999999}\n', "invalid_request"),
        (b'{"type": "synthesize", "payload_length": -1}\n', "invalid_request"),
        (b'{"type": "synthesize", "data": []}\n', None),
        (b'{"type": 5}\n', "invalid_request"),
        (event("synthesize"), "invalid_request"),
        (event("synthesize", text=5), "invalid_request"),
        (event("synthesize", text="Hi.", voice="ann"), "invalid_request"),
        (event("synthesize", text="Hi.", voice={"name": 5}), "invalid_request"),
        (event("synthesize", text="<speak>", text_format="ssml"), "invalid_request"),
        (
            event("synthesize-start", text_format="ssml") + event("synthesize-chunk", text="Hi. "),
            "invalid_request",
        ),
        (
            event("synthesize-start")
            + event("synthesize-chunk", text="a" * 5_000)
            + event("synthesize-stop"),
            "invalid_request",
        ),
    ],
)
def test_what_is_wrong_is_an_error_event_and_the_end(wyoming: Wyoming, raw: bytes, code: str | None) -> None:
    events = wyoming.events(raw)
    assert [one["type"] for one in events] == ["error"]
    assert code is None or events[0]["data"]["code"] == code
    assert events[0]["data"]["text"]


def test_who_asks_and_says_no_more_is_answered_and_not_spoken_to(wyoming: Wyoming) -> None:
    """As nc asks, in Home Assistant's own checks of health."""
    for raw, kinds in (
        (event("describe") + event("describe"), ["info", "info"]),
        (event("describe") + event("synthesize", text="A long story. " * 100) + event("describe"), ["info"]),
    ):
        with wyoming.connected() as connection:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            assert [one["type"] for one in received(connection) if one["type"] == "info"] == kinds
        with Client(wyoming.daemon.address) as client:
            until(lambda: not client.utterances())


def test_one_connection_more_is_closed_and_one_that_says_nothing(wyoming: Wyoming) -> None:
    with (
        wyoming_of(wyoming.daemon, max_connections=1, idle_s=0.5) as other,
        other.connected() as first,
    ):
        first.sendall(event("ping", text="x"))
        assert received(first)
        with other.connected() as second, contextlib.suppress(ConnectionResetError):
            assert second.recv(1) == b""
        with contextlib.suppress(ConnectionResetError):
            assert first.recv(1) == b""
        until(lambda: bool(_pinged(other)))


def _pinged(program: Wyoming) -> list[dict[str, Any]]:
    with program.connected() as connection, contextlib.suppress(ConnectionResetError):
        connection.sendall(event("ping", text="x"))
        return received(connection)
    return []


def test_who_leaves_while_the_channel_waits_is_not_spoken_for(wyoming: Wyoming) -> None:
    long = event("synthesize", text="A long story. " * 100)
    with Client(wyoming.daemon.address) as client:
        for begun in (long, event("synthesize-start") + event("synthesize-chunk", text="A story. " * 20)):
            with wyoming.connected() as connection:
                connection.sendall(begun)
                until(lambda: bool(client.utterances()))
            until(lambda: not client.utterances())


def test_it_stands_and_ends_as_the_gateway_does(wyoming: Wyoming) -> None:
    """A reply is finished, who says nothing is not waited for, and a hangup ends nothing."""
    with wyoming_of(wyoming.daemon) as other, other.connected() as silent, other.connected() as speaking:
        other.process.send_signal(signal.SIGHUP)
        speaking.sendall(event("synthesize", text="This is said to its end, whatever comes. And this."))
        assert speaking.recv(1) == b"{"
        other.process.terminate()
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""
        rest = b""
        while part := speaking.recv(65_536):
            rest += part
        assert b'"audio-stop"' in rest and other.process.wait(PATIENCE_S) == Exit.OK
        assert "Traceback" not in other.log
    with pytest.raises(ConfigError, match=r"wyoming\.listen: 0\.0\.0\.0:10200 can be reached"):
        serving.listen(serving.load(None, ["wyoming.listen=0.0.0.0:10200"]), "wyoming", Notifier())
    opened = serving.load(None, ["wyoming.listen=0.0.0.0:0", "wyoming.open_to_network=true"])
    serving.listen(opened, "wyoming", Notifier()).close()
    assert Config().wyoming.listen == "127.0.0.1:10200"


def test_hostile_bytes_end_a_connection_and_nothing_else(wyoming: Wyoming) -> None:
    """Mutated requests, parts of them, noise: F5_HOSTILE=2000 for as many."""
    dice = random.Random(os.environ.get("F5_SEED", "1"))
    good = [
        event("describe"),
        event("ping", text="x"),
        event("synthesize", text="Hi.", voice={"name": "ann"}),
        event("synthesize-start") + event("synthesize-chunk", text="Hi. ") + event("synthesize-stop"),
        b'{"type": "synthesize", "data_length": 15}\n{"text": "Hi."}',
        b'{"type": "audio-chunk", "payload_length": 4}\nabcd',
        b"\x00" * 50,
        b'{"type": "synthesize", "data": {"text": "' + b"\\ud800" * 500 + b'"}}\n',
    ]
    memory = []
    for number in range(COUNT):
        raw = bytearray(b"".join(dice.choices(good, k=dice.randrange(1, 4))))
        for _ in range(dice.choice((0, 1, 5, 50))):
            at = dice.randrange(len(raw))
            raw[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
        with wyoming.connected() as connection, contextlib.suppress(OSError):
            connection.sendall(raw)
            if dice.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass
        if number % 20 == 0:
            pages = Path(f"/proc/{wyoming.process.pid}/statm").read_text().split()[1]
            memory.append(int(pages) * os.sysconf("SC_PAGE_SIZE"))
            assert _pinged(wyoming)[0]["data"] == {"text": "x"}
    settled = memory[len(memory) // 3 :]
    assert max(settled) - settled[0] < GROWTH_BYTES, memory
    if "F5_HOSTILE" in os.environ:
        print(f"MB after each 20: {[size >> 20 for size in memory]}")
    assert "Traceback" not in wyoming.log and "ERROR" not in wyoming.log, wyoming.log[-3_000:]
    assert len(wyoming.events(event("synthesize", text="Hello.") + event("ping", text="x"))) > 3

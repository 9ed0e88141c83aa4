"""ElevenLabs' interface: over HTTP by its SDK, unmodified; over WebSocket; times of characters."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from appliance import access
from appliance.access import Role
from appliance.client import Client, End, Header, WordTiming
from appliance.gateway import elevenlabs
from appliance.gateway.alignment import spoken, written
from appliance.gateway.serving import LimitedSocket
from appliance.gateway.written import Context
from appliance.rpc.appliance_pb2 import TextChange
from tests.daemons import ROOT, running
from tests.gateway.conftest import NAMED, Gateway, gateway_of
from tests.gateway.sockets import Refused, Socket, connected
from tests.gateway.test_serving import certificate
from tests.patience import PATIENCE_S, until

pytestmark = [pytest.mark.slow]
CLIENTS = ROOT / ".venvs" / "clients" / "bin" / "python"
TEXT = "One, two, 3."
SAID = "One, two, three."
PATH = "/v1/text-to-speech/ann"


def with_sdk(url: str, *how: str, **environment: str) -> Any:
    if not CLIENTS.exists():
        pytest.skip("no .venvs/clients: scripts/test makes it where PyPI is reached")
    script = Path(__file__).with_name("with_elevenlabs.py")
    # Isolated, or this checkout's packages would be found before its own.
    command = [str(CLIENTS), "-I", str(script), url, *how]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/", env=environment or None
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def found(gateway: Gateway) -> Any:
    return with_sdk(gateway.url)


@pytest.fixture(scope="module")
def said(gateway: Gateway) -> bytes:
    """Reply of the daemon to TEXT, in PCM16 at 24 kHz."""
    with Client(gateway.daemon.address) as client:
        return (
            client.stream(TEXT, "ann", seed=7, nfe=2, encoding="pcm16", segmentation="upstream").reply().audio
        )


@pytest.mark.once
def test_the_sdk_speaks_in_every_format(found: Any, said: bytes) -> None:
    whole = {form: base64.b64decode(audio) for form, audio in found["whole"].items()}
    streamed = {form: base64.b64decode(audio) for form, audio in found["streamed"].items()}
    assert whole["pcm_24000"] == streamed["pcm_24000"] == said
    seconds = len(said) / 48_000
    for form in ("pcm_16000", "pcm_44100"):
        assert len(whole[form]) / 2 / int(form[4:]) == pytest.approx(seconds, abs=0.01)
    assert len(whole["ulaw_8000"]) / 8_000 == pytest.approx(seconds, abs=0.01)
    for form in ("mp3_44100_128", "mp3_22050_32", "opus_48000_64", "wav_24000"):
        samples, rate = soundfile.read(io.BytesIO(whole[form]))
        assert rate == int(form.split("_")[1])
        assert len(samples) / rate == pytest.approx(seconds, abs=0.15)
    assert base64.b64decode(found["default"]) == whole["mp3_44100_128"]
    assert found["faster"] < 0.95 * len(said)
    assert set(found["together"]) == {hashlib.sha256(said).hexdigest()}


@pytest.mark.once
def test_the_sdk_gets_the_times_of_characters(found: Any, said: bytes) -> None:
    timed, pieces = found["timed"], found["pieces"]
    assert base64.b64decode(timed["audio"]) == base64.b64decode(pieces["audio"]) == said
    assert timed["alignment"]["text"] == TEXT and timed["normalized"]["text"] == SAID
    assert [one["text"] for one in pieces["alignment"]] == [TEXT]
    for one in (timed["alignment"], timed["normalized"], *pieces["alignment"]):
        assert one["starts"] == sorted(one["starts"]) and one["ends"] == sorted(one["ends"])
        assert one["starts"][0] >= 0 and one["ends"][-1] <= len(said) / 48_000 + 0.001


@pytest.mark.once
def test_the_sdk_lists_voices_and_models_and_raises_its_own_errors(found: Any) -> None:
    assert ["ann", "ann", "cloned"] in found["voices"] and ["shimmer", "shimmer", "cloned"] in found["voices"]
    assert found["voice"] == "ann" and "ann" in found["search"]
    assert ["tts-1", True] in found["models"]
    assert [error[:2] for error in found["errors"]] == [
        [404, "voice_not_found"],
        [400, "invalid_request"],
        [400, "invalid_request"],
    ]
    assert [error[2] for error in found["errors"][1:]] == ["voice_settings.speed", "output_format"]


@pytest.mark.once
def test_a_reply_that_the_sdk_leaves_leaves_the_engine(found: Any, gateway: Gateway) -> None:
    assert found["left"] > 0
    with Client(gateway.daemon.address) as client:
        until(lambda: not client.utterances("sdk"))


@pytest.mark.once
def test_the_sdk_writes_over_a_websocket_with_tls_and_its_key_is_the_token(tmp_path: Path) -> None:
    """convert_realtime asks for TLS whatever the address."""
    crt, key = certificate(tmp_path)
    (tmp_path / "box").mkdir()
    tokens = tmp_path / "tokens.json"
    bot, boss = (access.add(tokens, role.value, [role]) for role in (Role.SPEAK, Role.ADMIN))
    server = {"tls_certificate": str(crt), "tls_key": str(key), "tokens": str(tokens)}
    with running(tmp_path / "box", server=server) as daemon, gateway_of(daemon) as gateway:
        daemon_voice_over_tls(daemon.address, crt, boss)
        url = f"https://{gateway.address}"
        told = with_sdk(url, "written", bot, SSL_CERT_FILE=str(crt))
        assert told["written"] > 24_000
        assert told["refused"] == [["none", 401], ["bob", 404]]


def daemon_voice_over_tls(address: str, crt: Path, token: str) -> None:
    from appliance.client import Credentials
    from tests.daemons import reference_wav

    address = f"localhost:{address.rpartition(':')[2]}"
    with Client(address, Credentials(crt.read_bytes(), token=token)) as client:
        client.add_voice("ann", reference_wav(), "Some call me nature, others call me mother nature.")


@pytest.mark.parametrize("way", ["", "/stream", "/with-timestamps", "/stream/with-timestamps"])
def test_a_proxy_is_asked_not_to_hold_a_reply_back_and_our_parameters_are_obeyed(
    gateway: Gateway, way: str
) -> None:
    path = f"{PATH}{way}?output_format=pcm_24000&seed=7&nfe=2"
    answer = gateway.ask(path, {"text": TEXT, "request_id": "mine", "maxSpokenSeconds": 1, "model_id": "x"})
    assert answer.status == 200 and answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-ignored-parameters"] == "maxSpokenSeconds"
    blank = gateway.ask(path, {"text": " "})
    assert blank.status == 200 and len(blank.body) > 1_000


# WebSockets.

QUERY = "output_format=pcm_24000&seed=7&nfe=2"


def spoken_by(socket: Socket) -> tuple[bytes, list[dict[str, Any]]]:
    """Audio and messages until the connection is closed."""
    messages = list(socket)
    return b"".join(base64.b64decode(one.get("audio") or "") for one in messages), messages


def test_words_are_spoken_as_a_session_speaks_them(gateway: Gateway) -> None:
    text = "Hello there, my 5 friends. How are you today? I am fine."
    with connected(gateway.address, f"{PATH}/stream-input?{QUERY}") as socket:
        socket.send({"text": " ", "voice_settings": {"speed": 1}})
        for word in text.split():
            socket.send({"text": f"{word} ", "try_trigger_generation": True})
        socket.send({"text": ""})
        audio, messages = spoken_by(socket)
    assert socket.code == 1000 and messages[-1]["isFinal"] is True
    assert audio == asyncio.run(session_audio(gateway, text))
    aligned = [one for one in messages if one.get("alignment")]
    assert "".join("".join(one["alignment"]["chars"]) for one in aligned).strip() == text
    normalized = "".join("".join(one["normalizedAlignment"]["chars"]) for one in aligned)
    assert normalized.strip() == text.replace("5", "five")
    # Each message's times begin where those before it end.
    total_ms = sum(
        one["alignment"]["charStartTimesMs"][-1] + one["alignment"]["charDurationsMs"][-1] for one in aligned
    )
    assert len(audio) / 48 - 400 < total_ms <= len(audio) / 48


async def session_audio(gateway: Gateway, text: str) -> bytes:
    from appliance.client import AsyncClient, Piece

    async with AsyncClient(gateway.daemon.address) as client:
        session = client.session("ann", seed=7, nfe=2, rate=24_000)
        for word in text.split():
            await session.say(f"{word} ")
        await session.close()
        return b"".join([event.data async for _, event in session if isinstance(event, Piece)])


def test_speech_begins_while_the_text_is_written(gateway: Gateway) -> None:
    with connected(gateway.address, f"{PATH}/stream-input?{QUERY}") as socket:
        socket.send({"text": "This is the first sentence of a long story, and it goes on. "})
        socket.send({"text": "Here is more. And "})
        assert next(socket)["alignment"] and base64.b64decode(next(socket)["audio"])
        socket.send({"text": ""})
        assert len(spoken_by(socket)[0]) > 24_000


def test_contexts_are_spoken_and_ended_each_by_itself(gateway: Gateway) -> None:
    with connected(gateway.address, f"{PATH}/multi-stream-input?{QUERY}") as socket:
        for name in ("a", "b", "left"):
            socket.send({"text": " ", "context_id": name, "voice_settings": {"speed": 1}})
            socket.send({"text": f"This is {name}. ", "context_id": name})
        socket.send({"context_id": "left", "close_context": True})
        for name in ("a", "b"):
            socket.send({"context_id": name, "flush": True})
            socket.send({"context_id": name, "close_context": True})
        socket.send({"text": ""})
        socket.send({"close_socket": True})
        messages = list(socket)
    assert socket.code == 1000
    heard = {name: [one for one in messages if one["contextId"] == name] for name in ("a", "b", "left")}
    for name in ("a", "b"):
        assert len(base64.b64decode("".join(one["audio"] or "" for one in heard[name][:2]))) > 1_000
        assert [one["isFinal"] for one in heard[name]][-1] is True
    # It was not flushed: who closes it then has been interrupted.
    assert heard["left"] == [{"audio": None, "isFinal": True, "contextId": "left"}]


def test_a_context_that_is_refused_ends_alone(gateway: Gateway) -> None:
    with connected(gateway.address, f"{PATH}/multi-stream-input?{QUERY}") as socket:
        socket.send({"text": "This is spoken. ", "context_id": "a"})
        socket.send({"text": "Hi. ", "context_id": "b", "voice_settings": {"speed": 9}})
        socket.send({"text": "word " * 8_000, "context_id": "c"})
        for number in range(8):
            socket.send({"text": " ", "context_id": f"empty-{number}"})
        socket.send({"context_id": "a", "flush": True})
        socket.send({"close_socket": True})
        messages = list(socket)
    assert socket.code == 1000
    codes = {one["contextId"]: one["code"] for one in messages if "code" in one}
    assert codes["b"] == "invalid_request" and codes["c"] == "too_large"
    assert "too_many_calls" in codes.values() and "a" not in codes
    final = [one["contextId"] for one in messages if one.get("isFinal")]
    assert {"a", "b", "c"} <= set(final) and len(final) == len(set(final))
    assert sum(bool(one.get("audio")) for one in messages if one["contextId"] == "a") > 1


def test_a_text_that_fails_on_the_way_ends_the_connection(gateway: Gateway) -> None:
    with Client(gateway.daemon.address) as client:
        client.pause("cleared")
        with connected(gateway.address, f"{PATH}/stream-input?{QUERY}&channel=cleared") as socket:
            socket.send({"text": "This is a sentence that waits. ", "flush": True})
            until(lambda: bool(client.utterances("cleared")))
            client.clear("cleared")
            messages = list(socket)
        client.resume("cleared")
    assert socket.code == 1008
    assert [one.get("code") for one in messages if "error" in one] == ["cleared"]


def test_a_context_that_is_closed_again_and_a_connection_that_is_left_free_the_engine(
    gateway: Gateway,
) -> None:
    long = {"text": "A long story. " * 100, "context_id": "a", "flush": True}
    path = f"{PATH}/multi-stream-input?output_format=pcm_24000&nfe=7&channel=written"
    with Client(gateway.daemon.address) as client, connected(gateway.address, path) as socket:
        socket.send(long)
        socket.send({"context_id": "a", "close_context": True})
        assert next(socket)["alignment"]
        socket.send({"context_id": "a", "close_context": True})
        until(lambda: not client.utterances("written"))
        for message in socket:
            if message["isFinal"]:
                break
        socket.send(long)
        assert next(socket)["alignment"]
        socket.abandon()
        until(lambda: not client.utterances("written"))


def test_a_message_longer_than_an_utterance_is_refused(gateway: Gateway) -> None:
    with connected(gateway.address, f"{PATH}/stream-input?{QUERY}") as socket:
        socket.send({"text": "a" * 5_000 + " "})
        socket.send({"text": ""})
        _, messages = spoken_by(socket)
    assert socket.code == 1008 and "4096 characters at most" in messages[0]["error"]


async def test_a_text_of_any_length_is_flushed_where_sentences_end() -> None:
    class Recorder:
        """A session that says nothing."""

        def __init__(self) -> None:
            self.written: list[str] = []

        async def say(self, text: str) -> None:
            self.written.append(text)

        async def flush(self) -> None:
            self.written.append("")

        async def close(self) -> None:
            self.written.append("end")

        async def __aiter__(self) -> AsyncIterator[Any]:
            while self.written[-1:] != ["end"]:
                await asyncio.sleep(0)
            for _ in range(self.written.count("")):
                yield 1, End()

    recorder, told = Recorder(), []

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    context = Context(lambda: recorder, elevenlabs.FORMATS["pcm_24000"], send, 100)  # type: ignore[arg-type,return-value]
    speaking = asyncio.ensure_future(context.run())
    texts = ["A sentence of 30 characters. "] * 10 + ["word "] * 30
    for text in texts:
        context.say(text)
    context.finish()
    await speaking
    assert [text for text in recorder.written if text] == [*texts, "end"]
    utterances = "".join(text or "\n" for text in recorder.written[:-1]).splitlines()
    assert max(map(len, utterances)) <= 100
    assert all(utterance.endswith(". ") for utterance in utterances[:5])
    assert not context.is_busy and told == [{"audio": None, "isFinal": True}]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        ('{"text": 5}', "invalid_request"),
        ('{"text": "Hi ", "voice_settings": {"speed": 9}}', "invalid_request"),
        ('{"text": "Hi ", "voice_settings": 1}', "invalid_request"),
        ('{"flush": "maybe", "text": "Hi "}', "invalid_request"),
        (json.dumps({"text": "word " * 8_000}), "too_large"),
    ],
)
def test_what_is_wrong_is_told_and_ends_the_connection(gateway: Gateway, sent: str, code: str) -> None:
    with connected(gateway.address, f"{PATH}/stream-input?{QUERY}") as socket:
        socket.send_raw(sent.encode())
        messages = list(socket)
    assert socket.code == 1008 and messages[0]["code"] == code and messages[0]["error"]


def test_who_says_nothing_is_told_and_closed(gateway: Gateway) -> None:
    with connected(gateway.address, f"{PATH}/multi-stream-input?{QUERY}&inactivity_timeout=1") as socket:
        socket.send({"text": "Half a sentence", "context_id": "a"})
        messages = list(socket)
    assert socket.code == 1008 and messages[-1]["code"] == "input_timeout_exceeded"


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("/v1/text-to-speech/bob/stream-input", {}, 404, "voice_not_found"),
        (f"{PATH}/stream-input?output_format=aac_44100", {}, 400, "invalid_request"),
        (f"{PATH}/stream-input?seed=x", {}, 400, "invalid_request"),
        (f"{PATH}/stream-input?inactivity_timeout=500", {}, 400, "invalid_request"),
        (f"{PATH}/stream-input", {"origin": "https://evil.example"}, 403, "origin_refused"),
        (f"{PATH}/stream-input", {"origin": "null"}, 403, "origin_refused"),
        (f"{PATH}/stream-input", {"host": "evil.example"}, 421, "misdirected_request"),
    ],
)
def test_a_handshake_is_refused_as_a_request_is(
    gateway: Gateway, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    with pytest.raises(Refused) as refused, connected(gateway.address, path, **headers):
        pass
    assert refused.value.status == status
    assert json.loads(refused.value.body)["detail"]["status"] == code


def test_pages_of_its_own_and_of_named_origins_may_write(gateway: Gateway) -> None:
    for origin in (gateway.url, NAMED):
        with connected(gateway.address, f"{PATH}/stream-input?{QUERY}", origin=origin) as socket:
            socket.send({"text": "Hi. "})
            socket.send({"text": ""})
            assert len(spoken_by(socket)[0]) > 1_000


def test_a_websocket_takes_a_place_and_speaks_to_its_end_when_the_gateway_stops(gateway: Gateway) -> None:
    with (
        gateway_of(gateway.daemon, max_requests=1) as other,
        connected(other.address, f"{PATH}/multi-stream-input?{QUERY}") as socket,
    ):
        assert other.ask("/v1/models").status == 429
        socket.send({"text": "This is said to its end, whatever comes. And this.", "context_id": "a"})
        assert next(socket)["alignment"]
        other.process.terminate()
        audio, messages = spoken_by(socket)
        assert socket.code == 1012 and messages[-1]["isFinal"] is True
        assert len(audio) > 48_000
        assert other.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in other.log


def test_who_leaves_after_the_last_word_is_not_spoken_for(gateway: Gateway) -> None:
    with Client(gateway.daemon.address) as client:
        client.pause("left")
        with connected(gateway.address, f"{PATH}/stream-input?{QUERY}&channel=left") as socket:
            socket.send({"text": "Nobody waits for this. "})
            socket.send({"text": ""})
            until(lambda: bool(client.utterances("left")))
        until(lambda: not client.utterances("left"))
        client.resume("left")


def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    """Bytes that wait for it in the transport, at three checks."""

    class Transport:
        def __init__(self) -> None:
            self.waiting = [0, 9, 9]

        is_aborted = False

        def get_write_buffer_size(self) -> int:
            return self.waiting.pop(0)

        def abort(self) -> None:
            self.is_aborted = True

    class Timers:
        def call_later(self, delay: float, call: Any) -> None:
            call()

    socket = object.__new__(LimitedSocket)
    socket.transport, socket.loop = Transport(), Timers()  # type: ignore[assignment]
    socket._check_progress()
    assert socket.transport.is_aborted and not socket.transport.waiting  # type: ignore[attr-defined]


# Times of characters.


def timed(text: str, *words: tuple[str, float, float]) -> Header:
    return Header(
        text=text, words=[WordTiming(word=word, start_s=start, end_s=end) for word, start, end in words]
    )


def test_characters_share_the_time_of_their_word() -> None:
    found = spoken(timed("Hi you.", ("Hi", 0.1, 0.3), ("you.", 0.4, 0.8)))
    assert "".join(one.character for one in found.timed) == "Hi you."
    starts = [one.start_s for one in found.timed]
    assert np.allclose(starts, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert found.timed[2].end_s == pytest.approx(0.4)


def test_what_was_written_takes_the_time_of_what_is_said() -> None:
    header = timed("I have five.", ("I", 0.0, 0.1), ("have", 0.1, 0.4), ("five.", 0.4, 0.9))
    header.changes.append(TextChange(kind="number", before="5", after="five"))
    header.changes.append(TextChange(kind="unsayable", before="哈", after=""))
    found = written(header, spoken(header))
    assert "".join(one.character for one in found.timed) == "I have 5."
    five = found.timed[-2]
    assert (five.start_s, five.end_s) == (pytest.approx(0.4), pytest.approx(0.8))


def test_without_words_there_is_a_text_still() -> None:
    assert "".join(one.character for one in spoken(timed("Hi.")).timed) == "Hi."

"""Unmodified programs by other authors against the gateway: SDKs, and pipelines of voice agents."""

import asyncio
import base64
import functools
import hashlib
import io
from typing import Any

import pytest
import soundfile

from appliance.access.token_file import Role
from appliance.client import Client
from tests.gateway.conftest import Gateway, Guarded, until_idle
from tests.gateway.test_elevenlabs import session_audio
from tests.gateway.test_openai import KINDS, said
from tests.interop.environments import interpreter, node_modules, run

# A single Python is enough: the clients' behaviour does not depend on our version.
pytestmark = [pytest.mark.slow, pytest.mark.once]

TEXT, SPOKEN_TEXT = "One, two, 3.", "One, two, three."
WRITTEN = ["Hello,", "my", "5", "friends.", "Welcome", "to", "the", "stream."]
SPOKEN = ["Hello,", "my", "five", "friends.", "Welcome", "to", "the", "stream."]


@pytest.fixture(scope="module")
def openai(gateway: Gateway) -> Any:
    found = run(interpreter("clients"), "openai_says.py", f"{gateway.url}/v1")
    until_idle(gateway.daemon)
    return found


@pytest.fixture(scope="module")
def elevenlabs(gateway: Gateway) -> Any:
    found = run(interpreter("clients"), "elevenlabs_says.py", gateway.url)
    until_idle(gateway.daemon)
    return found


@pytest.mark.parametrize("form", KINDS)
def test_openais_sdk_gets_every_format_whole_and_streamed(openai: Any, gateway: Gateway, form: str) -> None:
    whole = base64.b64decode(openai["whole"][form])
    if form in ("opus", "wav", "flac"):  # opus has a serial number, a whole file its length
        samples, rate = soundfile.read(io.BytesIO(whole), dtype="int16")
        assert rate == 24_000 and len(samples) > 10_000
        assert form == "opus" or samples.tobytes() == said(gateway, "pcm16")
    else:
        assert whole == said(gateway, "pcm16" if form == "pcm" else form)
    if form != "opus":
        assert openai["streamed"][form] == hashlib.sha256(whole).hexdigest()
    assert openai["parts"][form] > 1 or form in ("wav", "flac")


def test_openais_sdk_several_at_a_time_models_and_its_own_errors(openai: Any, gateway: Gateway) -> None:
    assert set(openai["together"]) == {hashlib.sha256(said(gateway, "pcm16")).hexdigest()}
    assert "tts-1" in openai["models"] and openai["model"] == "tts-1"
    assert openai["errors"] == [
        ["NotFoundError", 404, "voice", "voice_not_found"],
        ["BadRequestError", 400, "speed", "invalid_request"],
        ["BadRequestError", 400, "response_format", "invalid_request"],
    ]
    assert openai["left"] > 0


@functools.cache
def reply(address: str) -> bytes:
    """Reply of the daemon to TEXT, in PCM16 at 24 kHz."""
    options: Any = {"seed": 7, "nfe": 2, "encoding": "pcm16", "segmentation": "upstream"}
    with Client(address) as client:
        return client.stream(TEXT, "ann", **options).reply().audio


def test_elevenlabs_sdk_speaks_in_every_format(elevenlabs: Any, gateway: Gateway) -> None:
    audio = reply(gateway.daemon.address)
    parts = (elevenlabs[way].items() for way in ("whole", "streamed"))
    whole, streamed = ({form: base64.b64decode(data) for form, data in part} for part in parts)
    assert whole["pcm_24000"] == streamed["pcm_24000"] == audio
    seconds = len(audio) / 48_000
    for form, bytes_s in (("pcm_16000", 32_000), ("pcm_44100", 88_200), ("ulaw_8000", 8_000)):
        assert len(whole[form]) / bytes_s == pytest.approx(seconds, abs=0.01)
    for form in ("mp3_44100_128", "mp3_22050_32", "opus_48000_64", "wav_24000"):
        samples, rate = soundfile.read(io.BytesIO(whole[form]))
        assert rate == int(form.split("_")[1])
        assert len(samples) / rate == pytest.approx(seconds, abs=0.15)
    assert base64.b64decode(elevenlabs["default"]) == whole["mp3_44100_128"]
    assert elevenlabs["faster"] < 0.95 * len(audio)
    assert set(elevenlabs["together"]) == {hashlib.sha256(audio).hexdigest()} and elevenlabs["left"] > 0


def test_elevenlabs_sdk_gets_the_times_of_characters(elevenlabs: Any, gateway: Gateway) -> None:
    audio = reply(gateway.daemon.address)
    timed, pieces = elevenlabs["timed"], elevenlabs["pieces"]
    assert base64.b64decode(timed["audio"]) == base64.b64decode(pieces["audio"]) == audio
    assert timed["alignment"]["text"] == TEXT and timed["normalized"]["text"] == SPOKEN_TEXT
    assert "".join(one["text"] for one in pieces["alignment"]) == TEXT
    for one in (timed["alignment"], timed["normalized"], *pieces["alignment"]):
        assert one["starts"] == sorted(one["starts"]) and one["ends"] == sorted(one["ends"])
        assert one["starts"][0] >= 0 and one["ends"][-1] <= len(audio) / 48_000 + 0.001


def test_elevenlabs_sdk_lists_voices_and_models_and_raises_its_own_errors(elevenlabs: Any) -> None:
    assert [[name, name, "cloned"] in elevenlabs["voices"] for name in ("ann", "shimmer")] == [True, True]
    assert elevenlabs["voice"] == "ann" and "ann" in elevenlabs["search"]
    assert ["tts-1", True] in elevenlabs["models"]
    (voice, code, _), *wrong = elevenlabs["errors"]
    assert (voice, code) == (404, "voice_not_found")
    assert wrong == [[400, "invalid_request", name] for name in ("voice_settings.speed", "output_format")]


def test_elevenlabs_sdk_writes_over_a_websocket_with_tls_and_its_key_is_the_token(guarded: Guarded) -> None:
    """convert_realtime requires TLS for every address."""
    call = (interpreter("clients"), "elevenlabs_says.py", guarded.gateway.url, "written")
    told = run(*call, guarded.held[Role.SPEAK], SSL_CERT_FILE=str(guarded.gateway.certificate))
    assert told["written"] > 24_000
    assert told["refused"] == [["none", 401], ["bob", 404]]


def test_pipecat(gateway: Gateway) -> None:
    told = run(interpreter("clients"), "pipecat_elevenlabs.py", gateway.address)
    for way in ("spoken", "written", "after", "http"):
        assert told[way]["errors"] == [] and told[way]["rate"] == 24_000
        assert told[way]["words"][-len(WRITTEN) :] == WRITTEN
        assert told[way]["bytes"] > 48_000 and told[way]["frames"] > 1
        # A client may have played an interrupted turn to its end before the interruption arrived.
        assert way == "after" or (len(told[way]["words"]) == len(WRITTEN) and told[way]["stopped"] == 1)
    assert told["interrupted"]["errors"] == [] and told["interrupted"]["bytes"] > 0
    # A completed turn is not cut.
    whole = len(asyncio.run(session_audio(gateway, "Hello, my 5 friends.", "Welcome to the stream.")))
    assert told["spoken"]["bytes"] == whole and told["after"]["bytes"] >= told["written"]["bytes"] >= whole
    until_idle(gateway.daemon)


def test_livekit(gateway: Gateway) -> None:
    told = run(interpreter("clients"), "livekit_elevenlabs.py", gateway.address)
    assert told["voices"] == ["shimmer", "ann"]
    assert told["whole"]["seconds"] > 0.5
    assert told["written"]["rate"] == 24_000 and told["written"]["seconds"] > 1.0
    assert [word.strip() for word, _ in told["written"]["words"]] == SPOKEN
    assert told["together"] == [told["written"]["seconds"]] * 2
    assert min(told["nothing"]) > 0  # otherwise it retries three times and fails
    assert told["mp3"] == pytest.approx(told["written"]["seconds"], abs=0.2)
    until_idle(gateway.daemon)


def test_livekit_in_node(gateway: Gateway) -> None:
    told = run("node", "livekit_node.js", gateway.address, node_modules())
    assert told["voices"] == ["shimmer", "ann"]
    assert told["written"]["rate"] == 24_000 and told["written"]["seconds"] > 1.0
    assert told["written"]["words"] == SPOKEN and told["together"] == [told["written"]] * 8
    assert told["whole"]["seconds"] == pytest.approx(told["openai"]["seconds"], abs=0.1)
    assert min(told["left"], *told["nothing"]) > 0
    until_idle(gateway.daemon)

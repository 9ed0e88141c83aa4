"""OpenAI's interface: against gRPC's samples, with the requests in the sources of clients."""

import base64
import io
import json
import time
import urllib.parse
import wave
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import soundfile

from appliance.client import Client, PausedChannels, UtteranceBegin
from appliance.gateway.body import MAX_COMPARED, Fields
from appliance.rpc.appliance_pb2 import Playout
from tests.gateway.conftest import LINE, NAMED, Gateway, request, until_idle
from tests.harness.patience import scaled, until
from tests.harness.rows import rows

# A single Python is enough, as for test_sovits.py: others run test_serving.py, test_elevenlabs.py and
# test_voices.py.
pytestmark = pytest.mark.once

BOTH = {**LINE, "text": LINE["input"], "ref_audio_path": "ann.wav"}
"""A line for both interfaces."""
KINDS = {"mp3": ("audio/mpeg", "MP3"), "opus": ("audio/ogg", "OGG"), "pcm": ("audio/pcm", "")}
KINDS |= {"flac": ("audio/flac", "FLAC"), "wav": ("audio/wav", "WAV")}


def said(gateway: Gateway, encoding: str) -> bytes:
    """The same line over gRPC."""
    with Client(gateway.daemon.address) as client:
        options = {"encoding": encoding, "seed": 7, "nfe": 2, "rate": 24_000}
        return client.stream("One, two, three.", "ann", **options).reply().audio  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [*KINDS, None])
def test_every_format_is_what_grpc_sends(gateway: Gateway, form: str | None) -> None:
    """MP3 is the default."""
    answer = gateway.ask("/v1/audio/speech", {**LINE, "response_format": form} if form else LINE)
    form = form or "mp3"
    media_type, container = KINDS[form]
    assert (answer.status, answer.headers["content-type"]) == (200, media_type), answer.body
    is_file = form in ("wav", "flac")  # a reply of one segment is complete at its first byte
    assert answer.headers["transfer-encoding"] == (None if is_file else "chunked")
    encoding = {"opus": "ogg_opus", "pcm": "pcm16"}.get(form, form)
    if form != "opus" and not is_file:  # each Ogg stream draws its serial number
        assert answer.body == said(gateway, encoding)
    pcm = np.frombuffer(said(gateway, "pcm16"), "<i2")
    if container:
        with soundfile.SoundFile(io.BytesIO(answer.body)) as file:
            assert (file.format, file.samplerate, file.channels) == (container, 24_000, 1)
            assert not is_file or (file.frames == len(pcm) and np.array_equal(file.read(dtype="int16"), pcm))
    assert len(pcm) > 10_000 and pcm.any()


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/text-to-speech/ann/stream", "/tts"])
def test_a_reply_that_is_not_streamed_has_its_length(gateway: Gateway, path: str) -> None:
    text = "One line, and another line. And a line that is the last of them all. " * 2
    sent = {**BOTH, "input": text, "text": text, "response_format": "wav", "streaming_mode": True}
    whole = gateway.ask(f"{path}?output_format=wav_24000", {**sent, "stream": False})
    assert int(whole.headers["content-length"]) == len(whole.body)
    with wave.open(io.BytesIO(whole.body)) as file:
        assert 50_000 < file.getnframes() == len(file.readframes(-1)) / 2


def test_events_carry_the_same_audio(gateway: Gateway) -> None:
    sent = {**LINE, "response_format": "pcm", "stream_format": "sse"}
    answer = gateway.ask("/v1/audio/speech", sent)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]
    assert [event["type"] for event in events[-2:]] == ["speech.audio.delta", "speech.audio.done"]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert audio == said(gateway, "pcm16")
    assert "usage" in events[-1]
    with Client(gateway.daemon.address) as client:
        stream = client.stream(LINE["input"], "ann", seed=7, nfe=2, rate=24_000, word_timings=True)
        reply = stream.reply()
    for event, words in ((events[0], reply.header.words), (events[-1], reply.words)):
        told = [(one["word"], one["start"], one["end"]) for one in event["words"]]
        assert told == [(word.word, round(word.start_s, 3), round(word.end_s, 3)) for word in words]
    assert not any("words" in event for event in events[1:-1])


@pytest.mark.parametrize("path", [
    *("/livez", "/readyz", "/v1/models", "/v1/models/tts-1", "/v1/audio/models", "/v1/audio/voices"),
    *("/v1/voices", "/v2/voices", "/v1/voices/ann", "/v1/user", "/", "/overlay", "/static/player.js"),
    *("/api/status", "/api/queue", "/api/listen", "/tts?text=Hi.&ref_audio_path=ann.wav&channel=head"),
])  # fmt: skip
def test_head_is_answered_where_get_is_and_says_nothing(gateway: Gateway, path: str) -> None:
    with Client(gateway.daemon.address) as client:
        client.pause("head")
        answer = gateway.ask(path, method="HEAD")
        assert (answer.status, answer.body) == (200, b"") and answer.headers["content-type"]
        assert not client.utterances("head")


@pytest.mark.parametrize("text", ["", " \n", "\u200b", "\U0001f3fb"])
@pytest.mark.parametrize("form", [*KINDS, "/tts"])
def test_a_text_with_nothing_to_say_is_a_short_silence(gateway: Gateway, text: str, form: str) -> None:
    """A bot's queue goes on: it could not tell an error for silence from a failure."""
    path, sent = "/v1/audio/speech", {**LINE, "input": text, "response_format": form}
    if form == "/tts":
        path, sent = form, {"text": text, "ref_audio_path": "ann.wav"}
    answer = gateway.ask(path, sent)
    assert answer.status == 200, answer.body
    raw = {"channels": 1, "samplerate": 24_000, "format": "RAW", "subtype": "PCM_16"} if form == "pcm" else {}
    samples, rate = soundfile.read(io.BytesIO(answer.body), **raw)
    assert rate == 24_000 and 0 < len(samples) < rate and not np.abs(samples).max() > 1e-3
    assert form != "/tts" or not samples.any()


@pytest.mark.parametrize(("change", "status", "param", "message"), rows(__file__, "openai_refused.jsonl"))
def test_errors_have_openais_shape(
    gateway: Gateway, change: dict[str, object], status: int, param: str | None, message: str
) -> None:
    answer = gateway.ask("/v1/audio/speech", {**LINE, **change})
    error = answer.json["error"]
    assert (answer.status, error["param"]) == (status, param), error
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert answer.headers["x-should-retry"] == "false" and answer.headers["x-request-id"]


BODIES = (b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 20_000, b'{"input": NaN}')


@pytest.mark.parametrize("body", [*BODIES, b" " * ((1 << 20) + 1)])
def test_a_body_that_is_no_object_or_too_long(gateway: Gateway, body: bytes) -> None:
    answer = gateway.ask("/v1/audio/speech", body)
    error, is_long = answer.json["error"], len(body) > 1 << 20
    assert answer.status == (413 if is_long else 400) and error["type"] == "invalid_request_error"
    assert not is_long or error["code"] == "too_large"


@pytest.mark.parametrize("voice", ["alloy", "Alloy", "shimmer", "Shimmer", "ann", "ANN", {"id": "Ann"}, None])
def test_openais_names_mean_the_only_voice_or_the_mapped_one(gateway: Gateway, voice: object) -> None:
    answer = gateway.ask("/v1/audio/speech", {**LINE, "voice": voice, "response_format": "pcm"})
    assert answer.body == said(gateway, "pcm16")


def test_among_several_voices_the_default_speaks(gateway: Gateway) -> None:
    gateway.daemon.add_voice("bea")
    for voice in ("bea", {"id": "bea"}):
        assert gateway.ask("/v1/audio/speech", {**LINE, "voice": voice}).status == 200
    answer = gateway.ask("/v1/audio/speech", {**LINE, "voice": "alloy"})
    assert answer.status == 404 and "those here are ann, bea" in answer.json["error"]["message"]
    shapes = gateway.ask("/v1/audio/voices").json["voices"]
    # open-webui/open-webui, backend/open_webui/routers/audio.py (get_available_voices), 6adde203cd29, needs
    # id and name of each voice; otherwise it shows OpenAI's voices.
    assert [voice["id"] for voice in shapes] == ["shimmer", "ann", "bea"]
    assert all(isinstance(voice["name"], str) for voice in shapes)


def test_models(gateway: Gateway) -> None:
    answer = gateway.ask("/v1/models").json
    names = [model["id"] for model in answer["data"]]
    assert answer["object"] == "list" and names == ["tiny", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert all(gateway.ask(f"/v1/models/{name}").json["id"] == name for name in names)
    assert gateway.ask("/v1/models/whisper").json["error"]["code"] == "model_not_found"
    # open-webui/open-webui, backend/open_webui/routers/audio.py (get_available_models), 6adde203cd29: its
    # path and key differ from OpenAI's. If they are missing, it shows OpenAI's models.
    assert [model["id"] for model in gateway.ask("/v1/audio/models").json["models"]] == names


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/tts"])
def test_half_an_emoji_is_dropped(gateway: Gateway, path: str) -> None:
    """JavaScript's `slice` cuts an emoji in two; the rest of the message is spoken."""
    cut, whole = ({**BOTH, "input": t, "text": t} for t in ("great clip \ud83d", "great clip "))
    answer = gateway.ask(path, cut)
    assert answer.status == 200 and answer.body == gateway.ask(path, whole).body


@pytest.mark.parametrize(("form", "has"), [("ogg", False), ("AAC", True)])
def test_the_refusal_of_a_format_names_it(gateway: Gateway, form: str, has: bool) -> None:
    answer = gateway.ask("/v1/audio/speech", {**LINE, "response_format": form})
    assert answer.status == 400 and ("AAC" in answer.json["error"]["message"].replace("'AAC'", "")) is has


QUEUE_FIELDS = dict(rows(__file__, "queue_fields.jsonl"))
"""A valid value and an invalid value."""


@pytest.mark.parametrize("method", ["openai", "post", "get"])
def test_the_queues_fields_reach_the_daemon(gateway: Gateway, method: str) -> None:
    """All fields come at once while their channel is paused. Afterwards the id is free again."""
    right = {name: value for name, (value, _) in QUEUE_FIELDS.items()}
    sent = {**BOTH, **right, "channel": "fields", "user": "eve"}
    call: tuple[object, ...] = ("/tts" if method == "post" else "/v1/audio/speech", sent)
    if method == "get":
        call = (f"/tts?{urllib.parse.urlencode(sent)}",)
    with Client(gateway.daemon.address) as client, ThreadPoolExecutor() as pool:
        client.pause("fields")
        asked = pool.submit(gateway.ask, *call)  # type: ignore[arg-type]
        until(lambda: client.utterances("fields"))
        (utterance,) = client.utterances("fields")
        assert (utterance.request_id, utterance.user_key) == ("mine", "eve")
        later = {**sent, "request_id": "later", "merge_key": ""}
        successor = pool.submit(gateway.ask, "/tts", later)
        assert asked.result().status == 409  # ended by its supersede_key
        assert client.utterances("fields")[0].request_id == "later"
        client.clear("fields")
        assert successor.result().status in (409, 499)


@pytest.mark.parametrize("name", QUEUE_FIELDS)
def test_a_wrong_value_of_the_queues_fields_is_named(gateway: Gateway, name: str) -> None:
    answer = gateway.ask("/v1/audio/speech", {**LINE, name: QUEUE_FIELDS[name][1]})
    assert (answer.status, answer.json["error"]["param"]) == (400, name)


def test_speech_is_cut_at_its_most_seconds(gateway: Gateway) -> None:
    long = "One line, and another line, and the last line of all. " * 3
    sent = {**LINE, "input": long, "response_format": "pcm"}
    whole, cut = (
        len(gateway.ask("/v1/audio/speech", {**sent, **more}).body)
        for more in ({}, {"max_spoken_seconds": 3})
    )
    assert 10_000 < cut < whole / 2


@pytest.mark.parametrize(("more", "playout"), [
    ({}, "SERIAL"), ({"playout": "OVERLAP"}, "OVERLAP"), ({"priority": "bulk"}, "OVERLAP"),
])  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/audio/speech", "/tts"])
def test_replies_of_a_named_channel_are_serial_unless_said_otherwise(
    gateway: Gateway, path: str, more: dict[str, object], playout: str
) -> None:
    with Client(gateway.daemon.address) as client, ThreadPoolExecutor() as pool:
        channel = f"{path} {more}"
        heard = client.listen(channel)
        assert isinstance(next(heard), PausedChannels)
        asked = pool.submit(gateway.ask, path, {**BOTH, "channel": channel, **more})
        assert next(one for one in heard if isinstance(one, UtteranceBegin)).playout == Playout.Value(playout)
        assert asked.result().status == 200
        heard.close()


@pytest.mark.parametrize(("sent", "named"), [
    ({"supercede_key": "score"}, "supercede_key"),
    ({"queueTimeout": 5, "max-spoken-seconds": 3}, "queueTimeout, max-spoken-seconds"),
    ({"user_key": "eve", "pronunciations": {}}, "user_key, pronunciations"),
    ({"word_timings": True, "chanel": "stage"}, "word_timings, chanel"),
    ({"model": "tts-1", "instructions": "calm", "user_id": "7", "temperature": 1, "lang": "en"}, None),
])  # fmt: skip
@pytest.mark.parametrize("voice", ["ann", "nobody"])
def test_a_mistaken_parameter_is_named(
    gateway: Gateway, sent: dict[str, object], named: str | None, voice: str
) -> None:
    answer = gateway.ask("/v1/audio/speech", {**LINE, "voice": voice, **sent}, origin=NAMED)
    assert answer.status == (200 if voice == "ann" else 404)
    assert answer.headers["x-ignored-parameters"] == named
    assert "x-ignored-parameters" in answer.headers["access-control-expose-headers"]
    assert answer.headers["x-accel-buffering"] == "no"


def test_a_thousand_parameters_are_not_compared() -> None:
    given = {f"channe{number}": 1 for number in range(1_000)}
    assert len(Fields(given).not_read(())) == MAX_COMPARED


def test_a_page_that_is_named_may_call_it(gateway: Gateway) -> None:
    """Social Stream Ninja (steveseguin/social_stream) is such a page: most of its failures are CORS."""
    wanted = {"method": "POST", "headers": "authorization,content-type", "private_network": "true"}
    asked = {"origin": NAMED} | {f"access_control_request_{name}": of for name, of in wanted.items()}
    answer = gateway.ask("/v1/audio/speech", method="OPTIONS", **asked)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == NAMED
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert answer.headers["access-control-allow-private-network"] == "true"
    for sent in (LINE, {**LINE, "voice": "bob"}):
        answer = gateway.ask("/v1/audio/speech", sent, origin=NAMED)
        assert answer.headers["access-control-allow-origin"] == NAMED


@pytest.mark.parametrize("sent", rows(__file__, "openai_clients.jsonl"), ids=lambda sent: sent["client"])
def test_shapes_of_clients(gateway: Gateway, sent: dict[str, Any]) -> None:
    """`key`: token of the Authorization header; null: the client sends no header."""
    headers = {} if sent["key"] is None else {"authorization": f"Bearer {sent['key']}"}
    answer = gateway.ask("/v1/audio/speech", sent["body"], **headers)
    assert answer.status == 200 and answer.headers["content-type"].startswith("audio/"), answer.body
    with soundfile.SoundFile(io.BytesIO(answer.body)) as file:
        assert file.format == sent["container"]
        assert len(file.read()) > 1_000


@pytest.mark.parametrize(("channel", "has_sound"), [("gone", True), ("held", False)])
def test_a_closed_connection_ends_the_call(gateway: Gateway, channel: str, has_sound: bool) -> None:
    """The daemon's queue shows the end of the call, also before the first sound. The client does not cancel
    it."""
    sent = {**LINE, "input": "A long story. " * 100, "channel": channel, "user": "eve", "nfe": 7}
    with Client(gateway.daemon.address) as client:
        if not has_sound:
            client.pause(channel)
        with gateway.connected(request("/v1/audio/speech", sent)) as connection:
            until(lambda: client.utterances(channel))
            (utterance,) = client.utterances(channel)
            assert utterance.user_key == "eve"
            if has_sound:
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
        until_idle(gateway.daemon, channel)


@pytest.mark.parametrize("door", ["ElevenLabs", "GPT-SoVITS"])
def test_a_closed_connection_of_another_api_ends_the_call(gateway: Gateway, door: str) -> None:
    """The call ends long before its finished audio could be played."""
    story = "A long story. " * 280
    path, sent = {
        "ElevenLabs": ("/v1/text-to-speech/ann/stream", {"text": story}),
        "GPT-SoVITS": (
            "/tts",
            {"text": story, "text_lang": "en", "ref_audio_path": "ann.wav", "streaming_mode": True},
        ),
    }[door]
    with (
        Client(gateway.daemon.address) as client,
        gateway.connected(request(path, sent, headers=[("content-type", b"application/json")])) as connection,
    ):
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert client.utterances()
    left = time.monotonic()
    until_idle(gateway.daemon)
    assert time.monotonic() - left < scaled(15.0)


def test_a_skipped_reply_is_not_complete(gateway: Gateway) -> None:
    """A skip before the first sound gives a status that OpenAI's client does not retry; a later skip breaks
    the connection."""
    with Client(gateway.daemon.address) as client, ThreadPoolExecutor() as pool:
        client.pause("stage")
        asked = pool.submit(gateway.ask, "/v1/audio/speech", {**LINE, "channel": "stage"})
        until(lambda: client.utterances("stage"))
        client.clear("stage")
        answer = asked.result()
    assert answer.status == 409, answer.body
    assert answer.headers["x-should-retry"] == "false"

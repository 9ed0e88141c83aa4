"""ElevenLabs' interface: over HTTP, over WebSocket, times of characters; its SDK is in test_clients.py."""

import asyncio
import base64
import contextlib
import io
import json
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from appliance.access import token_file
from appliance.access.token_file import Role
from appliance.audio.encode import Encoder
from appliance.client import AsyncClient, Client, End, Header, Piece, WordTiming
from appliance.encodings import Encoding
from appliance.gateway.alignment import align_spoken, align_written
from appliance.gateway.stream_input import FINAL, MAX_CONTEXTS, Context
from appliance.rpc.appliance_pb2 import TextChange
from tests.gateway.conftest import NAMED, Gateway, gateway_of, until_idle
from tests.gateway.sockets import Refused, Socket, connected
from tests.harness.patience import PATIENCE_S, until
from tests.harness.rows import rows

pytestmark = [pytest.mark.slow]
PATH = "/v1/text-to-speech/ann"
QUERY = "output_format=pcm_24000&seed=7&nfe=2"


@pytest.mark.parametrize("way", ["", "/stream", "/with-timestamps", "/stream/with-timestamps"])
def test_replies_are_not_held_back_by_proxies_our_parameters_obeyed(gateway: Gateway, way: str) -> None:
    path = f"{PATH}{way}?{QUERY}"
    answer = gateway.ask(
        path, {"text": "One, two, 3.", "request_id": "mine", "maxSpokenSeconds": 1, "model_id": "x"}
    )
    assert answer.status == 200 and answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-ignored-parameters"] == "maxSpokenSeconds"
    blank = gateway.ask(path, {"text": " "})
    assert blank.status == 200 and len(blank.body) > 1_000


@contextlib.contextmanager
def writing(gateway: Gateway, more: str = QUERY, *, many: bool = False, **headers: str) -> Iterator[Socket]:
    """A connection for one context, or for many, with this query."""
    path = f"{PATH}/{'multi-' if many else ''}stream-input?{more}"
    with connected(gateway.address, path, **headers) as socket:
        yield socket


def exchange(
    gateway: Gateway, *sent: Any, more: str = QUERY, many: bool = False, **headers: str
) -> tuple[int, list[dict[str, Any]]]:
    """Close code and messages of a connection after `sent`: bytes, or values for JSON."""
    with writing(gateway, more, many=many, **headers) as socket:
        for message in sent:
            socket.send_raw(message if isinstance(message, bytes) else json.dumps(message).encode())
        messages = list(socket)
    return socket.code, messages


def audio_of(messages: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(one.get("audio") or "") for one in messages)


def test_words_sound_as_in_a_session(gateway: Gateway) -> None:
    text = "Hello there, my 5 friends. How are you today? I am fine."
    words = [{"text": f"{word} ", "try_trigger_generation": True} for word in text.split()]
    begin = {"text": " ", "voice_settings": {"speed": 1}}
    code, messages = exchange(gateway, begin, *words, {"text": ""})
    audio = audio_of(messages)
    assert code == 1000 and messages[-1]["isFinal"] is True
    assert audio == asyncio.run(session_audio(gateway, *text.split()))
    aligned = [one for one in messages if one.get("alignment")]
    for kind, said in (("alignment", text), ("normalizedAlignment", text.replace("5", "five"))):
        assert "".join("".join(one[kind]["chars"]) for one in aligned).strip() == said
    # Each message's times begin at the end of the previous ones, and no word precedes its audio.
    total_ms = heard_ms = 0.0
    for one in messages:
        heard_ms += len(audio_of([one])) / 48
        if (spans := one.get("alignment")) is not None:
            total_ms += spans["charStartTimesMs"][-1] + spans["charDurationsMs"][-1]
        assert total_ms <= heard_ms + 1
    assert len(audio) / 48 - 400 < total_ms and len(aligned) > 3


async def session_audio(gateway: Gateway, *texts: str) -> bytes:
    async with AsyncClient(gateway.daemon.address) as client:
        session = client.session("ann", seed=7, nfe=2, rate=24_000)
        for text in texts:
            await session.say(f"{text} ")
        await session.close()
        return b"".join([event.data async for _, event in session if isinstance(event, Piece)])


def test_speech_begins_while_the_text_is_written(gateway: Gateway) -> None:
    with writing(gateway) as socket:
        socket.send({"text": "This is the first sentence of a long story, and it goes on. "})
        socket.send({"text": "Here is more. And "})
        assert base64.b64decode(next(socket)["audio"])
        socket.send({"text": ""})
        assert len(audio_of(list(socket))) > 24_000


def test_contexts_speak_and_end_independently(gateway: Gateway) -> None:
    sent: list[dict[str, Any]] = []
    for name in ("a", "b", "left"):
        sent.append({"text": " ", "context_id": name, "voice_settings": {"speed": 1}})
        sent.append({"text": f"This is {name}. ", "context_id": name})
    sent.append({"context_id": "left", "close_context": True})
    for name in ("a", "b"):
        sent += [{"context_id": name, "flush": True}, {"context_id": name, "close_context": True}]
    code, messages = exchange(gateway, *sent, {"text": ""}, {"close_socket": True}, many=True)
    assert code == 1000
    heard = {name: [one for one in messages if one["contextId"] == name] for name in ("a", "b", "left")}
    for name in ("a", "b"):
        assert len(audio_of(heard[name][:2])) > 1_000
        assert [one["isFinal"] for one in heard[name]][-1] is True
    # The context was not flushed, so that its close is an interruption.
    assert heard["left"] == [{**FINAL, "contextId": "left"}]


def test_a_context_that_is_refused_ends_alone(gateway: Gateway) -> None:
    code, messages = exchange(
        gateway,
        {"text": "This is spoken. ", "context_id": "a"},
        {"text": "Hi. ", "context_id": "b", "voice_settings": {"speed": 9}},
        {"text": "word " * 8_000, "context_id": "c"},
        *({"text": " ", "context_id": f"empty-{number}"} for number in range(8)),
        {"context_id": "a", "flush": True},
        {"close_socket": True},
        many=True,
    )
    assert code == 1000
    codes = {one["contextId"]: one["code"] for one in messages if "code" in one}
    assert codes["b"] == "invalid_request" and codes["c"] == "too_large"
    assert "too_many_calls" in codes.values() and "a" not in codes
    final = [one["contextId"] for one in messages if one.get("isFinal")]
    assert {"a", "b", "c"} <= set(final) and len(final) == len(set(final))
    assert sum(bool(one.get("audio")) for one in messages if one["contextId"] == "a") > 1


def test_a_text_that_fails_on_the_way_ends_the_connection(gateway: Gateway) -> None:
    with Client(gateway.daemon.address) as client:
        client.pause("cleared")
        with writing(gateway, f"{QUERY}&channel=cleared") as socket:
            socket.send({"text": "This is a sentence that waits. ", "flush": True})
            until(lambda: bool(client.utterances("cleared")))
            client.clear("cleared")
            messages = list(socket)
    assert socket.code == 1008
    assert [one.get("code") for one in messages if "error" in one] == ["cleared"]


LONG = {"text": "A long story. " * 100, "context_id": "a"}
FLUSH, CLOSE = {"context_id": "a", "flush": True}, {"context_id": "a", "close_context": True}
NEXT = {"text": "And now", "context_id": "b"}


@pytest.mark.parametrize("sent", [(LONG, CLOSE), (LONG, FLUSH, CLOSE, CLOSE)])
def test_an_interruption_ends_a_context_at_once(gateway: Gateway, sent: tuple[Any, ...]) -> None:
    """The first close interrupts a text without a flush; otherwise the second close interrupts.

    The channel is paused, so that the context does not end before the close.
    """
    with Client(gateway.daemon.address) as client:
        client.pause("written")
        with writing(gateway, f"{QUERY}&channel=written", many=True) as socket:
            socket.send(*sent)
            until_final(socket, "a")
            client.resume("written")
            until_idle(gateway.daemon, "written")


def test_a_closed_connection_frees_the_engine(gateway: Gateway) -> None:
    with writing(gateway, f"{QUERY}&channel=written", many=True) as socket:
        socket.send(LONG)
        assert next(socket)["audio"]
        socket.abandon()
        until_idle(gateway.daemon, "written")


def until_final(socket: Socket, name: str) -> list[dict[str, Any]]:
    """Messages until a context's final message."""
    messages: list[dict[str, Any]] = []
    for message in socket:
        messages.append(message)
        if message["contextId"] == name and message.get("isFinal"):
            return messages
    raise AssertionError(messages)


def test_the_last_message_counts_the_heard_text(gateway: Gateway) -> None:
    text, ends, heard_s = "These are the words that a listener hears one after the other. " * 3, [0], [0.0]
    with writing(gateway, many=True) as socket:
        begun = time.monotonic()
        socket.send({"text": text, "context_id": "a", "flush": True})
        while len(ends) < len(text):
            message = next(socket)
            heard_s[0] = heard_s[0] or time.monotonic()
            if told := message["alignment"]:
                pairs = zip(told["charStartTimesMs"], told["charDurationsMs"], strict=True)
                ends += [ends[-1] + start + length for start, length in [*pairs]]
        until(lambda: time.monotonic() > heard_s[0] + 1.5)
        least_s = time.monotonic() - heard_s[0]
        socket.send({"context_id": "a", "close_context": True})
        [*_, final] = until_final(socket, "a")
        most_s = time.monotonic() - begun
    least, most = (sum(end <= 1e3 * limit_s for end in ends[1:]) for limit_s in (least_s, most_s))
    assert 0 < len(text[:least].rpartition(" ")[0]) <= final["heardCharacters"] <= most
    assert text[final["heardCharacters"]] == " "


def test_turns_beyond_the_places_wait_and_are_spoken(gateway: Gateway) -> None:
    names = [str(number) for number in range(MAX_CONTEXTS + 3)]
    with writing(gateway, many=True) as socket:
        for name in names:
            socket.send({"text": f"This is turn {name}.", "context_id": name, "flush": True})
            socket.send({"context_id": name, "close_context": True})
        socket.send({"close_socket": True})
        messages = list(socket)
    assert not any("error" in message for message in messages)
    assert {message["contextId"] for message in messages if message.get("audio")} == set(names)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(writing(gateway)) for _ in names]
        for socket in sockets:
            socket.send({"text": "This is a turn. "}, {"text": ""})
        assert all(len(audio_of(list(socket))) > 1_000 for socket in sockets)


@pytest.mark.parametrize("text", ["...", "…!", "\U0001f3fb"])
def test_a_context_without_speech_is_a_short_silence(gateway: Gateway, text: str) -> None:
    end = [{"context_id": "a", "text": text, "flush": True}, CLOSE, {"close_socket": True}]
    code, messages = exchange(gateway, *end, many=True)
    assert code == 1000 and [message["isFinal"] for message in messages] == [None, True]
    assert audio_of(messages) == bytes(4_800)


def context_of(session: Callable[[], Any]) -> tuple[Context, list[dict[str, Any]]]:
    """A context of PCM audio, and the list of its messages."""
    told: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    pcm = Encoder(Encoding.PCM16, 24_000, "")
    return Context(session, pcm, send, 100, asyncio.Semaphore()), told


async def test_a_text_of_any_length_is_flushed_where_sentences_end() -> None:
    class Recorder(list[str]):
        """A silent session that lists the texts written to it."""

        async def say(self, text: str) -> None:
            self.append(text)

        async def flush(self) -> None:
            self.append("")

        async def close(self) -> None:
            self.append("end")

        async def __aiter__(self) -> AsyncIterator[Any]:
            while self[-1:] != ["end"]:
                await asyncio.sleep(0)
            for _ in range(self.count("")):
                yield 1, End(samples=1)

    recorder = Recorder()
    context, told = context_of(lambda: recorder)
    speaking = asyncio.ensure_future(context.run())
    texts = ["A sentence of 30 characters. "] * 10 + ["word "] * 30
    for text in texts:
        context.say(text)
    context.finish()
    await speaking
    assert [text for text in recorder if text] == [*texts, "end"]
    utterances = "".join(text or "\n" for text in recorder[:-1]).splitlines()
    assert max(map(len, utterances)) <= 100
    assert all(utterance.endswith(". ") for utterance in utterances[:5])
    assert not context.is_busy and told == [FINAL]


@pytest.mark.parametrize(("sent", "code", "error"), [
    ("{", "invalid_json", ""), ("[]", "invalid_json", ""), ('{"text": 5}', "invalid_request", ""),
    ('{"text": "Hi ", "voice_settings": {"speed": 9}}', "invalid_request", ""),
    ('{"text": "Hi ", "voice_settings": 1}', "invalid_request", ""),
    ('{"flush": "maybe", "text": "Hi "}', "invalid_request", ""),
    (json.dumps({"text": "word " * 8_000}), "too_large", ""),
    (json.dumps({"text": "a" * 5_000 + " "}), "invalid_request", "4096 characters at most"),
])  # fmt: skip
def test_an_error_is_reported_and_ends_the_call(gateway: Gateway, sent: str, code: str, error: str) -> None:
    end = [{"text": ""}] if error else []  # ends the utterance
    closed, messages = exchange(gateway, sent.encode(), *end)
    assert closed == 1008 and messages[0]["code"] == code
    assert messages[0]["error"] and error in messages[0]["error"]


def test_a_silent_client_gets_an_error_and_a_close(gateway: Gateway) -> None:
    half = {"text": "Half a sentence", "context_id": "a"}
    code, messages = exchange(gateway, half, more=f"{QUERY}&inactivity_timeout=1", many=True)
    assert code == 1008 and messages[-1]["code"] == "input_timeout_exceeded"


@pytest.mark.parametrize("many", [False, True])
def test_a_key_is_in_the_first_message_or_the_address(gateway: Gateway, tmp_path: Path, many: bool) -> None:
    """ElevenLabs' guide for browsers puts the key into the first message."""
    token = token_file.add(tmp_path / "tokens", "agent", [Role.SPEAK])
    server = {**gateway.daemon.config["server"], "tokens": str(tmp_path / "tokens")}
    daemon = replace(gateway.daemon, config={**gateway.daemon.config, "server": server})
    words, end = {"text": "Hi. ", "flush": True}, {"text": "", "close_socket": True}
    with gateway_of(daemon, daemon=gateway.daemon.address) as other:
        for shown, ends in ((token, 1000), ("none", 1008), (None, 1008)):
            code, messages = exchange(other, {**words, "xi_api_key": shown}, end, many=many)
            assert code == ends and (messages[0].get("code") == "unauthenticated") is (code != 1000)
        for name in ("authorization", "single_use_token"):
            assert exchange(other, words, end, more=f"{QUERY}&{name}={token}", many=many)[0] == 1000


ONE = f"{PATH}/stream-input"


@pytest.mark.parametrize(("path", "headers", "status", "code"), rows(__file__, "handshakes_refused.jsonl"))
def test_a_handshake_is_refused_as_a_request_is(
    gateway: Gateway, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    with pytest.raises(Refused) as refused, connected(gateway.address, path, **headers):
        pass
    assert refused.value.status == status
    assert json.loads(refused.value.body)["detail"]["status"] == code


def test_own_pages_and_named_origins_may_write(gateway: Gateway) -> None:
    for origin in (gateway.url, NAMED):
        _, messages = exchange(gateway, {"text": "Hi. "}, {"text": ""}, origin=origin)
        assert len(audio_of(messages)) > 1_000


def test_a_websocket_takes_a_place_and_speaks_to_its_end_when_the_gateway_stops(gateway: Gateway) -> None:
    with gateway_of(gateway.daemon, max_requests=1) as other, writing(other, many=True) as socket:
        assert other.ask("/v1/models").status == 429
        socket.send({"text": "This is said to its end, whatever comes. And this.", "context_id": "a"})
        assert next(socket)["audio"]
        other.process.terminate()
        messages = list(socket)
        assert socket.code == 1012 and messages[-1]["isFinal"] is True
        assert len(audio_of(messages)) > 48_000
        assert other.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in other.log


def test_speech_ends_for_a_client_who_leaves_after_the_last_word(gateway: Gateway) -> None:
    with Client(gateway.daemon.address) as client:
        client.pause("left")
        with writing(gateway, f"{QUERY}&channel=left") as socket:
            socket.send({"text": "Nobody waits for this. "})
            socket.send({"text": ""})
            until(lambda: bool(client.utterances("left")))
        until_idle(gateway.daemon, "left")


def timed(text: str, *words: tuple[str, float, float]) -> Header:
    return Header(text=text, words=[WordTiming(word=word, start_s=a, end_s=b) for word, a, b in words])


def test_characters_share_the_time_of_their_word() -> None:
    found = align_spoken(timed("Hi you.", ("Hi", 0.1, 0.3), ("you.", 0.4, 0.8)))
    assert "".join(one.character for one in found) == "Hi you."
    starts = [one.start_s for one in found]
    assert np.allclose(starts, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert found[2].end_s == pytest.approx(0.4)


PIECES = {
    **{word: word for word in ("five", "twenty", "cats", "dogs,", "fire", "link", "dollars", "and")},
    **{"5": "five", "25": "twenty five", "20,": "twenty,", "$5": "five dollars", "🔥": "fire", "哈": ""},
    **{"https://x.y/z": "link", "NOOOO": "noo", "\u0301": ""},
}
"""Written → spoken; some have the same number of words."""


@given(st.lists(st.sampled_from([*PIECES]), max_size=40), st.booleans())
def test_all_that_was_written_has_times_the_unchanged_its_own(pieces: list[str], is_told: bool) -> None:
    """Repeated words are checked if the header has the changes."""
    said = [word for piece in pieces for word in PIECES[piece].split()]
    header = timed(" ".join(said), *((word, n / 2, n / 2 + 0.4) for n, word in enumerate(said)))
    if is_told:
        changed = ((piece, PIECES[piece]) for piece in pieces if piece != PIECES[piece])
        header.changes.extend(TextChange(before=a.rstrip(","), after=b.rstrip(",")) for a, b in changed)
    text = " ".join(pieces)
    found = align_written(text, header, align_spoken(header))
    assert "".join(one.character for one in found) == text
    times = [one_s for one in found for one_s in (one.start_s, one.end_s)]
    assert np.all(np.diff(times) > -1e-9) and (not times or times[-1] <= len(said) / 2)
    number, at = 0, 0
    for piece in pieces:
        if piece == PIECES[piece] and (is_told or (pieces.count(piece) == said.count(piece) == 1)):
            span = found[at].start_s, found[at + len(piece) - 1].end_s
            assert span == (pytest.approx(number / 2), pytest.approx(number / 2 + 0.4))
        number, at = number + len(PIECES[piece].split()), at + len(piece) + 1


@pytest.mark.parametrize("way", ["/with-timestamps", "/stream/with-timestamps"])
def test_the_alignment_of_many_changes_is_of_the_text_as_it_was_written(gateway: Gateway, way: str) -> None:
    text = "I have five cats and 5 dogs. " + "6 rats 🔥, 7 rats https://x.y/z. " * 40
    sent = {"text": text, "voice_settings": {"speed": 4}}
    audio, alignments = b"", [defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)]
    for line in map(json.loads, gateway.ask(f"{PATH}{way}?{QUERY}", sent).body.splitlines()):
        audio += base64.b64decode(line["audio_base64"])
        for whole, name in zip(alignments, ("alignment", "normalized_alignment"), strict=True):
            for kind, values in (line[name] or {}).items():
                whole[kind] += values
            # No time is more than a piece ahead of the audio.
            assert whole["character_end_times_seconds"][-1:] <= [len(audio) / 48_000 + 0.2]
    for one in alignments:
        starts, ends = one["character_start_times_seconds"], one["character_end_times_seconds"]
        assert starts == sorted(starts) and ends == sorted(ends)
        assert ends[-1] <= len(audio) / 48_000 + 0.001
    as_written, as_said = ("".join(one["characters"]) for one in alignments)
    assert as_written == text and as_said.count("rats") == 80

    def begins(number: int, word: str) -> list[float]:
        one = alignments[number]
        whole = "".join(one["characters"])
        return [one["character_start_times_seconds"][at.start()] for at in re.finditer(rf"\b{word}\b", whole)]

    for word in ("cats", "dogs", "rats"):
        assert begins(0, word) == begins(1, word)
    assert begins(0, "five") + begins(0, "5") == begins(1, "five")
    assert begins(0, "6") == begins(1, "six") and begins(0, "7") == begins(1, "seven")


def test_a_reply_without_words_has_its_text() -> None:
    header = timed("Hi.")
    for found in (align_spoken(header), align_written("Hi.", header, align_spoken(header))):
        assert "".join(one.character for one in found) == "Hi."


def test_requests_of_tools_before_speech_and_their_errors(gateway: Gateway) -> None:
    answers = {
        path: gateway.ask(f"/v1/{path}", xi_api_key="any")
        for path in (
            *("user", "user/subscription", "voices/ann/settings", "voices/settings/default"),
            *("voices/bob/settings", "history", "models/whisper"),
        )
    }
    statuses = [answer.status for answer in answers.values()]
    assert statuses == [200] * 4 + [404] * 3
    assert answers["user"].json["subscription"] == answers["user/subscription"].json
    assert answers["voices/ann/settings"].json == answers["voices/settings/default"].json
    for answer in list(answers.values())[4:]:
        assert answer.json["detail"]["message"] and answer.headers["x-request-id"]


def test_a_law_is_g711(gateway: Gateway) -> None:
    coded = gateway.ask(f"{PATH}?{QUERY.replace('pcm_24000', 'alaw_8000')}", {"text": "One, two."}).body
    raw = {"channels": 1, "samplerate": 8_000, "format": "RAW", "subtype": "ALAW"}
    linear = gateway.ask(f"{PATH}?{QUERY.replace('24000', '8000')}", {"text": "One, two."}).body
    exact = np.frombuffer(linear, "<i2")
    assert np.abs(soundfile.read(io.BytesIO(coded), dtype="int16", **raw)[0] - exact).max() < 1_100

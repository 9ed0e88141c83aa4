"""Hostile HTTP and WebSockets: each gets an answer below 500 or a closed connection, and speech goes on.

Each file runs dozens by default; `F5_HOSTILE=2000 pytest -s tests/gateway/test_hostile.py` sends that many
and prints their outcomes. `F5_SEED=2 … --hypothesis-seed=2` draws others.
"""

import contextlib
import json
import random
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.conftest import LINE, Gateway, gateway_of, read, request
from tests.gateway.sockets import connected, frame, handshake
from tests.harness.daemons import Shared
from tests.harness.hostile import COUNT, Victim, mutated, share
from tests.harness.patience import scaled

# A single Python is enough: HTTP does not depend on its version.
pytestmark = [pytest.mark.slow, pytest.mark.once]

STALL_S = scaled(5.0)
BODY_BYTES = 64 << 10


class Target(Victim):
    """A gateway, and a client that sends it bytes."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.stack, self.answer = gateway, contextlib.ExitStack(), b""
        self.held: list[socket.socket] = []
        """Connections with unfinished requests."""
        super().__init__(gateway, self._speak)

    def send(self, kind: str, raw: bytes, *, stay: bool = False, whole: bool = True) -> int:
        """Send bytes and return the answer's status, 0 for none. `stay` leaves the request unfinished.

        `whole` False: the request may be incomplete, so that the input ends after it.
        """
        answer = b""
        with contextlib.ExitStack() as stack, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection = (self.stack if stay else stack).enter_context(self.gateway.connected())
            connection.sendall(raw)
            if stay:
                self.held.append(connection)
            else:
                if not whole:
                    with contextlib.suppress(OSError):  # already closed by the gateway
                        connection.shutdown(socket.SHUT_WR)
                answer = read(connection)
        self.answer = answer
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
        status = int(found[1]) if found else 0
        assert status < 500, (raw[:500], answer[:500])
        self.tried(kind, str(status or "closed"))
        return status

    def _speak(self) -> bytes:
        answer = self.gateway.ask("/v1/audio/speech", {**LINE, "response_format": "pcm"})
        assert answer.status == 200
        return answer.body


@pytest.fixture(scope="module")
def victim(shared_box: Shared) -> Iterator[Target]:
    with gateway_of(shared_box, max_body_bytes=BODY_BYTES, stall_s=STALL_S) as gateway:
        victim = Target(gateway)
        with victim.stack:
            yield victim


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        (10**400, "\ud800", "\x00", "x" * 3_000, "哈" * 900, -1, 2**64, "NaN", "1e999", "../x")
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
ELEVENLABS = "/v1/text-to-speech/ann/stream/with-timestamps"
OURS = ("seed", "nfe", "channel", "priority")
NAMES = {
    "/v1/audio/speech": (
        *("input", "voice", "response_format", "speed", "stream_format", "user", "text_handling", "model"),
        *("instructions", *OURS),
    ),
    "/tts": (
        *("text", "ref_audio_path", "media_type", "streaming_mode", "speed_factor", "text_lang"),
        *("prompt_text", "user", *OURS),
    ),
    ELEVENLABS: (
        *("text", "output_format", "voice_settings", "language_code", "model_id", "previous_text"),
        *("apply_text_normalization", "pronunciation_dictionary_locators", *OURS),
    ),
}
WHOLE = {
    "/v1/audio/speech": {**LINE, "input": "Hi.", "nfe": 1},
    "/tts": {"text": "Hi.", "ref_audio_path": "ann.wav", "nfe": 1, "seed": 1},
    ELEVENLABS: {"text": "Hi.", "voice_settings": {"speed": 1}, "nfe": 1, "seed": 1},
}


@share(0.35)
@given(st.data(), st.sampled_from(tuple(NAMES)))
def test_wrong_types_and_values(victim: Target, data: st.DataObject, path: str) -> None:
    wrong = data.draw(st.dictionaries(st.sampled_from(NAMES[path]), JSON, min_size=1, max_size=3))
    body = json.dumps({**WHOLE[path], **wrong}).encode()
    assert victim.send("values", request(path, body)) in (200, 400, 404)


KEY = "MDEyMzQ1Njc4OWFiY2RlZg=="
GOOD = {
    **{path: request(path, body) for path, body in WHOLE.items()},
    "voice": request("/v1/voices/ann", method="GET"),
    "handshake": handshake("/v1/text-to-speech/ann/stream-input", "localhost", KEY) + frame(b"", 8),
}


@share(0.35)
@given(st.sampled_from(tuple(GOOD)), st.integers(0, 2**32))
def test_mutated_requests(victim: Target, door: str, seed: int) -> None:
    """Bytes change anywhere in the request, or only in a body, whose length stays right."""
    dice = random.Random(seed)
    victim.send("mutated", mutated(GOOD[door], dice) + b"\r\n\r\n", whole=False)
    if door in WHOLE:
        body = mutated(json.dumps(WHOLE[door]).encode(), dice)
        assert victim.send("bodies", request(door, body or b"{")) in (200, 400, 404)


PATHS = st.sampled_from(
    (
        *("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/models/../../x", "/v1/models/%00", "//"),
        *("/%", "/static/../serving.py", "/static/%2e%2e%2fserving.py", "/static/..\\app.py", "/%ff%fe"),
        *("/v1//models", "/tts?text=%ff", "/tts?text=Hi&ref_audio_path=%2fetc%2fpasswd", "*", "x"),
        *("/tts?" + "a=b&" * 5_000, "/tts?text=Hi&ref_audio_path=//host/share/ann.wav&nfe=1"),
        *("http://other/livez", "/v1/models/" + "m" * 900, "/v1/text-to-speech/%2e%2e", "/v1/voices/%00"),
        *("/v1/text-to-speech/" + "v" * 900, "/v2/voices?search=%ff", "/api/channels/%2e%2e/skip"),
        *("/overlay?channel=" + "c" * 900, "/" + "p" * 70_000),
    )
) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40).map(lambda text: f"/{text}")


@share(0.2)
@given(PATHS, st.sampled_from(("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "FOO")))
def test_paths_lead_nowhere(victim: Target, path: str, method: str) -> None:
    if path.startswith(("/api/listen", "/api/queue")):  # endless streams
        return
    assert victim.send("paths", request(path, method=method)) < 500
    assert b"root:" not in victim.answer and b"from __future__" not in victim.answer


NAMED = (
    *("authorization", "content-type", "content-length", "transfer-encoding", "expect", "upgrade", "x"),
    *("host", "origin", "referer", "sec-fetch-site"),
)
VALUES = (
    *(b"Bearer " + b"x" * 5_000, b"-1", b"9" * 20, b"chunked", b"gzip", b"\x80", b"", b"a\x00b"),
    *(b"100-continue", b"http://[", b"http://localhost:99999999"),
)


@share(0.15)
@given(st.integers(0, 2**32), st.sampled_from((1, 1, 400, 5_000)))
def test_headers(victim: Target, seed: int, times: int) -> None:
    dice, body = random.Random(seed), json.dumps(WHOLE["/tts"]).encode()
    headers = [(dice.choice(NAMED), dice.choice(VALUES)) for _ in range(dice.randrange(8))]
    # A wrong length leaves the connection waiting, or in the middle of a second request.
    raw = request("/tts", body, headers=tuple(headers * times)[:9_000])
    victim.send("headers", raw, whole=False)


@share(0.03)
@given(st.sampled_from((b"", b"{", b"[" * 1_000)), st.booleans())
def test_huge_bodies(victim: Target, begun: bytes, is_chunked: bool) -> None:
    body = begun + b" " * (4 * BODY_BYTES)
    raw = request("/v1/audio/speech", body)
    if is_chunked:
        parts = (body[at : at + 4_096] for at in range(0, len(body), 4_096))
        framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))
        head = request("/tts", headers=(("transfer-encoding", b"chunked"),))
        raw = head.replace(b"content-length: 0\r\n", b"") + framed
    assert victim.send("huge", raw) in (0, 413)


LINES = b"POST /tts HTTP/1.1\r\nhost"


@share(0.02)
@given(st.sampled_from((b"", b"G", LINES, LINES + b": localhost\r\ncontent-length: 9\r\n\r\n{")))
def test_requests_that_never_end(victim: Target, begun: bytes) -> None:
    victim.send("unfinished", begun, stay=True)


SOCKETS = tuple(
    f"/v1/text-to-speech/ann/{kind}-input?output_format=pcm_24000&nfe=1&seed=1&inactivity_timeout=1"
    for kind in ("stream", "multi-stream")
)
FIELDS = ("text", "context_id", "flush", "close_context", "close_socket", "voice_settings", "contextId", "x")
SAID = st.fixed_dictionaries(
    {"text": st.sampled_from(("Hi. ", " ", "")) | st.text(max_size=20)},
    optional={
        "context_id": st.sampled_from(("a", "b", "")),
        "flush": st.booleans(),
        "close_context": st.booleans(),
        "voice_settings": st.sampled_from(({"speed": 1}, {"speed": 2.0}, {})),
    },
)


@share(0.2)
@given(
    st.sampled_from(SOCKETS),
    st.lists(SAID | st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3), max_size=6),
    st.booleans(),
)
def test_messages_of_wrong_types(victim: Target, path: str, messages: list[Any], is_left: bool) -> None:
    write(victim, path, [frame(json.dumps(message).encode()) for message in messages], is_left=is_left)


DATA = st.binary(max_size=200)
FRAMES = (
    DATA
    | st.builds(
        lambda data, kind, last: frame(data, kind, last=last),
        DATA | st.sampled_from((b"x" * 70_000, b"[" * 5_000, b'{"text": "\xff"}')),
        st.integers(0, 15),
        st.booleans(),
    )
    | st.sampled_from((frame(b"", 1) * 6_000, frame(b"p", 9) * 500, frame(b"\x03", 8)))
    | st.just(b"\x81\xff" + b"\xff" * 8 + b"mask")  # announces an exabyte
)


@share(0.15)
@given(st.sampled_from(SOCKETS), st.lists(FRAMES, min_size=1, max_size=4))
def test_frames_that_are_none(victim: Target, path: str, frames: list[bytes]) -> None:
    write(victim, path, frames, is_left=True)


def write(victim: Target, path: str, frames: list[bytes], *, is_left: bool) -> None:
    """Send frames, then read until the gateway closes the connection, or leave."""
    outcome = "left"
    try:
        with connected(victim.gateway.address, path) as socket:
            for one in frames:
                socket.send_bytes(one)
            if not is_left:
                for _ in socket:
                    pass
                outcome = str(socket.code or "closed")
    except (ConnectionResetError, BrokenPipeError):
        outcome = "closed"
    victim.tried("sockets", outcome)
    assert outcome not in ("1002", "1011")


def test_clients_that_leave_midway(victim: Target) -> None:
    long = request("/v1/audio/speech", {**LINE, "input": "A long story. " * 100})
    for bytes_read in (0, 0, 1, 10_000):
        with victim.gateway.connected(long) as connection:
            if bytes_read:
                assert connection.recv(bytes_read).startswith(b"H")
        victim.tried("left", bytes_read)


def test_afterwards_it_is_as_it_was(victim: Target) -> None:
    """The last test: speech, memory, log and shutdown. The daemon's log is checked when it ends."""
    victim.check(0.9 * COUNT)
    # The gateway ended the unfinished requests.
    for connection in victim.held:
        read(connection)
    assert victim.gateway.stop() == 0

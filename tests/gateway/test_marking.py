"""Every API marks its audio as synthetic, and none does if the configuration turns the mark off."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from appliance.audio.marking import MARK
from appliance.audio.tags import KEY, SOURCE_TYPE
from tests.gateway.conftest import LINE, Gateway, gateway_of
from tests.gateway.sockets import connected
from tests.gateway.test_wyoming import START, event, wyoming_of

pytestmark = [pytest.mark.slow, pytest.mark.once]

SOCKET = "/v1/text-to-speech/ann/stream-input"
STREAMED = {"text": "One.", "ref_audio_path": "ann.wav", "streaming_mode": True}
DOORS: dict[str, tuple[str, dict[str, object] | None]] = {
    "openai": ("/v1/audio/speech", LINE),
    "openai events": ("/v1/audio/speech", {**LINE, "stream_format": "sse"}),
    **{
        f"elevenlabs {way}": (f"/v1/text-to-speech/ann{way}", {"text": "One."})
        for way in ("", "/stream", "/with-timestamps", "/stream/with-timestamps")
    },
    "gpt-sovits": ("/tts?text=One.&ref_audio_path=ann.wav", None),
    "gpt-sovits streaming": ("/tts", STREAMED),
}


@pytest.fixture(scope="module", params=[True, False], ids=["on", "off"])
def marked(request: pytest.FixtureRequest, gateway: Gateway) -> Iterator[tuple[Gateway, bool]]:
    """A gateway, and the value of its daemon's `audio.marked`."""
    if request.param:
        yield gateway, True
        return
    off = replace(gateway.daemon, config={**gateway.daemon.config, "audio": {"marked": False}})
    with gateway_of(off) as other:
        yield other, False


@pytest.mark.parametrize("door", DOORS)
def test_a_reply_is_marked_in_its_head_and_a_refusal_is_not(marked: tuple[Gateway, bool], door: str) -> None:
    path, sent = DOORS[door]
    answer = marked[0].ask(path, sent)
    assert answer.status == 200 and answer.headers[KEY] == (MARK if marked[1] else None)
    refused = marked[0].ask(path, {**sent, "priority": "none"}) if sent else marked[0].ask("/v1/models")
    assert KEY not in refused.headers, refused.body


def test_a_websocket_is_marked_in_its_handshake(marked: tuple[Gateway, bool]) -> None:
    with connected(marked[0].address, SOCKET) as socket:
        heads = dict(line.lower().split(": ", 1) for line in socket.head.splitlines()[1:])
        assert (SOURCE_TYPE.lower() in heads.get(KEY, "")) == marked[1]


def test_wyomings_start_event_marks_its_audio(marked: tuple[Gateway, bool]) -> None:
    with ExitStack() as stack:
        wyoming = stack.enter_context(wyoming_of(marked[0].daemon))
        events = wyoming.events(event("synthesize", text="One.") + event("ping", text="x"))
        starts = [one["data"] for one in events if one["type"] == START]
        assert [SOURCE_TYPE in start.get(KEY, "") for start in starts] == [marked[1]]

"""Daemon on the demo bundle that is moderated from its start and rests while nobody speaks.

Approved lines sound at once, and replies after a rest equal those before.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest

from appliance.client import CallFailed, Client, Piece, UtteranceAudio
from tests.harness.daemons import DEMO, SPEECH, Running, resident, running
from tests.harness.patience import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.once]

HEARD_S = 0.05
"""From the call that approves until the first audio; on a busy machine a quarter of what it takes anew."""
TEXT = "Thanks for the follow, and welcome to the stream."
LINES = [f"That is donation number {number}, thank you." for number in range(1, 8)]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("daemon")
    keys = {"scheduler": {"approval_channels": ["stage"]}, "engine": {"idle_unload_s": 1.0}}
    with running(folder, speaks_from=DEMO / "bundle", **keys) as box:
        words = SPEECH.with_suffix(".txt").read_text("utf-8").strip()
        with Client(box.address) as client:
            client.add_voice("ann", SPEECH.read_bytes(), words)
        yield box


class Ears:
    """A listener of the channel: when each line's first audio came, and all that came."""

    def __init__(self, address: str) -> None:
        self.first: dict[str, float] = {}
        self.audio: defaultdict[str, bytes] = defaultdict(bytes)
        self._client = Client(address)
        self._events = self._client.listen("stage")
        next(self._events)  # from now on it hears
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        with suppress(CallFailed):  # the client is closed
            for event in self._events:
                if isinstance(event, UtteranceAudio):
                    self.first.setdefault(event.request_id, time.monotonic())
                    self.audio[event.request_id] += event.data

    def close(self) -> None:
        self._client.close()
        self._thread.join(PATIENCE_S)


def test_a_made_line_is_heard_at_once_when_it_is_approved(box: Running) -> None:
    own_s, ear_s, anew_s = [], [], []
    request: dict[str, Any] = {"seed": 7, "encoding": "pcm16"}
    with (
        Client(box.address) as client,
        closing(Ears(box.address)) as ears,
        ThreadPoolExecutor(1) as pool,
    ):

        def pieces(name: str, line: str, channel: str = "stage") -> list[Piece]:
            stream = client.stream(line, "ann", channel=channel, request_id=name, **request)
            return [event for event in stream if isinstance(event, Piece)]

        for number, line in enumerate(LINES):
            name = f"line-{number}"
            reply = pool.submit(pieces, name, line)
            until(lambda name=name: name in [u.request_id for u in client.utterances("stage")])
            # What nobody is promised is made in turn: this is made after it, and the engine is free again.
            client.speak("After it.", "ann", channel="other", priority="bulk")
            assert name not in ears.first and not reply.done()
            at = time.monotonic()
            [approved] = client.approve("stage", [name])
            got = reply.result(PATIENCE_S)
            until(lambda name=name: name in ears.first)
            own_s.append(got[0].arrived - at)
            ear_s.append(ears.first[name] - at)
            assert approved.request_id == name and min(own_s[-1], ear_s[-1]) > 0.0
            audio = b"".join(piece.data for piece in got)
            until(lambda name=name, audio=audio: len(ears.audio[name]) >= len(audio))
            assert ears.audio[name] == audio
            at = time.monotonic()
            anew = pieces(f"{name}-anew", line, "free")
            anew_s.append(anew[0].arrived - at)
            assert b"".join(piece.data for piece in anew) == audio
            client.skip("stage")
    own, ear, anew_in = map(statistics.median, (own_s, ear_s, anew_s))
    print(f"caller {1e3 * own:.1f} ms, listener {1e3 * ear:.1f} ms, anew {1e3 * anew_in:.1f} ms")
    assert max(own, ear) <= max(HEARD_S, anew_in / 4)


def rests(box: Running) -> bool:
    return bool(json.loads(box.http("/state")[1])["resting"])


def test_what_it_says_after_a_rest_is_what_it_said_before(box: Running) -> None:
    def logged(words: str) -> int:
        return box.log.count(words)

    with Client(box.address) as client:
        box.forget()
        before = client.speak(TEXT, "ann", seed=7)
        awake, loads = resident(box.process.pid), logged("loaded again after")
        until(lambda: rests(box))
        box.until("gave its memory back")
        assert box.http("/readyz")[0] == 200 and client.health() == "SERVING"
        assert [voice.name for voice in client.voices()] == ["ann"]
        assert "f5_resting 1.0" in box.http("/metrics")[1]
        after = client.speak(TEXT, "ann", seed=7)
        assert after.audio == before.audio
        assert after.header.backend == before.header.backend
        assert after.wall_s * 1e3 <= after.header.promised_ms
        until(lambda: rests(box) and resident(box.process.pid) < awake - (35 << 20))
        assert client.speak(TEXT, "ann", seed=7).audio == before.audio
    # A slow machine lets it rest between any two calls.
    until(lambda: logged("loaded again after") >= loads + 2, lambda: box.log)
    assert logged("gave its memory back") - logged("loaded again after") in (0, 1)

"""A daemon that gives its memory back while nobody speaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.client import Client
from tests.daemons import DEMO, SPEECH, Running, resident, running
from tests.patience import until

pytestmark = [pytest.mark.slow, pytest.mark.once]

TEXT = "Thanks for the follow, and welcome to the stream."


def rests(box: Running) -> bool:
    return bool(json.loads(box.http("/state")[1])["resting"])


def test_what_it_says_after_a_rest_is_what_it_said_before(tmp_path: Path) -> None:
    engine = {"idle_unload_s": 1.0}
    with running(tmp_path, speaks_from=DEMO / "bundle", engine=engine) as box, Client(box.address) as client:
        client.add_voice("heart", SPEECH.read_bytes(), SPEECH.with_suffix(".txt").read_text().strip())
        before = client.speak(TEXT, "heart", seed=7)
        awake = resident(box.process.pid)
        until(lambda: rests(box))
        box.until("gave its memory back")
        assert box.http("/readyz")[0] == 200 and client.health() == "SERVING"
        assert [voice.name for voice in client.voices()] == ["heart"]
        assert "f5_resting 1.0" in box.http("/metrics")[1]
        after = client.speak(TEXT, "heart", seed=7)
        assert after.audio == before.audio
        assert after.header.backend == before.header.backend
        assert after.wall_s * 1e3 <= after.header.promised_ms
        until(lambda: rests(box) and resident(box.process.pid) < awake - (35 << 20))
        assert client.speak(TEXT, "heart", seed=7).audio == before.audio
    # A slow machine lets it rest between any two calls.
    rested, loads = (box.log.count(words) for words in ("gave its memory back", "loaded again after"))
    assert loads >= 2 and rested - loads in (0, 1)

"""A daemon that gives its memory back while nobody speaks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.client import Client
from tests.daemons import ROOT, Running, running
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.once]

DEMO = ROOT / "appliance" / "demo"
TEXT = "Thanks for the follow, and welcome to the stream."


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def rests(box: Running) -> bool:
    return bool(json.loads(box.http("/state")[1])["resting"])


def resident_mb(box: Running) -> float:
    lines = Path(f"/proc/{box.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def test_what_it_says_after_a_rest_is_what_it_said_before(tmp_path: Path) -> None:
    engine = {"idle_unload_s": 1.0}
    with running(tmp_path, speaks_from=DEMO / "bundle", engine=engine) as box, Client(box.address) as client:
        client.add_voice(
            "heart", (DEMO / "voices/heart.wav").read_bytes(), (DEMO / "voices/heart.txt").read_text().strip()
        )
        before = client.speak(TEXT, "heart", seed=7)
        awake_mb = resident_mb(box)
        until(lambda: rests(box))
        box.until("gave its memory back")
        assert box.http("/readyz")[0] == 200 and client.health() == "SERVING"
        assert [voice.name for voice in client.voices()] == ["heart"]
        assert "f5_resting 1.0" in box.http("/metrics")[1]
        after = client.speak(TEXT, "heart", seed=7)
        assert after.audio == before.audio
        assert after.header.backend == before.header.backend
        assert after.wall_s * 1e3 <= after.header.promised_ms
        until(lambda: rests(box) and resident_mb(box) < awake_mb - 35)
        assert client.speak(TEXT, "heart", seed=7).audio == before.audio
    assert box.log.count("loaded again after") == 2

"""A daemon on the demo bundle that rests while nobody speaks: replies after a rest equal earlier ones."""

import json
from collections.abc import Iterator

import pytest

from appliance.client import Client
from tests.harness.daemons import DEMO, SPEECH, Running, resident, running
from tests.harness.patience import until

pytestmark = [pytest.mark.slow, pytest.mark.once]

TEXT = "Thanks for the follow, and welcome to the stream."


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("daemon")
    with running(folder, speaks_from=DEMO / "bundle", engine={"idle_unload_s": 1.0}) as box:
        words = SPEECH.with_suffix(".txt").read_text("utf-8").strip()
        with Client(box.address) as client:
            client.add_voice("ann", SPEECH.read_bytes(), words)
        yield box


def rests(box: Running) -> bool:
    return bool(json.loads(box.http("/state")[1])["resting"])


def test_replies_after_a_rest_equal_earlier_ones(box: Running) -> None:
    def logged(words: str) -> int:
        return box.log.count(words)

    with Client(box.address) as client:
        box.forget()
        before = client.speak(TEXT, "ann", seed=7)
        awake, loads = resident(box.process.pid), logged("loaded again after")
        until(lambda: rests(box))
        box.until("memory is released")
        assert box.http("/readyz")[0] == 200 and client.health() == "SERVING"
        assert [voice.name for voice in client.voices()] == ["ann"]
        assert "f5_resting 1.0" in box.http("/metrics")[1]
        after = client.speak(TEXT, "ann", seed=7)
        assert after.audio == before.audio
        assert after.header.backend == before.header.backend
        assert after.wall_s * 1e3 <= after.header.promised_ms
        until(lambda: rests(box) and resident(box.process.pid) < awake - (35 << 20))
        assert client.speak(TEXT, "ann", seed=7).audio == before.audio
    # A slow machine may let it rest between any two calls.
    until(lambda: logged("loaded again after") >= loads + 2, lambda: box.log)
    assert logged("memory is released") - logged("loaded again after") in (0, 1)

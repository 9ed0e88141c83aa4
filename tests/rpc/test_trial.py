"""A new voice speaks its own transcript: behind all requests, or not at all; what tells other words."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from appliance.client import Client
from appliance.rpc.trial import WAIT_S, Trial
from tests.daemons import ROOT, running
from tests.rpc.conftest import Box, start

DEMO = ROOT / "appliance/demo"
RIGHT = "We are live every Monday at seven, so say hello."
OTHERS = (
    "Please bring those heavy boxes down to the shop.",
    "The quick brown fox jumps over a lazy dog, today.",
    "Thanks for the follow, and welcome to my stream.",
)
DOUBT = "the transcript is probably not what is said"


def test_other_words_are_told_of_voices_and_of_styles(tmp_path: Path) -> None:
    """As many syllables as are heard, so that nothing else tells them."""
    with running(tmp_path, speaks_from=DEMO / "bundle") as daemon, Client(daemon.address) as client:
        for voice in ("heart", "michael"):
            audio = (DEMO / "voices" / f"{voice}.wav").read_bytes()

            def told(transcript: str, audio: bytes = audio) -> str:
                return " ".join(client.add_voice("new", audio, transcript, validate_only=True).warnings)

            assert "transcript" not in told(RIGHT)
            for other in OTHERS:
                assert DOUBT in told(other), other
        stored = client.add_voice("anna", audio, OTHERS[0])
        assert DOUBT in " ".join(stored.warnings) and client.voice("anna").warnings == stored.warnings
        [style] = client.add_style("anna", "happy", audio, OTHERS[1]).styles
        assert DOUBT in " ".join(style.warnings)


async def test_a_trial_waits_for_all_requests(box: Box) -> None:
    reference = box.store.reference("ann")
    with box.held() as go:
        first = start(box.say("one"))
        await box.soon(lambda: box.opened == ["one"])
        tried = start(Trial(lambda: box.speech).reply(reference, "ann's uploader"))
        await box.soon(lambda: box.scheduler.load.waiting == 1)
        later = start(box.say("two"))
        await box.soon(lambda: box.scheduler.load.waiting == 2)
        go.set()
        for reply in (first, later):
            assert (await reply).audio
        assert len(await tried) > 0
    assert box.opened == ["one", "two", reference.transcript.strip()]


@pytest.mark.parametrize("why", ["it costs too much", "it would come too late", "the daemon drains"])
async def test_there_is_no_trial(box: Box, why: str) -> None:
    if why == "it costs too much":
        box.engine.costs.call_s = 2.1
    elif why == "it would come too late":
        box.change(clock=lambda: time.monotonic() - WAIT_S)
    else:
        box.scheduler.drain()
    assert await Trial(lambda: box.speech).reply(box.store.reference("ann"), "ann's uploader") is None
    assert box.opened == []

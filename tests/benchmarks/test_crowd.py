"""Channels beside hostile callers, at a small scale."""

from __future__ import annotations

import itertools
import math

import pytest

from appliance.scheduler import admission
from appliance.scheduler.fairness import Newcomers
from appliance.scheduler.workload import Presence
from tests.benchmarks import crowd
from tests.benchmarks.simulator import DEVICES, ORIN

pytestmark = pytest.mark.once


def test_turns_follow_without_a_pause_and_one_a_second_is_cancelled() -> None:
    sent = crowd.playing(8, 60.0, 4)
    assert 55 <= sum(math.isfinite(message.cancel_after_s) for message in sent) <= 60
    for channel in {message.channel for message in sent}:
        own = [message for message in sent if message.channel == channel]
        for one, after in itertools.pairwise(own):
            plays_s = min(sum(one.pieces[0]), one.cancel_after_s - crowd.LEAD_S)
            assert after.at - one.at == pytest.approx(plays_s)


def test_every_hostile_caller_sends_as_its_kind_does() -> None:
    sent = crowd.hostile(len(crowd.HOSTILE) + 1, 100.0, 4)
    assert len({message.caller for message in sent}) == len(crowd.HOSTILE) + 1
    for number, (kind, (rate, _)) in enumerate(crowd.HOSTILE.items()):
        own = sum(message.caller == f"{kind} {number}" for message in sent)
        assert own == pytest.approx(100.0 * rate, abs=4.0 * math.sqrt(100.0 * rate))


@pytest.mark.parametrize("fair", [True, False])
def test_shares_keep_channels_sounding_beside_a_flood(fair: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fair:
        for share in ("share_of", "caller_share"):
            monkeypatch.setattr(admission, share, lambda *_: None)
    found = crowd.run(ORIN, 4, 0.2, 20.0, 7)
    assert found["box"]["hostile callers"] == 1 and found["unnamed"]["promised"]
    assert found[crowd.FRIENDLY]["C100 of promised"] == 1.0
    assert (found[crowd.FRIENDLY]["good of sent"] == 1.0) is fair


@pytest.mark.parametrize("without", ["", "what callers were given", "those who come back"])
def test_hostile_callers_share_what_channels_leave(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """14 of every kind beside 32 channels that need half of the engine."""
    if without == "what callers were given":
        monkeypatch.setattr(Presence, "spent_s", lambda *_: 0.0)
    if without == "those who come back":
        monkeypatch.setattr(admission, "returning_callers", lambda *_: Newcomers(0, 0.0, 0.0))
    found = crowd.run(DEVICES["zipvoice"], 32, 0.3, 10.0, 4)
    assert found["box"]["hostile callers"] == 14 and found["box"]["utilisation"] > 0.95
    assert found[crowd.FRIENDLY]["C100 of promised"] == 1.0
    assert (found[crowd.FRIENDLY]["good of sent"] >= 0.99) is (without == "")

"""Channels that a device carries, against costs of which the answer follows, and beside hostile callers."""

from __future__ import annotations

import itertools
import math

import pytest

from appliance.contract import bundle as bundles
from appliance.request import Cost, Segment
from appliance.scheduler import admission
from tests.benchmarks import capacity, crowd, simulator
from tests.benchmarks.capacity import Modelled, Speaking
from tests.benchmarks.devices import DEVICES
from tests.benchmarks.reply_model import ReplyModel
from tests.benchmarks.simulator import DEMO, ORIN, Steps

pytestmark = pytest.mark.once

BUNDLE = bundles.read(DEMO / "bundle", verify=False)
MODE = DEVICES["agx-orin-64"]["MAXN"]
NFE = 4


class Proportional:
    """A device that speaks `share` seconds a second of speech and step."""

    max_batch = 1

    def __init__(self, share: float) -> None:
        self.share = share

    def step_s(self, steps: Steps) -> float:
        return sum(self.share * segment.audio_s / segment.nfe for segment, _ in steps)

    def of(self, segment: Segment) -> Cost:
        return Cost(0.0, (self.step_s([(segment, 0)]),) * segment.nfe, 0.0)


def test_channels_fill_the_device_and_no_more() -> None:
    """Twelve could be spoken at once, and fifteen with the pauses between their replies."""
    speaking = Speaking(BUNDLE.manifest, NFE, "exact", 20.0)
    runs = [capacity.run(Proportional(1 / 12), speaking, n, 8) for n in (6, 24)]
    assert runs[0].c100 == 1.0 and runs[1].c100 < 0.7
    assert runs[0].utilisation < 0.6 and runs[1].utilisation > 0.95


@pytest.mark.parametrize("first", [1, 6, 16])
@pytest.mark.parametrize("greatest", [0, 1, 5, 8, 13])
def test_the_greatest_number_is_found(greatest: int, first: int) -> None:
    assert capacity.most(lambda n: n <= greatest, first) == greatest
    assert 93 <= capacity.most(lambda n: n <= 99, first) <= 99


def test_a_reply_costs_what_is_modelled_and_its_launches() -> None:
    """The guided rows of an exact lane share a call, but not after a reference that is kept."""
    model, arch = ReplyModel(BUNDLE, MODE), BUNDLE.manifest.arch
    assert arch is not None and BUNDLE.manifest.mel.frames_per_second == simulator.FRAMES_PER_S
    launches = NFE * (capacity.BLOCK_LAUNCHES * arch.depth + capacity.ENDS)
    rows = BUNDLE.manifest.sampler.most_rows
    calls: tuple[tuple[bundles.Sampling, int], ...] = (("exact", 1), ("short-kv", rows))
    for sampling, number in calls:
        [segment] = Speaking(BUNDLE.manifest, NFE, sampling, 1.0).message(0.0, 1.4, "").planned[0]
        made = segment.frames - segment.reference_frames
        steps_s = model.reply(sampling, made, segment.reference_frames, NFE).steps_s
        captured, launched = (
            sum(Modelled(BUNDLE.manifest, model, 2, captured=each).of(segment).steps_s)
            for each in (True, False)
        )
        assert captured == pytest.approx(steps_s + number * launches * capacity.KERNEL_S, rel=1e-6)
        assert launched >= number * launches * capacity.HOST_S


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
        monkeypatch.setattr(admission, "share_of", lambda *_: None)
    found = crowd.run(ORIN, 4, 0.2, 20.0, 7)
    assert found["box"]["hostile callers"] == 1 and found["unnamed"]["promised"]
    assert found[crowd.FRIENDLY]["C100 of promised"] == 1.0
    assert (found[crowd.FRIENDLY]["good of sent"] == 1.0) is fair

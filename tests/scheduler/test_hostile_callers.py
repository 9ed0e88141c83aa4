"""Hostile callers and channels that speak without pause share an engine, on the virtual clock."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import pytest

from appliance.request import Priority
from tests.harness.engine import ZIPVOICE
from tests.harness.scheduler import Bench, Message, cut, line_s

pytestmark = pytest.mark.once

LEAD_S = 1.0
"""Seconds from a reply's request to its turn."""
DRY_S = 0.1
SHORT = cut(4.0)
HOSTILE: Sequence[tuple[float, dict[str, Any]]] = (
    (2.0, {"pieces": SHORT}),
    (2.0, {"pieces": SHORT, "channel": "{me}", "supersede": "status"}),
    (2.0, {"pieces": SHORT, "channel": "{me}", "merge": "raid"}),
    (0.2, {"pieces": cut(270.0), "user": "{me} {n}"}),
    (2.0, {"pieces": SHORT, "queue_timeout_s": 0.0}),
    (2.0, {"pieces": SHORT, "channel": "{me} {n}", "priority": Priority.REALTIME}),
)
"""Requests per second of each kind of hostile caller, and the fields of its messages."""


def playing(channels: int, seconds: float) -> list[Message]:
    """Replies of channels, each with its own caller, that come a second before their turn and leave no
    pause."""
    draw, found = random.Random(0), list[Message]()
    turns = [(LEAD_S + draw.uniform(0.0, 4.0), f"friend {number}") for number in range(channels)]
    heapq.heapify(turns)
    while turns[0][0] < seconds:
        turn, channel = turns[0]
        pieces = cut(line_s(draw))
        found.append(Message(turn - LEAD_S, pieces, nfe=4, channel=channel, caller=channel))
        heapq.heapreplace(turns, (turn + sum(pieces[0]), channel))
    return found


def hostile(callers: int, seconds: float) -> list[Message]:
    """Floods at Poisson times, of each kind in turn."""
    draw, found = random.Random(1), list[Message]()
    for number, (rate, sent) in enumerate(islice(cycle(HOSTILE), callers)):
        me, at = f"hostile {number}", 0.0
        while (at := at + draw.expovariate(rate)) < seconds:
            names = {key: sent.get(key, "").format(me=me, n=len(found)) for key in ("channel", "user")}
            found.append(Message(at, nfe=4, caller=me, **{**sent, **names}))
    return found


def is_good(message: Message) -> bool:
    """True if the reply was promised, and the channel was silent for at most DRY_S before it and within
    it."""
    turn = max(message.free_at, message.at + LEAD_S)
    return message.promised and max(message.underrun_s, message.heard[0][0] - turn) <= DRY_S


def test_hostile_callers_share_what_channels_leave() -> None:
    """The 32 channels need half of the engine, and 14 hostile callers flood it."""
    friends, world = playing(32, 10.0), Bench(ZIPVOICE)
    world.run([*friends, *hostile(14, 10.0)])
    assert world.engine.busy_s / world.now > 0.95
    assert all(message.underrun_s <= DRY_S for message in friends if message.promised)
    assert sum(map(is_good, friends)) >= 0.98 * len(friends)


def test_a_flood_that_the_engine_is_too_slow_for_delays_nobody_else() -> None:
    """Calls take four times the estimates on which the admission of the long streams relied."""
    friends = [Message(1.0 + number / 2, SHORT, nfe=4, caller="friend") for number in range(6)]
    flood = [Message(0.0, cut(60.0), nfe=4, caller="hostile", cancel_after_s=4.0) for _ in range(112)]
    Bench(ZIPVOICE).run(alone := [replace(friends[0], heard=[])])
    Bench(ZIPVOICE, factor=0.25).run([*friends, *flood])
    assert max(friend.first_s for friend in friends) <= 2.0 * alone[0].first_s

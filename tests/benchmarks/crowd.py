"""Channels that speak without pause beside callers who want it all, on the simulator's clock.

    python -m tests.benchmarks.crowd [--device zipvoice] [--channels 64] [--hostile 0.3] [--seconds 600]

Each channel is a caller of its own. It sends replies of 1 to 12 s a second before their turn; once a second
one of them is cancelled at a moment of its playout. `--hostile` is the share of callers who instead send,
whatever the answers, what a line of `HOSTILE` says. A reply is good if it was promised, its channel was not
silent for more than 0.1 s before it, and it never ran dry for longer.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice

from appliance.config import SchedulerConfig
from appliance.request import Priority
from tests.benchmarks.simulator import DEVICES, Device, Message, World, cut, line_s

LEAD_S = 1.0
"""From a reply's request to its turn."""
DRY_S = 0.1
MOST_TEXT_S = 270.0
"""Speech of the longest text that the daemon takes, 4,096 characters."""
FRIENDLY = "friendly"


def playing(channels: int, seconds: float, nfe: int, seed: int = 0) -> list[Message]:
    """Replies of channels that are never silent, one of which is cancelled every second."""
    draw = random.Random(seed)
    turns = [(LEAD_S + draw.uniform(0.0, 4.0), f"channel {number}") for number in range(channels)]
    heapq.heapify(turns)
    found: list[Message] = []
    cancelled = 0
    while turns and turns[0][0] < seconds:
        turn, channel = turns[0]
        plays_s, cancel_after_s = line_s(draw), math.inf
        pieces = cut(plays_s)
        if turn > LEAD_S + 1.0 + cancelled:
            cancelled += 1
            plays_s *= draw.random()
            cancel_after_s = LEAD_S + plays_s
        given = {"channel": channel, "caller": f"{FRIENDLY} {channel}", "cancel_after_s": cancel_after_s}
        found.append(Message(turn - LEAD_S, pieces, nfe=nfe, **given))
        heapq.heapreplace(turns, (turn + plays_s, channel))
    return found


Sends = Callable[[float, int, str], Message]
"""(time, number, its caller's key) → request."""

SHORT = cut(4.0)
SOON = Message(0.0, SHORT, priority=Priority.REALTIME)
HOSTILE: dict[str, tuple[float, Sends]] = {
    "unnamed": (2.0, lambda at, _, me: Message(at, SHORT, caller=me)),
    "supersede": (2.0, lambda at, _, me: Message(at, SHORT, caller=me, channel=me, supersede="status")),
    "merge": (2.0, lambda at, _, me: Message(at, SHORT, caller=me, channel=me, merge="raid")),
    "huge": (0.2, lambda at, n, me: Message(at, cut(MOST_TEXT_S), caller=me, user=f"{me} {n}")),
    "at once": (2.0, lambda at, _, me: Message(at, SHORT, caller=me, queue_timeout_s=0.0)),
    "realtime": (2.0, lambda at, n, me: replace(SOON, at=at, caller=me, channel=f"{me} {n}")),
}
"""Requests a second of each kind of hostile caller, and what it sends."""


def hostile(callers: int, seconds: float, nfe: int, seed: int = 1) -> list[Message]:
    """Floods at Poisson times, of each kind in turn."""
    draw = random.Random(seed)
    found: list[Message] = []
    for number, kind in enumerate(islice(cycle(HOSTILE), callers)):
        rate, sends = HOSTILE[kind]
        at, sent = 0.0, 0
        while (at := at + draw.expovariate(rate)) < seconds:
            found.append(sends(at, sent, f"{kind} {number}"))
            found[-1].nfe = nfe
            sent += 1
    return found


def silence_s(message: Message) -> float:
    """From a friendly caller's turn, any other's request, to the first audio; infinite if there was none."""
    turn = max(message.free_at, message.at + (LEAD_S if message.caller.startswith(FRIENDLY) else 0.0))
    return max(message.heard[0][0] - turn, 0.0) if message.heard else math.inf


def figures(messages: Sequence[Message]) -> dict[str, object]:
    refused = Counter(m.refused for m in messages if m.refused)
    ended = Counter(m.ended for m in messages if m.job and m.ended != "SegmentAudio")
    promised = [m for m in messages if m.promised]
    whole = [m for m in messages if math.isinf(m.cancel_after_s)]
    silences = sorted(silence_s(m) for m in messages if m.heard) or [math.nan]
    return {
        "sent": len(messages),
        "promised": len(promised),
        "refused": dict(refused),
        "ended": dict(ended),
        "C100 of promised": sum(m.underrun_s <= DRY_S for m in promised) / max(len(promised), 1),
        "good of sent": sum(is_good(m) for m in whole) / max(len(whole), 1),
        "first sound P50 s": silences[len(silences) // 2],
        "first sound P95 s": silences[int(0.95 * (len(silences) - 1))],
        "longest silence s": silences[-1],
        "worst underrun s": max((m.underrun_s for m in messages), default=0.0),
        "spoken s": sum(seconds for m in messages for _, seconds in m.heard),
    }


def is_good(message: Message) -> bool:
    return message.promised and message.underrun_s <= DRY_S and silence_s(message) <= DRY_S


def run(
    device: Device, channels: int, share: float, seconds: float, nfe: int, weight: float = 1.0
) -> dict[str, dict[str, object]]:
    """Figures of the channels' callers and of the hostile ones, which are `share` of all callers."""
    callers = round(channels * share / (1.0 - share))
    friends, others = playing(channels, seconds, nfe), hostile(callers, seconds, nfe)
    weights = {message.channel: weight for message in friends}
    world = World(device, SchedulerConfig(weights=weights if weight != 1.0 else {}))
    world.run([*friends, *others])
    kinds = {
        kind: figures([m for m in others if m.caller.startswith(kind)]) for kind in list(HOSTILE)[:callers]
    }
    box: dict[str, object] = {"hostile callers": callers, "utilisation": world.engine.busy_s / world.now}
    return {"box": box, FRIENDLY: figures(friends), **kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=tuple(DEVICES), default="zipvoice")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--hostile", type=float, default=0.3, help="share of all callers (%(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--nfe", type=int, help="absent: 4 of ZipVoice, 7 of others")
    parser.add_argument(
        "--weight", type=float, default=1.0, help="of the channels, in scheduler.weights (%(default)s)"
    )
    options = parser.parse_args()
    nfe = options.nfe or (4 if options.device == "zipvoice" else 7)
    found = run(
        DEVICES[options.device], options.channels, options.hostile, options.seconds, nfe, options.weight
    )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

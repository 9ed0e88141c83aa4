"""A reply counts if the engine synthesised it for this call and it is audible."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from appliance.client import CallFailed, Header, Reply, Timings
from appliance.client.sounding import peak, speak_anew

pytestmark = pytest.mark.once


class Speaking:
    """A client whose replies have these samples; it records the seeds of its requests."""

    def __init__(self, *samples: int) -> None:
        header = Header(sample_rate_hertz=24_000, encoding="PCM16")
        self._reply = Reply(np.array(samples, "<i2").tobytes(), header, Timings(), 1.0, 1.0)
        self.seeds: list[int] = []

    def stream(self, text: str, voice: str, *, seed: int, encoding: str, **options: Any) -> SimpleNamespace:
        assert (encoding, options) == ("pcm16", {"timeout": 9.0, "nfe": 3})
        self.seeds.append(seed)
        return SimpleNamespace(reply=lambda: self._reply)


def speak(client: Any) -> Reply:
    return speak_anew(client, "Ready.", "ann", 9.0, nfe=3)


def test_audible_replies_count_and_never_repeat_a_request() -> None:
    client = Speaking(5, -100, 99)
    assert peak(speak(client).audio) == peak(speak(client).audio) == 100
    assert len(set(client.seeds)) == 2


@pytest.mark.parametrize(("samples", "why"), [((), "no audio"), ((0, 99, -99), "silence in the voice ann")])
def test_nothing_and_silence_are_failures(samples: tuple[int, ...], why: str) -> None:
    with pytest.raises(CallFailed, match=why):
        speak(Speaking(*samples))

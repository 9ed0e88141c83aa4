"""Outcome of one request, measured by its client."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from appliance.bench import BenchError
from appliance.bench.arrivals import Message
from appliance.client import CallFailed, Header, Timings

OK, CANCELLED = "OK", "CANCELLED"
READ_S = 0.1
"""Seconds of audio that the second measurement of first audio waits for."""
AGREED_S = 0.02
"""Largest median difference, in seconds, at which both measurements of first audio agree."""


@dataclass
class Outcome:
    """Outcome of a request. Times count from its planned arrival."""

    message: Message
    sent_s: float = 0.0
    """Time at which the request was really sent, because a busy client sends late."""
    turn_s: float = -math.inf
    """End of the playback of earlier replies on the serial channel."""
    header: Header | None = None
    timings: Timings | None = None
    pieces: list[tuple[int, float]] = field(default_factory=list)
    """Sample offset and arrival of each audio message."""
    samples: int = 0
    """Samples received so far."""
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    """SHA-256 of the audio."""
    peak: int = 0
    """Largest absolute sample."""
    cancel_s: float | None = None
    """Time of the cancellation; None if it came too late."""
    end_s: float = 0.0
    """End of the call."""
    status: str = ""
    """"OK", or the name of the gRPC status."""
    reason: str = ""
    """The daemon's reason for a refusal or failure; "" if it gave none."""
    failure: CallFailed | None = None

    @property
    def whole(self) -> tuple[Header, Timings]:
        """Header and timings of a reply that has ended."""
        assert self.header is not None and self.timings is not None
        return self.header, self.timings

    @property
    def admitted(self) -> bool:
        """True if the daemon has sent a header."""
        return self.header is not None

    @property
    def withdrawn(self) -> bool:
        """True if the client cancelled the request."""
        return self.status == CANCELLED and self.message.cancel_after_s is not None

    @property
    def first_audio_s(self) -> float | None:
        return self.pieces[0][1] if self.pieces else None

    @property
    def read_s(self) -> float:
        """Time at which a blocking read of READ_S of audio returns."""
        assert self.header is not None
        samples = READ_S * self.header.sample_rate_hertz
        return [arrived for offset, arrived in self.pieces if offset < samples][-1]

    @property
    def audio_s(self) -> float:
        return self.samples / self.header.sample_rate_hertz if self.header else 0.0

    @property
    def promised_s(self) -> float | None:
        """Promised seconds from arrival to first audio; None if there is no promise."""
        return self.header.promised_ms / 1e3 if self.header and self.header.promised_ms else None

    @property
    def underrun_s(self) -> float | None:
        """Seconds of silence in the playback; None if there is no audio."""
        if not (self.header and self.pieces):
            return None
        return underrun_s(self.pieces, self.header.sample_rate_hertz, self.turn_s)

    @property
    def played_whole(self) -> bool:
        """True if the playback can be judged, because it is complete."""
        return self.status == OK and self.underrun_s is not None

    @property
    def can_stall(self) -> bool:
        """True if the playback can be judged and the engine has made the audio in two pieces or more."""
        return self.played_whole and self.header is not None and self.header.segments > 1


def set_turns(outcomes: Iterable[Outcome]) -> None:
    """Set `turn_s` of replies on serial channels."""
    free_s: dict[str, float] = {}
    played = [one for one in outcomes if one.message.channel and one.played_whole]
    for one in sorted(played, key=lambda one: one.message.at_s + one.pieces[0][1]):
        at_s, channel = one.message.at_s, one.message.channel
        one.turn_s = free_s.get(channel, 0.0) - at_s
        begins_s = at_s + max(one.pieces[0][1], one.turn_s)
        free_s[channel] = begins_s + one.audio_s + (one.underrun_s or 0.0)


def check_first_audio(measured: Iterable[tuple[float, float]]) -> None:
    """Compare the arrivals of the first byte and of READ_S of audio in each reply. Raises BenchError.

    If a server sends a few bytes before it has audio, only the first byte comes earlier.
    """
    late_s = median([read_s - first_s for first_s, read_s in measured] or [0.0])
    if late_s > AGREED_S:
        raise BenchError(
            f"both measurements of first audio differ, so the run does not count: {READ_S:g} s of audio "
            f"arrive {late_s:.3f} s after the first byte; at most {AGREED_S:g} s are allowed"
        )


def underrun_s(pieces: Sequence[tuple[int, float]], rate_hz: int, turn_s: float = -math.inf) -> float:
    """Seconds of silence in a playback that starts with the first piece, or at its turn if that is later.

    The silence equals the largest lateness of a piece in a playback that never waits.
    """
    first = max(pieces[0][1], turn_s)
    return max(0.0, *(arrived - first - offset / rate_hz for offset, arrived in pieces))

"""Plain values of one request: Request and Terms → Segment → SegmentAudio."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Sampling
from appliance.contract.schedule import key_steps

FloatArray = NDArray[np.float32]


class Segmentation(enum.Enum):
    UPSTREAM = "upstream"
    """Pieces of upstream's `chunk_text`."""
    LOW_LATENCY = "low_latency"


class Priority(enum.IntEnum):
    """Urgency. Each has a target for the first audio in the configuration."""

    BULK = 1
    """Served if nothing else is due."""
    NORMAL = 2
    HIGH = 3
    REALTIME = 4


class Playout(enum.Enum):
    SERIAL = "serial"
    OVERLAP = "overlap"


@dataclass(frozen=True)
class Change:
    """Change of the text, for the header. Both sides are shortened."""

    kind: str
    before: str
    after: str


class Handling(enum.Enum):
    CHAT = "chat"
    """Links, emoji, names, repeats and numbers become words."""
    VERBATIM = "verbatim"
    SSML = "ssml"
    """Only characters outside the vocabulary change."""


Speaker = tuple[str, str]
"""(voice, style); style "" is the voice's own recording."""


@dataclass(frozen=True)
class Pause:
    """Silence after a place in the text."""

    after: int
    seconds: float


@dataclass(frozen=True)
class Direction:
    """A stage direction after a place in the text."""

    after: int
    text: str


@dataclass(frozen=True)
class Switch:
    """Change of the voice, or of its style, within a text."""

    after: int
    style: str | None
    """Name of the style; "" is the voice's own recording, None the style of the request."""
    voice: str = ""
    """"" for the voice of the request."""


AT_FIRST = Switch(0, None)
"""Voice and style of the request."""


@dataclass(frozen=True)
class SpokenText:
    """Text for the model, after all rewriting."""

    text: str
    changes: tuple[Change, ...] = ()
    pauses: tuple[Pause, ...] = ()
    """Pauses in order. The first comes after the first word."""
    directions: tuple[Direction, ...] = ()
    switches: tuple[Switch, ...] = ()
    """Switches in order, at most one at a place."""
    opening: str = ""
    """Words at the beginning of the text that the caller did not write, such as an announced name."""
    skipped_reason: str = "nothing in it can be spoken"
    """Reason for an empty text."""


@dataclass(frozen=True)
class Run:
    """Part of a text that one voice speaks in one style."""

    begin: int
    text: str
    speaker: Speaker


@dataclass(frozen=True)
class ReplyLevel:
    """Level of a reply, before its peaks are limited."""

    target_lufs: float | None = None
    """Level in LUFS; None: that of the model's output, as upstream's."""
    gain_db: float = 0.0


AS_MADE = ReplyLevel()


@dataclass(frozen=True)
class Request:
    """Inputs of a plan: everything that determines the samples, and the changes that the header reports."""

    text: str
    voice: str
    nfe: int
    seed: int
    guidance: float
    segmentation: Segmentation
    speaking_rate: float = 1.0
    """Factor of the speed; 1 is the voice's own."""
    written: str = ""
    """Text before the front end rewrote it."""
    changes: tuple[Change, ...] = ()
    """Changes by the front end, reported to the caller."""
    pauses: tuple[Pause, ...] = ()
    """Pauses and their places in the text."""
    directions: tuple[Direction, ...] = ()
    """Stage directions that were left out, and their places."""
    style: str = ""
    """Style at the beginning of the text; "" for the voice's own recording."""
    switches: tuple[Switch, ...] = ()
    """Changes of voice or style, and their places."""
    opening: str = ""
    skipped_reason: str = ""
    """Reason why nothing is spoken; "" if something is."""
    max_spoken_s: float = 0.0
    """Length to which the text is cut; 0: no limit."""

    @property
    def runs(self) -> list[Run]:
        """Runs in order. Neighbours differ in voice or style."""
        runs: list[Run] = []
        begin, speaker = 0, self._speaker(AT_FIRST)
        for switch in (*self.switches, Switch(len(self.text), None)):
            if self.text[begin : switch.after].strip():
                if runs and runs[-1].speaker == speaker:
                    begin = runs.pop().begin
                runs.append(Run(begin, self.text[begin : switch.after], speaker))
                begin = switch.after
            speaker = self._speaker(switch)
        return runs

    @property
    def speakers(self) -> list[Speaker]:
        """Speakers of the text, each once."""
        return list(dict.fromkeys(map(self._speaker, (AT_FIRST, *self.switches))))

    @property
    def last(self) -> Switch:
        """Voice and style at the end, in which a following text continues."""
        return replace((AT_FIRST, *self.switches)[-1], after=0)

    def _speaker(self, switch: Switch) -> Speaker:
        return switch.voice or self.voice, self.style if switch.style is None else switch.style


@dataclass(frozen=True)
class Terms:
    """Terms of scheduling. `Request` has everything that determines the samples."""

    request_id: str
    client: str = ""
    """Connection of the caller."""
    caller: str = ""
    """Identity of the caller; see rpc/callers.py."""
    reach: str = ""
    """Caller whose requests alone this one may replace; "" for all callers' requests."""
    channel: str = ""
    user: str = ""
    supersede: str = ""
    """Key of a waiting request of this caller that this request replaces; "" for none."""
    merge: str = ""
    """Key of a waiting request that this request joins; "" for none."""
    priority: Priority = Priority.NORMAL
    playout: Playout = Playout.SERIAL
    queue_timeout_s: float | None = None
    """Longest delay of the first audio beyond its target; None: any."""

    @property
    def key(self) -> str:
        """Key of the request: its id, unique among all callers."""
        return f"{self.reach} {self.request_id}".strip()

    def supersedes(self, other: Terms) -> bool:
        """True if this request replaces the other, which has the same supersede key."""
        return self.supersede == other.supersede and self._reaches(other)

    def merges(self, other: Terms) -> bool:
        """True if one reply may speak for both requests."""
        return self.merge == other.merge and self._reaches(other)

    def _reaches(self, other: Terms) -> bool:
        is_beside = (self.channel or self.client) == (other.channel or other.client)
        return is_beside and self.reach in ("", other.caller)

    def replaces(self, other: Terms) -> bool:
        """True if this request replaces the other, provided that the other still waits."""
        return bool((self.merge and self.merges(other)) or (self.supersede and self.supersedes(other)))

    @property
    def line(self) -> str:
        """Key of an order of requests; "" for none."""
        if self.playout is Playout.OVERLAP:
            return ""
        # All connections over a Unix socket have the same name.
        return self.channel or ("" if self.client.startswith("unix") else self.client)

    @property
    def takes_turns(self) -> bool:
        """True if the reply plays after the earlier replies of its channel."""
        return bool(self.channel) and self.playout is Playout.SERIAL

    @property
    def payer(self) -> str:
        """Name whose share of the engine the request uses: its channel, else its caller, else the request
        alone.
        """
        return self.channel or self.caller or self.request_id

    @property
    def unnamed(self) -> str:
        """Key of the caller's requests that name neither channel nor user. Together they have one share."""
        return "" if self.channel or self.user else self.caller


MAX_REFERENCE_S = 12


@dataclass(frozen=True, eq=False)
class Features:
    """Features of a reference. Cached features equal newly computed ones bit for bit."""

    samples: FloatArray
    """(samples,) mono at the model's rate, levelled to at least the target RMS."""
    log_mel: FloatArray
    """(frames, mels)"""
    rms: float
    """RMS before levelling. The reply is scaled back to this level."""
    warnings: tuple[str, ...] = ()
    """Always empty in cached features."""


@dataclass(frozen=True, eq=False)
class Reference:
    """A voice's recording, prepared for the engine."""

    transcript: str
    """Transcript with its ending, ". " or "。"."""
    features: Features


@dataclass(frozen=True, eq=False)
class Segment:
    """All inputs of the engine for one piece of a request."""

    index: int
    text: str
    ids: NDArray[np.int32]
    """(tokens,) indices of transcript + text, before the +1 shift."""
    frames: int
    """N: frames of reference and reply."""
    reference_log_mel: FloatArray
    """(condition frames, mels)"""
    reference_frames: int
    """R: first frame of the output.

    Condition frames: R + 1 for Vocos' mels, R for BigVGAN's, n_fft / hop - 1 fewer for HiFi-GAN's.
    """
    times: NDArray[np.float64]
    """(NFE + 1,) strictly increasing from 0 to 1."""
    guidance: float
    seed: int = 0
    """Seed of the noise, together with `index`."""
    noise: FloatArray | None = None
    """(N, mels), or (NFE, N, mels) if steps re-noise. None: drawn when it is needed."""
    upsample_index: NDArray[np.int32] | None = None
    """(N,) token of each frame, if the bundle upsamples text. None: tokens are spread evenly."""
    words: tuple[tuple[float, float], ...] = ()
    """(begin, end) of each word in seconds after the reference, if a table places the tokens."""
    gain: float = 1.0
    """Factor that restores the level of a quiet reference."""
    sampling: Sampling = "exact"
    audio_s: float = 0.0
    """Length including `pause_s`, less the cross-fade into the next segment."""
    pause_s: float = 0.0
    """Seconds of silence after the segment, without a cross-fade."""

    @property
    def nfe(self) -> int:
        return len(self.times) - 1

    @cached_property
    def key_steps(self) -> frozenset[int]:
        return key_steps(self.times, self.sampling)


WORTHWHILE = 0.05
"""Smallest saving for which a lane joins a shared call, as a share of the cost of its step alone."""


@dataclass(frozen=True)
class Cost:
    """Estimated seconds of a segment alone."""

    open_s: float
    steps_s: tuple[float, ...]
    finish_s: float

    @cached_property
    def whole_s(self) -> float:
        return self.open_s + self.left_s(0)

    def left_s(self, steps: int) -> float:
        """Seconds left of an open lane after this number of steps."""
        return sum(self.steps_s[steps:]) + self.finish_s


@dataclass(frozen=True)
class Lane:
    """An open segment in the engine."""

    id: int
    steps_left: int


@dataclass(frozen=True, eq=False)
class SegmentAudio:
    """The audio of a finished segment."""

    samples: FloatArray
    """(samples,) mono at the model's rate, before the cross-fade."""
    segment: int
    last: bool = False
    pause_s: float = 0.0


@dataclass
class Timings:
    """Durations of the stages of a reply."""

    queue_s: float = 0.0
    """Seconds from arrival to the engine's first call."""
    text_s: float = 0.0
    """Seconds from arrival to admission, included in `queue_s`."""
    first_audio_s: float = 0.0
    """Seconds from arrival to the first audio that the transport gets."""
    condition_s: float = 0.0
    """Seconds of the engine for text and reference."""
    steps_s: float = 0.0
    """Seconds of the engine for steps."""
    vocoder_s: float = 0.0
    """Seconds of the engine for the vocoder."""
    join_s: float = 0.0
    """Seconds for level, cross-fade and sample rate."""
    encode_s: float = 0.0
    """Seconds for the audio encoder."""
    total_s: float = 0.0
    """Seconds from arrival to the end."""
    audio_s: float = 0.0
    segments: int = 0
    nfe: int = 0

    @property
    def rtf(self) -> float:
        """Seconds of work per second of audio; infinite without audio."""
        return self.total_s / self.audio_s if self.audio_s else float("inf")


@dataclass(frozen=True)
class PassedOver:
    backend: str
    reason: str


@dataclass(frozen=True)
class RequestCounts:
    """Counts of requests that are admitted and not finished."""

    waiting: int = 0
    running: int = 0
    """Requests in the engine, including parked ones."""
    parked: int = 0
    """Requests that wait for their readers."""

"""Request → Segments: the text in pieces, each with its tokens, frames and time grid.

Counts follow F5's `infer_process`, `infer_batch_process` and `CFM.sample` (f5-tts 1.1.22).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Manifest
from appliance.contract.mel import MelSpec
from appliance.contract.placement import SPACE, Placement
from appliance.contract.tokens import BY_ESPEAK, Vocabulary
from appliance.errors import InvalidRequest
from appliance.request import Change, Reference, Request, Segment, Segmentation, Speaker
from appliance.speech.work import LOOKUP, VOICE, Work
from appliance.text.chat.rewrite import MOST_CHARACTERS
from appliance.text.pieces.ended import ended
from appliance.text.pieces.pace import exchange
from appliance.text.pieces.split import Budgets, chunk_text, cut_to_fit, first_within, split_low_latency

WINDOW_S = 22.0
"""Reference and speech in one pass of upstream; the models were trained on up to 30 s."""
SHORT_TEXT_BYTES = 10
"""Texts with fewer are spoken slower."""
SHORT_TEXT_SPEED = 0.3
SPREAD_TEXT_SPEED = (0.15, 0.06)
"""Speed of such a text, and more for each byte, where letters are spread over all frames: slowed as upstream
slows it, words of the reference's end reach into the reply. 28 of 100 words were wrong instead of 126."""
TEXTS_KEPT = 64
"""Texts whose tokens are kept: a plan asks for them several times, and for the transcript's in every plan."""
LONGEST_PIECE_S = 8.0
"""Limit of a segment of LOW_LATENCY, one step of which delays all other requests."""


@dataclass(frozen=True)
class Planner:
    manifest: Manifest
    vocabulary: Vocabulary
    reference: Callable[[str, str], Reference]
    """(voice, style or "") → Reference. Raises VoiceNotFound, StorageError, InvalidRequest for the style."""
    to_tokens: Callable[[str], Sequence[str]]
    max_audio_s: float = math.inf
    max_work_s: float = math.inf
    """Seconds of speech × steps."""
    restores_level: bool = True
    """The speech of a quiet reference is as quiet, as upstream's; False where its loudness is set later."""

    def plan(self, request: Request, references: Mapping[Speaker, Reference] | None = None) -> list[Segment]:
        """Segments in order of playout. `references`: by speaker, if they are loaded already.

        Raises VoiceNotFound, StorageError, and InvalidRequest for steps without a time grid, an unusable
        rate, an empty text, too much work, and what does not fit into `max_frames`.
        """
        spec, defaults = self.manifest.mel, self.manifest.defaults
        rate = spec.frames_per_second
        if not request.speaking_rate > 0:
            raise InvalidRequest(
                "audio_config.speaking_rate", f"must be above 0, not {request.speaking_rate}"
            )
        times = self._times(request.nfe)
        rooms = self._rooms(request, references or {who: self.reference(*who) for who in request.speakers})
        self._check_work(sum(self._seconds(rooms[r.speaker], r.text) for r in request.runs), request.nfe)
        pieces = pieces_of(request, rooms, self._fitting)
        if not pieces:
            raise InvalidRequest("text", "is empty")
        segments = []
        for index, (text, pause_s, room) in enumerate(pieces):
            features, reference_frames = room.reference.features, room.reference_frames
            before, after = self._tokens(room, text)
            ids = self.vocabulary.ids([*before, *after])
            # CFM.sample makes room for every token and for at least one frame after the reference.
            frames = max(max(len(ids), len(features.log_mel)) + 1, self._duration(room, text))
            if _bytes(text) < SHORT_TEXT_BYTES <= room.longest:  # is only slowed as far as it fits
                frames = min(frames, self.manifest.max_frames)
            if frames > self.manifest.max_frames:
                raise _too_long(text, frames, self.manifest.max_frames, spec)
            placed, words = None, list[tuple[float, float]]()
            if self._placement is not None:
                placed = self._placement.index(reference_frames, before, after, frames)
                words = self._placement.words(after, frames - reference_frames)
            samples = self.manifest.vocoder.samples(frames - reference_frames, spec.hop)
            fade_s = defaults.cross_fade_s if index < len(pieces) - 1 and not pause_s else 0.0
            segments.append(
                Segment(
                    index=index,
                    text=text,
                    ids=ids,
                    frames=frames,
                    reference_log_mel=features.log_mel,
                    reference_frames=reference_frames,
                    times=times,
                    guidance=request.guidance,
                    seed=request.seed,
                    upsample_index=placed,
                    words=tuple((begin / rate, end / rate) for begin, end in words),
                    gain=min(features.rms / defaults.target_rms, 1.0) if self.restores_level else 1.0,
                    sampling=defaults.sampling,
                    audio_s=max(samples / spec.sample_rate_hz - fade_s, 0.0) + pause_s,
                    pause_s=pause_s,
                )
            )
        self._check_work(sum(segment.audio_s for segment in segments), request.nfe)
        return segments

    def budgets(self, request: Request) -> Budgets:
        """Sizes of a text that is still to come, in any script. Raises VoiceNotFound, StorageError."""
        reference = self.reference(request.voice, request.style)
        return Room(reference, self.manifest, request.speaking_rate, ratio=1.0).budgets

    def ways(self, requests: Sequence[Request]) -> Work[list[tuple[Request, list[Segment]]]]:
        """Plan requests that differ in segmentation and steps; return those possible.

        Raises `plan`'s errors if none is possible.
        """
        references: dict[Speaker, Reference] = {}
        for speaker in requests[0].speakers:
            yield VOICE
            references[speaker] = self.reference(*speaker)
        requests = [self._limited(request, references) for request in requests]
        ways: list[tuple[Request, list[Segment]]] = []
        refused: InvalidRequest | None = None
        for request in requests:
            try:
                same = next((s for r, s in ways if replace(r, nfe=request.nfe) == request), None)
                if same is None:
                    yield len(request.text) + LOOKUP * (self.vocabulary.tokenizer in BY_ESPEAK)
                    ways.append((request, self.plan(request, references)))
                else:
                    times = self._times(request.nfe)
                    ways.append((request, [replace(segment, times=times) for segment in same]))
            except InvalidRequest as error:
                refused = error
        if refused is not None and not ways:
            raise refused
        return ways

    def _limited(self, request: Request, references: Mapping[Speaker, Reference]) -> Request:
        if not request.max_spoken_s:
            return request
        rooms, left_s = self._rooms(request, references), request.max_spoken_s
        for run in request.runs:
            room = rooms[run.speaker]
            most = int(left_s * room.pace)
            if _bytes(run.text) > most:
                text = request.text[: run.begin] + first_within(run.text, most, room.languages)
                break
            left_s -= _bytes(run.text) / room.pace
        else:
            return request
        cut = Change("cut", request.text[len(text) :].strip()[:MOST_CHARACTERS], "")
        pauses = tuple(pause for pause in request.pauses if pause.after < len(text))
        directions = tuple(direction for direction in request.directions if direction.after < len(text))
        switches = tuple(switch for switch in request.switches if switch.after < len(text))
        changes = (*request.changes, cut)
        return replace(
            request, text=text, pauses=pauses, directions=directions, switches=switches, changes=changes
        )

    def _rooms(self, request: Request, references: Mapping[Speaker, Reference]) -> dict[Speaker, Room]:
        rooms = {}
        for speaker in request.speakers:
            reference = references[speaker]
            ratio = self._ratio(reference.transcript, request.text)
            rooms[speaker] = Room(reference, self.manifest, request.speaking_rate, ratio)
        return rooms

    def _ratio(self, transcript: str, text: str) -> float:
        """Bytes of the text that take as long as one of the transcript."""
        if self._placement is not None:
            before, after = map(self._placement.weights, self._parts(transcript, text))
            pace = _bytes(transcript) / float(before.sum())
            return _bytes(text) / float(after.sum()) / pace if len(after) else 1.0
        return exchange(transcript, text) if self.manifest.text.duration == "script" else 1.0

    @functools.cached_property
    def _placement(self) -> Placement | None:
        table = self.manifest.text.durations
        return Placement(table) if table else None

    @functools.cached_property
    def _split(self) -> Callable[[str], tuple[str, ...]]:
        vocabulary, make = self.vocabulary, self.to_tokens
        return functools.lru_cache(TEXTS_KEPT)(lambda text: tuple(vocabulary.split(text, make)))

    @property
    def _spreads(self) -> bool:
        """True if letters are spread over all frames, and durations need not be upstream's."""
        arch = self.manifest.arch
        spreads = arch is not None and arch.text_embedding_average_upsampling
        return spreads and self.manifest.text.duration == "script"

    @property
    def _by_tokens(self) -> bool:
        return self.manifest.text.duration == "tokens"

    def _before(self, room: Room) -> str:
        return spoken_transcript(room.reference.transcript)

    def _seconds(self, room: Room, text: str) -> float:
        """Seconds of speech, if the text is one piece."""
        length = self._duration(room, text, room.ratio)
        return (length - room.reference_frames) / self.manifest.mel.frames_per_second

    def _duration(self, room: Room, text: str, ratio: float | None = None) -> int:
        """Frames of reference and text; without a `ratio` of bytes, by that of this text."""
        frames, speed = room.reference_frames, room.speed
        if not self._by_tokens:
            transcript = self._before(room)
            ratio = self._ratio(transcript, text) if ratio is None else ratio
            return duration_frames(frames, transcript, text, speed, ratio, spread=self._spreads)
        before, after = self._parts(room.reference.transcript, text)
        if self._placement is None:
            return token_frames(frames, len(before), len(after), speed)
        return max(self._placement.frames(frames, before, after, speed), frames + len(after))

    def _fitting(self, text: str, room: Room) -> list[str]:
        """Cut in halves, and again, what tokens make longer than bytes let expect, and than `max_frames`."""
        size = _bytes(text)
        if not self._by_tokens or min(size, room.longest) < SHORT_TEXT_BYTES:
            return [text]
        if self._duration(room, text) <= self.manifest.max_frames:
            return [text]
        halves = cut_to_fit(text, size // 2, room.languages)
        return [part for half in halves for part in self._fitting(half, room)]

    def _tokens(self, room: Room, text: str) -> tuple[Sequence[str], Sequence[str]]:
        """Tokens of transcript and text; all as the text's, made together, where no length goes by them.

        Raises InvalidRequest for a text without tokens, whose speech would have no length.
        """
        if not self._by_tokens:
            whole = self.manifest.text.framed(self._before(room) + text)
            return (), self.vocabulary.split(whole, self.to_tokens)
        before, after = self._parts(room.reference.transcript, text)
        if not after:
            raise InvalidRequest("text", f"{_begin(ended(text))} has nothing that the bundle can say")
        return before, after

    def _parts(self, transcript: str, text: str) -> tuple[Sequence[str], Sequence[str]]:
        """Tokens of each by itself, as ZipVoice has them; where they are placed with a space between."""
        transcript, after = transcript.rstrip(), self._split(ended(text))
        if self._placement is None:
            return self._split(transcript), after
        # F5's rule for transcripts puts a full stop behind any mark but a full stop.
        return (*self._split(ended(transcript.removesuffix("."))), SPACE), after

    def _times(self, nfe: int) -> NDArray[np.float64]:
        try:
            return self.manifest.times(nfe)
        except ValueError as error:
            raise InvalidRequest("nfe_steps", str(error)) from error

    def _check_work(self, audio_s: float, nfe: int) -> None:
        if audio_s > self.max_audio_s:
            raise InvalidRequest(
                "text", f"makes {audio_s:.0f} s of speech; at most {self.max_audio_s:g} s are allowed"
            )
        if audio_s * nfe > self.max_work_s:
            most = int(self.max_work_s / audio_s)
            raise InvalidRequest(
                "nfe_steps",
                f"{nfe} steps on {audio_s:.0f} s of speech are more than is allowed: at most {most} steps, "
                "or a shorter text",
            )


@dataclass(frozen=True)
class Room:
    """Room of a text beside one reference, in bytes of the text."""

    reference: Reference
    manifest: Manifest
    speed: float
    ratio: float
    """Bytes of the text that take as long as one of the transcript."""

    @property
    def languages(self) -> tuple[str, ...]:
        return self.manifest.text.languages

    @property
    def reference_s(self) -> float:
        return len(self.reference.features.samples) / self.manifest.mel.sample_rate_hz

    @property
    def reference_frames(self) -> int:
        return self.manifest.mel.reply_begins(len(self.reference.features.samples))

    @property
    def pace(self) -> float:
        """Per second."""
        return _bytes(self.reference.transcript) / self.reference_s * self.speed * self.ratio

    @property
    def longest(self) -> int:
        """Most that `max_frames` allow."""
        manifest = self.manifest
        return int((manifest.max_frames / manifest.mel.frames_per_second - self.reference_s) * self.pace)

    @property
    def window(self) -> int:
        """Most that upstream puts into one pass."""
        transcript = _bytes(self.reference.transcript)
        return int(transcript / self.reference_s * (WINDOW_S - self.reference_s) * self.speed * self.ratio)

    @property
    def budgets(self) -> Budgets:
        # A shorter piece would be spoken slower.
        return Budgets.at_pace(
            self.pace,
            minimum=SHORT_TEXT_BYTES,
            largest=min(self.window, self.longest, int(LONGEST_PIECE_S * self.pace)),
            reference=int(_bytes(self.reference.transcript) * self.ratio * self.speed),
        )


def pieces_of(
    request: Request, rooms: Mapping[Speaker, Room], fitting: Callable[[str, Room], Sequence[str]]
) -> list[tuple[str, float, Room]]:
    """(text, seconds of silence after it, room) of each segment."""
    pieces: list[tuple[str, float, Room]] = []
    pauses = {pause.after: pause.seconds for pause in request.pauses}
    for run in request.runs:
        room = rooms[run.speaker]
        run_end = run.begin + len(run.text)
        ends = sorted({run_end, *(after for after in pauses if run.begin < after < run_end)})
        for begin, end in pairwise((run.begin, *ends)):
            whole = request.text[begin:end].strip()
            texts = [
                part for text in split(whole, request.segmentation, room) for part in fitting(text, room)
            ]
            pieces += [
                (text, pauses.get(end, 0.0) if place == len(texts) else 0.0, room)
                for place, text in enumerate(texts, 1)
            ]
    return pieces


def split(text: str, how: Segmentation, room: Room) -> list[str]:
    if how is Segmentation.UPSTREAM:
        pieces = chunk_text(text, room.window)
    else:
        pieces = split_low_latency(text, room.budgets, room.languages)
    # A clause may exceed upstream's window, and a link any piece, but neither may exceed `max_frames`.
    most = room.longest
    if most < SHORT_TEXT_BYTES:  # no room for speech, which `plan` refuses
        return pieces
    return [part for piece in pieces for part in cut_to_fit(piece, most, room.languages)]


def spoken_transcript(transcript: str) -> str:
    """Transcript before the text: with one more space after ASCII."""
    return transcript + " " if transcript[-1:].isascii() else transcript


def duration_frames(
    reference_frames: int,
    transcript: str,
    text: str,
    speed: float,
    ratio: float | None = None,
    *,
    spread: bool = False,
) -> int:
    """Reference and text; the text takes as long per byte as the transcript, or per `ratio` bytes.

    None: the ratio of their scripts. `spread`: letters are spread over all frames.
    """
    if (count := _bytes(text)) < SHORT_TEXT_BYTES:
        least, more = SPREAD_TEXT_SPEED
        speed *= max(SHORT_TEXT_SPEED, least + more * count) if spread else SHORT_TEXT_SPEED
    speed *= exchange(transcript, text) if ratio is None else ratio
    return reference_frames + int(reference_frames / _bytes(transcript) * _bytes(text) / speed)


def token_frames(reference_frames: int, transcript: int, text: int, speed: float) -> int:
    """Reference and text, whose tokens take as long as the transcript's; in float32, as ZipVoice's."""
    each = np.float32(reference_frames) / np.float32(max(transcript, 1))
    return reference_frames + math.ceil(each * np.float32(text) / np.float32(speed))


def _begin(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _too_long(text: str, frames: int, max_frames: int, spec: MelSpec) -> InvalidRequest:
    needed_s, allowed_s = frames / spec.frames_per_second, max_frames / spec.frames_per_second
    return InvalidRequest(
        "text",
        f"{_begin(text)} needs {needed_s:.1f} s with its reference, {allowed_s:.1f} s are allowed in one "
        "piece: shorten it, put punctuation into it, or use a shorter reference",
    )


def _bytes(text: str) -> int:
    return len(text.encode())

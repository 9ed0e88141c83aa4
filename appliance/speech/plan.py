"""Request → Segments: the text in pieces, each with its tokens, frames and time grid.

Frames follow `CFM.sample` of F5 (f5-tts 1.1.22).
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
from appliance.contract.tokens import BY_ESPEAK, Vocabulary
from appliance.errors import InvalidRequest
from appliance.request import Change, Reference, Request, Segment, Speaker
from appliance.speech.budget import SHORT_TEXT_BYTES, TextBudget
from appliance.speech.lengths import Lengths, lengths_of, quoted
from appliance.speech.work import LOOKUP, VOICE, Work
from appliance.text.chat.rewrite import MOST_CHARACTERS
from appliance.text.pieces.split import Budgets, cut_to_fit, first_within, size_of

References = Mapping[Speaker, Reference]


@dataclass(frozen=True)
class Planner:
    """Plans requests for one bundle: tokens, frames and times of each segment."""

    manifest: Manifest
    vocabulary: Vocabulary
    reference: Callable[[str, str], Reference]
    """(voice, style or "") → Reference.

    Raises VoiceNotFound, StorageError, and InvalidRequest for the style.
    """
    to_tokens: Callable[[str], Sequence[str]]
    """Tokenizer of the bundle."""
    max_audio_s: float = math.inf
    """Longest reply, in seconds."""
    max_work_s: float = math.inf
    """Most work of a reply: seconds of speech × steps."""
    restores_level: bool = True
    """True if a quiet reference gives quiet speech, as in upstream; False if a later stage sets the loudness.
    """

    def plan(self, request: Request, references: References | None = None) -> list[Segment]:
        """Segments in order of playback. `references`: by speaker, if they are loaded already.

        Raises VoiceNotFound, StorageError, and InvalidRequest for steps without a time grid, an unusable
        rate, an empty text, too much work, and a text that does not fit into `max_frames`.
        """
        if not request.speaking_rate > 0:
            raise InvalidRequest(
                "audio_config.speaking_rate", f"must be above 0, not {request.speaking_rate}"
            )
        times = self._times(request.nfe)
        references = references or {speaker: self.reference(*speaker) for speaker in request.speakers}
        budgets = self._text_budgets(request, references)
        self._check_work(sum(self._seconds(budgets[r.speaker], r.text) for r in request.runs), request.nfe)
        pieces = pieces_of(request, budgets, self.lengths)
        if not pieces:
            raise InvalidRequest("text", "is empty")
        segments = [
            self._segment(request, times, index, piece, index == len(pieces) - 1)
            for index, piece in enumerate(pieces)
        ]
        self._check_work(sum(segment.audio_s for segment in segments), request.nfe)
        return segments

    def _segment(
        self, request: Request, times: NDArray[np.float64], index: int, piece: SegmentText, last: bool
    ) -> Segment:
        """Plan a segment: tokens, number of frames, times and gain.

        Raises InvalidRequest if it is too long.
        """
        spec, defaults, most = self.manifest.mel, self.manifest.defaults, self.manifest.max_frames
        text, budget = piece.text, piece.budget
        features, reference_frames = budget.reference.features, budget.reference_frames
        tokens = self.lengths.tokens(budget, text)
        ids = self.vocabulary.ids([*tokens[0], *tokens[1]])
        # CFM.sample makes room for every token, and for at least one frame after the reference.
        frames = reference_frames + self.lengths.reply(budget, text)
        frames = max(len(ids) + 1, len(features.log_mel) + 1, frames)
        if size_of(text) < SHORT_TEXT_BYTES <= budget.longest:  # is only slowed as far as it fits
            frames = min(frames, most)
        if frames > most:
            raise _too_long(text, frames, self.manifest)
        placed = self.lengths.place(tokens, reference_frames, frames)
        rate = spec.frames_per_second
        samples = self.manifest.vocoder.samples(frames - reference_frames, spec.hop)
        fade_s = 0.0 if last or piece.pause_s else defaults.cross_fade_s
        return Segment(
            index=index,
            text=text,
            ids=ids,
            frames=frames,
            reference_log_mel=features.log_mel,
            reference_frames=reference_frames,
            times=times,
            guidance=request.guidance,
            seed=request.seed,
            upsample_index=placed.tokens,
            words=tuple((begin / rate, end / rate) for begin, end in placed.words),
            gain=min(features.rms / defaults.target_rms, 1.0) if self.restores_level else 1.0,
            sampling=defaults.sampling,
            audio_s=max(samples / spec.sample_rate_hz - fade_s, 0.0) + piece.pause_s,
            pause_s=piece.pause_s,
        )

    def budgets(self, request: Request) -> Budgets:
        """Sizes of pieces for a text that has yet to arrive, and may have any script.

        Raises VoiceNotFound, StorageError.
        """
        reference = self.reference(request.voice, request.style)
        return TextBudget(reference, self.manifest, request.speaking_rate, ratio=1.0).budgets

    def ways(self, requests: Sequence[Request]) -> Work[list[tuple[Request, list[Segment]]]]:
        """Plan requests that differ in segmentation and steps; return the possible ones.

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

    def _limited(self, request: Request, references: References) -> Request:
        """Cut the text to `max_spoken_s`, and note the cut as a change."""
        if not request.max_spoken_s:
            return request
        budgets, left_s = self._text_budgets(request, references), request.max_spoken_s
        for run in request.runs:
            budget = budgets[run.speaker]
            most = int(left_s * budget.pace)
            if size_of(run.text) > most:
                text = request.text[: run.begin] + first_within(run.text, most, budget.languages)
                break
            left_s -= size_of(run.text) / budget.pace
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

    def _text_budgets(self, request: Request, references: References) -> dict[Speaker, TextBudget]:
        speed, ratio = request.speaking_rate, self.lengths.ratio
        return {
            speaker: TextBudget(reference, self.manifest, speed, ratio(reference.transcript, request.text))
            for speaker, reference in references.items()
        }

    @functools.cached_property
    def lengths(self) -> Lengths:
        return lengths_of(self.manifest, self.vocabulary, self.to_tokens)

    def _seconds(self, budget: TextBudget, text: str) -> float:
        """Seconds of speech if the text is one piece."""
        return self.lengths.reply(budget, text) / self.manifest.mel.frames_per_second

    def _times(self, nfe: int) -> NDArray[np.float64]:
        try:
            return self.manifest.times(nfe)
        except ValueError as error:
            raise InvalidRequest("nfe_steps", str(error)) from error

    def _check_work(self, audio_s: float, nfe: int) -> None:
        """Raise InvalidRequest if the reply is too long, or too long for this number of steps."""
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
class SegmentText:
    """Text of one segment."""

    text: str
    pause_s: float
    """Seconds of silence after the piece."""
    budget: TextBudget


def pieces_of(request: Request, budgets: Mapping[Speaker, TextBudget], lengths: Lengths) -> list[SegmentText]:
    """Cut a text at voices and pauses, then by the segmentation, into pieces that fit the model."""
    pieces: list[SegmentText] = []
    pauses = {pause.after: pause.seconds for pause in request.pauses}
    for run in request.runs:
        budget = budgets[run.speaker]
        run_end = run.begin + len(run.text)
        ends = sorted({run_end, *(after for after in pauses if run.begin < after < run_end)})
        for begin, end in pairwise((run.begin, *ends)):
            cut = budget.split(request.text[begin:end].strip(), request.segmentation)
            texts = [part for text in cut for part in fitting(text, budget, lengths)]
            pieces += [
                SegmentText(text, pauses.get(end, 0.0) if place == len(texts) else 0.0, budget)
                for place, text in enumerate(texts, 1)
            ]
    return pieces


def fitting(text: str, budget: TextBudget, lengths: Lengths) -> list[str]:
    """Pieces of a text. A text that needs more tokens than its bytes suggest is halved, and halved again."""
    size = size_of(text)
    if min(size, budget.longest) < SHORT_TEXT_BYTES or lengths.fits(budget, text):
        return [text]
    halves = cut_to_fit(text, size // 2, budget.languages)
    return [part for half in halves for part in fitting(half, budget, lengths)]


def _too_long(text: str, frames: int, manifest: Manifest) -> InvalidRequest:
    per_second = manifest.mel.frames_per_second
    return InvalidRequest(
        "text",
        f"{quoted(text)} needs {frames / per_second:.1f} s with its reference, "
        f"{manifest.max_frames / per_second:.1f} s are allowed in one "
        "piece: shorten it, put punctuation into it, or use a shorter reference",
    )

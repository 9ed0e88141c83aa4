"""Request → Segments: how a text is cut, how long each piece is, its tokens and its noise. Pure.

Every count follows upstream's `infer_process`, `infer_batch_process` and `CFM.sample` (f5-tts 1.1.22).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Defaults
from appliance.contract.mel import MelSpec
from appliance.contract.schedule import time_grid
from appliance.contract.tokens import Vocabulary
from appliance.errors import InvalidRequest
from appliance.job import Reference, Request, Segment, Segmentation
from appliance.text.split import Budgets, chunk_text, split_low_latency

WINDOW_S = 22.0
"""Reference and speech that upstream puts into one pass; the models were trained on up to 30 s."""
SHORT_TEXT_BYTES = 10
"""A text under this is planned at a pace of its own, since so few bytes say little about a duration."""
SHORT_TEXT_SPEED = 0.3


def plan(
    request: Request,
    reference: Reference,
    *,
    spec: MelSpec,
    vocabulary: Vocabulary,
    to_tokens: Callable[[str], Sequence[str]],
    defaults: Defaults,
    max_frames: int,
) -> list[Segment]:
    """The segments of a request, in the order in which they are heard.

    Raises InvalidRequest for a step count without a time grid, an unusable speaking rate, an empty text, and
    a text or reference that does not fit into `max_frames`.
    """
    if not request.speaking_rate > 0:
        raise InvalidRequest("audio_config.speaking_rate", f"must be above 0, not {request.speaking_rate}")
    try:
        times = time_grid(request.nfe, grid=defaults.grid, sway=defaults.sway)
    except ValueError as error:
        raise InvalidRequest("nfe_steps", str(error)) from error
    texts = split(request, reference, spec, max_frames)
    if not any(texts):
        raise InvalidRequest("text", "is empty")
    transcript = spoken_transcript(reference.transcript)
    reference_frames = len(reference.samples) // spec.hop
    segments = []
    for index, text in enumerate(texts):
        ids = vocabulary.ids(to_tokens(transcript + text))
        duration = duration_frames(reference_frames, transcript, text, request.speaking_rate)
        # CFM.sample makes room for every token and for at least one frame after the reference.
        frames = max(max(len(ids), len(reference.log_mel)) + 1, duration)
        if frames > max_frames:
            raise _too_long(text, frames, max_frames, spec)
        segments.append(
            Segment(
                index=index,
                text=text,
                ids=ids,
                frames=frames,
                reference_log_mel=reference.log_mel,
                reference_frames=reference_frames,
                noise=noise(request.seed, index, frames, spec.mels),
                times=times,
                guidance=request.guidance,
                gain=reference.rms / defaults.target_rms if reference.rms < defaults.target_rms else 1.0,
                sampling=defaults.sampling,
            )
        )
    return segments


def split(request: Request, reference: Reference, spec: MelSpec, max_frames: int) -> list[str]:
    """The texts of the segments, by the request's segmentation."""
    largest = window_bytes(reference, spec, request.speaking_rate)
    if request.segmentation is Segmentation.UPSTREAM:
        return chunk_text(request.text, largest)
    seconds = len(reference.samples) / spec.sample_rate_hz
    pace = _bytes(reference.transcript) / seconds * request.speaking_rate
    room = int((max_frames / spec.frames_per_second - seconds) * pace)
    # A piece under ten bytes would be spoken at a pace of its own.
    budgets = Budgets.at_pace(
        pace,
        minimum=SHORT_TEXT_BYTES,
        largest=min(largest, room),
        reference=int(_bytes(reference.transcript) * request.speaking_rate),
    )
    return split_low_latency(request.text, budgets)


def window_bytes(reference: Reference, spec: MelSpec, speed: float) -> int:
    """Most bytes of text that upstream puts into one pass with this reference."""
    seconds = len(reference.samples) / spec.sample_rate_hz
    return int(_bytes(reference.transcript) / seconds * (WINDOW_S - seconds) * speed)


def spoken_transcript(transcript: str) -> str:
    """The transcript as it stands before the text: with one more space after an ASCII character."""
    return transcript + " " if transcript[-1:].isascii() else transcript


def duration_frames(reference_frames: int, transcript: str, text: str, speed: float) -> int:
    """Frames of reference and text together, the text being as long per byte as the transcript."""
    if _bytes(text) < SHORT_TEXT_BYTES:
        speed = SHORT_TEXT_SPEED
    return reference_frames + int(reference_frames / _bytes(transcript) * _bytes(text) / speed)


def noise(seed: int, segment: int, frames: int, mels: int) -> NDArray[np.float32]:
    """(frames, mels) standard normal, the same on every machine."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, segment])))
    return generator.standard_normal((frames, mels), dtype=np.float32)


def _too_long(text: str, frames: int, max_frames: int, spec: MelSpec) -> InvalidRequest:
    needed_s, allowed_s = frames / spec.frames_per_second, max_frames / spec.frames_per_second
    start = text if len(text) <= 40 else text[:39] + "…"
    return InvalidRequest(
        "text",
        f"{start!r} needs {needed_s:.1f} s with its reference, {allowed_s:.1f} s are allowed in one piece: "
        "shorten it, put punctuation into it, or use a shorter reference",
    )


def _bytes(text: str) -> int:
    return len(text.encode())

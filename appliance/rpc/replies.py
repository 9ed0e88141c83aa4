"""Domain → reply messages: header, words, timings, trailers, utterances of the queue."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from appliance.audio.words import TimedWord
from appliance.encodings import Encoding
from appliance.request import PassedOver, Request, Segmentation, Terms, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.requests import ENCODINGS, SEGMENTATIONS
from appliance.rpc.status import reason_of
from appliance.scheduler.job import State, Utterance
from appliance.text.sayable import NOTHING

STATES = {State.WAITING: pb.WAITING, State.HELD: pb.HELD, State.SOUNDING: pb.SOUNDING, State.ENDED: pb.ENDED}
SPOKEN = "SPOKEN"

Value = TypeVar("Value", Encoding, Segmentation)


def header_message(
    request: Request,
    terms: Terms,
    segments: int,
    backend: str,
    promised_s: float,
    words: Sequence[TimedWord] = (),
    *,
    passed_over: Sequence[PassedOver] = (),
    cached: bool = False,
) -> pb.Header:
    """`promised_s` is 0 where nothing is promised."""
    return pb.Header(
        sample_rate_hertz=request.sample_rate_hz,
        encoding=pb.AudioEncoding.Name(_number(ENCODINGS, request.encoding)),
        nfe_steps=request.nfe,
        seed=request.seed,
        guidance=request.guidance,
        segmentation=pb.Segmentation.Name(_number(SEGMENTATIONS, request.segmentation)),
        voice=request.voice,
        segments=segments,
        text=request.text,
        backend=backend,
        request_id=terms.request_id,
        priority=pb.Priority.Name(terms.priority.value),
        promised_ms=promised_s * 1e3,
        words=word_messages(words),
        cached=cached,
        changes=[pb.TextChange(kind=c.kind, before=c.before, after=c.after) for c in request.changes],
        skipped_reason="" if request.text else NOTHING,
        passed_over=passed_over_messages(passed_over),
    )


def passed_over_messages(passed_over: Iterable[PassedOver]) -> list[pb.PassedOver]:
    return [pb.PassedOver(backend=one.backend, reason=one.reason) for one in passed_over]


def word_messages(words: Sequence[TimedWord]) -> list[pb.WordTiming]:
    return [
        pb.WordTiming(word=word.text, start_s=word.start_s, end_s=word.end_s, segment=word.segment)
        for word in words
    ]


def utterance_message(utterance: Utterance, now: float) -> pb.Utterance:
    """Request as watchers of the queue see it; `now` is the scheduler's clock."""
    job, terms = utterance.job, utterance.job.terms
    ended = utterance.state is State.ENDED
    starts_s = 0.0
    if not ended and utterance.state is not State.HELD and math.isfinite(utterance.starts):
        starts_s = utterance.starts - job.channel.at(now)
    return pb.Utterance(
        request_id=terms.request_id,
        channel=terms.channel,
        user_key=terms.user,
        voice=job.voice,
        text=job.text,
        written=job.written,
        priority=pb.Priority.Name(terms.priority.value),
        state=pb.UtteranceState.Name(STATES[utterance.state]),
        starts_in_ms=1e3 * starts_s,
        length_ms=1e3 * job.audio_s,
        merged=job.merged,
        reason=reason_of(type(utterance.why)) if utterance.why else SPOKEN if ended else "",
    )


def timings_message(timings: Timings) -> pb.Timings:
    """Seconds → milliseconds."""
    return pb.Timings(
        queue_ms=timings.queue_s * 1e3,
        first_audio_ms=timings.first_audio_s * 1e3,
        condition_ms=timings.condition_s * 1e3,
        steps_ms=timings.steps_s * 1e3,
        vocoder_ms=timings.vocoder_s * 1e3,
        total_ms=timings.total_s * 1e3,
        audio_ms=timings.audio_s * 1e3,
        rtf=timings.rtf if math.isfinite(timings.rtf) else 0.0,
        segments=timings.segments,
        nfe_steps=timings.nfe,
        text_ms=timings.text_s * 1e3,
        join_ms=timings.join_s * 1e3,
        encode_ms=timings.encode_s * 1e3,
    )


def trailers(
    timings: Timings, terms: Terms, promised_s: float = 0.0, degraded: str = ""
) -> tuple[tuple[str, str], ...]:
    """Timings as trailing metadata. An empty `degraded` and a promise of 0 are left out."""
    synth_s = timings.condition_s + timings.steps_s + timings.vocoder_s
    return (
        ("x-request-id", terms.request_id),
        *((("x-promised-ms", f"{promised_s * 1e3:.1f}"),) if promised_s else ()),
        ("x-queue-ms", f"{timings.queue_s * 1e3:.1f}"),
        ("x-ttfa-ms", f"{timings.first_audio_s * 1e3:.1f}"),
        ("x-synth-ms", f"{synth_s * 1e3:.1f}"),
        ("x-audio-ms", f"{timings.audio_s * 1e3:.1f}"),
        ("x-rtf", f"{timings.rtf:.4f}"),
        ("x-segments", str(timings.segments)),
        ("x-nfe", str(timings.nfe)),
        *((("x-degraded", degraded),) if degraded else ()),
    )


def _number(table: Mapping[int, Value], value: Value) -> int:
    return next(number for number, meaning in table.items() if meaning is value)

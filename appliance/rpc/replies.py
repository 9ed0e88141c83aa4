"""Makes reply messages: header, words, timings, trailers, utterances of the queue."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from appliance.audio.captions import heard_characters
from appliance.audio.words import TimedWord
from appliance.request import PassedOver, Terms, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.status import reason_of
from appliance.scheduler.job import State, Utterance

STATES = {State.WAITING: pb.WAITING, State.HELD: pb.HELD, State.SOUNDING: pb.SOUNDING, State.ENDED: pb.ENDED}
SPOKEN = "SPOKEN"


def passed_over_messages(passed_over: Iterable[PassedOver]) -> list[pb.PassedOver]:
    return [pb.PassedOver(backend=one.backend, reason=one.reason) for one in passed_over]


def word_messages(words: Sequence[TimedWord]) -> list[pb.WordTiming]:
    return [
        pb.WordTiming(word=word.text, start_s=word.start_s, end_s=word.end_s, segment=word.segment)
        for word in words
    ]


def utterance_message(utterance: Utterance, now: float) -> pb.Utterance:
    """Request for watchers of the queue. `now` is of the scheduler's clock."""
    job, terms = utterance.job, utterance.job.terms
    ended = utterance.state is State.ENDED
    starts_s = 0.0
    if not ended and utterance.state is not State.HELD and math.isfinite(utterance.starts):
        starts_s = utterance.starts - job.channel.at(now)
    return pb.Utterance(
        request_id=terms.request_id,
        channel=terms.channel,
        user_key=terms.user,
        voice=job.request.voice,
        voices=dict.fromkeys(run.speaker[0] for run in job.request.runs),
        text=job.request.text,
        written=job.request.written,
        priority=pb.Priority.Name(terms.priority.value),
        state=pb.UtteranceState.Name(STATES[utterance.state]),
        starts_in_ms=1e3 * starts_s,
        length_ms=1e3 * job.audio_s,
        merged=job.merged,
        heard_characters=utterance.heard_characters
        or heard_characters(job.request, job.segments, utterance.heard_s),
        reason=reason_of(type(utterance.why)) if utterance.why else SPOKEN if ended else "",
    )


def timings_message(timings: Timings) -> pb.Timings:
    """Seconds → milliseconds."""
    rtf = timings.rtf if math.isfinite(timings.rtf) else 0.0
    seconds = {name[:-1]: value for name, value in vars(timings).items() if name.endswith("_s")}
    times_ms: dict[str, Any] = {f"{name}ms": 1e3 * value for name, value in seconds.items()}
    return pb.Timings(**times_ms, rtf=rtf, segments=timings.segments, nfe_steps=timings.nfe)


def trailers(
    timings: Timings, terms: Terms, promised_s: float = 0.0, degraded: str = ""
) -> tuple[tuple[str, str], ...]:
    """Timings as trailing metadata, without `degraded` if it is empty, and without the promise if it is 0."""
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

"""Messages → domain: every field checked, every default filled in; and back."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from appliance.audio.encode import check_encoding, check_rate
from appliance.config import MAX_GUIDANCE, SynthesisConfig
from appliance.errors import InvalidRequest, UnsupportedEncoding
from appliance.job import Encoding, Handling, Playout, Priority, Request, Segmentation, Spoken, Terms, Timings
from appliance.playout import State, Utterance
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.status import reason_of
from appliance.text.clean import clean
from appliance.text.normalise import normalise
from appliance.text.pronounce import check as check_pronunciations
from appliance.text.sayable import NOTHING
from appliance.words import Word

MIN_SPEAKING_RATE, MAX_SPEAKING_RATE = 0.25, 4.0
SEED_BITS = 32  # for seeds drawn here: exact in every client's numbers, also in JavaScript's

ENCODINGS: dict[int, Encoding] = {pb.AudioEncoding.Value(encoding.name): encoding for encoding in Encoding}
SEGMENTATIONS: dict[int, Segmentation] = {
    pb.UPSTREAM: Segmentation.UPSTREAM,
    pb.LOW_LATENCY: Segmentation.LOW_LATENCY,
}
STATES = {State.WAITING: pb.WAITING, State.SOUNDING: pb.SOUNDING, State.ENDED: pb.ENDED}
SPOKEN = "SPOKEN"
HANDLINGS: dict[int, Handling] = {
    pb.TEXT_HANDLING_UNSPECIFIED: Handling.CHAT,
    pb.CHAT: Handling.CHAT,
    pb.VERBATIM: Handling.VERBATIM,
    pb.SSML: Handling.SSML,
}
PRIORITIES: dict[int, Priority] = {
    pb.PRIORITY_UNSPECIFIED: Priority.NORMAL,
    pb.BULK: Priority.BULK,
    pb.NORMAL: Priority.NORMAL,
    pb.HIGH: Priority.HIGH,
    pb.REALTIME: Priority.REALTIME,
}
MAX_KEY_CHARACTERS = 128
"""Longest channel, user_key or supersede_key."""
MAX_SPOKEN_S = 3_600.0
MAX_MERGE_COUNT = 1_000_000
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_QUEUE_TIMEOUT_S = 3_600.0
FEWER_STEPS = 0.75
"""Steps are taken away by this until the request is in time or has its fewest."""


Speakable = Callable[[str, Handling, Mapping[str, str]], Spoken]
"""A text, what is to become of it, and how words are said in it → what can be spoken."""


@dataclass(frozen=True)
class Defaults:
    """Defaults of a request."""

    synthesis: SynthesisConfig
    guidance: float
    sample_rate_hz: int
    speakable: Speakable = lambda text, handling, words: Spoken(normalise(text))
    pronunciations: Callable[[str], Mapping[str, str]] = lambda voice: {}
    """A voice's own; none where there is no such voice."""


@dataclass(frozen=True)
class Asked:
    """Parsed request message."""

    ways: tuple[Request, ...]
    """The request, and how it may be served where it cannot be in time so: the best first."""
    terms: Terms
    seeded: bool
    """True if the caller or the configuration chose the seed."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is left to speak."""
        return not self.ways[0].text


def asked_of(message: pb.SynthesizeRequest, defaults: Defaults, *, stream: bool, client: str) -> Asked:
    """Everything that a message asks for. Raises InvalidRequest, UnsupportedEncoding."""
    request = request_of(message, defaults, stream=stream)
    ways = [request]
    if not message.segmentation and _is_adaptive(message, defaults.synthesis, stream=stream):
        ways = [replace(request, segmentation=s) for s in (Segmentation.UPSTREAM, Segmentation.LOW_LATENCY)]
    nfe, fewest = request.nfe, request.nfe
    if message.HasField("min_nfe_steps"):
        fewest = _within("min_nfe_steps", message.min_nfe_steps, 1, request.nfe)
    while nfe > fewest:
        nfe = max(min(int(nfe * FEWER_STEPS), nfe - 1), fewest)
        ways.append(replace(ways[-1], nfe=nfe))
    return Asked(tuple(ways), terms_of(message, client), _is_seeded(message, defaults.synthesis))


def request_id_of(message: pb.SynthesizeRequest) -> str:
    """The request's name, drawn where it has none. Raises InvalidRequest."""
    request_id = message.request_id or secrets.token_hex(6)
    if not REQUEST_ID.fullmatch(request_id):
        raise InvalidRequest("request_id", 'must be 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-"')
    return request_id


def terms_of(message: pb.SynthesizeRequest, client: str) -> Terms:
    """Return the scheduling terms of a request. Raises InvalidRequest."""
    request_id = request_id_of(message)
    if message.priority not in PRIORITIES:
        raise InvalidRequest("priority", f"must be BULK, NORMAL, HIGH or REALTIME, not {message.priority}")
    if message.playout not in (pb.PLAYOUT_UNSPECIFIED, pb.SERIAL, pb.OVERLAP):
        raise InvalidRequest("playout", f"must be SERIAL or OVERLAP, not {message.playout}")
    timeout_s = None
    if message.HasField("queue_timeout"):
        timeout_s = message.queue_timeout.seconds + message.queue_timeout.nanos / 1e9
        timeout_s = _within("queue_timeout", timeout_s, 0.0, MAX_QUEUE_TIMEOUT_S)
    priority = PRIORITIES[message.priority]
    is_bulk = priority is Priority.BULK and message.playout == pb.PLAYOUT_UNSPECIFIED
    overlaps = message.playout == pb.OVERLAP or is_bulk
    return Terms(
        request_id=request_id,
        client=client,
        channel=key("channel", message.channel),
        user=key("user_key", message.user_key),
        supersede=key("supersede_key", message.supersede_key),
        merge=key("merge_key", message.merge_key),
        priority=priority,
        playout=Playout.OVERLAP if overlaps else Playout.SERIAL,
        queue_timeout_s=timeout_s,
    )


def merge_count(message: pb.SynthesizeRequest) -> int:
    """Return the number of requests that this one counts for. Raises InvalidRequest."""
    return _within("merge_count", message.merge_count or 1, 1, MAX_MERGE_COUNT)


def text_of(message: pb.SynthesizeRequest, count: int) -> str:
    """Return the text that replaces so many merged requests."""
    if count == 1:
        return message.text
    if message.merge_text:
        return message.merge_text.replace("{count}", str(count))
    is_chinese = any("\u4e00" <= character <= "\u9fff" for character in message.text)
    text, end = message.text, ""
    if message.text_handling == pb.SSML:
        text, end, _ = text.rpartition("</speak>")
    return f"{text}，{count}次{end}" if is_chinese else f"{text}, {count} times{end}"


def request_of(message: pb.SynthesizeRequest, defaults: Defaults, *, stream: bool) -> Request:
    """The request that a message asks for. Raises InvalidRequest, UnsupportedEncoding."""
    synthesis = defaults.synthesis
    audio = message.audio_config
    nfe = message.nfe_steps if message.HasField("nfe_steps") else synthesis.nfe
    guidance = message.guidance if message.HasField("guidance") else defaults.guidance
    # Zero is what an absent field reads as, and neither rate can be zero.
    rate_hz = audio.sample_rate_hertz or defaults.sample_rate_hz
    encoding = _encoding(audio.encoding, stream=stream)
    speed = audio.speaking_rate or 1.0
    if message.text_handling not in HANDLINGS:
        raise InvalidRequest("text_handling", f"must be CHAT, VERBATIM or SSML, not {message.text_handling}")
    clean(message.text, limit_characters=synthesis.max_text_characters)
    check_pronunciations(message.pronunciations)
    words = {**defaults.pronunciations(message.voice), **message.pronunciations}
    spoken = defaults.speakable(message.text, HANDLINGS[message.text_handling], words)
    return Request(
        text=spoken.text,
        changes=spoken.changes,
        pauses=spoken.pauses,
        max_spoken_s=_within("max_spoken_seconds", message.max_spoken_seconds, 0.0, MAX_SPOKEN_S),
        voice=_voice(message.voice),
        nfe=_within("nfe_steps", nfe, 1, synthesis.max_nfe),
        seed=_seed(message, synthesis),
        guidance=_within("guidance", guidance, 0.0, MAX_GUIDANCE),
        segmentation=_segmentation(message.segmentation, synthesis, stream=stream),
        speaking_rate=_within("audio_config.speaking_rate", speed, MIN_SPEAKING_RATE, MAX_SPEAKING_RATE),
        encoding=encoding,
        sample_rate_hz=check_rate(rate_hz, encoding),
        stream=stream,
        word_timings=message.word_timings,
    )


def header_of(
    request: Request,
    terms: Terms,
    segments: int,
    backend: str,
    promised_s: float,
    words: Sequence[Word] = (),
    *,
    cached: bool = False,
) -> pb.Header:
    """Return the header that answers a request; `promised_s` is 0 where nothing is promised."""
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
        words=words_of(words),
        cached=cached,
        changes=[pb.TextChange(kind=c.kind, before=c.before, after=c.after) for c in request.changes],
        skipped_reason="" if request.text else NOTHING,
    )


def words_of(words: Sequence[Word]) -> list[pb.WordTiming]:
    """Word timings as messages."""
    return [
        pb.WordTiming(word=word.text, start_s=word.start_s, end_s=word.end_s, segment=word.segment)
        for word in words
    ]


def utterance_of(utterance: Utterance, now: float) -> pb.Utterance:
    """A request as those see it who watch the queue; `now` is the scheduler's clock."""
    job, terms = utterance.job, utterance.job.terms
    ended = utterance.state is State.ENDED
    now = now if job.channel.paused is None else job.channel.paused
    starts_s = 0.0 if ended or not math.isfinite(utterance.starts) else utterance.starts - now
    return pb.Utterance(
        request_id=terms.request_id,
        channel=terms.channel,
        user_key=terms.user,
        voice=job.voice,
        text=job.text,
        priority=pb.Priority.Name(terms.priority.value),
        state=pb.UtteranceState.Name(STATES[utterance.state]),
        starts_in_ms=1e3 * starts_s,
        length_ms=1e3 * job.audio_s,
        merged=job.merged,
        reason=reason_of(type(utterance.why)) if utterance.why else SPOKEN if ended else "",
    )


def timings_of(timings: Timings) -> pb.Timings:
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


def trailers_of(
    timings: Timings, terms: Terms, promised_s: float = 0.0, degraded: str = ""
) -> tuple[tuple[str, str], ...]:
    """The figures again as trailing metadata, for clients that read no messages but the audio.

    `degraded` says why they may be worse than usual, and is absent when it is empty.
    """
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


Number = TypeVar("Number", int, float)
Value = TypeVar("Value", Encoding, Segmentation)


def _within(field: str, value: Number, least: Number, most: Number) -> Number:
    # Written so that NaN is refused.
    if not least <= value <= most:
        raise InvalidRequest(field, f"must be between {least} and {most}, not {value}")
    return value


def _number(table: Mapping[int, Value], value: Value) -> int:
    return next(number for number, meaning in table.items() if meaning is value)


def _voice(voice: str) -> str:
    if not voice:
        raise InvalidRequest("voice", "is empty; name a registered voice (ListVoices lists them)")
    return voice


def _seed(message: pb.SynthesizeRequest, synthesis: SynthesisConfig) -> int:
    if message.HasField("seed"):
        return message.seed
    return secrets.randbits(SEED_BITS) if synthesis.seed is None else synthesis.seed


def _encoding(value: int, *, stream: bool) -> Encoding:
    if value == pb.AUDIO_ENCODING_UNSPECIFIED:
        return Encoding.PCM16 if stream else Encoding.WAV
    if value not in ENCODINGS:
        names = ", ".join(encoding.name for encoding in Encoding)
        raise UnsupportedEncoding(f"audio_config.encoding: {value} is not supported; {names} are")
    return check_encoding(ENCODINGS[value])


def key(field: str, value: str) -> str:
    """A channel, user or key as given. Raises InvalidRequest when it is too long."""
    if len(value) > MAX_KEY_CHARACTERS:
        raise InvalidRequest(field, f"has {len(value)} characters; at most {MAX_KEY_CHARACTERS} are allowed")
    return value


def _is_adaptive(message: pb.SynthesizeRequest, synthesis: SynthesisConfig, *, stream: bool) -> bool:
    return stream and synthesis.stream_segmentation == "adaptive" and not _is_seeded(message, synthesis)


def _is_seeded(message: pb.SynthesizeRequest, synthesis: SynthesisConfig) -> bool:
    return message.HasField("seed") or synthesis.seed is not None


def _segmentation(value: int, synthesis: SynthesisConfig, *, stream: bool) -> Segmentation:
    if value == pb.SEGMENTATION_UNSPECIFIED:
        wanted = synthesis.stream_segmentation if stream else synthesis.unary_segmentation
        return Segmentation.LOW_LATENCY if wanted == "adaptive" else Segmentation(wanted)
    if value not in SEGMENTATIONS:
        raise InvalidRequest("segmentation", f"must be UPSTREAM or LOW_LATENCY, not {value}")
    return SEGMENTATIONS[value]

"""Messages → domain: every field checked, every default filled in; and back."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from appliance.audio.encode import check_rate
from appliance.config import MAX_GUIDANCE, SynthesisConfig
from appliance.contract.schedule import MAX_NFE
from appliance.errors import InvalidRequest, UnsupportedEncoding
from appliance.job import Encoding, Request, Segmentation, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.text.clean import clean

MIN_SPEAKING_RATE, MAX_SPEAKING_RATE = 0.25, 4.0
SEED_BITS = 32  # for seeds drawn here: exact in every client's numbers, also in JavaScript's

ENCODINGS: dict[int, Encoding] = {pb.WAV: Encoding.WAV, pb.PCM16: Encoding.PCM16}
SEGMENTATIONS: dict[int, Segmentation] = {
    pb.UPSTREAM: Segmentation.UPSTREAM,
    pb.LOW_LATENCY: Segmentation.LOW_LATENCY,
}


@dataclass(frozen=True)
class Defaults:
    """What a request gets that does not say otherwise."""

    synthesis: SynthesisConfig
    guidance: float
    sample_rate_hz: int


def request_of(message: pb.SynthesizeRequest, defaults: Defaults, *, stream: bool) -> Request:
    """The request that a message asks for. Raises InvalidRequest, UnsupportedEncoding."""
    synthesis = defaults.synthesis
    audio = message.audio_config
    nfe = message.nfe_steps if message.HasField("nfe_steps") else synthesis.nfe
    guidance = message.guidance if message.HasField("guidance") else defaults.guidance
    # Zero is what an absent field reads as, and neither rate can be zero.
    rate_hz = audio.sample_rate_hertz or defaults.sample_rate_hz
    speed = audio.speaking_rate or 1.0
    return Request(
        text=clean(message.text, limit_characters=synthesis.max_text_characters),
        voice=_voice(message.voice),
        nfe=_within("nfe_steps", nfe, 1, MAX_NFE),
        seed=_seed(message, synthesis),
        guidance=_within("guidance", guidance, 0.0, MAX_GUIDANCE),
        segmentation=_segmentation(message.segmentation, synthesis, stream=stream),
        speaking_rate=_within("audio_config.speaking_rate", speed, MIN_SPEAKING_RATE, MAX_SPEAKING_RATE),
        encoding=_encoding(audio.encoding, stream=stream),
        sample_rate_hz=check_rate(rate_hz),
    )


def header_of(request: Request, segments: int, backend: str) -> pb.Header:
    """What the daemon made of a request."""
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
    )


def trailers_of(timings: Timings, degraded: str = "") -> tuple[tuple[str, str], ...]:
    """The figures again as trailing metadata, for clients that read no messages but the audio.

    `degraded` says why they may be worse than usual, and is absent when it is empty.
    """
    synth_s = timings.condition_s + timings.steps_s + timings.vocoder_s
    return (
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
        raise UnsupportedEncoding(f"audio_config.encoding: {value} is not supported; WAV and PCM16 are")
    return ENCODINGS[value]


def _segmentation(value: int, synthesis: SynthesisConfig, *, stream: bool) -> Segmentation:
    if value == pb.SEGMENTATION_UNSPECIFIED:
        return Segmentation(synthesis.stream_segmentation if stream else synthesis.unary_segmentation)
    if value not in SEGMENTATIONS:
        raise InvalidRequest("segmentation", f"must be UPSTREAM or LOW_LATENCY, not {value}")
    return SEGMENTATIONS[value]

"""Options, events and replies of both clients, from and to protocol messages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypedDict, cast, get_args

from google.protobuf.message import Message

from appliance.audio.tags import KEY
from appliance.audio.wav import SAMPLE_BYTES
from appliance.encodings import EncodingName
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.appliance_pb2 import (
    End,
    Header,
    PausedChannels,
    Timings,
    UtteranceAudio,
    UtteranceBegin,
    UtteranceEnd,
    WordTiming,
)

Encoding = EncodingName
ENCODINGS: tuple[str, ...] = get_args(Encoding)
Priority = Literal["bulk", "normal", "high", "realtime"]
PRIORITIES: tuple[str, ...] = get_args(Priority)

FIELDS: tuple[str, ...] = (
    *pb.SynthesizeRequest.DESCRIPTOR.fields_by_name,
    *pb.AudioConfig.DESCRIPTOR.fields_by_name,
)


class FieldOptions(TypedDict, total=False):
    """Options by fields' names, where `Options` has shorter ones."""

    sample_rate_hertz: int | None
    speaking_rate: float | None
    language_code: str | None
    nfe_steps: int | None
    min_nfe_steps: int | None
    user_key: str | None
    max_spoken_seconds: float | None
    supersede_key: str | None
    merge_key: str | None


SHORT: Mapping[str, str] = {
    "sample_rate_hertz": "rate",
    "speaking_rate": "speed",
    "language_code": "language",
    "nfe_steps": "nfe",
    "min_nfe_steps": "min_nfe",
    "user_key": "user",
    "max_spoken_seconds": "max_spoken",
    "supersede_key": "supersede",
    "merge_key": "merge",
}
"""Field → its short option."""


class Options(FieldOptions, total=False):
    """Options of `speak`, `stream`, `session`. None or absent: the daemon's default."""

    encoding: Encoding | None
    """Default: WAV from `speak`, PCM16 from `stream`."""
    rate: int | None
    """Hz; default: the model's."""
    speed: float | None
    """Speaking rate, 0.25 to 4; above 1 is faster."""
    nfe: int | None
    """Function evaluations, up to the daemon's `synthesis.max_nfe`."""
    seed: int | None
    guidance: float | None
    segmentation: Literal["upstream", "low_latency"] | None
    priority: Priority | None
    channel: str | None
    """Player, whose replies follow one another."""
    user: str | None
    """Author of the message, for rate limits."""
    text_handling: Literal["chat", "verbatim", "ssml"] | None
    """Default: chat."""
    language: str | None
    """BCP 47: "de"; default: the bundle's."""
    style: str | None
    """Recording of the voice to begin with; default: its own, "neutral"."""
    pronunciations: Mapping[str, str] | None
    """Spoken form by word."""
    max_spoken: float | None
    """Seconds of speech to which the text is cut, at a clause."""
    gain_db: float | None
    """Louder or quieter than the daemon's loudness: -20 to 20."""
    supersede: str | None
    """Key: abort this channel's waiting requests with it."""
    merge: str | None
    """Key: speak for this channel's waiting requests with it."""
    merge_count: int | None
    merge_text: str | None
    """Text for several, with "{count}"."""
    queue_timeout: float | None
    """Seconds by which the first sound may miss its target."""
    min_nfe: int | None
    """Fewest steps to take rather than a refusal."""
    playout: Literal["serial", "overlap"] | None
    request_id: str | None
    """Id for `cancel`: 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-"."""
    word_timings: bool | None
    """Fill `words` of header, end and reply."""


@dataclass(frozen=True)
class Piece:
    data: bytes
    sample_offset: int
    """Samples that were encoded before `data`."""
    segment: int
    arrived: float
    """time.monotonic() when it was read."""


Event = Header | Piece | End
Received = Iterable[tuple[str, str | bytes]]
"""Initial metadata of a call."""
Heard = PausedChannels | UtteranceBegin | UtteranceAudio | UtteranceEnd
"""Messages of `listen`; see appliance.proto."""


@dataclass(frozen=True)
class Reply:
    """Times are seconds from the call."""

    audio: bytes
    header: Header
    timings: Timings
    wall_s: float
    first_audio_s: float
    """Equal to `wall_s` for a reply in one message."""
    words: Sequence[WordTiming] = ()
    """With the option `word_timings`."""
    mark: str = ""
    """The daemon's statement that the audio is synthetic; empty: it makes none."""

    @property
    def audio_s(self) -> float:
        """From the size of PCM16, otherwise the daemon's figure."""
        if self.header.encoding != pb.PCM16:
            return self.timings.audio_ms / 1e3
        rate_hz = self.header.sample_rate_hertz
        return len(self.audio) / SAMPLE_BYTES / rate_hz if rate_hz else 0.0


def synthesize_request(text: str, voice: str, options: Options) -> pb.SynthesizeRequest:
    """Build the message. Raises TypeError for unknown options, ValueError, OverflowError."""
    if unknown := options.keys() - Options.__annotations__.keys():
        valid = ", ".join(Options.__annotations__)
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}; valid options: {valid}")
    if doubled := [name for name in options if SHORT.get(name) in options]:
        raise TypeError(f"{doubled[0]} and {SHORT[doubled[0]]} are the same option")
    options = cast("Options", {SHORT.get(name, name): value for name, value in options.items()})
    queue_timeout = options.get("queue_timeout")
    return pb.SynthesizeRequest(
        text=text,
        voice=voice,
        audio_config={
            "encoding": _upper(options.get("encoding")),
            "sample_rate_hertz": options.get("rate"),
            "speaking_rate": options.get("speed"),
        },
        nfe_steps=options.get("nfe"),
        seed=options.get("seed"),
        guidance=options.get("guidance"),
        segmentation=_upper(options.get("segmentation")),
        priority=_upper(options.get("priority")),
        channel=options.get("channel"),
        user_key=options.get("user"),
        text_handling=_upper(options.get("text_handling")),
        language_code=options.get("language"),
        style=options.get("style"),
        pronunciations=options.get("pronunciations"),
        max_spoken_seconds=options.get("max_spoken"),
        gain_db=options.get("gain_db"),
        supersede_key=options.get("supersede"),
        merge_key=options.get("merge"),
        merge_count=options.get("merge_count"),
        merge_text=options.get("merge_text"),
        queue_timeout=None if queue_timeout is None else timedelta(seconds=queue_timeout),
        min_nfe_steps=options.get("min_nfe"),
        playout=_upper(options.get("playout")),
        request_id=options.get("request_id"),
        word_timings=bool(options.get("word_timings")),
    )


def event_of(message: pb.StreamSynthesizeResponse | pb.SessionResponse) -> Event:
    arrived = time.monotonic()
    if message.HasField("audio"):
        audio = message.audio
        return Piece(audio.data, audio.sample_offset, audio.segment, arrived)
    return message.header if message.HasField("header") else message.end


def heard_of(response: pb.ListenResponse) -> Heard:
    kind = response.WhichOneof("message")
    if kind == "begin":
        return response.begin
    if kind == "audio":
        return response.audio
    return response.end if kind == "end" else response.paused


def whole_reply(response: pb.SynthesizeResponse, begun: float, metadata: Received) -> Reply:
    """`begun`: time.monotonic() at the call; `metadata`: the call's initial."""
    wall_s, mark = time.monotonic() - begun, _mark(metadata)
    return Reply(response.audio, response.header, response.timings, wall_s, wall_s, response.words, mark)


def streamed_reply(events: Sequence[Event], begun: float, metadata: Received) -> Reply:
    """`begun`: time.monotonic() at the call; `metadata`: the call's initial."""
    wall_s = time.monotonic() - begun
    pieces = [event for event in events if isinstance(event, Piece)]
    header = next((event for event in events if isinstance(event, Header)), Header())
    end = next((event for event in events if isinstance(event, End)), End())
    first_audio_s = pieces[0].arrived - begun if pieces else wall_s
    audio = b"".join(piece.data for piece in pieces)
    return Reply(audio, header, end.timings, wall_s, first_audio_s, end.words, _mark(metadata))


def _mark(metadata: Received) -> str:
    return next((str(value) for key, value in metadata if key == KEY), "")


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON holds it: bytes in base64, enumerations by name, 64-bit integers as strings."""
    from google.protobuf import json_format

    fields: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields


def _upper(name: str | None) -> str | None:
    return name and name.upper()

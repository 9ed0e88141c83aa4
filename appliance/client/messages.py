"""Options, events and replies of both clients, from and to protocol messages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message

from appliance.audio.tags import KEY
from appliance.audio.wav import SAMPLE_BYTES
from appliance.options import OPTIONS, SHORT, Option, OptionKind, Options
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


@dataclass(frozen=True)
class Piece:
    """A message of audio."""

    data: bytes
    sample_offset: int
    """Number of samples before `data`."""
    segment: int
    arrived: float
    """Time of time.monotonic() at which the piece arrived."""
    rest_is_made: bool = False
    """True in the first piece of a finished reply; the rest follows at once."""


Event = Header | Piece | End
Received = Iterable[tuple[str, str | bytes]]
"""Initial metadata of a call."""
Heard = PausedChannels | UtteranceBegin | UtteranceAudio | UtteranceEnd
"""Messages of `listen`; see appliance.proto."""


@dataclass(frozen=True)
class Reply:
    """A whole reply. Times are in seconds from the call."""

    audio: bytes
    header: Header
    timings: Timings
    wall_s: float
    """Seconds until the whole reply had arrived."""
    first_audio_s: float
    """Seconds until the first audio arrived; equal to `wall_s` if the reply came in one message."""
    words: Sequence[WordTiming] = ()
    """Words of the reply, if the option `word_timings` is set."""
    mark: str = ""
    """The daemon's statement that the audio is synthetic; "" if it has none."""

    @property
    def audio_s(self) -> float:
        """Seconds of audio: computed for PCM16, otherwise the daemon's figure."""
        if self.header.encoding != pb.PCM16:
            return self.timings.audio_ms / 1e3
        rate_hz = self.header.sample_rate_hertz
        return len(self.audio) / SAMPLE_BYTES / rate_hz if rate_hz else 0.0


def synthesize_request(text: str, voice: str, options: Options) -> pb.SynthesizeRequest:
    """Message of a request. Raises TypeError for unknown options, ValueError, OverflowError."""
    if unknown := options.keys() - Options.__annotations__.keys():
        valid = ", ".join(Options.__annotations__)
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}; valid options: {valid}")
    if doubled := [name for name in options if SHORT.get(name) in options]:
        raise TypeError(f"{doubled[0]} and {SHORT[doubled[0]]} are the same option")
    values = {SHORT.get(name, name): value for name, value in options.items()}
    fields: dict[str, Any] = {"text": text, "voice": voice, "audio_config": {}}
    for option in OPTIONS:
        if (value := values.get(option.name)) is not None:
            message = fields["audio_config"] if option.field != option.own else fields
            message[option.own] = _in_message(option, value)
    return pb.SynthesizeRequest(**fields)


def _in_message(option: Option, value: Any) -> Any:
    if option.kind is OptionKind.CHOICE:
        return value.upper()
    if option.kind is OptionKind.DURATION:
        return timedelta(seconds=value)
    return bool(value) if option.kind is OptionKind.FLAG else value


def event_of(message: pb.StreamSynthesizeResponse | pb.SessionResponse) -> Event:
    arrived = time.monotonic()
    if message.HasField("audio"):
        audio = message.audio
        return Piece(audio.data, audio.sample_offset, audio.segment, arrived, audio.rest_is_made)
    return message.header if message.HasField("header") else message.end


def heard_of(response: pb.ListenResponse) -> Heard:
    heard: Heard = getattr(response, response.WhichOneof("message") or "paused")
    return heard


def whole_reply(response: pb.SynthesizeResponse, begun: float, metadata: Received) -> Reply:
    """Reply in one message.

    `begun`: time.monotonic() at the call; `metadata`: the call's initial metadata.
    """
    wall_s, mark = time.monotonic() - begun, _mark(metadata)
    return Reply(response.audio, response.header, response.timings, wall_s, wall_s, response.words, mark)


def streamed_reply(events: Sequence[Event], begun: float, metadata: Received) -> Reply:
    """Reply from a stream. `begun`: time.monotonic() at the call; `metadata`: the call's initial metadata."""
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
    """Message as JSON has it: bytes in base64, enumerations by name, 64-bit integers as strings."""
    from google.protobuf import json_format

    fields: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields

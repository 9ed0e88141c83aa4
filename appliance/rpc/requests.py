"""Messages → wishes: checks types, ranges, enums and ids. It needs no bundle and reads no disk."""

from __future__ import annotations

import re
import secrets
from dataclasses import fields

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from appliance.audio.encode import check_encoding
from appliance.encodings import Encoding
from appliance.errors import InvalidRequest, UnsupportedEncoding
from appliance.options import BY_FIELD, MAX_KEY_CHARACTERS, OptionKind
from appliance.request import Handling, Playout, Priority, Segmentation, Terms
from appliance.rpc import appliance_pb2 as pb
from appliance.speech.wish import UNSET, Wish, within

ENCODINGS = {pb.AudioEncoding.Value(one.name): one for one in Encoding}
SEGMENTATIONS = {pb.Segmentation.Value(one.name): one for one in Segmentation}
HANDLINGS = {0: Handling.CHAT, **{pb.TextHandling.Value(one.name): one for one in Handling}}
PRIORITIES = {0: Priority.NORMAL, **{pb.Priority.Value(one.name): one for one in Priority}}
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{1,8}){0,4}")
"""Form of BCP 47's tags, and of locales."""

SAME = [
    one
    for one in pb.SynthesizeRequest.DESCRIPTOR.fields
    if one.enum_type is None and one.name in (own.name for own in fields(Wish))
]
"""Fields that a wish copies unchanged."""


def wish_of(message: pb.SynthesizeRequest, *, stream: bool, client: str, caller: str, reach: str) -> Wish:
    """Wish of a caller, whose connection is `client`. Raises InvalidRequest, UnsupportedEncoding."""
    terms, audio = terms_of(message, client, caller, reach), message.audio_config
    encoding = _encoding(audio.encoding, stream=stream)
    check_options(message, later="nfe_steps")  # its limit is in the configuration
    if message.language_code and not LANGUAGE.fullmatch(message.language_code):
        shown = repr(message.language_code[:64])
        raise InvalidRequest("language_code", f'must be a tag like "de" or "pt-BR", not {shown}')
    present = [one.name for one in SAME if not one.has_presence or message.HasField(one.name)]
    return Wish(
        **{name: getattr(message, name) for name in present},
        terms=terms,
        stream=stream,
        encoding=encoding,
        handling=HANDLINGS[message.text_handling],
        segmentation=SEGMENTATIONS.get(message.segmentation, UNSET),
        # An absent field reads as zero, and no rate can be zero.
        sample_rate_hz=audio.sample_rate_hertz or UNSET,
        speaking_rate=audio.speaking_rate or 1.0,
    )


def check_options(message: Message, path: str = "", later: str = "") -> None:
    """Check all fields that are set, except `later`, by their rows in OPTIONS. Raises InvalidRequest."""
    for descriptor, value in message.ListFields():
        option = BY_FIELD.get(path + descriptor.name)
        if descriptor.name == "audio_config":
            check_options(value, "audio_config.")
        elif option is None or option.field == later:
            continue
        elif option.kind is OptionKind.KEY:
            checked_key(option.field, value)
        elif descriptor.enum_type is not None and value not in descriptor.enum_type.values_by_number:
            *others, last = (choice.upper() for choice in option.choices)
            raise InvalidRequest(option.field, f"must be {', '.join(others)} or {last}, not {value}")
        elif option.between is not None:
            number = _seconds(value) if option.kind is OptionKind.DURATION else value
            within(option.field, number, *option.between)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def terms_of(message: pb.SynthesizeRequest, client: str, caller: str, reach: str) -> Terms:
    """Terms of a message, whose options may still be invalid. Raises InvalidRequest."""
    request_id = message.request_id or secrets.token_hex(6)
    if not REQUEST_ID.fullmatch(request_id):
        raise InvalidRequest("request_id", 'must be 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-"')
    timeout_s = _seconds(message.queue_timeout) if message.HasField("queue_timeout") else None
    priority = PRIORITIES.get(message.priority, Priority.NORMAL)
    is_bulk = priority is Priority.BULK and message.playout == pb.PLAYOUT_UNSPECIFIED
    overlaps = message.playout == pb.OVERLAP or is_bulk
    return Terms(
        request_id=request_id,
        client=client,
        caller=caller,
        reach=reach,
        channel=message.channel,
        user=message.user_key,
        supersede=message.supersede_key,
        merge=message.merge_key,
        priority=priority,
        playout=Playout.OVERLAP if overlaps else Playout.SERIAL,
        queue_timeout_s=timeout_s,
    )


def _encoding(value: int, *, stream: bool) -> Encoding:
    if value == pb.AUDIO_ENCODING_UNSPECIFIED:
        return Encoding.PCM16 if stream else Encoding.WAV
    if value not in ENCODINGS:
        names = ", ".join(encoding.name for encoding in Encoding)
        raise UnsupportedEncoding(f"audio_config.encoding: {value} is not supported; {names} are")
    return check_encoding(ENCODINGS[value])


def checked_key(field: str, value: str) -> str:
    """The value, unchanged. Raises InvalidRequest if it is too long."""
    if len(value) > MAX_KEY_CHARACTERS:
        raise InvalidRequest(field, f"has {len(value)} characters; at most {MAX_KEY_CHARACTERS} are allowed")
    return value

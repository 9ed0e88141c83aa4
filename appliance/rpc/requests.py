"""Messages → wishes: types, ranges, enums and ids are checked, without a bundle and without the disk."""

from __future__ import annotations

import re
import secrets
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from appliance.audio.encode import check_encoding
from appliance.encodings import Encoding
from appliance.errors import InvalidRequest, UnsupportedEncoding
from appliance.options import BY_FIELD, MAX_KEY_CHARACTERS, OptionKind
from appliance.request import Handling, Playout, Priority, Segmentation, Terms
from appliance.rpc import appliance_pb2 as pb
from appliance.speech.wish import NOT_SAID, Choices, Wish, within

ENCODINGS: dict[int, Encoding] = {pb.AudioEncoding.Value(encoding.name): encoding for encoding in Encoding}
SEGMENTATIONS: dict[int, Segmentation] = {
    pb.UPSTREAM: Segmentation.UPSTREAM,
    pb.LOW_LATENCY: Segmentation.LOW_LATENCY,
}
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
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{1,8}){0,4}")
"""Form of BCP 47's tags, and of locales."""


def wish_of(message: pb.SynthesizeRequest, *, stream: bool, client: str, caller: str, reach: str) -> Wish:
    """Return the wish of a caller, who calls over the connection `client`.

    Raises InvalidRequest, UnsupportedEncoding.
    """
    terms = terms_of(message, client, caller, reach)
    audio, encoding = message.audio_config, _encoding(message.audio_config.encoding, stream=stream)
    check_options(message)
    language = message.language_code
    if language and not LANGUAGE.fullmatch(language):
        raise InvalidRequest("language_code", f'must be a tag like "de" or "pt-BR", not {language[:64]!r}')
    return Wish(
        terms=terms,
        text=message.text,
        voice=message.voice,
        stream=stream,
        encoding=encoding,
        style=message.style,
        language=language,
        handling=HANDLINGS[message.text_handling],
        pronunciations=message.pronunciations,
        voice_tags=message.voice_tags,
        merge_text=message.merge_text,
        merge_count=message.merge_count or 1,
        merge_count_is_total=message.merge_count_is_total,
        choices=Choices(
            nfe=_said(message, "nfe_steps"),
            guidance=_said(message, "guidance"),
            seed=_said(message, "seed"),
            # Zero is what an absent field reads as, and no rate is zero.
            sample_rate_hz=audio.sample_rate_hertz or NOT_SAID,
        ),
        segmentation=SEGMENTATIONS.get(message.segmentation, NOT_SAID),
        min_nfe=_said(message, "min_nfe_steps"),
        speaking_rate=audio.speaking_rate or 1.0,
        max_spoken_s=message.max_spoken_seconds,
        gain_db=message.gain_db,
        word_timings=message.word_timings,
    )


def _said(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else NOT_SAID


def check_options(message: Message, path: str = "") -> None:
    """Check what is set by its row in OPTIONS. Raises InvalidRequest."""
    for descriptor, value in message.ListFields():
        option = BY_FIELD.get(path + descriptor.name)
        if descriptor.name == "audio_config":
            check_options(value, "audio_config.")
        elif option is None:
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
    """Terms of a message whose options are not checked yet. Raises InvalidRequest."""
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
    """Value as it is. Raises InvalidRequest when it is too long."""
    if len(value) > MAX_KEY_CHARACTERS:
        raise InvalidRequest(field, f"has {len(value)} characters; at most {MAX_KEY_CHARACTERS} are allowed")
    return value

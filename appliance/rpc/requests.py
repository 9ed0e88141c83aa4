"""Request messages → domain: every field is checked, every default filled in."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from appliance.audio.encode import check_encoding, check_rate
from appliance.config import AudioConfig, SynthesisConfig
from appliance.contract.sampler import Sampler
from appliance.encodings import Encoding
from appliance.errors import InvalidRequest, UnsupportedEncoding
from appliance.options import AUTO, BY_FIELD, MAX_KEY_CHARACTERS, OptionKind
from appliance.request import (
    AT_FIRST,
    Handling,
    Playout,
    Priority,
    ReplyLevel,
    Request,
    Segmentation,
    Spoken,
    Switch,
    Terms,
)
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.turns import Work
from appliance.text.normalise import clean, normalise
from appliance.text.polyglot import LanguageTable
from appliance.text.pronounce import check as check_pronunciations
from appliance.text.styles import NEUTRAL, Others, Voiced

SEED_BITS = 32
"""Size of drawn seeds: exact in every client's numbers, also in JavaScript's."""

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
HAN, KANA = re.compile("[\u4e00-\u9fff]"), re.compile("[\u3041-\u30ff]")
FEWER_STEPS = 0.75
"""Ratio of steps from one way to serve a request to the next."""
WORD, VOICE, LOOKUP = 12, 50, 1_000
"""Characters that take as long to read as a pronunciation, another voice, a file on a slow disk."""
VOICE_NAME = re.compile(r"""\bvoice\s*(?::|name\s*=\s*["'])\s*([\w-]+)""", re.IGNORECASE)
"""Name in a tag that switches the voice."""

Speakable = Callable[[str, Handling, Mapping[str, str], str, Collection[str], "Others | None", str], Spoken]
"""As FrontEnd.speakable."""


def as_written(text: str, *_: object) -> Spoken:
    return Spoken(normalise(text))


@dataclass(frozen=True)
class RequestDefaults:
    synthesis: SynthesisConfig
    nfe: int
    guidance: float
    sample_rate_hz: int
    speakable: Speakable = as_written
    languages: tuple[str, ...] = ()
    """Codes of those in force; none: unknown."""
    language_of: Callable[[str], str] = lambda text: ""
    """Code of the one that a text is written in, or ""."""
    pronunciations: Callable[[str], Mapping[str, str]] = lambda voice: {}
    """By voice; none where there is no such voice."""
    styles: Callable[[str], Collection[str]] = lambda voice: ()
    """By voice, those that can be used; none where there is no such voice."""
    is_voice: Callable[[str], bool] = lambda voice: False
    """True for a stored voice that can be used."""
    by_language: LanguageTable | None = None
    """Voices of requests that leave it to their text."""
    sampler: Sampler = field(default_factory=Sampler)
    audio: AudioConfig = field(default_factory=AudioConfig)


def merged_with(message: pb.SynthesizeRequest, waiting: int) -> int:
    """Count of what is spoken in place of a request that stands for `waiting` so far."""
    count = message.merge_count or 1
    return max(count, waiting) if message.merge_count_is_total else count + waiting


def resolved(message: pb.SynthesizeRequest, defaults: RequestDefaults) -> tuple[pb.SynthesizeRequest, str]:
    """The message, with voice, style and language of its text's row if it names no voice; the row's bundle.

    Raises InvalidRequest.
    """
    voice = message.voice.lower()
    if defaults.by_language is None or voice not in ("", AUTO) or (voice and defaults.is_voice(voice)):
        return message, ""
    language = _language(message.language_code)
    code, row = defaults.by_language.of(message.text, message.channel, language)
    style, language = message.style or row.style, language or code
    return changed(message, voice=row.voice, style=style, language_code=language), str(row.bundle or "")


def changed(message: pb.SynthesizeRequest, **fields: str) -> pb.SynthesizeRequest:
    """A copy of a message with other values of these fields."""
    whole = pb.SynthesizeRequest()
    whole.CopyFrom(message)
    for name, value in fields.items():
        setattr(whole, name, value)
    return whole


def read(
    message: pb.SynthesizeRequest, defaults: RequestDefaults, count: int, *, stream: bool, begin: Switch
) -> Work[tuple[Request, ...]]:
    """Ways to serve a message that speaks for `count` merged requests; looks up its voices in slices.

    Raises what `ways_of` raises.
    """
    for name in VOICE_NAME.findall(message.text) if message.voice_tags else ():
        yield VOICE
        defaults.is_voice(name.lower())
    if count > 1:
        message = changed(message, text=merged_text(message, count))
    return ways_of(message, defaults, stream=stream, begin=begin)


def ways_of(
    message: pb.SynthesizeRequest, defaults: RequestDefaults, *, stream: bool, begin: Switch = AT_FIRST
) -> tuple[Request, ...]:
    """Ways to serve a message, the best first: by segmentation where that is adaptive, then fewer steps.

    Raises InvalidRequest, UnsupportedEncoding.
    """
    synthesis, request = defaults.synthesis, request_of(message, defaults, stream=stream, begin=begin)
    ways = [request]
    is_adaptive = stream and synthesis.stream_segmentation == "adaptive"
    if is_adaptive and not message.segmentation and not is_seeded(message, synthesis):
        ways = [replace(request, segmentation=s) for s in (Segmentation.UPSTREAM, Segmentation.LOW_LATENCY)]
    if message.HasField("min_nfe_steps"):
        fewest = _within("min_nfe_steps", message.min_nfe_steps, 1, request.nfe)
        ways += [replace(ways[-1], nfe=nfe) for nfe in _fewer(request.nfe, fewest, defaults.sampler.steps)]
    return tuple(ways)


def _fewer(nfe: int, fewest: int, allowed: tuple[int, ...]) -> Iterator[int]:
    """Numbers of steps below `nfe`, falling; `allowed` empty: any."""
    yield from (steps for steps in reversed(allowed) if fewest <= steps < nfe)
    while nfe > fewest and not allowed:
        nfe = max(min(int(nfe * FEWER_STEPS), nfe - 1), fewest)
        yield nfe


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
            _within(option.field, number, *option.between)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def request_id_of(message: pb.SynthesizeRequest) -> str:
    """Message's id, or a new one. Raises InvalidRequest."""
    request_id = message.request_id or secrets.token_hex(6)
    if not REQUEST_ID.fullmatch(request_id):
        raise InvalidRequest("request_id", 'must be 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-"')
    return request_id


def terms_of(message: pb.SynthesizeRequest, client: str, caller: str) -> Terms:
    """Terms of a message whose options may still be refused. Raises InvalidRequest."""
    request_id = request_id_of(message)
    timeout_s = _seconds(message.queue_timeout) if message.HasField("queue_timeout") else None
    priority = PRIORITIES.get(message.priority, Priority.NORMAL)
    is_bulk = priority is Priority.BULK and message.playout == pb.PLAYOUT_UNSPECIFIED
    overlaps = message.playout == pb.OVERLAP or is_bulk
    return Terms(
        request_id=request_id,
        client=client,
        caller=caller,
        channel=message.channel,
        user=message.user_key,
        supersede=message.supersede_key,
        merge=message.merge_key,
        priority=priority,
        playout=Playout.OVERLAP if overlaps else Playout.SERIAL,
        queue_timeout_s=timeout_s,
    )


def size_of(message: pb.SynthesizeRequest) -> int:
    """Characters that reading a message amounts to."""
    size = len(message.text) + len(message.merge_text) + WORD * len(message.pronunciations)
    return size + LOOKUP * may_hold_tags(message)


def merged_text(message: pb.SynthesizeRequest, count: int) -> str:
    if message.merge_text:
        return message.merge_text.replace("{count}", str(count))
    text, end = message.text, ""
    if message.text_handling == pb.SSML:
        text, end, _ = text.rpartition("</speak>")
    is_chinese = HAN.search(message.text) and not KANA.search(message.text)
    # The text's language has the words: "three times", "dreimal".
    return f"{text}，{count}次{end}" if is_chinese else f"{text}, {count}x{end}"


def request_of(
    message: pb.SynthesizeRequest, defaults: RequestDefaults, *, stream: bool, begin: Switch = AT_FIRST
) -> Request:
    """Raises InvalidRequest, UnsupportedEncoding."""
    synthesis = defaults.synthesis
    audio = message.audio_config
    nfe = message.nfe_steps if message.HasField("nfe_steps") else defaults.nfe
    guidance = message.guidance if message.HasField("guidance") else defaults.guidance
    nfe = _within("nfe_steps", nfe, 1, synthesis.max_nfe)
    # Zero is what an absent field reads as, and neither rate can be zero.
    rate_hz = audio.sample_rate_hertz or defaults.sample_rate_hz
    encoding = _encoding(audio.encoding, stream=stream)
    check_options(message)
    written = clean(message.text, limit_characters=synthesis.max_text_characters)
    check_pronunciations(message.pronunciations)
    handling, language = HANDLINGS[message.text_handling], _language(message.language_code)
    # The last tag of a session may have named a style of another language's voice.
    if begin.style and begin.style not in defaults.styles(begin.voice or message.voice):
        begin = AT_FIRST
    own = _voiced(message, defaults, begin.voice or message.voice)
    others = _others(message, defaults) if message.voice_tags and may_hold_tags(message) else None
    spoken = defaults.speakable(message.text, handling, own.words, language, own.styles, others, begin.voice)
    style = message.style.lower()
    return Request(
        text=spoken.text,
        written=spoken.text if handling is Handling.SSML else written,
        changes=spoken.changes,
        pauses=spoken.pauses,
        directions=spoken.directions,
        style="" if style == NEUTRAL else style,
        switches=spoken.switches if begin == AT_FIRST else (begin, *spoken.switches),
        max_spoken_s=message.max_spoken_seconds,
        voice=_voice(message.voice),
        nfe=_allowed("nfe_steps", nfe, defaults.sampler.check_steps),
        seed=_seed(message, synthesis),
        guidance=_allowed("guidance", guidance, defaults.sampler.check_strength),
        segmentation=_segmentation(message.segmentation, synthesis, stream=stream),
        speaking_rate=audio.speaking_rate or 1.0,
        encoding=encoding,
        sample_rate_hz=check_rate(rate_hz, encoding),
        stream=stream,
        word_timings=message.word_timings,
        level=_level(message, defaults.audio),
    )


def may_hold_tags(message: pb.SynthesizeRequest) -> bool:
    """True if voices and styles are to be looked up, which are on the disk."""
    text, handling = message.text + message.merge_text, message.text_handling
    return handling != pb.VERBATIM and ("[" in text or (message.voice_tags and handling == pb.SSML))


def _voiced(message: pb.SynthesizeRequest, defaults: RequestDefaults, voice: str) -> Voiced:
    words = {**defaults.pronunciations(voice), **message.pronunciations}
    return Voiced(words, defaults.styles(voice) if may_hold_tags(message) else ())


def _others(message: pb.SynthesizeRequest, defaults: RequestDefaults) -> Others:
    @cache
    def voiced(name: str) -> Voiced | None:
        is_known = not name or defaults.is_voice(name)
        return _voiced(message, defaults, name or message.voice) if is_known else None

    return voiced


Number = TypeVar("Number", int, float)


def _within(field: str, value: Number, least: Number, most: Number) -> Number:
    # Written so that NaN is refused.
    if not least <= value <= most:
        raise InvalidRequest(field, f"must be between {least} and {most}, not {value}")
    return value


def _allowed(field: str, value: Number, check: Callable[[Number], None]) -> Number:
    try:
        check(value)
    except ValueError as error:
        raise InvalidRequest(field, str(error)) from None
    return value


def _level(message: pb.SynthesizeRequest, audio: AudioConfig) -> ReplyLevel:
    return ReplyLevel(audio.loudness_lufs, message.gain_db + audio.channel_gain_db.get(message.channel, 0.0))


def _voice(voice: str) -> str:
    if not voice:
        raise InvalidRequest("voice", "is empty; name a registered voice (ListVoices lists them)")
    return voice


def _language(code: str) -> str:
    if code and not LANGUAGE.fullmatch(code):
        raise InvalidRequest("language_code", f'must be a tag like "de" or "pt-BR", not {code[:64]!r}')
    return code


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


def checked_key(field: str, value: str) -> str:
    """Value as it is. Raises InvalidRequest when it is too long."""
    if len(value) > MAX_KEY_CHARACTERS:
        raise InvalidRequest(field, f"has {len(value)} characters; at most {MAX_KEY_CHARACTERS} are allowed")
    return value


def is_seeded(message: pb.SynthesizeRequest, synthesis: SynthesisConfig) -> bool:
    return message.HasField("seed") or synthesis.seed is not None


def _segmentation(value: int, synthesis: SynthesisConfig, *, stream: bool) -> Segmentation:
    if value == pb.SEGMENTATION_UNSPECIFIED:
        wanted = synthesis.stream_segmentation if stream else synthesis.unary_segmentation
        return Segmentation.LOW_LATENCY if wanted == "adaptive" else Segmentation(wanted)
    return SEGMENTATIONS[value]

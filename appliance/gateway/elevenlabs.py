"""ElevenLabs' HTTP API for speech, as its SDK, Pipecat and LiveKit call it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from appliance.client import End, Header, Options, Piece, Voice, WordTiming
from appliance.gateway.alignment import Alignment, Untold, align_spoken, align_written, in_seconds
from appliance.gateway.body import Fields, invalid, json_body
from appliance.gateway.refusals import ELEVENLABS_KEY
from appliance.gateway.speech import AudioFormat, Framing, Spoken, is_streamed, not_stored, speech_of
from appliance.gateway.voices import shown_voices

CODECS: Mapping[str, tuple[str, str, tuple[int, ...]]] = {
    "mp3": ("mp3", "audio/mpeg", (22_050, 24_000, 44_100)),
    "pcm": ("pcm16", "audio/pcm", (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)),
    "wav": ("wav", "audio/wav", (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)),
    "opus": ("ogg_opus", "audio/ogg", (48_000,)),
    "ulaw": ("mulaw", "audio/basic", (8_000,)),
    "alaw": ("alaw", "audio/x-alaw-basic", (8_000,)),
}
"""First part of `output_format` → encoding, media type, and sample rates that the second part may name."""
FORMATS: Mapping[str, AudioFormat] = {
    f"{codec}_{rate_hz}": AudioFormat(encoding, media_type, rate_hz)  # type: ignore[arg-type]
    for codec, (encoding, media_type, rates) in CODECS.items()
    for rate_hz in rates
}
PIECE_S = 0.2
"""Longest audio in one piece, in seconds."""
WITH_BIT_RATE = ("mp3", "opus")
"""Codecs whose name ends with kbit/s. The rate has no effect."""
DEFAULT_FORMAT = "mp3_44100_128"
NAMES = {"audio_config.encoding": "output_format", "audio_config.sample_rate_hertz": "output_format"}
SETTINGS_NAMES = {"audio_config.speaking_rate": "voice_settings.speed"}
SETTINGS = {
    **{"stability": 0.5, "similarity_boost": 0.75, "style": 0.0, "use_speaker_boost": True},
    "speed": 1.0,
}
"""Settings of each voice: ElevenLabs' own defaults. Only `speed` has an effect."""
SUBSCRIPTION = {
    **{"tier": "f5-appliance", "status": "active", "character_count": 0, "character_limit": 1_000_000_000},
    **{"voice_slots_used": 0, "voice_limit": 1_000, "can_use_instant_voice_cloning": True},
}
"""A subscription without limits, because nothing is counted here."""
CONSTANTS = {
    "/v1/user": {"user_id": "f5-appliance", "is_new_user": False, "subscription": SUBSCRIPTION},
    "/v1/user/subscription": SUBSCRIPTION,
    "/v1/voices/settings/default": SETTINGS,
}
CANNOT = ("can_do_voice_conversion", "can_be_finetuned", "can_use_style", "can_use_speaker_boost")
OWN = ("text", "output_format", "voice_settings", "language_code", "model_id", "stream")


async def speak(
    request: Request, *, whole: bool, framing: Callable[[str], Framing] | None = None
) -> Response:
    """POST /v1/text-to-speech/{voice_id}, whole or streamed. `framing` builds a body with times."""
    fields = (await json_body(request)).beside(request.query_params)
    text = fields.to_speak("text")
    options = options_of(fields)
    options.update(settings_of(fields))
    options["word_timings"] = framing is not None
    streamed = is_streamed(fields) and not whole
    names, ignored = {**NAMES, **SETTINGS_NAMES}, fields.not_read(OWN)
    voice = request.path_params["voice_id"]
    speech = await speech_of(request, text, voice, format_of(fields), options, names, ignored)
    return Spoken(request.app.state.client, speech, framing and framing(text), is_streamed=streamed)


def format_of(fields: Fields) -> AudioFormat:
    """Format that `output_format` names, as "mp3_44100_128". Raises Refusal."""
    name = (fields.text("output_format") or DEFAULT_FORMAT).lower()
    codec, _, rest = name.partition("_")
    rate, _, bit_rate = rest.partition("_")
    audio_format = FORMATS.get(f"{codec}_{rate}")
    if audio_format is None or bool(bit_rate) != (codec in WITH_BIT_RATE) or not (bit_rate or "0").isdigit():
        kinds = [f"{form}{'_*' if form.partition('_')[0] in WITH_BIT_RATE else ''}" for form in FORMATS]
        raise invalid("output_format", f"must be one of {', '.join(kinds)}, not {name[:60]!r}")
    return audio_format


def options_of(fields: Fields) -> Options:
    """Options of all ElevenLabs endpoints that speak."""
    options = fields.common()
    options["language"] = fields.text("language_code") or options["language"]
    return options


def settings_of(fields: Fields) -> Options:
    """Options from `voice_settings`. Only `speed` has an effect."""
    settings = fields.get("voice_settings")
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise invalid("voice_settings", "must be an object")
    named = Fields({"voice_settings.speed": settings.get("speed")})
    return {"speed": named.speed("voice_settings.speed")}


def _alignments(text: str, header: Header, words: Sequence[WordTiming] = ()) -> dict[str, Alignment]:
    """Alignments of a reply: with the written text and with the spoken text."""
    normalized = align_spoken(header, words)
    return {"alignment": align_written(text, header, normalized), "normalized_alignment": normalized}


def _timed_json(audio: bytes, alignments: dict[str, Alignment]) -> bytes:
    times = {name: in_seconds(one) if one else None for name, one in alignments.items()}
    return json.dumps({"audio_base64": base64.b64encode(audio).decode(), **times}).encode()


class TimedJson(Framing):
    """JSON with the audio and its alignments, from the corrected times of the words."""

    media_type = "application/json"

    def __init__(self, text: str) -> None:
        self._text, self._header, self._audio = text, Header(), b""

    def begin(self, header: Header) -> None:
        self._header = header

    def piece(self, piece: Piece) -> bytes:
        self._audio += piece.data
        return b""

    def end(self, end: End) -> bytes:
        return _timed_json(self._audio, _alignments(self._text, self._header, end.words))


class JsonLines(Framing):
    """Lines of JSON. Each has the estimated times of the words that end in its audio."""

    media_type = "application/x-ndjson"

    def __init__(self, text: str) -> None:
        self._text, self._rate_hz = text, 1
        self._aligned = dict.fromkeys(_alignments(text, Header()), Untold())

    def begin(self, header: Header) -> None:
        self._rate_hz = header.sample_rate_hertz
        self._aligned = {name: Untold(one) for name, one in _alignments(self._text, header).items()}

    def piece(self, piece: Piece) -> bytes:
        return self._line(piece.data, piece.sample_offset / self._rate_hz + PIECE_S)

    def end(self, end: End) -> bytes:
        return self._line(b"", math.inf)

    def _line(self, data: bytes, until_s: float) -> bytes:
        alignments = {name: untold.take(until_s) for name, untold in self._aligned.items()}
        return _timed_json(data, alignments) + b"\n" if data or any(alignments.values()) else b""


async def voices(request: Request) -> Response:
    """GET /v1/voices, in OpenAI's form too, and /v2/voices."""
    rows = [{"id": name, **_voice(name, voice)} for name, voice in (await shown_voices(request)).items()]
    return JSONResponse(
        {"voices": rows, "has_more": False, "total_count": len(rows), "next_page_token": None}
    )


async def voice(request: Request) -> Response:
    """GET /v1/voices/{voice_id}."""
    return JSONResponse(_voice(*await _named(request)))


async def voice_settings(request: Request) -> Response:
    """GET /v1/voices/{voice_id}/settings."""
    await _named(request)
    return JSONResponse(SETTINGS)


async def _named(request: Request) -> tuple[str, Voice]:
    """Name and voice of the path. Raises Refusal."""
    voice_id = request.path_params["voice_id"].lower()
    voices_by_name = await shown_voices(request)
    for name, voice in voices_by_name.items():
        if name.lower() == voice_id:
            return name, voice
    raise not_stored(voice_id, [*voices_by_name])


async def constant(content: Any, request: Request) -> Response:
    """Constant reply to a request that tools send before they speak."""
    return JSONResponse(content)


def _voice(name: str, voice: Voice) -> dict[str, Any]:
    """A voice in ElevenLabs' format."""
    return {
        "voice_id": name,
        "name": voice.display_name or name,
        "category": "cloned",
        "description": voice.transcript or None,
        "labels": {},
        **dict.fromkeys(("samples", "preview_url", "settings")),
        "available_for_tiers": [],
        "high_quality_base_model_ids": [],
    }


def model(name: str, languages: tuple[str, ...]) -> dict[str, Any]:
    """Entry of GET /v1/models."""
    return {
        "model_id": name,
        "name": name,
        "can_do_text_to_speech": True,
        **dict.fromkeys(CANNOT, False),
        "languages": [{"language_id": code, "name": code} for code in languages],
    }


def is_asked(request: HTTPConnection) -> bool:
    """True for a request of an ElevenLabs client: its key is in the header `xi-api-key`."""
    return ELEVENLABS_KEY in request.headers


PATH = "/v1/text-to-speech/{voice_id}"
ROUTES: list[BaseRoute] = [
    *(
        Route(f"{PATH}{way}", partial(speak, whole=whole, framing=framing), methods=["POST"])
        for way, whole, framing in (
            ("", True, None),
            ("/stream", False, None),
            ("/with-timestamps", True, TimedJson),
            ("/stream/with-timestamps", False, JsonLines),
        )
    ),
    *(Route(path, voices, methods=["GET"]) for path in ("/v1/voices", "/v2/voices")),
    Route("/v1/voices/{voice_id}", voice, methods=["GET"]),
    Route("/v1/voices/{voice_id}/settings", voice_settings, methods=["GET"]),
    *(Route(path, partial(constant, content), methods=["GET"]) for path, content in CONSTANTS.items()),
]

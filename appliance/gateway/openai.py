"""OpenAI's HTTP API for speech, as its SDKs, Open WebUI and Social Stream Ninja call it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from appliance.box.checks import readiness
from appliance.client import End, Header, Piece, WordTiming
from appliance.config import Config
from appliance.contract import bundle as contract
from appliance.errors import BundleError
from appliance.gateway import elevenlabs
from appliance.gateway.body import Fields, json_body
from appliance.gateway.refusals import Refusal
from appliance.gateway.speech import AudioFormat, Framing, Spoken, is_streamed, speech_of

RATE_HZ = 24_000
"""Sample rate of all audio that OpenAI sends. Its PCM has no header."""
FORMATS = {
    "mp3": AudioFormat("mp3", "audio/mpeg", RATE_HZ),
    "opus": AudioFormat("ogg_opus", "audio/ogg", RATE_HZ),
    "flac": AudioFormat("flac", "audio/flac", RATE_HZ),
    "wav": AudioFormat("wav", "audio/wav", RATE_HZ),
    "pcm": AudioFormat("pcm16", "audio/pcm", RATE_HZ),
}
MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""OpenAI's names of models, which some clients require. Here each stands for the bundle."""
NAMES = {"text": "input", "audio_config.speaking_rate": "speed", "audio_config.encoding": "response_format"}
OWN = ("input", "voice", "response_format", "speed", "stream", "stream_format")
DONE = {"type": "speech.audio.done", "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}}


async def speech(request: Request) -> Response:
    """POST /v1/audio/speech."""
    fields = await json_body(request)
    text = fields.to_speak("input")
    audio_format = FORMATS[fields.format("response_format", FORMATS) or "mp3"]
    options = fields.common()
    options["speed"] = fields.speed("speed")
    has_events = fields.choice("stream_format", ("audio", "sse")) == "sse"
    options["word_timings"] = has_events
    streamed = is_streamed(fields)
    to_speak = await speech_of(
        request, text, _voice(fields), audio_format, options, NAMES, fields.not_read(OWN)
    )
    framing = Events() if has_events else None
    return Spoken(request.app.state.client, to_speak, framing, is_streamed=streamed)


def _voice(fields: Fields) -> str:
    """Name of the voice. OpenAI's later clients send it in an object."""
    voice = fields.get("voice")
    return (Fields(voice).text("id") if isinstance(voice, dict) else fields.text("voice")) or ""


class Events(Framing):
    """Server-sent events. The first and the last have the words' times, an extension of OpenAI's format."""

    media_type = "text/event-stream"

    def __init__(self) -> None:
        self._words: dict[str, Any] = {}

    def begin(self, header: Header) -> None:
        self._words = _words(header.words)

    def piece(self, piece: Piece) -> bytes:
        words, self._words = self._words, {}
        audio = base64.b64encode(piece.data).decode()
        return _event({"type": "speech.audio.delta", "audio": audio, **words})

    def end(self, end: End) -> bytes:
        return _event({**DONE, **_words(end.words)})


def _words(words: Sequence[WordTiming]) -> dict[str, Any]:
    """Words in the format of OpenAI's transcriptions."""
    timed = [
        {"word": word.word, "start": round(word.start_s, 3), "end": round(word.end_s, 3)} for word in words
    ]
    return {"words": timed} if timed else {}


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


async def models(request: Request) -> Response:
    """GET /v1/models. ElevenLabs' clients get it in their format."""
    names, languages = await models_of(request.app.state.config)
    if elevenlabs.is_asked(request):
        return JSONResponse([elevenlabs.model(name, languages) for name in names])
    return JSONResponse({"object": "list", "data": [_model(name) for name in names]})


async def audio_models(request: Request) -> Response:
    """GET /v1/audio/models, in Open WebUI's format."""
    return JSONResponse({"models": [_model(name) for name in (await models_of(request.app.state.config))[0]]})


async def model(request: Request) -> Response:
    """GET /v1/models/{id}."""
    name, (there, _) = request.path_params["name"], await models_of(request.app.state.config)
    if name not in there:
        raise Refusal(
            404,
            f"unknown model; known are {', '.join(there)}",
            code="model_not_found",
            param="model",
        )
    return JSONResponse(_model(name))


async def models_of(config: Config) -> tuple[list[str], tuple[str, ...]]:
    """Models: the family of the current bundle, else of `bundle.path`, and OpenAI's names.

    Then its languages.
    """
    state = await asyncio.to_thread(readiness.read_state, config.server.metrics)
    if state.family:
        return [state.family, *MODELS], state.languages
    try:
        bundle = await asyncio.to_thread(contract.read, config.bundle.path, verify=False)
    except BundleError:
        return list(MODELS), ()
    return [bundle.manifest.family, *MODELS], bundle.manifest.text.languages


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "f5-appliance"}


ROUTES: list[BaseRoute] = [
    Route("/v1/audio/speech", speech, methods=["POST"]),
    Route("/v1/models", models),
    Route("/v1/models/{name:path}", model),
    Route("/v1/audio/models", audio_models),
    # Some clients omit /v1.
    Route("/audio/speech", speech, methods=["POST"]),
    Route("/audio/models", audio_models),
]

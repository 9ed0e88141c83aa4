"""GPT-SoVITS' HTTP API (its api_v2.py). Paths stand for names of voices; no file is opened."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from appliance.gateway.body import Fields, json_body
from appliance.gateway.refusals import Refusal
from appliance.gateway.speech import AudioFormat, Spoken, is_streamed, speech_of

FORMATS = {
    "wav": AudioFormat("wav", "audio/wav"),
    # Clients assume this rate for audio without a header, because models up to v2 have it.
    "raw": AudioFormat("pcm16", "audio/raw", 32_000),
    "ogg": AudioFormat("ogg_opus", "audio/ogg", 24_000),
}
NAMES = {
    "voice": "ref_audio_path",
    "audio_config.speaking_rate": "speed_factor",
    "audio_config.encoding": "media_type",
}

OWN = ("text", "text_lang", "ref_audio_path", "media_type", "speed_factor", "streaming_mode", "stream")
LANGUAGES = {"zh": "zh", "yue": "zh", "en": "en", "ja": "ja", "ko": "ko"}
"""Value of `text_lang` without `all_` → language code. For `auto` and other values the bundle decides."""


async def tts(request: Request) -> Response:
    """GET and POST /tts."""
    fields = await json_body(request) if request.method == "POST" else Fields(request.query_params)
    text = fields.to_speak("text")
    audio_format = FORMATS[fields.format("media_type", FORMATS) or "wav"]
    options = fields.common()
    text_language = (fields.text("text_lang") or "").lower().removeprefix("all_")
    options["language"] = options["language"] or LANGUAGES.get(text_language)
    options["speed"] = fields.speed("speed_factor")
    streamed = is_streamed(fields, default=fields.flag("streaming_mode"))
    voice = name_in(fields.text("ref_audio_path") or "")
    to_speak = await speech_of(request, text, voice, audio_format, options, NAMES, fields.not_read(OWN))
    if request.method == "HEAD":
        return Response(media_type=audio_format.media_type, headers=to_speak.audio_headers)
    return Spoken(request.app.state.client, to_speak, is_streamed=streamed)


def name_in(path: str) -> str:
    """Name of a voice in a path: the last part without its extension."""
    name = path.replace("\\", "/").rpartition("/")[2]
    return (name.rpartition(".")[0] or name).lower()


async def not_offered(request: Request) -> Response:
    """Refuse the calls of GPT-SoVITS that change or end the server."""
    message = f"{request.url.path}: not offered here: the bundle is the only model, and voices are stored"
    raise Refusal(404, message, code="not_offered")


ROUTES: list[BaseRoute] = [
    Route("/tts", tts, methods=["GET", "POST"]),
    *(
        Route(path, not_offered, methods=["GET", "POST"])
        for path in ("/control", "/set_gpt_weights", "/set_sovits_weights", "/set_refer_audio")
    ),
]

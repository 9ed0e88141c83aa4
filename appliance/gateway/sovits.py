"""GPT-SoVITS' HTTP interface (its api_v2.py), as bots call it. Paths name voices, and are never opened."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from appliance.gateway.failures import Refusal
from appliance.gateway.fields import Fields, posted, wrong
from appliance.gateway.speech import Form, Reply, Wanted, WholeReply, voice_of

FORMS = {
    "wav": Form("wav", "audio/wav"),
    # Its clients are told no rate and take this one, which its models up to v2 have.
    "raw": Form("pcm16", "audio/raw", 32_000),
    "ogg": Form("ogg_opus", "audio/ogg", 24_000),
}
NO_AAC = "; nothing on this machine writes AAC"
NAMES = {
    "voice": "ref_audio_path",
    "audio_config.speaking_rate": "speed_factor",
    "audio_config.encoding": "media_type",
}


async def tts(request: Request) -> Response:
    """GET and POST /tts."""
    fields = Fields(request.query_params) if request.method == "GET" else await posted(request)
    text = fields.text("text")
    if text is None:
        raise wrong("text", "is missing: the text to speak")
    form = FORMS[fields.choice("media_type", FORMS, NO_AAC) or "wav"]
    options = fields.common()
    options["speed"] = fields.number("speed_factor", 0.25, 4.0)
    streamed = fields.flag("streaming_mode")
    voice = await voice_of(request, name_in(fields.text("ref_audio_path") or ""))
    wanted = Wanted(text, voice, form, options, NAMES)
    return (Reply if streamed else WholeReply)(request.app.state.client, wanted)


def name_in(path: str) -> str:
    """The voice that a path means: its last part without what follows the last point."""
    name = path.replace("\\", "/").rpartition("/")[2]
    return (name.rpartition(".")[0] or name).lower()


async def not_offered(request: Request) -> Response:
    """Refuse the calls that change or end the server in GPT-SoVITS."""
    message = f"{request.url.path}: not offered here: the bundle is the only model, and voices are stored"
    raise Refusal(404, message, code="not_offered")


ROUTES: list[BaseRoute] = [
    Route("/tts", tts, methods=["GET", "POST"]),
    *(
        Route(path, not_offered, methods=["GET", "POST"])
        for path in ("/control", "/set_gpt_weights", "/set_sovits_weights", "/set_refer_audio")
    ),
]

"""Voices over HTTP: list, create from a recording, remove."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from appliance.client import AsyncClient, Voice, plain
from appliance.client.connection import UPLOAD_S
from appliance.gateway.body import Fields, body_parts, invalid, within
from appliance.gateway.refusals import Refusal

MAX_FIELDS = 16
MAX_FIELD_BYTES = 16 << 10
"""Longest field: a transcript in any script."""
AUDIO = ("audio", "audio_sample", "file")
"""Names of the field with the recording: ours, OpenAI's, and a common one."""
TRANSCRIPT, CONSENT = ("transcript", "ref_text", "text"), ("consent", "consent_note")
MARKS = re.compile(r"[^a-z0-9]+")


async def listed(request: Request) -> Response:
    """GET /v1/audio/voices: stored voices, and names that the configuration gives them, with their styles."""
    names = [
        {
            "id": name,
            "name": voice.display_name or name,
            "styles": [style.name for style in voice.styles if not style.problem],
        }
        for name, voice in (await shown_voices(request)).items()
    ]
    return JSONResponse({"voices": names})


async def shown_voices(request: Request) -> dict[str, Voice]:
    """Voices by name: stored voices, and names that the configuration gives them."""
    stored = {voice.name: voice async for voice in request.app.state.client.voices()}
    others = {
        name: Voice(name=voice, transcript=stored[voice].transcript, styles=stored[voice].styles)
        for name, voice in request.app.state.config.gateway.voices.items()
        if voice in stored
    }
    return {**others, **stored}


async def create(request: Request) -> Response:
    """POST /v1/audio/voices, multipart/form-data: `name`, `audio`, `transcript`, `consent`.

    With `style` the recording becomes that style of a stored voice; with `validate_only` nothing is stored.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise Refusal(415, "content-type: must be multipart/form-data", code="invalid_request")
    most = request.app.state.config.server.max_receive_bytes
    parser = MultiPartParser(
        request.headers,
        body_parts(request, most),
        max_files=1,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        with within(UPLOAD_S):
            form = await parser.parse()
    except (MultiPartException, LookupError, ValueError) as error:
        message = getattr(error, "message", "") or "a part cannot be read"
        raise Refusal(400, f"the form: {message}", code="invalid_request") from error
    try:
        recording = next((upload for name in AUDIO if isinstance(upload := form.get(name), UploadFile)), None)
        if recording is None:
            raise invalid("audio", "is missing: a file of the form with a recording")
        fields = Fields({name: value for name, value in form.items() if isinstance(value, str)})
        shown_as = fields.text("name") or ""
        name, style = stored_name(shown_as), fields.text("style")
        validate_only = fields.flag("validate_only")
        about: dict[str, Any] = {"validate_only": validate_only, "timeout": UPLOAD_S}
        about["consent_note"] = _first(fields, CONSENT)
        client: AsyncClient = request.app.state.client
        recorded = await recording.read(), _first(fields, TRANSCRIPT)
        if style:
            voice = await client.add_style(name, stored_name(style), *recorded, **about)
        else:
            about["display_name"] = "" if name == shown_as else shown_as
            voice = await client.add_voice(name, *recorded, **about)
    finally:
        await form.close()
    return JSONResponse(_described(voice), 200 if validate_only else 201)


async def remove(request: Request) -> Response:
    """DELETE /v1/audio/voices/{name}."""
    name = stored_name(request.path_params["name"])
    await request.app.state.client.remove_voice(name)
    return JSONResponse({"id": name, "object": "audio.voice.deleted", "deleted": True})


async def remove_style(request: Request) -> Response:
    """DELETE /v1/audio/voices/{name}/styles/{style}."""
    name, style = (stored_name(request.path_params[part]) for part in ("name", "style"))
    await request.app.state.client.remove_style(name, style)
    return JSONResponse({"id": name, "style": style, "object": "audio.voice.style.deleted", "deleted": True})


def stored_name(shown_as: str) -> str:
    """Name under which a voice or style is stored: "Zoë (live)" → "zoe-live"."""
    letters = unicodedata.normalize("NFKD", shown_as.lower())
    if re.fullmatch(r"[a-z0-9_-]*", letters):
        return letters
    bare = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return MARKS.sub("-", bare).strip("-")


def _first(fields: Fields, names: tuple[str, ...]) -> str:
    return next((text for name in names if (text := fields.text(name))), "")


def _described(voice: Voice) -> dict[str, Any]:
    return {
        **plain(voice),
        "id": voice.name,
        "object": "audio.voice",
        "name": voice.display_name or voice.name,
    }


ROUTES: list[BaseRoute] = [
    *(Route(path, listed, methods=["GET"]) for path in ("/v1/audio/voices", "/audio/voices")),
    Route("/v1/audio/voices", create, methods=["POST"]),
    Route("/v1/audio/voices/{name}", remove, methods=["DELETE"]),
    Route("/v1/audio/voices/{name}/styles/{style}", remove_style, methods=["DELETE"]),
]

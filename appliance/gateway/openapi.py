"""OpenAPI document of the gateway, made of its routes, its options and each interface's own parameters."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from inspect import getdoc
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from appliance.gateway import elevenlabs, openai, sovits
from appliance.gateway.body import ANY_SEED, COMMON
from appliance.options import BY_FIELD, MAX_KEY_CHARACTERS, Option, OptionKind

TYPES: Mapping[OptionKind, str] = {
    OptionKind.WHOLE: "integer",
    OptionKind.NUMBER: "number",
    OptionKind.DURATION: "number",
    OptionKind.FLAG: "boolean",
}
"""Kind of an option → type in JSON; others are strings."""
TEXT, FLAG = {"type": "string"}, {"type": "boolean"}
PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


def of_option(option: Option) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": TYPES.get(option.kind, "string")}
    if option.choices:
        schema["enum"] = list(option.choices)
    if option.kind is OptionKind.KEY:
        schema["maxLength"] = MAX_KEY_CHARACTERS
    if option.between:
        least, most = option.between
        schema |= {"minimum": ANY_SEED if option.field == "seed" else least, "maximum": most}
    return schema | ({"description": option.say} if option.say else {})


def one_of(choices: Collection[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(choices)}


COMMON_SCHEMAS = {option.http: of_option(option) for option in COMMON}
SPEED = of_option(BY_FIELD["audio_config.speaking_rate"])
OPENAI = {
    **{"model": TEXT, "input": TEXT, "speed": SPEED, "stream": FLAG},
    "voice": {"oneOf": [TEXT, {"type": "object", "properties": {"id": TEXT}}]},
    "response_format": one_of(openai.FORMATS),
    "stream_format": one_of(("audio", "sse")),
}
ELEVENLABS = {
    **{"model_id": TEXT, "text": TEXT, "language_code": TEXT, "stream": FLAG},
    "voice_settings": {"type": "object", "properties": {"speed": SPEED}},
    "output_format": {"type": "string", "default": elevenlabs.DEFAULT_FORMAT},
}
SOVITS = {
    **{"text": TEXT, "ref_audio_path": TEXT, "speed_factor": SPEED, "streaming_mode": FLAG, "stream": FLAG},
    "text_lang": TEXT,
    "media_type": one_of(sovits.FORMATS),
}


def speech_of(path: str) -> tuple[str, Mapping[str, Any]]:
    """Name of the text in a way to speak, and all parameters; empty for another path."""
    if path.endswith("/audio/speech"):
        return "input", {**OPENAI, **COMMON_SCHEMAS}
    if path.startswith(elevenlabs.PATH):
        return "text", {**ELEVENLABS, **COMMON_SCHEMAS}
    return ("text", {**SOVITS, **COMMON_SCHEMAS}) if path == "/tts" else ("", {})


def operation(route: Route, method: str) -> dict[str, Any]:
    endpoint = route.endpoint.func if isinstance(route.endpoint, functools.partial) else route.endpoint
    in_path = PARAMETER.findall(route.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in in_path]
    text, schemas = speech_of(route.path)
    described: dict[str, Any] = {"summary": (getdoc(endpoint) or "").partition("\n")[0]}
    if schemas and method == "GET":
        parameters += [
            {"name": name, "in": "query", "required": name == text, "schema": schema}
            for name, schema in schemas.items()
        ]
    elif schemas:
        body = {"type": "object", "required": [text], "properties": schemas}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    described["responses"] = {"200": {"description": "done"}, "default": {"description": "an error"}}
    return {**described, "parameters": parameters}


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """All routes but WebSockets, which OpenAPI has no word for."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, Route):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                path = PARAMETER.sub(r"{\1}", route.path)
                paths.setdefault(path, {})[method.lower()] = operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "f5-appliance", "version": metadata.version("f5-appliance")},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


async def served(request: Request) -> Response:
    """GET /openapi.json: this document."""
    return JSONResponse(document(request.app.routes))


ROUTES: list[BaseRoute] = [Route("/openapi.json", served, methods=["GET"])]

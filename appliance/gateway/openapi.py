"""OpenAPI document of the gateway, built from its routes, its options and each API's own parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from inspect import getdoc
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from appliance.gateway import elevenlabs, openai, sovits
from appliance.gateway.body import ANY_SEED, COMMON
from appliance.options import BY_FIELD, MAX_KEY_CHARACTERS, Option, OptionKind

TYPES = {
    **{OptionKind.WHOLE: "integer", OptionKind.FLAG: "boolean"},
    **{OptionKind.NUMBER: "number", OptionKind.DURATION: "number"},
}
"""JSON type of options that are no strings."""
TEXT, FLAG = {"type": "string"}, {"type": "boolean"}
PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
WAYS: Mapping[object, tuple[str, tuple[str, ...]]] = {
    openai.speech: ("input", openai.OWN),
    elevenlabs.speak: ("text", elevenlabs.OWN),
    sovits.tts: ("text", sovits.OWN),
}
"""Endpoint that speaks → name of its text, and names of the API's own parameters."""


def schema_of(option: Option) -> dict[str, Any]:
    """JSON schema of an option."""
    schema: dict[str, Any] = {"type": TYPES.get(option.kind, "string")}
    if option.choices:
        schema["enum"] = list(option.choices)
    if option.kind is OptionKind.KEY:
        schema["maxLength"] = MAX_KEY_CHARACTERS
    if option.between:
        least, most = option.between
        schema |= {"minimum": ANY_SEED if option.field == "seed" else least, "maximum": most}
    return {**schema, "description": option.say} if option.say else schema


COMMON_SCHEMAS = {option.http: schema_of(option) for option in COMMON}
SPEED = schema_of(BY_FIELD["audio_config.speaking_rate"])
OWN_SCHEMAS = {
    **{"speed": SPEED, "speed_factor": SPEED, "stream": FLAG, "streaming_mode": FLAG},
    "voice": {"oneOf": [TEXT, {"type": "object", "properties": {"id": TEXT}}]},
    "voice_settings": {"type": "object", "properties": {"speed": SPEED}},
    "response_format": {"enum": list(openai.FORMATS)},
    "media_type": {"enum": list(sovits.FORMATS)},
    "stream_format": {"enum": ["audio", "sse"]},
}
"""Schemas of parameters that are no strings."""


def operation(route: Route, method: str) -> dict[str, Any]:
    """OpenAPI's description of a route. The summary is the first line of the endpoint's docstring."""
    endpoint = getattr(route.endpoint, "func", route.endpoint)
    text, own = WAYS.get(endpoint, ("", ()))
    schemas = {name: OWN_SCHEMAS.get(name, TEXT) for name in own} | COMMON_SCHEMAS if own else {}
    in_path = dict.fromkeys(PARAMETER.findall(route.path), TEXT)
    in_query = schemas if method == "GET" else {}
    described: dict[str, Any] = {
        "summary": (getdoc(endpoint) or "").partition("\n")[0],
        "parameters": [
            {"name": name, "in": where, "required": where == "path" or name == text, "schema": schema}
            for where, named in (("path", in_path), ("query", in_query))
            for name, schema in named.items()
        ],
        "responses": {"200": {"description": "done"}, "default": {"description": "an error"}},
    }
    if schemas and method == "POST":
        body = {"type": "object", "required": [text], "properties": schemas}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return described


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Document of all routes except WebSockets, which OpenAPI cannot describe."""
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

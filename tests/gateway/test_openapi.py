"""OpenAPI document, against the routes and against the parameters of each way to speak."""

import re
from typing import Any

import pytest
from starlette.routing import Route

from appliance.config import load
from appliance.gateway import elevenlabs, openai, sovits
from appliance.gateway.app import make_app
from tests.gateway.conftest import LINE, Gateway

pytestmark = pytest.mark.once

WAYS = {f"{elevenlabs.PATH}{way}": elevenlabs.OWN for way in ("", "/stream", "/with-timestamps")}
WAYS |= {"/v1/audio/speech": openai.OWN, "/tts": sovits.OWN}


def test_the_document_has_every_route(gateway: Gateway) -> None:
    told = gateway.ask("/openapi.json").json["paths"]
    routes = [route for route in make_app(load(None)).routes if isinstance(route, Route)]
    assert set(told) == {route.path.replace(":path", "") for route in routes}
    for path, operations in told.items():
        assert {n for of in operations.values() for n in _required(of)} >= set(re.findall(r"{(\w+)}", path))
    for route in routes:
        assert {method.lower() for method in (route.methods or ()) if method != "HEAD"} <= set(
            told[route.path.replace(":path", "")]
        )


def _required(operation: Any) -> list[str]:
    return [one["name"] for one in operation["parameters"] if one["required"]]


@pytest.mark.parametrize("path", WAYS)
def test_all_parameters_of_speech_are_accepted_within_their_bounds(gateway: Gateway, path: str) -> None:
    told = gateway.ask("/openapi.json").json["paths"][path]["post"]
    schemas = told["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert set(WAYS[path]) <= set(schemas)
    line = {"input": LINE["input"], "text": LINE["input"], "voice": "ann", "ref_audio_path": "ann.wav"}
    path = path.replace("{voice_id}", "ann")
    schemas.pop("model_id", None)  # the gateway ignores it
    for name, schema in schemas.items():
        wrong: list[Any] = ["none of them"] if "enum" in schema else []
        wrong += [schema["maximum"] * 2 + 1, schema["minimum"] - 2] if "maximum" in schema else []
        wrong += ["c" * (schema["maxLength"] + 1)] if "maxLength" in schema else []
        for value in wrong or [[1]] * (schema in ({"type": "string"}, {"type": "boolean"})):
            assert gateway.ask(path, {**line, name: value}).status == 400, (name, value)

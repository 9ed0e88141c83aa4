"""OpenAPI document, against the routes and against the parameters of each way to speak."""

import re

import pytest
from starlette.routing import Route

from appliance.config import load
from appliance.gateway import elevenlabs, openai, openapi, sovits
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
        required = {one["name"] for of in operations.values() for one in of["parameters"] if one["required"]}
        assert required >= set(re.findall(r"{(\w+)}", path))
    for route in routes:
        methods = {method.lower() for method in route.methods or () if method != "HEAD"}
        assert methods <= set(told[route.path.replace(":path", "")])


def test_a_path_that_only_ends_like_a_way_to_speak_has_no_parameters() -> None:
    [operations] = openapi.document([Route("/other/tts", len, methods=["GET"])])["paths"].values()
    assert operations["get"]["parameters"] == []


@pytest.mark.parametrize("path", WAYS)
def test_all_parameters_of_speech_are_accepted_within_their_bounds(gateway: Gateway, path: str) -> None:
    told = gateway.ask("/openapi.json").json["paths"][path]["post"]
    schemas = told["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert set(WAYS[path]) <= set(schemas)
    line = {"input": LINE["input"], "text": LINE["input"], "voice": "ann", "ref_audio_path": "ann.wav"}
    path = path.replace("{voice_id}", "ann")
    schemas.pop("model_id", None)  # the gateway ignores it
    for name, schema in schemas.items():
        wrong: list[object] = ["none of them"] if "enum" in schema else []
        wrong += [schema["maximum"] * 2 + 1, schema["minimum"] - 2] if "maximum" in schema else []
        wrong += ["c" * (schema["maxLength"] + 1)] if "maxLength" in schema else []
        for value in wrong or [[1]] * (schema in ({"type": "string"}, {"type": "boolean"})):
            assert gateway.ask(path, {**line, name: value}).status == 400, (name, value)

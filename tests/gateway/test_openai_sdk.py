"""OpenAI's own SDK, unmodified, in an environment of its own (scripts/requirements/clients.txt)."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import soundfile

from appliance.client import Client
from tests.daemons import ROOT
from tests.gateway.conftest import Gateway
from tests.gateway.test_openai import KINDS, said
from tests.patience import PATIENCE_S, until

CLIENTS = ROOT / ".venvs" / "clients" / "bin" / "python"
pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(
        not CLIENTS.exists(), reason="no .venvs/clients: scripts/test makes it where PyPI is reached"
    ),
]


@pytest.fixture(scope="module")
def found(gateway: Gateway) -> Any:
    script = Path(__file__).with_name("with_openai.py")
    # Isolated, or this checkout's packages would be found before its own.
    command = [str(CLIENTS), "-I", str(script), f"{gateway.url}/v1"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("form", KINDS)
def test_every_format_whole_and_streamed(found: Any, gateway: Gateway, form: str) -> None:
    whole = base64.b64decode(found["whole"][form])
    if form == "opus":  # each has a serial number of its own
        samples, rate = soundfile.read(io.BytesIO(whole))
        assert rate == 24_000 and len(samples) > 10_000
    else:
        assert whole == said(gateway, "pcm16" if form == "pcm" else form)
        assert found["streamed"][form] == hashlib.sha256(whole).hexdigest()
    assert found["parts"][form] > 1


def test_several_at_a_time_are_each_their_own(found: Any, gateway: Gateway) -> None:
    assert set(found["together"]) == {hashlib.sha256(said(gateway, "pcm16")).hexdigest()}


def test_models_and_errors_are_the_sdks_own(found: Any) -> None:
    assert "tts-1" in found["models"] and found["model"] == "tts-1"
    assert found["errors"] == [
        ["NotFoundError", 404, None, "voice_not_found"],
        ["BadRequestError", 400, "speed", "invalid_request"],
        ["BadRequestError", 400, "response_format", "invalid_request"],
    ]


def test_a_reply_that_is_left_leaves_the_engine(found: Any, gateway: Gateway) -> None:
    assert found["left"] > 0
    with Client(gateway.daemon.address) as client:
        until(lambda: not client.utterances("sdk"))

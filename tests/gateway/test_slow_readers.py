"""HTTP clients that read nothing: their replies wait at the daemon, and other callers notice nothing."""

import socket

import pytest

from appliance.client import Client
from tests.gateway.conftest import LINE, Gateway, request, until_idle
from tests.gateway.test_openai import said
from tests.harness.daemons import resident
from tests.harness.patience import PATIENCE_S

# A single Python is enough: HTTP does not depend on its version.
pytestmark = [pytest.mark.slow, pytest.mark.once]

LONG = "A long story that nobody listens to. " * 50


def slow(gateway: Gateway) -> socket.socket:
    host, port = gateway.address.split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(PATIENCE_S)
    connection.connect((host, int(port)))
    sent = {**LINE, "input": LONG, "response_format": "pcm", "nfe": 1, "priority": "bulk"}
    connection.sendall(request("/v1/audio/speech", sent))
    return connection


@pytest.mark.parametrize(("readers", "held_mb"), [(12, 48), pytest.param(50, 96, marks=pytest.mark.thorough)])
def test_they_cost_nobody_else_anything(gateway: Gateway, readers: int, held_mb: int) -> None:
    """All readers take at most `held_mb` of the gateway's memory, although each has 8 MB of audio."""
    alone = gateway.ask("/v1/audio/speech", {**LINE, "response_format": "pcm"}).body
    assert alone == said(gateway, "pcm16")
    before = resident(gateway.process.pid)
    held = [slow(gateway) for _ in range(readers)]
    try:
        # Each reader has its status, so that the first sound was sent. It reads nothing from here on.
        for connection in held[:5]:
            assert connection.recv(12, socket.MSG_PEEK).startswith(b"HTTP/1.1 200")
        for _ in range(5):
            answer = gateway.ask("/v1/audio/speech", {**LINE, "response_format": "pcm", "priority": "high"})
            assert answer.body == alone
        assert resident(gateway.process.pid) - before < held_mb << 20
        with Client(gateway.daemon.address) as client:
            assert client.health() == "SERVING"
            assert len(client.utterances()) >= readers // 2
    finally:
        for connection in held:
            connection.close()
    until_idle(gateway.daemon)
    assert gateway.ask("/v1/audio/speech", {**LINE, "response_format": "pcm"}).body == alone

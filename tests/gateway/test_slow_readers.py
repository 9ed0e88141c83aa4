"""Fifty HTTP clients that read nothing: their replies wait at the daemon, others are as without them."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from appliance.client import Client
from tests.gateway.conftest import Gateway
from tests.gateway.test_openai import LINE, said
from tests.patience import PATIENCE_S, until

# On one Python: what comes over HTTP is no matter of its version.
pytestmark = [pytest.mark.slow, pytest.mark.once]

SLOW = 50
LONG = "A long story that nobody listens to. " * 50
HELD_BYTES = 96 << 20
"""Of the gateway's memory for all of them: not their audio, which is 8 MB each."""


def resident(process: int) -> int:
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def slow(gateway: Gateway) -> socket.socket:
    host, port = gateway.address.split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(PATIENCE_S)
    connection.connect((host, int(port)))
    sent = {**LINE, "input": LONG, "response_format": "pcm", "nfe": 1, "priority": "bulk"}
    body = json.dumps(sent).encode()
    head = b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    connection.sendall(head % len(body))
    connection.sendall(body)
    return connection


def test_they_cost_nobody_else_anything(gateway: Gateway) -> None:
    alone = gateway.ask("/v1/audio/speech", {**LINE, "response_format": "pcm"}).body
    assert alone == said(gateway, "pcm16")
    before = resident(gateway.process.pid)
    held = [slow(gateway) for _ in range(SLOW)]
    try:
        # Each has its status: its first sound was made and sent, and nothing of it is read from here on.
        for connection in held[:5]:
            assert connection.recv(12, socket.MSG_PEEK).startswith(b"HTTP/1.1 200")
        for _ in range(5):
            answer = gateway.ask("/v1/audio/speech", {**LINE, "response_format": "pcm", "priority": "high"})
            assert answer.body == alone
        assert resident(gateway.process.pid) - before < HELD_BYTES
        with Client(gateway.daemon.address) as client:
            assert client.health() == "SERVING"
            assert len(client.utterances()) >= SLOW // 2
    finally:
        for connection in held:
            connection.close()
    with Client(gateway.daemon.address) as client:
        until(lambda: not client.utterances())
    assert gateway.ask("/v1/audio/speech", {**LINE, "response_format": "pcm"}).body == alone

"""Answers to haproxy's agent check."""

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from appliance import cli
from appliance.client import CallFailed, Client, Header
from appliance.serve.probes import AgentServer, agent_line
from tests.harness.daemons import Running, free_port, running
from tests.harness.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.once]


def answer_of(address: str) -> str:
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    with connection, connection.makefile() as answer:
        return answer.read()


@pytest.mark.parametrize(("state", "busy", "expected"), [
    ("running", 0.0, "up ready 100%"),
    ("running", 0.37, "up ready 63%"),
    ("running", 0.999, "up ready 1%"),
    ("running", 7.0, "up ready 1%"),
    ("draining", 0.5, "drain"),
    ("starting", 0.0, "down # starting"),
])  # fmt: skip
def test_the_line(state: str, busy: float, expected: str) -> None:
    assert agent_line(state, busy) == expected + "\n"


def test_each_connection_gets_the_line_of_its_time() -> None:
    busy = 0.0
    server = AgentServer("127.0.0.1:0", state=lambda: "running", busy=lambda: busy)
    try:
        assert answer_of(f"127.0.0.1:{server.port}") == "up ready 100%\n"
        busy = 0.5
        assert answer_of(f"127.0.0.1:{server.port}") == "up ready 50%\n"
    finally:
        server.close()


def test_a_daemon_says_ready_then_drain(tmp_path: Path) -> None:
    """The daemon has no metrics; an operator drains it from the shell, over a socket of another name."""
    agent, socket = f"127.0.0.1:{free_port()}", str(tmp_path / "own.sock")
    server = {"agent": agent, "admin_socket": socket, "metrics": ""}
    with running(tmp_path, server=server) as daemon:
        daemon.add_voice()
        assert answer_of(agent) == "up ready 100%\n"
        speaking = threading.Event()
        thread = threading.Thread(target=_speak_long, args=(daemon, speaking))
        thread.start()
        assert speaking.wait(PATIENCE_S)
        assert cli.main(["admin", "drain", "--socket", socket]) == 0
        daemon.until("draining")
        assert answer_of(agent) == "drain\n"
        assert daemon.process.wait(PATIENCE_S) == 0
        thread.join()


def _speak_long(daemon: Running, speaking: threading.Event) -> None:
    text = " ".join(["This is a long message that takes its time."] * 5)
    with Client(daemon.address) as client, contextlib.suppress(CallFailed):
        for event in client.stream(text, "ann", nfe=16, priority="bulk"):
            if isinstance(event, Header):
                speaking.set()
    speaking.set()

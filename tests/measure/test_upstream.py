"""The comparison with upstream's own servers: how a reply of theirs is read, and a quick run of all of it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.harness.daemons import ROOT
from tests.measure.upstream import END, NotEqual, ask_socket, check_durations

pytestmark = pytest.mark.once

PYTHON = ROOT / ".venvs" / "upstream" / "bin" / "python"


@contextmanager
def answering(reply: bytes, cut: int) -> Iterator[int]:
    """A server on the port that answers one request in pieces of `cut` bytes, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1024)
                for begin in range(0, len(reply), cut):
                    connection.sendall(reply[begin : begin + cut])

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("cut", [1000, 4098])
def test_a_reply_of_socket_server_is_read_to_its_end(cut: int) -> None:
    samples = np.full(24_000, np.frombuffer(END + b"\x3f", np.float32)[0])
    with answering(samples.tobytes() + END, cut) as port:
        found = ask_socket("Hello.", port)
    assert found.audio_s == 1.0 and 0.0 < found.first_audio_s <= found.wall_s


def test_a_reply_that_breaks_off_is_an_error() -> None:
    with answering(bytes(8192), 8192) as port, pytest.raises(NotEqual, match="before END"):
        ask_socket("Hello.", port)


def test_unequal_durations_end_the_run() -> None:
    table = {
        "long whole": {
            name: {"audio_s": {"median": length}} for name, length in (("file", 8.0), ("exact", 8.2))
        }
    }
    check_durations(table)
    table["long whole"]["exact"]["audio_s"]["median"] = 8.3
    with pytest.raises(NotEqual, match=r"long whole: durations differ: .*8\.3"):
        check_durations(table)


@pytest.mark.slow
@pytest.mark.torch
def test_a_quick_run_against_upstream(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("upstream's servers are not installed: scripts/bench-upstream makes .venvs/upstream")
    out = tmp_path / "record.json"
    command = [
        sys.executable, "-m", "tests.measure.upstream", "--python", str(PYTHON), "--quick", "--rounds",
        "1",
    ]  # fmt: skip
    # One thread: beside other tests torch's threads would wait for each other most of the time.
    subprocess.run([*command, "--threads", "1", "--out", str(out)], cwd=ROOT, check=True)
    found = json.loads(out.read_text("utf-8"))
    assert found["equal"]["log_mel_error"] < 0.02
    assert found["upstream_versions"]["f5-tts"] == "1.1.22"
    assert set(found["memory_mb"]) == {"file", "socket", "exact"}
    streamed, whole = found["latency"]["long stream"]["exact"], found["latency"]["long whole"]["file"]
    # How much sooner is the record's to say, of a quiet machine.
    assert 2 * streamed["first_audio_s"]["median"] < whole["first_audio_s"]["median"]
    assert all(cells["2"]["per_minute"]["median"] > 0.0 for cells in found["clients"].values())

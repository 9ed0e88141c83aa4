"""Runs a program and notes each name that it looks up: lookups FILE COMMAND…, inside a network of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

WITHIN = (
    *("unshare", "--net", "--mount", "sh", "-c"),
    'ip link set lo up && mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"',
)
"""Before the path of a resolv.conf and a command: loopback alone, and that name server."""


def start(file: Path, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Run Python with `command` in a network of its own; names go to `file`, one a line."""
    file.touch()
    servers = file.with_suffix(".conf")
    servers.write_text("nameserver 127.0.0.1\n")
    # By its path: importing `tests` would turn telemetry off for the command too.
    python = [sys.executable, __file__, str(file), sys.executable, *command]
    with file.with_suffix(".log").open("wb") as log:
        return subprocess.Popen([*WITHIN, str(servers), *python], env=environment, stdout=log, stderr=log)


def main(file: str, *command: str) -> int:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    threading.Thread(target=_note, args=(server, Path(file)), daemon=True).start()
    program = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    return program.wait()


def _note(server: socket.socket, file: Path) -> None:
    """Answer each question with "no such name"."""
    while True:
        question, asker = server.recvfrom(2048)
        at, labels = 12, list[str]()
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode())
            at += 1 + length
        with file.open("a") as names:
            names.write(".".join(labels) + "\n")
        server.sendto(question[:2] + b"\x81\x83" + question[4:6] + bytes(6) + question[12:], asker)


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))

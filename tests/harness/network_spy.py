"""Runs a program in a private network and notes its lookups and addresses: network_spy.py FILE COMMAND…."""

import functools
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

AS_USER = os.geteuid() != 0
WITHIN = (
    *("unshare", *(["--map-root-user"] if AS_USER else []), "--net", "--mount", "sh", "-ec"),
    """ip link set lo up
    ip route add local default dev lo
    ip -6 route add local default dev lo
    mount --bind "$0" "$(readlink -f /etc/resolv.conf)"
    [ ! -e /etc/nsswitch.conf ] || mount --bind /dev/null /etc/nsswitch.conf
    exec "$@" """,
)
"""Command before the path of a resolv.conf and a program: loopback takes packets to any address, and answers
names."""
AS_ITS_ROOT = ("--user", "--preserve-credentials") if AS_USER else ()
BESIDE = ("nsenter", *AS_ITS_ROOT, "--net", "--mount", "--target")
"""Command before the process id of `start` and a program."""
LAST = "192.0.2.254"
"""An address that no program uses (RFC 5737)."""
IMPOSSIBLE = "no network of its own can be made: needs unshare, mount and ip, and root or user namespaces"


@functools.cache
def possible() -> bool:
    return subprocess.run([*WITHIN, "/dev/null", "true"], capture_output=True).returncode == 0


def environment(home: Path) -> dict[str, str]:
    """A user's environment: without CI, which would turn telemetry off, and without this project's
    variables."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": f"{os.getcwd()}:{home}"}


def start(file: Path, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Run Python with `command` in a private network; names and addresses go to `file`, one per line."""
    file.touch()
    servers = file.with_suffix(".conf")
    servers.write_text("nameserver 127.0.0.1\n")
    # The script runs by its path, because importing `tests` would turn telemetry off for the command too.
    python = [sys.executable, __file__, str(file), sys.executable, *command]
    with file.with_suffix(".log").open("wb") as log:
        return subprocess.Popen([*WITHIN, str(servers), *python], env=environment, stdout=log, stderr=log)


def main(file: str, *command: str) -> int:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))
    notes = [
        threading.Thread(target=note, args=(of, Path(file)), daemon=True)
        for note, of in ((_note_names, server), (_note_addresses, packets))
    ]
    for note in notes:
        note.start()
    program = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    status = program.wait()
    last = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for place in (server.getsockname(), (LAST, 9)):
        last.sendto(b"", place)
    for note in notes:  # earlier packets are noted first
        note.join(10.0)
    return status


def _note_names(server: socket.socket, file: Path) -> None:
    """Answer each question with "no such name", until an empty one."""
    while True:
        question, asker = server.recvfrom(2048)
        if not question:
            return
        at, labels = 12, list[str]()
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode())
            at += 1 + length
        with file.open("a") as names:
            names.write(".".join(labels) + "\n")
        server.sendto(question[:2] + b"\x81\x83" + question[4:6] + bytes(6) + question[12:], asker)


def _note_addresses(packets: socket.socket, file: Path) -> None:
    """Note the addresses of packets that would leave this machine, until a packet to LAST."""
    while True:
        packet = packets.recv(2048)
        bounds = {4: (16, 20), 6: (24, 40)}.get(packet[0] >> 4)
        address = ipaddress.ip_address(packet[slice(*bounds)]) if bounds else None
        if str(address) == LAST:
            return
        if address and not address.is_loopback:
            with file.open("a") as addresses:
                addresses.write(f"{address}\n")


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))

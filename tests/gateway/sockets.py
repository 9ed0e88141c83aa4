"""A WebSocket client of a few lines (RFC 6455), independent of the gateway's library."""

import base64
import contextlib
import hashlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from tests.harness.patience import PATIENCE_S

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Refused(Exception):
    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body!r}")
        self.status, self.body = status, body


class Socket:
    """An open WebSocket; iteration yields its messages until it is closed."""

    def __init__(self, connection: socket.socket, rest: bytes, head: str) -> None:
        self._connection, self._rest, self.head = connection, rest, head
        self.code = 0
        """Code of the close frame; 0 if there was none."""

    def send(self, *messages: Any) -> None:
        """Send messages in one piece, so that they arrive together."""
        self.send_bytes(b"".join(frame(json.dumps(message).encode()) for message in messages))

    def send_raw(self, data: bytes, kind: int = TEXT) -> None:
        self._connection.sendall(frame(data, kind))

    def send_bytes(self, data: bytes) -> None:
        self._connection.sendall(data)

    def abandon(self) -> None:
        self._connection.close()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            head = self._read(2)
            if len(head) < 2:
                raise StopIteration
            kind, size = head[0] & 15, head[1]
            if size > 125:
                size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
            data = self._read(size)
            if len(data) < size:
                raise StopIteration
            if kind == PING:
                self.send_raw(data, PONG)
            elif kind == CLOSE:
                self.code = int.from_bytes(data[:2], "big")
                with contextlib.suppress(OSError):
                    self.send_raw(data[:2], CLOSE)
            else:
                return json.loads(data)

    def _read(self, size: int) -> bytes:
        while len(self._rest) < size:
            part = self._connection.recv(65_536)
            if not part:
                return b""
            self._rest += part
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def frame(data: bytes, kind: int = TEXT, *, last: bool = True) -> bytes:
    """A client's frame, masked."""
    mask = os.urandom(4)
    size = len(data)
    if size < 126:
        length = bytes((size | 128,))
    else:
        length = b"\xfe" + struct.pack("!H", size) if size < 65_536 else b"\xff" + struct.pack("!Q", size)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
    return bytes((kind | (128 if last else 0),)) + length + mask + masked


def handshake(path: str, host: str, key: str, **headers: str) -> bytes:
    named = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    lines += ["upgrade: websocket", "connection: Upgrade", "sec-websocket-version: 13"]
    lines.append(f"sec-websocket-key: {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@contextlib.contextmanager
def connected(address: str, path: str, *, receive_buffer: int = 0, **headers: str) -> Iterator[Socket]:
    """Connect for the length of the block. Raises Refused."""
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(PATIENCE_S)
        connection.connect((host, int(port)))
        key = base64.b64encode(os.urandom(16)).decode()
        connection.sendall(handshake(path, headers.pop("host", address), key, **headers))
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = connection.recv(65_536)
            assert part, answer
            answer += part
        head, _, rest = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 101:
            while part := connection.recv(65_536):
                rest += part
            raise Refused(status, rest)
        accepted = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest())
        given = head.replace(b"Sec-WebSocket-Accept", b"sec-websocket-accept")
        assert b"sec-websocket-accept: " + accepted in given
        yield Socket(connection, rest, head.decode())

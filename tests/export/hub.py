"""A hub-shaped server on 127.0.0.1: files, hashes, commits and ranges, and connections that break."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "84e5a410d9cead4de2f847e7c9369a6440bdfaca"


@dataclass
class Hub:
    """A fake hub: its files, its faults, and the requests that it got."""

    files: dict[str, bytes]
    """"owner/repository/path" → bytes."""
    breaks: list[int] = field(default_factory=list)
    """Bytes of a body after which the connection ends, for each GET of a large file in order."""
    statuses: list[int] = field(default_factory=list)
    """Status of the answer to each GET of a large file, in order, instead of the file."""
    ranges: bool = True
    wrong_hash: bool = False
    gated: str = ""
    """Token without which the hub lists no files."""
    address: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, path, Range header) of each request."""

    LARGE = 1000  # bytes; larger files have another kind of hash, as on the hub

    def gets(self, name: str) -> list[str]:
        """The Range headers of the GETs of one file."""
        return [part for method, path, part in self.asked if method == "GET" and path.endswith(name)]

    def etag(self, body: bytes) -> str:
        """sha256 of a large file, git's blob hash of a small one."""
        body = b"other" + body if self.wrong_hash else body
        if len(body) > self.LARGE:
            return hashlib.sha256(body).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


@contextlib.contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` on a free port for the length of the block."""

    class Handler(_Handler):
        shown = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shown: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        hub = self.shown
        hub.asked.append((self.command, self.path, self.headers.get("Range", "")))
        stored = self.path.startswith("/stored")
        name = self.path.removeprefix("/stored").lstrip("/").replace("/resolve/main/", "/")
        if hub.gated and self.headers.get("Authorization") != f"Bearer {hub.gated}":
            self._head(401, {"X-Error-Code": "GatedRepo", "Content-Length": "0"})
            return
        if name not in hub.files:
            self._head(404, {"X-Error-Code": "EntryNotFound", "Content-Length": "0"})
            return
        whole = hub.files[name]
        about = {"X-Repo-Commit": COMMIT, "ETag": f'"{hub.etag(whole)}"'}
        if len(whole) > hub.LARGE and not stored:
            about |= {"X-Linked-Size": str(len(whole)), "X-Linked-ETag": about["ETag"]}
            self._head(302, {**about, "Location": f"{hub.address}/stored/{name}", "Content-Length": "0"})
            return
        if body and stored and hub.statuses:
            self._head(hub.statuses.pop(0), {"Content-Length": "0"})
            return
        start, status = self._range(len(whole))
        if status == 206:
            about["Content-Range"] = f"bytes {start}-{len(whole) - 1}/{len(whole)}"
        self._head(status, {**about, "Content-Length": str(len(whole) - start)})
        if not body:
            return
        if stored and hub.breaks:
            self.wfile.write(whole[start : start + hub.breaks.pop(0)])
            self.close_connection = True
            return
        self.wfile.write(whole[start:])

    def _range(self, length: int) -> tuple[int, int]:
        asked = self.headers.get("Range")
        if not asked or not self.shown.ranges:
            return 0, 200
        return int(asked.removeprefix("bytes=").removesuffix("-")), 206

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

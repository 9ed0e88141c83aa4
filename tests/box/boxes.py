"""Boxes in a known state, and a daemon that answers /readyz and /livez as a test wants it to."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from appliance.box import paths, platform, quiet
from appliance.box.clocks import clocks_json
from tests.box.in_process import quick
from tests.fakes.jetson import Entry, Jetson


def well(folder: Path, profile: str = "jp6-0005") -> Jetson:
    """A box as it should be: pinned, published, quiet, installed, its daemon's unit running."""
    jetson = Jetson(folder, profile, _well(profile))
    clocks_json.publish(jetson.box(), clocks_json.Clocks("pinned", mode="MAXN"))
    return jetson


@functools.cache
def _well(profile: str) -> tuple[Entry, ...]:
    with tempfile.TemporaryDirectory() as name:
        jetson = Jetson(Path(name), profile)
        jetson.set_mode("MAXN")
        jetson.pin()
        install(jetson)
        quiet.quiet(quick(jetson), dry_run=False, say=lambda line: None)
        return jetson.saved()


def install(jetson: Jetson) -> None:
    """Leave the files of an installation that the checks read."""
    seen = jetson.profile
    l4t = ".".join(map(str, platform.identify(jetson.box().root).l4t))
    tensorrt = seen.packages["libnvinfer8" if seen.jetpack == 5 else "libnvinfer10"]
    made = {"l4t": l4t, "tensorrt": tensorrt, "module": seen.module}
    jetson.write(paths.INSTALLED, json.dumps({"version": "0.1.0", **made}))
    jetson.path(paths.INSTALLATION).mkdir(parents=True)
    passwd = jetson.read("/etc/passwd")
    jetson.write("/etc/passwd", f"{passwd}\nf5-appliance:x:990:990::/nonexistent:/usr/sbin/nologin\n")
    jetson.write("/etc/group", "root:x:0:\nvideo:x:44:f5-appliance\nrender:x:104:other,f5-appliance\n")
    jetson.unit(
        "f5-appliance.service", ActiveState="active", SubState="running", Result="success", NRestarts=0
    )


@contextlib.contextmanager
def answering(ready: int = 200, alive: int = 200) -> Iterator[str]:
    """The address of a server with these two pages."""
    codes = {"/readyz": ready, "/livez": alive}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(codes.get(self.path, 404))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

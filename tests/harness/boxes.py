"""The only builder of boxes in a known state, with tools that take no process; and a daemon that answers.

If a test replaces a fake program, the replacement runs unchanged. The tests of the scripts prove that a
process sees the same fakes.
"""

import contextlib
import functools
import importlib.machinery
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from appliance.box import paths, platform, quiet
from appliance.box.clocks import clocks_json
from appliance.box.clocks.reason import Reason
from appliance.box.system import Box
from appliance.box.tools import Completed, Tools
from tests.fakes.jetson.board import Entry, Jetson
from tests.harness.daemons import ROOT, finished

SCRIPTS = ROOT / "scripts"


@dataclass(frozen=True)
class InProcess(Tools):
    """Runs the `main` functions of the fakes in this process."""

    jetson: Jetson | None = None

    def execute(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
        assert self.jetson is not None
        launcher = self.jetson.bin / name
        module = f"tests.fakes.jetson.tools.{name.replace('-', '_')}"
        if not launcher.exists() or f"{module} " not in launcher.read_text():
            return super().execute(name, *arguments, timeout_s=timeout_s, answer=answer)
        main = importlib.import_module(module).main
        output, errors = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict("os.environ", self.environment),
            mock.patch("sys.stdin", io.StringIO(answer)),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
        ):
            try:
                code = main(list(arguments), self.jetson.machine)
            except Exception as error:  # a process would end with a traceback
                code = 1
                errors.write(f"{type(error).__name__}: {error}")
        return Completed((str(launcher), *arguments), code, output.getvalue(), errors.getvalue())


def quick(jetson: Jetson, **overrides: Any) -> Box:
    """`jetson.box(…)` with tools that take no process."""
    box = jetson.box(**overrides)
    return replace(box, tools=InProcess(box.tools.folders, box.tools.environment, jetson))


def lay(jetson: Jetson, tool: str, script: str) -> None:
    """Put a shell script in place of a tool; the script finds the tool as $real."""
    path, real = jetson.bin / tool, jetson.bin / f"{tool}.real"
    if path.exists() and not real.exists():
        path.rename(real)
    path.write_text(f"#!/bin/sh\nreal={real}\n{script}\n")
    path.chmod(0o755)


def process(
    jetson: Jetson, name: str | Path, *words: str, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run `scripts/NAME` in a process, isolated as its first line says; fail if it prints a traceback."""
    ran = finished(sys.executable, "-I", SCRIPTS / name, *words, cwd=cwd, **jetson.environment)
    assert "Traceback" not in ran.stdout + ran.stderr, ran.stderr
    return ran


def run_script(name: str, box: Box, *words: str) -> int:
    """Run the main function of `scripts/NAME` on a box; returns its exit status."""
    module = script(name)
    with (
        mock.patch.object(module, "open_box", lambda sysroot, tools: box),
        mock.patch.object(sys, "argv", [name, *words]),
    ):
        code: int = module.main()
    return code


@functools.cache
def script(name: str) -> ModuleType:
    """The program `scripts/NAME` as a module."""
    path = SCRIPTS / name
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # No bytecode is written next to the scripts, and the path and the Ctrl-C of other tests do not change.
    with (
        mock.patch.object(sys, "dont_write_bytecode", True),
        mock.patch.object(sys, "path", list(sys.path)),
        mock.patch("signal.signal"),
    ):
        loader.exec_module(module)
    return module


def well(folder: Path, profile: str = "jp6-0005") -> Jetson:
    """A healthy box: pinned, published, quiet, installed, with its daemon's unit running."""
    jetson = Jetson(folder, profile, _well(profile))
    clocks_json.publish(jetson.box(), clocks_json.Clocks("pinned", mode="MAXN", reason=Reason.NONE))
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
    """Create the files of an installation that the checks read."""
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

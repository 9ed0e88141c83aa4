"""A daemon of the bench's own, started from a bundle, a configuration or another environment.

It listens on a free loopback port, keeps its voices in a temporary folder, and caches no replies.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance import config as configuration
from appliance.bench import BenchError
from appliance.client import CallFailed, Client
from appliance.contract import bundle as bundles
from tests.harness.daemons import SPEECH

READY = re.compile(r"ready on (127\.0\.0\.1:\d+)")
END_S = 40.0
"""Time to end after SIGTERM; a drain takes up to 20 s."""
NAME = "bench"
"""Name of the daemon's only voice."""
VERSION = "import importlib.metadata as m; print(m.version('f5-appliance'))"


@dataclass(frozen=True)
class Contender:
    given: str
    """Argument of the command line."""
    kind: str
    """bundle, configuration or version."""
    python: str
    version: str
    config: configuration.Config
    path: Path | None
    """Path of its configuration file."""
    overrides: tuple[str, ...]

    @property
    def bundle(self) -> Path:
        return self.config.bundle.path.absolute()

    def description(self) -> dict[str, str]:
        manifest = bundles.read(self.bundle, verify=False).manifest
        return {
            "given": self.given,
            "kind": self.kind,
            "version": self.version,
            "bundle": f"{manifest.family} {manifest.precision}",
            "manifest": bundles.identity(self.bundle)[:16],
        }


def contender(given: str, base: Path | None = None, overrides: Sequence[str] = ()) -> Contender:
    """Make a contender of a bundle's folder, a configuration's YAML file, or another environment's python.

    `base` is the configuration for a bundle and a python; `overrides` go over every configuration.
    Raises BenchError, ConfigError.
    """
    path, own = Path(given), tuple(overrides)
    kind, python, file = "bundle", sys.executable, base
    if path.is_dir():
        if not (path / bundles.MANIFEST).is_file():
            raise BenchError(f"{given}: a folder without {bundles.MANIFEST} is no bundle")
        own = (*own, f"bundle.path={path.absolute()}")
    elif path.suffix in (".yaml", ".yml") and path.is_file():
        kind, file = "configuration", path
    elif path.is_file() and os.access(path, os.X_OK):
        kind, python = "version", str(path.absolute())
    else:
        raise BenchError(f"{given}: neither a bundle's folder nor a .yaml file nor an environment's python")
    ran = subprocess.run(
        [python, *_flags(python), "-c", VERSION], capture_output=True, text=True, env=_environment(python)
    )
    if ran.returncode:
        last = (ran.stderr.strip() or "it prints nothing").splitlines()[-1]
        raise BenchError(f"{given}: no f5-appliance in that environment: {last}")
    return Contender(given, kind, python, ran.stdout.strip(), configuration.load(file, own), file, own)


@dataclass(frozen=True)
class Started:
    client: Client
    pid: int


@contextlib.contextmanager
def started(contender: Contender) -> Iterator[Started]:
    """Run a daemon with the demo's voice. Raises BenchError with the daemon's last line."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="f5-bench-"))
        process = stack.enter_context(
            subprocess.Popen(
                [contender.python, *_flags(contender.python), "-m", "appliance", "serve"]
                + (["--config", str(contender.path)] if contender.path else [])
                + [word for one in _settings(contender, folder) for word in ("--set", one)],
                stderr=subprocess.PIPE,
                text=True,
                env=_environment(contender.python),
            )
        )
        # In this order at the end: the client is closed, the daemon ends, and with it its log.
        reading = contextlib.ExitStack()
        stack.enter_context(reading)
        stack.callback(_end, process)
        client = stack.enter_context(Client(_await_address(process, contender, reading)))
        try:
            client.add_voice(NAME, SPEECH.read_bytes(), SPEECH.with_suffix(".txt").read_text("utf-8").strip())
        except CallFailed as failure:
            raise BenchError(f"{contender.given}: {failure}") from failure
        yield Started(client, process.pid)


def _settings(contender: Contender, folder: str) -> Iterator[str]:
    yield from contender.overrides
    # An older version knows fewer keys: only those are set that have to be.
    yield from ("server.listen=127.0.0.1:0", "server.socket=", "server.admin_socket=", "server.metrics=")
    yield from (f"voices.folder={folder}/voices", f"voices.cache={folder}/cache")
    yield from ("cache.phrases_bytes=0", "log.level=info")
    for name in ("agent", "tls_certificate", "tls_key", "tls_clients", "tokens"):
        if getattr(contender.config.server, name):
            yield f"server.{name}="


def _await_address(process: subprocess.Popen[str], contender: Contender, stack: contextlib.ExitStack) -> str:
    assert process.stderr is not None
    last: deque[str] = deque(maxlen=1)
    for line in process.stderr:
        last.append(line.strip())
        if found := READY.search(line):
            # Otherwise the pipe fills and the daemon stops.
            reading = threading.Thread(target=last.extend, args=(process.stderr,))
            reading.start()
            stack.callback(reading.join)
            return found[1]
    message = last[-1] if last else "without a word"
    raise BenchError(f"{contender.given}: its daemon ended with {process.wait()}: {message}")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _flags(python: str) -> list[str]:
    """Options that hide this environment's folders from another's python."""
    return [] if python == sys.executable else ["-I"]


def _environment(python: str) -> dict[str, str]:
    variables = dict(os.environ)
    # systemd waits for the box's daemon, not for this one.
    variables.pop("NOTIFY_SOCKET", None)
    if python == sys.executable:
        root = str(Path(__file__).parents[2])
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (root, variables.get("PYTHONPATH"))))
    return variables

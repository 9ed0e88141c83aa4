"""A daemon for the bench, started from a bundle, a configuration or another environment.

It listens on a free loopback port, keeps its voices in a temporary folder, and caches no replies.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance import config as configuration
from appliance.bench import BenchError
from appliance.client import CallFailed, Client
from appliance.contract import bundle as bundles
from tests.harness.daemons import SPEECH, Program, finished, followed, start

READY = re.compile(r"ready on (127\.0\.0\.1:\d+)")
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
        about = {"given": self.given, "kind": self.kind, "version": self.version}
        bundle = f"{manifest.family} {manifest.precision}"
        return {**about, "bundle": bundle, "manifest": bundles.identity(self.bundle)[:16]}


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
    ran = finished(python, *_flags(python), "-c", VERSION)
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
        settings = [word for one in _settings(contender, folder) for word in ("--set", one)]
        config = ["--config", contender.path] if contender.path else []
        command = [*_flags(contender.python), "-m", "appliance", "serve", *config, *settings]
        # systemd waits for the box's daemon, not for this daemon.
        program = Program(start(*command, python=contender.python, NOTIFY_SOCKET=""))
        stack.enter_context(followed(program, ready=False))
        with program.logged:
            program.logged.wait_for(lambda: program.log_ended or READY.search(program.log))
        if not (found := READY.search(program.log)):
            message = (program.log.strip() or "without a word").splitlines()[-1]
            raise BenchError(f"{contender.given}: its daemon ended with {program.process.wait()}: {message}")
        client = stack.enter_context(Client(found[1]))
        try:
            client.add_voice(NAME, SPEECH.read_bytes(), SPEECH.with_suffix(".txt").read_text("utf-8").strip())
        except CallFailed as failure:
            raise BenchError(f"{contender.given}: {failure}") from failure
        yield Started(client, program.process.pid)


def _settings(contender: Contender, folder: str) -> Iterator[str]:
    yield from contender.overrides
    # An older version knows fewer keys: only necessary keys are set.
    yield from ("server.listen=127.0.0.1:0", "server.socket=", "server.admin_socket=", "server.metrics=")
    yield from (f"voices.folder={folder}/voices", f"voices.cache={folder}/cache")
    yield from ("cache.phrases_bytes=0", "log.level=info")
    for name in ("agent", "tls_certificate", "tls_key", "tls_clients", "tokens"):
        if getattr(contender.config.server, name):
            yield f"server.{name}="


def _flags(python: str) -> list[str]:
    """Options that hide this environment's folders from the python of another."""
    return [] if python == sys.executable else ["-I"]

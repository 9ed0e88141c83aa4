"""Daemons as separate processes, on the tiny committed bundle and free ports."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import yaml

from appliance.client import CallFailed, Client, Operator
from appliance.config import VoicesConfig
from appliance.contract.mel import MelSpec
from appliance.engine.cases import FEMALE
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.voices.index import VoiceIndex
from appliance.voices.rules import F5, ConditioningRule
from appliance.voices.store import VoiceStore
from tests.harness.patience import PATIENCE_S, until
from tests.harness.sounds import to_file

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "tests" / "tiny" / "bundle"
DEMO = ROOT / "appliance" / "demo"
SPEECH = DEMO / "voices" / f"{FEMALE}.wav"
"""A recording with its words in a .txt of the same name."""
NFE = 3
"""Number of steps of the tests' daemons; a test may set another, or the product's default by `nfe: None`."""
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536))
"""Options of a connection with a minimal receive window."""
TEXT = "Thanks for the follow, welcome to the stream."
PORTS, BLOCK = (16_384, 32_768), 64
"""Ports below Linux's range for outgoing connections; a process of tests takes whole blocks."""


def free_port() -> int:
    """A port that no program listens on and no other test will take, in this run or another."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port := next(_ports)))
            return port


def _own_ports() -> Iterator[int]:
    """Ports of blocks whose file this process has locked; it is unlocked when the process ends."""
    draw, folder = random.SystemRandom(), Path(tempfile.gettempdir()) / "f5-tests-ports"
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o777)  # other users' tests use it too
    while True:
        block = draw.randrange(*PORTS, BLOCK)
        file = os.open(folder / str(block), os.O_CREAT | os.O_RDONLY, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        else:
            yield from range(block, block + BLOCK)


_ports = _own_ports()


def resident(process: int) -> int:
    """Bytes of memory that a process holds."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def request(text: str = TEXT, **fields: Any) -> pb.SynthesizeRequest:
    """A request whose samples are the same each time."""
    return pb.SynthesizeRequest(**{"text": text, "voice": "ann", "seed": 1, **fields})


def reference_wav(seconds: float = 3.0, *, level: float = 0.3) -> bytes:
    """A sound with a pitch and a pulse, at a rate that differs from the model's."""
    t = np.arange(int(16_000 * seconds))[:, None] / 16_000
    return to_file(level * np.sin(2 * np.pi * 180 * t) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t)), 16_000)


def store_in(
    folder: Path,
    voices: Path | None = None,
    *,
    level: float = 0.1,
    rule: ConditioningRule = F5,
    **limits: Any,
) -> VoiceStore:
    """The voices of a folder, prepared for the tiny bundle."""
    limits = {"memory_entries": 4, "max_reference_bytes": 1 << 20} | limits
    config = VoicesConfig(voices or folder / "voices", folder / "cache", **limits)
    return VoiceStore(VoiceIndex(config, MelSpec("vocos"), level, rule=rule))


def write_config(folder: Path, bundle: Path = BUNDLE, **sections: dict[str, Any]) -> Path:
    """A configuration whose folders are under `folder` and whose ports are free."""
    config: dict[str, dict[str, Any]] = {
        "bundle": {"path": str(bundle)},
        "engine": {"threads": 1},
        "voices": {"folder": str(folder / "voices"), "cache": str(folder / "cache")},
        # A repeated text is synthesised again.
        "cache": {"phrases_bytes": 0},
        "server": {
            "listen": f"127.0.0.1:{free_port()}",
            "socket": str(folder / "grpc.sock"),
            "metrics": f"127.0.0.1:{free_port()}",
        },
    }
    if bundle == BUNDLE:  # all steps are alike, and the warm-up measures each
        config["synthesis"] = {"nfe": NFE}
    for section, keys in sections.items():
        config.setdefault(section, {}).update(keys)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@dataclass
class Program:
    """A running program, and its log."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list, kw_only=True)
    earlier: list[str] = field(default_factory=list, kw_only=True)
    """Log lines before the last `forget`."""
    logged: threading.Condition = field(default_factory=threading.Condition, kw_only=True)
    """Notified for each new line, and at the end of the log."""
    log_ended: bool = field(default=False, kw_only=True)

    @property
    def log(self) -> str:
        return "".join((*self.earlier, *self.lines))

    def forget(self) -> None:
        """Ignore the lines so far, so that `until` waits for a new line."""
        with self.logged:
            self.earlier += self.lines
            self.lines.clear()

    def until(self, pattern: str) -> None:
        """Wait for a line of the log."""

        def found() -> bool:
            return any(re.search(pattern, line) for line in self.lines)

        with self.logged:
            self.logged.wait_for(lambda: found() or self.log_ended, PATIENCE_S)
        assert found(), self.log

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.logged:
                self.lines.append(line)
                self.logged.notify_all()
        with self.logged:
            self.log_ended = True
            self.logged.notify_all()


def start(
    *command: object, within: Sequence[str] = (), python: str = sys.executable, **environment: str
) -> subprocess.Popen[str]:
    """Start Python with this command and its log in a pipe; `environment` is added to this process's.

    `within`: a command that becomes the one after it, in other surroundings.
    """
    words, environment = [str(part) for part in (*within, python, *command)], {**os.environ, **environment}
    return subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def finished(
    *command: object, says: str = "", cwd: Path = ROOT, patience_s: float = PATIENCE_S, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with `says` on its standard input; `environment` is added to this
    process's."""
    words, surroundings = [str(part) for part in command], {**os.environ, **environment}
    told: dict[str, Any] = {"capture_output": True, "text": True, "timeout": patience_s, "input": says}
    return subprocess.run(words, cwd=cwd, env=surroundings, **told)


Started = TypeVar("Started", bound=Program)


@contextlib.contextmanager
def followed(program: Started, *, ready: bool = True) -> Iterator[Started]:
    """Read a program's log, wait until it is ready, and end its process after the block."""
    reader = threading.Thread(target=program.read_log)
    reader.start()
    try:
        if ready:
            program.until("ready on")
        yield program
    except BaseException:
        print(program.log)
        raise
    finally:
        if program.process.poll() is None:
            program.process.kill()
        program.process.wait()
        reader.join()
        assert program.process.stderr is not None
        program.process.stderr.close()


@dataclass
class Running(Program):
    """A running daemon."""

    config: dict[str, Any]
    folder: Path

    @property
    def address(self) -> str:
        return str(self.config["server"]["listen"])

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.address, options=(("grpc.max_receive_message_length", -1),))

    def synthesizer(self, channel: grpc.Channel) -> appliance_pb2_grpc.SynthesizerStub:
        return appliance_pb2_grpc.SynthesizerStub(channel)

    def add_voice(self, name: str = "ann") -> pb.Voice:
        request = pb.CreateVoiceRequest(
            name=name, audio=reference_wav(), transcript="Some call me nature, others call me mother nature."
        )
        with self.channel() as channel:
            voice: pb.Voice = appliance_pb2_grpc.VoicesStub(channel).CreateVoice(request, timeout=PATIENCE_S)
            return voice

    def http(self, path: str) -> tuple[int, str]:
        """Status and body of a page of the metrics server."""
        try:
            with urllib.request.urlopen(
                f"http://{self.config['server']['metrics']}{path}", timeout=PATIENCE_S
            ) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@contextlib.contextmanager
def running(
    folder: Path,
    *,
    ready: bool = True,
    module: str = "appliance",
    speaks_from: Path = BUNDLE,
    **sections: dict[str, Any],
) -> Iterator[Running]:
    """Start a daemon, wait until it is ready, and end it after the block."""
    path = write_config(folder, speaks_from, **sections)
    daemon = Running(start("-m", module, "serve", "--config", path), yaml.safe_load(path.read_text()), folder)
    with followed(daemon, ready=ready):
        yield daemon


@dataclass
class Shared(Running):
    """Daemon shared by tests of many files; `reset` restores its state after a test."""

    voices: dict[str, pb.Voice] = field(default_factory=dict, kw_only=True)
    """Voices with which a test begins."""

    def stored(self) -> dict[str, pb.Voice]:
        with Client(self.address) as client:
            return {voice.name: voice for voice in client.voices(timeout=PATIENCE_S)}

    @contextlib.contextmanager
    def lent(
        self, prepare: Callable[[Shared], object] = lambda box: None, **sections: dict[str, Any]
    ) -> Iterator[Shared]:
        """Apply these sections, and the voices that `prepare` adds, until the context ends."""
        config, voices = self.config, self.voices
        self.config = copy.deepcopy(config)
        for section, keys in sections.items():
            self.config.setdefault(section, {}).update(keys)
        try:
            self.reset()
            prepare(self)
            self.voices = self.stored()
            yield self
        finally:
            self.config, self.voices = config, voices
            self.reset()

    def reset(self) -> None:
        """Restore configuration, bundle, queue, channels and voices."""
        path, text = self.folder / "config.yaml", yaml.safe_dump(self.config)
        with Client(self.address) as client, Operator(str(self.folder / "admin.sock")) as operator:
            if path.read_text() != text:
                path.write_text(text)
                assert operator.reload() == [], "what only a start changes needs a daemon of its own"
            if operator.status().bundle != self.config["bundle"]["path"]:
                operator.swap(self.config["bundle"]["path"])
            queue = client.queue(timeout=PATIENCE_S)
            for utterance in queue.utterances:
                with contextlib.suppress(CallFailed):  # the request may have ended already
                    client.cancel(utterance.request_id, timeout=PATIENCE_S)
            for channel in queue.paused:
                client.resume(channel, timeout=PATIENCE_S)
            for channel in queue.moderated:
                client.unmoderate(channel, timeout=PATIENCE_S)
            until(lambda: not client.utterances(timeout=PATIENCE_S), lambda: self.log)
            stored = self.stored()
            for name, voice in stored.items():
                if voice != self.voices.get(name):
                    client.remove_voice(name, timeout=PATIENCE_S)
            if "ann" in self.voices and self.voices["ann"] != stored.get("ann"):
                self.voices["ann"] = self.add_voice()
        self.forget()


@contextlib.contextmanager
def sharing(folder: Path, **sections: dict[str, Any]) -> Iterator[Shared]:
    """Start a daemon with the voice ann for many tests; it must exit with 0 and log no traceback."""
    path = write_config(folder, **sections)
    command = ("-m", "appliance", "serve", "--config", path)
    with followed(Shared(start(*command), yaml.safe_load(path.read_text()), folder)) as box:
        box.add_voice()
        box.voices = box.stored()
        yield box
        assert box.stop() == 0, box.log
        assert "Traceback" not in box.log, box.log


def shared(prepare: Callable[[Shared], object] = lambda box: None, **sections: dict[str, Any]) -> Any:
    """Return a module's fixture: the process's daemon, lent with the arguments of `Shared.lent`."""
    import pytest

    @pytest.fixture(scope="module")
    def box(shared_box: Shared) -> Iterator[Shared]:
        with shared_box.lent(prepare, **sections):
            yield shared_box

    return box

"""Daemons as processes of their own, on the tiny committed bundle and free ports."""

from __future__ import annotations

import contextlib
import io
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import soundfile
import yaml

from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = ROOT / "tests" / "tiny" / "bundle"


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def reference_wav(seconds: float = 3.0, *, level: float = 0.3) -> bytes:
    """Something with a pitch and a pulse, at a rate that is not the model's."""
    t = np.arange(int(16_000 * seconds)) / 16_000
    wave = level * np.sin(2 * np.pi * 180 * t) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t))
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, 16_000, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def write_config(folder: Path, bundle: Path = BUNDLE, **sections: dict[str, Any]) -> Path:
    """A configuration whose folders are under `folder` and whose ports are free."""
    config: dict[str, dict[str, Any]] = {
        "bundle": {"path": str(bundle)},
        "engine": {"threads": 1},
        "voices": {"folder": str(folder / "voices"), "cache": str(folder / "cache")},
        # What comes again is made again.
        "cache": {"phrases_bytes": 0},
        "server": {
            "listen": f"127.0.0.1:{free_port()}",
            "socket": str(folder / "grpc.sock"),
            "metrics": f"127.0.0.1:{free_port()}",
        },
    }
    for section, keys in sections.items():
        config.setdefault(section, {}).update(keys)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@dataclass
class Running:
    """A daemon that was started."""

    process: subprocess.Popen[str]
    config: dict[str, Any]
    folder: Path
    lines: list[str] = field(default_factory=list)
    logged: threading.Condition = field(default_factory=threading.Condition)
    """Notified when a line has been added, and when the log has ended."""
    log_ended: bool = False

    @property
    def address(self) -> str:
        return str(self.config["server"]["listen"])

    def until(self, pattern: str) -> None:
        """Wait for a line of the log."""

        def found() -> bool:
            return any(re.search(pattern, line) for line in self.lines)

        with self.logged:
            self.logged.wait_for(lambda: found() or self.log_ended, PATIENCE_S)
        assert found(), "".join(self.lines)

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

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def running(
    folder: Path,
    *,
    ready: bool = True,
    module: str = "appliance",
    speaks_from: Path = BUNDLE,
    **sections: dict[str, Any],
) -> Iterator[Running]:
    """Start a daemon, wait until it is ready, and leave none behind."""
    path = write_config(folder, speaks_from, **sections)
    process = subprocess.Popen(
        [sys.executable, "-m", module, "serve", "--config", str(path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    daemon = Running(process, yaml.safe_load(path.read_text()), folder)
    assert process.stderr is not None
    stderr = process.stderr

    def read() -> None:
        for line in stderr:
            with daemon.logged:
                daemon.lines.append(line)
                daemon.logged.notify_all()
        with daemon.logged:
            daemon.log_ended = True
            daemon.logged.notify_all()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        if ready:
            daemon.until("ready on")
        yield daemon
    except BaseException:
        print("".join(daemon.lines))
        raise
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()
        stderr.close()

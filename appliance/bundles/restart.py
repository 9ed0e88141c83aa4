"""Tests of a bundle: the CPU loads it, and the restarted daemon speaks from it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from appliance.access.reach import daemon_address
from appliance.box.tools import Tools
from appliance.client import CallFailed, Client, Operator
from appliance.client.sounding import speak_anew
from appliance.config import Config, EngineConfig
from appliance.contract.bundle import Bundle
from appliance.errors import BundleError

SERVICE = "f5-appliance.service"
READY_S = 900.0
"""Timeout of a start, in seconds. A daemon's first start with a bundle builds engines."""
SPEAK_S = 60.0
SENTENCE = "This box speaks from its new bundle."


def load_on_cpu(bundle: Bundle, config: EngineConfig) -> None:
    """Load a bundle and compute a silence, on the CPU if that is possible.

    Raises BundleError, EngineFault.
    """
    from appliance.engine import loading

    backends = bundle.manifest.backends
    if config.backend not in ("auto", *backends):
        raise BundleError(
            f"{bundle.folder}: engine.backend is {config.backend}, the bundle is for {', '.join(backends)}"
        )
    backend = "ort-cpu" if "ort-cpu" in backends else config.backend
    engine = loading.load_for(bundle, dataclasses.replace(config, backend=backend, lanes=1))
    try:
        engine.self_test()
    except Exception as error:
        raise BundleError(f"{bundle.folder}: cannot be used: {' '.join(str(error).split())}") from error
    finally:
        engine.shutdown()


def running_folder(config: Config) -> Path | None:
    """Bundle folder of the running daemon; None if no daemon answers."""
    socket = config.server.admin
    if socket is None:
        return None
    try:
        with Operator(str(socket)) as operator:
            return Path(operator.status().bundle)
    except CallFailed:
        return None


@dataclass(frozen=True)
class Restart:
    """Restarts the daemon, and proves that it speaks from a bundle."""

    config: Config
    tools: Tools
    ready_within_s: float = READY_S

    def __call__(self, folder: Path) -> str:
        """Problem of the daemon with the bundle in `folder`, or ""."""
        # systemd refuses to start a service that has failed five times.
        self.tools.execute("systemctl", "reset-failed", SERVICE)
        # The service reports when it is ready, and systemctl waits for that.
        ran = self.tools.execute("systemctl", "restart", SERVICE, timeout_s=self.ready_within_s)
        if ran.timed_out:
            return f"it was not ready after {self.ready_within_s:.0f} s"
        if ran.code:
            return f"it did not start: {ran.summary}"
        try:
            return self._speak(folder)
        except CallFailed as error:
            return f"it does not speak: {error}"

    def _speak(self, folder: Path) -> str:
        """Check that the daemon speaks from this folder. Returns the problem, or ""."""
        with Client(daemon_address(self.config.server)) as client:
            if (health := client.health()) != "SERVING":
                return f"it is {health}"
            if (speaks_from := running_folder(self.config)) not in (None, folder):
                return (
                    f"it speaks from {speaks_from}, not from {folder}: does it have the same configuration?"
                )
            voice = next((voice.name for voice in client.voices() if not voice.problem), "")
            if voice:
                speak_anew(client, SENTENCE, voice, SPEAK_S)
        return ""

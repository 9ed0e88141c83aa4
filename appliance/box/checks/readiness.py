"""Checks of the daemon from outside: readiness over HTTP, and restarts as systemd counts them."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.box.checks.counters import Rise
from appliance.box.checks.finding import Finding, Level, merged, passed, skipped
from appliance.box.checks.snapshot import UNIT, Harm, Snapshot, check
from appliance.box.root import error_text
from appliance.box.system import Unit
from appliance.errors import NOT_RETRIED, Exit
from appliance.fields import from_mapping

READYZ = "127.0.0.1:9464"
ANSWER_S = 3.0
LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""Host of a daemon that listens on all addresses → host at which this machine reaches it."""
HOUR_S = 3600.0
RESTARTS_WARN, RESTARTS_FAIL = 1, 3
LOG = "see why: sudo journalctl -u f5-appliance -n 50"
RESTART = "sudo systemctl restart f5-appliance"
WAIT = "wait, and follow its start: sudo f5-setup"
GPU_BACKENDS = ("tensorrt", "ort-cuda")
ON_ITS_GPU = "a Jetson speaks from its GPU"
GPU_REMEDY = (
    "remove the reasons (f5-health --verbose), then: sudo systemctl restart f5-appliance. engine.backend "
    "must be auto. TensorRT, with the internet: sudo apt install --reinstall {python3-libnvinfer}. "
    "cuda-python: sudo apt install --reinstall ./FILE.deb"
)
SPEAK_AGAIN = (
    "let it speak: appliance queue resume CHANNEL. Or remove the damaged file, restart, and pause and "
    "moderate again"
)
ANSWERS = "answers"
"""Name of a figure: false if nothing answers at /readyz."""
STATUS_REMEDIES: Mapping[int, str] = {
    Exit.BUNDLE: "the bundle is missing or damaged: sudo appliance bundle install FOLDER",
    Exit.ADDRESS_NOT_OURS: "no interface has its address: `ip -br address` lists addresses; "
    "server.listen sets it",
    Exit.STORAGE: "a folder cannot be used: see the check disk, and sudo systemd-tmpfiles --create",
    Exit.ADDRESS_IN_USE: "another program uses its address: `sudo ss -ltnp` names it",
    Exit.CONFIG: "the configuration cannot be used: `systemctl status f5-appliance` says where",
}
RETRIES = 4
"""Restarts after which a failed unit counts as stopped by a start limit.

The package's units have no limit, but a site may set one.
"""


@dataclass(frozen=True)
class DaemonState:
    """State that the daemon reports at /state; empty if no daemon answers."""

    state: str = ""
    """State: starting, running, draining."""
    family: str = ""
    """Family of the current bundle."""
    languages: tuple[str, ...] = ()
    """Codes of the bundle's languages."""
    for_s: float = 0.0
    """Seconds since the process began."""
    step: str = ""
    """Current step of a start."""
    backend: str = ""
    passed_over: Mapping[str, str] = field(default_factory=dict)
    """Backend that cannot be used → reason."""
    paused_s: Mapping[str, float] = field(default_factory=dict)
    """Channel → seconds since its pause."""
    held_damage: str = ""
    """Message about a damaged file of held requests; "" if there is none."""
    minutes: tuple[Mapping[str, Any], ...] = ()
    """Rows of the last two hours; see serve/minutes.py."""

    @property
    def silent(self) -> str:
        """Clause about channels that are silent because of a pause; "" if there are none."""
        long = ((name, s / HOUR_S) for name, s in self.paused_s.items() if s >= HOUR_S)
        paused = (f"channel {name} has been paused for {hours:.1f} h" for name, hours in long)
        return "; ".join(filter(None, (self.held_damage, *paused)))

    @property
    def on_cpu(self) -> str:
        """Clause about a box that does not speak from its GPU; "" if it does."""
        return on_cpu(self.backend, self.passed_over) if self.state == "running" else ""


SILENT = DaemonState()


def on_cpu(backend: str, passed_over: Mapping[str, str]) -> str:
    """Clause about a backend that is not a GPU's; "" if it is."""
    if backend.partition(" ")[0] in ("", *GPU_BACKENDS):
        return ""
    reasons = "; ".join(f"{name} passed over: {reason}" for name, reason in passed_over.items())
    return f"{backend}, which is the CPU; {reasons or 'engine.backend or its bundle allows no other'}"


def fetch(address: str, path: str) -> tuple[int | str, bytes]:
    """GET: the HTTP status and body, or the reason why no response came."""
    try:
        with contextlib.closing(http.client.HTTPConnection(address, timeout=ANSWER_S)) as connection:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read()
    except OSError as error:
        return error_text(error), b""
    except (http.client.InvalidURL, ValueError, OverflowError):
        return "is not a HOST:PORT", b""
    except http.client.HTTPException:
        return "another program answers there, not by HTTP", b""


def read_state(address: str) -> DaemonState:
    """State at /state of the daemon, which listens at `address`."""
    host, _, port = address.rpartition(":")
    status, body = fetch(f"{LOOPBACK.get(host, host)}:{port}", "/state")
    try:
        raw: Any = json.loads(body) if status == 200 else {}
        return from_mapping(DaemonState, raw, where="/state", error=ValueError, ignore_unknown=True)
    except (ValueError, RecursionError):
        return SILENT


def _of_daemon(now: Snapshot) -> tuple[Any, ...]:
    ready, _ = fetch(now.readyz, "/readyz")
    alive = fetch(now.readyz, "/livez")[0] if isinstance(ready, int) else ready
    state = read_state(now.readyz) if isinstance(ready, int) else SILENT
    return ready, alive, now.readyz, now.unit, state, now.platform.is_jetson


@check("daemon", Harm.SILENCE, 1, _of_daemon, anywhere=True)
def check_daemon(
    ready: int | str,
    alive: int | str,
    address: str,
    unit: Unit | None,
    now: DaemonState = SILENT,
    needs_gpu: bool = False,
) -> Finding:
    """`ready`, `alive`: statuses of /readyz and /livez. `unit`: None if there is no systemd."""
    limit = f"http://{address}/readyz answers 200"
    service = unit if unit is not None and unit.installed else None
    systemd = f"; systemd: {service.summary}" if service else ""
    if isinstance(ready, str):
        value = f"{address}: {ready}{systemd}"
        return Finding("daemon", Level.FAIL, value, limit, _start_remedy(service), {ANSWERS: False})
    # This is checked first: once the engine was warm, /readyz stays 200 even if it hangs.
    if isinstance(alive, int) and alive != 200:
        return Finding("daemon", Level.FAIL, f"its engine hangs{systemd}", limit, _log_remedy(service))
    figures = {"backend": now.backend, "passed_over": dict(now.passed_over)} if now.backend else {}
    if ready == 200 and needs_gpu and now.on_cpu:
        value = f"ready at {address}, on {now.on_cpu}"
        return Finding("daemon", Level.FAIL, value, ON_ITS_GPU, GPU_REMEDY, figures)
    if ready == 200 and now.silent:
        return Finding("daemon", Level.WARN, f"ready at {address}; {now.silent}", limit, SPEAK_AGAIN, figures)
    if ready == 200:
        value = f"ready at {address}" + (f", on {now.backend}" if now.backend else "")
        return passed("daemon", value, limit, figures)
    if now.state == "starting" or (service and service.active == "activating"):
        value = f"starting for {now.for_s:.0f} s: {now.step}" if now.step else f"starting{systemd}"
        return Finding("daemon", Level.WARN, value, limit, WAIT)
    return Finding("daemon", Level.FAIL, f"not ready (HTTP {ready}){systemd}", limit, _log_remedy(service))


def merge_application(box: Iterable[Finding], application: Iterable[Finding]) -> list[Finding]:
    """Merge both lists. If nothing answers at /readyz but gRPC does, the daemon passes.

    The check of the box does not read the configuration, in which server.metrics may be "" or another
    address. The application's check does, and connects over gRPC.
    """
    others = list(application)
    serving = [finding for finding in others if finding.check == "daemon" and finding.level is Level.PASS]
    if serving:
        box = [serving[0] if f.check == "daemon" and f.figures.get(ANSWERS) is False else f for f in box]
    return merged(box, others)


def _start_remedy(unit: Unit | None) -> str:
    if unit is None:
        return "start it: sudo systemctl start f5-appliance. If it is not installed: appliance serve"
    if remedy := STATUS_REMEDIES.get(unit.exit_status):
        return f"{remedy}. Then: {_restart_command(unit)}"
    if unit.active == "inactive":
        return "start it: sudo systemctl enable --now f5-appliance"
    return _log_remedy(unit)


def _log_remedy(unit: Unit | None) -> str:
    return f"{LOG}. Then: {_restart_command(unit)}"


def _restart_command(unit: Unit | None) -> str:
    """Command that restarts the unit.

    Under a start limit, systemd refuses to start a failed unit until reset-failed.
    """
    failed = unit is not None and unit.active == "failed"
    return f"sudo systemctl reset-failed f5-appliance && {RESTART}" if failed else RESTART


@check("restarts", Harm.SILENCE, 4, lambda now: (now.unit, now.rise("restarts", HOUR_S)), anywhere=True)
def check_restarts(unit: Unit | None, restarts: Rise | None) -> Finding:
    """Count the daemon's restarts in the last hour. FAIL if systemd has stopped trying."""
    if unit is None or not unit.installed or restarts is None:
        return skipped("restarts", f"systemd has no {UNIT}")
    limit = f"in an hour: WARN from {RESTARTS_WARN}, FAIL from {RESTARTS_FAIL}"
    # The result lasts until the next start, which sets it to success.
    watchdog = unit.result == "watchdog" and unit.active in ("activating", "failed")
    value = restarts.summary + ("; last by the watchdog" if watchdog else "")
    figures = {"restarts": restarts.count, "recorded": restarts.recorded, "result": unit.result}
    if _given_up(unit):
        value = "systemd has stopped restarting it" + ("; last by the watchdog" if watchdog else "")
        return Finding("restarts", Level.FAIL, value, limit, _log_remedy(unit), figures)
    hourly = restarts.per(HOUR_S)
    level = Level.of(warn=hourly >= RESTARTS_WARN, fail=hourly >= RESTARTS_FAIL)
    remedy = "send the maker a bundle: sudo f5-support-bundle. Or " + _log_remedy(unit)
    return Finding("restarts", level, value, limit, remedy, figures)


def _given_up(unit: Unit) -> bool:
    """True if a start limit ended the restarts. After a crash, the unit's result still names the crash."""
    out_of_retries = unit.restarts >= RETRIES and unit.exit_status not in NOT_RETRIED
    return unit.active == "failed" and (unit.result == "start-limit-hit" or out_of_retries)

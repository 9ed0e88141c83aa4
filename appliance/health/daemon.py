"""The daemon from outside: does it answer, is it ready, does systemd keep starting it again."""

from __future__ import annotations

import http.client

from appliance.device.services import Unit
from appliance.health.finding import Finding, Level, passed, skipped
from appliance.health.history import Rise

READYZ = "127.0.0.1:9464"
ANSWER_S = 3.0
CONFIG = "/etc/f5-appliance/appliance.yaml"
UNIT = "f5-appliance.service"
HOUR_S = 3600.0
RESTARTS_WARN, RESTARTS_FAIL = 1, 3
READ_LOG = "read why: sudo journalctl -u f5-appliance -n 50; then: sudo systemctl restart f5-appliance"
ENDED = {
    65: "the bundle is missing or damaged: copy it to /var/lib/f5-appliance/bundle again",
    74: "a folder cannot be used: see the check disk, and sudo systemd-tmpfiles --create",
    75: "its address is in use: `sudo ss -ltnp` shows by whom",
    78: f"the configuration cannot be used: `sudo appliance check --config {CONFIG}` says where",
}
"""Exit status of the daemon → what to do."""


def ask(address: str, path: str) -> int | str:
    """HTTP status of a page of the daemon's, or why there is none."""
    try:
        connection = http.client.HTTPConnection(address, timeout=ANSWER_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def judge_daemon(ready: int | str, alive: int | str, address: str, unit: Unit | None) -> Finding:
    """`ready` and `alive`: what /readyz and /livez answered; `unit`: as systemd sees it, if it does."""
    limit = f"http://{address}/readyz answers 200"
    known = unit is not None and unit.installed
    systemd = f"; systemd: {unit.told}" if unit is not None and known else ""
    if ready == 200:
        return passed("daemon", f"ready at {address}", limit)
    if isinstance(ready, int):
        wedged = alive != 200 and isinstance(alive, int)
        if not wedged and unit is not None and known and unit.active == "activating":
            remedy = "wait some minutes; systemctl status f5-appliance shows how far it has come"
            return Finding("daemon", Level.WARN, f"starting{systemd}", limit, remedy)
        value = "its engine hangs" if wedged else f"not ready (HTTP {ready})"
        return Finding("daemon", Level.FAIL, value + systemd, limit, READ_LOG)
    return Finding(
        "daemon", Level.FAIL, f"{address}: {ready}{systemd}", limit, _start(unit if known else None)
    )


def _start(unit: Unit | None) -> str:
    if unit is None:
        return "start it: sudo systemctl start f5-appliance; where it is not installed, `appliance serve`"
    if told := ENDED.get(unit.exit_status):
        return f"{told}; then: sudo systemctl restart f5-appliance"
    if unit.active == "inactive":
        return "start it: sudo systemctl enable --now f5-appliance"
    return READ_LOG


def judge_restarts(unit: Unit | None, restarts: Rise | None) -> Finding:
    """How often systemd had to start it again in the last hour."""
    if unit is None or not unit.installed or restarts is None:
        return skipped("restarts", f"systemd knows no {UNIT} here")
    limit = f"in an hour: WARN from {RESTARTS_WARN}, FAIL from {RESTARTS_FAIL}"
    value = f"{restarts.told}" + ("; last by the watchdog" if unit.result == "watchdog" else "")
    figures = {"restarts": restarts.count, "recorded": restarts.recorded, "result": unit.result}
    hourly = restarts.per(HOUR_S)
    if unit.result == "start-limit-hit":
        again = "sudo systemctl reset-failed f5-appliance && sudo systemctl start f5-appliance"
        remedy = f"{READ_LOG.partition(';')[0]}; then: {again}"
        return Finding("restarts", Level.FAIL, "systemd has given up starting it", limit, remedy, figures)
    if hourly < RESTARTS_WARN:
        return Finding("restarts", Level.PASS, value, limit, figures=figures)
    level = Level.FAIL if hourly >= RESTARTS_FAIL else Level.WARN
    remedy = "send the maker a bundle: sudo f5-support-bundle; " + READ_LOG
    return Finding("restarts", level, value, limit, remedy, figures)

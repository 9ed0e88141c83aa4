"""The daemon from outside: does it answer, is it ready, does systemd keep starting it again."""

from __future__ import annotations

import http.client
from collections.abc import Iterable

from appliance.box import paths
from appliance.box.judge.finding import Finding, Level, merged, passed, skipped
from appliance.box.judge.history import Rise
from appliance.box.root import error_text
from appliance.box.services import Unit

READYZ = "127.0.0.1:9464"
ANSWER_S = 3.0
UNIT = "f5-appliance.service"
HOUR_S = 3600.0
RESTARTS_WARN, RESTARTS_FAIL = 1, 3
LOG = "read why: sudo journalctl -u f5-appliance -n 50"
RESTART = "sudo systemctl restart f5-appliance"
ANSWERS = "answers"
"""Figure of a finding: false when nobody answers at /readyz at all."""
ENDED = {
    65: "the bundle is missing or damaged: copy it to /var/lib/f5-appliance/bundle again",
    68: "no interface has its address: `ip -br address` shows which there are; server.listen names it",
    74: "a folder cannot be used: see the check disk, and sudo systemd-tmpfiles --create",
    75: "its address is in use: `sudo ss -ltnp` shows by whom",
    78: f"the configuration cannot be used: `sudo appliance check --config {paths.CONFIG}` says where",
}
"""Exit status of the daemon → what to do."""
NOT_RETRIED = (65, 74, 78)
"""Of the unit's RestartPreventExitStatus: systemd leaves these alone at once, and has not given up."""
RETRIES = 4
"""Our unit is started without end: one that has failed after so many has a limit of the site's."""


def ask(address: str, path: str) -> int | str:
    """HTTP status of a page of the daemon's, or why there is none."""
    try:
        connection = http.client.HTTPConnection(address, timeout=ANSWER_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()
    except OSError as error:
        return error_text(error)
    except (http.client.InvalidURL, ValueError, OverflowError):
        return "is no host:port"
    except http.client.HTTPException:
        return "what answers there speaks no HTTP"


def judge_daemon(ready: int | str, alive: int | str, address: str, unit: Unit | None) -> Finding:
    """`ready` and `alive`: what /readyz and /livez answered; `unit`: as systemd sees it, if it does."""
    limit = f"http://{address}/readyz answers 200"
    known = unit if unit is not None and unit.installed else None
    systemd = f"; systemd: {known.summary}" if known else ""
    if isinstance(ready, str):
        value = f"{address}: {ready}{systemd}"
        return Finding("daemon", Level.FAIL, value, limit, _start(known), {ANSWERS: False})
    # Before all else: /readyz knows only whether it was ever warm, and stays 200 while the engine hangs.
    if isinstance(alive, int) and alive != 200:
        return Finding("daemon", Level.FAIL, f"its engine hangs{systemd}", limit, _read_log(known))
    if ready == 200:
        return passed("daemon", f"ready at {address}", limit)
    if known and known.active == "activating":
        remedy = "wait some minutes; systemctl status f5-appliance shows how far it has come"
        return Finding("daemon", Level.WARN, f"starting{systemd}", limit, remedy)
    return Finding("daemon", Level.FAIL, f"not ready (HTTP {ready}){systemd}", limit, _read_log(known))


def with_applications(of_the_box: Iterable[Finding], told: Iterable[Finding]) -> list[Finding]:
    """Both, merged, but for a daemon that nobody answers for at /readyz and that answers the application.

    server.metrics may be "" or another address than the one that is asked here, which does not read the
    configuration. The application does, and it has asked over gRPC: a refused connection proves less.
    """
    answers = list(told)
    well = [finding for finding in answers if finding.check == "daemon" and finding.level is Level.PASS]
    seen = [
        well[0] if well and finding.check == "daemon" and finding.figures.get(ANSWERS) is False else finding
        for finding in of_the_box
    ]
    return merged(seen, answers)


def _start(unit: Unit | None) -> str:
    if unit is None:
        return "start it: sudo systemctl start f5-appliance; where it is not installed, `appliance serve`"
    if told := ENDED.get(unit.exit_status):
        return f"{told}; then: {_again(unit)}"
    if unit.active == "inactive":
        return "start it: sudo systemctl enable --now f5-appliance"
    return _read_log(unit)


def _read_log(unit: Unit | None) -> str:
    return f"{LOG}; then: {_again(unit)}"


def _again(unit: Unit | None) -> str:
    """Where a limit is set, systemd refuses every other start for a while, a technician's too."""
    failed = unit is not None and unit.active == "failed"
    return f"sudo systemctl reset-failed f5-appliance && {RESTART}" if failed else RESTART


def judge_restarts(unit: Unit | None, restarts: Rise | None) -> Finding:
    """How often systemd had to start it again in the last hour."""
    if unit is None or not unit.installed or restarts is None:
        return skipped("restarts", f"systemd knows no {UNIT} here")
    limit = f"in an hour: WARN from {RESTARTS_WARN}, FAIL from {RESTARTS_FAIL}"
    # Only until it is started again: that sets the result back to success.
    watchdog = unit.result == "watchdog" and unit.active in ("activating", "failed")
    value = f"{restarts.summary}" + ("; last by the watchdog" if watchdog else "")
    figures = {"restarts": restarts.count, "recorded": restarts.recorded, "result": unit.result}
    hourly = restarts.per(HOUR_S)
    if _given_up(unit):
        value = "systemd has given up starting it" + ("; last by the watchdog" if watchdog else "")
        return Finding("restarts", Level.FAIL, value, limit, _read_log(unit), figures)
    if hourly < RESTARTS_WARN:
        return Finding("restarts", Level.PASS, value, limit, figures=figures)
    level = Level.FAIL if hourly >= RESTARTS_FAIL else Level.WARN
    remedy = "send the maker a bundle: sudo f5-support-bundle; " + _read_log(unit)
    return Finding("restarts", level, value, limit, remedy, figures)


def _given_up(unit: Unit) -> bool:
    """start-limit-hit replaces only success: of a daemon that crashed, the result stays how it crashed."""
    if unit.active != "failed":
        return False
    crashed_on = unit.restarts >= RETRIES and unit.exit_status not in NOT_RETRIED
    return unit.result == "start-limit-hit" or crashed_on

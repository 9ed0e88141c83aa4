"""Each check at the edges of its limits: pure functions from readings to a finding."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from appliance.box.checks import fitness, heat, power, readiness, storage
from appliance.box.checks.counters import Rise
from appliance.box.checks.finding import Finding, Level, document, exit_code, from_document, passed, skipped
from appliance.box.checks.readiness import SILENT, DaemonState
from appliance.box.sensors.disk import Volume
from appliance.box.sensors.ram import Memory
from appliance.box.show.findings import table
from appliance.box.system import Unit
from appliance.box.versions import BuildInfo

GIB = 1 << 30
PASS, WARN, FAIL, SKIP = Level.PASS, Level.WARN, Level.FAIL, Level.SKIP


def recorded(count: int, span_s: float) -> Rise:
    return Rise(count, span_s, recorded=True)


def unit(**properties: str) -> Unit:
    return Unit.of({"LoadState": "loaded", "ActiveState": "active", **properties})


def temperature(degrees: float | None) -> Finding:
    return heat.check_temperature(degrees, {})


def wattage(module: str, milliwatts: float | None) -> Finding:
    return power.check_power({}, milliwatts, module)


def memory(available: float) -> Finding:
    return storage.check_memory(Memory(64 * GIB, int(available * 64 * GIB) + 1, 0, 0))


def blocks(count: int | None, percent: int = 29) -> Finding:
    return storage.check_large_blocks(count, Memory(100, percent, 0, 0))


def swap(used: int, pages: Rise | None) -> Finding:
    return storage.check_swap(Memory(64 * GIB, 32 * GIB, 32 * GIB, used), pages)


def disk(**changes: Any) -> Finding:
    whole = Volume("/", 100 * GIB, 50 * GIB, 1000, 500, read_only=False)
    found = storage.check_disk([whole, dataclasses.replace(whole, mount="/data", **changes)])
    assert found.level is PASS or found.value.startswith("/data")
    return found


def versions(*made: Any, problem: str = "", now: BuildInfo | None = None) -> Finding:
    return fitness.check_versions(now or BOX, BuildInfo(*made, problem=problem))


def daemon(ready: int | str, alive: int | str, state: Unit | None, told: DaemonState = SILENT) -> Finding:
    return readiness.check_daemon(ready, alive, "127.0.0.1:9464", state, told)


BOX = BuildInfo((36, 4, 3), (10, 3, 0), "p3701-0005")
REFUSED = "Connection refused"
FAILED = {"ActiveState": "failed"}
AGAIN = "apt install --reinstall"
EDGES: list[tuple[Callable[..., Finding], tuple[Any, ...], Level, str]] = [
    *((temperature, (degrees,), level, "") for degrees, level in (
        (20.0, PASS), (84.9, PASS), (85.0, WARN), (94.9, WARN), (95.0, FAIL), (99.5, FAIL), (None, WARN))),
    (heat.check_fan, (66, 1740, "active", 90.0), PASS, ""),
    (heat.check_fan, (0, 0, "active", 60.0), PASS, ""),
    (heat.check_fan, (0, None, "active", 60.1), FAIL, "restart nvfancontrol"),
    (heat.check_fan, (80, 0, "active", 60.1), FAIL, "replace it"),
    (heat.check_fan, (0, 0, "active", None), PASS, ""),
    (heat.check_fan, (255, 5000, "inactive", 50.0), WARN, "enable --now nvfancontrol"),
    (heat.check_fan, (None, None, "failed", 50.0), WARN, "FAN_DEFAULT_PROFILE"),
    (heat.check_fan, (0, 0, "failed", 60.1), FAIL, "FAN_DEFAULT_PROFILE"),
    (heat.check_fan, (255, 5000, "activating", 50.0), WARN, "FAN_DEFAULT_PROFILE"),  # starts again and again
    (heat.check_fan, (None, None, "", 50.0), SKIP, ""),
    (heat.check_fan, (66, None, "", 50.0), PASS, ""),
    *((power.check_under_voltage, (events,), level, "") for events, level in (
        (recorded(0, 3600), PASS), (recorded(1, 3600), WARN), (recorded(5, 3600), WARN), (None, SKIP),
        (recorded(6, 3600), FAIL), (recorded(6, 300), FAIL),  # six within an hour, whatever happens later
        (recorded(10, 7200), WARN), (Rise(12, 86_400, recorded=False), WARN))),
    (power.check_average_current, (recorded(0, 600), "MODE_50W"), PASS, ""),
    (power.check_average_current, (recorded(1, 600), "MODE_50W"), WARN, "power_mode: MODE_50W"),
    (power.check_average_current, (recorded(10, 600), "MODE_50W"), WARN, "power_mode: MODE_50W"),
    (power.check_average_current, (recorded(11, 600), "MODE_50W"), FAIL, "power_mode: MODE_50W"),
    (power.check_bursts, (recorded(1200, 60), False, ""), PASS, ""),
    (power.check_bursts, (recorded(1200, 60), True, ""), PASS, ""),
    (power.check_bursts, (recorded(1201, 60), False, ""), WARN, "nvpmodel -p --verbose"),
    (power.check_bursts, (recorded(1201, 60), True, ""), FAIL, "nvpmodel -p --verbose"),
    *((wattage, case, level, "") for case, level in (
        (("p3701-0005", 60_000.0), PASS), (("p3701-0005", 60_001.0), WARN), (("p3701-0004", 40_001.0), WARN),
        (("p9999-0000", 90_000.0), PASS), (("p3701-0005", None), SKIP))),
    *((memory, (share,), level, "") for share, level in (
        (0.15, PASS), (0.149, WARN), (0.05, WARN), (0.049, FAIL))),
    *((blocks, case, level, "") for case, level in (
        ((4,), PASS), ((3,), WARN), ((0,), WARN), ((0, 30), PASS), ((None,), SKIP))),
    *((swap, case, level, "") for case, level in (
        ((0, recorded(10**6, 300)), PASS),  # nothing is swapped any more
        ((GIB, recorded(0, 300)), PASS), ((GIB, recorded(299, 300)), PASS), ((GIB, recorded(300, 300)), WARN),
        ((GIB, recorded(300_000, 300)), FAIL), ((GIB, None), SKIP))),
    *((partial(disk, **changes), (), level, "") for changes, level in (
        ({}, PASS), ({"free_bytes": 15 * GIB}, PASS), ({"free_bytes": 15 * GIB - 1}, WARN),
        ({"free_bytes": 5 * GIB}, WARN), ({"free_bytes": 5 * GIB - 1}, FAIL),
        ({"total_bytes": 10 * GIB, "free_bytes": 5 * GIB - 1}, WARN),  # half of the disk, but few bytes
        ({"total_bytes": 3 * GIB, "free_bytes": GIB - 1}, FAIL),
        ({"free_inodes": 149}, WARN), ({"free_inodes": 49}, FAIL),
        ({"inodes": 0, "free_inodes": 0}, PASS),  # btrfs has no fixed number
        ({"read_only": True}, FAIL), ({"volatile": True}, WARN))),
    (versions, ((36, 4, 4), (10, 3, 0), "p3701-0005"), WARN, AGAIN),
    (versions, ((36, 4, 3), (10, 3, 0), "p3701-0004"), WARN, AGAIN),
    (versions, ((36, 4, 3), (10, 7, 0), "p3701-0005"), PASS, ""),  # the box has its JetPack's version
    (partial(versions, problem="manifest.json is missing"), (), WARN, AGAIN),
    (partial(versions, now=BuildInfo((36, 4, 3), (10, 3, 0, 26))), ((36, 4, 3), (10, 3, 0)), PASS, ""),
    (partial(versions, now=BuildInfo((39, 2, 1), (10, 13, 3))), ((39, 2), (10, 13, 3)), WARN, "apt policy"),
    (partial(versions, now=BuildInfo((39, 2, 1), (10, 13, 3))), ((39, 2), (10, 16, 2)), WARN, "apt policy"),
    (partial(versions, now=BuildInfo((39, 3), (10, 17))), ((39, 3), (10, 16)), WARN, "apt policy"),
    (fitness.check_versions, (BuildInfo((39, 2), (10, 13)), BuildInfo(), {(10, 13)}), PASS, ""),  # it spoke
    (fitness.check_versions, (BOX, None), SKIP, ""),
    *((fitness.check_time, case, level, "") for case, level in (
        ((37.0, True), WARN), ((1_704_067_199.0, True), WARN), ((1_704_067_200.0, True), PASS),
        ((1_704_067_200.0, None), PASS), ((1_704_067_200.0, False), WARN))),
    (daemon, (200, 200, unit()), PASS, ""),
    (daemon, (503, 200, unit(ActiveState="activating")), WARN, "f5-setup"),
    (daemon, (200, 503, unit()), FAIL, "journalctl -u f5-appliance"),
    (daemon, (503, 503, unit(ActiveState="activating")), FAIL, "journalctl -u f5-appliance"),
    (daemon, (503, 200, unit()), FAIL, "journalctl -u f5-appliance"),
    (daemon, (REFUSED, "", unit(ActiveState="inactive")), FAIL, "enable --now f5-appliance"),
    (daemon, (REFUSED, "", unit(**FAILED, ExecMainStatus="65")), FAIL, "bundle"),
    (daemon, (REFUSED, "", unit(**FAILED, ExecMainStatus="78")), FAIL, "configuration"),
    (daemon, (REFUSED, "", unit(**FAILED, Result="core-dump")), FAIL, "journalctl"),
    (daemon, (REFUSED, "", unit(LoadState="not-found")), FAIL, "appliance serve"),
    (daemon, ("timed out", "", None), FAIL, "systemctl start f5-appliance"),
    *((daemon, (200, 200, None, DaemonState("running", paused_s=paused, held_damage=damage)), level, says)
      for paused, damage, level, says in (
        ({"a": 3_599.0}, "", PASS, ""), ({"a": 3_600.0}, "", WARN, "resume"), ({}, "lost", WARN, "file"))),
    *((readiness.check_restarts, case, level, "") for case, level in (
        ((unit(), recorded(0, 3600)), PASS), ((unit(), recorded(1, 3600)), WARN),
        ((unit(), recorded(2, 3600)), WARN),
        ((unit(ActiveState="activating", Result="watchdog"), recorded(3, 3600)), FAIL),
        ((unit(**FAILED, Result="start-limit-hit"), recorded(0, 3600)), FAIL),
        ((unit(**FAILED, Result="core-dump", NRestarts="4"), recorded(0, 3600)), FAIL),
        ((unit(**FAILED, Result="core-dump", NRestarts="3"), recorded(0, 3600)), PASS),
        ((unit(**FAILED, ExecMainStatus="78", NRestarts="4"), recorded(0, 3600)), PASS),
        ((unit(Result="success", NRestarts="9"), recorded(0, 3600)), PASS),
        ((unit(LoadState="not-found"), recorded(9, 60)), SKIP), ((None, None), SKIP))),
]  # fmt: skip


@pytest.mark.parametrize(("check", "readings", "level", "remedy"), EDGES)
def test_each_check_at_its_edges(
    check: Callable[..., Finding], readings: tuple[Any, ...], level: Level, remedy: str
) -> None:
    found = check(*readings)
    assert found.level is level, found
    assert remedy in found.remedy


def test_a_daemon_that_runs_again_was_not_ended_by_the_watchdog() -> None:
    told = readiness.check_restarts(unit(Result="watchdog"), recorded(1, 3600)).value
    assert "watchdog" not in told


@pytest.mark.parametrize(("ready", "grpc", "level"), [
    ("Connection refused", PASS, PASS), ("Connection refused", FAIL, FAIL), (503, PASS, FAIL),
    (200, PASS, PASS), (200, FAIL, FAIL),
])  # fmt: skip
def test_the_application_decides_if_there_is_no_readyz(ready: int | str, grpc: Level, level: Level) -> None:
    service = unit(ActiveState="failed", ExecMainStatus="75")
    seen = [readiness.check_daemon(ready, 200, "127.0.0.1:9464", service), Finding("restarts", PASS, "")]
    found = readiness.merge_application(seen, [Finding("bundle", PASS, ""), Finding("daemon", grpc, "grpc")])
    assert [finding.check for finding in found] == ["daemon", "restarts", "bundle"]
    assert found[0].level is level
    by_systemd = (ready, grpc) == ("Connection refused", FAIL)
    assert ("ss -ltnp" in found[0].remedy) == by_systemd, "the exit status tells more than no answer"


@pytest.mark.parametrize(("levels", "code"), [
    ([], 0), ([SKIP], 0), ([PASS, SKIP], 0), ([PASS, WARN], 1), ([FAIL, WARN, PASS], 2), ([SKIP, FAIL], 2),
])  # fmt: skip
def test_the_worst_is_the_exit_status(levels: list[Level], code: int) -> None:
    assert exit_code(Finding("a", level, "") for level in levels) == code


def test_a_document_reads_back() -> None:
    findings = [passed("a", "fine", "limit", {"x": 1.5}), Finding("b", FAIL, "bad", "less", "mend it")]
    raw = document(findings)
    assert (raw["level"], raw["exit"]) == ("FAIL", 2)
    assert from_document(raw) == findings


@pytest.mark.parametrize("raw", [
    None, [], {}, {"schema": 2, "findings": []}, {"schema": 1, "findings": [{"check": "a"}]}, {"schema": 1},
])  # fmt: skip
def test_a_document_that_is_none(raw: object) -> None:
    with pytest.raises(ValueError, match="finding"):
        from_document(raw)


def test_the_table() -> None:
    findings = [
        passed("short", "fine", "a limit that nobody needs to read"),
        Finding(
            "a_long_name",
            FAIL,
            f"broken{' into' * 30} bits",
            "whole",
            "mend it: sudo true. Why: it is broken",
        ),
        skipped("x", "not a Jetson"),
        skipped("y", "not a Jetson"),
        skipped("z", "needs root"),
    ]
    assert table(findings, verbose=True).splitlines() == [
        "PASS  short        fine",
        f"FAIL  a_long_name  broken{' into' * 30} bits  [whole]",
        "      → mend it: sudo true. Why: it is broken",
        "SKIP  x, y: not a Jetson",
        "SKIP  z: needs root",
        "1 PASS · 1 FAIL · 3 SKIP",
    ]
    brief = table(findings).splitlines()
    assert brief[1] == f"FAIL  a_long_name  broken{' into' * 18} …" and len(brief[1]) <= 120
    assert brief[2:] == [
        "      → mend it: sudo true",
        *("SKIP  x, y: not a Jetson", "SKIP  z: needs root"),
        "1 PASS · 1 FAIL · 3 SKIP · full list: f5-health --verbose",
    ]


def test_text_of_other_programs_does_not_steer_the_terminal() -> None:
    for level in (FAIL, SKIP):
        shown = table([Finding("a", level, "one\x1b[2Jtwo\nthree", "", "x\x07y")])
        assert "\x1b" not in shown and "\x07" not in shown
        assert "one [2Jtwo three" in shown

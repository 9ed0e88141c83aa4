"""The units, as systemd reads them, and as the product's code relies on them."""

import re
import shutil
from pathlib import Path

import pytest

from appliance.box.clocks import clocks_json
from appliance.config import GatewayConfig, ServerConfig, WyomingConfig
from appliance.errors import Exit
from appliance.gateway import serving
from appliance.serve import daemon
from appliance.serve.notify import Notifier
from appliance.serve.supervision import SILENCE_S, Supervision
from scripts.debian.package import COMMANDS, OPTIONAL
from tests.harness.daemons import finished
from tests.systemd.staging import ENABLED, SOURCE, Staged, stage, unit_names, values

pytestmark = [pytest.mark.slow, pytest.mark.once]

needs_systemd = pytest.mark.skipif(
    not (shutil.which("systemd-analyze") and shutil.which("systemctl")),
    reason="systemd is not installed here",
)
DAEMON = (SOURCE / "f5-appliance.service").read_text()
GATEWAY = (SOURCE / "f5-gateway.service").read_text()
WYOMING = (SOURCE / "f5-wyoming.service").read_text()
CLOCKS = (SOURCE / "f5-clocks.service").read_text()


@pytest.fixture
def staged(tmp_path: Path) -> Staged:
    return stage(tmp_path)


def seconds(text: str) -> float:
    """30 → 30.0, "5min" → 300.0."""
    number, unit = re.fullmatch(r"(\d+)(s|min|)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"": 1.0, "s": 1.0, "min": 60.0}[unit]


def test_the_units_that_the_design_names() -> None:
    timed = ("clocks-check", "health", "guard", "upgrade-again")
    pairs = [f"f5-{name}.{kind}" for name in timed for kind in ("service", "timer")]
    serve = [f"f5-{name}.service" for name in ("appliance", "clocks", "gateway", "wyoming")]
    assert unit_names() == sorted([*serve, *pairs])


def test_all_units_that_can_be_enabled_are_listed() -> None:
    enabled = {name for name in unit_names() if values((SOURCE / name).read_text(), "WantedBy")}
    assert enabled == {*ENABLED, *OPTIONAL}


@needs_systemd
def test_systemd_finds_nothing_wrong(staged: Staged) -> None:
    assert staged.verify() == []
    assert staged.boot() == []


@needs_systemd
def test_a_misspelt_key_would_be_found_in_every_unit(staged: Staged) -> None:
    names = [*unit_names(), "nvpmodel.service.d/f5-appliance.conf"]
    for name in names:
        with staged.unit(name).open("a") as unit:
            unit.write("\n[Unit]\nAftre=network.target\n")
    found = [line for line in staged.verify() if "Unknown key" in line]
    assert [name for name in names if not any(f"/{name}:" in line for line in found)] == []


@needs_systemd
def test_a_program_that_is_not_there_would_be_found(staged: Staged) -> None:
    staged.at("/usr/bin/f5-clock-lock").unlink()
    said = "\n".join(staged.verify())
    for name in ("f5-clocks.service", "f5-clocks-check.service"):
        assert re.search(f"{name}: Command /usr/bin/f5-clock-lock is not executable", said)


@needs_systemd
@pytest.mark.parametrize(("name", "before", "after"), [
    ("f5-clocks.service", "Before=f5-appliance.service", "After=jtop.service"),
    ("f5-appliance.service", "Wants=f5-clocks.service", "Before=nvpmodel.service"),
])  # fmt: skip
def test_a_circle_in_the_boot_order_is_found(staged: Staged, name: str, before: str, after: str) -> None:
    staged.add(
        "jtop.service",
        "[Unit]\nAfter=multi-user.target\n[Service]\nExecStart=/usr/sbin/nvpmodel\n"
        "[Install]\nWantedBy=multi-user.target\n",
        enable=True,
    )
    assert staged.boot() == []
    staged.change(name, before, after)
    said = "\n".join(staged.boot())
    assert "Found ordering cycle" in said
    assert "deleted to break ordering cycle" in said


def exposure(unit: Path) -> tuple[int, float]:
    ran = finished("systemd-analyze", "security", "--offline=true", "--threshold=35", unit)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", ran.stdout)
    assert found, ran.stdout + ran.stderr
    return ran.returncode, float(found[1])


@needs_systemd
@pytest.mark.parametrize("name", ["f5-appliance.service", "f5-gateway.service", "f5-wyoming.service"])
def test_serving_units_have_little_exposure(staged: Staged, name: str) -> None:
    unit = staged.unit(name)
    code, level = exposure(unit)
    assert code == 0 and level <= 3.5
    staged.change(name, "CapabilityBoundingSet=", "# no bounding set")
    staged.change(name, "ProtectSystem=strict", "# all may be written")
    code, level = exposure(unit)
    assert code == 1 and level > 3.5


@needs_systemd
def test_the_night_is_a_time_that_systemd_knows() -> None:
    (when,) = values((SOURCE / "f5-guard.timer").read_text(), "OnCalendar")
    ran = finished("systemd-analyze", "calendar", when)
    assert ran.returncode == 0 and "03:30:00" in ran.stdout


def table() -> dict[int, bool]:
    """Exit status → whether another start may help, from the table at the top of daemon.py."""
    rows = re.findall(r"^(\d+) .*\s(-|yes|no)$", daemon.__doc__ or "", re.MULTILINE)
    return {int(code): again == "yes" for code, again in rows if again != "-"}


def test_systemd_restarts_after_statuses_that_may_improve() -> None:
    assert set(table()) == set(Exit) - {Exit.OK}
    (prevented,) = values(DAEMON, "RestartPreventExitStatus")
    assert {int(code) for code in prevented.split()} == {code for code, again in table().items() if not again}
    assert values(DAEMON, "Restart") == ["on-failure"]


@pytest.mark.parametrize("text", [DAEMON, GATEWAY, WYOMING], ids=["daemon", "gateway", "wyoming"])
def test_restarts_go_on_forever_at_growing_intervals(text: str) -> None:
    assert values(text, "StartLimitIntervalSec") == ["0"] and not values(text, "StartLimitBurst")
    (first,), (steps,), (last,) = (
        values(text, key) for key in ("RestartSec", "RestartSteps", "RestartMaxDelaySec")
    )
    # A systemd before 254 uses the first delay alone: it must not be so short that restarts fill the journal.
    assert 5.0 <= seconds(first) < seconds(last) <= 60.0 and int(steps) > 1


@needs_systemd
def test_systemds_own_watchdog_is_on(tmp_path: Path) -> None:
    """systemd-analyze reads the configuration as systemd does."""
    shutil.copytree(SOURCE / "system.conf.d", tmp_path / "usr/lib/systemd/system.conf.d")
    of_l4t = tmp_path / "etc/systemd/system.conf.d/watchdog.conf"
    of_l4t.parent.mkdir(parents=True)
    of_l4t.write_text("[Manager]\nRuntimeWatchdogSec=60s\n")
    ran = finished("systemd-analyze", "cat-config", f"--root={tmp_path}", "systemd/system.conf")
    assert values(ran.stdout, "RuntimeWatchdogSec") == ["60s", "120s"], f"the last one counts: {ran.stderr}"
    spans = [*values(ran.stdout, "RuntimeWatchdogSec"), *values(ran.stdout, "RebootWatchdogSec")]
    assert finished("systemd-analyze", "timespan", *spans).returncode == 0


def test_a_drain_ends_before_systemd_ends_it() -> None:
    (stop,) = values(DAEMON, "TimeoutStopSec")
    assert seconds(stop) >= ServerConfig().drain_s + daemon.AFTER_DRAIN_S + 5.0
    for text, section in ((GATEWAY, GatewayConfig()), (WYOMING, WyomingConfig())):
        (stop,) = values(text, "TimeoutStopSec")
        assert seconds(stop) >= section.drain_s + 5.0


@pytest.mark.parametrize("text", [GATEWAY, WYOMING], ids=["gateway", "wyoming"])
def test_programs_before_the_daemon_outlive_it_and_feed_their_watchdog(text: str) -> None:
    assert values(text, "Wants") == ["f5-appliance.service"]
    assert not values(text, "Requires") and not values(text, "BindsTo")
    (watchdog,) = values(text, "WatchdogSec")
    assert seconds(watchdog) > 2 * serving.BEAT_S
    (prevented,) = values(text, "RestartPreventExitStatus")
    assert [int(code) for code in prevented.split()] == [Exit.STORAGE, Exit.CONFIG]
    assert values(text, "RestartForceExitStatus") == ["SIGHUP"]


def test_the_engine_has_the_same_time_without_systemd() -> None:
    (watchdog,) = values(DAEMON, "WatchdogSec")
    assert Supervision(Notifier(watchdog_s=seconds(watchdog)), lambda: 0.0).limit_s == SILENCE_S


def test_the_check_comes_as_often_as_readers_of_its_file_count_on() -> None:
    timer = (SOURCE / "f5-clocks-check.timer").read_text()
    assert [seconds(value) for value in values(timer, "OnUnitActiveSec")] == [clocks_json.CHECK_PERIOD_S]


DRIVER = "nv-load-display-modules.service nv-load-gpu-libs.service"
WATCHED = ("f5-clocks", "f5-clocks-check")
FACTS: list[tuple[str, str, list[str]]] = [
    # The statuses are scripts/clock-lock's: 1 not pinned, 3 a reboot is pending, 4 not a supported box.
    *((name, "SuccessExitStatus", ["1 3 4"]) for name in WATCHED),
    # The unit waits for every service that unpins clocks, and for no service that starts late.
    ("f5-clocks", "After", [f"nvpower.service nvpmodel.service nvfancontrol.service {DRIVER}"]),
    ("f5-clocks", "Before", ["f5-appliance.service"]),
    ("f5-appliance", "Wants", ["f5-clocks.service"]), ("f5-appliance", "Requires", []),
    # A later run of nvpmodel pins the clocks again, but ends no unlock. At boot it does nothing, because
    # f5-clocks.service starts later: clocks are pinned once. The reload comes after nvpmodel.service, which
    # would wait for itself without --no-block.
    ("nvpmodel.service.d/f5-appliance.conf", "ExecStartPost",
     ["-/usr/bin/systemctl --no-block try-reload-or-restart f5-clocks.service"]),
    ("f5-clocks", "ExecReload", ["/usr/bin/f5-clock-lock lock --unless-unlocked"]),
    ("f5-clocks", "RemainAfterExit", ["yes"]),  # otherwise there would be nothing to reload
    ("f5-clocks", "ExecStart", ["/usr/bin/f5-clock-lock lock"]),  # at boot, or by hand
    # The programs that write to /sys may do so, and the daemon may not.
    *((name, key, []) for name in WATCHED for key in ("ProtectKernelTunables", "User")),
    *((name, "Environment", ["HOME=/root"]) for name in WATCHED),
    *((name, "ReadWritePaths", ["-/etc/modprobe.d"]) for name in WATCHED),
    ("f5-appliance", "ProtectKernelTunables", ["yes"]), ("f5-appliance", "User", ["f5-appliance"]),
    ("f5-appliance", "RuntimeDirectory", []),
    # Health sees the real disks.
    *((name, key, []) for name in ("f5-health", "f5-guard")
      for key in ("ProtectSystem", "ReadOnlyPaths", "ProtectHome")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "expected"), FACTS)
def test_the_code_relies_on_these_settings(name: str, key: str, expected: list[str]) -> None:
    assert values((SOURCE / (name if "." in name else f"{name}.service")).read_text(), key) == expected


def test_the_daemon_starts_after_the_gpus_driver() -> None:
    assert values(DAEMON, "After")[0].endswith(f" {DRIVER}")


@pytest.mark.parametrize("key", [
    *("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "MemoryDenyWriteExecute"),
    *("ProcSubset", "PrivateUsers", "PrivateNetwork", "IPAddressDeny"),
])  # fmt: skip
def test_missing_hardening_has_a_reason(key: str) -> None:
    assert not values(DAEMON, key)
    reasons = DAEMON.partition("Not restricted, and why")[2]
    assert re.search(rf"^# .*\b{key}\b.*", reasons, re.MULTILINE)


def test_the_units_programs_are_in_the_package() -> None:
    for path in [*SOURCE.glob("*.service"), *SOURCE.glob("*.d/*.conf")]:
        text = path.read_text()
        for command in values(text, "ExecStart") + values(text, "ExecStartPost"):
            program = command.lstrip("-").split()[0]
            if program == "/usr/bin/systemctl":
                continue
            name = program.removeprefix("/usr/bin/")
            assert name == "python3" or name.removeprefix("f5-") in COMMANDS, f"{path}: {program}"

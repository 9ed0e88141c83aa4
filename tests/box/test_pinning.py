"""Pinning, unpinning and watching, on fakes whose tools write the files that the product reads back."""

import fcntl
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.box.checks.clocks import check_clocks
from appliance.box.checks.finding import Level
from appliance.box.clocks import clocks_json
from appliance.box.clocks.acting import BASELINE
from appliance.box.clocks.boots import history
from appliance.box.clocks.decision import UNLOCKED
from appliance.box.clocks.pinning import ClockError, NotPublished, check, lock, unlock
from appliance.box.clocks.reason import Reason
from appliance.box.clocks.verdict import take_reading
from appliance.box.paths import BOOTS, CLOCK_MUTEX, CLOCKS, NVPMODEL_CONF, THIS_BOOT
from appliance.box.system import Box
from tests.fakes.jetson.board import SUPPORTED, Clock, Jetson
from tests.harness.boxes import lay, quick

pytestmark = [pytest.mark.slow, pytest.mark.once]

CPU = "/sys/devices/system/cpu/cpu{}"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
SETS = "nvpmodel -m 0"
PINS = "jetson_clocks"


def proven(jetson: Jetson) -> bool:
    """True if the files are pinned by the numbers of the profile; the product's code is not used."""
    profile, limits = jetson.profile, set()
    for number in range(profile.cpus):
        folder = CPU.format(number)
        limits |= {jetson.read(f"{folder}/cpufreq/scaling_{name}_freq") for name in ("min", "max", "cur")}
        limits |= {str(profile.cpu_max_khz)} if jetson.read(f"{folder}/online") == "1" else {"offline"}
    gpu = {jetson.read(f"{profile.devfreq}/{name}_freq") for name in ("min", "max", "cur")}
    memory = {jetson.read(profile.emc_files[name]) for name in ("max", "cur")}
    lock = (f"{EMC}/mrq_rate_locked", "1")
    if profile.jetpack == 7:
        lock = ("/sys/class/devfreq/bwmgr/min_freq", "3199000000")
    return (
        jetson.mode == "MAXN"
        and limits == {str(profile.cpu_max_khz)}
        and gpu == {str(profile.gpu_hz[-1])}
        and memory == {str(profile.emc_max_hz)}
        and jetson.read(lock[0]) == lock[1]
        and jetson.read(profile.tpc_mask) == str(profile.mode("MAXN").tpc_mask)
    )


def limits(jetson: Jetson) -> dict[str, str | bytes]:
    """Content of every file below /sys but the present frequencies."""
    present = ("cur_freq", "emc/rate")
    found = ((path, text.strip()) for path, (_, text) in jetson.snapshot().items() if path.startswith("sys/"))
    return {path: text for path, text in found if not path.endswith(present)}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def box(maxn: Jetson, clock: Clock) -> Box:
    return quick(maxn, **clock.arguments)


@pytest.fixture
def read_only(box: Box, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Let all writes to the box's files fail; undo() ends it."""

    def refuse(self: object, path: str, text: str) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(type(box.root), "write", refuse)
        yield patched


@pytest.mark.parametrize("profile", SUPPORTED)
def test_lock_pins_a_factory_box(tmp_path: Path, profile: str) -> None:
    jetson, clock = Jetson(tmp_path, profile), Clock()
    box = quick(jetson, **clock.arguments)

    first = lock(box)
    assert first.state == "reboot_pending" and "--allow-reboot" in first.why
    assert first.domains["gpu"]["min"] == 612_000_000, "held as far as 30 W allows"
    assert clocks_json.read(box).state == "reboot_pending"
    assert jetson.reboots == 0 and not jetson.path(BASELINE).exists()

    again = lock(box)
    assert again.state == "reboot_pending"
    assert check(box).state == "reboot_pending"
    assert jetson.calls("nvpmodel").count(SETS) == 1, "asked once in a boot"

    rebooting = lock(box, allow_reboot=True)
    assert (rebooting.state, rebooting.reason) == ("reboot_pending", Reason.REBOOTING)
    assert "rebooting" in rebooting.why
    assert jetson.reboots == 1

    jetson.boot()
    clock.uptime_s = 20.0
    assert clocks_json.read(box).state == "unknown", "the file of the last boot went with it"
    assert not proven(jetson)
    clocks = lock(box)
    assert (clocks.state, clocks.mode, clocks.why, clocks.repins) == ("pinned", "MAXN", "", 0)
    assert proven(jetson)
    assert clocks_json.read(box) == clocks
    assert "scaling_min_freq:729600" in jetson.read(BASELINE)
    assert jetson.calls("nvpmodel").count(SETS) == 2

    assert check(box).state == "pinned"
    assert jetson.calls(PINS).count(PINS) == 3, "a check of a pinned box pins nothing"


def asks_before_each_boot(jetson: Jetson) -> None:
    """JetPack 7.2 asks for a reboot even for the present mode."""
    jetson.fault("reboot_prompt")


def super_mode(jetson: Jetson) -> None:
    text = jetson.read(NVPMODEL_CONF).replace("ID=3 NAME=MODE_50W", "ID=3 NAME=MAXN_SUPER")
    text = text.replace("GPU MAX_FREQ 816000000", "GPU MAX_FREQ -1").replace("1497600", "-1")
    jetson.write(NVPMODEL_CONF, text)


def late_gpu(jetson: Jetson) -> None:
    jetson.set_mode("MODE_50W")
    jetson.fault("no_devfreq", calls=4)


def core_off(jetson: Jetson) -> None:
    lock(quick(jetson))
    jetson.write(f"{CPU.format(11)}/online", "0\n")


@pytest.mark.parametrize(("arrange", "mode", "sets"), [
    (lambda jetson: jetson.set_mode("MODE_50W"), "MAXN", 1),  # without a reboot
    (asks_before_each_boot, "MAXN", 0),  # does not set the present mode again
    (super_mode, "MAXN_SUPER", 0),  # preferred to MAXN, whatever its id
    (late_gpu, "MAXN", 1),  # waits for the GPU before it sets the mode
    (core_off, "MAXN", 0),  # turns the core on
], ids=["a lesser mode", "a reboot asked for", "MAXN_SUPER", "a late GPU", "a core that is off"])  # fmt: skip
def test_the_best_mode_is_set_and_pinned_at_once(
    maxn: Jetson, box: Box, arrange: Callable[[Jetson], object], mode: str, sets: int
) -> None:
    arrange(maxn)
    for allow_reboot in (False, True):
        clocks = lock(box, allow_reboot=allow_reboot)
        assert (clocks.state, clocks.mode, maxn.reboots) == ("pinned", mode, 0)
    assert maxn.calls("nvpmodel").count(SETS) == sets
    assert proven(maxn) if mode == "MAXN" else "nvpmodel -m 3" in maxn.calls()


def test_systemd_reboots_if_nvpmodel_does_not(tmp_path: Path) -> None:
    jetson = Jetson(tmp_path, "jp7-0005")
    prompt = "NVPM WARN: Reboot required for changing to this power mode: 0"
    lay(jetson, "nvpmodel", f"[ $1 = -q ] && echo 'NV Power Mode: MODE_30W' && echo 2 || echo '{prompt}'")
    assert "rebooting" in lock(quick(jetson), allow_reboot=True).why
    assert jetson.calls("systemctl") == ["systemctl reboot"]


@pytest.mark.parametrize("fault", ["reboot_prompt", "ebusy"])
def test_a_lesser_mode_that_cannot_be_set_is_not_overrun(maxn: Jetson, box: Box, fault: str) -> None:
    maxn.write("/etc/f5-appliance/appliance.yaml", "device:\n  power_mode: MODE_50W\n")
    maxn.fault(fault)
    clocks = lock(box)
    assert (clocks.mode, clocks.state == "reboot_pending") == ("MAXN", fault == "reboot_prompt")
    assert ("NVPM ERROR: Error writing" in clocks.why) is (fault == "ebusy")
    held = {clocks.domains[name]["max"] for name in ("cpu0", "cpu11", "gpu")}
    assert held == {1_497_600_000, 816_000_000} and clocks.domains["gpu"]["pinned"]


@pytest.mark.parametrize("profile", ["jp6-0005", "jp7-0005"])
def test_a_mode_whose_caps_lie_between_steps_is_pinned_at_the_lower(tmp_path: Path, profile: str) -> None:
    jetson = Jetson(tmp_path, profile)
    text = jetson.read(NVPMODEL_CONF)
    start = text.index("NAME=MODE_50W")
    block = text[start : text.index("\n<", start)]
    for limit, cap in (("1497600", "1500000"), ("GPU MAX_FREQ 816000000", "GPU MAX_FREQ 900000000")):
        assert limit in block
        block = block.replace(limit, cap)
    block = re.sub(r"EMC MAX_FREQ \S+", "EMC MAX_FREQ 2500000000", block)
    jetson.write(NVPMODEL_CONF, text[:start] + block + text[text.index("\n<", start) :])
    jetson.write("/etc/f5-appliance/appliance.yaml", "device:\n  power_mode: MODE_50W\n")
    clocks = lock(quick(jetson), allow_reboot=True)
    if clocks.state == "reboot_pending":
        jetson.boot()
        clocks = lock(quick(jetson))
    assert (clocks.state, clocks.why) == ("pinned", "")
    ceilings = {clocks.domains[name]["ceiling"] for name in ("cpu0", "gpu", "emc")}
    assert ceilings == {1_497_600_000, 816_000_000, 2_133_000_000}


def test_a_maximum_of_memory_that_firmware_lowered_is_no_cap_to_be_written(maxn: Jetson, box: Box) -> None:
    """A lowered cap cannot be raised again (public reports of an AGX)."""
    maxn.write(f"{EMC}/max_rate", "2133000000\n")
    for steps in (True, False):
        assert "emc: capped at 2133 MHz, below 3199 MHz" in lock(box).why
        assert maxn.read(maxn.profile.emc_cap) == "3199000000"
        maxn.path("/sys/kernel/debug/bpmp/debug/emc/possible_rates").unlink() if steps else None


def test_no_clock_is_pinned_above_its_mode(maxn: Jetson, box: Box, request: pytest.FixtureRequest) -> None:
    maxn.write("/etc/f5-appliance/appliance.yaml", "device:\n  power_mode: MODE_50W\n")
    maxn.fault("ebusy")
    request.getfixturevalue("read_only")
    assert "clocks are not pinned: pinning would hold them above MODE_50W" in lock(box).why
    assert PINS not in maxn.calls()


def test_locking_a_second_time_changes_nothing(maxn: Jetson, box: Box) -> None:
    lock(box)
    before = maxn.snapshot()
    assert lock(box).state == "pinned"
    after = maxn.snapshot()
    assert {name for name in before if before[name] != after[name]} == set(), "the clock stood still"


def test_the_baseline_is_stored_once_and_restored(maxn: Jetson, box: Box) -> None:
    before = maxn.read(f"{CPU.format(0)}/cpufreq/scaling_min_freq")
    lock(box)
    baseline = maxn.path(BASELINE)
    stored = baseline.read_text()
    assert baseline.stat().st_mode & 0o777 == 0o600 and baseline.parent.stat().st_mode & 0o777 == 0o700
    maxn.unpin()
    maxn.write(f"{CPU.format(0)}/cpufreq/scaling_min_freq", "1113600\n")
    lock(box)
    assert baseline.read_text() == stored

    clocks = unlock(box)
    assert clocks.state == "unpinned" and clocks.why.startswith(UNLOCKED)
    assert maxn.read(f"{CPU.format(0)}/cpufreq/scaling_min_freq") == before
    assert not proven(maxn)


def test_a_pinned_box_gives_no_baseline(maxn: Jetson, box: Box) -> None:
    before = limits(maxn)
    maxn.pin()
    assert lock(box).state == "pinned"
    assert not maxn.path(BASELINE).exists()
    lines: list[str] = []
    unlock(box, dry_run=True, report=lines.append)
    assert unlock(box, report=lines.append).state == "unpinned"
    for words in ("would write: the lowest limit of each clock", "there is no baseline at"):
        assert any(words in line for line in lines)
    assert limits(maxn) == before, "without a baseline, by the minima of nvpmodel.conf"


def test_a_baseline_with_lines_of_the_tools_own_is_restored(tmp_path: Path) -> None:
    """L4T 39 stores such lines."""
    jetson = Jetson(tmp_path, "jp7-0005")
    jetson.set_mode("MAXN")
    lock(box := quick(jetson))
    baseline = jetson.path(BASELINE)
    baseline.write_text("persistence: cannot be stored\n" + baseline.read_text() + "no path either\n")
    assert unlock(box).state == "unpinned"
    baseline.write_text(baseline.read_text().replace("/cpu11/cpufreq/scaling_min_freq", "/cpu11/lost"))
    lock(box)
    assert "/cpu11/lost" not in baseline.read_text(), "a core's limit was missing: it is stored anew"


def test_half_a_baseline_is_stored_again(maxn: Jetson, box: Box) -> None:
    folder = maxn.path(BASELINE).parent
    folder.mkdir(mode=0o700, parents=True)
    (folder / "baseline.conf").write_text("/sys/devices/system/cpu/cpu0/onl")
    (folder / "baseline.conf").chmod(0o600)
    assert unlock(box).state == "unpinned"
    assert lock(box).state == "pinned"
    assert "scaling_min_freq:729600" in maxn.read(BASELINE)


def test_a_store_that_was_cut_short_is_not_kept(maxn: Jetson, box: Box) -> None:
    """A disk that fills up does not change the exit code of jetson_clocks."""
    cut = f'[ "$1" != --store ] || {{ echo "/sys/devices/system/cpu/c" > "{maxn.root}$2"; exit 0; }}'
    lay(maxn, "jetson_clocks", f'{cut}\nexec $real "$@"')
    lines: list[str] = []
    assert lock(box, report=lines.append).state == "pinned"
    assert any("no baseline was stored" in line for line in lines)
    assert not maxn.path(BASELINE).exists()


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_a_baseline_of_others_is_not_restored(maxn: Jetson, box: Box, tmp_path: Path, what: str) -> None:
    """Root would write whatever the baseline says to whatever place it names."""
    before = limits(maxn)
    lock(box)
    baseline = maxn.path(BASELINE)
    if what == "link":
        elsewhere = baseline.rename(tmp_path / "elsewhere")
        baseline.symlink_to(elsewhere)
    else:
        (baseline if what == "file" else baseline.parent).chmod(0o777)
    lines: list[str] = []
    assert unlock(box, report=lines.append).state == "unpinned"
    assert any("not restored" in line and "remove it" in line for line in lines)
    assert limits(maxn) == before
    assert not [call for call in maxn.calls(PINS) if "--restore" in call]


def test_unlocked_clocks_stay_unlocked_until_lock(maxn: Jetson, box: Box, clock: Clock) -> None:
    lock(box)
    unlock(box)
    for by_hand, state in ((Jetson.unpin, "unpinned"), (Jetson.pin, "pinned"), (Jetson.unpin, "unpinned")):
        by_hand(maxn)
        clock.advance(30)
        seen = check(box)
        assert seen.state == state and seen.why.startswith(UNLOCKED) is (state == "unpinned")
        assert seen.repins == 0 and seen.last_unpin is None
    assert maxn.calls(PINS).count(PINS) == 1
    assert lock(box).state == "pinned"
    maxn.unpin()
    assert check(box).repins == 1


def test_nvpmodel_running_again_does_not_end_an_unlock(maxn: Jetson, box: Box) -> None:
    """ExecStartPost of nvpmodel.service runs `lock --unless-unlocked`."""
    assert lock(box, unless_unlocked=True).state == "pinned"
    unlock(box)
    maxn.fault("nvpmodel_rerun")
    for act in (lambda: lock(box, unless_unlocked=True), lambda: check(box)):
        seen = act()
        assert (seen.state, seen.repins) == ("unpinned", 0) and seen.why.startswith(UNLOCKED)
    assert clocks_json.read(box).state == "unpinned"
    lines: list[str] = []
    assert lock(box, unless_unlocked=True, dry_run=True, report=lines.append).why == seen.why and not lines
    assert lock(box).state == "pinned"


def other_boot(jetson: Jetson) -> None:
    """/run outlives a boot, as in a container."""
    jetson.write("/proc/sys/kernel/random/boot_id", "00000000-0000-4000-8000-000000000000\n")


def anybodys(jetson: Jetson) -> None:
    """A request to stay unlocked that any user could have written."""
    for path in (THIS_BOOT, BOOTS):
        jetson.path(path).chmod(0o666)


@pytest.mark.parametrize(("ends", "told"), [(Jetson.boot, ""), (other_boot, ""), (anybodys, "remove it")])
def test_an_unlock_ends_with_its_boot_and_its_record(
    maxn: Jetson, box: Box, ends: Callable[[Jetson], object], told: str
) -> None:
    lock(box)
    unlock(box)
    ends(maxn)
    lines: list[str] = []
    assert check(box, report=lines.append).state == "pinned"
    assert any("is not used" in line and told in line for line in lines) is bool(told)


@pytest.mark.parametrize("profile", ["jp6-0004", "jp7-0005"])
def test_minima_replace_a_restore_without_effect(tmp_path: Path, profile: str) -> None:
    """The minima of nvpmodel.conf restore the files as they were before the lock."""
    jetson = Jetson(tmp_path, profile)
    jetson.set_mode("MAXN")
    before = limits(jetson)
    lock(box := quick(jetson))
    lay(jetson, "jetson_clocks", "echo Restoring system configuration from $2")
    lines: list[str] = []
    assert unlock(box, report=lines.append).why.startswith(UNLOCKED)
    assert any("the lowest limit of each clock in /etc/nvpmodel.conf" in line for line in lines)
    assert limits(jetson) == before


def test_an_unlock_without_effect_is_an_error(maxn: Jetson, box: Box, request: pytest.FixtureRequest) -> None:
    lock(box)
    lay(maxn, "jetson_clocks", "echo Restoring system configuration from $2")
    patched = request.getfixturevalue("read_only")
    with pytest.raises(ClockError, match=r"still held.*min_freq: Read-only file system"):
        unlock(box)
    patched.undo()
    assert check(box).state == "pinned"
    assert json.loads(maxn.read(THIS_BOOT))["unlocked_at"] is None


def test_the_seventh_unpin_of_an_hour_is_not_re_pinned(maxn: Jetson, box: Box, clock: Clock) -> None:
    lock(box)
    for turn in range(1, 7):
        clock.advance(30)
        maxn.unpin()
        assert (check(box).repins, proven(maxn)) == (turn, True)
    clock.advance(30)
    maxn.unpin()
    for _ in range(2):
        seventh = check(box)
        assert (seventh.state, seventh.repins, proven(maxn)) == ("unpinned", 6, False)
        assert seventh.reason is Reason.UNPINNED_AGAIN
        assert "keeps unpinning the clocks: the check waits" in seventh.why
        clock.advance(30)
    assert seventh.last_unpin is not None and seventh.last_unpin.at == 600.0 + 7 * 30
    assert clocks_json.read(box).state == "unpinned"
    assert (lock(box).state, proven(maxn)) == ("pinned", True), "a technician's lock is not limited"
    maxn.unpin()
    assert check(box).state == "unpinned"
    clock.advance(3600 - 7 * 30)
    assert (check(box).state, check(box).repins) == ("pinned", 8)


def test_the_seventh_failure_of_an_hour_is_last_with_its_cause(maxn: Jetson, box: Box, clock: Clock) -> None:
    """Attempts without effect count as no re-pins. Giving up does not improve a failure: it stays FAIL."""
    lock(box)
    maxn.unpin()
    maxn.fault("silent_gpu")
    for turn in range(9):
        clock.advance(30)
        clocks = check(box)
        found = check_clocks(clocks, take_reading(box), 0.0)
        assert (found.level, clocks.repins) == (Level.FAIL, 0)
        assert found.reason is (Reason.LOOSE if turn < 6 else Reason.PINNING_FAILS)
        assert found.remedy.startswith("run: sudo systemctl restart f5-clocks. ")
        assert "who unpin" not in found.value + found.remedy
        assert "Error: Failed to max GPU frequency!" in clocks.why
    assert maxn.calls(PINS).count(PINS) == 7
    maxn.heal("silent_gpu")
    assert lock(box).state == "pinned" and json.loads(maxn.read(THIS_BOOT))["problem"] == ""


def test_a_mode_with_other_tpcs_takes_a_reboot_to_leave(maxn: Jetson, box: Box) -> None:
    lock(box)
    maxn.set_mode("MODE_30W")
    clocks = check(box)
    assert clocks.state == "reboot_pending" and clocks.last_unpin is not None
    assert "power mode changed from MAXN to MODE_30W" in clocks.last_unpin.who
    check(box)
    assert maxn.calls("nvpmodel").count(SETS) == 1


def memory_alone(jetson: Jetson) -> None:
    jetson.write(f"{EMC}/mrq_rate_locked", "0\n")


def nvpmodel_again(jetson: Jetson) -> None:
    jetson.fault("nvpmodel_rerun", at=629.0)


def jtop(jetson: Jetson) -> None:
    jetson.unit("jtop.service")
    jetson.process(4711, "jtop")
    jetson.set_mode("MODE_50W")


def by_sudo(jetson: Jetson) -> None:
    """The first command is older than the last check; others move no clock."""
    for at, command in (
        (540.0, "/usr/sbin/nvpmodel -m 3"),
        (620.0, "/usr/bin/jetson_clocks --restore /home/ann/l4t_dfs.conf"),
        (621.0, "/usr/bin/systemctl isolate multi-user.target"),
        (621.0, "/usr/bin/cat /etc/nvpmodel.conf"),
        (622.0, "/usr/local/sbin/f5-clock-lock status"),
    ):
        line = f"   ann : TTY=pts/0 ; PWD=/home/ann ; USER=root ; COMMAND={command}"
        jetson.journal(line, identifier="sudo", at=at)
    session = "[USER=root] [TTY=unknown] [CWD=/home/bob]"
    menu = f"bob: Executing command {session} [COMMAND=/usr/sbin/nvpmodel -m 3]"
    jetson.journal(menu, identifier="pkexec", at=623.0)
    jetson.unpin()


def without_tools_to_ask(jetson: Jetson) -> None:
    for tool in ("systemctl", "journalctl"):
        lay(jetson, tool, "exit 1")
    jetson.unpin()


@pytest.mark.parametrize(("unpin", "what", "who"), [
    (Jetson.unpin, "gpu: free", ()),
    (memory_alone, "emc: at", ()),
    (without_tools_to_ask, "gpu: free", ()),
    (nvpmodel_again, "gpu: free", ("nvpmodel.service ran again, 629 s after boot",)),
    (jtop, "power mode is MODE_50W", (
        "power mode changed from MAXN to MODE_50W",
        "jtop.service is active: members of the group jtop can change modes and clocks",
        "jtop is running, process 4711")),
    (by_sudo, "gpu: free", (
        "ann ran: sudo /usr/bin/jetson_clocks --restore /home/ann/l4t_dfs.conf",
        "ann ran: sudo /usr/bin/systemctl isolate multi-user.target",
        "bob ran: pkexec /usr/sbin/nvpmodel -m 3")),
])  # fmt: skip
@pytest.mark.parametrize("act", [lock, check])
def test_unpinned_behind_our_back(
    maxn: Jetson, box: Box, clock: Clock, unpin: Callable[[Jetson], None], what: str, who: tuple[str, ...],
    act: Callable[[Box], clocks_json.Clocks],
) -> None:  # fmt: skip
    """ExecStartPost of nvpmodel.service locks at once: the check never sees its clocks unpinned."""
    lock(box)
    assert check(box).repins == 0
    clock.advance(30)
    unpin(maxn)
    clocks = act(box)
    assert (clocks.state, clocks.repins, proven(maxn)) == ("pinned", 1, True)
    assert clocks.last_unpin is not None and clocks.last_unpin.at == 630.0
    assert any(line.startswith(what) for line in clocks.last_unpin.what) and clocks.last_unpin.who == who
    assert clocks_json.read(box) == clocks
    clock.advance(30)
    assert check(box).repins == 1, "one unpin is one re-pin"


def test_early_at_boot_the_gpu_is_waited_for(maxn: Jetson, clock: Clock) -> None:
    maxn.fault("no_devfreq", calls=4)
    clock.uptime_s = 8.0
    assert lock(quick(maxn, **clock.arguments)).state == "pinned"
    assert proven(maxn)
    assert 1.0 <= clock.uptime_s - 8.0 <= 60.0
    assert f"{maxn.profile.devfreq}/min_freq:306000000" in maxn.read(BASELINE), "stored with the GPU"


@pytest.mark.parametrize("act", [lock, check])
def test_the_mode_by_name_without_its_tpcs_takes_a_reboot(
    maxn: Jetson, box: Box, act: Callable[[Box], clocks_json.Clocks]
) -> None:
    maxn.write(maxn.profile.tpc_mask, "240\n")
    for _ in range(2):
        clocks = act(box)
        assert clocks.state == "reboot_pending" and "`sudo f5-clock-lock lock --allow-reboot`" in clocks.why
    assert "rebooting" in lock(box, allow_reboot=True).why and maxn.reboots == 1
    maxn.boot()
    assert lock(box).state == "pinned"


def test_a_capped_memory_of_jetpack_7_is_not_pinned_over_and_over(tmp_path: Path, clock: Clock) -> None:
    jetson = Jetson(tmp_path, "jp7-0005")
    jetson.set_mode("MODE_15W")
    box = quick(jetson, **clock.arguments)
    lock(box)
    for _ in range(8):
        clock.advance(30)
        assert check(box).state == "reboot_pending"
    assert jetson.calls(PINS).count(PINS) == 1


def test_a_memory_at_its_cap_is_not_pinned_again(maxn: Jetson, box: Box, clock: Clock) -> None:
    """A lower limit at the highest clock within reach holds the memory like the flag: pinning would change
    nothing."""
    lock(box)
    maxn.write(maxn.profile.emc_cap, "2133000000\n")
    for name, value in (("rate", "2133000000"), ("min_rate", "2133000000"), ("mrq_rate_locked", "0")):
        maxn.write(f"{EMC}/{name}", f"{value}\n")
    emc = take_reading(box).domains["emc"]
    assert (emc.pinned, emc.fixable) == (False, False)
    assert emc.why.endswith("below 3199 MHz, although MAXN allows it: a thermal cap, or another program's")
    for _ in range(3):
        clock.advance(30)
        clocks = check(box)
        assert (clocks.state, clocks.reason) == ("unpinned", Reason.CAPPED)
    assert maxn.calls(PINS).count(PINS) == 1
    maxn.write(f"{EMC}/min_rate", "204000000\n")
    assert "and not locked" in take_reading(box).domains["emc"].why
    check(box)
    assert maxn.calls(PINS).count(PINS) == 2, "free below the cap"


@pytest.mark.parametrize("mode", ["MAXN", "MODE_50W"])
def test_a_gpu_that_never_comes_is_waited_for_once(maxn: Jetson, box: Box, clock: Clock, mode: str) -> None:
    maxn.set_mode(mode)
    maxn.fault("no_devfreq", calls=1000)
    pins_a_core = f'[ "$1" ] || echo 2201600 > {maxn.path(CPU.format(0))}/cpufreq/scaling_min_freq'
    lay(maxn, "jetson_clocks", f'{pins_a_core}\nexec $real "$@"')
    started = clock.uptime_s
    clocks = lock(box)
    assert clocks.state == "unpinned" and "gpu: has no devfreq node" in clocks.why
    if mode == "MAXN":
        assert "Error! GPU frequency scaling not supported!" in clocks.why
        assert clocks.domains["cpu0"]["pinned"] is True, "what can be pinned is"
    else:
        assert "available_frequencies: 2" in clocks.why
    assert 55.0 <= clock.uptime_s - started <= 65.0
    assert not maxn.path(BASELINE).exists()


def test_a_tool_that_is_not_there_is_named(maxn: Jetson, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    (maxn.bin / "jetson_clocks").unlink()
    monkeypatch.setattr("appliance.box.tools.SEARCH", str(maxn.bin))
    assert "jetson_clocks is not installed" in lock(box).why


def test_a_thermal_cap_is_not_repinned(maxn: Jetson, box: Box, clock: Clock) -> None:
    lock(box)
    maxn.fault("thermal_throttle")
    for _ in range(3):
        clock.advance(30)
        clocks = check(box)
    assert clocks.state == "unpinned" and clocks.repins == 0
    assert "cpu0–cpu11: capped at 1190.4 MHz, below 2201.6 MHz, although MAXN allows it" in clocks.why
    assert maxn.calls(PINS).count(PINS) == 1
    maxn.heal("thermal_throttle")
    assert check(box).state == "pinned"


@pytest.mark.parametrize("fault", ["read_only_root", "disk_full"])
def test_a_disk_that_takes_nothing_costs_the_records_and_nothing_else(maxn: Jetson, fault: str) -> None:
    maxn.fault(fault)
    box, lines = quick(maxn), list[str]()
    assert lock(box, report=lines.append).state == "pinned"
    assert proven(maxn)
    for words in ("no baseline was stored", "boots.json cannot be written"):
        assert any(words in line for line in lines)
    assert unlock(box).reason is Reason.UNLOCKED and check(box).reason is Reason.UNLOCKED
    assert history(box) == ()


def test_a_file_where_the_folder_should_be(maxn: Jetson, box: Box) -> None:
    maxn.write("/run/f5-appliance", "")
    lines: list[str] = []
    with pytest.raises(NotPublished):
        lock(box, report=lines.append)
    assert proven(maxn)
    assert any("re-pins are not counted" in line for line in lines)
    with pytest.raises(ClockError, match="nothing was changed: the unlock cannot be recorded"):
        unlock(box)
    assert proven(maxn)


def test_a_clock_in_1970_does_not_matter(maxn: Jetson) -> None:
    maxn.fault("clock_1970")
    box = quick(maxn)
    assert box.wall() < 10_000_000
    assert lock(box).state == "pinned" and clocks_json.read(box).state == "pinned"
    maxn.unpin()
    assert check(box).repins == 1


@pytest.mark.parametrize("text", ["{", '{"last_unpin": 3}', '{"boot_id": "x"}'])
def test_a_damaged_record_starts_afresh(maxn: Jetson, box: Box, text: str) -> None:
    lock(box)
    maxn.write(THIS_BOOT, text)
    assert check(box).state == "pinned"
    assert json.loads(maxn.read(THIS_BOOT))["boot_id"] == box.boot_id


@pytest.mark.parametrize("word", [None, "of-a-later-release"])
def test_a_state_without_a_known_reason_has_an_unknown_one(maxn: Jetson, box: Box, word: str | None) -> None:
    published = lock(box)
    document = json.loads(maxn.read(CLOCKS))
    assert document.pop("reason") == "" == document["why"]
    maxn.write(CLOCKS, json.dumps(document if word is None else {**document, "reason": word}))
    found = clocks_json.read(box)
    assert (found.state, found.reason) == ("pinned", Reason.UNKNOWN)
    assert found.domains == published.domains


def test_changes_run_one_at_a_time(maxn: Jetson, box: Box, clock: Clock) -> None:
    lock(box)
    maxn.unpin()
    with maxn.path(CLOCK_MUTEX).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for act in (lock, unlock, check):
            with pytest.raises(ClockError, match="another clock-lock"):
                act(box)
        assert not proven(maxn)
    assert check(box).state == "pinned"


def test_a_check_waits_for_a_lock_and_sees_its_result(maxn: Jetson, clock: Clock) -> None:
    box = quick(maxn, **clock.arguments)
    lock(box)
    maxn.unpin()
    other = maxn.path(CLOCK_MUTEX).open()
    fcntl.flock(other, fcntl.LOCK_EX)

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        maxn.pin()
        other.close()

    waiting: dict[str, Any] = {**clock.arguments, "sleep": sleep}
    pins = maxn.calls(PINS).count(PINS)
    assert check(quick(maxn, **waiting)).state == "pinned"
    assert maxn.calls(PINS).count(PINS) == pins


@pytest.mark.parametrize("mode", ["MAXN", "MODE_30W"])
def test_a_rehearsal_changes_nothing(maxn: Jetson, mode: str) -> None:
    maxn.set_mode(mode)
    before, lines = maxn.snapshot(), list[str]()
    assert lock(quick(maxn), allow_reboot=True, dry_run=True, report=lines.append).state == "unpinned"
    assert maxn.snapshot() == before and maxn.reboots == 0
    assert "would run: jetson_clocks" in lines
    assert any("nvpmodel -m 0" in line for line in lines) is (mode != "MAXN")
    assert any("--store" in line for line in lines) is (mode == "MAXN")
    assert set(maxn.calls()) == {"nvpmodel -q"}


def test_a_rehearsed_unlock_changes_nothing(maxn: Jetson, box: Box) -> None:
    lock(box)
    before, lines = maxn.snapshot(), list[str]()
    assert unlock(box, dry_run=True, report=lines.append).state == "pinned"
    assert maxn.snapshot() == before
    assert lines == [f"would run: jetson_clocks --restore {BASELINE}"]

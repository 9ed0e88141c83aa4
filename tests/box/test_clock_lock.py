"""scripts/clock-lock: the main routes in a separate process, then its tables, JSON and exit codes."""

import functools
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.box.clocks import clocks_json
from appliance.box.clocks.pinning import check, lock, unlock
from appliance.box.paths import CLOCKS
from appliance.box.show import clock_status
from tests.fakes.jetson.board import Jetson
from tests.harness.boxes import lay, process, quick, run_script

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "clock-lock"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
PINNED, FAILED, MISUSED, PENDING, UNSUPPORTED = 0, 1, 2, 3, 4
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="clock-lock insists on root")


def run(jetson: Jetson, *words: str, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    return process(jetson, script, *words)


main = functools.partial(run_script, "clock-lock")


@AS_ROOT
def test_the_technicians_route(tmp_path: Path) -> None:
    jetson = Jetson(tmp_path, "jp7-0005")
    assert run(jetson, "status").returncode == FAILED
    asked = run(jetson, "lock")
    assert asked.returncode == PENDING and "sudo f5-clock-lock lock --allow-reboot" in asked.stdout
    assert run(jetson, "lock", "--allow-reboot").returncode == PENDING
    assert jetson.reboots == 1
    jetson.boot()

    locked = run(jetson, "lock", "--json")
    assert locked.returncode == PINNED
    document = json.loads(locked.stdout)
    assert document["state"] == "pinned" and document["mode"] == "MAXN"
    with_notes = {**json.loads(jetson.read(CLOCKS)), "notes": []}
    assert document == with_notes
    assert "jetson_clocks" in locked.stderr, "what was done is printed beside the JSON"

    shown = run(jetson, "status")
    assert shown.returncode == PINNED and shown.stdout.startswith("state      pinned\n")
    jetson.unpin()
    watched = run(jetson, "watch", "--once", "--json")
    assert watched.returncode == PINNED and json.loads(watched.stdout)["repins"] == 1
    assert run(jetson, "unlock").returncode == 0
    # Neither the timer's unit nor nvpmodel's unit fails after an unlock.
    for words in (("watch", "--once"), ("lock", "--unless-unlocked")):
        left = run(jetson, *words)
        assert left.returncode == 0 and "unlocked by a technician" in left.stdout
    assert run(jetson, "lock").returncode == PINNED


@AS_ROOT
def test_options_go_before_the_environment(tmp_path: Path) -> None:
    jetson, other = Jetson(tmp_path / "a", "jp7-0005"), Jetson(tmp_path / "b", "jp5-0005")
    words = ("status", "--sysroot", str(other.root), "--tools", str(other.bin))
    assert run(jetson, *words).returncode == UNSUPPORTED


@AS_ROOT
def test_the_script_runs_from_a_copy_of_the_installation(maxn: Jetson, tmp_path: Path) -> None:
    """The copy has the package's box folder, its imports and the script, which runs through a link."""
    release = tmp_path / "releases" / "1"
    (release / "scripts").mkdir(parents=True)
    (release / "appliance").mkdir()
    for name in ("__init__.py", "durable.py", "errors.py", "fields.py"):
        shutil.copy(SCRIPT.parents[1] / "appliance" / name, release / "appliance")
    shutil.copytree(SCRIPT.parents[1] / "appliance" / "box", release / "appliance" / "box")
    shutil.copy(SCRIPT, release / "scripts")
    link = tmp_path / "f5-clock-lock"
    link.symlink_to(release / "scripts" / "clock-lock")
    assert run(maxn, "lock", script=link).returncode == PINNED


def test_it_is_executable_and_names_the_systems_python() -> None:
    assert os.access(SCRIPT, os.X_OK)
    assert SCRIPT.read_text().startswith("#!/usr/bin/python3 -I\n")


def test_wrong_usage(maxn: Jetson, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("pin",), ("lock", "--force")):
        with pytest.raises(SystemExit, match=str(MISUSED)):
            main(quick(maxn), *words)
        assert "usage: f5-clock-lock" in capsys.readouterr().err


def test_a_reader_that_has_gone_is_no_traceback(maxn: Jetson) -> None:
    command = [sys.executable, "-I", str(SCRIPT), "status"]
    environment = {**os.environ, **maxn.environment}
    for target in ("/dev/full", "pipe"):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as pipe, open("/dev/full", "w") as full:
            stdout = pipe if target == "pipe" else full
            done = subprocess.run(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)
        assert done.returncode == FAILED
        assert done.stderr == ("" if target == "pipe" else "f5-clock-lock: No space left on device\n")


def test_the_timers_check_reports_a_change_once(maxn: Jetson, capsys: pytest.CaptureFixture[str]) -> None:
    """The report goes to stderr, the only output of f5-clocks-check.service in the journal."""
    box = quick(maxn)
    lock(box)
    capsys.readouterr()

    def journal_lines() -> list[str]:
        main(box, "watch", "--once", "--json")
        return capsys.readouterr().err.splitlines()

    assert journal_lines() == []
    maxn.fault("thermal_throttle", degrees=99.5, cap_khz=1_190_400)
    maxn.pin()
    first = journal_lines()
    assert first[-1].startswith("unpinned in MAXN, was pinned: "), first
    assert journal_lines() == [] == journal_lines()
    maxn.heal("thermal_throttle")
    maxn.set_mode("MAXN")
    maxn.pin()
    assert journal_lines() == ["pinned in MAXN, was unpinned"]


def test_changes_need_root(maxn: Jetson, capsys: pytest.CaptureFixture[str]) -> None:
    box = quick(maxn, user=lambda: 1000)
    for words in (["lock"], ["unlock"], ["watch"], ["watch", "--once"]):
        assert main(box, *words) == MISUSED
        assert f"needs root: sudo f5-clock-lock {words[0]}" in capsys.readouterr().err
    assert not maxn.path(CLOCKS).exists() and "jetson_clocks" not in maxn.calls()


def test_jetpack_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script refuses JetPack 5 by name and changes nothing."""
    jetson = Jetson(tmp_path, "jp5-0005")
    box = quick(jetson)
    for words in (["lock"], ["lock", "--dry-run"], ["unlock"], ["status"], ["watch", "--once"]):
        assert main(box, *words) == UNSUPPORTED
        assert "JetPack 5" in capsys.readouterr().out
    assert clocks_json.read(box).state == "unsupported"
    assert set(jetson.calls()) == {"nvpmodel -q"}


def test_a_failure_to_publish_is_an_error(maxn: Jetson, capsys: pytest.CaptureFixture[str]) -> None:
    maxn.fault("disk_full", folders=("/run",))
    assert main(quick(maxn), "lock") == FAILED
    printed = capsys.readouterr()
    assert "state      pinned" in printed.out
    assert "clocks.json cannot be written" in printed.err and "No space left on device" in printed.err


def test_a_rehearsal_takes_no_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jetson = Jetson(tmp_path, "jp7-0005")
    before = jetson.snapshot()
    assert main(quick(jetson, user=lambda: 1000), "lock", "--dry-run") == 0
    assert jetson.snapshot() == before
    assert "would run: nvpmodel -m 0" in capsys.readouterr().out


@pytest.mark.parametrize("profile", ["jp6-0004", "jp7-0005"])
def test_status_in_every_format(tmp_path: Path, profile: str) -> None:
    jetson = Jetson(tmp_path, profile)
    box = quick(jetson)
    factory = clock_status.status(box)
    assert factory.clocks.state == "unpinned"
    assert any("clocks.json is absent" in note for note in factory.notes)
    jetson.set_mode("MAXN")
    lock(box)
    pinned = clock_status.status(box)
    assert (pinned.clocks.state, pinned.clocks.why, pinned.notes) == ("pinned", "", ())
    rows = {line.split()[0]: line for line in clock_status.table(pinned).splitlines() if line}
    top = jetson.profile.cpu_max_khz / 1000
    assert rows[f"cpu0–cpu{jetson.profile.cpus - 1}"].split() == [
        f"cpu0–cpu{jetson.profile.cpus - 1}", *[f"{top:g}", "MHz"] * 4, "pinned"
    ]  # fmt: skip
    assert rows["cores"].split()[1:] == [str(jetson.profile.cpus), "of", str(jetson.profile.cpus), "pinned"]
    assert rows["machine"].endswith(f"JetPack {jetson.profile.jetpack}.2, {pinned.platform.release}")
    assert json.loads(clock_status.document(pinned))["domains"]["gpu"]["ceiling"] == jetson.profile.gpu_hz[-1]


def test_a_table_of_an_unpinned_box_tells_who_and_what(maxn: Jetson) -> None:
    box = quick(maxn)
    lock(box)
    maxn.fault("nvpmodel_rerun")
    check(box)
    maxn.write(f"{maxn.profile.devfreq}/min_freq", "306000000\n")
    text = clock_status.table(clock_status.status(box))
    assert "state      unpinned\n           gpu: free between 306 MHz and 1300.5 MHz\n" in text
    assert "re-pinned  1 time since boot\n" in text
    assert "by         nvpmodel.service ran again" in text
    gpu = next(line for line in text.splitlines() if line.startswith("gpu"))
    assert gpu.endswith("NOT PINNED")


def test_a_user_without_root_reads_memory_from_roots_file(maxn: Jetson) -> None:
    box = quick(maxn)
    lock(box)
    mine = quick(maxn, user=lambda: 1000)
    seen = clock_status.status(mine)
    assert (seen.clocks.state, seen.clocks.why) == ("pinned", "")
    assert seen.clocks.domains["emc"] == clocks_json.read(box).domains["emc"]
    assert any(note.startswith("needs root; shown as root's check read it") for note in seen.notes)

    later = quick(maxn, user=lambda: 1000, uptime=lambda: box.uptime() + clocks_json.FRESH_S + 1)
    stale = clock_status.status(later)
    assert stale.clocks.state == "unknown" and stale.clocks.domains["emc"]["pinned"] is None
    assert any("was written" in note for note in stale.notes)


def memory_came_loose(jetson: Jetson) -> None:
    lock(quick(jetson))
    jetson.write(f"{EMC}/mrq_rate_locked", "0\n")
    lay(jetson, "jetson_clocks", "")
    check(quick(jetson, sleep=lambda seconds: None))


def reboot_due(jetson: Jetson) -> None:
    jetson.set_mode("MODE_30W")
    lock(quick(jetson))


def unlocked(jetson: Jetson) -> None:
    lock(quick(jetson))
    unlock(quick(jetson))


@pytest.mark.parametrize(("arrange", "state", "why"), [
    (memory_came_loose, "unpinned", "emc: at 3199 MHz now, but not locked"),
    (reboot_due, "reboot_pending", "--allow-reboot"), (unlocked, "unpinned", "unlocked by a technician"),
])  # fmt: skip
def test_a_user_without_root_sees_roots_published_clocks(
    maxn: Jetson, arrange: Callable[[Jetson], None], state: str, why: str
) -> None:
    arrange(maxn)
    seen = clock_status.status(quick(maxn, user=lambda: 1000)).clocks
    assert seen.state == state and why in seen.why


@pytest.mark.parametrize("encoding", ["iso-8859-1", "ascii"])
def test_serial_consoles_get_stand_ins(maxn: Jetson, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    lock(quick(maxn))
    console = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    monkeypatch.setattr(sys, "stdout", console)
    assert main(quick(maxn), "status") == PINNED
    assert b"cpu0?cpu11" in console.buffer.getvalue()  # type: ignore[attr-defined]

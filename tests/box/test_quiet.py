"""f5-quiet, and the checks that ask for it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.box import apt, paths, quiet, versions
from appliance.box.apt import AptError
from appliance.box.checks.finding import Level
from appliance.box.checks.runner import run_checks
from appliance.box.paths import INDICATOR, QUIET
from tests.box.test_remedies import of_packages
from tests.fakes.jetson.board import Jetson
from tests.harness.boxes import process, quick, run_script

pytestmark = [pytest.mark.slow, pytest.mark.once]

HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, 2); print(end='.', flush=True); input()"
)
"""Holds dpkg's lock as apt does, until its input ends."""
CHECKS = {"sleep", "desktop", "journal", "packages"}
UNITS = "/etc/systemd/system"


@pytest.fixture
def jetson(tmp_path: Path) -> Jetson:
    """A Jetson from the factory."""
    return Jetson(tmp_path / "box", "jp6-0005")


def levels(jetson: Jetson) -> dict[str, Level]:
    return {finding.check: finding.level for finding in run_checks(quick(jetson), only=CHECKS)}


def run(jetson: Jetson, action: Callable[..., None] = quiet.quiet, *, dry_run: bool = False) -> list[str]:
    said: list[str] = []
    action(quick(jetson), dry_run=dry_run, say=said.append)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="f5-quiet insists on root")
@pytest.mark.parametrize("profile", ["jp6-0005", "jp7-0005"])
def test_a_box_from_the_factory_made_quiet_and_loud_again(profile: str, tmp_path: Path) -> None:
    jetson = Jetson(tmp_path / "box", profile)
    assert set(levels(jetson).values()) == {Level.WARN} and set(levels(jetson)) == CHECKS
    factory = jetson.snapshot()
    rehearsed = process(jetson, "quiet", "--dry-run")
    assert (rehearsed.returncode, jetson.snapshot()) == (0, factory)
    done = process(jetson, "quiet")
    assert (done.returncode, done.stdout) == (0, rehearsed.stdout), done.stderr
    assert set(levels(jetson).values()) == {Level.PASS}
    assert (jetson.root / UNITS[1:] / "suspend.target").readlink() == Path("/dev/null")
    assert [call.split()[1] for call in jetson.calls("apt-mark")] == ["hold"]
    quietened = jetson.snapshot()
    assert process(jetson, "quiet").stdout == "quiet already\n" and jetson.snapshot() == quietened
    undone = process(jetson, "quiet", "--undo")
    assert undone.returncode == 0, undone.stderr
    made = {"var/lib/f5-appliance", "etc/systemd/journald.conf.d"}
    assert jetson.snapshot().keys() - factory.keys() <= made, "empty folders"
    assert {path: what for path, what in jetson.snapshot().items() if path in factory} == factory
    assert process(jetson, "quiet", "--undo").stdout == "nothing to undo\n"


def test_undo_restores_former_settings_and_keeps_later_changes(jetson: Jetson) -> None:
    jetson.write(f"{UNITS}/suspend.target", "[Unit]\nDescription=of the site\n")
    jetson.path(f"{UNITS}/sleep.target").symlink_to("/dev/null")
    jetson.path(f"{UNITS}/default.target").symlink_to("/lib/systemd/system/runlevel5.target")
    jetson.write("/etc/systemd/journald.conf.d/site.conf", "[Journal]\nSystemMaxUse=1G\n")
    before = jetson.snapshot()
    run(jetson)
    assert not jetson.path("/etc/systemd/journald.conf.d/f5-quiet.conf").exists(), "the site's cap is one"
    jetson.write(INDICATOR, "[Desktop Entry]\nof the site\n")
    said = run(jetson, quiet.undo)
    after = jetson.snapshot()
    assert f"{INDICATOR}: left unchanged, because somebody has edited it" in said
    assert jetson.read(INDICATOR).endswith("of the site")
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {INDICATOR[1:]}


def test_a_second_run_adds_to_the_record_of_the_first(jetson: Jetson) -> None:
    factory = jetson.read(INDICATOR)
    run(jetson)
    jetson.write(INDICATOR, factory + "\n")  # as an update of its package
    status = jetson.path("/var/lib/dpkg/status")
    status.write_text(status.read_text() + "\nPackage: nvidia-l4t-new\nStatus: install ok installed\n")
    assert len(run(jetson)) == 2
    run(jetson, quiet.undo)
    assert jetson.read(INDICATOR) == factory
    assert "Status: hold" not in status.read_text()


def test_packages_on_hold_before_stay_on_hold(jetson: Jetson) -> None:
    quick(jetson).tools.execute("apt-mark", "hold", "nvidia-l4t-core")
    run(jetson)
    run(jetson, quiet.undo)
    assert "Package: nvidia-l4t-core\nStatus: hold" in jetson.path("/var/lib/dpkg/status").read_text()


def test_unfinished_packages_are_named_and_not_put_on_hold(jetson: Jetson) -> None:
    """Half an upgrade on a carrier whose bootloader package refuses the board (Seeed Linux_for_Tegra 41)."""
    of_packages("ok installed", "ok half-configured", "nvidia-l4t-kernel")(jetson)
    said = run(jetson)
    assert "nvidia-l4t-core" in said[-2] and "nvidia-l4t-kernel " not in f"{said[-2]} "
    assert "nvidia-l4t-kernel (half-configured)" in said[-1] and "sudo dpkg --configure -a" in said[-1]
    assert run(jetson) == said[-1:] and levels(jetson)["packages"] is Level.WARN


def test_a_held_tensorrt_is_still_seen(jetson: Jetson) -> None:
    before = versions.tensorrt(jetson.box().root)
    run(jetson)
    assert versions.tensorrt(jetson.box().root) == before != ()


@pytest.mark.parametrize("text", [
    "", "[]", '{"schema": 1}', '{"schema": 1, "files": [1], "held": 1}', "[" * 9999,
])  # fmt: skip
def test_a_damaged_record_is_reported_and_changes_nothing(
    text: str, jetson: Jetson, capsys: pytest.CaptureFixture[str]
) -> None:
    jetson.write(QUIET, text)
    before = jetson.snapshot()
    for options in ((), ("--undo",)):
        assert run_script("quiet", quick(jetson), *options) == 1
        assert capsys.readouterr().err == f"f5-quiet: {QUIET} is damaged: move it away\n"
    assert jetson.snapshot() == before


def test_a_record_that_others_may_have_written_is_not_used(jetson: Jetson) -> None:
    mine = {"/etc/shadow": {"before": {"text": "mine"}, "after": None}}
    jetson.write(QUIET, json.dumps({"schema": 1, "files": mine, "held": []}))
    jetson.path(QUIET).chmod(0o666)
    with pytest.raises(PermissionError, match="users other than root may have written it"):
        run(jetson, quiet.undo)
    assert not jetson.path("/etc/shadow").exists()


def test_a_failure_of_apt_is_reported_and_can_be_undone(jetson: Jetson) -> None:
    before = jetson.snapshot()
    good = (jetson.bin / "apt-mark").read_text()
    (jetson.bin / "apt-mark").write_text("#!/bin/sh\necho 'E: could not lock' >&2; exit 100\n")
    with pytest.raises(AptError, match="could not lock: run `sudo apt-mark hold "):
        run(jetson)
    (jetson.bin / "apt-mark").write_text(good)
    run(jetson)
    (jetson.bin / "apt-mark").write_text("#!/bin/sh\nexit 100\n")
    with pytest.raises(AptError, match="run `sudo apt-mark unhold "):
        run(jetson, quiet.undo)
    (jetson.bin / "apt-mark").write_text(good)
    run(jetson, quiet.undo)
    assert {path: what for path, what in jetson.snapshot().items() if path in before} == before


def test_another_apt_is_waited_for_and_while_it_works_nothing_is_changed(jetson: Jetson) -> None:
    jetson.write(paths.DPKG_LOCK, "")
    before, waited, said = jetson.snapshot(), list[float](), list[str]()
    command = [sys.executable, "-c", HOLD, jetson.path(paths.DPKG_LOCK)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout and holder.stdout.read(1) == b"."

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        holder.communicate() if len(waited) == apt.WAIT_S + 3 else None

    box = quick(jetson, sleep=sleep)
    with pytest.raises(AptError, match="another apt is running; nothing was changed"):
        quiet.quiet(box, dry_run=False, say=said.append)
    assert jetson.snapshot() == before and "another apt is running: waiting for it" in said[-1]
    quiet.quiet(box, dry_run=False, say=said.append)
    assert len(waited) == apt.WAIT_S + 3 and levels(jetson)["packages"] is Level.PASS

"""Two versions side by side: started, proven, and put back when one does not prove itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.installer import bundles, releases, switching, system
from scripts.installer.actions import Failure
from scripts.installer.installation import FAILED, UNHEALTHY, Options
from scripts.installer.layout import CURRENT, PREVIOUS, SERVICE, UNPROVEN
from scripts.installer.target import Target, exchange
from tests.fakes.jetson import Jetson
from tests.install.small import ROOT, Workshop, bundle, everything

pytestmark = pytest.mark.usefixtures("without_pip")


@pytest.fixture
def live(jetson: Jetson) -> Jetson:
    """A box on which systemd runs."""
    jetson.write("/run/systemd/system/marker", "")
    return jetson


def target(jetson: Jetson) -> Target:
    return Target(jetson.box())


def runs(jetson: Jetson) -> tuple[str, str]:
    """The current release, and the one before."""
    return releases.linked(target(jetson), CURRENT), releases.linked(target(jetson), PREVIOUS)


def test_an_install_ends_by_speaking_and_printing_health(live: Jetson, workshop: Workshop) -> None:
    code, lines = workshop.install(live.box(), live=True)
    assert code == 0, lines
    told = "\n".join(lines)
    assert "ONLY MAKES NOISE" in told
    assert "spoke 1.0 s with the voice tone: " in told
    assert lines[-1] == "PASS  daemon"
    assert (live.root / "var/lib/f5-appliance/journal/baseline.json").is_file()
    calls = live.calls("systemctl")
    order = [calls.index(f"systemctl {call}") for call in ("daemon-reload", f"restart {SERVICE}")]
    assert order == sorted(order)
    assert any("f5-clocks-check.timer" in call for call in calls if call.startswith("systemctl restart"))
    assert "systemctl start f5-clocks.service" in calls


def test_the_second_live_run_changes_nothing_and_prints_health(live: Jetson, workshop: Workshop) -> None:
    workshop.install(live.box(), live=True)
    before = everything(live.root)
    code, lines = workshop.install(live.box(), live=True)
    assert code == 0
    assert lines[-2:] == ["nothing to do", "PASS  daemon"]
    assert everything(live.root) == before
    assert len([call for call in live.calls("systemctl") if "restart f5-appliance.service" in call]) == 1


def test_a_voice_is_registered_by_its_transcript_file(
    live: Jetson, workshop: Workshop, tmp_path: Path
) -> None:
    from scripts.installer.speaking import Voice

    _, folder = workshop.checkout()
    (tmp_path / "ann.wav").write_bytes(b"RIFF")
    (tmp_path / "ann.txt").write_text("What Ann says.\n")
    voice = Voice("ann", tmp_path / "ann.wav", str(tmp_path / "ann.txt"))
    options = Options(offline=folder, python=sys.executable, voice=voice)
    code, lines = workshop.install(live.box(), live=True, options=options)
    assert code == 0, lines
    assert live.read("/var/lib/f5-appliance/voices/ann") == "What Ann says."
    assert not any("tone stands in" in line for line in lines)


def test_clocks_that_cannot_be_pinned_do_not_stop_the_install(live: Jetson, workshop: Workshop) -> None:
    live.unit("f5-clocks.service", ActiveState="inactive", StartFails="a reboot is pending")
    code, lines = workshop.install(live.box(), live=True)
    assert code == 0, lines
    assert any(line.startswith("clocks: ") and "f5-clock-lock status" in line for line in lines)


def test_a_new_version_runs_and_the_old_one_is_kept(live: Jetson, workshop: Workshop) -> None:
    workshop.install(live.box(), live=True)
    code, lines = workshop.install(live.box(), "0.2.0", live=True)
    assert code == 0, lines
    assert runs(live) == ("0.2.0", "0.1.0")
    assert "0.2.0 runs" in lines


def test_old_releases_are_pruned_to_two(live: Jetson, workshop: Workshop) -> None:
    for version in ("0.1.0", "0.2.0", "0.3.0"):
        assert workshop.install(live.box(), version, live=True)[0] == 0
    assert releases.names(target(live)) == ("0.2.0", "0.3.0")
    assert runs(live) == ("0.3.0", "0.2.0")


@pytest.mark.parametrize("how", ["unhealthy", "does not start"])
def test_a_version_that_is_not_well_is_put_back(live: Jetson, workshop: Workshop, how: str) -> None:
    workshop.install(live.box(), live=True)
    config = everything(live.root / "etc")
    gate = None
    if how == "does not start":
        gate = OnceBroken(live)
    health = "FAIL" if how == "unhealthy" else "PASS"
    code, lines = workshop.install(
        live.box(), "0.2.0", live=True, gate=gate, health=health, config="log: {level: debug}\n"
    )
    assert code == FAILED
    assert lines[-1].startswith("error: switch: 0.2.0 is not well (")
    assert "0.1.0 is back in place and runs" in lines[-1]
    assert ("wedged" if how == "unhealthy" else "exploded") in lines[-1]
    assert runs(live) == ("0.1.0", "")
    assert without_times(everything(live.root / "etc")) == without_times(config)
    assert live.calls("systemctl").count(f"systemctl restart {SERVICE}") >= 2
    # And it can be tried again, and installed over.
    assert workshop.install(live.box(), "0.3.0", live=True)[0] == 0
    assert runs(live) == ("0.3.0", "0.1.0")


class OnceBroken:
    """The real gate, on a box whose service does not start the first time."""

    def __init__(self, jetson: Jetson) -> None:
        self.jetson = jetson
        self.jetson.unit(SERVICE, StartFails="it exploded")

    def __call__(self, target: Target) -> str:
        problem = switching.Start(30.0)(target)
        self.jetson.unit(SERVICE, StartFails="")
        return problem


def without_times(found: dict[str, tuple[int, int, int, int, str]]) -> dict[str, tuple[int, int, int, str]]:
    return {path: (mode, owner, group, text) for path, (mode, owner, group, _, text) in found.items()}


def test_when_the_release_before_is_not_well_either_that_is_said(live: Jetson, workshop: Workshop) -> None:
    workshop.install(live.box(), live=True)
    live.unit(SERVICE, StartFails="the disk is gone")
    code, lines = workshop.install(live.box(), "0.2.0", live=True)
    assert code == FAILED
    assert "0.1.0 is back in place, and is not well either" in lines[-1]
    assert runs(live) == ("0.1.0", "")


def test_a_first_install_that_is_not_well_says_that_there_is_nothing_to_go_back_to(
    live: Jetson, workshop: Workshop
) -> None:
    code, lines = workshop.install(live.box(), "0.2.0", live=True, health="FAIL")
    assert code == FAILED
    assert "no earlier release" in lines[-1]
    assert "journalctl" in lines[-1]


def test_a_gate_that_is_interrupted_goes_back_too(live: Jetson, workshop: Workshop) -> None:
    workshop.install(live.box(), live=True)

    def interrupted(where: Target) -> str:
        if releases.linked(where) == "0.2.0":
            raise KeyboardInterrupt
        return ""

    with pytest.raises(KeyboardInterrupt):
        workshop.install(live.box(), "0.2.0", live=True, gate=interrupted)
    assert runs(live) == ("0.1.0", "")


def test_a_bundle_goes_back_with_its_release(live: Jetson, workshop: Workshop, tmp_path: Path) -> None:
    workshop.install(live.box(), live=True)
    before = everything(live.root / "var/lib/f5-appliance/bundle")
    _, folder = workshop.checkout()
    options = Options(offline=folder, python=sys.executable, bundle=bundle(tmp_path / "real", b"a voice"))
    code, _ = workshop.install(live.box(), live=True, options=options, gate=lambda _: "it makes no sound")
    assert code == FAILED
    assert everything(live.root / "var/lib/f5-appliance/bundle") == before
    assert not (live.root / "var/lib/f5-appliance/.bundle.new").exists()


def test_health_that_fails_after_the_install_is_its_own_exit_status(live: Jetson, workshop: Workshop) -> None:
    code, lines = workshop.install(live.box(), live=True, gate=lambda _: "", health="FAIL")
    assert code == UNHEALTHY
    assert lines[-1] == "FAIL  daemon"


def test_units_of_a_release_come_and_go_with_it(live: Jetson, workshop: Workshop) -> None:
    workshop.install(live.box(), live=True)
    source, _ = workshop.checkout("0.4.0")
    timer = source.folder / "systemd/f5-guard.timer"
    timer.unlink(missing_ok=True)
    assert workshop.install(live.box(), "0.4.0", live=True)[0] == 0
    units = live.root / "etc/systemd/system"
    assert not (units / "f5-guard.timer").exists()
    assert not os.path.lexists(units / "timers.target.wants/f5-guard.timer")
    switching.back(target(live), print, lambda _: "")
    assert (units / "f5-guard.timer").is_file()
    assert os.path.lexists(units / "timers.target.wants/f5-guard.timer")


# scripts/switch, as a technician runs it.


def run(jetson: Jetson, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = jetson.root / "opt/f5-appliance/current/scripts/switch"
    return subprocess.run(
        [sys.executable, "-I", str(script), *arguments],
        env={**os.environ, **jetson.environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def two(jetson: Jetson, workshop: Workshop) -> Jetson:
    """A staged box with two versions."""
    for version in ("0.1.0", "0.2.0"):
        workshop.install(jetson.box(), version)
    return jetson


def test_list_back_and_to(two: Jetson) -> None:
    listed = run(two, "list").stdout.splitlines()
    assert [line.split()[-1] for line in listed] == ["previous", "current"]
    assert listed[1].startswith("* 0.2.0")
    assert run(two, "back").returncode == 0
    assert runs(two) == ("0.1.0", "0.2.0")
    assert run(two, "to", "0.2.0").returncode == 0
    assert runs(two) == ("0.2.0", "0.1.0")


@pytest.mark.parametrize("name", ["0.9.9", "..", "../../../etc", ".new-0.1.0", ""])
def test_a_version_that_is_not_there_is_named_with_those_that_are(two: Jetson, name: str) -> None:
    before = everything(two.root)
    result = run(two, "to", name)
    assert result.returncode == 1
    assert "installed: 0.1.0, 0.2.0" in result.stderr
    assert "Traceback" not in result.stderr
    assert everything(two.root) == before


def test_a_damaged_release_is_not_switched_to(two: Jetson) -> None:
    (two.root / "opt/f5-appliance/releases/0.1.0/scripts/health").write_text("")
    result = run(two, "back")
    assert result.returncode == 1
    assert "scripts/health is not as it was installed" in result.stderr
    assert runs(two) == ("0.2.0", "0.1.0")
    assert "damaged" in run(two, "list").stdout


def test_only_one_works_at_a_time(two: Jetson) -> None:
    import fcntl

    handle = os.open(two.root / "opt", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        result = run(two, "back")
    finally:
        os.close(handle)
    assert (result.returncode, runs(two)) == (1, ("0.2.0", "0.1.0"))
    assert "another install, switch or uninstall is at work" in result.stderr


def test_a_full_disk_while_switching_is_put_back(
    two: Jetson, monkeypatch: pytest.MonkeyPatch, workshop: Workshop
) -> None:
    put_in_place = system.put_in_place

    def full(where: Target, name: str) -> None:
        put_in_place(where, name)
        if name == "0.1.0":
            raise OSError(28, "No space left on device", "/etc/systemd/system/f5-appliance.service")

    monkeypatch.setattr(switching, "put_in_place", full)
    with pytest.raises(Failure, match=r"No space left on device\); 0.2.0 is back in place"):
        switching.back(Target(two.box(), staged=True), print, None)
    assert runs(two) == ("0.2.0", "0.1.0")


def test_folders_are_exchanged_and_exchanged_back(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "is").write_text(name)
    exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one/is").read_text() == "other"
    exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one/is").read_text() == "one"
    assert sorted(os.listdir(tmp_path)) == ["one", "other"]


def test_a_leftover_of_a_power_cut_is_not_taken_for_a_bundle(two: Jetson, tmp_path: Path) -> None:
    where = Target(two.box(), staged=True)
    bundle(where.at(bundles.NEW), b"left by a power cut")
    switching.back(where, print, None)
    assert (where.at("/var/lib/f5-appliance/bundle") / "weights").read_bytes() == b"noise"


# Stopped from outside.


STOPPED = """
import os, sys, time
from scripts.installer import running, switching
from scripts.installer.target import Target
from appliance.box.system import open_box

target = Target(open_box(os.environ["F5_SYSROOT"], os.environ["F5_TOOLS"]))

def gate(where):
    running.say("starting")
    if switching.linked(where) == "0.2.0":
        time.sleep(60)
    return ""

def main():
    switching.switch(target, "0.2.0", running.say, gate)
    return 0

sys.exit(running.told(main))
"""


@pytest.mark.parametrize("end", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("terminal", ["there", "gone"])
def test_a_process_that_is_stopped_during_its_gate_goes_back_first(
    two: Jetson, end: signal.Signals, terminal: str
) -> None:
    switching.back(Target(two.box(), staged=True), print, None)
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        cwd=ROOT,
        env={**os.environ, **two.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "starting\n"
        assert runs(two) == ("0.2.0", "0.1.0")
        if terminal == "gone":
            process.stdout.close()
            process.stderr.close()
        process.send_signal(end)
        code = process.wait(30)
        if terminal == "there":
            assert process.stderr.read() == "error: stopped; run it again, it goes on where it stopped\n"
    assert code == 1
    assert runs(two)[0] == "0.1.0"
    assert not os.path.lexists(two.path(UNPROVEN))


def power_cut(
    jetson: Jetson, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, health: str = "PASS"
) -> None:
    """Install 0.2.0 on a box that loses its power while that is proven."""
    with monkeypatch.context() as patch:
        patch.setattr(switching, "_back", lambda *_: "")
        with pytest.raises(KeyboardInterrupt):
            workshop.install(jetson.box(), "0.2.0", live=True, gate=interrupted, health=health)
    assert runs(jetson)[0] == "0.2.0"


def interrupted(_: Target) -> str:
    raise KeyboardInterrupt


def test_after_a_power_cut_the_next_run_proves_what_is_in_place(
    live: Jetson, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.install(live.box(), live=True)
    power_cut(live, workshop, monkeypatch)
    starts = live.calls("systemctl").count(f"systemctl restart {SERVICE}")
    code, lines = workshop.install(live.box(), "0.2.0", live=True)
    assert code == 0, lines
    assert live.calls("systemctl").count(f"systemctl restart {SERVICE}") == starts + 1
    assert runs(live) == ("0.2.0", "0.1.0")
    assert workshop.install(live.box(), "0.2.0", live=True)[1][-2] == "nothing to do"


def test_after_a_power_cut_what_does_not_prove_itself_goes_back_to_what_did(
    live: Jetson, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.install(live.box(), live=True)
    power_cut(live, workshop, monkeypatch, health="FAIL")
    code, lines = workshop.install(live.box(), "0.2.0", live=True, health="FAIL")
    assert code == FAILED
    assert "0.1.0 is back in place and runs" in lines[-1]
    assert runs(live) == ("0.1.0", "")


def test_a_first_install_that_was_not_well_is_proven_by_the_next_run(
    live: Jetson, workshop: Workshop
) -> None:
    assert workshop.install(live.box(), live=True, gate=lambda _: "it makes no sound")[0] == FAILED
    assert workshop.install(live.box(), live=True, gate=lambda _: "it makes no sound")[0] == FAILED
    assert workshop.install(live.box(), live=True)[0] == 0
    assert not os.path.lexists(live.path(UNPROVEN))


# Heard at the end.


def test_an_update_and_a_new_voice_are_heard(live: Jetson, workshop: Workshop, tmp_path: Path) -> None:
    from scripts.installer.speaking import Voice

    workshop.install(live.box(), live=True)
    lines = workshop.install(live.box(), "0.2.0", live=True)[1]
    assert any(line.startswith("spoke ") for line in lines), lines
    _, folder = workshop.checkout("0.2.0")
    (tmp_path / "ann.wav").write_bytes(b"RIFF")
    voice = Voice("ann", tmp_path / "ann.wav", "What Ann says.")
    options = Options(offline=folder, python=sys.executable, voice=voice)
    for heard in (True, False):
        lines = workshop.install(live.box(), "0.2.0", live=True, options=options)[1]
        assert any(line.startswith("spoke ") for line in lines) is heard, lines

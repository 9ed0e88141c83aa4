"""The record of the last boots: what it keeps, and what is believed of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level
from appliance.box.checks.runner import run_checks
from appliance.box.clocks import boots, clocks_json
from appliance.box.clocks.boots import Boot, history, losses
from appliance.box.clocks.pinning import NotRoot, check, end, lock
from appliance.box.clocks.reason import Reason
from appliance.box.health import _note_backend
from appliance.box.system import Box
from tests.fakes.jetson.board import Clock, Jetson
from tests.harness.boxes import quick

pytestmark = [pytest.mark.slow, pytest.mark.once]

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@pytest.fixture
def clock() -> Clock:
    return Clock(20.0)


@pytest.fixture
def box(jetson: Jetson, clock: Clock) -> Box:
    return quick(jetson, **clock.arguments)


def boot(jetson: Jetson, clock: Clock) -> None:
    jetson.boot()
    clock.uptime_s = 20.0


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boots, "KEPT", 5)


@pytest.mark.usefixtures("few")
def test_each_boot_is_on_record_with_what_it_ran_on(jetson: Jetson, box: Box, clock: Clock) -> None:
    for number in range(8):
        boot(jetson, clock)
        lock(box)
        end(box) if number != 5 else None
    found = history(box)
    assert len(found) == 5 == len({one.boot_id for one in found})
    assert found[-1].boot_id == box.boot_id
    assert [one.ended for one in found[-4:]] == [True, False, True, True]
    assert {(one.asked, one.applied, one.pinned) for one in found} == {("MAXN", "MAXN", "MAXN")}
    assert {(one.l4t, one.tensorrt, one.driver) for one in found} == {("36.4.3", "10.3.0", "540.4.0")}
    assert jetson.path(paths.BOOTS).stat().st_mode & 0o777 == 0o644, "for all to read"


def test_a_shutdown_that_does_not_come_is_taken_back(box: Box) -> None:
    """`systemctl restart f5-clocks` ends and starts the unit; one that was stopped leaves the timer."""
    for act in (lock, check):
        lock(box)
        end(box)
        assert history(box)[-1].ended
        act(box)
        assert not history(box)[-1].ended
    with pytest.raises(NotRoot):
        end(replace(box, user=lambda: 1000))


def test_a_disk_is_written_seldom(jetson: Jetson, box: Box, clock: Clock) -> None:
    lock(box)
    stamps = set()
    for _ in range(288):
        clock.advance(300)
        with_time = replace(boots.recorded(box, print), seen_at=clock.uptime_s, held_at=clock.uptime_s)
        boots.save(box, with_time, print)
        stamps.add(jetson.path(paths.BOOTS).stat().st_ino)
    assert len(stamps) < 20, "of a day of checks"
    assert history(box)[-1].held_s > DAY_S / 2


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"boots": 3}', '{"schema": 2, "boots": []}', '{"boots": [{"seen_at": 1e99}]}', "\0\0",
])  # fmt: skip
def test_damage_is_put_aside_and_told(jetson: Jetson, box: Box, text: str) -> None:
    lock(box)
    boot(jetson, Clock())
    jetson.write(paths.BOOTS, text)
    [told] = run_checks(replace(box, user=lambda: 1000), only={"boots"})
    assert (told.level, "damaged" in told.value) == (Level.WARN, True)
    lines: list[str] = []
    assert lock(box, report=lines.append).state == "pinned"
    assert any("it is damaged, and now /var/lib/f5-appliance/boots.json.damaged" in line for line in lines)
    assert jetson.path(paths.DAMAGED_BOOTS).read_text() == text and len(history(box)) == 1
    [told] = run_checks(box, only={"boots"})
    assert told.level is Level.WARN and "sudo rm" in told.remedy


def test_what_others_could_have_written_bars_nothing(jetson: Jetson, box: Box) -> None:
    past = [Boot(str(number), pinned="MAXN", pinned_at=20.0, seen_at=30.0) for number in range(5)]
    jetson.write(paths.BOOTS, json.dumps({"schema": 1, "boots": [vars(one) for one in past]}))
    jetson.path(paths.BOOTS).chmod(0o666)
    lines: list[str] = []
    assert lock(box, report=lines.append).state == "pinned"
    assert any("boots.json is not used" in line for line in lines)


def ended(mode: str = "MAXN", after_s: float = 60.0, **more: object) -> Boot:
    return Boot("x", pinned=mode, pinned_at=20.0, seen_at=20.0 + after_s, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("past", "count"), [
    ([ended()] * 5, 5), ([ended(), ended("MODE_50W"), ended()], 2),
    ([ended(), ended(after_s=8 * HOUR_S), ended()], 1),  # it bore the mode; the plug was pulled
    ([ended(), ended(ended=True), ended()], 2),  # a technician restarted it: that proves nothing
    ([ended(), ended(rebooting_for="MAXN"), ended()], 2),
    ([ended(), ended(tried_again=True), ended()], 2),  # with another supply
    ([ended(), Boot("x", applied="MAXN"), ended()], 2),  # not pinned
    ([ended(), ended(end_unknown=True), ended()], 2),  # its shutdown may have left no note
    ([ended(), ended(hung=True), ended()], 2),
    ([ended(), ended(on_trial=("MAXN",)), ended(on_trial=("MODE_50W",))], 2),
    ([], 0),
])  # fmt: skip
def test_losses_of_a_mode(past: list[Boot], count: int) -> None:
    assert losses(past, "MAXN") == count


@pytest.mark.usefixtures("few")
def test_a_mode_that_ended_three_boots_is_not_pinned_again(jetson: Jetson, box: Box, clock: Clock) -> None:
    for _ in range(3):
        boot(jetson, clock)
        assert lock(box).state == "pinned"
    for _ in range(6):
        boot(jetson, clock)
        clocks = lock(box)
        assert (clocks.state, clocks.reason) == ("unpinned", Reason.POWER_LOSSES), (
            "for longer than the record"
        )
        clock.advance(30)
        assert check(box).reason is Reason.POWER_LOSSES and clocks.repins == 0
    for more, word in ((False, "would pin nothing"), (True, "would run: jetson_clocks")):
        lines: list[str] = []
        lock(box, dry_run=True, try_again=more, report=lines.append)
        assert any(line.startswith(word) for line in lines), lines
    assert lock(box, try_again=True).state == "pinned"
    boot(jetson, clock)
    assert lock(box).state == "pinned", "the count begins anew"
    boot(jetson, clock)
    jetson.write(paths.CONFIG, "device:\n  power_mode: MODE_50W\n")
    boot(jetson, clock)
    assert (lock(box).state, lock(box).mode) == ("pinned", "MODE_50W"), "a lower one is another matter"


def evening(jetson: Jetson, box: Box, clock: Clock, minutes: float, *, shutdown: bool = False) -> None:
    """Play a boot as systemd does: pinned, checked; then a shutdown, or the power is gone."""
    boot(jetson, clock)
    lock(box)
    checks = 4 if minutes > 60 else 1
    for _ in range(checks):
        clock.advance(60 * minutes / checks)
        check(box)
    end(box) if shutdown else None


def barred(box: Box) -> tuple[str, ...]:
    return boots.recorded(box, print).barred


def test_a_plug_that_is_pulled_after_the_hour_counts_nothing(jetson: Jetson, box: Box, clock: Clock) -> None:
    for _ in range(3):
        evening(jetson, box, clock, 70)
    assert all(one.held_s > boots.SOON_S for one in history(box)) and losses(history(box), "MAXN") == 0


@pytest.mark.parametrize(("unit", "lost"), [
    ({}, 0), ({"ActiveState": "failed"}, 0), ({"ActiveState": "active"}, 3),
])  # fmt: skip
def test_after_a_failed_lock_systemd_says_whether_an_end_would_be_noted(
    jetson: Jetson, box: Box, clock: Clock, unit: dict[str, str], lost: int
) -> None:
    """Hot at the one try of f5-clocks.service, pinned by the timer a minute later."""
    if unit:
        jetson.unit("f5-clocks.service", **unit)
    for _ in range(3):
        boot(jetson, clock)
        jetson.fault("thermal_throttle", degrees=99.5, cap_khz=1190400)
        assert lock(box).state == "unpinned"
        jetson.heal("thermal_throttle")
        clock.advance(60)
        assert check(box).state == "pinned"
    assert losses(history(box), "MAXN") == lost
    boot(jetson, clock)
    assert (lock(box).state == "pinned") is (lost < boots.LOSSES)


def test_a_watchdogs_reset_is_no_power_loss(jetson: Jetson, box: Box, clock: Clock) -> None:
    """As the next boot learns from the PMC; it is on record for the boots after that too."""
    for source in ("SYS_RESET_N", "TMRWDT", "SYS_RESET_N", "BCCPLEXWDT", "SYS_RESET_N"):
        jetson.write("/sys/devices/platform/bus@0/c360000.pmc/reset_reason", source)
        evening(jetson, box, clock, 2)
    assert [one.hung for one in history(box)] == [True, False, True, False, False]
    assert losses(history(box)[:-1], "MAXN") == 2 and not barred(box)


def test_a_bar_says_how_it_is_lifted_and_lifts_itself(
    jetson: Jetson, box: Box, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supply that does not bear MAXN costs one boot in ever more; one that does is tried once."""
    monkeypatch.setattr(boots, "LONGEST_WAIT", 4)
    for _ in range(3):
        evening(jetson, box, clock, 2)
    for wait in (3, 4, 4):
        evening(jetson, box, clock, 2)  # the plug is pulled
        for calm in range(wait):
            # One of them outlasts the hour, and has no shutdown.
            evening(jetson, box, clock, 70 if calm == 1 else 1, shutdown=calm != 1)
            left = f"after {wait - calm} boot"
            [told] = run_checks(box, only={"boots"})
            assert told.level is Level.FAIL and left in told.value and boots.TRY_AGAIN in told.value
            assert left in clocks_json.read(box).why
        evening(jetson, box, clock, 30, shutdown=True)  # proves nothing: it stays on trial
        [told] = run_checks(box, only={"boots"})
        assert not barred(box) and told.level is Level.PASS and "on trial" in told.value
        evening(jetson, box, clock, 2)
        assert clocks_json.read(box).state == "pinned"
    for _ in range(5):
        evening(jetson, box, clock, 1, shutdown=True)
    evening(jetson, box, clock, 90)
    assert history(box)[-1].on_trial and clocks_json.read(box).state == "pinned"
    for _ in range(3):
        evening(jetson, box, clock, 2)
        assert clocks_json.read(box).state == "pinned", "it bore the trial: losses count as ever"
    evening(jetson, box, clock, 2)
    assert barred(box)


def test_the_power_is_gone_before_jetson_clocks_returns(jetson: Jetson, box: Box, clock: Clock) -> None:
    class Gone(BaseException):
        pass

    def execute(name: str, *arguments: str, **more: object) -> object:
        if name == "jetson_clocks" and not arguments:
            raise Gone
        return box.tools.execute(name, *arguments)

    for _ in range(3):
        boot(jetson, clock)
        dying = type("Dying", (type(box.tools),), {"execute": staticmethod(execute), "find": box.tools.find})
        with pytest.raises(Gone):
            lock(replace(box, tools=dying()))
    boot(jetson, clock)
    assert lock(box).reason is Reason.POWER_LOSSES


def test_which_backend_spoke_is_noted(box: Box) -> None:
    lock(box)
    figures = {"backend": "ort-cuda (fused)", "passed_over": {"tensorrt": "no code for this GPU"}}
    _note_backend(box, [Finding("synthesis", Level.PASS, "", figures=figures)])
    assert (history(box)[-1].backend, history(box)[-1].passed_over) == ("ort-cuda", ("tensorrt",))
    check(box)
    assert history(box)[-1].backend == "ort-cuda"

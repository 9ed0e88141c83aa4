"""The record of the last boots: its contents, and how the lock reads it."""

import json
from dataclasses import replace

import pytest

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level
from appliance.box.checks.runner import run_checks
from appliance.box.clocks import boots
from appliance.box.clocks.boots import Boot, history, losses
from appliance.box.clocks.pinning import NotRoot, check, end, lock
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
def test_the_record_has_each_boot_with_its_software(jetson: Jetson, box: Box, clock: Clock) -> None:
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


def test_a_cancelled_shutdown_is_cleared(box: Box) -> None:
    """`systemctl restart f5-clocks` ends and starts the unit. After a stop, the timer's check clears the
    mark."""
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


def written(jetson: Jetson, *past: Boot, mode: int = 0o644) -> None:
    jetson.write(paths.BOOTS, json.dumps({"schema": 1, "boots": [vars(one) for one in past]}))
    jetson.path(paths.BOOTS).chmod(mode)


def test_a_record_that_others_could_write_is_ignored(jetson: Jetson, box: Box) -> None:
    written(jetson, Boot(box.boot_id, unlocked_at=1.0), mode=0o666)
    lines: list[str] = []
    assert check(box, report=lines.append).state == "pinned"
    assert any("boots.json is not used" in line for line in lines)


def ended(mode: str = "MAXN", after_s: float = 60.0, **more: object) -> Boot:
    return Boot("x", pinned=mode, pinned_at=20.0, seen_at=20.0 + after_s, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("past", "count"), [
    ([ended()] * 5, 5), ([ended(), ended("MODE_50W"), ended()], 2),
    ([ended(), ended(after_s=8 * HOUR_S), ended()], 1),  # it lasted in the mode, then lost power
    ([ended(), ended(ended=True), ended()], 2),  # a technician restarted it: that proves nothing
    ([ended(), ended(rebooting_for="MAXN"), ended()], 2),
    ([ended(), Boot("x", applied="MAXN"), ended()], 2),  # not pinned
    ([ended(), ended(after_hang=True), ended()], 2),  # the first boot hung
    ([], 0),
])  # fmt: skip
def test_losses_of_a_mode(past: list[Boot], count: int) -> None:
    assert len(losses([*past, Boot("now")], "MAXN")) == count


def evening(jetson: Jetson, box: Box, clock: Clock, minutes: float = 2) -> Finding:
    """Play a boot that is pinned, checked and loses its power. Returns the finding about the boots before
    it."""
    boot(jetson, clock)
    assert lock(box).state == "pinned"
    [told] = run_checks(box, only={"boots"})
    clock.advance(60 * minutes)
    check(box)
    return told


def test_three_power_losses_are_a_warning_and_change_nothing(jetson: Jetson, box: Box, clock: Clock) -> None:
    jetson.write("/sys/devices/platform/bus@0/c360000.pmc/reset_reason", "SYS_RESET_N")
    assert [evening(jetson, box, clock).level for _ in range(6)] == [Level.PASS] * 3 + [Level.WARN] * 3
    assert jetson.mode == "MAXN"
    jetson.write(paths.CONFIG, "device:\n  power_mode: MODE_50W\n")
    assert evening(jetson, box, clock, 70).level is Level.PASS, "a lower one is another matter"
    jetson.path(paths.CONFIG).unlink()
    assert evening(jetson, box, clock, 70).level is Level.WARN
    assert evening(jetson, box, clock).level is Level.PASS, "it lasted in the mode"


def test_the_power_is_gone_before_jetson_clocks_returns(jetson: Jetson, box: Box) -> None:
    class Gone(BaseException):
        pass

    def execute(name: str, *arguments: str, **more: object) -> object:
        if name == "jetson_clocks" and not arguments:
            raise Gone
        return box.tools.execute(name, *arguments)

    dying = type("Dying", (type(box.tools),), {"execute": staticmethod(execute), "find": box.tools.find})
    with pytest.raises(Gone):
        lock(replace(box, tools=dying()))
    assert history(box)[-1].lost_power(Boot())


def test_the_record_has_the_backend_that_spoke(box: Box) -> None:
    lock(box)
    figures = {"backend": "ort-cuda (fused)", "passed_over": {"tensorrt": "no code for this GPU"}}
    _note_backend(box, [Finding("synthesis", Level.PASS, "", figures=figures)])
    assert (history(box)[-1].backend, history(box)[-1].passed_over) == ("ort-cuda", ("tensorrt",))
    check(box)
    assert history(box)[-1].backend == "ort-cuda"

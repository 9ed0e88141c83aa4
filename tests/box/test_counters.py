"""Counters over time: windows, counters that restart, other boots, damaged records."""

from pathlib import Path

import pytest

from appliance.box import paths
from appliance.box.checks import counters
from appliance.box.checks.counters import Sample, rise
from appliance.box.root import Root
from appliance.box.system import Box


def samples(*rows: tuple[float, int]) -> list[Sample]:
    return [Sample(at, {"oc1": count}) for at, count in rows]


def test_the_rate_without_a_record_is_the_mean_since_boot() -> None:
    found = rise((), Sample(7200.0, {"oc1": 12}), "oc1", 3600.0)
    assert found is not None and not found.recorded
    assert (found.count, found.span_s, found.per(3600.0)) == (12, 7200.0, 6.0)
    assert "since boot" in found.summary


@pytest.mark.parametrize(("rows", "expected"), [
    ([(0.0, 1), (300.0, 4), (3900.0, 5)], (3, 3600.0)),  # the newest sample that is old enough
    ([(3000.0, 5)], (2, 900.0)),  # younger than the window: better than no sample
    ([(3900.0 - 29, 6)], (7, 3900.0)),  # half a minute is too short for a rate
    ([(100.0, 90), (3000.0, 2), (3300.0, 5)], (5, 900.0)),  # began again: earlier samples do not count
    ([(3000.0, 2), (3300.0, 90)], (7, 3900.0)),
])  # fmt: skip
def test_the_window(rows: list[tuple[float, int]], expected: tuple[int, float]) -> None:
    found = rise(samples(*rows), Sample(3900.0, {"oc1": 7}), "oc1", 3600.0)
    assert found is not None
    assert (found.count, found.span_s) == expected


def test_a_counter_that_is_not_there() -> None:
    assert rise(samples((0.0, 1)), Sample(100.0, {}), "oc1", 60.0) is None


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def box(tmp_path: Path, clock: list[float]) -> Box:
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("first\n")
    return Box(Root(tmp_path), uptime=lambda: clock[0])


def take(box: Box, clock: list[float], at: float, count: int) -> None:
    clock[0] = at
    counters.keep(box, counters.read(box), Sample(at, {"oc1": count}))


def test_samples_expire_and_have_a_least_distance(box: Box, clock: list[float], tmp_path: Path) -> None:
    for at in (1000.0, 1005.0, 1010.0, 5000.0, 9000.0):
        take(box, clock, at, int(at))
    assert [sample.at for sample in counters.read(box)] == [5000.0, 9000.0]
    take(box, clock, 9002.0, 1)
    assert len(counters.read(box)) == 2
    assert (tmp_path / paths.COUNTERS[1:]).stat().st_mode & 0o777 == 0o600


def test_another_boot_and_damage_are_no_record(box: Box, clock: list[float], tmp_path: Path) -> None:
    take(box, clock, 1000.0, 5)
    assert counters.read(box)
    path = tmp_path / paths.COUNTERS[1:]
    whole = path.read_text()
    for damaged in ("", "{", "[]", '{"schema": 2}', whole.replace("counts", "counters"), whole[:-20]):
        path.write_text(damaged)
        assert counters.read(box) == ()
    path.write_text(whole)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("second\n")
    assert counters.read(box) == ()

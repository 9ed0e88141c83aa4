"""The time left, on a clock that passes as the work asks for."""

import io

import pytest

from export import progress
from export.progress import Plan, Progress, Stage

pytestmark = pytest.mark.torch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class World:
    """A clock, and the seconds that a unit of each kind of work takes."""

    def __init__(self, stream: io.StringIO, **seconds: float) -> None:
        self.now, self.seconds = 100.0, seconds
        stages = [
            Stage("a", "torch", 10),
            Stage("b", "trace", 4),
            Stage("not", "torch", 50),
            Stage("c", "torch", 20),
        ]
        plan = Plan(stages, lambda frames: frames / 100, {"trace": 2.0})
        self.progress = Progress(plan, stream, lambda: self.now)

    def work(self, kind: str, units: float) -> None:
        self.now += units * self.seconds[kind]
        self.progress.did(frames=round(units * 100))

    def left_s(self) -> float:
        left = self.progress.left_s()
        assert left is not None
        return left


def test_the_time_left_follows_the_plan_and_the_measured_rates() -> None:
    log = io.StringIO()
    world = World(log, torch=3.0, trace=5.0)
    assert world.left_s() == pytest.approx(10 + 4 * 2 + 50 + 20)  # as guessed
    world.progress.begin("a")
    world.work("torch", 2)
    # An unmeasured kind is assumed to exceed its guess by the factor of the measured kinds.
    assert world.left_s() == pytest.approx(3 * (8 + 4 * 2 + 50 + 20))
    world.work("torch", 8)
    world.progress.begin("b", "one")
    world.work("trace", 1)
    world.progress.part(0.25)
    world.now += 5
    assert world.left_s() == pytest.approx(5 * 2 + 3 * 70)
    world.progress.begin("b", "two")
    world.progress.begin("unplanned")
    world.now += 60
    world.progress.begin("c")  # skipped stages before it no longer count
    assert world.left_s() == pytest.approx(3 * 20)
    world.work("torch", 30)
    assert world.left_s() == 0.0
    assert log.getvalue().splitlines() == [
        "0:00:00 a, about 90 s left",
        "0:00:30 b one, about 4 min left",
        "0:00:40 b two, about 4 min left",
        "0:00:40 unplanned, about 4 min left",
        "0:01:40 c, about 60 s left",
    ]


def test_a_terminal_has_one_line_that_never_goes_back() -> None:
    terminal = Terminal()
    world = World(terminal, torch=1.0, trace=50.0)
    world.progress.begin("a")
    world.work("torch", 10)
    world.progress.begin("b")
    world.work("trace", 2)
    world.progress.say("a word")
    world.progress.begin("c")
    world.progress.close()
    shown = terminal.getvalue()
    assert shown.count("\n") == 2 and "a word\n" in shown
    parts = [part for part in shown.replace("\n", "\r").split("\r") if " % |" in part]
    shares = [int(part.split("%")[0].split()[-1]) for part in parts]
    assert shares == sorted(shares) and shares[0] == 0
    assert parts[-1].startswith("c ") and "about 20 s left" in parts[-1]


def test_progress_is_silent_outside_of_shown(capsys: pytest.CaptureFixture[str]) -> None:
    progress.begin("a")
    progress.did(100)
    progress.part(0.5)
    assert list(progress.each("xy", 100)) == ["x", "y"]
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ZeroDivisionError), progress.shown(Plan()):
        progress.begin("a", "b")
        raise ZeroDivisionError
    progress.begin("c")
    assert capsys.readouterr().err == "0:00:00 a b\n"

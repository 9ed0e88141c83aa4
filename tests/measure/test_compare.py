"""Comparison of two daemons: the interval against binomial tails and simulated runs; wrong arguments."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from appliance.bench.run import Cell
from appliance.box.root import Root
from appliance.box.system import Box
from appliance.client import Header, Reply, Timings
from tests.harness.daemons import BUNDLE
from tests.measure.__main__ import main
from tests.measure.compare import CONFIDENCE, LEAST_BLOCKS, Speaker, caveats, interval, measure, table

pytestmark = [pytest.mark.slow, pytest.mark.once]

CELLS = [Cell("English", name, "x", "bench", None) for name in ("short", "medium")]


class Machine:
    """Replies that take what its clock says: 2 s of audio each, slower as the machine heats up."""

    def __init__(self, seed: int, *, noise: float = 0.0, drift: float = 0.0) -> None:
        self.calls: list[str] = []
        self._draw, self._noise, self._drift = Random(seed), noise, drift

    def speaker(self, name: str, factor: float = 1.0) -> Speaker:
        def speak(cell: Cell) -> Reply:
            heat = 1.0 + self._drift * len(self.calls)
            # Now and then a neighbour takes the core: a tail that no mean survives.
            disturbed = 1.0 + self._noise * self._draw.paretovariate(1.5)
            self.calls.append(name)
            wall_s = 0.5 * factor * heat * disturbed
            return Reply(
                b"\0" * 96_000,
                Header(sample_rate_hertz=24_000, encoding="PCM16"),
                Timings(),
                wall_s,
                wall_s / 4,
            )

        return speak


def compared(machine: Machine, folder: Path, factor: float = 1.0, blocks: int = 10) -> dict[str, Any]:
    speakers = {"A": machine.speaker("A"), "B": machine.speaker("B", factor)}
    found = measure(speakers, CELLS, blocks, Box(Root(folder)))
    return {**found, **{who: {**found[who], "given": who, "version": "1", "bundle": "tiny"} for who in "AB"}}


@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_a_against_itself_on_a_clock_without_noise(tmp_path: Path, drift: float) -> None:
    """A drift that is linear within a block cancels to a thousandth."""
    machine = Machine(0, drift=drift)
    found = compared(machine, tmp_path, blocks=6)
    warm_up, rest = machine.calls[:4], "".join(machine.calls[4:])
    assert warm_up == ["A", "B", "A", "B"] and rest == ("ABBA" * 2 + "BAAB" * 2) * 3
    for row in found["rows"]:
        assert row["wall"]["low"] <= 1.0 <= row["wall"]["high"]
        assert row["wall"]["b_is"] == "no difference shown"
        assert row["wall"]["smallest_difference"] <= drift / 5
    assert [row["text"] for row in found["rows"]] == ["short", "medium", "all"]
    assert "no difference shown" in table(found)
    found["neighbours"], found["rows"][0]["B"]["audio_s"] = [("make (7)", 0.9)], 2.5
    shown = "".join(caveats(found))
    assert "make (7) 0.90 cores" in shown and "short: B speaks 2.50 s where A speaks 2.00 s" in shown


@pytest.mark.parametrize("factor", [1.2, 1 / 1.2])
def test_another_speed_is_found_in_noise(tmp_path: Path, factor: float) -> None:
    found = compared(Machine(3, noise=0.01, drift=0.01), tmp_path, factor)
    for row, figure in itertools.product(found["rows"], ("wall", "rtf", "first_audio")):
        one = row[figure]
        assert one["low"] <= factor <= one["high"] and one["b_is"] == ("slower" if factor > 1 else "faster")
        assert one["smallest_difference"] < 0.2
    assert f"B is {'slower' if factor > 1 else 'faster'}" in table(found)


def test_of_runs_without_a_difference_one_in_twenty_may_show_one(tmp_path: Path) -> None:
    draw = Random(5)
    misses = sum(
        not interval([math.exp(draw.gauss(0.0, 0.01) * draw.paretovariate(2.0)) for _ in range(10)]).holds_one
        for _ in range(4_000)
    )
    assert 0.01 < misses / 4_000 < 1.0 - CONFIDENCE


@pytest.mark.parametrize("n", range(LEAST_BLOCKS, 40))
def test_the_interval_is_the_narrowest_of_its_confidence(n: int) -> None:
    """By counting which of the order statistics are below the median, in all 2^n ways as a walk of coins."""
    ways = [1]
    for _ in range(n):
        ways = [a + b for a, b in zip([0, *ways], [*ways, 0], strict=True)]
    found = interval([math.exp(i) for i in range(n)])
    k = round(math.log(found.low))
    assert round(math.log(found.high)) == n - 1 - k
    covered = [1.0 - 2.0 * sum(ways[: i + 1]) / 2**n for i in (k, k + 1)]
    assert found.confidence == pytest.approx(covered[0]) and covered[1] < CONFIDENCE <= covered[0]
    with pytest.raises(ValueError, match="5 blocks"):
        interval([1.0] * 5)


@pytest.mark.thorough
def test_a_configuration_of_more_steps_is_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two real daemons: one of 1 step, one of 8. A daemon that cannot start ends the comparison."""
    slow, quick, out = tmp_path / "slow.yaml", tmp_path / "quick.yaml", tmp_path / "out.json"
    # What belongs to the box's own daemon is not touched.
    server = {"socket": str(tmp_path / "box.sock"), "agent": "127.0.0.1:9465"}
    for path, nfe in ((quick, 1), (slow, 8)):
        sections = {"bundle": {"path": str(BUNDLE)}, "synthesis": {"nfe": nfe}, "server": server}
        path.write_text(yaml.safe_dump(sections))
    command = ["compare", str(BUNDLE), str(slow), "--config", str(quick)]
    options = ["--set", "engine.threads=1", "--blocks", "6", "--lengths", "short", "--json", str(out)]
    assert main([*command, *options]) == 0
    found = json.loads(out.read_text("utf-8"))
    assert [found[who]["nfe"] for who in "AB"] == [1, 8]
    assert [found[who]["kind"] for who in "AB"] == ["bundle", "configuration"]
    assert found["A"]["manifest"] == found["B"]["manifest"] and found["warm_up_s"] > 0.0
    [row] = found["rows"]
    assert row["wall"]["b_is"] == "slower" and row["wall"]["low"] > 1.0
    assert row["A"]["audio_s"] == row["B"]["audio_s"] > 1.0
    shown = capsys.readouterr().out
    assert "B is slower" in shown and "nothing about load" in shown
    assert not (tmp_path / "box.sock").exists()
    assert main([*command, "--set", "engine.backend=tensorrt"]) == 1
    assert "its daemon ended with 65: appliance serve: backend" in capsys.readouterr().err

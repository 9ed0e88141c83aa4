"""Comparison of two daemons: its interval against binomial tails, and a run of it."""

import json
import math
from pathlib import Path

import pytest
import yaml

from tests.harness.daemons import BUNDLE
from tests.measure.__main__ import main
from tests.measure.compare import CONFIDENCE, LEAST_BLOCKS, interval

pytestmark = [pytest.mark.slow, pytest.mark.once]


@pytest.mark.parametrize("n", range(LEAST_BLOCKS, 40))
def test_the_interval_is_the_narrowest_of_its_confidence(n: int) -> None:
    """The test counts the order statistics below the median, in all 2^n ways, as a walk of coins."""
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
    """Two real daemons speak, with 1 step and with 8 steps. A daemon that cannot start ends the
    comparison."""
    slow, quick, out = tmp_path / "slow.yaml", tmp_path / "quick.yaml", tmp_path / "out.json"
    # The comparison must not touch the socket and the agent of the box's daemon.
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

"""A short storm over a daemon process with the tiny bundle."""

import argparse
import asyncio
import json
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from appliance import cli
from appliance.bench.arrivals import Message, Mix, Weighted, poisson
from appliance.bench.load import Load
from appliance.bench.outcome import OK, Outcome
from appliance.bench.storm import _baseline, _shared, _verified, run
from appliance.client import Header
from appliance.rpc import appliance_pb2 as pb
from tests.bench.test_run import LOUD, Answering
from tests.harness.daemons import Running, running, shared

pytestmark = [pytest.mark.slow, pytest.mark.once]


box = shared(scheduler={"queue_length": 4})


def storm(box: Running, *options: str) -> int:
    return cli.main(["bench", "storm", "--address", box.address, "--idle", "3", *options])


def test_a_storm(
    box: Running, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storms, opened = list[str](), Load.open
    monkeypatch.setattr(Load, "open", lambda load, all_: storms.append(all_[0].text) or opened(load, all_))
    written = tmp_path / "storm.json"
    options = ["--duration", "3", "--calibrate", "0.5", "--load", "2", "--words", "5", "--verify", "3"]
    options += ["--cancel", "0.2", "--json", str(written)]
    assert storm(box, *options) == 0
    sums = json.loads(written.read_text())
    assert min(sums["load"], sums["idle_first_audio_s"]["p50"]) > 0.0
    assert 0.0 < sums["goodput"] <= sums["delivered"]
    assert sums["verified"] == {"replies": 3, "same": 3}
    assert 10 < sums["requests"] <= sum((sums["admitted"], sums["cancelled"], *sums["refused"].values()))
    # The seed decides the texts, however many texts the closed loop drew before.
    mix = Mix(Weighted((5,), (1.0,)), Weighted(("normal",), (1.0,)))
    assert storms == [poisson(mix, 1.0, 99.0, Random(0))[0].text]
    shown = capsys.readouterr().out
    assert "3 of 3 bit-equal" in shown and "× capacity" in shown


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["tensorrt", "ort-cuda"])
def test_a_storm_on_a_fake_gpu(tmp_path: Path, backend: str) -> None:
    written = tmp_path / "storm.json"
    engine = {"backend": backend, "cache": str(tmp_path / "engines")}
    with running(tmp_path, module="tests.fakes.nvidia", engine=engine) as box:
        box.add_voice()
        # Rows of a batch agree to 2e-5, not bit for bit, so that the storm compares no repeated reply.
        options = ["--duration", "3", "--calibrate", "0.5", "--load", "1.5", "--cancel", "0.2"]
        assert storm(box, *options, "--verify", "0", "--json", str(written)) == 0
        assert box.stop() == 0, "3: the fake noted a wrong use"
    # On a busy machine the daemon may refuse all of the storm, but not the idle replies before it.
    assert json.loads(written.read_text())["idle_first_audio_s"]["p50"] > 0.0
    assert any("every path warm" in line and f"on {backend}" in line for line in box.lines)


def test_a_burst_on_serial_channels(box: Running, tmp_path: Path) -> None:
    burst, written = tmp_path / "burst.jsonl", tmp_path / "burst.json"
    messages = ({"at_s": at / 10, "text": "Good evening.", "user": "ann"} for at in range(4))
    burst.write_text("".join(json.dumps(message) + "\n" for message in messages))
    options = ["--burst", str(burst), "--capacity", "20", "--verify", "1", "--serial", "2"]
    assert storm(box, *options, "--json", str(written)) == 0
    record = json.loads(written.read_text())
    assert (record["serial"], record["requests"], record["heard"]) == (2, 4, 4)
    messages = [Message(0.0, "x"), Message(0.0, "x", channel="stage"), Message(0.0, "x")]
    assert [one.channel for one in _shared(messages, 2)] == ["serial-0", "stage", "serial-0"]


def test_verification_repeats_replies_exactly_and_skips_the_first_request() -> None:
    client = Answering(LOUD)
    load = Load([client], "ann", 9.0)  # type: ignore[list-item]
    header = Header(sample_rate_hertz=24_000, seed=5, nfe_steps=7, guidance=1.5, segmentation=pb.LOW_LATENCY)
    outcome = Outcome(Message(0.0, "Hello."), header=header, status=OK)
    assert asyncio.run(_verified(load, [outcome], 2, Random(0))) == {"replies": 1, "same": 0}
    again = {"seed": 5, "nfe": 7, "guidance": 1.5, "segmentation": "low_latency"}
    assert again.items() <= client.requests[0].items()
    options = SimpleNamespace(idle=2, capacity=1.0)
    counts = iter((1, 5, 9))
    mix = SimpleNamespace(words=SimpleNamespace(draw=lambda random: next(counts)))
    idle = asyncio.run(_baseline(load, options, mix, Random(0))).idle  # type: ignore[arg-type]
    assert [len(one.message.text.split()) for one in idle] == [5, 9]


@pytest.mark.parametrize(("same", "status"), [(1, 0), (0, 1)])
def test_a_reply_that_differs_is_a_failure(monkeypatch: pytest.MonkeyPatch, same: int, status: int) -> None:
    async def measured(options: object) -> object:
        return {"verified": {"replies": 1, "same": same}}

    monkeypatch.setattr("appliance.bench.storm._measure", measured)
    monkeypatch.setattr("appliance.bench.report.table", str)
    assert run(argparse.Namespace(json=None)) == status


@pytest.mark.parametrize("options", [
    ["--load", "0"], ["--words", "many"], ["--priorities", "loud=1"], ["--cancel", "2"], ["--idle", "0"],
])  # fmt: skip
def test_options_that_make_no_sense(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "storm", *options])
    assert caught.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_an_unwritable_file_is_refused_before_the_storm(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "storm", "--json", "/nowhere/x.json"]) == 1
    assert capsys.readouterr().err == "appliance bench: /nowhere/x.json: No such file or directory\n"

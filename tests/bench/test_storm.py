"""A short storm over a daemon process with the tiny bundle."""

import argparse
import asyncio
import json
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from appliance import cli
from appliance.bench.arrivals import Message, Mix, Weighted
from appliance.bench.load import Load
from appliance.bench.outcome import OK, Outcome
from appliance.bench.storm import _baseline, _messages, _verified, run
from appliance.client import Header
from appliance.rpc import appliance_pb2 as pb
from tests.bench.test_run import LOUD, Answering
from tests.harness.daemons import Running, running, shared

pytestmark = [pytest.mark.slow, pytest.mark.once]


box = shared(scheduler={"queue_length": 4})


def storm(box: Running, *options: str) -> int:
    return cli.main(["bench", "storm", "--address", box.address, "--idle", "3", *options])


def test_a_storm(box: Running, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written, trace = tmp_path / "storm.json", tmp_path / "storm.jsonl"
    options = ["--duration", "3", "--calibrate", "0.5", "--load", "2", "--words", "5", "--verify", "3"]
    options += ["--cancel", "0.2", "--slow", "0.1", "--json", str(written), "--trace", str(trace)]
    assert storm(box, *options) == 0
    found = json.loads(written.read_text())
    assert found["verified"] == {"replies": 3, "same": 3}
    assert min(found["load"], found["goodput"], found["idle_first_audio_s"]["p50"]) > 0.0
    assert found["goodput"] <= found["delivered"]
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert len(lines) == found["requests"] > 10
    # The seed decides the texts, however many texts the closed loop drew before.
    asked = SimpleNamespace(burst=None, load=1.0, duration=9.0, serial=0)
    mix = Mix(Weighted((5,), (1.0,)), Weighted(("normal",), (1.0,)), cancelled=0.2, slow=0.1)
    baseline = SimpleNamespace(capacity=9.0, audio_s_per_character=0.1)
    again, _ = _messages(asked, mix, baseline, Random(0))  # type: ignore[arg-type]
    assert all(line["text"] == one.text for line, one in zip(lines, again, strict=False))
    refused = [line for line in lines if not line["admitted"] and line["status"] != "CANCELLED"]
    assert len(refused) == sum(found["refused"].values())
    assert found["cancelled"] == sum(line["status"] == "CANCELLED" for line in lines)
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
    burst, trace = tmp_path / "burst.jsonl", tmp_path / "trace.jsonl"
    messages = ({"at_s": at / 10, "text": "Good evening.", "user": "ann"} for at in range(4))
    burst.write_text("".join(json.dumps(message) + "\n" for message in messages))
    options = ["--burst", str(burst), "--capacity", "20", "--verify", "1", "--serial", "2"]
    assert storm(box, *options, "--trace", str(trace)) == 0
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [line["channel"] for line in lines] == ["serial-0", "serial-1"] * 2
    assert all(line["status"] == "OK" and line["audio_s"] > 0.2 for line in lines)


def test_a_reply_is_made_again_as_it_was_made_and_the_first_request_does_not_count() -> None:
    client = Answering(LOUD)
    load = Load([client], "ann", 9.0)  # type: ignore[list-item]
    header = Header(sample_rate_hertz=24_000, seed=5, nfe_steps=7, guidance=1.5, segmentation=pb.LOW_LATENCY)
    made = Outcome(Message(0.0, "Hello."), header=header, status=OK)
    assert asyncio.run(_verified(load, [made], 2, Random(0))) == {"replies": 1, "same": 0}
    again = {"seed": 5, "nfe": 7, "guidance": 1.5, "segmentation": "low_latency"}
    assert again.items() <= client.asked[0].items()
    options = SimpleNamespace(idle=2, capacity=1.0)
    counts = iter((1, 5, 9))
    mix = SimpleNamespace(words=SimpleNamespace(draw=lambda random: next(counts)))
    idle = asyncio.run(_baseline(load, options, mix, Random(0))).idle  # type: ignore[arg-type]
    assert [len(one.message.text.split()) for one in idle] == [5, 9]


@pytest.mark.parametrize(("same", "status"), [(1, 0), (0, 1)])
def test_a_reply_that_differs_is_a_failure(monkeypatch: pytest.MonkeyPatch, same: int, status: int) -> None:
    async def measured(options: object) -> object:
        return [], {"verified": {"replies": 1, "same": same}}

    monkeypatch.setattr("appliance.bench.storm._measure", measured)
    monkeypatch.setattr("appliance.bench.report.table", str)
    assert run(argparse.Namespace(json=None, trace=None)) == status


@pytest.mark.parametrize("options", [
    ["--load", "0"], ["--words", "many"], ["--priorities", "loud=1"], ["--cancel", "2"], ["--idle", "0"],
])  # fmt: skip
def test_options_that_make_no_sense(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "storm", *options])
    assert caught.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_known_before_the_storm(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "storm", "--json", "/nowhere/x.json"]) == 1
    assert capsys.readouterr().err == "appliance bench: /nowhere/x.json: No such file or directory\n"

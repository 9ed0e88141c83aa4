"""An operator's verbs on a running daemon."""

import json
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from appliance import cli
from appliance.client import CallFailed, Client, Operator
from appliance.config import USUAL_NFE
from appliance.contract import bundle as contract
from appliance.contract.sampler import Sampler
from tests.harness.daemons import BUNDLE, Running, shared
from tests.harness.patience import PATIENCE_S
from tests.serve.conftest import other_bundle

pytestmark = [pytest.mark.slow, pytest.mark.once]

TEXT = "Thanks for the follow, welcome to the stream."
LONG = " ".join([TEXT] * 8)

box = shared(synthesis={"nfe": None})


@pytest.fixture
def operator(box: Running) -> Iterator[Operator]:
    with Operator(str(box.folder / "admin.sock")) as operator:
        yield operator


def test_only_the_daemons_user_may_operate_it(box: Running) -> None:
    assert stat.S_IMODE((box.folder / "admin.sock").stat().st_mode) == 0o600
    with Operator(box.address.replace("127.0.0.1", "/nowhere")) as nobody, pytest.raises(CallFailed):
        nobody.status()


def test_the_status_and_the_test_of_the_engine(box: Running, operator: Operator) -> None:
    status = operator.status()
    assert (status.state, status.backend, status.voices) == ("running", "ort-cpu", 1)
    assert [one.backend for one in status.passed_over] == ["tensorrt", "ort-cuda"]
    assert "onnxruntime-gpu" in status.passed_over[1].reason
    assert status.uptime_s > 0.0 and status.version
    assert operator.self_test() > 0.0


def test_the_log_level_and_a_reload(box: Running, operator: Operator) -> None:
    operator.log_level("debug")
    assert operator.status().log_level == "debug"
    with pytest.raises(CallFailed, match="level: must be debug, info, warning, error, not 'loud'"):
        operator.log_level("loud")
    path = box.folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**config, "engine": {"threads": 2}}))
    assert operator.reload() == ["engine"]
    assert operator.status().log_level == "info"
    path.write_text("nonsense: {}")
    with pytest.raises(CallFailed, match="FAILED_PRECONDITION"):
        operator.reload()
    path.write_text(yaml.safe_dump(config))
    assert operator.reload() == []


def test_a_swap_drops_no_stream(box: Running, operator: Operator, tmp_path: Path) -> None:
    defaults = contract.read(BUNDLE, verify=False).manifest.defaults
    other = other_bundle(tmp_path / "other", defaults=replace(defaults, guidance=1.25))
    with Client(box.address) as client, ThreadPoolExecutor(4) as pool:
        alone = client.speak(LONG, "ann", seed=3, nfe=8, guidance=2.0)
        assert client.speak(TEXT, "ann").header.guidance != 1.25
        asked = {"seed": 3, "nfe": 8, "guidance": 2.0, "playout": "overlap"}
        calls = [pool.submit(client.speak, LONG, "ann", **asked) for _ in range(3)]
        status = operator.swap(str(other))
        assert status.bundle == str(other) and json.loads(box.http("/state")[1])["family"] == "other"
        assert client.speak(TEXT, "ann").header.guidance == 1.25
        assert all(call.result(PATIENCE_S).audio == alone.audio for call in calls)
        assert operator.status().running == 0 and operator.self_test() > 0.0
        operator.swap(str(BUNDLE))
        assert client.speak(TEXT, "ann").header.guidance != 1.25


def test_an_unusable_bundle_leaves_the_old_one(box: Running, operator: Operator, tmp_path: Path) -> None:
    mel = contract.read(BUNDLE, verify=False).manifest.mel
    before = operator.status().bundle
    for folder, message in (
        (str(tmp_path / "nothing"), "not a bundle"),
        (str(other_bundle(tmp_path / "mel", mel=replace(mel, win=800))), "its mel or its rule of"),
        (str(other_bundle(tmp_path / "rule", reference="zipvoice")), "its rule of references differs"),
        ("relative", "path: must be absolute"),
        ("/nothing\0here", r"path: must be a path, without NUL, not '/nothing\\x00here' \(INVALID_ARGUMENT"),
    ):
        with pytest.raises(CallFailed, match=message):
            operator.swap(folder)
        assert operator.status().bundle == before
    with Client(box.address) as client:
        assert client.speak(TEXT, "ann").audio


def test_a_swap_takes_the_steps_of_the_new_bundle(box: Running, operator: Operator, tmp_path: Path) -> None:
    operator.swap(str(other_bundle(tmp_path / "few", sampler=Sampler(steps=(4, 7)))))
    with Client(box.address) as client:
        with pytest.raises(CallFailed, match="nfe_steps: must be 4 or 7 with this bundle, not 5"):
            client.speak(TEXT, "ann", nfe=5)
        assert client.speak(TEXT, "ann", nfe=7, min_nfe=4).header.nfe_steps == 7
        operator.swap(str(other_bundle(tmp_path / "fewer", sampler=Sampler(steps=(2, 4)))))
        assert client.speak(TEXT, "ann").header.nfe_steps == 4
        operator.swap(str(BUNDLE))
        assert client.speak(TEXT, "ann", nfe=5).header.nfe_steps == 5
        assert client.speak(TEXT, "ann").header.nfe_steps == USUAL_NFE


def test_the_verbs_from_the_shell(box: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--socket", str(box.folder / "admin.sock")]
    assert cli.main(["admin", "status", *at]) == 0
    assert "backend     ort-cpu" in capsys.readouterr().out
    assert cli.main(["admin", "swap", str(tmp_path / "nothing"), *at]) == 1
    assert "not a bundle" in capsys.readouterr().err
    assert cli.main(["admin", "log-level", "warning", *at]) == 0
    assert cli.main(["admin", "self-test", *at]) == cli.main(["admin", "reload", *at]) == 0

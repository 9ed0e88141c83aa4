"""The number of function evaluations of callers that name none: `synthesis.nfe`, else the product's
default."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from appliance import cli
from appliance.config import USUAL_NFE
from appliance.rpc import appliance_pb2 as pb
from tests.harness.daemons import Running, Shared

pytestmark = [pytest.mark.slow, pytest.mark.once]

OTHER = 3
"""A number that is no default anywhere."""
TEXT = "Thanks for the follow."


def test_every_configuration_leaves_it_open(root: Path) -> None:
    for path in (root / "configs").glob("*.yaml"):
        raw = yaml.safe_load(path.read_text("utf-8")) or {}
        assert (raw.get("synthesis") or {}).get("nfe") is None, path.name


@pytest.fixture(scope="module", params=[None, OTHER], ids=["the usual one", "configured"])
def box(request: pytest.FixtureRequest, shared_box: Shared) -> Iterator[Shared]:
    with shared_box.lent(synthesis={"nfe": request.param}):
        yield shared_box


def configured(box: Running) -> int:
    return int(box.config["synthesis"]["nfe"] or USUAL_NFE)


def test_the_daemon_takes_the_configured_number(box: Running) -> None:
    request = pb.SynthesizeRequest(text=TEXT, voice="ann", seed=3)
    with box.channel() as channel:
        silent = box.synthesizer(channel).Synthesize(request)
        request.nfe_steps = configured(box)
        explicit = box.synthesizer(channel).Synthesize(request)
        request.nfe_steps = configured(box) + 1
        other = box.synthesizer(channel).Synthesize(request)
    assert silent.header.nfe_steps == silent.timings.nfe_steps == configured(box)
    assert silent.audio == explicit.audio != other.audio


def test_say_names_no_number(box: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = []
    for name, more in (("silent", []), ("explicit", ["--nfe", str(configured(box))])):
        out = tmp_path / f"{name}.wav"
        options = ["--voice", "ann", "--seed", "3", "--out", str(out), "--table", "--address", box.address]
        assert cli.main(["say", TEXT, *options, *more]) == 0
        written.append(out.read_bytes())
        assert re.search(rf"NFE · seed\s+{configured(box)} · 3", capsys.readouterr().out)
    assert written[0] == written[1]

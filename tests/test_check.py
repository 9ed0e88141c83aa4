"""`appliance check` beside a daemon that speaks for others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import cli
from appliance.client import Client
from tests.daemons import Running, running

LONG = ("Thanks for the follow, welcome to the stream. " * 12).strip()
"""Over 20 s of audio: it is heard long after it was made."""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("check")) as box:
        box.add_voice()
        yield box


def synthesis(box: Running, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    cli.main(["check", "--config", str(box.folder / "config.yaml"), "--json", "--only", "synthesis"])
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    return finding["level"], finding["value"]


def test_the_probe_abstains_while_others_are_spoken_for(
    box: Running, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Client(box.address) as client:
        client.stream(LONG, "ann", channel="stage").reply()
        assert client.utterances("stage"), "no longer heard: the text is too short for this machine"
        level, value = synthesis(box, capsys)
        assert (level, "not disturbed" in value) == ("SKIP", True), value
        client.pause("stage")
        assert synthesis(box, capsys)[0] == "PASS", "what is paused does not keep the engine busy"
        client.resume("stage")
        client.clear("stage")
        if client.utterances("stage"):
            client.skip("stage")
        assert not client.utterances()
        assert synthesis(box, capsys)[0] == "PASS"

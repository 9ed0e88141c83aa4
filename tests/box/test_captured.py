"""The fake nvpmodel prints what a real one was captured printing, where our programs read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.box.boxes import quick
from tests.fakes.jetson import Jetson
from tests.fakes.machine import captured

pytestmark = pytest.mark.once


def run(jetson: Jetson, *arguments: str, answer: str = "") -> tuple[int, list[str]]:
    """Exit status and the lines of both streams."""
    ran = quick(jetson).tools.execute("nvpmodel", *arguments, answer=answer)
    return ran.code, [line.strip() for line in ran.text.split("\n") if line]


def test_query_is_the_captured_one(tmp_path: Path) -> None:
    jetson = Jetson(tmp_path, "jp6-0005")
    jetson.set_mode("MAXN")
    assert run(jetson, "-q") == (0, captured("nvpmodel-q"))


@pytest.mark.parametrize("profile", ["jp6-0004", "jp7-0005"])
def test_the_first_maxn_wants_a_reboot(tmp_path: Path, profile: str) -> None:
    jetson = Jetson(tmp_path, profile)
    before = jetson.snapshot()
    prompt = [line.strip() for line in captured("nvpmodel-prompt")]
    assert run(jetson, "-m", "0") == (255, [*prompt, "NVPM ERROR: bad input!"])
    refused = "NVPM ERROR: optMask is 1, no request for power mode"
    assert run(jetson, "-m", "0", answer="no\n") == (255, [*prompt, refused])
    assert (jetson.snapshot(), jetson.reboots) == (before, 0)
    assert run(jetson, "-m", "0", answer="YES\n")[0] == 0
    assert jetson.reboots == 1
    jetson.boot()
    assert jetson.mode == "MAXN"
    assert jetson.read(jetson.profile.tpc_mask) == ("128" if profile == "jp6-0004" else "0")

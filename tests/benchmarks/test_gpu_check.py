"""Stages of `scripts/gpu-check` that fail, and its wheels in lots; what it measures needs a GPU."""

from __future__ import annotations

import os
import signal
import struct
import sys
from pathlib import Path

import pytest

from tests.benchmarks import stages, wheels
from tests.benchmarks.stages import Check, Rows, Stage
from tests.conftest import ROOT

pytestmark = pytest.mark.once


def whole() -> Rows:
    yield "a", 1
    yield "b", stages.tried(int, "no number")


def broken() -> Rows:
    yield "a", 1
    raise ValueError("no more")


def killed() -> Rows:
    yield "a", 1
    os.kill(os.getpid(), signal.SIGSEGV)


def endless() -> Rows:
    yield "pause", signal.pause()


STAGES = {
    "broken": Stage(broken, 60),
    "endless": Stage(endless, 60),
    "killed": Stage(killed, 60),
    "waiting": Stage(whole, 60, needs="broken"),
    "whole": Stage(whole, 60),
}
RUN = "import sys; from pathlib import Path; from tests.benchmarks import stages, test_gpu_check as t;"
RUN += "stages.fill(Path(sys.argv[1], sys.argv[2] + '.json'), t.STAGES[sys.argv[2]].rows())"


@pytest.mark.slow
def test_a_stage_that_fails_ends_or_takes_too_long_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = tmp_path / "out"
    out.mkdir()
    check = Check(STAGES, [sys.executable, "-c", RUN, str(tmp_path)], tmp_path, out)
    check.run(list(STAGES), {"endless": 0}, again=False)
    left = {name: check.left(name) for name in STAGES}
    assert {name: one["status"] for name, one in left.items()} == {
        "broken": "failed",
        "endless": "over its limit",
        "killed": f"ended with status -{signal.SIGSEGV}",
        "waiting": "not run: broken is not done",
        "whole": stages.DONE,
    }
    assert left["broken"]["error"] == "ValueError: no more"
    assert left["broken"]["rows"] == left["killed"]["rows"] == {"a": 1}
    assert left["whole"]["rows"]["a"] == 1 and stages.failed(left["whole"]["rows"]["b"])
    assert {path.name for path in out.iterdir()} == {f"{name}.json" for name in STAGES}
    assert (out / "whole.json").read_text() == (tmp_path / "whole.json").read_text()

    before = (tmp_path / "whole.json").stat().st_mtime_ns
    check.run(["whole"], {}, again=False)
    assert (tmp_path / "whole.json").stat().st_mtime_ns == before
    check.run(["whole"], {}, again=True)
    assert (tmp_path / "whole.json").stat().st_mtime_ns > before


def entry(kind: int, capability: int, code: bytes) -> bytes:
    """Of a container: a head of 64 bytes and the code."""
    return struct.pack("<HHIQ12xI32x", kind, 0, 64, len(code), capability) + code


def test_only_machine_code_of_the_card_is_left() -> None:
    hopper, orin, portable = (entry(2, 90, b"h" * 40), entry(2, 87, b"o" * 24), entry(1, 80, b"p" * 16))
    older = [entry(2, 75, b"t" * 8), portable]

    def container(*entries: bytes) -> bytes:
        content = b"".join(entries)
        return wheels.CONTAINER + struct.pack("<Q", len(content)) + content

    code = bytearray(b"x" * 7 + container(orin, hopper, portable) + container(*older) + b"y")
    size = len(code)
    wheels.slim(code, 90)
    assert len(code) == size
    assert b"h" * 40 in code and code.startswith(b"x" * 7) and code.endswith(b"y")
    assert b"o" not in code and b"t" not in code
    assert code.count(b"p" * 16) == 1, "portable code is left where the card has none of its own"


def test_lots_hold_no_more_than_asked_and_join_to_the_wheels(tmp_path: Path) -> None:
    sizes = {"large.whl": 250, "small.whl": 30, "tiny.whl": 20}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(os.urandom(size))
    wheels.lots([tmp_path / name for name in sizes], tmp_path / "lots", 100)
    assert all(
        sum(path.stat().st_size for path in lot.iterdir()) <= 100 for lot in (tmp_path / "lots").iterdir()
    )
    found = sorted((tmp_path / "lots").rglob("*.whl*"), key=lambda path: path.name)
    for name in sizes:
        joined = b"".join(path.read_bytes() for path in found if path.name.startswith(name))
        assert joined == (tmp_path / name).read_bytes()

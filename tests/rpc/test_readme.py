"""The README's two bots, extracted and run; its list of errors against the code's."""

import asyncio
import re
import shutil
import sys
import wave
from pathlib import Path

import pytest

from appliance.rpc.status import TABLE, reason_of
from tests.harness.daemons import finished
from tests.interop.environments import node_modules
from tests.rpc.conftest import Box

FOLDER = Path(__file__).resolve().parents[2] / "appliance" / "rpc"
README = (FOLDER / "README.md").read_text("utf-8")
CHAT = "Hello.\n\nThanks for the follow. Welcome.\n"
SAMPLES = {"1.wav": 1, "3.wav": 2}
"""Number of half-second segments of each line; the empty second line is refused."""


def code(language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return str(block)


async def run(folder: Path, *command: str) -> str:
    done = await asyncio.to_thread(finished, *command, cwd=folder, says=CHAT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bot(folder: Path, name: str, language: str) -> None:
    shutil.copy(FOLDER / "appliance.proto", folder)
    (folder / name).write_text(code(language))


async def test_the_python_bot(box: Box, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    bot(tmp_path, "bot.py", "python")
    output = await run(tmp_path, sys.executable, "bot.py", box.address, "ann")
    assert output.startswith("2 INVALID_ARGUMENT text: is empty") and not (tmp_path / "2.wav").exists()
    for name, segments in SAMPLES.items():
        with wave.open(str(tmp_path / name)) as audio:
            assert (audio.getframerate(), audio.getnchannels()) == (24_000, 1)
            assert audio.getnframes() == segments * 49 * 256


@pytest.fixture
def packages() -> Path:
    """Node's packages, which the first test that needs them installs."""
    return node_modules()


async def test_the_node_bot(box: Box, tmp_path: Path, packages: Path) -> None:
    bot(tmp_path, "bot.js", "js")
    (tmp_path / "node_modules").symlink_to(packages)
    output = await run(tmp_path, "node", "bot.js", box.address, "ann")
    assert output.startswith("2 3 text: is empty")
    for name, segments in SAMPLES.items():
        data = (tmp_path / name).read_bytes()
        assert data[:4] == b"RIFF"
        # The mark precedes a stream's samples, and follows a file's.
        samples = data.partition(b"data")[2][4:].partition(b"LIST")[0]
        assert len(samples) == 2 * segments * 49 * 256


def test_the_list_of_errors_is_the_codes() -> None:
    rows = re.findall(r"^- ([A-Z_]+)(?:, again after (\d+) s)?: ([A-Z_, ]+)$", README, re.MULTILINE)
    listed = sorted((reason, *rule) for *rule, reasons in rows for reason in reasons.split(", "))
    assert listed == sorted(
        (reason_of(kind), rule.code.name, str(rule.retry_s or "")) for kind, rule in TABLE.items()
    )

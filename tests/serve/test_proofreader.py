"""The recogniser's process, and what a daemon does with it."""

from __future__ import annotations

import importlib.util
import io
import queue
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.audio import recogniser
from appliance.audio.recogniser import HEAD
from appliance.errors import Exit
from appliance.request import FloatArray
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.serve import daemon
from appliance.serve.proofreader import Proofreader
from tests.daemons import DEMO, SPEECH, running, write_config
from tests.patience import PATIENCE_S

RATE_HZ = 24_000
HELLO = """
import struct, sys
while head := sys.stdin.buffer.read(8):
    rate, count = struct.unpack("<II", head)
    sys.stdin.buffer.read(4 * count)
    if count > 100:
        sys.exit(3)
    print("Hello", rate, flush=True)
"""
"""A recogniser that hears "Hello" and the rate, and dies of a long sound."""


def heard(proofreader: Proofreader, text: str, samples: int = 100) -> int | None:
    answers: queue.Queue[int | None] = queue.Queue()
    proofreader.hear(text, np.zeros(samples, np.float32), answers.put)
    return answers.get(timeout=PATIENCE_S)


def test_wrong_words_are_counted_until_the_process_dies(caplog: pytest.LogCaptureFixture) -> None:
    proofreader = Proofreader(RATE_HZ, (sys.executable, "-c", HELLO))
    try:
        assert heard(proofreader, "Hello 24000!") == 0
        assert heard(proofreader, "Well, hello 24000.") == 1
        assert heard(proofreader, "…") == 0, "there is nothing to hear"
        assert heard(proofreader, "Hello 24000", samples=101) is None
        assert heard(proofreader, "Hello 24000") is None
    finally:
        proofreader.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "the recogniser died, and no reply is proven until a restart: exit status 3"
    ]
    proofreader.hear("Hello", np.zeros(1, np.float32), raise_it)


def raise_it(wrong: int | None) -> None:
    raise AssertionError("closed, and yet it heard")


def test_a_recogniser_that_cannot_be_started_hears_nothing() -> None:
    proofreader = Proofreader(RATE_HZ, ("/nonexistent",))
    assert heard(proofreader, "Hello") is None
    proofreader.close()


def test_the_process_writes_a_line_for_each_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        def transcribe(self, sound: FloatArray, rate_hz: int) -> str:
            return f"{len(sound)} at\n{rate_hz}"

    monkeypatch.setattr(recogniser, "Recogniser", Counting)
    monkeypatch.setattr(recogniser.os, "sched_setscheduler", lambda *_: None)  # this process is no child
    sounds = [np.zeros(3, np.float32), np.zeros(0, np.float32)]
    given = b"".join(HEAD.pack(RATE_HZ, len(sound)) + sound.tobytes() for sound in sounds)
    recogniser.serve(io.BytesIO(given), lines := io.BytesIO())
    assert lines.getvalue() == b"3 at 24000\n0 at 24000\n"


def test_proofs_without_a_recogniser_end_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec: Any = importlib.util.find_spec

    def found(name: str, *rest: Any) -> Any:
        return None if name == "moonshine_voice" else find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    config = write_config(tmp_path, scheduler={"proof": "idle"})
    assert daemon.main(config, ()) == Exit.CONFIG
    assert "pip install moonshine-voice==0.1.0" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.once
def test_the_demo_is_heard_by_a_real_recogniser(tmp_path: Path) -> None:
    pytest.importorskip("moonshine_voice", reason="the extra `proof` is not installed")
    lines = Path("tests/quality/chat-lines.txt").read_text("utf-8").splitlines()[:12]
    with running(
        tmp_path,
        speaks_from=DEMO / "bundle",
        scheduler={"proof": "idle"},
        cache={"phrases_bytes": 1 << 26, "drawn_seeds": True},
    ) as box:
        voice = pb.CreateVoiceRequest(
            name="ann", audio=SPEECH.read_bytes(), transcript=SPEECH.with_suffix(".txt").read_text("utf-8")
        )
        with box.channel() as channel:
            appliance_pb2_grpc.VoicesStub(channel).CreateVoice(voice, timeout=PATIENCE_S)
            stub = box.synthesizer(channel)

            def say(text: str, **options: Any) -> pb.SynthesizeResponse:
                asked = pb.SynthesizeRequest(text=text, voice="ann", priority=pb.BULK, **options)
                return stub.Synthesize(asked, timeout=PATIENCE_S)

            def takes(name: str) -> float:
                page = box.http("/metrics")[1].splitlines()
                return float(next(line for line in page if line.startswith(f"f5_takes_{name} ")).split()[1])

            fresh = [say(line) for line in lines]
            heard, remade, kept = (takes(name) for name in ("heard", "remade", "kept"))
            assert heard >= len(lines) + remade and kept <= remade
            again = [say(line) for line in lines]
            assert [reply.audio for reply in again] == [reply.audio for reply in fresh]
            assert all(reply.header.cached for reply in again)
            say(lines[0], seed=7)
            assert takes("heard") == heard, "neither a kept phrase nor a named seed is heard"

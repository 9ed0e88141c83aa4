"""`bench run`: figures of replies by hand, then over a daemon."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance import cli
from appliance.bench.arrivals import Message
from appliance.bench.load import Load
from appliance.bench.outcome import Outcome
from appliance.bench.run import STAGES, Cell, figures, stages_ms
from appliance.client import CallFailed, Header, Piece, Timings
from tests.harness.daemons import Shared
from tests.measure.table import README, RECORD, UPSTREAM, written

pytestmark = [pytest.mark.slow, pytest.mark.once]

MS = {"queue": 5.0, "text": 2.0, "condition": 10.0, "steps": 700.0, "vocoder": 20.0}
MS |= {"join": 1.0, "encode": 4.0, "total": 750.0}
TIMINGS = Timings(segments=2, nfe_steps=7, **{f"{name}_ms": ms for name, ms in MS.items()})


def reply(wall_s: float = 0.8) -> Outcome:
    """48,000 samples, the first after 0.3 s."""
    header = Header(sample_rate_hertz=24_000, encoding="PCM16")
    outcome = Outcome(Message(0.0, "x"), header=header, timings=TIMINGS, pieces=[(0, 0.3)], samples=48_000)
    outcome.end_s = wall_s
    return outcome


def test_stages_add_up_to_the_wall() -> None:
    split = stages_ms(reply())
    assert list(split) == list(STAGES) and sum(split.values()) == pytest.approx(800.0)
    assert (split["wait"], split["rpc"], split["other"]) == (3.0, 50.0, pytest.approx(10.0))


def test_figures_by_hand() -> None:
    cell = figures(Cell("short", "x", "ann", None), [reply(0.8), reply(1.0), reply(1.4)])
    assert cell["wall_s"] == {"median": 1.0, "least": 0.8, "most": 1.4}
    assert cell["first_audio_s"]["most"] == 0.3
    assert cell["rtf"]["median"] == 0.5 and cell["steps_per_s"]["median"] == 20.0
    assert sum(cell["stages_share"].values()) == pytest.approx(1.0, abs=1e-3)


class Answering:
    """A client whose daemon sends `audio`, or refuses."""

    def __init__(self, audio: bytes | None) -> None:
        self.audio, self.requests = audio, list[dict[str, Any]]()

    async def stream(self, text: str, **options: Any) -> AsyncIterator[Any]:
        self.requests.append(options)
        if self.audio is None:
            raise CallFailed("NOT_FOUND", "no such voice", "VOICE_NOT_FOUND")
        yield Header(sample_rate_hertz=24_000)
        for number in range(2 if self.audio else 0):
            yield Piece(self.audio, number * len(self.audio) // 2, 0, time.monotonic())
        yield SimpleNamespace(timings=TIMINGS)


LOUD, SILENT = b"\0\0" * 99 + b"\0\x80", b"\0\0" * 100


@pytest.mark.parametrize(("audio", "failure"), [
    (LOUD, ""), (SILENT, "silence in the voice ann"), (b"", "no audio"), (None, "no such voice"),
])  # fmt: skip
def test_an_inaudible_reply_does_not_count(audio: bytes | None, failure: str) -> None:
    load = Load([Answering(audio)], "ann", 1.0)  # type: ignore[list-item]
    if failure:
        with pytest.raises(CallFailed, match=failure):
            asyncio.run(load.speak("Hello."))
    else:
        outcome = asyncio.run(load.speak("Hello."))
        assert (outcome.samples, outcome.peak, outcome.status) == (200, 32_768, "OK")
        assert 0.0 < outcome.pieces[0][1] <= outcome.pieces[1][1] <= outcome.end_s


def test_requests_are_a_users_and_never_from_the_cache() -> None:
    client = Answering(LOUD)
    load = Load([client], "ann", 9.0)  # type: ignore[list-item]
    for _ in range(2):
        asyncio.run(load.speak("Hello.", voice="bob", nfe=7))
    first, second = client.requests
    expected = dict(channel="", playout=None, queue_timeout=None, voice="bob", nfe=7, timeout=9.0)
    assert expected.items() <= first.items() and first["seed"] != second["seed"]


def test_requests_are_sent_at_their_times_and_only_serial_ones_wait() -> None:
    client = Answering(LOUD)
    load = Load([client], "ann", 9.0)  # type: ignore[list-item]
    sent = asyncio.run(load.open([Message(0.0, "x"), Message(0.1, "x", channel="stage"), Message(0.2, "x")]))
    assert [one.sent_s >= 0.0 for one in sent] == [True] * 3
    assert [options["queue_timeout"] for options in client.requests] == [0.0, None, 0.0]


def test_a_run_over_a_daemon(shared_box: Shared, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.json"
    options = ["--lengths", "short", "--nfe", "2", "--nfe", "4", "--repeats", "2", "--json", str(out)]
    assert cli.main(["bench", "run", "--address", shared_box.address, *options]) == 0
    record = json.loads(out.read_text("utf-8"))
    assert [cell["nfe"] for cell in record["cells"]] == [2, 4]
    for cell in record["cells"]:
        stages = cell["stages_ms"]
        assert all(stages[name] > 0.0 for name in ("text", "condition", "steps", "vocoder", "encode"))
        assert all(value > -1.0 for value in stages.values())
        assert cell["wall_s"]["least"] <= cell["wall_s"]["median"] <= cell["wall_s"]["most"]
    assert record["warm_up_s"] > 0.0
    assert record["memory_mb"]["peak"] > 30.0 and record["backend"] == "ort-cpu"
    assert record["machine"]["versions"]["onnxruntime"]
    shown = capsys.readouterr().out
    assert "stages, ms" in shown and "short, ann, 2" in shown
    wrong = ["bench", "run", "--address", shared_box.address, "--lengths", "endless"]
    assert cli.main(wrong) == 1
    assert "endless is none of short, medium, long" in capsys.readouterr().err


@pytest.mark.parametrize("record", [RECORD, UPSTREAM], ids=lambda path: path.stem)
def test_the_readme_shows_the_record(record: Path) -> None:
    page = README.read_text("utf-8")
    assert written(page, json.loads(record.read_text("utf-8"))) == page
    assert "| demo voice, NFE | RTF" in page and "| whole reply of 8 s |" in page

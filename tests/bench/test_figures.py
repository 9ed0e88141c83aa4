"""The storm's arithmetic against slow plain computations, and its messages."""

import itertools
import json
import math
import statistics
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.bench import BenchError, run
from appliance.bench.arrivals import RAID, Message, Mix, Weighted, poisson, read_burst
from appliance.bench.lines import LINES, text_of
from appliance.bench.outcome import Outcome, set_turns, underrun_s
from appliance.bench.report import Baseline, figures, percentile, table
from appliance.client import Header
from tests.harness.rows import rows

pytestmark = pytest.mark.once

TICKS = 100
"""Samples per second in these tests: the slow player looks at each."""
MIX = Mix(Weighted((5, 13), (1.0, 3.0)), Weighted(("normal", "bulk"), (1.0, 1.0)), cancelled=0.2)


def silence_of_a_player(pieces: list[tuple[int, int]], total: int) -> int:
    """Play sample by sample from the first arrival; count the ticks at which the next has not arrived."""
    clock, silent = pieces[0][1], 0
    for sample in range(total):
        arrived = max(arrival for offset, arrival in pieces if offset <= sample)
        while clock < arrived:
            clock, silent = clock + 1, silent + 1
        clock += 1
    return silent


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 60)), min_size=1, max_size=12),
    st.integers(0, 1_000),
)
def test_underrun_is_the_silence_of_a_player(parts: list[tuple[int, int]], start: int) -> None:
    lengths, gaps = zip(*parts, strict=True)
    offsets = [0, *itertools.accumulate(lengths)]
    arrivals = list(itertools.accumulate(gaps, initial=start))[1:]
    pieces = list(zip(offsets, arrivals, strict=False))
    expected = silence_of_a_player(pieces, offsets[-1])
    in_seconds = [(offset, arrived / TICKS) for offset, arrived in pieces]
    assert underrun_s(in_seconds, TICKS) == pytest.approx(expected / TICKS, abs=1e-9)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=40), st.sampled_from((0.5, 0.95, 0.99)))
def test_percentile_is_the_least_value_that_covers_the_share(values: list[float], share: float) -> None:
    covering = [v for v in values if sum(other <= v for other in values) >= share * len(values)]
    assert percentile(values, share) == min(covering)


def test_percentile_of_nothing_and_of_what_never_came() -> None:
    assert percentile([], 0.5) is None
    values = [1.0] * 94 + [math.inf] * 6
    assert (percentile(values, 0.5), percentile(values, 0.95)) == (1.0, None)


def test_poisson_arrivals() -> None:
    """Counts per second vary as much as they are large, and gaps are exponential."""
    messages = poisson(MIX, 20.0, 500.0, Random(1))
    times = [message.at_s for message in messages]
    assert times == sorted(times) and times[0] > 0.0 and times[-1] < 500.0
    counts = [sum(second <= at < second + 1 for at in times) for second in range(500)]
    assert statistics.mean(counts) == pytest.approx(20.0, rel=0.05)
    assert statistics.variance(counts) == pytest.approx(20.0, rel=0.2)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    for limit in (0.01, 0.05, 0.1, 0.2):
        assert sum(gap > limit for gap in gaps) / len(gaps) == pytest.approx(math.exp(-20 * limit), abs=0.02)


def test_a_mix_has_its_shares_and_a_seed_decides_it() -> None:
    messages = poisson(MIX, 50.0, 100.0, Random(2))
    assert messages == poisson(MIX, 50.0, 100.0, Random(2))
    assert messages != poisson(MIX, 50.0, 100.0, Random(3))
    for share, holds in (
        (0.25, lambda message: len(message.text.split()) == 5),
        (0.5, lambda message: message.priority == "bulk"),
        (0.2, lambda message: message.cancel_after_s is not None),
    ):
        assert sum(map(holds, messages)) / len(messages) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("words", [1, 13, 53, 400])
def test_a_text_has_its_words(words: int) -> None:
    text = text_of(words, Random(words))
    assert len(text.split()) == words and text.endswith(".")
    assert text.split()[0] in {line.split()[0].rstrip(".,?") for line in LINES} | {text}


def test_the_raid() -> None:
    messages = read_burst(RAID)
    assert len(messages) == 400 and messages[-1].at_s <= 20.0
    assert len({message.user for message in messages}) > 100
    assert 15 < statistics.median(len(message.text) for message in messages) < 60
    assert {message.priority for message in messages} == {None, "high"}
    assert any(message.cancel_after_s for message in messages)


@pytest.mark.parametrize(("line", "message"), rows(__file__, "wrong_bursts.jsonl"))
def test_a_burst_that_cannot_be_replayed(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "burst.jsonl"
    path.write_text('{"at_s": 0, "text": "x"}\n' + line)
    with pytest.raises(BenchError, match=message):
        read_burst(path)
    path.write_text("\n")
    with pytest.raises(BenchError, match="contains no message"):
        read_burst(path)
    with pytest.raises(BenchError, match="No such file"):
        read_burst(tmp_path / "none")


def outcome(at_s: float, status: str = "OK", late_s: float = 0.0, **fields: Any) -> Outcome:
    """A reply of 2 s in two pieces, the first 0.5 s after the request, the second `late_s` too late."""
    promised_ms, segments = fields.pop("promised_ms", 0.0), fields.pop("segments", 2)
    message = Message(at_s, "x" * 20, **fields.pop("message", {}))
    if status != "OK" and not fields.pop("header", False):
        return Outcome(message, status=status, end_s=0.01, **fields)
    pieces = fields.pop("pieces", [(0, 0.5), (TICKS, 1.5 + late_s)])
    header = Header(sample_rate_hertz=TICKS, promised_ms=promised_ms, segments=segments)
    return Outcome(
        message, header=header, pieces=pieces, samples=2 * TICKS, status=status, end_s=1.6, **fields
    )


def test_a_reply_on_a_serial_channel_is_played_at_its_turn() -> None:
    """Each reply has 2 s of audio and begins to arrive at 0.5 s. The replies are played one after another: at
    0.5, 2.5, 4.5."""
    serial = {"channel": "chat"}
    replies = [outcome(0.0, late_s=late_s, message=serial) for late_s in (0.0, 1.0, 4.5, 1.0)]
    alone = [outcome(0.0, late_s=1.0), outcome(0.0, late_s=1.0, message={"channel": "alerts"})]
    set_turns([*alone, *replies])
    assert [one.underrun_s for one in replies] == [0.0, 0.0, 0.5, 0.0]
    assert replies[-1].turn_s == 7.0
    assert [one.underrun_s for one in alone] == [1.0, 1.0]


def test_figures_of_a_storm_done_by_hand() -> None:
    idle = [outcome(0.0), outcome(0.0)]
    gone = {"cancel_after_s": 0.1}
    outcomes = [
        outcome(0.0),
        outcome(1.0, late_s=0.07),
        outcome(2.0, late_s=0.3),
        outcome(3.0, late_s=0.15, promised_ms=400.0),
        outcome(4.0, late_s=0.04, promised_ms=400.0, sent_s=0.2),
        outcome(5.0, "RESOURCE_EXHAUSTED", reason="OVERLOADED"),
        outcome(5.0, "RESOURCE_EXHAUSTED", reason="OVERLOADED"),
        outcome(5.0, "UNAVAILABLE"),
        outcome(6.0, "INTERNAL", reason="ENGINE_FAULT", header=True),
        outcome(7.0, "CANCELLED", message=gone, cancel_s=0.1),
    ]
    outcomes[-1].end_s = 0.14
    storm = figures(outcomes, Baseline(idle, capacity=4.0), 10.0, None)
    assert storm["wall_s"] == 10.0
    assert storm["offered"] == pytest.approx(10 * 20 * 0.1 / 10)
    assert storm["load"] == pytest.approx(2.0 / 4)
    assert storm["admitted"] == 6
    assert storm["first_audio_s"] == {"p50": 0.5, "p95": 0.5, "p99": 0.5}
    assert storm["first_audio_to_idle"]["p95"] == 1.0
    assert storm["first_audio_of_all_s"] == {"p50": 0.5, "p95": None, "p99": None}
    assert (storm["heard"], storm["can_stall"]) == (5, 5)
    assert [storm[name] for name in ("c0", "c50", "c100", "c200")] == [0.2, 0.4, 0.6, 0.8]
    assert storm["longest_silence_s"] == pytest.approx(0.3)
    # The first, the second and the fifth reply are good: the third stalls, the fourth comes after its
    # promise.
    assert storm["goodput"] == pytest.approx(3 * 2.0 / 10)
    assert storm["delivered"] == pytest.approx(6 * 2.0 / 10)
    assert storm["refused"] == {"OVERLOADED": 2, "UNAVAILABLE": 1}
    assert storm["failed"] == {"ENGINE_FAULT": 1}
    assert storm["cancelled"] == 1 and storm["cancel_to_end_s"]["p50"] == pytest.approx(0.04)
    assert json.loads(json.dumps(storm)) == storm
    assert "20.0% · 40.0% · 60.0% · 80.0% of 5; 0 in one piece" in table({**storm, "client_cpu": 0.1})
    strict = figures(outcomes, Baseline(idle, capacity=4.0), 10.0, 0.4)
    assert strict["goodput"] == pytest.approx(1 * 2.0 / 10)


@pytest.mark.parametrize(("one", "goodput", "shown"), [
    (outcome(0.0, "UNAVAILABLE"), 0.0, "1 UNAVAILABLE"),
    (outcome(0.0, segments=1), 1.25, "– · – · – · – of 0; 1 in one piece: N/A"),
])  # fmt: skip
def test_a_storm_in_which_no_playback_can_stall(one: Outcome, goodput: float, shown: str) -> None:
    storm = figures([one], Baseline([outcome(0.0)], 1.0), 1.0, None)
    first_s = storm["first_audio_s"]["p50"]
    assert (storm["c100"], storm["goodput"], first_s) == (None, goodput, one.first_audio_s)
    assert shown in table({**storm, "client_cpu": 0.0})


def test_a_run_counts_only_if_the_first_byte_comes_with_audio() -> None:
    idle, dribbled = outcome(0.0), outcome(0.0, pieces=[(0, 0.5), (5, 0.6), (TICKS, 1.5)])
    assert (idle.read_s, dribbled.read_s) == (0.5, 0.6)
    figures([dribbled, idle, idle], Baseline([idle], 1.0), 1.0, None)
    with pytest.raises(BenchError, match=r"0\.1 s of audio arrive 0\.100 s after the first byte"):
        figures([dribbled], Baseline([idle], 1.0), 1.0, None)
    with pytest.raises(BenchError, match=r"at most 0\.02 s"):
        run.figures(run.Cell("short", "x", "ann", None), [dribbled])

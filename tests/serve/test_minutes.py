"""Rows of minutes, against the requests of each and the files of a fake Jetson."""

from pathlib import Path

import numpy as np
import pytest

from appliance.box.clocks.clocks_json import Clocks
from appliance.box.clocks.reason import Reason
from appliance.box.sensors import hwmon as sensors
from appliance.request import Timings
from appliance.serve.metrics import SECONDS, Metrics
from appliance.serve.minutes import Minutes
from tests.fakes.jetson.board import Clock
from tests.harness.boxes import well


def test_a_row_tells_of_its_minute_alone_and_two_hours_stay(tmp_path: Path) -> None:
    metrics, clock, root = Metrics(), Clock(), well(tmp_path).box().root
    minutes = Minutes(metrics, root, lambda: clock.uptime_s)
    hertz = {"cpu0": 2_000_000_000, "cpu11": 1_500_000_000, "gpu": 1_300_500_000, "idle": 4, "emc": None}
    domains = {name: {"current": value} for name, value in hertz.items()}
    chance = np.random.default_rng(7)
    spoken = [chance.gamma(2.0, 0.3, size) for size in (*[1] * 120, 9, 31, 5)]
    for first_audio_s in (*spoken, np.empty(0)):
        for one in first_audio_s:
            metrics.spoken(Timings(first_audio_s=one, audio_s=3.0))
        clock.advance(90)
        minutes.add(Clocks("pinned", domains=domains, reason=Reason.NONE), "tensorrt")
    assert len(minutes.rows) == 120
    *rows, last = minutes.rows
    for row, first_audio_s in zip(rows, spoken[-119:], strict=True):
        assert row["speech_s"] == pytest.approx(3.0 * len(first_audio_s) / 1.5)
        true = np.quantile(first_audio_s, (0.5, 0.95), method="inverted_cdf")
        estimates = row["first_audio_p50_s"], row["first_audio_p95_s"]
        assert np.searchsorted(SECONDS, estimates).tolist() == np.searchsorted(SECONDS, true).tolist()
    assert last.pop("ended") > 0 and last == {
        **{"clocks": "pinned", "mhz": {"cpu": 1500.0, "gpu": 1300.5}, "celsius": sensors.junction(root)},
        **{"engine": "tensorrt", "speech_s": 0.0, "first_audio_p50_s": None, "first_audio_p95_s": None},
    }
    clock.advance(60)
    minutes.add(Clocks("unknown", domains=domains, reason=Reason.STALE), "resting")
    assert minutes.rows[-1]["mhz"] == {}

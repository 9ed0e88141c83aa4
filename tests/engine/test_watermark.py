"""The watermark in the engine and in files, by a network of random weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import yaml

from appliance.audio.encode import encode
from appliance.cli import main
from appliance.config import EngineConfig
from appliance.contract.bundle import Bundle
from appliance.encodings import Encoding
from appliance.engine.loading import load_for
from appliance.engine.watermark import Watermark
from appliance.errors import ConfigError
from tests.engine import lanes
from tests.harness.daemons import SPEECH

FOLDER = Path(__file__).parents[1] / "tiny" / "watermark"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "watermark"))


@pytest.fixture(scope="module")
def watermark() -> Watermark:
    return Watermark(FOLDER, 1)


class Gains:
    """A graph that returns the same gain for every band."""

    def __init__(self, gain: float) -> None:
        self._gain = gain

    def bind(self, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> Gains:
        outputs["gain"][:] = self._gain
        return self

    def run(self) -> None:
        pass


@pytest.mark.parametrize("count", [24_000, 24_001, 12_345, 1_000, 100, 1])
def test_only_frequencies_below_2_khz_change(count: int) -> None:
    watermark = Watermark(FOLDER, 1)
    watermark._embedder = watermark._embedder[0], Gains(0.5)
    t = np.arange(count) / np.float32(24_000)
    low, high = (np.sin(2 * np.pi * hz * t).astype(np.float32) for hz in (600, 5_000))
    made = watermark.embed(low + high)
    assert made.shape == low.shape and made.dtype == np.float32
    if count > 10_000:
        inside = slice(2_000, -2_000)
        assert np.abs(made - (low / 2 + high))[inside].max() < 1e-3
    assert not len(watermark.embed(low[:0]))


def test_a_lane_gives_its_samples_marked(tiny: Bundle) -> None:
    config, given = EngineConfig(backend="ort-cpu", threads=1, lanes=1), lanes.segment(gain=0.5)
    made = {f: lanes.spoken(load_for(tiny, config, watermark=f), given)[1] for f in (None, FOLDER)}
    watermark = Watermark(FOLDER, 1)
    assert np.array_equal(made[FOLDER], watermark.embed(made[None]))
    assert np.abs(made[FOLDER] - made[None]).max() > 0.01 * np.abs(made[None]).max()


@pytest.mark.slow
@pytest.mark.once
def test_the_cost_of_a_finish_includes_the_watermarks_time(tiny: Bundle) -> None:
    engine = load_for(tiny, EngineConfig(backend="ort-cpu", threads=1, lanes=1), watermark=FOLDER)
    marked: list[int] = []
    assert engine.watermark is not None
    embed = engine.watermark.embed
    engine.watermark.embed = lambda samples: (marked.append(len(samples)), embed(samples))[1]  # type: ignore
    engine.warm_up(2)
    assert len({length for length in marked}) >= 4
    engine.shutdown()


def test_any_rate_is_searched_and_silence_has_no_mark(watermark: Watermark) -> None:
    sound = np.asarray(soundfile.read(SPEECH, dtype="float32")[0])
    there = watermark.confidence(sound, 24_000)
    other = watermark.confidence(soxr.resample(sound, 24_000, 44_100), 44_100)
    assert other == pytest.approx(there, abs=0.01)
    assert watermark.confidence(np.zeros(24_000, np.float32), 24_000) == 0.0
    assert watermark.confidence(sound[:0], 24_000) == 0.0


def _manifest(folder: Path, **changes: object) -> None:
    path = folder / "watermark.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def test_folders_that_cannot_be_used_are_named(folder: Path, tiny: Bundle) -> None:
    def refused(words: str, place: Path = folder) -> None:
        with pytest.raises(ConfigError, match=f"audio.watermark: .*{words}"):
            load_for(tiny, EngineConfig(backend="ort-cpu", threads=1, lanes=1), watermark=place)

    refused("python -m export watermark", folder / "nowhere")
    _manifest(folder, sample_rate_hz=16_000)
    refused("is for 16000 samples a second, and the bundle has 24000")
    _manifest(folder, threshold=2.0)
    refused("threshold: must be between 0.0 and 1.0, not 2.0")
    _manifest(folder, threshold=0.5, sample_rate_hz=24_000, unknown=1)
    refused("unknown key unknown; valid keys: sample_rate_hz")
    (folder / "watermark.yaml").write_bytes((FOLDER / "watermark.yaml").read_bytes())
    data = folder / "embed.onnx.data"
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    refused("embed.onnx.data: damaged")
    data.unlink()
    refused("embed.onnx.data: missing; copy the watermark again")


def test_the_command_names_the_mark(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*more: str, file: Path = SPEECH) -> tuple[int, str]:
        return main(["marked", str(file), *more]), capsys.readouterr().out

    confidence = Watermark(folder, 1).confidence(*soundfile.read(SPEECH, dtype="float32"))
    assert asked() == (1, "not marked\n")
    for threshold, wanted in ((confidence - 1e-3, 0), (confidence + 1e-3, 1)):
        _manifest(folder, threshold=float(np.clip(threshold, 0, 1)))
        status, shown = asked("--watermark", str(folder))
        assert (status, shown.startswith("watermarked: random weights")) == (wanted, not wanted)
    samples, rate_hz = soundfile.read(SPEECH, dtype="float32")
    both = tmp_path / "both.wav"
    both.write_bytes(encode(samples, Encoding.WAV, rate_hz))
    _manifest(folder, threshold=float(np.clip(confidence - 1e-3, 0, 1)))
    _, shown = asked("--watermark", str(folder), file=both)
    assert [line.split(":")[0] for line in shown.splitlines()] == ["marked", "watermarked"]
    _manifest(folder, threshold=float(np.clip(confidence + 1e-3, 0, 1)))
    config = tmp_path / "config.yaml"
    config.write_text(f"audio: {{watermark: {folder}}}")
    assert asked("--config", str(config)) == (1, "not marked\n")
    assert asked("--watermark", str(folder / "nowhere")) == (2, "")

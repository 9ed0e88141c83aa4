"""A bundle with a HiFi-GAN, as the exporter made them up to commit f4275ffb: the device reads it and speaks.

`tests/tiny/hifigan` has a vocoder's graph that was exported there: 100 mels, hop 256, random weights.
"""

import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml

from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle, File, Vocoder
from appliance.contract.mel import MelSpec
from appliance.contract.tokens import read_vocabulary
from appliance.durable import sha256
from appliance.engine.cases import FEMALE, samples
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.fields import to_plain
from appliance.request import Reference, Request, Segmentation
from appliance.speech.plan import Planner
from appliance.voices.reference import prepare
from tests.engine.conftest import TINY
from tests.engine.lanes import relative, spoken
from tests.harness.sounds import to_file

VOCODER = TINY.parent / "hifigan"
FORMATS = [f"1.{minor}" for minor in range(1, 9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle with that vocoder in place of its Vocos, at 16 kHz."""
    place = Path(shutil.copytree(TINY, tmp_path_factory.mktemp("hifigan") / "bundle"))
    shutil.copytree(VOCODER, place, dirs_exist_ok=True)
    manifest = yaml.safe_load((place / "manifest.yaml").read_text("utf-8"))
    manifest["mel"] |= {"kind": "hifigan", "sample_rate_hz": 16_000}
    manifest["vocoder"] = {"name": "hifigan", "padding": "same"}
    for file in VOCODER.iterdir():
        manifest["files"][file.name] = to_plain(File(sha256(file), file.stat().st_size))
    (place / "manifest.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False), "utf-8")
    return place


def read_as(folder: Path, format: str) -> Bundle:
    path = folder / "manifest.yaml"
    manifest = yaml.safe_load(path.read_text("utf-8")) | {"format": format}
    path.write_text(yaml.safe_dump(manifest, sort_keys=False), "utf-8")
    return contract.read(folder)


@pytest.mark.parametrize("format", FORMATS)
def test_a_manifest_that_names_it_is_read(format: str, folder: Path) -> None:
    manifest = read_as(folder, format).manifest
    assert manifest.format == format
    assert manifest.mel == MelSpec("hifigan", 16_000)
    assert manifest.vocoder == Vocoder("hifigan", "same")


def test_a_voice_at_16_khz_is_planned_and_spoken_to_the_sample(folder: Path) -> None:
    """The log-mel is three frames shorter than the reference, and the output starts at upstream's sample."""
    bundle = read_as(folder, FORMATS[-1])
    features = prepare(to_file(samples(FEMALE, 24_000)[:, None]), bundle.manifest.mel, 0.1)
    reference = Reference("hello there. ", features)
    planner = Planner(bundle.manifest, read_vocabulary(bundle.vocab), lambda *_: reference, list)
    request = Request("a voice at another rate.", FEMALE, 4, 1, 2.0, Segmentation.UPSTREAM)
    (segment,) = planner.plan(request)
    r = len(features.samples) // 256
    assert (segment.reference_frames, len(segment.reference_log_mel)) == (r, r - 3)
    engine = Synthesizer(bundle, OrtBackend(1), lanes=1)
    mel, wave = spoken(engine, segment)
    assert len(wave) == (segment.frames - r) * 256 == round(segment.audio_s * 16_000)
    session = onnxruntime.InferenceSession(VOCODER / "vocoder.onnx", providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {session.get_inputs()[0].name: mel[r:]})
    assert relative(wave, np.asarray(wanted)) <= 1e-6
    assert 1e-3 < float(np.abs(wave).mean()) < 0.9  # neither silent nor saturated

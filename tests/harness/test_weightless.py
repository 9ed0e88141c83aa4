"""Graphs without weights: filled again, they equal the export, and upstream speaks with the same weights."""

import dataclasses
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from appliance.contract import bundle as contract
from appliance.contract.schedule import time_grid
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.errors import BundleError
from tests.conftest import ROOT
from tests.engine.lanes import relative, spoken
from tests.harness import weightless
from tests.harness.daemons import finished
from tests.harness.kept import kept
from tests.harness.segments import segment
from tests.measure import random_base

pytestmark = [pytest.mark.once, pytest.mark.torch, pytest.mark.slow]
VOCABULARY, FRAMES = 64, 90


def exported(folder: Path, precision: contract.Precision, blocks: int) -> None:
    """A drawn checkpoint, its bundle and the bundle's archive; a bundle of one block lacks the fused
    graphs."""
    from export.assemble import BACKENDS
    from tests.harness import traces
    from tests.tiny.generate import VOCOS

    with mock.patch.dict(BACKENDS, {precision: ("ort-cpu",)} if blocks == 1 else {}), traces.reusing():
        weightless.make(folder, of(blocks), precision, VOCABULARY, VOCOS)
    weightless.pack(folder, folder / weightless.ARCHIVE)


def of(blocks: int) -> Any:
    from export.families import family

    tiny = family(str(ROOT / "tests/tiny/family.yaml"))
    return dataclasses.replace(tiny, arch=dataclasses.replace(tiny.arch, depth=blocks, heads=2))


@pytest.mark.parametrize(("precision", "blocks", "close"), [
    ("fp16", 1, 2e-2),
    pytest.param("fp32", 2, 1e-4, marks=pytest.mark.thorough),
])  # fmt: skip
def test_a_bundle_filled_from_the_seed_equals_the_export_and_upstreams_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: contract.Precision, blocks: int, close: float
) -> None:
    import torch

    from tests.oracle import upstream

    made, there = kept("weightless", (__name__,), exported, precision, blocks), tmp_path / "there"
    there.mkdir()
    # The other machine has no torch, no onnx, and no part of the exporter.
    absent = "import sys; sys.modules |= dict.fromkeys(('torch', 'onnx', 'onnxscript', 'export'));"
    fills = absent + "from pathlib import Path; from tests.harness import weightless as w;"
    fills += "w.fill(*map(Path, sys.argv[1:]))"
    assert not finished(sys.executable, "-c", fills, made / weightless.ARCHIVE, there).returncode
    bundle = made / "bundle"
    names = {path.name for path in bundle.iterdir()}
    assert names == {path.name for path in (there / "bundle").iterdir()}
    for name in names:
        assert (bundle / name).read_bytes() == (there / "bundle" / name).read_bytes(), name

    reference, ids = random_base.inputs(30, 12, VOCABULARY)
    cfm = random_base.sampler(of(blocks).arch, VOCABULARY, weightless.drawn)
    vocos = upstream.vocos_module().Vocos.from_hparams(str(there / "vocos/config.yaml")).eval()
    vocos.load_state_dict(weightless.drawn(vocos), strict=False)
    with torch.inference_mode():
        mel = random_base.sample(cfm, *map(torch.from_numpy, (reference, ids)), FRAMES, 3)[0]
        samples = vocos.decode(mel.T[None])[0]
    engine = Synthesizer(contract.read(there / "bundle"), OrtBackend(1))
    given = {"reference_log_mel": reference, "ids": ids, "noise": random_base.upstream_noise(FRAMES)}
    found, _ = spoken(engine, segment(frames=FRAMES, reference_frames=30, times=time_grid(3), **given))
    assert relative(found[30:], mel[30:].numpy()) < close
    assert relative(engine.decode(mel.numpy()), samples.numpy()) < close

    monkeypatch.setattr(weightless, "spread", lambda *_: (1.0, 0.0))
    (other := tmp_path / "other").mkdir()
    with pytest.raises(BundleError, match=r"\.data: damaged"):
        weightless.fill(made / weightless.ARCHIVE, other)
    assert not (other / "bundle").exists()
    with pytest.raises(ValueError, match="is not drawn as it was exported"):
        weightless.pack(made, tmp_path / "again.tar.xz")

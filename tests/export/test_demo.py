"""The demo voice restored from its bundle: family, weights, and the bundle rebuilt by the manual's
commands."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch

from appliance.contract import bundle as contract
from export import cli
from export.demo.__main__ import main
from export.demo.rebuild import FAMILY, rebuild, recover
from export.families import family
from export.graphs.condition import Condition
from export.graphs.modulation import ModulationGraph
from export.graphs.step import Step
from export.model.dit import DiT
from tests.export.random_checkpoint import redraw
from tests.harness.daemons import BUNDLE, DEMO, ROOT
from tests.harness.small import ARCHS, MELS

pytestmark = pytest.mark.torch

SHIPPED = contract.read(DEMO / "bundle")
ROUNDED = "modulation.onnx.data"
"""File of weights with a computed table, whose last digit depends on the processor."""


def test_the_family_equals_the_bundles() -> None:
    found, manifest = family(str(FAMILY)), SHIPPED.manifest
    assert (found.name, found.arch, found.mel) == (manifest.family, manifest.arch, manifest.mel)
    given = manifest.text.tokenizer, manifest.text.duration, manifest.text.durations
    assert (found.tokenizer, found.duration, found.durations) == given
    assert found.sampler == manifest.sampler
    assert found.defaults == replace(manifest.defaults, sampling="exact")  # `--sampling` sets it


def test_another_bundle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rebuild", str(BUNDLE), "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert f"{BUNDLE}: is not a demo's: fp16, source-filter, of family.yaml" in told
    for change in ({"precision": "fp32"}, {"vocoder": replace(SHIPPED.manifest.vocoder, name="vocos")}):
        other = replace(SHIPPED, manifest=replace(SHIPPED.manifest, **change))
        with pytest.raises(ValueError, match="is not a demo's: fp16, source-filter"):
            rebuild(other, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_weight_of_a_graph_in_half_precision_is_recovered() -> None:
    arch = ARCHS["upsampling"]
    dit = DiT(arch, 30, MELS)
    redraw(dit, 1)
    expected = dit.state_dict()
    actual = {name: torch.zeros_like(value) for name, value in expected.items()} | dict(dit.named_buffers())
    for kind, sizes in ((ModulationGraph, (arch,)), (Condition, (arch, MELS, 1)), (Step, (arch, MELS, 1))):
        made = kind(expected, *sizes, torch.float16).state_dict()
        # float64 has the same scales as float16, but unrounded.
        own = dict(dit.named_parameters())
        recover(lambda w, kind=kind, sizes=sizes: kind(w, *sizes, torch.float64), actual, own, made)
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=2e-3, atol=2e-5, msg=name)


def content(path: Path) -> bytes:
    """A file's bytes; a graph's bytes without the build of torch that wrote it."""
    if path.suffix != ".onnx":
        return path.read_bytes()
    model = onnx.load(path, load_external_data=False)
    model.ClearField("producer_version")
    return model.SerializeToString(deterministic=True)


@pytest.mark.thorough
def test_the_manuals_commands_make_the_shipped_bundle_again(tmp_path: Path) -> None:
    manual = (ROOT / "export/README.md").read_text("utf-8").replace("\\\n", " ")
    found = re.search(r"python -m export (bundle --family weights/family\.yaml .*)", manual)
    assert found is not None
    weights, again = tmp_path / "weights", tmp_path / "again"
    assert main(["rebuild", "--out", str(weights)]) == 0
    command = [word.replace("weights/", f"{weights}/") for word in shlex.split(found[1])]
    assert cli.main([*command, "--traces", "none", "--out", str(again)]) == 0
    made = contract.read(again).manifest
    measured = {"parity": {}, "evidence": {}, "files": {}}
    assert replace(made, **measured) == replace(SHIPPED.manifest, **measured)
    files = {**made.files, **SHIPPED.manifest.files}
    other = {name for name in files if content(again / name) != content(SHIPPED.folder / name)}
    assert other <= {ROUNDED}
    assert main(["rebuild", str(again), "--out", str(tmp_path / "back")]) == 0
    for path in ("model.safetensors", "vocab.txt", "vocos/pytorch_model.bin"):
        assert (tmp_path / "back" / path).read_bytes() == (weights / path).read_bytes()

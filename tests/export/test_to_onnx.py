"""Written graphs against the contract, and what the writer refuses."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

from appliance.contract import graphs as contract
from appliance.contract.bundle import Bundle
from export import graphs, to_onnx
from export.checkpoint import load_dit
from tests.export import small
from tests.export.small import Workshop

pytestmark = pytest.mark.torch

D, ROWS, M = small.V1.dim, 6 * small.V1.depth + 2, small.MELS
SIGNATURES: dict[str, dict[str, tuple[str, tuple[int | str, ...]]]] = {
    "modulation": {"t": ("float32", ("K",)), "rows": ("float32", ("K", ROWS, D))},
    "condition": {
        "ids": ("int32", ("N",)),
        "log_mel": ("float32", ("N", M)),
        "condition": ("compute", (2, "N", D)),
    },
    "step": {
        "latents": ("float32", ("B", "N", M)),
        "condition": ("compute", ("B", "G", "N", D)),
        "mod_table": ("float32", ("S", ROWS, D)),
        "step_index": ("int32", ("B",)),
        "dt": ("float32", ("B",)),
        "combine": ("float32", ("B", "G")),
        "lengths": ("int32", ("B",)),
        "latents_out": ("float32", ("B", "N", M)),
    },
    "vocoder": {"log_mel": ("float32", ("N", M)), "samples": ("float32", ("L",))},
}
"""The table of the design, written out a second time."""

BUNDLES: dict[str, Callable[[Workshop], small.Made]] = {
    "fp32": lambda w: w.make("v1"),
    "v0": lambda w: w.make("v0"),
    "bigvgan": lambda w: w.make("v1", "bigvgan"),
    "fp16": lambda w: w.make("v1", precision="fp16"),
    "int8": lambda w: w.make("v1", precision="int8"),
}


@pytest.fixture(params=BUNDLES)
def bundle(request: pytest.FixtureRequest, workshop: Workshop) -> Bundle:
    return BUNDLES[request.param](workshop).bundle


def models(bundle: Bundle) -> dict[str, tuple[str, onnx.ModelProto]]:
    """File name → the name of its graph and its model, of every variant."""
    return {
        file: (name, onnx.load(bundle.folder / file, load_external_data=False))
        for variant in bundle.manifest.variants.values()
        for name, file in variant.items()
    }


def signature(model: onnx.ModelProto) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    found = {}
    for value in (*model.graph.input, *model.graph.output):
        tensor = value.type.tensor_type
        axes = tuple(axis.dim_param or axis.dim_value for axis in tensor.shape.dim)
        found[value.name] = (onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, axes)
    return found


def test_inputs_and_outputs_are_the_designs(bundle: Bundle) -> None:
    compute = "float16" if bundle.manifest.precision == "fp16" else "float32"
    for name, model in models(bundle).values():
        wanted = {
            key: (compute if kind == "compute" else kind, axes)
            for key, (kind, axes) in SIGNATURES[name].items()
        }
        assert signature(model) == wanted
        assert list(signature(model)) == list(wanted)


def test_upsampling_adds_its_index_to_the_condition(workshop: Workshop) -> None:
    _, model = models(workshop.make("upsampling").bundle)["condition.onnx"]
    assert signature(model)["upsample_index"] == ("int32", ("N",))


def test_older_runtimes_can_read_what_is_written(bundle: Bundle) -> None:
    """ONNX Runtime 1.23 and TensorRT 10.3; INT8 for the CPU alone leaves the standard operators."""
    for file, (_, model) in models(bundle).items():
        assert model.ir_version <= 10
        assert not model.functions
        domains = {opset.domain: opset.version for opset in model.opset_import}
        assert domains[""] <= 20
        if bundle.manifest.precision != "int8":
            assert set(domains) == {""}
            assert {node.domain for node in model.graph.node} == {""}
        onnx.checker.check_model(bundle.folder / file, full_check=bundle.manifest.precision != "int8")


def test_no_scalar_crosses_the_border_of_a_graph(bundle: Bundle) -> None:
    for _, model in models(bundle).values():
        assert all(axes for _, axes in signature(model).values())


def test_nothing_of_this_machine_is_written(bundle: Bundle, root: Path) -> None:
    traces = [str(root), str(bundle.folder.parent), "site-packages", ".py", "/home/", "/root/", "/tmp/"]
    for path in bundle.folder.iterdir():
        if path.suffix != ".data":  # weights are random bytes
            content = path.read_bytes()
            assert [trace for trace in traces if trace.encode() in content] == [], path.name


def test_weights_lie_beside_their_graph_under_a_relative_name(bundle: Bundle) -> None:
    for file, (_, model) in models(bundle).items():
        places = {
            entry.value
            for tensor in model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        shared = re.sub("_softmax_fp32|_float32", "", file)  # a variant computes with the default's weights
        assert places == {f"{shared}.data"}
        assert (bundle.folder / f"{shared}.data").is_file()


# The writer itself


class Twice(nn.Module):
    """Samples of a vocoder that is not one."""

    def forward(self, log_mel: Tensor) -> Tensor:
        return 2.0 * log_mel.flatten()


class Fixed(nn.Module):
    """Its output has one length, whatever goes in."""

    def forward(self, log_mel: Tensor) -> Tensor:
        return log_mel.sum(dim=0)


VOCODER = contract.signatures(contract.Dimensions(D, 2, M))["vocoder"]


def test_two_traces_are_equal_to_the_byte(tmp_path: Path) -> None:
    files = small.write_files(tmp_path, small.V1)
    weights = load_dit(files.checkpoint, small.V1, len(small.VOCABULARY))
    spec = contract.signatures(contract.Dimensions(D, 2, M))["condition"]
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        module = graphs.Condition(weights, small.V1, M, 64, torch.float32)
        to_onnx.export(module, spec, tmp_path / name / "condition.onnx")
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert set(written[0]) == {"condition.onnx", "condition.onnx.data"}
    assert written[0] == written[1]


def test_an_axis_that_the_tracer_fixed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(to_onnx.ExportError, match="vocoder: axis L of samples was fixed at 100"):
        to_onnx.export(Fixed(), VOCODER, tmp_path / "vocoder.onnx")


def tampered(path: Path, change: Callable[[onnx.ModelProto], Any]) -> None:
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("twice") / "vocoder.onnx"
    to_onnx.export(Twice(), VOCODER, path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "ir_version", 11), r"vocoder.onnx: opset 20, IR 11 are too new"),
        (lambda m: setattr(m.opset_import[0], "version", 21), r"opset 21, IR 10 are too new"),
        (lambda m: setattr(m.graph.input[0], "name", "mel"), r"'mel'.* differs from the contract"),
        (
            lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", onnx.TensorProto.FLOAT16),
            r"float16.* differs from the contract",
        ),
        (
            lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 37),
            r"37.* differs from the contract",
        ),
    ],
)
def test_a_graph_that_is_not_the_contracts_is_refused(
    change: Callable[[onnx.ModelProto], Any], message: str, twice: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "vocoder.onnx"
    path.write_bytes(twice)
    to_onnx.check_signature(path, VOCODER)
    tampered(path, change)
    with pytest.raises(to_onnx.ExportError, match=re.compile(message, re.DOTALL)):
        to_onnx.check_signature(path, VOCODER)


def test_another_name_for_an_output_is_refused(twice: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vocoder.onnx"
    path.write_bytes(twice)
    renamed = dataclasses.replace(VOCODER.outputs[0], name="wave")
    with pytest.raises(to_onnx.ExportError, match="'wave'"):
        to_onnx.check_signature(path, dataclasses.replace(VOCODER, outputs=(renamed,)))

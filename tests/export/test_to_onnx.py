"""Written graphs against the contract, and graphs that the writer refuses."""

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from appliance.contract import graphs as contract
from appliance.contract.bundle import FUSED, Bundle, Precision
from appliance.contract.graphs import STEPS, TAIL
from export import traces
from export.families import NAMED
from export.graphs import to_onnx
from export.graphs.condition import Condition
from export.graphs.modulation import TIME_FREQUENCIES
from export.model.dit import DiT
from export.sources.checkpoint import load_dit
from tests.harness import small
from tests.harness import traces as harness
from tests.harness.small import Workshop

pytestmark = pytest.mark.torch

D, M = small.V1.dim, small.MELS
A = small.V1.heads * small.V1.dim_head
BUNDLES: dict[str, tuple[str, str, Precision]] = {
    **{name: (name, "vocos", "fp32") for name in ("v1", "v0", "upsampling")},
    "bigvgan": ("v1", "bigvgan", "fp32"),
    "fp16": ("v1", "vocos", "fp16"),
    "int8": ("v1", "vocos", "int8"),
    "int8-qdq": ("v1", "vocos", "int8-qdq"),
}


@pytest.fixture(params=BUNDLES)
def bundle(request: pytest.FixtureRequest, workshop: Workshop) -> Bundle:
    return workshop.make(*BUNDLES[request.param]).bundle


def models(bundle: Bundle) -> dict[str, tuple[str, onnx.ModelProto]]:
    """File name → the name of its graph and its model, of every variant."""
    return {
        file: (name, onnx.load(bundle.folder / file, load_external_data=False))
        for variant in bundle.manifest.variants.values()
        for name, file in variant.items()
    }


def test_inputs_and_outputs_are_the_contracts(bundle: Bundle) -> None:
    """`contract/test_graphs` lists the inputs and outputs; a test below proves that other ones are
    refused."""
    specs = contract.signatures(bundle.manifest.dimensions)
    for file, (name, _) in models(bundle).items():
        to_onnx.check_signature(bundle.folder / file, specs[name])


def test_the_times_pass_through_no_sigmoid_of_the_runtime(bundle: Bundle) -> None:
    """ONNX Runtime's Sigmoid is wrong for negative numbers (tests/records/engine.md)."""
    [model] = (model for name, model in models(bundle).values() if name == "modulation")
    kinds = {node.op_type for node in model.graph.node}
    assert "Exp" in kinds and not kinds & {"Sigmoid", "QuickGelu", "Swish"}


def test_older_runtimes_can_read_the_graphs(bundle: Bundle) -> None:
    """ONNX Runtime 1.23 and TensorRT 10.3 read them; graphs for ONNX Runtime alone may use its own
    operators."""
    variants = bundle.manifest.variants
    own = {file for variant in ("ort-cpu", FUSED) for file in variants.get(variant, {}).values()}
    for file, (name, model) in models(bundle).items():
        fused = file in own or bundle.manifest.precision == "int8"
        assert model.ir_version <= 10
        assert not model.functions
        domains = {opset.domain: opset.version for opset in model.opset_import}
        assert domains[""] <= 20
        others = {node.domain for node in model.graph.node if node.domain}
        assert others == ({"com.microsoft"} if fused and name in STEPS else set())
        if not others:
            onnx.checker.check_model(bundle.folder / file, full_check=True)


def test_nothing_of_this_machine_is_written(bundle: Bundle, root: Path) -> None:
    traces = [str(root), str(bundle.folder.parent), "site-packages", ".py", "/home/", "/root/", "/tmp/"]
    for path in bundle.folder.iterdir():
        if path.suffix != ".data":  # weights are random bytes
            content = path.read_bytes()
            assert [trace for trace in traces if trace.encode() in content] == [], path.name


def test_weights_lie_next_to_their_graph_under_a_relative_name(bundle: Bundle) -> None:
    """A bundle's step graphs share weights, which lie in the data file of a single graph."""
    shared = "step_keys_int8" if bundle.manifest.precision == "int8" else "step"
    seen = set()
    for file, (name, model) in models(bundle).items():
        entries = (entry for tensor in model.graph.initializer for entry in tensor.external_data)
        places = {entry.value for entry in entries if entry.key == "location"}
        owner = shared if name.startswith("step") else re.sub("_float32", "", Path(file).stem)
        assert places == (set() if name == "update" else {f"{owner}.onnx.data"})
        seen |= places
    assert {path.name for path in bundle.folder.glob("*.data")} == seen
    assert all((bundle.folder / name).stat().st_size > 0 for name in seen)


def test_every_weight_is_written_once(bundle: Bundle) -> None:
    """The data files are as long as the distinct tensors in them, plus the padding to pages."""
    held: dict[str, dict[tuple[int, int], str]] = {}
    for _, model in models(bundle).values():
        for tensor in model.graph.initializer:
            at = {entry.key: entry.value for entry in tensor.external_data}
            if at:
                place = (int(at.get("offset", 0)), int(at["length"]))
                held.setdefault(at["location"], {})[place] = tensor.name
    for file, places in held.items():
        size, content = sum(length for _, length in places), (bundle.folder / file).read_bytes()
        assert size <= len(content) < 1.05 * size + 4096 * len(places)
        parts = [content[offset : offset + length] for offset, length in places if length >= 4096]
        assert len(set(parts)) == len(parts), file
        ends = [0]
        for offset, length in sorted(places):
            assert offset >= ends[-1], "two tensors overlap"
            ends.append(offset + length)


# Places of the weights


def initialisers(bundle: Bundle, name: str, variant: str = "default") -> dict[str, tuple[int, ...]]:
    """Shapes of the graph's weights and tables, without the constants that the tracer adds."""
    graph = onnx.load(bundle.graph(name, variant), load_external_data=False).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    made_up = {name for name in shapes if name.startswith(("val_", "scalar_tensor", "view", "_unsafe_view"))}
    assert all(len(shapes[one]) <= 1 and sum(shapes[one]) <= bundle.manifest.arch.dim for one in made_up)
    return {name: shape for name, shape in shapes.items() if name not in made_up}


def elements(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes.values())


def of_time(name: str) -> bool:
    """True if a parameter depends on the time alone."""
    return ".attn_norm." in name or name.startswith(("norm_out.", "time_embed."))


def test_42_percent_of_the_weights_of_v1_base_see_only_time() -> None:
    with torch.device("meta"):
        model = DiT(NAMED["F5TTS_v1_Base"].arch, 2545, M)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(sizes.values()) == 337_096_804
    share = sum(size for name, size in sizes.items() if of_time(name)) / sum(sizes.values())
    assert share == pytest.approx(0.42, abs=0.005)


@pytest.mark.parametrize("name", small.TRACED)
def test_every_parameter_is_in_exactly_one_kind_of_graph(name: str, workshop: Workshop) -> None:
    made = workshop.make(name)
    arch = made.arch
    weights = load_dit(made.files.checkpoint, arch, len(small.VOCABULARY))
    sizes = {name: int(np.prod(weights.entry(name).shape)) for name in weights}
    of_text = [n for n in sizes if n.startswith("text_embed.")]
    proj = arch.dim * (small.MELS + arch.text_dim) + arch.dim  # columns for reference and text, and a bias
    norms = 2 * arch.depth * (arch.heads - 1) * arch.dim_head if arch.qk_norm else 0  # repeated by head
    longest = 2 * small.MAX_FRAMES  # a padded reference and a padded reply
    steps = longest * arch.dim_head + norms  # cosines, sines
    tables = {
        "modulation": TIME_FREQUENCIES,
        "condition": (small.MAX_FRAMES + TAIL * (arch.encodes == "tokens"))
        * arch.text_dim
        * (arch.conv_layers > 0),
        **dict.fromkeys(("step", "step_keys", "step_reply"), steps + longest),  # and frame numbers
        "update": 0,
    }
    held = {name: elements(initialisers(made.bundle, name)) - extra for name, extra in tables.items()}
    own = {name: elements(initialisers(made.bundle, name, "ort-cpu")) for name in ("step_keys", "step_reply")}
    assert held["modulation"] == sum(size for n, size in sizes.items() if of_time(n))
    assert held["condition"] == sum(sizes[n] for n in of_text) + proj
    step = sum(sizes.values()) - sizes["rotary_embed.inv_freq"] - held["modulation"] - held["condition"]
    assert held["step"] == held["step_keys"] == held["step_reply"] == step
    assert own == dict.fromkeys(own, step + steps)
    assert held["update"] == 0


# The writer itself


class Twice(nn.Module):
    """Samples of a vocoder that is not one."""

    def forward(self, log_mel: Tensor) -> Tensor:
        return 2.0 * log_mel.flatten()


class Fixed(nn.Module):
    """A module whose output has one length for all inputs."""

    def forward(self, log_mel: Tensor) -> Tensor:
        return log_mel.sum(dim=0)


VOCODER = contract.signatures(contract.Dimensions(D, 2, M, A))["vocoder"]


def test_a_trace_depends_on_structure_alone(tmp_path: Path) -> None:
    """A trace equals, to the byte, a kept graph of other weights that is filled with the same weights."""
    spec, folder = contract.signatures(contract.Dimensions(D, 2, M, A))["condition"], tmp_path / "kept"

    def condition(seed: int, frames: int = 64, zero: bool = False) -> nn.Module:
        files = small.write_files(tmp_path / f"{seed}", small.V1, seed=seed)
        weights = dict(load_dit(files.checkpoint, small.V1, len(small.VOCABULARY)))
        if zero:  # as biases begin: equal weights stay two
            weights = {name: w * (not name.endswith("bias")) for name, w in weights.items()}
        return Condition(weights, small.V1, M, frames, torch.float32)

    def written(module: nn.Module, write: Callable[..., None], *where: Path) -> tuple[bytes, bytes]:
        write(module, spec, tmp_path / "condition.onnx", *where)
        return harness.contents(tmp_path / "condition.onnx")

    one, other = condition(11), condition(12, zero=True)
    anew = written(other, traces.export, folder)
    assert anew == written(other, harness.of) != written(one, harness.of)
    assert harness.key(one, spec, "a") == harness.key(other, spec, "a") != harness.key(one, spec, "b")
    assert harness.key(condition(11, 32), spec, "a") != harness.key(one, spec, "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "to_onnx", None)  # a kept graph needs no trace
        assert written(other, traces.export, folder) == anew
        assert written(one, traces.export, folder) == written(one, harness.of)


def test_kept_graphs_are_few_and_a_damaged_one_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MOST_KEPT", 2)
    monkeypatch.setattr(traces, "to_onnx", SimpleNamespace(export=harness.of, stored=to_onnx.stored))
    contents = []
    for name in ("a", "b", "c", "c", "c"):
        traces.export(Odd(), VOCODER, tmp_path / f"{name}.onnx", tmp_path / "kept")
        contents.append((tmp_path / f"{name}.onnx").read_bytes())
        kept = sorted((tmp_path / "kept").iterdir(), key=os.path.getmtime)
        assert len(kept) == min(len(contents), 2) and not (tmp_path / f"{name}.onnx.data").exists()
        if len(contents) > 2:
            kept[-1].write_bytes(kept[-1].read_bytes()[:-9])
    assert contents[2] == contents[3] == contents[4]
    (tmp_path / "file").touch()
    traces.export(Odd(), VOCODER, tmp_path / "c.onnx", tmp_path / "file" / "kept")
    assert (tmp_path / "c.onnx").read_bytes() == contents[2]


def test_no_comment_and_no_docstring_is_code_that_traces() -> None:
    said = (
        '"""Why."""\n\nA = 1  # each\n"""Of\nA."""\ndef f():\n    """How."""\n\n    # Then.\n    return A\n'
    )
    bare, other = "A = 1\ndef f():\n    return A", "A = 1\ndef f():\n    return 'Why.'"
    assert harness.code_of(said) == harness.code_of(bare) != harness.code_of(other)


def test_an_axis_that_the_tracer_fixed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(to_onnx.ExportError, match="vocoder: axis L of samples was fixed at 100"):
        to_onnx.export(Fixed(), VOCODER, tmp_path / "vocoder.onnx")


class Rowed(nn.Module):
    """Tensors of as many rows as it is traced with; `wrong` depends on their number."""

    def __init__(self, wrong: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.rows, self.wrong = to_onnx.ANY_ROWS, wrong
        self.weight = nn.Buffer(torch.ones(to_onnx.ANY_ROWS))  # not a constant of the tracer

    def forward(self, x: Tensor) -> Tensor:
        n, scores = x.shape[1], x @ x.mT
        y = x.flatten(1).unflatten(1, (-1, 4)) * self.weight[5:6]
        y = y[:, :, None].expand(-1, -1, n + 2, -1)[:, :, 1]
        y = (
            y[:, :, None].expand(-1, -1, 3, -1)[:, :, 1]
            + (scores.flatten(1).unflatten(1, (n, n)) - scores).sum()
        )
        return y if self.wrong is None else self.wrong(y)


X, Y = (contract.TensorSpec(name, "float32", ("R", "N", 4)) for name in "xy")
ROWS = contract.GraphSpec("rows", (X,), (Y,))


def test_a_number_of_rows_is_no_constant(tmp_path: Path) -> None:
    harness.of(Rowed(None), ROWS, tmp_path / "right.onnx")
    for rows in (1, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 5, 4), dtype=np.float32)
        np.testing.assert_array_equal(small.run(tmp_path / "right.onnx", {"x": x})["y"], x)
    values = onnx.load(tmp_path / "right.onnx").graph.value_info
    shapes = [value.type.tensor_type.shape for value in values if value.name != "weight"]
    assert all(axis.dim_value % to_onnx.ANY_ROWS or not axis.dim_value for s in shapes for axis in s.dim)


@pytest.mark.parametrize("wrong", [
    lambda y: y.transpose(0, 1).reshape(y.shape[0] * 2, -1).reshape(y.shape),
    pytest.param(lambda y: y + torch.arange(y.shape[0])[:, None, None], marks=pytest.mark.thorough),
    pytest.param(lambda y: y / float(y.shape[0]) * torch.tensor(y.shape[0]), marks=pytest.mark.thorough),
])  # fmt: skip
def test_a_constant_of_the_rows_is_refused(wrong: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    with pytest.raises(to_onnx.ExportError, match=r"rows: .* depends on the number of rows"):
        to_onnx.export(Rowed(wrong), ROWS, tmp_path / "wrong.onnx")


# Simplifications


class Odd(nn.Module):
    """Slices of a whole axis, and reshapes whose target depends on the input's shape alone."""

    def forward(self, log_mel: Tensor) -> Tensor:
        x = log_mel[:, :] * 2.0
        halves = x.unflatten(1, (2, M // 2))
        turned = halves.transpose(1, 2).reshape(x.shape[0], M)
        return torch.cat([turned[:, 3:], turned[:, :3]], dim=1).flatten()


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


def test_simplifying_a_graph_changes_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plain = tmp_path / "simple.onnx", tmp_path / "plain.onnx"
    harness.of(Odd(), VOCODER, path)
    for name in ("_drop_whole_slices", "_reshape_by_position"):
        monkeypatch.setattr(to_onnx, name, lambda _: None)
    harness.of(Odd(), VOCODER, plain)
    assert operators(path)["Shape"] == 0 < operators(plain)["Shape"]
    assert operators(path).total() < operators(plain).total()
    rng = np.random.default_rng(1)
    for frames in (1, 2, 41):
        mel = rng.standard_normal((frames, M), dtype=np.float32)
        one, other = (small.run(file, {"log_mel": mel})["samples"] for file in (path, plain))
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, Odd()(torch.from_numpy(mel)).numpy())


SHAPES = {"step": 1, "step_keys": 2, "step_reply": 3}
"""Number of shapes that a graph reads: one per input whose length cuts positions and masks."""


@pytest.mark.parametrize("name", small.TRACED)
@pytest.mark.parametrize("variant", ["default", "ort-cpu"])
def test_shapes_of_step_graphs_are_constant(name: str, variant: str, workshop: Workshop) -> None:
    bundle = workshop.make(name).bundle
    for graph, shapes in SHAPES.items():
        if variant == "ort-cpu" and graph == "step":
            continue
        model = onnx.load(bundle.graph(graph, variant), load_external_data=False)
        constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Reshape":
                assert node.input[1] in constants, node.name
            if node.op_type == "Slice" and {*node.input[1:3]} <= set(constants):
                starts, ends = (onnx.numpy_helper.to_array(constants[n]) for n in node.input[1:3])
                assert starts.any() or ends.min() < 2**31, f"{node.name} takes the whole axis"
        assert operators(bundle.graph(graph, variant))["Shape"] <= shapes


HOST_INPUTS = {"Slice": 1, "Reshape": 1, "Expand": 1, "Unsqueeze": 1, "Squeeze": 1}
"""First input that CUDA operators read on the host."""
SMALL = 100
"""Most entries of a constant that ONNX Runtime keeps on the host for the arithmetic of sizes."""


@pytest.mark.parametrize("name", small.TRACED)
@pytest.mark.parametrize("variant", ["default", FUSED])
def test_no_number_of_the_host_meets_a_device_tensor(name: str, variant: str, workshop: Workshop) -> None:
    """ONNX Runtime would copy the number in the middle of a step, and refuses to capture such graphs."""
    bundle = workshop.make(name).bundle
    for graph in STEPS:
        model = onnx.load(bundle.graph(graph, variant), load_external_data=False)
        small_ones = {one.name for one in model.graph.initializer if np.prod(one.dims) <= SMALL}
        host: set[str] = set()
        for node in model.graph.node:
            numbers = [i for i, given in enumerate(node.input) if given in host]
            if node.op_type == "Shape" or (numbers and {*node.input} <= host | small_ones):
                host |= {*node.output}
            assert all(i >= HOST_INPUTS.get(node.op_type, len(node.input)) for i in numbers) or (
                {*node.output} <= host
            ), node.name
        assert host


def test_weights_are_shared_by_name_and_content(tmp_path: Path) -> None:
    """A weight goes into the graph's own file if its name is new, or its content differs under a known
    name."""
    for name, factor in (("one", 1.0), ("two", 1.0), ("three", 3.0)):
        harness.of(Weighed(factor), VOCODER, tmp_path / f"{name}.onnx")
    sizes = {name: (tmp_path / f"{name}.onnx").stat().st_size for name in ("two", "three")}
    for name in ("two", "three"):
        to_onnx.share_weights(tmp_path / f"{name}.onnx", tmp_path / "one.onnx")
    assert {path.name for path in tmp_path.glob("*.data")} == {"one.onnx.data"}
    assert (tmp_path / "two.onnx").stat().st_size < sizes["two"] + 100
    assert (tmp_path / "three.onnx").stat().st_size > sizes["three"] + 4 * M * M - 100
    mel = np.random.default_rng(2).standard_normal((5, M), dtype=np.float32)
    for name, factor in (("one", 1.0), ("two", 1.0), ("three", 3.0)):
        found = small.run(tmp_path / f"{name}.onnx", {"log_mel": mel})["samples"]
        np.testing.assert_allclose(found, Weighed(factor)(torch.from_numpy(mel)).numpy(), atol=1e-4)


class Weighed(nn.Module):
    """A product with two weights; the first depends on `factor`."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        first, second = torch.randn(2, M, M, generator=generator)
        self.first, self.second = nn.Buffer(factor * first), nn.Buffer(second)

    def forward(self, log_mel: Tensor) -> Tensor:
        return (log_mel @ self.first @ self.second).flatten()


# Refusals


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("twice") / "vocoder.onnx"
    harness.of(Twice(), VOCODER, path)
    return path.read_bytes()


@pytest.mark.parametrize(("change", "message"), [
    (lambda m: setattr(m, "ir_version", 11), r"vocoder.onnx: opset 20, IR 11 are too new"),
    (lambda m: setattr(m.opset_import[0], "version", 21), r"opset 21, IR 10 are too new"),
    (lambda m: setattr(m.graph.input[0], "name", "mel"), r"'mel'.* differs from the contract"),
    (lambda m: setattr(m.graph.output[0], "name", "wave"), r"'wave'.* differs from the contract"),
    (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", onnx.TensorProto.FLOAT16),
     r"float16.* differs from the contract"),
    (lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 37),
     r"37.* differs from the contract"),
])  # fmt: skip
def test_a_graph_that_is_not_the_contracts_is_refused(
    change: Callable[[onnx.ModelProto], Any], message: str, twice: bytes, tmp_path: Path
) -> None:
    path, model = tmp_path / "vocoder.onnx", onnx.load_from_string(twice)
    path.write_bytes(twice)
    to_onnx.check_signature(path, VOCODER)
    change(model)
    onnx.save(model, path)
    with pytest.raises(to_onnx.ExportError, match=re.compile(message, re.DOTALL)):
        to_onnx.check_signature(path, VOCODER)

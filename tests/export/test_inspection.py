"""The output of `inspect` for a bundle."""

import dataclasses
import re

import pytest

from appliance.contract.bundle import Bundle, Licence, Text
from appliance.contract.graphs import GRAPHS
from export.inspection import describe
from tests.harness import small
from tests.harness.small import Workshop

pytestmark = pytest.mark.torch


def rows(text: str) -> dict[str, list[str]]:
    """The table of graphs: file → its cells."""
    lines = text.split("\n\n")[1].splitlines()[1:]
    found = {line.split()[1]: line.split(maxsplit=4) for line in lines}
    graphs = [graph for graph, *_ in found.values()]
    assert graphs == sorted(graphs, key=GRAPHS.index)
    return found


def files_of(bundle: Bundle) -> set[str]:
    return {file for variant in bundle.manifest.variants.values() for file in variant.values()}


def test_a_float_bundle_is_described_in_full(workshop: Workshop) -> None:
    bundle = workshop.make("v0").bundle
    text = describe(bundle)
    head = "small, fp32, format 1.8; backends ort-cpu, ort-cuda, tensorrt; batch-invariant: yes; "
    assert text.startswith(head)
    assert f"up to {small.MAX_FRAMES} frames (24.6 s)" in text
    assert "vocoder vocos (center), 33 vocabulary entries" in text
    assert "licence of the weights: Apache-2.0 (model.safetensors)" in text
    assert "licence of the vocoder: unknown (pytorch_model.bin)" in text
    table = rows(text)
    assert {*table} == files_of(bundle)
    for file, (_, _, parameters, megabytes, rest) in table.items():
        size = sum(path.stat().st_size for path in bundle.folder.glob(f"{file}*"))
        assert float(megabytes) == round(size / 1e6, 1)
        if not file.startswith(("step_", "update")):  # these share a weight file, or have no weights
            assert int(parameters.replace(",", "")) * 4 <= size
        assert re.match(r"float 100%|float \d\d%, int" if file != "update.onnx" else "; ", rest), rest
    assert "MatMul" in table["step.onnx"][4] and "Gemm" in table["modulation.onnx"][4]
    assert len(re.findall(r"^sample +(default|ort-cpu) +upstream", text, re.MULTILINE)) == 2


def test_known_weights_and_their_terms_are_named(workshop: Workshop) -> None:
    bundle = workshop.make("v0").bundle
    source = "https://huggingface.co/ai4bharat/IndicF5/tree/0123"
    terms = Licence("MIT", source, note="weights x: doubtful: y")
    text = Text(("hi", "mr"), "char", "lower", "NFD")
    manifest = dataclasses.replace(bundle.manifest, licence=terms, text=text, weights="raw")
    manifest = dataclasses.replace(manifest, evidence={"adapter": "lora_5: LoRA, rank 2"})
    said = describe(dataclasses.replace(bundle, manifest=manifest))
    assert "known weights: IndicF5, stated MIT (doubtful: arXiv 2505.20693" in said
    assert "terms: weights x: doubtful: y" in said and "adapter: lora_5: LoRA, rank 2" in said
    assert "languages: hi, mr; tokenizer char; letters of lower case, NFD; lengths by script" in said
    assert "known weights" not in describe(bundle)


def test_every_variant_has_its_line_and_precision_shows_in_types(workshop: Workshop) -> None:
    bundle = workshop.make("v1", precision="fp16").bundle
    table = rows(describe(bundle))
    assert {*table} == files_of(bundle)
    assert "float16" in table["step.onnx"][4]
    parameters = [int(table[f"{name}.onnx"][2].replace(",", "")) for name in ("step", "step_keys")]
    assert parameters[0] == pytest.approx(parameters[1], abs=100)  # they differ in shapes alone
    text = describe(workshop.make("v1", precision="int8").bundle)
    assert "small, int8, format 1.8; backends ort-cpu; batch-invariant: no" in text
    assert "int8" in rows(text)["step_keys_int8.onnx"][4]

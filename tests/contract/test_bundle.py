"""The manifest's strict reader, the hashes, and the committed tiny bundle."""

import copy
import dataclasses
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from appliance.contract import bundle as contract
from appliance.contract.mel import MelSpec
from appliance.errors import BundleError
from appliance.fields import from_mapping, to_plain
from tests.harness.kept import kept
from tests.harness.rows import rows

TINY = Path(__file__).resolve().parent.parent / "tiny" / "bundle"
COMPUTED = {"frequencies", "positions", "cos", "sin"}
"""Computed tables in the graphs, which are no weights."""
RAW: dict[str, Any] = yaml.safe_load((TINY / "manifest.yaml").read_text("utf-8"))
RAW["parity"]["rows"] = RAW["parity"]["rows"][:2]
Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of small files with right hashes."""
    out = tmp_path_factory.mktemp("written")
    for name in RAW["files"]:
        (out / name).write_bytes(f"{name} ".encode() * 50)
    shutil.copy(TINY / "vocab.txt", out)
    contract.write(out, from_mapping(contract.Manifest, RAW, where="RAW", error=BundleError))
    return out


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "bundle"))


def edited(folder: Path, edit: Edit) -> Path:
    """Edit the manifest of the folder."""
    path = folder / "manifest.yaml"
    raw = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
    edit(raw)
    path.write_text(yaml.dump(raw, Dumper=yaml.CSafeDumper, sort_keys=False), "utf-8")
    return folder


def test_a_bundle_is_read_as_it_was_written(folder: Path) -> None:
    bundle = contract.read(folder)
    assert bundle.folder == folder and bundle.vocab == folder / "vocab.txt"
    assert bundle.manifest.arch == contract.Arch(
        dim=64, depth=2, heads=1, ff_mult=2, text_dim=64, conv_layers=1
    )
    assert bundle.manifest.mel == MelSpec("vocos")
    assert bundle.manifest.variants["default"]["step"] == "step.onnx"
    assert bundle.graph("step") == folder / "step.onnx"
    assert bundle.manifest.backends == ("ort-cpu", "ort-cuda", "openvino", "tensorrt")  # an earlier format's
    assert bundle.manifest.defaults == contract.Defaults()
    for name, file in bundle.manifest.files.items():
        content = (folder / name).read_bytes()
        assert file == contract.File(hashlib.sha256(content).hexdigest(), len(content))


def test_writing_hashes_what_lies_in_the_folder_and_not_the_manifest(folder: Path) -> None:
    manifest = contract.read(folder).manifest
    (folder / "notes.txt").write_text("more")
    again = contract.write(folder, manifest)
    assert set(again.manifest.files) == {*RAW["files"], "notes.txt"}


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20)
FILES = st.builds(contract.File, sha256=TEXTS, size_bytes=st.integers(0, 2**40))
CHANGES = st.fixed_dictionaries(
    {
        "family": TEXTS,
        "backends": st.lists(TEXTS, max_size=3).map(tuple),
        "licence": st.builds(contract.Licence, weights=TEXTS, source=TEXTS, note=TEXTS),
        "files": st.dictionaries(TEXTS, FILES, max_size=3),
        "defaults": st.builds(contract.Defaults, guidance=st.floats(0, 10, allow_nan=False)),
        "parity": st.dictionaries(
            TEXTS, st.integers() | TEXTS | st.lists(st.floats(allow_nan=False)), max_size=3
        ),
        "created_by": TEXTS,
    }
)
"""Fields with texts that YAML may read as another type."""


@given(CHANGES)
@pytest.mark.slow
def test_a_manifest_survives_yaml(changes: dict[str, Any]) -> None:
    read = from_mapping(contract.Manifest, copy.deepcopy(RAW), where="RAW", error=BundleError)
    manifest = dataclasses.replace(read, **changes)
    text = yaml.safe_dump(to_plain(manifest), sort_keys=False, allow_unicode=True)
    assert from_mapping(contract.Manifest, yaml.safe_load(text), where="here", error=BundleError) == manifest


def put(place: str, value: object) -> Edit:
    """Set the value at a path of keys joined by `|`; None removes the key."""

    def edit(raw: dict[str, Any]) -> None:
        *path, last = place.split("|")
        for key in path:
            raw = raw[key]
        if value is None:
            del raw[last]
        else:
            raw[last] = value

    return edit


PLACED: dict[str, Any] = {"duration": "tokens", "durations": {" ": [2, 3, 1], "a": [4.5, 9.0, 1e-3]}}
WRONG: list[tuple[str, object, str]] = rows(__file__, "wrong_manifests.jsonl")
ASTRAY: list[tuple[str, object, str]] = rows(__file__, "astray.jsonl")


TOGETHER: list[tuple[Edit, str]] = [
    (lambda m: m.update(a=1, b=2), "unknown key a, b; valid"),
    (lambda m: (m.pop("family"), m.pop("files")), "missing key family, files"),
    (lambda m: [m["variants"]["default"].pop(g) for g in ("update", "step_keys")], "lacks step_keys, update"),
    (lambda m: m["variants"]["ort-cpu"].update(step_key="x", stop="x"), "unknown graphs step_key, stop"),
]
"""Manifests with two mistakes, and the error that names both."""
FORMATS: list[tuple[object, str]] = rows(__file__, "formats.jsonl")
"""The parser checks the format before the keys: a later format may have other keys."""


def of_format(value: object) -> Edit:
    return lambda raw: raw.update(format=value, a_key_of_the_future=1)


REFUSED = [
    *((put(place, value), rf"manifest\.yaml.*{re.escape(message)}") for place, value, message in WRONG),
    *((put(place, value), re.escape(message)) for place, value, message in ASTRAY),
    *((edit, re.escape(message)) for edit, message in TOGETHER),
    *((of_format(value), re.escape(message)) for value, message in FORMATS),
]


@pytest.mark.parametrize(("edit", "message"), REFUSED)
def test_a_wrong_manifest_names_place_and_allowed_values(edit: Edit, message: str, folder: Path) -> None:
    with pytest.raises(BundleError, match=message):
        contract.read(edited(folder, edit), verify=False)


def test_a_table_of_durations_is_of_the_vocabularys_tokens(folder: Path) -> None:
    def edit(raw: dict[str, Any]) -> None:
        raw["arch"]["text_embedding_average_upsampling"] = True
        raw["text"] = copy.deepcopy(PLACED)

    bundle = contract.read(edited(folder, edit))
    assert contract.write(folder, bundle.manifest).manifest.text == bundle.manifest.text
    assert bundle.manifest.text.durations == {" ": (2.0, 3.0, 1.0), "a": (4.5, 9.0, 0.001)}
    strange = edited(folder, lambda m: m["text"]["durations"].update({"ʤ": [1, 2, 3], "qu": [1, 2, 3]}))
    with pytest.raises(BundleError, match=r"text: durations: 'ʤ', 'qu' not in vocab\.txt"):
        contract.read(strange)


def test_a_format_that_yaml_reads_as_a_number_is_read_as_it_stands(folder: Path) -> None:
    path = folder / "manifest.yaml"
    path.write_text(path.read_text().replace("format: '1.2'", "format: 2.0"))
    with pytest.raises(BundleError, match=r"format 2\.0 is newer"):
        contract.read(folder)


@pytest.mark.parametrize("name", sorted(RAW["files"]))
def test_a_flipped_byte_is_found_in_every_file(name: str, folder: Path) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(BundleError, match=rf"{re.escape(name)}: damaged: sha256 [0-9a-f]{{12}}…, the"):
        contract.read(folder)
    if name != "vocab.txt":  # read in any case
        contract.read(folder, verify=False)


UNLISTED = ["notes.txt", "deep/er/weights.data", ".hidden", "deep/manifest.yaml", "to", "deep/words-de.tsv"]


@pytest.mark.parametrize("name", UNLISTED)
def test_a_file_or_link_that_is_not_listed_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "words-de.tsv").touch()
    assert contract.read(folder).words == {"de": folder / "words-de.tsv"}
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "to":
        path.symlink_to(tmp_path)  # a link to a folder elsewhere
    else:
        path.write_bytes(b"0")
    for verify in (True, False):
        with pytest.raises(BundleError, match=rf"{re.escape(name)}: the manifest does not list this file"):
            contract.read(folder, verify=verify)


@pytest.mark.parametrize("size", [5, RAW["vocab_size"] + 1])
def test_a_vocabulary_of_another_size_is_refused(size: int, folder: Path) -> None:
    edited(folder, lambda m: m.update(vocab_size=size))
    for verify in (True, False):
        with pytest.raises(BundleError, match=rf"vocab\.txt: {RAW['vocab_size']} entries, .* is {size}"):
            contract.read(folder, verify=verify)


def test_a_truncated_or_missing_file_is_reported(folder: Path) -> None:
    path = folder / "step.onnx"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BundleError, match=r"step\.onnx: 493 bytes, the manifest says 500; copy it again"):
        contract.read(folder)
    path.unlink()
    with pytest.raises(BundleError, match=r"step\.onnx: missing; copy the bundle again"):
        contract.read(folder)


@pytest.mark.parametrize(("content", "message"), [
    (None, "not a bundle, it has no manifest.yaml"),
    (b"", "must hold a mapping, not NoneType"),
    (b"- 1\n- 2\n", "must hold a mapping, not list"),
    (b"a: [1", "unreadable"),
    (b"\xff\xfe\x00", "unreadable"),
    (b"!!python/object/apply:os.getcwd []", "unreadable"),
])  # fmt: skip
def test_invalid_manifests_are_refused(content: bytes | None, message: str, folder: Path) -> None:
    path = folder / "manifest.yaml"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(BundleError, match=re.escape(message)):
        contract.read(folder)
    with pytest.raises(BundleError, match=r"unreadable|not a bundle"):
        contract.read(path if content else folder / "absent")  # a file, or nothing


def test_a_variant_falls_back_to_the_defaults_file_and_a_backend_runs_its_own(
    folder: Path,
) -> None:
    bundle = contract.read(folder)
    assert bundle.graph("step_keys") == folder / "step_keys.onnx"
    assert bundle.graph("step_keys", "ort-cpu") == folder / "step_keys_cpu.onnx"
    assert bundle.graph("vocoder", "ort-cpu") == folder / "vocoder.onnx"
    assert [bundle.variant_for(name) for name in ("ort-cpu", "tensorrt")] == ["ort-cpu", "default"]
    for arguments in (("step", "fast"), ("stop", "default")):
        with pytest.raises(BundleError, match="variants: default, ort-cuda, ort-cpu"):
            bundle.graph(*arguments)


def test_a_bundle_is_limited_to_shorter_pieces_and_never_made_longer(folder: Path) -> None:
    read = contract.read(folder)
    spec, most = read.manifest.mel, read.manifest.max_frames
    for seconds in (None, 15.0, 3_600.0):
        frames = read.up_to(seconds).manifest.max_frames
        assert frames == (most if seconds is None else min(most, int(seconds * spec.frames_per_second)))


def test_a_bundle_for_the_cpu_alone_has_no_masked_step(folder: Path) -> None:
    bundle = contract.read(edited(folder, lambda m: m["variants"]["default"].pop("step")))
    with pytest.raises(BundleError, match="no graph 'step' in variant 'default'"):
        bundle.graph("step")


def test_the_compute_type_follows_the_precision() -> None:
    manifest = from_mapping(contract.Manifest, copy.deepcopy(RAW), where="RAW", error=BundleError)
    computes = {"fp32": "float32", "fp16": "float16", "int8": "float32", "int8-qdq": "float16"}
    for precision, compute in computes.items():
        changed = dataclasses.replace(manifest, precision=precision)
        assert changed.dimensions.compute == compute
    assert (manifest.dimensions.dim, manifest.dimensions.depth, manifest.dimensions.rows) == (64, 2, 14)


# The committed tiny bundle


def test_the_tiny_bundle_is_whole_and_small() -> None:
    bundle = contract.read(TINY)
    assert sum(file.size_bytes for file in bundle.manifest.files.values()) < 8e6
    assert {path.name for path in TINY.iterdir()} == {*bundle.manifest.files, "manifest.yaml"}
    # A sampling beyond its bound is only excluded as default; random weights meet no bound.
    rows = [row for row in bundle.manifest.parity["rows"] if row["against"] != "exact"]
    assert rows and all(row["error"] <= row["bound"] for row in rows)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.thorough
def test_the_tiny_bundle_is_what_its_generator_makes() -> None:
    """Weights and vocabulary are equal to the byte. Graphs are compared by signature, because a newer tracer
    may write other nodes. Computed tables may differ in the last digit between processors."""
    import onnx

    from tests.harness.small import brief_gate
    from tests.tiny.generate import generate

    def make(folder: Path) -> None:
        folder.mkdir()
        with brief_gate():
            assert generate(folder / "bundle") == 0

    out = kept("tiny", ("tests.tiny.generate",), make) / "bundle"
    made, committed = contract.read(out).manifest, contract.read(TINY).manifest
    # The committed bundle has an earlier format, and its content must not change.
    volatile = {"files": {}, "parity": {}, "format": made.format, "backends": made.backends}
    assert dataclasses.replace(made, **volatile) == dataclasses.replace(committed, **volatile)
    assert set(made.files) == set(committed.files)
    assert made.files["vocab.txt"] == committed.files["vocab.txt"]
    for name in sorted({name for variant in made.variants.values() for name in variant.values()}):
        graphs = [onnx.load(folder / name).graph for folder in (out, TINY)]
        for part in ("input", "output"):
            one, two = ([(v.name, str(v.type)) for v in getattr(graph, part)] for graph in graphs)
            assert one == two
        # The transform's constants are no weights: before format 1.6 it was one product.
        made_up = ("val_", "scalar_tensor", "view", "_unsafe_view", "inverse_stft.")
        weights = [
            {t.name: onnx.numpy_helper.to_array(t) for t in g.initializer if not t.name.startswith(made_up)}
            for g in graphs
        ]
        assert weights[0].keys() == weights[1].keys()
        for tensor, values in weights[0].items():
            if tensor in COMPUTED:
                np.testing.assert_allclose(values, weights[1][tensor], rtol=1e-6, atol=1e-7, err_msg=tensor)
            else:
                assert values.tobytes() == weights[1][tensor].tobytes(), tensor

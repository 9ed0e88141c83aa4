"""A bundle without its weights, for a machine whose torch cannot trace the graphs.

Here, in the workshop, `pack` draws a checkpoint, exports it and keeps the graphs, whose weights lie in files
of their own. There, `fill` draws the same weights with numpy and writes those files; the manifest's hashes
say whether they are the same.

    python -m tests.harness.weightless FOLDER FAMILY PRECISION
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from appliance.contract import bundle as contract
from appliance.contract.bundle import Arch, Bundle, Precision

if TYPE_CHECKING:
    from export.families import Family
    from export.model.vocos import VocosConfig

FloatArray = NDArray[np.float32]
SEED = 0
MAX_FRAMES = 2048
VOCABULARY = 2545
ARCHIVE = "graphs.tar.xz"
DESCRIPTION, CONSTANTS = "weights.json", "constants"
"""Files of the archive outside the bundle: the list of drawn tensors, and the tensors that are not drawn."""
STFT = tuple(f"inverse_stft.{part}" for part in ("inner", "outer", "window", "square"))
TABLES = ("cos", "sin", "frame", "positions", *STFT)
"""Suffixes of large tensors that are no weights."""
MOST_CONSTANTS = 1 << 16
"""Most bytes of all other constants: the tracer's constants, and small weights that it has converted."""


def draw(name: str, shape: Sequence[int], seed: int = SEED) -> FloatArray:
    """Draw a checkpoint's tensor, uniformly. IEEE operations alone make it equal on every machine."""
    scale, shift = spread(name, shape)
    numbers = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    drawn = numbers.random(tuple(shape), dtype=np.float32)
    drawn -= np.float32(0.5)
    drawn *= np.float32(scale * math.sqrt(12))
    drawn += np.asarray(shift, np.float32)
    return drawn


def spread(name: str, shape: Sequence[int]) -> tuple[float, float | FloatArray]:
    """Deviation and mean. Unlike in a fresh model, every layer affects the output and none outgrows
    another."""
    if any(layer in name for layer in ("attn_norm.linear", "norm_out.linear", "proj_out")):
        gates = np.repeat(np.float32([0, 0, 0.3, 0, 0, 0.3]), shape[0] // 6)
        return 0.02, gates if name.endswith("attn_norm.linear.bias") else 0.0
    if name.endswith(("grn.gamma", "grn.beta")):
        return 0.1, 0.0
    if name.endswith((".act.alpha", ".act.beta")):
        return 0.1, 0.5  # far from 0, the pole of Snake's 1/β
    if name.endswith(("norm.weight", "gamma")):
        return 0.1, 1.0 if name.endswith("weight") else 0.3
    if name.endswith("text_embed.weight"):
        return 1.0, 0.0
    return (0.05 if len(shape) < 2 else 1 / math.sqrt(3 * math.prod(shape[1:]))), 0.0


_CONVOLUTION = [
    (r"blocks\.(\d+)\.conv$", r"{0}.\1.dwconv.weight"),
    (r"blocks\.(\d+)\.conv_bias", r"{0}.\1.dwconv.bias"),
    (r"blocks\.(\d+)\.norm_", r"{0}.\1.norm."),
    (r"blocks\.(\d+)\.up\.", r"{0}.\1.pwconv1."),
    (r"blocks\.(\d+)\.down\.", r"{0}.\1.pwconv2."),
    (r"blocks\.(\d+)\.(gamma|beta)", r"{0}.\1.grn.\2"),
]
NAMES: Mapping[str, Sequence[tuple[str, str]]] = {
    "modulation": [
        (r"hidden\.", "time_embed.time_mlp.0."),
        (r"out\.", "time_embed.time_mlp.2."),
        (r"heads\.{depth}\.", "norm_out.linear."),
        (r"heads\.(\d+)\.", r"transformer_blocks.\1.attn_norm.linear."),
    ],
    "condition": [
        ("embedding", "text_embed.text_embed.weight"),
        (r"from_(mel|text)\.", "input_embed.proj."),
        *((here, there.format("text_embed.text_blocks")) for here, there in _CONVOLUTION),
    ],
    "step": [
        (r"from_latents\.", "input_embed.proj."),
        (r"position_conv\.w(\d)", r"input_embed.conv_pos_embed.conv1d.\1.weight"),
        (r"position_conv\.b(\d)", r"input_embed.conv_pos_embed.conv1d.\1.bias"),
        (r"blocks\.(\d+)\.attention\.qkv\.", r"transformer_blocks.\1.attn.to_{}."),
        (r"blocks\.(\d+)\.attention\.out\.", r"transformer_blocks.\1.attn.to_out.0."),
        (r"blocks\.(\d+)\.up\.", r"transformer_blocks.\1.ff.ff.0.0."),
        (r"blocks\.(\d+)\.down\.", r"transformer_blocks.\1.ff.ff.2."),
        (r"out\.", "proj_out."),
    ],
    "vocoder": [
        ("embed$", "backbone.embed.weight"),
        ("embed_bias", "backbone.embed.bias"),
        (r"norms\.(norm|final_layer_norm)_", r"backbone.\1."),
        (r"head\.", "head.out."),
        *((here, there.format("backbone.convnext")) for here, there in _CONVOLUTION),
    ],
}
"""Graph → beginnings of its tensors' names → beginnings of the checkpoint's names."""


def arranged(
    graph: str, name: str, tensor: Callable[[str], FloatArray], arch: Arch, mels: int, precision: Precision
) -> FloatArray | None:
    """A graph's tensor, made from the checkpoint's tensors as the exporter arranges them; None for a
    constant."""
    for here, there in NAMES[graph]:
        found = re.match(here.replace("{depth}", str(arch.depth)), name)
        if found:
            source = found.expand(there) + name[found.end() :]
            break
    else:
        return None
    made = _qkv(source, tensor, arch, precision) if ".attn.to_{}." in source else tensor(source)
    columns = {"from_latents": (0, mels), "from_mel": (mels, 2 * mels), "from_text": (2 * mels, None)}
    if graph == "vocoder" and ".pwconv2." in source:
        gamma = tensor(re.sub(r"pwconv2\..*", "gamma", source))
        made = made * (gamma if made.ndim == 1 else gamma[:, None])
    if made.ndim == 2 and (part := columns.get(name.removesuffix(".weight"))):
        made = made[:, slice(*part)]
    return made.T if made.ndim == 2 and graph != "modulation" and name.endswith(".weight") else made


def _qkv(source: str, tensor: Callable[[str], FloatArray], arch: Arch, precision: Precision) -> FloatArray:
    whole = arch.dim_head**-0.5
    scales = (whole, 1.0) if precision == "fp32" else (whole**0.5, whole**0.5)
    order = np.r_[0 : arch.dim_head : 2, 1 : arch.dim_head : 2]
    parts = [tensor(source.format(key)) for key in "qkv"]
    for place, scale in enumerate(scales):
        by_head = parts[place].reshape(arch.heads, arch.dim_head, *parts[place].shape[1:])
        parts[place] = by_head[:, order].reshape(parts[place].shape) * np.float32(scale)
    return np.concatenate(parts)


def content_of(
    piece: Mapping[str, Any], manifest: contract.Manifest, shapes: Mapping[str, Sequence[int]]
) -> bytes | None:
    """Content of a piece of a data file, in the order of the description; None for a constant."""
    assert manifest.arch is not None
    graph, arch, mels = piece["file"].partition(".")[0], manifest.arch, manifest.mel.mels
    made = arranged(graph, piece["name"], lambda n: draw(n, shapes[n]), arch, mels, manifest.precision)
    return None if made is None else np.ascontiguousarray(made.astype(piece["dtype"])).tobytes()


def drawn(model: Any) -> dict[str, Any]:
    """The same weights under the parameter names of an upstream torch model, without its buffers."""
    import torch

    return {name: torch.from_numpy(draw(name, value.shape)) for name, value in model.named_parameters()}


def make(
    work: Path, family: Family, precision: Precision, vocabulary: int, vocos: VocosConfig | None = None
) -> Bundle:
    """Write WORK/checkpoint and WORK/vocos with drawn weights, and export them to WORK/bundle."""
    import torch

    from export import assemble
    from export.parity import comparison
    from tests.export import random_checkpoint
    from tests.measure import random_base

    def tensor(name: str, shape: Sequence[int], seed: int) -> torch.Tensor:
        return torch.from_numpy(draw(name, shape))

    with mock.patch.object(random_checkpoint, "draw", tensor):
        random_base.write(work, family, vocabulary, vocos)
    files = (work / "checkpoint/model.safetensors", work / "checkpoint/vocab.txt")
    loaded = assemble.load(assemble.Sources(family, *files, "vocos", work / "vocos"))
    report = comparison.Report(precision)
    options = assemble.BuildOptions(precision, MAX_FRAMES)
    return assemble.build(loaded, options, work / "bundle", lambda _: report)


def pack(work: Path, archive: Path) -> None:
    """Write the archive of WORK/bundle. Raises ValueError for a weight that is not what would be drawn."""
    import torch

    from export.sources import checkpoint

    bundle = contract.read(work / "bundle", verify=False)
    stored = torch.load(work / "vocos/pytorch_model.bin", weights_only=True)
    shapes = {name: list(tensor.shape) for name, tensor in stored.items()}
    arch, size = bundle.manifest.arch, bundle.manifest.vocab_size
    assert arch is not None
    weights = checkpoint.load_dit(work / "checkpoint/model.safetensors", arch, size, bundle.manifest.mel.mels)
    shapes |= {name: list(weights.entry(name).shape) for name in weights}
    constants, pieces, left = [], _pieces(bundle.folder), MOST_CONSTANTS
    for piece in pieces:
        with (bundle.folder / piece["file"]).open("rb") as stream:
            stream.seek(piece["offset"])
            content = stream.read(piece["length"])
        made = content_of(piece, bundle.manifest, shapes)
        left -= len(content) if made is None and piece["name"] not in TABLES else 0
        if left < 0 or made not in (None, content):
            raise ValueError(f"{piece['file']}: {piece['name']} is not drawn as it was exported")
        if made is None:
            piece["constant"] = True
            constants.append(content)
    description = {"shapes": shapes, "pieces": pieces, "vocos": (work / "vocos/config.yaml").read_text()}
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "w:xz") as tar:
        (Path(folder) / DESCRIPTION).write_text(json.dumps(description))
        (Path(folder) / CONSTANTS).write_bytes(b"".join(constants))
        kept = [path for path in sorted(bundle.folder.iterdir()) if path.suffix != ".data"]
        for path in (*kept, *sorted(Path(folder).iterdir())):
            tar.add(path, path.name)


def _pieces(folder: Path) -> list[dict[str, Any]]:
    """Stored tensors in the order of the files, each once, whichever graphs share it."""
    import onnx

    found: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.onnx")):
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            at = {entry.key: entry.value for entry in tensor.external_data}
            if at:
                piece = {"file": at["location"], "name": tensor.name}
                piece |= {key: int(at.get(key, 0)) for key in ("offset", "length")}
                piece["dtype"] = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name
                found.setdefault((piece["file"], piece["offset"]), piece)
    return [found[place] for place in sorted(found)]


def fill(archive: Path, work: Path) -> Bundle:
    """Write WORK/bundle and WORK/vocos/config.yaml. Raises BundleError if a file is not as exported."""
    new = work / "bundle.new"
    for left in (new, work / "bundle"):
        shutil.rmtree(left, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.2 has none
        tar.extractall(new)
    description = json.loads((new / DESCRIPTION).read_text())
    constants = (new / CONSTANTS).read_bytes()
    for name in (DESCRIPTION, CONSTANTS):
        (new / name).unlink()
    manifest, at = contract.read(new, verify=False).manifest, 0
    for piece in description["pieces"]:
        content: bytes | None
        if "constant" in piece:
            content, at = constants[at : at + piece["length"]], at + piece["length"]
        else:
            content = content_of(piece, manifest, description["shapes"])
        assert content is not None
        with (new / piece["file"]).open("ab") as stream:
            stream.truncate(piece["offset"])
            stream.write(content)
    contract.read(new)
    (work / "vocos").mkdir(exist_ok=True)
    (work / "vocos/config.yaml").write_text(description["vocos"])
    return contract.read(new.rename(work / "bundle"), verify=False)


def write(folder: Path, named: str, precision: Precision) -> None:
    from export.families import family

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        make(Path(work), family(named), precision, VOCABULARY if Path(named).suffix == "" else 64)
        pack(Path(work), folder / ARCHIVE)


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], sys.argv[3])  # type: ignore[arg-type]

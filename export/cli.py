"""`python -m export`: bundle · fetch · parity · inspect."""

from __future__ import annotations

import argparse
import functools
import gc
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from appliance.contract import bundle as contract
from appliance.contract.mel import Kind
from appliance.contract.tokens import Tokenizer
from appliance.errors import BundleError, EngineFault
from export import assemble, fetch, inspection, parity, precision, qdq, weights
from export.checkpoint import CheckpointError
from export.families import NAMED, FamilyError, family
from export.reading import parse_languages
from export.to_onnx import ExportError

FAILED = 1
SAMPLINGS = get_args(contract.Sampling)
EXPECTED = (
    BundleError,
    CheckpointError,
    EngineFault,
    ExportError,
    FamilyError,
    assemble.BundleFailed,
    fetch.FetchError,
    ValueError,
    OSError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; print an expected failure as one line on standard error and return 1."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except EXPECTED as error:
        print(f"export: {error}", file=sys.stderr)
        return FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export", description="Official F5-TTS weights to bundles."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    make = commands.add_parser("bundle", help="weights in, a measured bundle out")
    _add_sources(make)
    make.add_argument("--precision", choices=get_args(contract.Precision), default="fp32")
    make.add_argument(
        "--keep-float",
        nargs="*",
        metavar="ROLE",
        help=f"products that int8-qdq leaves in float16: {', '.join(precision.ROLES)} "
        f"(default: {', '.join(qdq.KEEPS_FLOAT)})",
    )
    make.add_argument(
        "--max-frames", type=int, default=assemble.MAX_FRAMES, help="reference and reply together"
    )
    make.add_argument("--licence", help="terms of the weights, where they cannot be told from the files")
    make.add_argument("--vocoder-licence", help="terms of the vocoder, likewise")
    make.add_argument("--out", type=Path, required=True)
    _add_gate(make)
    make.set_defaults(run=_bundle)

    get = commands.add_parser("fetch", help="known weights and their vocoder from the hub, resumable")
    get.add_argument("name", nargs="?", help="name or repository; without it all that are known are listed")
    get.add_argument("--out", type=Path, default=Path("weights"))
    get.set_defaults(run=_fetch)

    check = commands.add_parser("parity", help="measure a bundle against the weights that it was made of")
    check.add_argument("bundle", type=Path)
    _add_sources(check, required=False)
    check.set_defaults(run=_parity)

    look = commands.add_parser("inspect", help="sizes, parameters, operators, precision, licences, parity")
    look.add_argument("bundle", type=Path)
    look.set_defaults(run=lambda arguments: print(inspection.describe(contract.read(arguments.bundle))))
    return parser


def _add_gate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sampling",
        choices=("auto", *SAMPLINGS),
        default="auto",
        help="how the bundle samples; auto takes the cheapest that the measurement allows",
    )
    parser.add_argument(
        "--accept",
        metavar="REASON",
        default="",
        help="write the bundle although it breaks bounds; the manifest carries the reason",
    )


def _gate(arguments: argparse.Namespace) -> assemble.Gate:
    return assemble.Gate(arguments.sampling, arguments.accept)


def _add_sources(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--family",
        required=required,
        help=f"{', '.join(NAMED)}, a name that `fetch` lists, or an upstream-style YAML file",
    )
    parser.add_argument("--checkpoint", type=Path, required=required, help=".safetensors or .pt")
    parser.add_argument(
        "--weights",
        choices=("ema", "raw"),
        default="ema",
        help="the moving average, or what it was made of, which short fine-tunes need",
    )
    parser.add_argument("--vocab", type=Path, required=required)
    parser.add_argument("--vocoder", choices=get_args(Kind), help="default: that of the family's mels")
    parser.add_argument(
        "--vocoder-path",
        type=Path,
        required=required,
        help="folder with its config and weights, or the checkpoint's file if it holds the vocoder",
    )
    parser.add_argument(
        "--tokenizer",
        choices=get_args(Tokenizer),
        help="char: every character as it is; pinyin: upstream's; default: the family's",
    )
    parser.add_argument(
        "--language",
        metavar="CODE[,CODE]",
        help="ISO 639-1 codes of what the weights speak, the main one first; default: known or guessed",
    )


def _sources(arguments: argparse.Namespace) -> assemble.Loaded:
    named = family(arguments.family)
    return assemble.load(
        assemble.Sources(
            named,
            arguments.checkpoint,
            arguments.vocab,
            arguments.vocoder or named.mel.kind,
            arguments.vocoder_path,
            getattr(arguments, "licence", None),
            getattr(arguments, "vocoder_licence", None),
            arguments.weights,
            arguments.tokenizer,
            None if arguments.language is None else parse_languages(arguments.language),
        )
    )


def _bundle(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    if arguments.max_frames not in contract.FRAMES_ALLOWED:
        low, high = contract.FRAMES_ALLOWED[0], contract.FRAMES_ALLOWED[-1]
        raise assemble.BundleFailed(f"--max-frames: must be {low} to {high}, not {arguments.max_frames}")
    if arguments.keep_float is not None and arguments.precision != "int8-qdq":
        raise assemble.BundleFailed("--keep-float: only --precision int8-qdq has it")
    keep_float = qdq.KEEPS_FLOAT if arguments.keep_float is None else arguments.keep_float
    precision.check_roles(keep_float)
    assemble.check_absent(arguments.out)
    gc.freeze()  # what is imported is in no later search for garbage
    loaded = _sources(arguments)
    made = assemble.build(
        loaded,
        arguments.precision,
        arguments.out,
        functools.partial(
            parity.measure,
            expected=assemble.expectations(loaded, arguments.precision, arguments.max_frames),
        ),
        max_frames=arguments.max_frames,
        created_by="python -m export bundle",
        gate=_gate(arguments),
        keep_float=keep_float,
    )
    print("\n".join(inspection.parity_lines(made.manifest)))
    size = sum(f.size_bytes for f in made.manifest.files.values())
    print(f"licence: {made.manifest.licence.weights} (weights), {made.manifest.licence.vocoder} (vocoder)")
    print(f"{arguments.out}: {size / 1e6:.0f} MB, written in {time.monotonic() - started:.0f} s")


def _fetch(arguments: argparse.Namespace) -> None:
    if arguments.name is None:
        print(weights.table())
        return
    got = fetch.fetch(arguments.name, arguments.out)
    row = got.row
    options = {
        "--family": got.config or (row.family if row.name.startswith(row.family) else row.name),
        "--checkpoint": got.checkpoint,
        "--vocab": got.vocab,
        "--vocoder": row.vocoder,
        "--vocoder-path": got.vocoder,
        "--language": ",".join(row.languages),
        "--tokenizer": row.tokenizer,
        "--weights": row.weights,
        "--precision": "fp16",
        "--out": "bundle",
    }
    words = (str(word) for option in options.items() for word in option)
    print("python -m export bundle", shlex.join(words))


def _parity(arguments: argparse.Namespace) -> None:
    made = contract.read(arguments.bundle)
    if not (arguments.family and arguments.checkpoint and arguments.vocab and arguments.vocoder_path):
        print("measured when it was written:")
        print(parity.table(made.manifest.parity.get("rows", []), ""))
        raise assemble.BundleFailed(
            "to measure again, name its sources: --family, --checkpoint, --vocab, --vocoder, --vocoder-path"
        )
    manifest = made.manifest
    expected = assemble.expectations(_sources(arguments), manifest.precision, manifest.max_frames)
    report = parity.measure(made, expected)
    print(report.table())
    if report.failed:
        raise assemble.BundleFailed("; ".join(report.failed))

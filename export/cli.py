"""`python -m export`: bundle · fetch · parity · inspect."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from appliance.contract import bundle as contract
from appliance.errors import BundleError
from export import bundle, fetch, inspection, parity
from export.checkpoint import CheckpointError
from export.families import NAMED, FamilyError, family
from export.to_onnx import ExportError

FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; expected failures are one line on standard error and exit code 1."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (BundleError, CheckpointError, ExportError, FamilyError, ValueError, OSError) as error:
        return _failed(error)
    except (bundle.BundleFailed, fetch.FetchError) as error:
        return _failed(error)
    return 0


def _failed(error: Exception) -> int:
    print(f"export: {error}", file=sys.stderr)
    return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export", description="Official F5-TTS weights to bundles."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    make = commands.add_parser("bundle", help="weights in, a measured bundle out")
    _add_sources(make)
    make.add_argument("--precision", choices=("fp32", "fp16", "int8"), default="fp32")
    make.add_argument(
        "--max-frames", type=int, default=bundle.MAX_FRAMES, help="reference and reply together"
    )
    make.add_argument("--licence", help="terms of the weights, where they cannot be told from the files")
    make.add_argument("--out", type=Path, required=True)
    make.set_defaults(run=_bundle)

    get = commands.add_parser("fetch", help="official weights and vocoder from the hub, resumable")
    get.add_argument("family", choices=sorted(fetch.MODELS))
    get.add_argument("--out", type=Path, default=Path("weights"))
    get.set_defaults(run=_fetch)

    check = commands.add_parser("parity", help="measure a bundle against the weights that it was made of")
    check.add_argument("bundle", type=Path)
    _add_sources(check, required=False)
    check.set_defaults(run=_parity)

    look = commands.add_parser("inspect", help="sizes, parameters, operators, precision, licences, parity")
    look.add_argument("bundle", type=Path)
    look.set_defaults(run=_inspect)
    return parser


def _add_sources(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    known = ", ".join(NAMED)
    parser.add_argument("--family", required=required, help=f"{known}, or an upstream-style YAML file")
    parser.add_argument("--checkpoint", type=Path, required=required, help=".safetensors or .pt")
    parser.add_argument("--vocab", type=Path, required=required)
    parser.add_argument("--vocoder", choices=("vocos", "bigvgan"), default="vocos")
    parser.add_argument(
        "--vocoder-path", type=Path, required=required, help="folder with its config and weights"
    )


def _sources(arguments: argparse.Namespace) -> bundle.Loaded:
    return bundle.load(
        bundle.Sources(
            family(arguments.family),
            arguments.checkpoint,
            arguments.vocab,
            arguments.vocoder,
            arguments.vocoder_path,
            getattr(arguments, "licence", None),
        )
    )


def _bundle(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    loaded = _sources(arguments)
    if arguments.out.exists():
        raise bundle.BundleFailed(f"{arguments.out} exists; name a new folder")
    made = bundle.build(
        loaded,
        arguments.precision,
        arguments.out,
        functools.partial(parity.measure, expected=bundle.expectations(loaded)),
        max_frames=arguments.max_frames,
        created_by="python -m export bundle",
    )
    print(parity.table(made.manifest.parity["rows"], ""))
    size = sum(f.size_bytes for f in made.manifest.files.values())
    print(f"licence: {made.manifest.licence.weights} (weights), {made.manifest.licence.vocoder} (vocoder)")
    print(f"{arguments.out}: {size / 1e6:.0f} MB, written in {time.monotonic() - started:.0f} s")


def _fetch(arguments: argparse.Namespace) -> None:
    got = fetch.fetch(arguments.family, arguments.out)
    vocoder = "bigvgan" if "bigvgan" in str(got.vocoder).lower() else "vocos"
    print(
        f"python -m export bundle --family {arguments.family.removesuffix('_bigvgan')} "
        f"--checkpoint {got.checkpoint} --vocab {got.vocab} --vocoder {vocoder} "
        f"--vocoder-path {got.vocoder} --precision fp16 --out bundle"
    )


def _parity(arguments: argparse.Namespace) -> None:
    made = contract.read(arguments.bundle)
    if not (arguments.family and arguments.checkpoint and arguments.vocab and arguments.vocoder_path):
        print("measured when it was written:")
        print(parity.table(made.manifest.parity.get("rows", []), ""))
        raise bundle.BundleFailed(
            "to measure again, name its sources: --family, --checkpoint, --vocab, --vocoder, --vocoder-path"
        )
    report = parity.measure(made, bundle.expectations(_sources(arguments)))
    print(report.table())
    if report.failed:
        raise bundle.BundleFailed("; ".join(report.failed))


def _inspect(arguments: argparse.Namespace) -> None:
    print(inspection.describe(contract.read(arguments.bundle)))

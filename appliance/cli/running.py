"""Commands that run a daemon: serve, gateway, wyoming, prepare, replay."""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from appliance import sighup
from appliance.box import paths
from appliance.cli.options import Failure, add_config, print_line


def add_serve(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="record the engine's calls")
    parser.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    sighup.expect("serve")
    from appliance.serve import daemon

    return daemon.main(options.config, options.set, options.trace)


def add_gateway(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.set_defaults(run=_gateway)


add_wyoming = add_gateway


def _gateway(options: argparse.Namespace) -> int:
    sighup.expect(options.command)
    name = "serving" if options.command == "gateway" else options.command
    door = import_module(f"appliance.gateway.{name}")
    return int(door.main(options.config, options.set))


def add_prepare(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--dry-run", action="store_true", help="print missing engines and their cost")
    parser.add_argument(
        "--beside",
        action="store_true",
        help="for an unpacked package's own demo",
    )
    parser.set_defaults(run=_prepare)


def _prepare(options: argparse.Namespace) -> int:
    """Build and compare the engines of all bundles. With --beside, only the engines of the bundle in this
    program's folder.
    """
    from appliance import config
    from appliance.contract import bundle as contract
    from appliance.engine import loading
    from appliance.speech import resident

    loaded = config.load(options.config, options.set)
    folder = loaded.bundle.path
    if options.beside and folder.resolve().is_relative_to(paths.INSTALLATION):
        folder = Path(__file__).resolve().parents[2] / folder.resolve().relative_to(paths.INSTALLATION)
    loaded = replace(loaded, bundle=replace(loaded.bundle, path=folder))
    all_ = resident.bundles_of(loaded)
    folders = [each.folder for each in all_]
    for bundle in all_:
        contract.verify_files(bundle)
        if len(all_) > 1:
            print_line(f"bundle {bundle.folder}")
        loading.prepare_for(bundle, loaded.engine, print_line, folders, dry_run=options.dry_run)
    return 0


def add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path)
    parser.add_argument("case", type=Path, metavar="CASE.npz")
    parser.add_argument("--nfe", type=int, help="function evaluations; absent: the daemon's")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.npz")
    parser.set_defaults(run=_replay)


def _replay(options: argparse.Namespace) -> int:
    from appliance import config
    from appliance.contract import bundle as contract
    from appliance.engine import replay

    bundle = contract.read(options.bundle)
    nfe = config.SynthesisConfig().steps_with(bundle.manifest.sampler) if options.nfe is None else options.nfe
    try:
        replay.replay_file(bundle, options.case, nfe, options.out)
    except OSError as error:
        raise Failure(f"{options.out}: {error.strerror}") from error
    print_line(options.out)
    return 0

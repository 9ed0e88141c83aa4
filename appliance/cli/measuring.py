"""The command `bench`."""

from __future__ import annotations

import argparse
import sys

from appliance import config
from appliance.bench import guard, slices, storm
from appliance.bench import run as bench_run
from appliance.box.system import open_box
from appliance.cli.options import add_address, add_config, credentials, print_line, sysroot
from appliance.errors import ApplianceError


def add_bench(parser: argparse.ArgumentParser) -> None:
    measures = parser.add_subparsers(dest="measure", required=True, metavar="MEASURE")
    command = measures.add_parser("storm", help="send more requests than it can serve")
    storm.add_arguments(command)
    command.add_argument("--address", help="host:port or unix:PATH of the daemon; absent: this box's")
    command = measures.add_parser("run", help="measure single replies, stage by stage")
    bench_run.add_arguments(command)
    add_address(command)
    command.set_defaults(run=_bench_run)
    slices.add_arguments(measures.add_parser("trace", help="calls and waits in a file of `serve --trace`"))
    command = measures.add_parser("guard", help="compare speed with the baseline; exits with 0, 1 or 2")
    add_config(command)
    guard.add_arguments(command)
    command.set_defaults(run=_bench_guard)


def _bench_guard(options: argparse.Namespace) -> int:
    try:
        loaded = config.load(options.config, options.set)
    except ApplianceError as error:
        print_line(f"appliance bench guard: {error}", sys.stderr)
        return guard.BROKEN
    root, tools = sysroot()
    return guard.run(loaded, open_box(root or str(loaded.device.sysroot), tools), options)


def _bench_run(options: argparse.Namespace) -> int:
    return bench_run.run(options, credentials(options), open_box(*sysroot()))

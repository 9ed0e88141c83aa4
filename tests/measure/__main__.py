"""Benchmarks around a daemon: the command of `scripts/bench-daemon`."""

import argparse
import sys
from collections.abc import Sequence

from appliance.bench import BenchError
from appliance.cli.options import add_config
from appliance.errors import ApplianceError
from tests.measure import compare


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench-daemon")
    parser.add_argument("measure", choices=["compare"], help="bundles, configurations or versions in turns")
    add_config(parser)
    compare.add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except (ApplianceError, BenchError) as error:
        print(f"{parser.prog} {options.measure}: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())

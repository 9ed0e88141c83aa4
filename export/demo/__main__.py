"""`python -m export.demo rebuild`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from appliance.contract import bundle as contract
from appliance.errors import BundleError
from export.demo.rebuild import BUNDLE, rebuild


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Print an expected failure as one line on standard error, and return 1."""
    parser = argparse.ArgumentParser(prog="python -m export.demo", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    back = commands.add_parser("rebuild", help="convert the demo's bundle to upstream's layout")
    back.add_argument("bundle", type=Path, nargs="?", default=BUNDLE, help="default: %(default)s")
    back.add_argument("--out", type=Path, required=True, help="folder for the files")
    options = parser.parse_args(argv)
    try:
        rebuild(contract.read(options.bundle), options.out)
    except (BundleError, ValueError, OSError) as error:
        print(f"export.demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

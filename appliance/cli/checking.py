"""Arguments of `appliance check`. Its help imports no daemon: the checks (check.py) are imported to run."""

from __future__ import annotations

import argparse

from appliance.box.checks import application, runner
from appliance.cli.options import add_config

NAMES = tuple(dict.fromkeys((*runner.CHECKS, *application.CHECKS, "precision")))


def add_check(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="JSON output")
    parser.add_argument(
        "--only", default="", metavar="NAMES", help=f"some checks: application, {', '.join(NAMES)}"
    )
    parser.add_argument("--no-speak", action="store_true", help="leave out the synthesis")
    parser.add_argument("--quick", action="store_true", help="sizes of the bundle's files, not hashes")
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from appliance.cli import check

    return check.run(options)

"""`python -m export`."""

import sys
from collections.abc import Sequence
from pathlib import Path


def _run(argv: Sequence[str]) -> int:
    """Run the command line.

    Commands that only look at files do not import torch, which takes 1.4 s and 280 MB.
    """
    command = argv[0] if argv else ""
    if command in ("look", "inspect"):
        from export.sources import look

        if command == "look" or (len(argv) > 1 and look.is_training(Path(argv[1]))):
            return look.main(argv[1:])
    from export import cli

    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))

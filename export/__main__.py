"""`python -m export`."""

import sys
from collections.abc import Sequence
from pathlib import Path


def _run(argv: Sequence[str]) -> int:
    """Run the command line.

    Commands that only inspect files do not import torch, which takes 1.4 s and 280 MB.
    """
    command, *rest = argv or [""]
    if command == "look" or (command == "inspect" and len(rest) == 1 and not rest[0].startswith("-")):
        from appliance.errors import BundleError
        from export import inspection
        from export.sources import look

        try:
            print(look.described(rest) if command == "look" else inspection.described(Path(rest[0])))
        except (BundleError, ValueError, OSError) as error:  # CheckpointError is a ValueError
            print(f"export: {error}", file=sys.stderr)
            return 1
        return 0
    from export import cli

    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
